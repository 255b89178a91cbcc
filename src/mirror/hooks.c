/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"

CUresult vmml_cuIpcOpenMemHandle_v2 VMML_WITH_CALLER((CUdeviceptr * ptr, CUipcMemHandle handle, unsigned flags))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuIpcOpenMemHandle_v2 == NULL)
        return VMML_CU_MISSING;
    return real->cuIpcOpenMemHandle_v2(ptr, handle, flags);
}

CUresult vmml_cuIpcCloseMemHandle VMML_WITH_CALLER((CUdeviceptr ptr))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuIpcCloseMemHandle == NULL)
        return VMML_CU_MISSING;
    return real->cuIpcCloseMemHandle(ptr);
}

CUresult vmml_cuMemcpyDtoDAsync_v2 VMML_WITH_CALLER((CUdeviceptr dst, CUdeviceptr src, size_t length, CUstream stream))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemcpyDtoDAsync_v2 == NULL)
        return VMML_CU_MISSING;
    return real->cuMemcpyDtoDAsync_v2(dst, src, length, stream);
}

CUresult vmml_cuMemcpyBatchAsync_v2 VMML_WITH_CALLER((CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *attribute_idx, size_t attribute_count, CUstream stream))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemcpyBatchAsync_v2 == NULL)
        return VMML_CU_MISSING;
    return real->cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, attribute_idx, attribute_count, stream);
}
