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

CUresult vmml_device_uuid(const struct vmml_real *real, CUdevice device,
                          CUuuid *uuid)
{
    if (real->cuDeviceGetUuid_v2 != NULL)
        return real->cuDeviceGetUuid_v2(uuid, device);
    if (real->cuDeviceGetUuid != NULL)
        return real->cuDeviceGetUuid(uuid, device);
    return CUDA_ERROR_NOT_SUPPORTED;
}
