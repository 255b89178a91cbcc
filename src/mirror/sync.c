/* SPDX-License-Identifier: MIT */
/*
 * Bringing a mirror up to date: unmap what was revoked, map what is new.
 */
#include "mirror/state.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/driver.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/remedy.h"
#include "mirror/use.h"
#include "stats/count.h"
#include "stats/stats.h"

/* So often, and with this pause, a ledger that is being written is read: half
 * a second and more. Each reading tries for some milliseconds. */
#define READ_TRIES    100
#define READ_PAUSE_NS 5000000

/* So often posters are looked for at once, then with this pause. */
#define QUICK_TRIES  100
#define OUT_PAUSE_NS 50000

atomic_bool vmml_mirrors_pinned;

static struct timespec deadline(void)
{
    struct timespec time = {0, 0};

    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += VMML_MIRROR_WAIT_SECONDS;
    return time;
}

static bool is_past(const struct timespec *limit)
{
    struct timespec time = {0, 0};

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec > limit->tv_sec ||
           (time.tv_sec == limit->tv_sec && time.tv_nsec > limit->tv_nsec);
}

static bool become_busy(struct vmml_mirror *mirror)
{
    struct timespec limit = deadline();
    int error = 0;

    pthread_mutex_lock(&mirror->lock);
    while (mirror->busy && error == 0)
        error = pthread_cond_timedwait(&mirror->idle, &mirror->lock, &limit);
    if (!mirror->busy)
        error = 0;
    if (error == 0)
        mirror->busy = true;
    pthread_mutex_unlock(&mirror->lock);
    return error == 0;
}

bool vmml_mirror_try_busy(struct vmml_mirror *mirror)
{
    bool mine;

    pthread_mutex_lock(&mirror->lock);
    mine = !mirror->busy;
    mirror->busy = true;
    pthread_mutex_unlock(&mirror->lock);
    return mine;
}

void vmml_mirror_end_busy(struct vmml_mirror *mirror)
{
    pthread_mutex_lock(&mirror->lock);
    mirror->busy = false;
    pthread_cond_broadcast(&mirror->idle);
    pthread_mutex_unlock(&mirror->lock);
}

/* Let no poster in, and wait until those inside are out. A poster is inside
 * for the length of one driver call. */
static bool keep_posters_out(struct vmml_mirror *mirror)
{
    const struct timespec pause = {.tv_nsec = OUT_PAUSE_NS};
    struct timespec limit = deadline();
    unsigned tries;

    atomic_store(&mirror->closing, true);
    if (!vmml_posting_barrier()) {
        atomic_store(&mirror->closing, false);
        return false;
    }
    for (tries = 0;
         atomic_load(&mirror->inside) != 0 || vmml_posting_is_in(mirror);
         tries++) {
        if (is_past(&limit)) {
            atomic_store(&mirror->closing, false);
            return false;
        }
        /* The driver may keep a poster for long: its queue may be full. */
        if (tries < QUICK_TRIES)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
    return true;
}

static void let_posters_in(struct vmml_mirror *mirror)
{
    atomic_store(&mirror->closing, false);
}

static CUdeviceptr local_address(const struct vmml_mirror *mirror,
                                 uint64_t address)
{
    return mirror->address + (address - mirror->base);
}

static bool is_pinned(const struct vmml_mirror *mirror)
{
    return atomic_load(&mirror->pins) != 0 || atomic_load(&vmml_mirrors_pinned);
}

static bool is_alive(const struct vmml_mirror *mirror,
                     const struct vmml_mapped *mapped)
{
    return mirror->viewed && !atomic_load(&mirror->peer->dead) &&
           vmml_ledger_is_live(mirror->peer->reader, mapped->slot,
                               mapped->serial);
}

static bool has_victims(const struct vmml_mirror *mirror)
{
    size_t i;

    for (i = 0; i < mirror->mapped_count; i++)
        if (!is_alive(mirror, &mirror->mapped[i]))
            return true;
    return false;
}

static void mark_stale(struct vmml_mirror *mirror)
{
    bool any = false;
    size_t i;

    for (i = 0; i < mirror->mapped_count; i++) {
        mirror->mapped[i].stale = !is_alive(mirror, &mirror->mapped[i]);
        any |= mirror->mapped[i].stale;
    }
    atomic_store(&mirror->has_stale, any);
}

/* False: it is still mapped. */
static bool unmap_one(const struct vmml_real *real, struct vmml_mirror *mirror,
                      const struct vmml_mapped *mapped)
{
    CUresult result;

    if (mirror->import.address != 0) {
        if (!vmml_pool_unimport(real, &mirror->import))
            return false;
        atomic_store(&mirror->shift, 0);
        result = CUDA_SUCCESS;
    } else {
        result = real->cuMemUnmap(local_address(mirror, mapped->address),
                                  mapped->size);
    }
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) {
        vmml_count(chunks_unmapped);
        vmml_count_by(unmapped_bytes, mapped->size);
        return true;
    }
    vmml_warn_once("cuMemUnmap of a mirror failed (%d)", (int)result);
    return false;
}

