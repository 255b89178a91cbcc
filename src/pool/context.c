/* SPDX-License-Identifier: MIT */
/*
 * UCX takes memory without a context for managed memory
 * (uct_cuda_copy_md_query_attributes), unless UCX_CUDA_COPY_ASYNC_MEM_TYPE
 * says otherwise; cuda_ipc registers no managed memory.
 */
#include "pool/pool.h"

#include "base/conf.h"
#include "base/driver.h"
#include "base/log.h"
#include "stats/count.h"

static void warn_not_shareable(CUdeviceptr ptr)
{
    if (!VMML_LOST(POOL, .address = ptr))
        return;
    vmml_warn(
        "no fast lane for 0x%lx: memory of a stream-ordered pool that cannot "
        "export descriptors, as each device's default pool, is not shareable "
        "by design. Transfers of it are correct and slow. Remedy: "
        "VMMLANE_POOLS=default, or a pool made with "
        "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
        (unsigned long)ptr);
}

CUcontext vmml_pool_context(const struct vmml_real *real, CUdeviceptr ptr)
{
    CUmemoryPool pool = NULL;
    uint64_t types = 0;
    CUdevice device;

    if (vmml_attribute(real, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) !=
            CUDA_SUCCESS ||
        pool == NULL ||
        vmml_attribute(real, &types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                       ptr) != CUDA_SUCCESS)
        return NULL;
    if (!(types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        warn_not_shareable(ptr);
        return NULL;
    }
    if (vmml_attribute(real, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                       ptr) != CUDA_SUCCESS)
        return NULL;
    return vmml_active_primary(real, device);
}
