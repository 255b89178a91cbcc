/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"

CUresult vmml_cuMemCreate VMML_WITH_CALLER((CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemCreate == NULL)
        return VMML_CU_MISSING;
    return real->cuMemCreate(handle, size, prop, flags);
}

CUresult vmml_cuMemImportFromShareableHandle VMML_WITH_CALLER((CUmemGenericAllocationHandle * handle, void *os_handle, CUmemAllocationHandleType type))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemImportFromShareableHandle == NULL)
        return VMML_CU_MISSING;
    return real->cuMemImportFromShareableHandle(handle, os_handle, type);
}

CUresult vmml_cuMulticastCreate VMML_WITH_CALLER((CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *prop))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMulticastCreate == NULL)
        return VMML_CU_MISSING;
    return real->cuMulticastCreate(handle, prop);
}

CUresult vmml_cuMemExportToShareableHandle VMML_WITH_CALLER((void *os_handle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemExportToShareableHandle == NULL)
        return VMML_CU_MISSING;
    return real->cuMemExportToShareableHandle(os_handle, handle, type, flags);
}

CUresult vmml_cuMemGetAllocationPropertiesFromHandle VMML_WITH_CALLER((CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemGetAllocationPropertiesFromHandle == NULL)
        return VMML_CU_MISSING;
    return real->cuMemGetAllocationPropertiesFromHandle(prop, handle);
}