/* Posters are out and their copies done. */
static void unmap_victims(const struct vmml_real *real,
                          struct vmml_mirror *mirror)
{
    size_t kept = 0;
    bool stale = false;
    size_t i;

    for (i = 0; i < mirror->mapped_count; i++) {
        struct vmml_mapped *mapped = &mirror->mapped[i];

        if (!is_alive(mirror, mapped) && unmap_one(real, mirror, mapped)) {
            vmml_debug("0x%lx+0x%lx of process %u was revoked and is unmapped",
                       (unsigned long)mapped->address,
                       (unsigned long)mapped->size, mirror->peer->pid);
            continue;
        }
        /* Alive, or it could not be unmapped: then nothing may use it. */
        mapped->stale = !is_alive(mirror, mapped);
        stale |= mapped->stale;
        mirror->mapped[kept++] = *mapped;
    }
    mirror->mapped_count = kept;
    atomic_store(&mirror->holds, kept != 0);
    atomic_store(&mirror->has_stale, stale);
}

static bool drop_victims(const struct vmml_real *real,
                         struct vmml_mirror *mirror)
{
    CUresult result;

    if (is_pinned(mirror)) {
        mark_stale(mirror);
        return true;
    }
    if (!keep_posters_out(mirror)) {
        vmml_warn_once("a copy did not return for %d s: revoked memory of "
                       "process %u stays mapped until it does",
                       VMML_MIRROR_WAIT_SECONDS, mirror->peer->pid);
        return false;
    }
    result = vmml_order_drain(&mirror->posted);
    if (result == CUDA_SUCCESS) {
        unmap_victims(real, mirror);
    } else {
        vmml_warn_once("a stream cannot be waited for (%d): revoked memory of "
                       "process %u stays mapped until it can",
                       (int)result, mirror->peer->pid);
        mark_stale(mirror);
    }
    let_posters_in(mirror);
    return true;
}

