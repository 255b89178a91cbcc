/* SPDX-License-Identifier: MIT */
/*
 * Hooks of what frees memory of a pool: it is revoked before it is freed.
 */
#include "hooks.h"

#include "base/conf.h"
#include "base/fork.h"
#include "base/log.h"
#include "doors/real.h"
#include "pool/pool.h"

static bool is_watching(void)
{
    return atomic_load_explicit(&vmml_pool_in_use, memory_order_relaxed) &&
           !vmml_in_child;
}

static uint64_t begin(CUdeviceptr ptr)
{
    return is_watching() ? vmml_pool_begin_free(ptr) : 0;
}

/* The first allocation may have come meanwhile. */
static CUresult end(const struct vmml_real *real, CUdeviceptr ptr,
                    uint64_t token, CUresult result)
{
    if (is_watching())
        vmml_pool_end_free(real, ptr, token, result);
    return result;
}

CUresult vmml_cuMemFree_v2(const void *caller, CUdeviceptr ptr)
{
    const struct vmml_real *real = vmml_real();
    uint64_t token;

    (void)caller;
    if (real == NULL || real->cuMemFree_v2 == NULL)
        return VMML_CU_MISSING;
    token = begin(ptr);
    return end(real, ptr, token, real->cuMemFree_v2(ptr));
}

CUresult vmml_cuMemFreeAsync(const void *caller, CUdeviceptr ptr,
                             CUstream stream)
{
    const struct vmml_real *real = vmml_real();
    uint64_t token;

    (void)caller;
    if (real == NULL || real->cuMemFreeAsync == NULL)
        return VMML_CU_MISSING;
    token = begin(ptr);
    return end(real, ptr, token, real->cuMemFreeAsync(ptr, stream));
}

CUresult vmml_cuMemFreeAsync_ptsz(const void *caller, CUdeviceptr ptr,
                                  CUstream stream)
{
    const struct vmml_real *real = vmml_real();
    uint64_t token;

    (void)caller;
    if (real == NULL || real->cuMemFreeAsync_ptsz == NULL)
        return VMML_CU_MISSING;
    token = begin(ptr);
    return end(real, ptr, token, real->cuMemFreeAsync_ptsz(ptr, stream));
}

CUresult vmml_cuMemPoolDestroy(const void *caller, CUmemoryPool pool)
{
    const struct vmml_real *real = vmml_real();

    (void)caller;
    if (real == NULL || real->cuMemPoolDestroy == NULL)
        return VMML_CU_MISSING;
    /* Before: the next pool may have the same handle. */
    if (is_watching())
        vmml_pool_destroyed(pool);
    vmml_pool_forget_twin(pool);
    return real->cuMemPoolDestroy(pool);
}

/* VMMLANE_POOLS=default: before somebody asks for the current pool, or
 * allocates from it. */
static bool provides(void)
{
    const struct vmml_conf *conf = vmml_conf();

    return conf->pools == VMML_POOLS_DEFAULT && conf->on && conf->share &&
           !vmml_in_child;
}

/* The pool that a device was given in the place of this one, its default pool:
 * what the program asks of the one it means for the memory that it gets. */
static CUmemoryPool twin(CUmemoryPool pool, CUresult result)
{
    return result == CUDA_SUCCESS && provides() ? vmml_pool_twin(pool) : NULL;
}

CUresult vmml_cuMemPoolSetAccess(const void *caller, CUmemoryPool pool,
                                 const CUmemAccessDesc *map, size_t count)
{
    const struct vmml_real *real = vmml_real();
    CUmemoryPool other;
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemPoolSetAccess == NULL)
        return VMML_CU_MISSING;
    result = real->cuMemPoolSetAccess(pool, map, count);
    other = twin(pool, result);
    return other == NULL ? result : real->cuMemPoolSetAccess(other, map, count);
}

CUresult vmml_cuMemPoolSetAttribute(const void *caller, CUmemoryPool pool,
                                    CUmemPool_attribute attribute, void *value)
{
    const struct vmml_real *real = vmml_real();
    CUmemoryPool other;
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemPoolSetAttribute == NULL)
        return VMML_CU_MISSING;
    result = real->cuMemPoolSetAttribute(pool, attribute, value);
    other = twin(pool, result);
    if (other != NULL &&
        real->cuMemPoolSetAttribute(other, attribute, value) != CUDA_SUCCESS)
        vmml_debug("setting %d of the default pool is not taken over",
                   (int)attribute);
    return result;
}

CUresult vmml_cuMemPoolTrimTo(const void *caller, CUmemoryPool pool,
                              size_t keep)
{
    const struct vmml_real *real = vmml_real();
    CUmemoryPool other;
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemPoolTrimTo == NULL)
        return VMML_CU_MISSING;
    result = real->cuMemPoolTrimTo(pool, keep);
    other = twin(pool, result);
    return other == NULL ? result : real->cuMemPoolTrimTo(other, keep);
}

CUresult vmml_cuMemAllocAsync(const void *caller, CUdeviceptr *ptr, size_t size,
                              CUstream stream)
{
    const struct vmml_real *real = vmml_real();

    (void)caller;
    if (real == NULL || real->cuMemAllocAsync == NULL)
        return VMML_CU_MISSING;
    if (provides())
        vmml_pool_provide(real, stream);
    return real->cuMemAllocAsync(ptr, size, stream);
}

CUresult vmml_cuMemAllocAsync_ptsz(const void *caller, CUdeviceptr *ptr,
                                   size_t size, CUstream stream)
{
    const struct vmml_real *real = vmml_real();

    (void)caller;
    if (real == NULL || real->cuMemAllocAsync_ptsz == NULL)
        return VMML_CU_MISSING;
    if (provides())
        vmml_pool_provide(real, stream);
    return real->cuMemAllocAsync_ptsz(ptr, size, stream);
}

CUresult vmml_cuDeviceGetMemPool(const void *caller, CUmemoryPool *pool,
                                 CUdevice device)
{
    const struct vmml_real *real = vmml_real();

    (void)caller;
    if (real == NULL || real->cuDeviceGetMemPool == NULL)
        return VMML_CU_MISSING;
    if (provides())
        vmml_pool_provide_for(real, device);
    return real->cuDeviceGetMemPool(pool, device);
}
