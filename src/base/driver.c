/* SPDX-License-Identifier: MIT */
#include "base/driver.h"

#include <stdatomic.h>
#include <stddef.h>

#include "base/log.h"

/* Handles that could not be released; 0: none. */
static _Atomic(CUmemGenericAllocationHandle) unreleased[16];
static atomic_uint unreleased_count;

#define UNRELEASED (sizeof(unreleased) / sizeof(unreleased[0]))

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

static void keep_unreleased(CUmemGenericAllocationHandle handle,
                            CUresult result)
{
    CUmemGenericAllocationHandle none;
    size_t i;

    vmml_warn_once("cuMemRelease failed (%d): tried again later", (int)result);
    for (i = 0; i < UNRELEASED; i++) {
        none = 0;
        if (atomic_compare_exchange_strong(&unreleased[i], &none, handle)) {
            atomic_fetch_add(&unreleased_count, 1);
            return;
        }
    }
}

static void release(const struct vmml_real *real,
                    CUmemGenericAllocationHandle handle)
{
    CUresult result = real->cuMemRelease(handle);

    /* One that the driver does not know may be another's later. */
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED ||
        result == CUDA_ERROR_INVALID_VALUE ||
        result == CUDA_ERROR_INVALID_HANDLE)
        return;
    keep_unreleased(handle, result);
}

void vmml_release(const struct vmml_real *real,
                  CUmemGenericAllocationHandle handle)
{
    size_t i;

    for (i = 0; i < UNRELEASED && atomic_load(&unreleased_count) != 0; i++) {
        CUmemGenericAllocationHandle old = atomic_exchange(&unreleased[i], 0);

        if (old == 0)
            continue;
        atomic_fetch_sub(&unreleased_count, 1);
        release(real, old);
    }
    release(real, handle);
}

static CUcontext retain_active(const struct vmml_real *real, CUdevice device)
{
    CUcontext context = NULL;
    unsigned flags;
    int active = 0;

    if (real->cuDevicePrimaryCtxGetState(device, &flags, &active) !=
            CUDA_SUCCESS ||
        !active ||
        real->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return NULL;
    return context;
}

static void release_primary(const struct vmml_real *real, CUdevice device)
{
    /* Not once more: it may give an error of an earlier launch (driver
     * documentation) and have released it, and the next would be the
     * application's own. */
    if (real->cuDevicePrimaryCtxRelease_v2(device) != CUDA_SUCCESS)
        vmml_debug("a primary context could not be released");
}

CUcontext vmml_active_primary(const struct vmml_real *real, CUdevice device)
{
    CUcontext context = retain_active(real, device);

    if (context != NULL)
        release_primary(real, device);
    return context;
}

bool vmml_push_primary(const struct vmml_real *real, CUdevice device)
{
    CUcontext context = retain_active(real, device);

    if (context == NULL)
        return false;
    if (real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS)
        return true;
    release_primary(real, device);
    return false;
}

void vmml_pop_primary(const struct vmml_real *real, CUdevice device)
{
    vmml_pop_context(real);
    release_primary(real, device);
}

void vmml_pop_context(const struct vmml_real *real)
{
    CUcontext popped;

    /* Twice: the application would go on in a context of ours. */
    for (int tries = 0; tries < 2; tries++) {
        if (real->cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS)
            return;
    }
    vmml_warn_once("cuCtxPopCurrent failed");
}

unsigned long long vmml_buffer_id(const struct vmml_real *real, CUdeviceptr ptr)
{
    unsigned long long id = 0;
    CUresult result =
        vmml_attribute(real, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);

    /* Where nothing is mapped it is INVALID_VALUE (measured). Any other failure
     * says nothing: once more. */
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE)
        result = vmml_attribute(real, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
    return result == CUDA_SUCCESS ? id : 0;
}

CUresult vmml_properties_at(const struct vmml_real *real, CUdeviceptr ptr,
                            CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle;
    CUresult result;

    if (real->cuMemRetainAllocationHandle == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = real->cuMemRetainAllocationHandle(&handle, (void *)ptr);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuMemGetAllocationPropertiesFromHandle(prop, handle);
    vmml_release(real, handle);
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_UNKNOWN : result;
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

/* The first `count` of what is asked for. */
static bool describe_at_once(const struct vmml_real *real, CUdeviceptr ptr,
                             unsigned count, struct vmml_described *described)
{
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    };
    void *data[] = {
        &described->buffer_id,
        &described->base,
        &described->size,
        &described->device,
        &described->handle_types,
        &described->reservation_base,
        &described->reservation_size,
    };

    *described = (struct vmml_described){.device = -1};
    /* Where nothing is mapped it succeeds, with a BUFFER_ID of 0 (measured). */
    return real->cuPointerGetAttributes != NULL &&
           real->cuPointerGetAttributes(count, names, data, ptr) ==
               CUDA_SUCCESS &&
           described->buffer_id != 0 && described->size != 0;
}

/* Each by a call: its error tells a hole from a driver that failed. */
static CUresult describe_singly(const struct vmml_real *real, CUdeviceptr ptr,
                                struct vmml_described *described)
{
    CUresult result;

    *described = (struct vmml_described){.device = -1};
    result = vmml_attribute(real, &described->buffer_id,
                            CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
    if (result == CUDA_SUCCESS)
        result = vmml_mapping_at(real, ptr, &described->base, &described->size);
    if (result == CUDA_SUCCESS)
        result = vmml_attribute(real, &described->device,
                                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr);
    if (result == CUDA_SUCCESS &&
        vmml_attribute(real, &described->handle_types,
                       CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                       ptr) != CUDA_SUCCESS)
        described->handle_types = 0;
    return result;
}

CUresult vmml_describe(const struct vmml_real *real, CUdeviceptr ptr,
                       struct vmml_described *described)
{
    if (describe_at_once(real, ptr, 5, described))
        return CUDA_SUCCESS;
    return describe_singly(real, ptr, described);
}

CUresult vmml_describe_all(const struct vmml_real *real, CUdeviceptr ptr,
                           struct vmml_described *described)
{
    CUresult result;

    if (describe_at_once(real, ptr, 7, described) &&
        described->reservation_size != 0)
        return CUDA_SUCCESS;
    result = describe_singly(real, ptr, described);
    if (result == CUDA_SUCCESS)
        result = vmml_attribute(real, &described->reservation_base,
                                CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr);
    if (result == CUDA_SUCCESS)
        result = vmml_attribute(real, &described->reservation_size,
                                CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr);
    return result;
}

CUresult vmml_access_at(const struct vmml_real *real, CUdeviceptr ptr,
                        CUdevice device, bool *access)
{
    CUmemLocation location = {
        .type = CU_MEM_LOCATION_TYPE_DEVICE,
        .id = device,
    };
    unsigned long long flags = 0;
    CUresult result = real->cuMemGetAccess(&flags, &location, ptr);

    *access = result == CUDA_SUCCESS && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return result;
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
