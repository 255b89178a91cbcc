/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/driver.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "lane/state.h"
#include "stats/count.h"

/* So many allocations may be known: then those that no registration covers are
 * not served any more. */
#define KNOWN_MAX 4096

/* An exported pool; it goes with the last allocation that is known. */
struct pool {
    CUmemoryPool handle; /* NULL: it was destroyed */
    uint64_t number;     /* never used again */
    int fd;
    size_t known; /* allocations in the table */
    struct pool *next;
};

enum state {
    STATE_NEW,     /* not in the ledger */
    STATE_LIVE,    /* in it */
    STATE_FREEING, /* a thread is freeing it */
    STATE_DEAD,    /* freed; it is no longer in the table */
};

struct vmml_pooled {
    uint64_t base;
    uint64_t size; /* bytes */
    unsigned long long buffer_id;
    CUmemoryPool handle;
    CUdevice device;
    CUuuid gpu;
    uint64_t window; /* its window's base; never used again */
    struct pool *pool;
    enum state state;
    int index;     /* of the window in the ledger, or -1 */
    uint32_t slot; /* of the chunk, or VMML_NO_SLOT */
    uint64_t serial;
    uint64_t token; /* of the free that it is in */
    bool covered;   /* by a registration, in kill_uncovered() */
    unsigned refs;  /* packs, and 1 of the table */
};

/* All under the exporter's lock. */
static struct pool *pools;
static struct vmml_pooled **table; /* sorted by base */
static size_t table_count;
static size_t table_capacity;

atomic_bool vmml_pool_in_use;

/* ---- the table ---- */

