/* SPDX-License-Identifier: MIT */
#include "pool/import.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/driver.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/remedy.h"
#include "stats/count.h"

/* So long a thread waits for another that imports. */
#define WAIT_SECONDS 10

/* A pool of another process. */
struct pool {
    uint8_t nonce[VMML_NONCE_SIZE]; /* of that process */
    uint64_t number;
    CUmemoryPool handle;
    uint64_t access; /* devices that have it, by number */
    size_t pointers; /* imported and not ended */
    struct pool *next;
};

/* An allocation of it. */
struct pointer {
    struct pool *pool;
    CUdeviceptr address;
    unsigned long long buffer_id;
    unsigned imports;
    struct pointer *next;
};

/* One thread at a time is at work here: `busy` is held over driver calls,
 * `lock` is not. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static clockid_t idle_clock = CLOCK_REALTIME;
static pthread_once_t idle_once = PTHREAD_ONCE_INIT;
static bool busy;

/* The busy thread's. */
static struct pool *pools;
static struct pointer *pointers;

/* Where it can be had, a clock that nobody sets. */
static void init_idle(void)
{
    pthread_condattr_t attr;

    if (pthread_condattr_init(&attr) != 0)
        return;
    if (pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
        pthread_cond_init(&idle, &attr) == 0)
        idle_clock = CLOCK_MONOTONIC;
    pthread_condattr_destroy(&attr);
}

static bool become_busy(void)
{
    struct timespec limit = {0, 0};
    bool mine;
    int error = 0;

    pthread_once(&idle_once, init_idle);
    clock_gettime(idle_clock, &limit);
    limit.tv_sec += WAIT_SECONDS;
    pthread_mutex_lock(&lock);
    while (busy && error == 0)
        error = pthread_cond_timedwait(&idle, &lock, &limit);
    mine = !busy;
    busy = true;
    pthread_mutex_unlock(&lock);
    if (!mine)
        vmml_warn_once("an import of pool memory did not return for %d s",
                       WAIT_SECONDS);
    return mine;
}

static void end_busy(void)
{
    pthread_mutex_lock(&lock);
    busy = false;
    pthread_cond_signal(&idle);
    pthread_mutex_unlock(&lock);
}

static bool has_calls(const struct vmml_real *real)
{
    return real->cuMemPoolImportFromShareableHandle != NULL &&
           real->cuMemPoolImportPointer != NULL &&
           real->cuMemPoolSetAccess != NULL && real->cuMemPoolDestroy != NULL &&
           real->cuMemFree_v2 != NULL;
}

/* ---- pools ---- */

static struct pool *find_pool(const struct vmml_peer *peer, uint64_t number)
{
    struct pool *pool = pools;

    while (pool != NULL &&
           (pool->number != number ||
            memcmp(pool->nonce, peer->nonce, VMML_NONCE_SIZE) != 0))
        pool = pool->next;
    return pool;
}

static struct pool *add_pool(const struct vmml_peer *peer, uint64_t number,
                             CUmemoryPool handle)
{
    struct pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL)
        return NULL;
    memcpy(pool->nonce, peer->nonce, VMML_NONCE_SIZE);
    pool->number = number;
    pool->handle = handle;
    pool->next = pools;
    pools = pool;
    return pool;
}

/* The last allocation of it has gone: kept, an imported pool would keep memory
 * of its exporter (measured). */
static void drop_pool_if_empty(const struct vmml_real *real, struct pool *pool)
{
    struct pool **link = &pools;

    if (pool->pointers != 0)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    if (real->cuMemPoolDestroy(pool->handle) != CUDA_SUCCESS)
        vmml_debug("an imported pool could not be destroyed");
    free(pool);
}

/* The descriptor is believed only while the chunk is live afterwards: its
 * number may be another file's by now. */
static bool import_fd(const struct vmml_real *real, struct vmml_peer *peer,
                      const struct vmml_chunk_view *chunk, CUmemoryPool *handle,
                      bool *dead)
{
    int fd = vmml_peer_get_chunk(peer, chunk);
    CUresult result;

    *dead = !vmml_ledger_is_live(peer->reader, chunk->slot, chunk->serial) ||
            atomic_load(&peer->dead);
    if (fd < 0 || *dead) {
        vmml_fd_close(fd);
        if (*dead)
            return false;
        VMML_LOST(DESCRIPTOR, .pid = peer->pid, .code = fd);
        vmml_warn_once("descriptor %d of a pool of process %u cannot be had "
                       "(errno %d): no fast lane",
                       chunk->fd, peer->pid, -fd);
        return false;
    }
    result = real->cuMemPoolImportFromShareableHandle(
        handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        0);
    vmml_fd_close(fd);
    if (result == CUDA_SUCCESS)
        return true;
    VMML_LOST(IMPORT, .pid = peer->pid, .code = result);
    vmml_warn_once("cuMemPoolImportFromShareableHandle failed (%d) for a pool "
                   "of process %u: no fast lane",
                   (int)result, peer->pid);
    return false;
}

