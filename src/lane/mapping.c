/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"

CUresult vmml_cuMemMap VMML_WITH_CALLER((CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemMap == NULL)
        return VMML_CU_MISSING;
    return real->cuMemMap(ptr, size, offset, handle, flags);
}

CUresult vmml_cuMemUnmap VMML_WITH_CALLER((CUdeviceptr ptr, size_t size))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemUnmap == NULL)
        return VMML_CU_MISSING;
    return real->cuMemUnmap(ptr, size);
}

CUresult vmml_cuMemSetAccess VMML_WITH_CALLER((CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemSetAccess == NULL)
        return VMML_CU_MISSING;
    return real->cuMemSetAccess(ptr, size, desc, count);
}

CUresult vmml_cuMemAddressFree VMML_WITH_CALLER((CUdeviceptr ptr, size_t size))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemAddressFree == NULL)
        return VMML_CU_MISSING;
    return real->cuMemAddressFree(ptr, size);
}
