/* SPDX-License-Identifier: MIT */
/*
 * VMMLANE_POOLS=default: a device that has its default pool as its current one
 * gets a pool that can export descriptors. No pool of others is changed: the
 * default pool stays as it is, and a current pool that somebody chose stays
 * current. What the program asks of the default pool afterwards is asked of the
 * given one too.
 */
#include "pool/pool.h"

#include <pthread.h>

#include "base/driver.h"
#include "base/log.h"

/* A device is looked at once; more devices than this are left alone. */
#define DEVICES_MAX 64

static _Atomic uint64_t looked_at;

/* By device: its default pool, and the one that it was given. */
static struct {
    _Atomic(CUmemoryPool) usual;
    _Atomic(CUmemoryPool) given;
} twins[DEVICES_MAX];

CUmemoryPool vmml_pool_twin(CUmemoryPool usual)
{
    size_t i;

    for (i = 0; i < DEVICES_MAX && usual != NULL; i++)
        if (atomic_load(&twins[i].usual) == usual)
            return atomic_load(&twins[i].given);
    return NULL;
}

void vmml_pool_forget_twin(CUmemoryPool pool)
{
    size_t i;

    for (i = 0; i < DEVICES_MAX; i++) {
        CUmemoryPool given = pool;

        atomic_compare_exchange_strong(&twins[i].given, &given, NULL);
    }
}

/* How memory is kept and used again, as the default pool has it. */
static void copy_settings(const struct vmml_real *real, CUmemoryPool from,
                          CUmemoryPool to)
{
    static const CUmemPool_attribute settings[] = {
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    };
    uint64_t value;
    size_t i;

    if (real->cuMemPoolGetAttribute == NULL ||
        real->cuMemPoolSetAttribute == NULL)
        return;
    for (i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        value = 0; /* some are 4 bytes, some 8 */
        if (real->cuMemPoolGetAttribute(from, settings[i], &value) !=
                CUDA_SUCCESS ||
            real->cuMemPoolSetAttribute(to, settings[i], &value) !=
                CUDA_SUCCESS)
            vmml_debug("setting %d of the default pool is not taken over",
                       (int)settings[i]);
    }
}

/* Which other devices may use its memory: kernels there would fault. */
static CUresult copy_access(const struct vmml_real *real, CUdevice device,
                            CUmemoryPool from, CUmemoryPool to)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUresult result;
    int count = 0;

    if (real->cuMemPoolGetAccess == NULL || real->cuMemPoolSetAccess == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = real->cuDeviceGetCount(&count);
    for (; desc.location.id < count && result == CUDA_SUCCESS;
         desc.location.id++) {
        if (desc.location.id == device)
            continue;
        result = real->cuMemPoolGetAccess(&desc.flags, from, &desc.location);
        if (result == CUDA_SUCCESS &&
            desc.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            result = real->cuMemPoolSetAccess(to, &desc, 1);
    }
    return result;
}

static CUresult make(const struct vmml_real *real, CUdevice device,
                     CUmemoryPool from)
{
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
    CUmemoryPool pool;
    CUresult result = real->cuMemPoolCreate(&pool, &props);

    if (result != CUDA_SUCCESS)
        return result;
    copy_settings(real, from, pool);
    /* First, so that what is asked of the default pool meanwhile is of both. */
    atomic_store(&twins[device].given, pool);
    atomic_store(&twins[device].usual, from);
    result = copy_access(real, device, from, pool);
    if (result == CUDA_SUCCESS)
        result = real->cuDeviceSetMemPool(device, pool);
    if (result != CUDA_SUCCESS)
        vmml_pool_forget_twin(pool);
    if (result != CUDA_SUCCESS && real->cuMemPoolDestroy != NULL &&
        real->cuMemPoolDestroy(pool) != CUDA_SUCCESS)
        vmml_debug("a pool that is not used stays");
    return result;
}

/* False: the driver cannot be asked now. */
static bool provide(const struct vmml_real *real, CUdevice device)
{
    CUmemoryPool usual, current;
    CUresult result;

    if (real->cuDeviceGetMemPool(&current, device) != CUDA_SUCCESS ||
        real->cuDeviceGetDefaultMemPool(&usual, device) != CUDA_SUCCESS)
        return false;
    if (current != usual) {
        vmml_debug("device %d has a pool that somebody chose", (int)device);
        return true;
    }
    result = make(real, device, usual);
    if (result == CUDA_SUCCESS)
        vmml_info("device %d has a current pool that can export descriptors",
                  (int)device);
    else
        vmml_warn_once("VMMLANE_POOLS=default: device %d keeps its default "
                       "pool, which is not shareable: a pool that can export "
                       "descriptors cannot be had (%d)",
                       (int)device, (int)result);
    return true;
}

void vmml_pool_provide_for(const struct vmml_real *real, CUdevice device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct vmml_relaxed relaxed;
    uint64_t bit;
    bool done;

    if (device < 0 || device >= DEVICES_MAX ||
        real->cuDeviceGetMemPool == NULL ||
        real->cuDeviceGetDefaultMemPool == NULL ||
        real->cuDeviceSetMemPool == NULL || real->cuMemPoolCreate == NULL)
        return;
    bit = 1ull << device;
    if (atomic_load_explicit(&looked_at, memory_order_acquire) & bit)
        return;
    /* Held over driver calls, once for a device: who comes second must not
     * allocate before the pool is there. */
    pthread_mutex_lock(&lock);
    if (!(atomic_load(&looked_at) & bit)) {
        vmml_relax(real, &relaxed);
        done = provide(real, device);
        vmml_relax_end(real, &relaxed);
        if (done)
            atomic_fetch_or(&looked_at, bit);
    }
    pthread_mutex_unlock(&lock);
}

/* Streams that are of the current context, whichever that is. */
static bool is_special(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY ||
           stream == CU_STREAM_PER_THREAD;
}

void vmml_pool_provide(const struct vmml_real *real, CUstream stream)
{
    CUcontext context;
    CUdevice device;

    if (is_special(stream) || real->cuStreamGetCtx == NULL) {
        if (real->cuCtxGetDevice(&device) == CUDA_SUCCESS)
            vmml_pool_provide_for(real, device);
        return;
    }
    if (real->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
        real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return;
    if (real->cuCtxGetDevice(&device) == CUDA_SUCCESS)
        vmml_pool_provide_for(real, device);
    vmml_pop_context(real);
}