static bool import_handle(const struct vmml_real *real, struct vmml_peer *peer,
                          const struct vmml_chunk_view *chunk,
                          CUmemoryPool *handle, bool *dead)
{
    bool done;

    vmml_fork_hold();
    done = import_fd(real, peer, chunk, handle, dead);
    vmml_fork_release();
    return done;
}

static struct pool *get_pool(const struct vmml_real *real,
                             struct vmml_peer *peer,
                             const struct vmml_chunk_view *chunk,
                             uint64_t number, bool *dead)
{
    struct pool *pool = find_pool(peer, number);
    CUmemoryPool handle;

    if (pool != NULL)
        return pool;
    if (!import_handle(real, peer, chunk, &handle, dead))
        return NULL;
    pool = add_pool(peer, number, handle);
    if (pool == NULL && real->cuMemPoolDestroy(handle) != CUDA_SUCCESS)
        vmml_debug("an imported pool that is not used stays");
    return pool;
}

static bool give_access(const struct vmml_real *real, struct pool *pool,
                        CUdevice device, uint32_t pid)
{
    const uint64_t bit = 1ull << device;
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result;

    if (pool->access & bit)
        return true;
    result = real->cuMemPoolSetAccess(pool->handle, &desc, 1);
    if (result == CUDA_SUCCESS) {
        pool->access |= bit;
        return true;
    }
    VMML_LOST(ACCESS, .pid = pid, .code = result);
    vmml_warn_once("device %d cannot access pool memory of process %u "
                   "(cuMemPoolSetAccess gave %d): no fast lane",
                   (int)device, pid, (int)result);
    return false;
}

/* ---- allocations ---- */

static struct pointer *find_pointer(CUdeviceptr address,
                                    unsigned long long buffer_id)
{
    struct pointer *pointer = pointers;

    while (pointer != NULL &&
           (pointer->address != address || pointer->buffer_id != buffer_id))
        pointer = pointer->next;
    return pointer;
}

/* Nothing that the exporter says about its size is believed: the import's own
 * must hold it. */
static bool is_large_enough(const struct vmml_real *real, CUdeviceptr address,
                            uint64_t size)
{
    CUdeviceptr start = 0;
    size_t length = 0;

    return vmml_attribute(real, &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                          address) == CUDA_SUCCESS &&
           vmml_attribute(real, &length, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                          address) == CUDA_SUCCESS &&
           start <= address && address - start <= length &&
           size <= length - (address - start);
}

static struct pointer *add_pointer(struct pool *pool, CUdeviceptr address,
                                   unsigned long long buffer_id)
{
    struct pointer *pointer = calloc(1, sizeof(*pointer));

    if (pointer == NULL)
        return NULL;
    pointer->pool = pool;
    pointer->address = address;
    pointer->buffer_id = buffer_id;
    pointer->next = pointers;
    pointers = pointer;
    pool->pointers++;
    return pointer;
}

/* Is the address imported? Whose it is its BUFFER_ID would tell. */
static bool is_known(CUdeviceptr address)
{
    const struct pointer *pointer = pointers;

    while (pointer != NULL && pointer->address != address)
        pointer = pointer->next;
    return pointer != NULL;
}

static void give_back(const struct vmml_real *real, CUdeviceptr address)
{
    if (real->cuMemFree_v2(address) != CUDA_SUCCESS)
        vmml_debug("an import that is not used stays");
}

/* 0: it cannot be told what was imported. */
static unsigned long long id_of_import(const struct vmml_real *real,
                                       CUdeviceptr address, uint32_t pid)
{
    unsigned long long id = vmml_buffer_id(real, address);

    if (id != 0)
        return id;
    VMML_LOST(IMPORT, .pid = pid);
    vmml_warn_once("the driver says nothing of imported pool memory of process "
                   "%u: no fast lane",
                   pid);
    if (!is_known(address))
        give_back(real, address);
    return 0;
}

