/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"

CUresult vmml_cuMemGetAddressRange_v2 VMML_WITH_CALLER((CUdeviceptr * base, size_t *size, CUdeviceptr ptr))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemGetAddressRange_v2 == NULL)
        return VMML_CU_MISSING;
    return real->cuMemGetAddressRange_v2(base, size, ptr);
}

CUresult vmml_cuPointerGetAttribute VMML_WITH_CALLER((void *data, CUpointer_attribute attribute, CUdeviceptr ptr))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuPointerGetAttribute == NULL)
        return VMML_CU_MISSING;
    return real->cuPointerGetAttribute(data, attribute, ptr);
}

CUresult vmml_cuPointerGetAttributes VMML_WITH_CALLER((unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuPointerGetAttributes == NULL)
        return VMML_CU_MISSING;
    return real->cuPointerGetAttributes(count, attributes, data, ptr);
}

CUresult vmml_cuDeviceGetUuid VMML_WITH_CALLER((CUuuid * uuid, CUdevice device))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuDeviceGetUuid == NULL)
        return VMML_CU_MISSING;
    return real->cuDeviceGetUuid(uuid, device);
}

CUresult vmml_cuDeviceGetUuid_v2 VMML_WITH_CALLER((CUuuid * uuid, CUdevice device))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuDeviceGetUuid_v2 == NULL)
        return VMML_CU_MISSING;
    return real->cuDeviceGetUuid_v2(uuid, device);
}

CUresult vmml_cuIpcGetMemHandle VMML_WITH_CALLER((CUipcMemHandle * handle, CUdeviceptr ptr))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuIpcGetMemHandle == NULL)
        return VMML_CU_MISSING;
    return real->cuIpcGetMemHandle(handle, ptr);
}
