/* SPDX-License-Identifier: MIT */
/*
 * Publishing: from an address to an entry in the ledger.
 *
 * The driver is the one source of truth. A chunk that is known is compared by
 * its BUFFER_ID, which is new for every mapping (measured), so an unmap that
 * no hook saw is found here.
 *
 * A new chunk takes three queries beside its export: what is mapped, its
 * access, and what is mapped once more.
 */
#include "lane/state.h"

#include <string.h>

#include "base/driver.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "stats/count.h"

/* So often a chunk may change under a pack before the pack gives up. */
#define PUBLISH_TRIES 8

__thread int vmml_publish_code __attribute__((tls_model("initial-exec")));

/* A mapping, as the driver describes it or as it was entered. */
struct mapping {
    CUdeviceptr base;
    size_t size;
    unsigned long long buffer_id;
    int device;
    bool has_fd;     /* a descriptor of it can be had, or nothing tells */
    bool has_fabric; /* a fabric handle of it may be had */
};

/* What the lock allows to tell of the address at once. */
enum known {
    KNOWN_LIVE,
    KNOWN_PENDING,
    KNOWN_NOT,
};

static enum known look_up(const struct vmml_window *window, uint64_t address,
                          struct mapping *mapping)
{
    struct vmml_chunk *chunk;
    enum known known = KNOWN_NOT;