/* Index of the first mapped chunk that ends above `address`. */
static size_t first_above(const struct vmml_mirror *mirror, uint64_t address)
{
    size_t low = 0, high = mirror->mapped_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct vmml_mapped *mapped = &mirror->mapped[middle];

        if (mapped->address + mapped->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A mapped chunk that lies where `chunk` is to be, or NULL. */
static const struct vmml_mapped *
mapped_over(const struct vmml_mirror *mirror,
            const struct vmml_chunk_view *chunk)
{
    size_t i = first_above(mirror, chunk->address);

    if (i == mirror->mapped_count ||
        mirror->mapped[i].address >= chunk->address + chunk->size)
        return NULL;
    return &mirror->mapped[i];
}

static bool reserve_records(struct vmml_mirror *mirror, size_t more)
{
    size_t wanted = mirror->mapped_count + more;
    size_t capacity = mirror->mapped_capacity ? mirror->mapped_capacity : 8;
    void *mapped;

    if (wanted <= mirror->mapped_capacity)
        return true;
    while (capacity < wanted)
        capacity *= 2;
    mapped = realloc(mirror->mapped, capacity * sizeof(*mirror->mapped));
    if (mapped == NULL)
        return false;
    mirror->mapped = mapped;
    mirror->mapped_capacity = capacity;
    return true;
}

static int compare_mapped(const void *a, const void *b)
{
    const struct vmml_mapped *left = a, *right = b;

    return (left->address > right->address) - (left->address < right->address);
}

/* mapped[from, count), sorted by itself, goes where it belongs. */
static void merge(struct vmml_mirror *mirror, size_t from)
{
    struct vmml_mapped *mapped = mirror->mapped, *added;
    size_t count = mirror->mapped_count - from;
    size_t old = from, at = mirror->mapped_count;

    if (count == 0 || from == 0 ||
        mapped[from - 1].address < mapped[from].address)
        return;
    added = malloc(count * sizeof(*added));
    if (added == NULL) {
        qsort(mapped, mirror->mapped_count, sizeof(*mapped), compare_mapped);
        return;
    }
    memcpy(added, &mapped[from], count * sizeof(*added));
    while (count > 0)
        if (old > 0 && mapped[old - 1].address > added[count - 1].address)
            mapped[--at] = mapped[--old];
        else
            mapped[--at] = added[--count];
    free(added);
}

static int compare_views(const void *a, const void *b)
{
    const struct vmml_chunk_view *left = a, *right = b;

    return (left->address > right->address) - (left->address < right->address);
}

static bool is_imported(CUresult result, const struct vmml_mirror *mirror,
                        const struct vmml_chunk_view *chunk)
{
    if (result == CUDA_SUCCESS)
        return true;
    if (chunk->kind == VMML_CHUNK_FABRIC &&
        result == CUDA_ERROR_NOT_PERMITTED) {
        VMML_LOST(NO_CHANNEL_HERE, .address = chunk->address,
                  .length = chunk->size, .code = result,
                  .pid = mirror->peer->pid);
        vmml_warn_once("memory of process %u is shared by fabric handles, and "
                       "the driver does not permit them here (%d): no fast "
                       "lane. Remedy: %s",
                       mirror->peer->pid, (int)result, VMML_REMEDY_IMEX);
        return false;
    }
    VMML_LOST(IMPORT, .address = chunk->address, .length = chunk->size,
              .code = result, .pid = mirror->peer->pid);
    vmml_warn_once("cuMemImportFromShareableHandle failed (%d) for memory of "
                   "process %u: no fast lane",
                   (int)result, mirror->peer->pid);
    return false;
}

static bool import_fabric(const struct vmml_real *real,
                          const struct vmml_mirror *mirror,
                          const struct vmml_chunk_view *chunk,
                          CUmemGenericAllocationHandle *handle, bool *dead)
{
    CUmemFabricHandle fabric;
    CUresult result;

    *dead = !vmml_ledger_fabric_handle(mirror->peer->reader, chunk,
                                       (uint8_t *)&fabric) ||
            atomic_load(&mirror->peer->dead);
    if (*dead)
        return false;
    result = real->cuMemImportFromShareableHandle(handle, &fabric,
                                                  CU_MEM_HANDLE_TYPE_FABRIC);
    /* The driver finds nothing behind the handle of what was freed. */
    *dead =
        result != CUDA_SUCCESS &&
        !vmml_ledger_is_live(mirror->peer->reader, chunk->slot, chunk->serial);
    return !*dead && is_imported(result, mirror, chunk);
}

static bool import_fd(const struct vmml_real *real,
                      const struct vmml_mirror *mirror,
                      const struct vmml_chunk_view *chunk,
                      CUmemGenericAllocationHandle *handle, bool *dead)
{
    int fd = vmml_peer_get_chunk(mirror->peer, chunk);
    CUresult result;

    /* The number may belong to another file by now: only an entry that is
     * still live says that it did not, and the peer's own descriptors are used
     * again after it died. */
    *dead = !vmml_ledger_is_live(mirror->peer->reader, chunk->slot,
                                 chunk->serial) ||
            atomic_load(&mirror->peer->dead);
    if (fd < 0 || *dead) {
        vmml_fd_close(fd);
        if (!*dead) {
            VMML_LOST(DESCRIPTOR, .address = chunk->address,
                      .length = chunk->size, .code = fd,
                      .pid = mirror->peer->pid);
            vmml_warn_once("descriptor %d of process %u cannot be had (errno "
                           "%d): no fast lane",
                           chunk->fd, mirror->peer->pid, -fd);
        }
        return false;
    }
    result = real->cuMemImportFromShareableHandle(
        handle, (void *)(uintptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    vmml_fd_close(fd);
    return is_imported(result, mirror, chunk);
}

/* The chunk's allocation in this process. `*dead`: it was revoked meanwhile. */
static bool import_chunk(const struct vmml_real *real,
                         const struct vmml_mirror *mirror,
                         const struct vmml_chunk_view *chunk,
                         CUmemGenericAllocationHandle *handle, bool *dead)
{
    bool done;

    if (chunk->kind == VMML_CHUNK_FABRIC)
        return import_fabric(real, mirror, chunk, handle, dead);
    vmml_fork_hold();
    done = import_fd(real, mirror, chunk, handle, dead);
    vmml_fork_release();
    return done;
}

static void add_mapped(struct vmml_mirror *mirror,
                       const struct vmml_chunk_view *chunk)
{
    struct vmml_mapped *mapped = &mirror->mapped[mirror->mapped_count++];

    mapped->address = chunk->address;
    mapped->size = chunk->size;
    mapped->serial = chunk->serial;
    mapped->slot = chunk->slot;
    mapped->stale = false;
    vmml_count(chunks_mapped);
    vmml_count_by(mapped_bytes, chunk->size);
}

/* Memory of a pool: alone in its window, and where the driver puts it. */
static bool import_pooled(const struct vmml_real *real,
                          struct vmml_mirror *mirror,
                          const struct vmml_chunk_view *chunk, bool *dead)
{
    if (mirror->mapped_count != 0 || mirror->import.address != 0 ||
        !vmml_pool_import(real, mirror->peer, &mirror->view, chunk,
                          mirror->device, &mirror->import, dead))
        return false;
    atomic_store(&mirror->shift, mirror->import.address - mirror->address);
    add_mapped(mirror, chunk);
    return true;
}

static bool map_chunk(const struct vmml_real *real, struct vmml_mirror *mirror,
                      const struct vmml_chunk_view *chunk, bool *dead)
{
    CUmemGenericAllocationHandle handle;
    CUresult result;

    if (chunk->kind == VMML_CHUNK_POOLED)
        return import_pooled(real, mirror, chunk, dead);
    if (mirror->import.address != 0)
        return false;
    if (!import_chunk(real, mirror, chunk, &handle, dead))
        return false;
    result = real->cuMemMap(local_address(mirror, chunk->address), chunk->size,
                            0, handle, 0);
    /* The mapping keeps the memory (driver documentation, cuMemRelease). */
    vmml_release(real, handle);
    if (result != CUDA_SUCCESS) {
        VMML_LOST(MAP, .address = chunk->address, .length = chunk->size,
                  .code = result, .pid = mirror->peer->pid);
        vmml_warn_once("cuMemMap of a mirror failed (%d): no fast lane",
                       (int)result);
        return false;
    }
    add_mapped(mirror, chunk);
    return true;
}

static bool set_access(const struct vmml_real *real,
                       const struct vmml_mirror *mirror, uint64_t address,
                       uint64_t size)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = mirror->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result;

    if (mirror->import.address != 0)
        return true; /* its pool has it */
    result =
        real->cuMemSetAccess(local_address(mirror, address), size, &desc, 1);
    if (result == CUDA_SUCCESS)
        return true;
    VMML_LOST(ACCESS, .address = address, .length = size, .code = result,
              .pid = mirror->peer->pid);
    vmml_warn_once("device %d cannot access memory of process %u "
                   "(cuMemSetAccess gave %d): no fast lane",
                   (int)mirror->device, mirror->peer->pid, (int)result);
    return false;
}

/* Of what was mapped just now, nothing may be used: unmap mapped[from, to). */
static void take_back(const struct vmml_real *real, struct vmml_mirror *mirror,
                      size_t from, size_t to)
{
    size_t kept = from;
    size_t i;

    for (i = from; i < to; i++) {
        if (unmap_one(real, mirror, &mirror->mapped[i]))
            continue;
        mirror->mapped[kept] = mirror->mapped[i];
        mirror->mapped[kept++].stale = true;
        atomic_store(&mirror->has_stale, true);
    }
    memmove(&mirror->mapped[kept], &mirror->mapped[to],
            (mirror->mapped_count - to) * sizeof(*mirror->mapped));
    mirror->mapped_count -= to - kept;
}

/* Access for mapped[from, count), which were mapped just now, a run at a
 * time; what gets none is unmapped again. */
static bool give_access(const struct vmml_real *real,
                        struct vmml_mirror *mirror, size_t from)
{
    size_t first = from;
    bool all = true;

    while (first < mirror->mapped_count) {
        uint64_t address = mirror->mapped[first].address;
        uint64_t end = address + mirror->mapped[first].size;
        size_t last = first + 1;
        size_t after;

        while (last < mirror->mapped_count &&
               mirror->mapped[last].address == end)
            end += mirror->mapped[last++].size;
        after = mirror->mapped_count - last;
        if (!set_access(real, mirror, address, end - address)) {
            all = false;
            take_back(real, mirror, first, last);
        }
        first = mirror->mapped_count - after;
    }
    return all;
}

static void note_mean(struct vmml_mirror *mirror)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < mirror->mapped_count; i++)
        bytes += mirror->mapped[i].size;
    atomic_store(&mirror->mean_chunk,
                 mirror->mapped_count == 0 ? 0 : bytes / mirror->mapped_count);
}

/* Map them without access. Where the device cannot have access at all, the
 * first chunk tells; then *with_access is 1. */
static bool map_new(const struct vmml_real *real, struct vmml_mirror *mirror,
                    const struct vmml_chunk_view *chunks, size_t count,
                    size_t *with_access)
{
    bool is_known = mirror->mapped_count > 0;
    bool dead;
    size_t i;

    for (i = 0; i < count; i++) {
        dead = false;
        if (!map_chunk(real, mirror, &chunks[i], &dead)) {
            if (!dead)
                return false;
            continue;
        }
        if (!is_known &&
            !set_access(real, mirror, chunks[i].address, chunks[i].size)) {
            take_back(real, mirror, 0, 1);
            return false;
        }
        *with_access += !is_known;
        is_known = true;
    }
    return true;
}

/* chunks: sorted by address. Returns false when a live one is missing. */
static bool map_chunks(const struct vmml_real *real, struct vmml_mirror *mirror,
                       const struct vmml_chunk_view *chunks, size_t count)
{
    size_t before = mirror->mapped_count;
    size_t with_access = 0;
    bool all;

    if (count == 0)
        return true;
    if (!reserve_records(mirror, count))
        return false;
    all = map_new(real, mirror, chunks, count, &with_access);
    /* An exec closes descriptors without a word in the ledger, and their
     * numbers may be of other memory by now. */
    if (mirror->mapped_count > before && !vmml_peer_is_same(mirror->peer)) {
        take_back(real, mirror, before, mirror->mapped_count);
        with_access = 0;
        all = false;
    }
    all = give_access(real, mirror, before + with_access) && all;
    merge(mirror, before);
    note_mean(mirror);
    if (mirror->mapped_count != 0 && !atomic_exchange(&mirror->holds, true))
        vmml_watch_start();
    return all;
}

/* Drop from `chunks` what is mapped already, and what cannot be mapped yet
 * because a revoked one is kept there (*hidden). */
static size_t only_new(const struct vmml_mirror *mirror,
                       struct vmml_chunk_view *chunks, size_t count,
                       bool *hidden)
{
    const struct vmml_mapped *mapped;
    size_t kept = 0;
    size_t i;

    *hidden = false;
    for (i = 0; i < count; i++) {
        mapped = mapped_over(mirror, &chunks[i]);
        if (mapped == NULL)
            chunks[kept++] = chunks[i];
        else
            *hidden |= mapped->serial != chunks[i].serial;
    }
    return kept;
}

static int collect(struct vmml_mirror *mirror, struct vmml_chunk_view **chunks,
                   size_t *count)
{
    return vmml_ledger_collect(mirror->peer->reader, &mirror->view,
                               mirror->newest, VMML_MIRROR_GRANULE, chunks,
                               count);
}

static int read_once(struct vmml_mirror *mirror,
                     struct vmml_chunk_view **chunks, size_t *count)
{
    int status = -ENOENT;

    if (mirror->viewed)
        status = collect(mirror, chunks, count);
    /* Its entry may be another window's by now, and it have a new one. */
    if (status == -ENOENT) {
        status = vmml_ledger_find_window(mirror->peer->reader, mirror->base,
                                         mirror->size, &mirror->view);
        if (status == 0)
            status = collect(mirror, chunks, count);
    }
    mirror->viewed = status == 0;
    return status;
}

/* What the exporter publishes now. -EAGAIN: it did not stop writing, or was
 * stopped while it wrote. */
static int read_window(struct vmml_mirror *mirror, int most,
                       struct vmml_chunk_view **chunks, size_t *count)
{
    const struct timespec pause = {.tv_nsec = READ_PAUSE_NS};
    int status = -EAGAIN;
    int tries;

    *chunks = NULL;
    *count = 0;
    for (tries = 0; tries < most && status == -EAGAIN; tries++) {
        if (tries > 0)
            nanosleep(&pause, NULL);
        if (vmml_peer_ended(mirror->peer))
            return -ESRCH;
        status = read_once(mirror, chunks, count);
    }
    return status;
}

/* The exporter or the window is gone: nothing of it may stay. */
static enum vmml_sync lose_all(const struct vmml_real *real,
                               struct vmml_mirror *mirror)
{
    mirror->viewed = false;
    mirror->newest = 0;
    atomic_store(&mirror->revoked, NULL);
    if (mirror->mapped_count > 0)
        drop_victims(real, mirror);
    return VMML_SYNC_GONE;
}

/* The ledger could not be read. */
static enum vmml_sync read_failed(const struct vmml_real *real,
                                  struct vmml_mirror *mirror, int status)
{
    switch (status) {
    case -ESRCH:
    case -ENOENT:
        return lose_all(real, mirror);
    case -EAGAIN:
    case -ENOMEM:
        /* It passes: nothing is known to be wrong with what is mapped. */
        vmml_warn_once("the ledger of process %u cannot be read now (errno "
                       "%d)",
                       mirror->peer->pid, -status);
        return VMML_SYNC_BUSY;
    default:
        VMML_LOST(LEDGER_READ, .address = mirror->base, .length = mirror->size,
                  .code = status, .pid = mirror->peer->pid);
        vmml_warn_once("the ledger of process %u makes no sense (errno %d): "
                       "no fast lane",
                       mirror->peer->pid, -status);
        lose_all(real, mirror);
        return VMML_SYNC_FAILED;
    }
}

static enum vmml_sync sync_busy(const struct vmml_real *real,
                                struct vmml_mirror *mirror, int tries)
{
    struct vmml_chunk_view *chunks;
    size_t count;
    int status = read_window(mirror, tries, &chunks, &count);
    bool hidden;

    mirror->complete = false;
    if (status == -EAGAIN && tries < READ_TRIES)
        return VMML_SYNC_BUSY;
    if (status != 0)
        return read_failed(real, mirror, status);
    /* First what was revoked: a new chunk may lie where it was. */
    if ((has_victims(mirror) || atomic_load(&mirror->has_stale)) &&
        !drop_victims(real, mirror)) {
        free(chunks);
        return VMML_SYNC_BUSY;
    }
    if (count > 1)
        qsort(chunks, count, sizeof(*chunks), compare_views);
    count = only_new(mirror, chunks, count, &hidden);
    mirror->complete = map_chunks(real, mirror, chunks, count) && !hidden;
    free(chunks);
    if (atomic_load(&mirror->peer->dead))
        return lose_all(real, mirror);
    /* What is mapped stays usable when something new could not be. */
    atomic_store(&mirror->revoked_seen, mirror->view.revoked);
    atomic_store(
        &mirror->revoked,
        vmml_ledger_revoked_word(mirror->peer->reader, mirror->view.index));
    if (!mirror->complete)
        return VMML_SYNC_FAILED;
    if (count > 0)
        vmml_debug("%zu chunks of window 0x%lx of process %u are mapped at "
                   "0x%lx",
                   count, (unsigned long)mirror->base, mirror->peer->pid,
                   (unsigned long)mirror->address);
    mirror->newest = mirror->view.newest;
    return VMML_SYNC_OK;
}

static void note_stats(struct vmml_mirror *mirror, enum vmml_sync outcome)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < mirror->mapped_count; i++)
        bytes += mirror->mapped[i].size;
    vmml_count(mirror_updates);
    vmml_stats_mirror(&mirror->stats,
                      &(struct vmml_mirror_stats){
                          .base = mirror->base,
                          .size = mirror->size,
                          .address = mirror->address,
                          .bytes = bytes,
                          .pid = mirror->peer->pid,
                          .chunks = (uint32_t)mirror->mapped_count,
                          .device = mirror->device,
                          .outcome = outcome,
                      });
}