/* Index of the first allocation that ends above `address`. */
static size_t first_above(uint64_t address)
{
    size_t low = 0, high = table_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (table[middle]->base + table[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct vmml_pooled *find_base(uint64_t base)
{
    size_t i = first_above(base);

    return i < table_count && table[i]->base == base ? table[i] : NULL;
}

static bool insert(struct vmml_pooled *pooled)
{
    size_t at = first_above(pooled->base);
    size_t capacity = table_capacity ? 2 * table_capacity : 64;
    struct vmml_pooled **grown;

    if (table_count == table_capacity) {
        grown = realloc(table, capacity * sizeof(*table));
        if (grown == NULL)
            return false;
        table = grown;
        table_capacity = capacity;
    }
    memmove(&table[at + 1], &table[at], (table_count - at) * sizeof(*table));
    table[at] = pooled;
    table_count++;
    return true;
}

static void release(struct vmml_pooled *pooled)
{
    if (--pooled->refs == 0)
        free(pooled);
}

static void drop_pool(struct pool *pool, struct vmml_fd_list *fds)
{
    struct pool **link = &pools;

    if (pool == NULL || --pool->known != 0)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    vmml_fd_list_add(fds, pool->fd);
    free(pool);
}

/* Nothing of it is served from now on. The ledger first, then the pool's
 * descriptor where it was the last. */
static void kill_pooled(struct vmml_pooled *pooled, struct vmml_fd_list *fds)
{
    size_t at = first_above(pooled->base);

    vmml_debug("pool memory 0x%lx+0x%lx is revoked",
               (unsigned long)pooled->base, (unsigned long)pooled->size);
    if (pooled->slot != VMML_NO_SLOT) {
        vmml_ledger_kill(vmml_exporter.ledger, pooled->slot);
        vmml_count(chunks_revoked);
        vmml_count_by(revoked_bytes, pooled->size);
    }
    if (pooled->index >= 0)
        vmml_ledger_retire_window(vmml_exporter.ledger,
                                  (uint32_t)pooled->index);
    pooled->slot = VMML_NO_SLOT;
    pooled->index = -1;
    pooled->state = STATE_DEAD;
    table_count--;
    memmove(&table[at], &table[at + 1], (table_count - at) * sizeof(*table));
    drop_pool(pooled->pool, fds);
    pooled->pool = NULL;
    release(pooled);
}

/* Allocations that [base, base+size) overlaps are no more: a free that no hook
 * saw. */
static void kill_overlapping(uint64_t base, uint64_t size,
                             struct vmml_fd_list *fds)
{
    size_t i = first_above(base);

    while (i < table_count && table[i]->base < base + size)
        kill_pooled(table[i], fds);
}

static void mark_covered(const struct vmml_registration *registration)
{
    size_t i = first_above(registration->address);

    while (i < table_count &&
           table[i]->base < registration->address + registration->length)
        table[i++]->covered = true;
}

/* What no registration covers, of one pool or (NULL) of all. */
static void kill_uncovered(CUmemoryPool handle, struct vmml_fd_list *fds)
{
    const struct vmml_registration *registration;
    size_t i;

    for (i = 0; i < table_count; i++)
        table[i]->covered = false;
    for (i = 0; i < vmml_exporter.bucket_count; i++)
        for (registration = vmml_exporter.buckets[i]; registration != NULL;
             registration = registration->next)
            if (registration->pooled)
                mark_covered(registration);
    i = 0;
    while (i < table_count) {
        if (!table[i]->covered &&
            (handle == NULL || table[i]->handle == handle))
            kill_pooled(table[i], fds);
        else
            i++;
    }
}

/* What was read with this BUFFER_ID is no longer there. */
static void kill_stale(uint64_t base, unsigned long long buffer_id)
{
    struct vmml_fd_list fds;
    struct vmml_pooled *pooled;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    pooled = find_base(base);
    if (pooled != NULL && pooled->buffer_id == buffer_id)
        kill_pooled(pooled, &fds);
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

/* ---- registrations ---- */

/* Is it memory of a pool that can export descriptors? Whether a fabric handle
 * can be had too is not tried: where none can, the pool's next use ends the
 * process (measured), and UCX would try. */
static bool look_at(const struct vmml_real *real, CUdeviceptr ptr,
                    struct vmml_pooled *pooled)
{
    uint64_t types = 0;

    if (real->cuMemPoolExportToShareableHandle == NULL ||
        real->cuMemPoolExportPointer == NULL ||
        vmml_attribute(real, &pooled->handle,
                       CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                       ptr) != CUDA_SUCCESS ||
        pooled->handle == NULL ||
        vmml_attribute(real, &types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                       ptr) != CUDA_SUCCESS ||
        !(types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return false;
    pooled->buffer_id = vmml_buffer_id(real, ptr);
    return pooled->buffer_id != 0 &&
           vmml_attribute(real, &pooled->device,
                          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                          ptr) == CUDA_SUCCESS &&
           vmml_reservation_at(real, ptr, &pooled->base, &pooled->size) ==
               CUDA_SUCCESS &&
           vmml_device_uuid(real, pooled->device, &pooled->gpu) == CUDA_SUCCESS;
}

static struct vmml_pooled *make(const struct vmml_pooled *seen)
{
    static uint64_t windows;
    struct vmml_pooled *pooled;

    if (windows == (VMML_POOLED_END - VMML_POOLED_BASE) / VMML_GRANULE / 2)
        return NULL;
    pooled = malloc(sizeof(*pooled));
    if (pooled == NULL)
        return NULL;
    *pooled = *seen;
    pooled->window = VMML_POOLED_BASE + VMML_GRANULE * windows++;
    pooled->pool = NULL;
    pooled->state = STATE_NEW;
    pooled->index = -1;
    pooled->slot = VMML_NO_SLOT;
    pooled->refs = 1;
    return pooled;
}

/* With the lock: the allocation as it was seen, from the table or new in it. */
static struct vmml_pooled *enter(const struct vmml_pooled *seen,
                                 struct vmml_fd_list *fds)
{
    struct vmml_pooled *pooled = find_base(seen->base);

    if (pooled != NULL && pooled->buffer_id == seen->buffer_id)
        return pooled;
    kill_overlapping(seen->base, seen->size, fds);
    if (table_count >= KNOWN_MAX)
        kill_uncovered(NULL, fds);
    if (table_count >= KNOWN_MAX)
        return NULL;
    pooled = make(seen);
    if (pooled != NULL && !insert(pooled)) {
        release(pooled);
        return NULL;
    }
    return pooled;
}

/* UCX registers what lies beside each other as one, so that a registration may
 * hold many allocations. BUFFER_IDs grow (measured): one above the newest that
 * is there now is of memory that this registration was not made for. */
static unsigned long long find_newest(const struct vmml_real *real,
                                      uint64_t address, uint64_t length)
{
    unsigned long long newest = 0, id;
    uint64_t end = address + length;
    uint64_t base, size;

    while (address < end) {
        id = vmml_buffer_id(real, address);
        if (id == 0 ||
            vmml_reservation_at(real, address, &base, &size) != CUDA_SUCCESS)
            break;
        newest = id > newest ? id : newest;
        address = base + size;
    }
    return newest;
}

/* With the lock. */
static bool take(const struct vmml_registration *registration)
{
    if (!vmml_exporter_ready() || !vmml_registration_add(registration))
        return false;
    atomic_store(&vmml_pool_in_use, true);
    atomic_store(&vmml_exporter.has_windows, true);
    vmml_count(registrations_taken);
    return true;
}

void vmml_pool_register(vmml_uct_md_h md, vmml_uct_mem_h memh, uint64_t address,
                        uint64_t length)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_registration registration = {
        .md = md,
        .memh = memh,
        .address = address,
        .length = length,
        .pooled = true,
    };
    struct vmml_pooled seen = {0};
    struct vmml_relaxed relaxed;
    bool is_pooled, taken;

    if (vmml_conf()->pools == VMML_POOLS_OFF)
        return;
    vmml_relax(real, &relaxed);
    is_pooled = look_at(real, address, &seen);
    if (is_pooled)
        registration.newest = find_newest(real, address, length);
    vmml_relax_end(real, &relaxed);
    if (!is_pooled)
        return;
    pthread_mutex_lock(&vmml_exporter.lock);
    taken = take(&registration);
    pthread_mutex_unlock(&vmml_exporter.lock);
    if (!taken)
        VMML_LOST(LEDGER, .address = address, .length = length);
    vmml_debug("registration 0x%lx+0x%lx of pool memory: %s",
               (unsigned long)address, (unsigned long)length,
               taken ? "taken" : "native, no ledger entry can be had");
}

/* ---- publishing ---- */

/* With the lock: the exported pool of this allocation, if there is one. */
static struct pool *find_pool(CUmemoryPool handle)
{
    struct pool *pool = pools;

    while (pool != NULL && pool->handle != handle)
        pool = pool->next;
    return handle == NULL ? NULL : pool;
}

/* With the lock: fd, if it is not -1, is taken over. */
static struct pool *enter_pool(CUmemoryPool handle, int fd,
                               struct vmml_fd_list *fds)
{
    static uint64_t numbers;
    struct pool *pool = find_pool(handle);

    if (pool != NULL || fd < 0) {
        vmml_fd_list_add(fds, fd);
        return pool;
    }
    pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        vmml_fd_list_add(fds, fd);
        return NULL;
    }
    pool->handle = handle;
    pool->number = ++numbers;
    pool->fd = fd;
    pool->next = pools;
    pools = pool;
    return pool;
}

static enum vmml_reason export_failed(CUresult result)
{
    vmml_publish_code = (int)result;
    if (result == CUDA_ERROR_OPERATING_SYSTEM ||
        result == CUDA_ERROR_OUT_OF_MEMORY)
        return VMML_REASON_NO_DESCRIPTOR;
    return VMML_REASON_DRIVER;
}

static enum vmml_reason export_pool(const struct vmml_real *real,
                                    CUmemoryPool handle, int *fd)
{
    CUresult result = real->cuMemPoolExportToShareableHandle(
        fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result != CUDA_SUCCESS) {
        *fd = -1;
        return export_failed(result);
    }
    *fd = vmml_fd_raise(*fd);
    return *fd < 0 ? VMML_REASON_NO_DESCRIPTOR : VMML_REASON_NONE;
}

static enum vmml_reason export_pointer(const struct vmml_real *real,
                                       uint64_t base,
                                       uint64_t data[VMML_POINTER_WORDS])
{
    CUmemPoolPtrExportData pointer;
    CUresult result;

    _Static_assert(sizeof(pointer) == sizeof(uint64_t) * VMML_POINTER_WORDS,
                   "export data");
    /* Only an allocation's base can be exported (measured). */
    result = real->cuMemPoolExportPointer(&pointer, base);
    if (result != CUDA_SUCCESS)
        return export_failed(result);
    memcpy(data, &pointer, sizeof(pointer));
    return VMML_REASON_NONE;
}

/* Without the lock. handle: the pool, of which *fd is a new descriptor; NULL
 * where there is one. The pool first: pointers of one that was never exported
 * cannot be (measured). */
static enum vmml_reason export_both(const struct vmml_real *real, uint64_t base,
                                    CUmemoryPool handle, int *fd,
                                    uint64_t data[VMML_POINTER_WORDS])
{
    enum vmml_reason reason = VMML_REASON_NONE;

    *fd = -1;
    if (handle != NULL)
        reason = export_pool(real, handle, fd);
    if (reason != VMML_REASON_NONE)
        return reason;
    reason = export_pointer(real, base, data);
    if (reason != VMML_REASON_NONE && *fd >= 0) {
        vmml_fd_close(*fd);
        *fd = -1;
    }
    return reason;
}

static uint64_t window_size(const struct vmml_pooled *pooled)
{
    return (pooled->size + VMML_GRANULE - 1) / VMML_GRANULE * VMML_GRANULE;
}

/* With the lock: into the ledger. */
static enum vmml_reason put(struct vmml_pooled *pooled, int fd,
                            const uint64_t data[VMML_POINTER_WORDS],
                            struct vmml_fd_list *fds)
{
    struct vmml_pooled_record record = {
        .address = pooled->base,
        .size = pooled->size,
    };
    int slot;

    if (pooled->pool == NULL) {
        pooled->pool = enter_pool(pooled->handle, fd, fds);
        if (pooled->pool == NULL)
            return VMML_REASON_LEDGER;
        pooled->pool->known++;
    } else {
        vmml_fd_list_add(fds, fd);
    }
    record.pool = pooled->pool->number;
    memcpy(record.data, data, sizeof(record.data));
    if (pooled->index < 0)
        pooled->index = vmml_ledger_add_window(
            vmml_exporter.ledger, pooled->window, window_size(pooled),
            (uint32_t)pooled->device, (const uint8_t *)pooled->gpu.bytes);
    if (pooled->index < 0)
        return VMML_REASON_LEDGER;
    slot = vmml_ledger_publish_pooled(
        vmml_exporter.ledger, (uint32_t)pooled->index, &record,
        pooled->pool->fd, (uint32_t)pooled->device, &pooled->serial);
    if (slot < 0)
        return VMML_REASON_LEDGER;
    pooled->slot = (uint32_t)slot;
    pooled->state = STATE_LIVE;
    vmml_count(chunks_published);
    vmml_count_by(published_bytes, pooled->size);
    vmml_debug("pool memory 0x%lx+0x%lx is published",
               (unsigned long)pooled->base, (unsigned long)pooled->size);
    return VMML_REASON_NONE;
}

/* With the lock: an allocation of the exported pool of this handle. */
static bool find_witness(CUmemoryPool handle, uint64_t *base,
                         unsigned long long *buffer_id)
{
    const struct pool *pool = find_pool(handle);
    size_t i;

    for (i = 0; pool != NULL && i < table_count; i++) {
        if (table[i]->pool != pool)
            continue;
        *base = table[i]->base;
        *buffer_id = table[i]->buffer_id;
        return true;
    }
    return false;
}

/* Without the lock. Was the pool exported? A pool that was destroyed past every
 * hook has a handle that may be another's by now: an allocation of it that is
 * still there says that it is the same. */
static bool is_exported(const struct vmml_real *real,
                        const struct vmml_pooled *pooled)
{
    unsigned long long buffer_id;
    uint64_t base;
    bool found;

    for (;;) {
        pthread_mutex_lock(&vmml_exporter.lock);
        found = find_witness(pooled->handle, &base, &buffer_id);
        pthread_mutex_unlock(&vmml_exporter.lock);
        if (!found || vmml_buffer_id(real, base) == buffer_id)
            return found;
        kill_stale(base, buffer_id);
    }
}

/* The pool's descriptor may go, with the last allocation of the pool, between
 * the two times that the lock is held. */
#define PUBLISH_TRIES 3

/* Without the lock, with a reference. *again: worth another try. */
static enum vmml_reason publish_once(const struct vmml_real *real,
                                     struct vmml_pooled *pooled, bool *again)
{
    uint64_t data[VMML_POINTER_WORDS];
    CUmemoryPool handle;
    struct vmml_fd_list fds;
    enum vmml_reason reason;
    bool exported = is_exported(real, pooled);
    int fd;

    pthread_mutex_lock(&vmml_exporter.lock);
    handle = exported || pooled->pool != NULL ? NULL : pooled->handle;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fork_hold();
    reason = export_both(real, pooled->base, handle, &fd, data);
    if (reason != VMML_REASON_NONE) {
        vmml_fork_release();
        return reason;
    }
    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    if (pooled->state == STATE_NEW)
        reason = put(pooled, fd, data, &fds);
    else
        vmml_fd_list_add(&fds, fd);
    *again = pooled->state == STATE_NEW && pooled->pool == NULL && fd < 0;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    vmml_fork_release();
    return reason;
}

static enum vmml_reason publish(const struct vmml_real *real,
                                struct vmml_pooled *pooled)
{
    enum vmml_reason reason;
    bool again = true;
    int tries;

    for (tries = 0; tries < PUBLISH_TRIES && again; tries++) {
        again = false;
        reason = publish_once(real, pooled, &again);
    }
    return reason;
}

static enum state state_of(const struct vmml_pooled *pooled)
{
    enum state state;

    pthread_mutex_lock(&vmml_exporter.lock);
    state = pooled->state;
    pthread_mutex_unlock(&vmml_exporter.lock);
    return state;
}

/* Is the allocation there as it was registered, and published? Asked of the
 * driver at every pack: a free that no hook saw is found here. */
static enum vmml_reason serve(const struct vmml_real *real,
                              struct vmml_pooled *pooled)
{
    enum vmml_reason reason = VMML_REASON_NONE;

    if (state_of(pooled) == STATE_NEW)
        reason = publish(real, pooled);
    /* After it went live: a free that began before shows. */
    if (vmml_buffer_id(real, pooled->base) != pooled->buffer_id) {
        kill_stale(pooled->base, pooled->buffer_id);
        return VMML_REASON_FREED;
    }
    if (reason != VMML_REASON_NONE)
        return reason;
    switch (state_of(pooled)) {
    case STATE_LIVE:
        return VMML_REASON_NONE;
    case STATE_NEW: /* its pool was destroyed meanwhile */
        return VMML_REASON_LEDGER;
    default:
        return VMML_REASON_FREED;
    }
}

/* A pack of a registration of pool memory. */
struct request {
    uint64_t from;
    uint64_t length;
    unsigned long long newest;  /* struct vmml_registration */
    struct vmml_pooled *pooled; /* a reference, or NULL */
    uint64_t base; /* what UCX is told: never more than one allocation, for it
                    * uses key material again by address alone */
    uint64_t size;
};

/* False: it is of no pool. */
static bool begin(vmml_uct_md_h md, vmml_uct_mem_h memh,
                  struct request *request)
{
    struct vmml_registration *found;
    size_t i;

    pthread_mutex_lock(&vmml_exporter.lock);
    found = vmml_registration_find(md, memh);
    if (found != NULL && !found->pooled)
        found = NULL;
    if (found != NULL) {
        request->newest = found->newest;
        i = first_above(request->from);
        if (i < table_count && table[i]->base <= request->from) {
            request->pooled = table[i];
            request->pooled->refs++;
        }
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return found != NULL;
}

static void drop(struct request *request)
{
    pthread_mutex_lock(&vmml_exporter.lock);
    release(request->pooled);
    pthread_mutex_unlock(&vmml_exporter.lock);
    request->pooled = NULL;
}

/* The allocation is not in the table as it is. *native: it is other memory. */
static enum vmml_reason find_anew(const struct vmml_real *real,
                                  struct request *request, bool *native)
{
    struct vmml_pooled seen = {0};
    struct vmml_fd_list fds;

    if (!look_at(real, request->from, &seen)) {
        *native = vmml_buffer_id(real, request->from) != 0;
        return VMML_REASON_FREED;
    }
    request->base = seen.base;
    request->size = seen.size;
    if (seen.buffer_id > request->newest)
        return VMML_REASON_FREED;
    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    request->pooled = enter(&seen, &fds);
    if (request->pooled != NULL)
        request->pooled->refs++;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    return request->pooled != NULL ? VMML_REASON_NONE : VMML_REASON_LEDGER;
}

static enum vmml_reason serve_request(const struct vmml_real *real,
                                      struct request *request, bool *native)
{
    enum vmml_reason reason = VMML_REASON_NONE;
    struct vmml_pooled *pooled = request->pooled;

    if (pooled != NULL &&
        vmml_buffer_id(real, request->from) != pooled->buffer_id) {
        kill_stale(pooled->base, pooled->buffer_id);
        drop(request);
    }
    if (request->pooled == NULL)
        reason = find_anew(real, request, native);
    pooled = request->pooled;
    if (pooled == NULL)
        return reason;
    request->base = pooled->base;
    request->size = pooled->size;
    if (request->length > pooled->base + pooled->size - request->from)
        return VMML_REASON_WINDOW;
    if (pooled->buffer_id > request->newest)
        return VMML_REASON_FREED;
    return serve(real, pooled);
}

/* The answers of this pack; its reference ends. */
static void answer(struct request *request, enum vmml_reason reason,
                   struct vmml_pack *pack)
{
    struct vmml_pooled *pooled = request->pooled;

    pthread_mutex_lock(&vmml_exporter.lock);
    if (pooled != NULL) {
        vmml_pack_fill(pack, pooled->window, window_size(pooled), reason);
        pack->device = pooled->device;
        release(pooled);
    } else {
        vmml_pack_fill(pack, 0, 0, reason);
        pack->device = 0;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    pack->base = request->base;
    pack->size = request->size;
}

bool vmml_pool_begin_pack(vmml_uct_md_h md, vmml_uct_mem_h memh, uint64_t from,
                          uint64_t length, struct vmml_pack *pack)
{
    const struct vmml_real *real = vmml_real();
    struct request request = {
        .from = from,
        .length = length,
        .base = from,
        .size = 1,
    };
    struct vmml_relaxed relaxed;
    enum vmml_reason reason;
    bool native = false;

    if (real == NULL ||
        !atomic_load_explicit(&vmml_pool_in_use, memory_order_relaxed) ||
        !begin(md, memh, &request))
        return false;
    vmml_relax(real, &relaxed);
    reason = serve_request(real, &request, &native);
    vmml_relax_end(real, &relaxed);
    if (native)
        return false;
    vmml_count(keys_packed);
    answer(&request, reason, pack);
    if (reason != VMML_REASON_NONE)
        vmml_lane_warn(reason, from, length);
    vmml_trace("pack 0x%lx+0x%lx of pool memory: %s", (unsigned long)from,
               (unsigned long)length, vmml_reason_string(reason));
    return true;
}

int vmml_pool_own_window(uint64_t base, uint64_t size, uint64_t *address)
{
    size_t i;

    for (i = 0; i < table_count; i++)
        if (table[i]->window == base && window_size(table[i]) == size &&
            table[i]->state == STATE_LIVE) {
            *address = table[i]->base;
            return table[i]->device;
        }
    return -1;
}

/* ---- what frees memory ---- */

uint64_t vmml_pool_begin_free(CUdeviceptr ptr)
{
    static uint64_t tokens;
    struct vmml_pooled *pooled;
    uint64_t token = 0;

    pthread_mutex_lock(&vmml_exporter.lock);
    pooled = find_base(ptr);
    if (pooled != NULL) {
        token = ++tokens;
        if (pooled->state == STATE_LIVE)
            vmml_ledger_begin_unmap(vmml_exporter.ledger, pooled->slot);
        pooled->state = STATE_FREEING;
        pooled->token = token;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return token;
}

/* The driver did not free it. */
static void restore(struct vmml_pooled *pooled)
{
    if (pooled->slot == VMML_NO_SLOT) {
        pooled->state = STATE_NEW;
        return;
    }
    pooled->state = STATE_LIVE;
    vmml_ledger_restore(vmml_exporter.ledger, pooled->slot, &pooled->serial);
}

/* The BUFFER_ID of the allocation that is known at `ptr`, or 0. */
static unsigned long long known_id(CUdeviceptr ptr)
{
    const struct vmml_pooled *pooled;
    unsigned long long id;

    pthread_mutex_lock(&vmml_exporter.lock);
    pooled = find_base(ptr);
    id = pooled == NULL ? 0 : pooled->buffer_id;
    pthread_mutex_unlock(&vmml_exporter.lock);
    return id;
}

void vmml_pool_end_free(const struct vmml_real *real, CUdeviceptr ptr,
                        uint64_t token, CUresult result)
{
    /* In this order: what was known first and is not there afterwards is gone.
     * Another thread may have been given the address meanwhile. */
    unsigned long long known = known_id(ptr);
    unsigned long long there = known == 0 ? 0 : vmml_buffer_id(real, ptr);
    struct vmml_fd_list fds;
    struct vmml_pooled *pooled;
    bool mine, gone;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    pooled = find_base(ptr);
    mine = pooled != NULL && pooled->state == STATE_FREEING &&
           pooled->token == token;
    gone = pooled != NULL && pooled->buffer_id == known && known != there;
    if (gone || (mine && result == CUDA_SUCCESS))
        kill_pooled(pooled, &fds);
    else if (mine)
        restore(pooled);
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

void vmml_pool_destroyed(CUmemoryPool handle)
{
    struct vmml_fd_list fds;
    struct pool *pool;
    size_t i;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    if (handle != NULL)
        kill_uncovered(handle, &fds);
    /* The driver may give the same handle to the next pool. */
    pool = find_pool(handle);
    if (pool != NULL)
        pool->handle = NULL;
    for (i = 0; i < table_count; i++)
        if (table[i]->handle == handle)
            table[i]->handle = NULL;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

void vmml_pool_fork_child(void)
{
    struct pool *pool;

    for (pool = pools; pool != NULL; pool = pool->next) {
        vmml_fd_close(pool->fd);
        pool->fd = -1;
    }
}