    pthread_mutex_lock(&vmml_exporter.lock);
    chunk = vmml_window_chunk_at(window, address);
    if (chunk != NULL && (chunk->state == VMML_EXPORT_LIVE ||
                          chunk->state == VMML_EXPORT_PENDING)) {
        mapping->base = chunk->address;
        mapping->size = chunk->size;
        mapping->buffer_id = chunk->buffer_id;
        mapping->device = window->device;
        mapping->has_fd = chunk->fd >= 0;
        mapping->has_fabric = chunk->has_fabric;
        known = chunk->state == VMML_EXPORT_LIVE ? KNOWN_LIVE : KNOWN_PENDING;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return known;
}

/* The chunk with this BUFFER_ID is not what is mapped there: a change that no
 * hook saw, which makes void what registrations have verified. */
static void kill_stale(struct vmml_window *window,
                       const struct mapping *mapping)
{
    struct vmml_fd_list fds;
    struct vmml_chunk *chunk;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    chunk = vmml_window_chunk_at(window, mapping->base);
    /* Another thread may have published the new one by now. */
    if (chunk != NULL && chunk->buffer_id == mapping->buffer_id) {
        vmml_chunk_kill(window, chunk, &fds);
        window->changes++;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

/* What a query that failed says: nothing is mapped there (measured; NOT_FOUND
 * where no access is set), or nothing at all. A hole is served around, so that
 * a chunk must not be taken for one: its reads would fail. */
static enum vmml_reason query_reason(CUresult result)
{
    switch (result) {
    case CUDA_SUCCESS:
        return VMML_REASON_NONE;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_NOT_FOUND:
        return VMML_REASON_HOLE;
    default:
        return VMML_REASON_DRIVER;
    }
}

/* Has the window's device access, and is it the chunk's? */
static enum vmml_reason check_device(const struct vmml_real *real,
                                     const struct vmml_window *window,
                                     const struct mapping *mapping)
{
    enum vmml_reason reason;
    bool access;

    if (mapping->device != window->device)
        return VMML_REASON_DEVICE;
    reason = query_reason(
        vmml_access_at(real, mapping->base, mapping->device, &access));
    if (reason != VMML_REASON_NONE)
        return reason;
    return access ? VMML_REASON_NONE : VMML_REASON_HOLE;
}

/* Which reason a failed export has: of what kind the memory is. */
static enum vmml_reason export_reason(const struct vmml_real *real,
                                      CUmemGenericAllocationHandle handle,
                                      CUresult result)
{
    CUmemAllocationProp prop;

    if (result == CUDA_ERROR_OPERATING_SYSTEM ||
        result == CUDA_ERROR_OUT_OF_MEMORY)
        return VMML_REASON_NO_DESCRIPTOR;
    if (real->cuMemGetAllocationPropertiesFromHandle(&prop, handle) !=
        CUDA_SUCCESS)
        return VMML_REASON_DRIVER;
    if (prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return VMML_REASON_DRIVER;
    return VMML_REASON_NOT_SHAREABLE;
}

/* How others get at a chunk: by a descriptor of ours; or, with fd -1, by a
 * fabric handle. */
struct means {
    int fd;
    bool has_fabric;
    CUmemFabricHandle fabric;
};

static enum vmml_reason export_fabric(const struct vmml_real *real,
                                      CUmemGenericAllocationHandle handle,
                                      struct means *means)
{
    CUresult result = real->cuMemExportToShareableHandle(
        &means->fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);

    vmml_publish_code = (int)result;
    means->has_fabric = result == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        return VMML_REASON_NONE;
    return result == CUDA_ERROR_NOT_PERMITTED ||
                   result == CUDA_ERROR_NOT_SUPPORTED
               ? VMML_REASON_NO_CHANNEL
               : VMML_REASON_DRIVER;
}

static enum vmml_reason export_handle(const struct vmml_real *real,
                                      CUmemGenericAllocationHandle handle,
                                      const struct mapping *mapping,
                                      struct means *means)
{
    enum vmml_reason reason = VMML_REASON_NONE;
    CUresult result;

    if (mapping->has_fabric)
        reason = export_fabric(real, handle, means);
    if (!mapping->has_fd)
        return reason;
    result = real->cuMemExportToShareableHandle(
        &means->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    vmml_publish_code = (int)result;
    if (result == CUDA_SUCCESS)
        return VMML_REASON_NONE;
    means->fd = -1;
    return export_reason(real, handle, result);
}

/* A means for the chunk's allocation. */
static enum vmml_reason export_chunk(const struct vmml_real *real,
                                     const struct vmml_window *window,
                                     const struct mapping *mapping,
                                     struct means *means)
{
    enum vmml_reason reason = check_device(real, window, mapping);
    CUmemGenericAllocationHandle handle;

    if (reason == VMML_REASON_NONE)
        reason = query_reason(
            real->cuMemRetainAllocationHandle(&handle, (void *)mapping->base));
    if (reason != VMML_REASON_NONE)
        return reason;
    memset(means, 0, sizeof(*means));
    means->fd = -1;
    reason = export_handle(real, handle, mapping, means);
    vmml_release(real, handle);
    if (reason != VMML_REASON_NONE || means->fd < 0)
        return reason;
    means->fd = vmml_fd_raise(means->fd);
    vmml_publish_code = means->fd < 0 ? means->fd : 0;
    return means->fd < 0 ? VMML_REASON_NO_DESCRIPTOR : VMML_REASON_NONE;
}

/* Put it into the table, unless another thread was faster or the window is
 * gone. The descriptor is taken over. */
static enum vmml_reason enter(struct vmml_window *window,
                              const struct mapping *mapping,
                              const struct means *means)
{
    enum vmml_reason reason = VMML_REASON_NONE;
    struct vmml_chunk *chunk = NULL;
    uint64_t from = mapping->base;

    pthread_mutex_lock(&vmml_exporter.lock);
    if (!window->retired &&
        vmml_window_next_chunk(window, &from, mapping->base + mapping->size) ==
            NULL) {
        chunk = vmml_window_add_chunk(window, mapping->base, mapping->size);
        if (chunk != NULL && means->has_fabric &&
            !vmml_window_set_fabric(window, chunk, &means->fabric)) {
            vmml_window_remove_chunk(window, chunk);
            chunk = NULL;
        }
        if (chunk == NULL)
            reason = VMML_REASON_LEDGER;
    }
    if (chunk != NULL) {
        chunk->buffer_id = mapping->buffer_id;
        chunk->fd = means->fd;
        vmml_exporter.chunk_count += means->fd >= 0;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    if (chunk == NULL)
        vmml_fd_close(means->fd);
    return reason;
}

/* With the lock. Its slot, or -errno. */
static int put_in_ledger(const struct vmml_window *window,
                         struct vmml_chunk *chunk)
{
    if (chunk->fd < 0)
        return vmml_ledger_publish_fabric(
            vmml_exporter.ledger, window->index, chunk->address, chunk->size,
            vmml_window_fabric(window, chunk), (uint32_t)window->device,
            &chunk->serial);
    return vmml_ledger_publish(vmml_exporter.ledger, window->index,
                               chunk->address, chunk->size, chunk->fd,
                               (uint32_t)window->device, &chunk->serial);
}

/*
 * The pending chunk goes into the ledger: since it was entered the driver has
 * described it once more. An unmap that began before that shows in BUFFER_ID,
 * or finds the entry when it ends; one that began later has taken the entry out
 * of this state. *live: it is published.
 */
static enum vmml_reason go_live(struct vmml_window *window,
                                const struct mapping *mapping, bool *live)
{
    enum vmml_reason reason = VMML_REASON_NONE;
    struct vmml_fd_list fds;
    struct vmml_chunk *chunk;
    int slot;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    chunk = vmml_window_chunk_at(window, mapping->base);
    if (chunk != NULL && chunk->buffer_id != mapping->buffer_id)
        chunk = NULL;
    if (chunk != NULL && chunk->state == VMML_EXPORT_PENDING) {
        slot = put_in_ledger(window, chunk);
        if (slot >= 0) {
            chunk->slot = (uint32_t)slot;
            chunk->state = VMML_EXPORT_LIVE;
            window->published++;
            vmml_count(chunks_published);
            vmml_count_by(published_bytes, chunk->size);
        } else {
            reason = VMML_REASON_LEDGER;
            vmml_chunk_kill(window, chunk, &fds);
            chunk = NULL;
        }
    }
    *live = chunk != NULL && chunk->state == VMML_EXPORT_LIVE;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    if (*live)
        vmml_debug("chunk 0x%llx+0x%zx is published",
                   (unsigned long long)mapping->base, mapping->size);
    return reason;
}

/* What is mapped at `address`. */
static CUresult describe(const struct vmml_real *real, uint64_t address,
                         struct mapping *mapping)
{
    struct vmml_described described;
    CUresult result = vmml_describe(real, address, &described);

    mapping->base = described.base;
    mapping->size = described.size;
    mapping->buffer_id = described.buffer_id;
    mapping->device = described.device;
    mapping->has_fd = described.handle_types != CU_MEM_HANDLE_TYPE_FABRIC;
    mapping->has_fabric =
        (described.handle_types & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
    return result;
}

/* Is the chunk what is mapped there? One that is pending was entered by a
 * first description, which may be of two mappings: all of it is compared. */
static CUresult is_same(const struct vmml_real *real, enum known known,
                        const struct mapping *mapping, bool *same)
{
    struct mapping now = *mapping;
    CUresult result;

    if (known == KNOWN_PENDING)
        result = describe(real, mapping->base, &now);
    else
        result = vmml_attribute(real, &now.buffer_id,
                                CU_POINTER_ATTRIBUTE_BUFFER_ID, mapping->base);
    *same = result == CUDA_SUCCESS && now.buffer_id == mapping->buffer_id &&
            now.base == mapping->base && now.size == mapping->size &&
            now.device == mapping->device;
    return result;
}

/* A chunk that is known is compared with what is mapped. *done: it is that, and
 * published. */
static enum vmml_reason compare(const struct vmml_real *real,
                                struct vmml_window *window, enum known known,
                                const struct mapping *mapping, bool *done)
{
    bool same;
    enum vmml_reason reason =
        query_reason(is_same(real, known, mapping, &same));

    /* What is published stays: nothing is known against it. */
    if (reason == VMML_REASON_DRIVER && known == KNOWN_LIVE)
        return reason;
    if (!same) {
        kill_stale(window, mapping);
        return reason == VMML_REASON_DRIVER ? reason : VMML_REASON_NONE;
    }
    if (known == KNOWN_PENDING)
        return go_live(window, mapping, done);
    *done = true;
    return VMML_REASON_NONE;
}

static bool is_aligned(const struct vmml_window *window,
                       const struct mapping *mapping)
{
    return ((mapping->base - window->base) | mapping->size) % VMML_GRANULE ==
               0 &&
           mapping->base >= window->base &&
           mapping->size <= window->base + window->size - mapping->base;
}

/* A description may be of two mappings, or of one and none: then the reason
 * that was found in it says nothing. */
static bool is_described(const struct vmml_real *real, uint64_t address,
                         const struct mapping *mapping)
{
    struct mapping now;

    return describe(real, address, &now) == CUDA_SUCCESS &&
           now.buffer_id == mapping->buffer_id && now.base == mapping->base &&
           now.size == mapping->size && now.device == mapping->device &&
           now.has_fd == mapping->has_fd &&
           now.has_fabric == mapping->has_fabric;
}

/* The mapping, as it was described, becomes a pending chunk. */
static enum vmml_reason enter_new(const struct vmml_real *real,
                                  struct vmml_window *window,
                                  const struct mapping *mapping)
{
    enum vmml_reason reason;
    struct means means;

    if (!is_aligned(window, mapping))
        return VMML_REASON_WINDOW;
    /* Other chunks there are stale, or this mapping is by now. */
    vmml_compare_range(real, mapping->base, mapping->size, 0);
    vmml_fork_hold();
    reason = export_chunk(real, window, mapping, &means);
    if (reason == VMML_REASON_NONE)
        reason = enter(window, mapping, &means);
    vmml_fork_release();
    return reason;
}

/* One step nearer to what publish_at() is to reach. *done: it is reached. */
static enum vmml_reason try_publish(const struct vmml_real *real,
                                    struct vmml_window *window,
                                    uint64_t address, struct mapping *mapping,
                                    bool *done)
{
    enum known known = look_up(window, address, mapping);
    enum vmml_reason reason = VMML_REASON_NONE;

    *done = false;
    if (known != KNOWN_NOT)
        reason = compare(real, window, known, mapping, done);
    if (*done || reason != VMML_REASON_NONE)
        return reason;
    reason = query_reason(describe(real, address, mapping));
    if (reason != VMML_REASON_NONE)
        return reason;
    reason = enter_new(real, window, mapping);
    /* Unmapped since, or it never was as described: look again. */
    if (reason == VMML_REASON_HOLE ||
        (reason != VMML_REASON_NONE && !is_described(real, address, mapping)))
        reason = VMML_REASON_NONE;
    return reason;
}

/*
 * Make sure that the mapping at `address` is published as it is now.
 * mapping: filled with it on success.
 */
static enum vmml_reason publish_at(const struct vmml_real *real,
                                   struct vmml_window *window, uint64_t address,
                                   struct mapping *mapping)
{
    enum vmml_reason reason;
    bool failed = false;
    bool done;
    int tries;

    for (tries = 0; tries <= PUBLISH_TRIES; tries++) {
        reason = try_publish(real, window, address, mapping, &done);
        if (done)
            return VMML_REASON_NONE;
        if (reason == VMML_REASON_DRIVER && !failed)
            failed = true; /* once more: it costs the lane */
        else if (reason != VMML_REASON_NONE)
            return reason;
    }
    return VMML_REASON_HOLE;
}

/* The granule behind `address`. */
static uint64_t next_granule(const struct vmml_window *window, uint64_t address)
{
    return window->base +
           ((address - window->base) / VMML_GRANULE + 1) * VMML_GRANULE;
}

/* Descriptors that others may open meanwhile. */
#define ROOM_SLACK 256

/* Chunks of [from, to) that are not published yet and need a descriptor; more
 * than `enough` are not counted. */
static size_t count_unpublished(const struct vmml_real *real,
                                struct vmml_window *window, uint64_t from,
                                uint64_t to, size_t enough)
{
    struct mapping mapping;
    size_t count = 0;

    while (from < to && count <= enough) {
        if (look_up(window, from, &mapping) != KNOWN_NOT) {
            from = mapping.base + mapping.size;
        } else if (describe(real, from, &mapping) == CUDA_SUCCESS) {
            count += mapping.has_fd;
            from = mapping.base + mapping.size;
        } else {
            from = next_granule(window, from);
        }
    }
    return count;
}

/* Is there a descriptor for each chunk of [from, to)? A request that cannot be
 * served in full must not use up what others could be served with. */
static bool has_room(const struct vmml_real *real, struct vmml_window *window,
                     uint64_t from, uint64_t to)
{
    size_t numbers = vmml_fd_limit().numbers;
    size_t most = (to - from) / VMML_GRANULE + 2 + ROOM_SLACK;
    size_t room;

    pthread_mutex_lock(&vmml_exporter.lock);
    most += vmml_exporter.chunk_count;
    pthread_mutex_unlock(&vmml_exporter.lock);
    if (most <= numbers)
        return true;
    room = vmml_fd_room();
    return count_unpublished(real, window, from, to, room) <= room;
}

enum vmml_reason vmml_publish(const struct vmml_real *real,
                              struct vmml_window *window, uint64_t from,
                              uint64_t to, uint64_t *hole)
{
    struct mapping mapping;
    enum vmml_reason reason;

    *hole = 0;
    if (!has_room(real, window, from, to))
        return VMML_REASON_NO_DESCRIPTOR;
    while (from < to) {
        reason = publish_at(real, window, from, &mapping);
        if (reason == VMML_REASON_HOLE) {
            *hole = from;
            from = next_granule(window, from);
            continue;
        }
        if (reason != VMML_REASON_NONE)
            return reason;
        from = mapping.base + mapping.size;
    }
    return VMML_REASON_NONE;
}
