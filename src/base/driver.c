/* SPDX-License-Identifier: MIT */
#include "base/driver.h"

#include <stddef.h>

void vmml_relax(const struct vmml_real *real, struct vmml_relaxed *relaxed)
{
    relaxed->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    relaxed->exchanged =
        real->cuThreadExchangeStreamCaptureMode != NULL &&
        real->cuThreadExchangeStreamCaptureMode(&relaxed->mode) == CUDA_SUCCESS;
}

void vmml_relax_end(const struct vmml_real *real,
                    const struct vmml_relaxed *relaxed)
{
    CUstreamCaptureMode mode = relaxed->mode;

    if (relaxed->exchanged)
        real->cuThreadExchangeStreamCaptureMode(&mode);
}

unsigned long long vmml_buffer_id(const struct vmml_real *real, CUdeviceptr ptr)
{
    unsigned long long id = 0;

    if (vmml_attribute(real, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr) !=
        CUDA_SUCCESS)
        return 0;
    return id;
}

CUresult vmml_mapping_at(const struct vmml_real *real, CUdeviceptr ptr,
                         CUdeviceptr *base, size_t *size)
{
    CUresult result =
        vmml_attribute(real, base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ptr);

    if (result != CUDA_SUCCESS)
        return result;
    return vmml_attribute(real, size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ptr);
}

bool vmml_has_access(const struct vmml_real *real, CUdeviceptr ptr,
                     CUdevice device)
{
    CUmemLocation location = {
        .type = CU_MEM_LOCATION_TYPE_DEVICE,
        .id = device,
    };
    unsigned long long flags = 0;

    return real->cuMemGetAccess(&flags, &location, ptr) == CUDA_SUCCESS &&
           flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

CUresult vmml_device_uuid(const struct vmml_real *real, CUdevice device,
                          CUuuid *uuid)
{
    if (real->cuDeviceGetUuid_v2 != NULL)
        return real->cuDeviceGetUuid_v2(uuid, device);
    if (real->cuDeviceGetUuid != NULL)
        return real->cuDeviceGetUuid(uuid, device);
    return CUDA_ERROR_NOT_SUPPORTED;
}