/* Busy. */
static enum vmml_sync sync_and_end(struct vmml_mirror *mirror, int tries)
{
    const struct vmml_real *real = vmml_real();
    enum vmml_sync outcome = VMML_SYNC_GONE;
    struct vmml_relaxed relaxed;

    VMML_LOG_KEY(mirror->peer->nonce, mirror->base, mirror->size);
    vmml_relax(real, &relaxed);
    if (!vmml_mirror_is_condemned(mirror))
        outcome = sync_busy(real, mirror, tries);
    note_stats(mirror, outcome);
    vmml_relax_end(real, &relaxed);
    vmml_mirror_end_busy(mirror);
    return outcome;
}

enum vmml_sync vmml_mirror_sync(struct vmml_mirror *mirror)
{
    if (vmml_real() == NULL || !become_busy(mirror))
        return VMML_SYNC_BUSY;
    return sync_and_end(mirror, READ_TRIES);
}

enum vmml_sync vmml_mirror_try_sync(struct vmml_mirror *mirror)
{
    if (vmml_real() == NULL || !vmml_mirror_try_busy(mirror))
        return VMML_SYNC_BUSY;
    return sync_and_end(mirror, 1);
}

bool vmml_mirror_is_current(struct vmml_mirror *mirror)
{
    bool revoked = false;
    bool current;

    if (!vmml_mirror_is_good(mirror))
        return false;
    pthread_mutex_lock(&mirror->lock);
    current = !mirror->busy && mirror->viewed && mirror->complete &&
              !vmml_ledger_window_changed(mirror->peer->reader, &mirror->view,
                                          &revoked);
    pthread_mutex_unlock(&mirror->lock);
    return current;
}

static enum vmml_content content(const struct vmml_mirror *mirror,
                                 uint64_t from, uint64_t to)
{
    enum vmml_content found = VMML_CONTENT_MAPPED;
    size_t i;

    for (i = first_above(mirror, from);
         i < mirror->mapped_count && mirror->mapped[i].address < to; i++) {
        const struct vmml_mapped *mapped = &mirror->mapped[i];

        if (mapped->stale)
            return VMML_CONTENT_STALE;
        if (mapped->address > from)
            found = VMML_CONTENT_HOLE;
        from = mapped->address + mapped->size;
    }
    return from < to ? VMML_CONTENT_HOLE : found;
}

enum vmml_content vmml_mirror_content(struct vmml_mirror *mirror,
                                      CUdeviceptr address, size_t length)
{
    uint64_t from = mirror->base + (address - mirror->address);
    enum vmml_content found = VMML_CONTENT_BUSY;

    pthread_mutex_lock(&mirror->lock);
    if (!mirror->busy)
        found = content(mirror, from, from + length);
    pthread_mutex_unlock(&mirror->lock);
    return found;
}