static struct pointer *import_pointer(const struct vmml_real *real,
                                      struct pool *pool,
                                      const struct vmml_pooled_view *pooled,
                                      uint32_t pid)
{
    CUmemPoolPtrExportData data;
    struct pointer *pointer;
    unsigned long long buffer_id;
    CUdeviceptr address;
    CUresult result;

    memcpy(&data, pooled->data, sizeof(data));
    result = real->cuMemPoolImportPointer(&address, pool->handle, &data);
    if (result != CUDA_SUCCESS) {
        VMML_LOST(IMPORT, .pid = pid, .code = result);
        vmml_warn_once("cuMemPoolImportPointer failed (%d) for memory of "
                       "process %u: no fast lane",
                       (int)result, pid);
        return NULL;
    }
    buffer_id = id_of_import(real, address, pid);
    if (buffer_id == 0)
        return NULL;
    pointer = find_pointer(address, buffer_id);
    if (!is_large_enough(real, address, pooled->size)) {
        vmml_warn_once("process %u shares less pool memory than it says: no "
                       "fast lane",
                       pid);
        /* What others have of it stays theirs. */
        if (pointer != NULL)
            return NULL;
    } else if (pointer == NULL) {
        pointer = add_pointer(pool, address, buffer_id);
    }
    if (pointer == NULL)
        give_back(real, address);
    return pointer;
}

static void drop_pointer(struct pointer *pointer)
{
    struct pointer **link = &pointers;

    while (*link != pointer)
        link = &(*link)->next;
    *link = pointer->next;
    pointer->pool->pointers--;
    free(pointer);
}

static struct pointer *get_pointer(const struct vmml_real *real,
                                   struct vmml_peer *peer,
                                   const struct vmml_chunk_view *chunk,
                                   const struct vmml_pooled_view *pooled,
                                   CUdevice device, bool *dead)
{
    struct pool *pool = get_pool(real, peer, chunk, pooled->pool, dead);
    struct pointer *pointer = NULL;

    if (pool == NULL)
        return NULL;
    if (give_access(real, pool, device, peer->pid))
        pointer = import_pointer(real, pool, pooled, peer->pid);
    drop_pool_if_empty(real, pool);
    return pointer;
}

bool vmml_pool_import(const struct vmml_real *real, struct vmml_peer *peer,
                      const struct vmml_window_view *window,
                      const struct vmml_chunk_view *chunk, CUdevice device,
                      struct vmml_pool_import *import, bool *dead)
{
    struct vmml_pooled_view pooled;
    struct pointer *pointer;

    *dead = !vmml_ledger_pooled(peer->reader, window, chunk, &pooled);
    if (*dead || !has_calls(real) || device < 0 || device >= 64)
        return false;
    if (!vmml_push_primary(real, device)) {
        VMML_LOST(NO_CONTEXT, .pid = peer->pid);
        vmml_warn_once("no primary context of device %d is active: no fast "
                       "lane to pool memory. Remedy: " VMML_REMEDY_CONTEXT,
                       (int)device);
        return false;
    }
    if (!become_busy()) {
        vmml_pop_primary(real, device);
        return false;
    }
    pointer = get_pointer(real, peer, chunk, &pooled, device, dead);
    if (pointer != NULL) {
        pointer->imports++;
        import->address = pointer->address;
        import->size = pooled.size;
        import->device = device;
        import->buffer_id = pointer->buffer_id;
    }
    end_busy();
    vmml_pop_primary(real, device);
    return pointer != NULL;
}

/* Busy. False: it is still imported. */
static bool end_pointer(const struct vmml_real *real, struct pointer *pointer)
{
    struct pool *pool = pointer->pool;
    CUresult result;

    if (pointer->imports > 1) {
        pointer->imports--;
        return true;
    }
    /* The application may have ended it together with one of its own. */
    if (vmml_buffer_id(real, pointer->address) == pointer->buffer_id) {
        result = real->cuMemFree_v2(pointer->address);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED) {
            vmml_warn_once("cuMemFree of imported pool memory failed (%d)",
                           (int)result);
            return false;
        }
    }
    drop_pointer(pointer);
    drop_pool_if_empty(real, pool);
    return true;
}

bool vmml_pool_unimport(const struct vmml_real *real,
                        struct vmml_pool_import *import)
{
    bool pushed = vmml_push_primary(real, import->device);
    struct pointer *pointer;
    bool done = false;

    if (become_busy()) {
        pointer = find_pointer(import->address, import->buffer_id);
        done = pointer == NULL || end_pointer(real, pointer);
        end_busy();
    }
    if (pushed)
        vmml_pop_primary(real, import->device);
    if (done)
        import->address = 0;
    return done;
}

bool vmml_pool_is_there(const struct vmml_real *real,
                        const struct vmml_pool_import *import)
{
    return vmml_buffer_id(real, import->address) == import->buffer_id;
}

void vmml_pool_import_fork_child(void)
{
    /* A child makes no driver call: nothing of this is used any more. */
    pthread_mutex_init(&lock, NULL);
    busy = false;
}
