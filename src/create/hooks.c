/* SPDX-License-Identifier: MIT */
#include "base/driver.h"
#include "base/log.h"
#include "create/create.h"
#include "create/origins.h"
#include "create/upgrade.h"
#include "doors/caller.h"
#include "doors/real.h"
#include "hooks.h"
#include "stats/count.h"

/*
 * Make the request with POSIX_FD. False where that failed or could not be
 * remembered: then it is as if it had not been tried.
 */
static bool upgrade(const struct vmml_real *real,
                    CUmemGenericAllocationHandle *handle, size_t size,
                    const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUmemAllocationProp upgraded = *prop;
    CUmemGenericAllocationHandle made = 0;
    CUresult rc;

    if (!vmml_origins_reserve())
        return false;
    upgraded.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    rc = real->cuMemCreate(&made, size, &upgraded, flags);
    if (rc != CUDA_SUCCESS) {
        vmml_count(creates_refused);
        vmml_debug("%zu bytes on device %d: no upgrade to POSIX_FD: error %d",
                   size, prop->location.id, (int)rc);
        return false;
    }
    if (vmml_origins_set(made, VMML_HANDLE_UPGRADED) != 0) {
        vmml_release(real, made);
        return false;
    }
    *handle = made;
    vmml_count(creates_upgraded);
    vmml_debug("%zu bytes on device %d: upgraded to POSIX_FD", size,
               prop->location.id);
    return true;
}

/* The device's attribute says that it can do it (measured). What the caller
 * does next decides whether a lane is lost, so this is no warning. */
static void tell_of_channel(void)
{
    static struct vmml_once seen;

    if (vmml_once(&seen))
        vmml_info("the driver does not permit FABRIC memory "
                  "(CUDA_ERROR_NOT_PERMITTED): this node has no IMEX channel "
                  "that the process may use");
}

CUresult vmml_cuMemCreate(const void *caller,
                          CUmemGenericAllocationHandle *handle, size_t size,
                          const CUmemAllocationProp *prop,
                          unsigned long long flags)
{
    const struct vmml_real *real = vmml_real();
    enum vmml_handle_origin origin = VMML_HANDLE_UNKNOWN;
    CUresult rc;

    if (real == NULL || real->cuMemCreate == NULL)
        return VMML_CU_MISSING;
    if (handle != NULL && prop != NULL &&
        vmml_upgrade_wanted(real, prop, flags) &&
        upgrade(real, handle, size, prop, flags))
        return CUDA_SUCCESS;
    rc = real->cuMemCreate(handle, size, prop, flags);
    if (rc == CUDA_ERROR_NOT_PERMITTED && prop != NULL &&
        (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0)
        tell_of_channel();
    if (rc == CUDA_SUCCESS && handle != NULL && prop != NULL) {
        if (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE &&
            prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            origin = VMML_HANDLE_PLAIN;
        /* A failure leaves the value unknown, which only keeps extents
         * short. */
        (void)vmml_origins_set(*handle, origin);
    }
    return rc;
}

CUresult vmml_cuMemImportFromShareableHandle(
    const void *caller, CUmemGenericAllocationHandle *handle, void *os_handle,
    CUmemAllocationHandleType type)
{
    const struct vmml_real *real = vmml_real();
    CUresult rc;

    if (real == NULL || real->cuMemImportFromShareableHandle == NULL)
        return VMML_CU_MISSING;
    rc = real->cuMemImportFromShareableHandle(handle, os_handle, type);
    if (rc == CUDA_SUCCESS && handle != NULL)
        vmml_create_imported(*handle);
    return rc;
}

CUresult vmml_cuMulticastCreate(const void *caller,
                                CUmemGenericAllocationHandle *handle,
                                const CUmulticastObjectProp *prop)
{
    const struct vmml_real *real = vmml_real();
    CUresult rc;

    if (real == NULL || real->cuMulticastCreate == NULL)
        return VMML_CU_MISSING;
    rc = real->cuMulticastCreate(handle, prop);
    if (rc == CUDA_SUCCESS && handle != NULL)
        (void)vmml_origins_set(*handle, VMML_HANDLE_MULTICAST);
    return rc;
}

static bool sees_upgrade(const void *caller)
{
    enum vmml_caller class = vmml_hook_caller(caller);

    return class == VMML_CALLER_UCT_CUDA || class == VMML_CALLER_SHIM;
}

CUresult vmml_cuMemExportToShareableHandle(const void *caller, void *os_handle,
                                           CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type,
                                           unsigned long long flags)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemExportToShareableHandle == NULL)
        return VMML_CU_MISSING;
    /* What the driver answers for memory without a handle type: measured. */
    if (vmml_create_is_upgraded(handle) && !sees_upgrade(caller))
        return CUDA_ERROR_INVALID_VALUE;
    return real->cuMemExportToShareableHandle(os_handle, handle, type, flags);
}

CUresult
vmml_cuMemGetAllocationPropertiesFromHandle(const void *caller,
                                            CUmemAllocationProp *prop,
                                            CUmemGenericAllocationHandle handle)
{
    const struct vmml_real *real = vmml_real();
    CUresult rc;

    if (real == NULL || real->cuMemGetAllocationPropertiesFromHandle == NULL)
        return VMML_CU_MISSING;
    rc = real->cuMemGetAllocationPropertiesFromHandle(prop, handle);
    if (rc == CUDA_SUCCESS && prop != NULL && vmml_create_is_upgraded(handle) &&
        !sees_upgrade(caller))
        prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    return rc;
}

enum vmml_handle_origin vmml_create_origin(CUmemGenericAllocationHandle handle)
{
    return vmml_origins_get(handle);
}

void vmml_create_imported(CUmemGenericAllocationHandle handle)
{
    /* A failure leaves the value unknown, which only keeps extents short. */
    (void)vmml_origins_set(handle, VMML_HANDLE_IMPORTED);
}

bool vmml_create_is_upgraded(CUmemGenericAllocationHandle handle)
{
    return vmml_origins_upgraded() != 0 &&
           vmml_origins_get(handle) == VMML_HANDLE_UPGRADED;
}

bool vmml_create_is_upgraded_at(CUdeviceptr ptr)
{
    const struct vmml_real *real = vmml_real();
    CUmemGenericAllocationHandle handle;
    bool upgraded;

    if (vmml_origins_upgraded() == 0 || real == NULL ||
        real->cuMemRetainAllocationHandle == NULL || real->cuMemRelease == NULL)
        return false;
    if (real->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr) !=
        CUDA_SUCCESS)
        return false;
    upgraded = vmml_create_is_upgraded(handle);
    vmml_release(real, handle);
    return upgraded;
}

void vmml_create_forget(void)
{
    vmml_origins_forget();
    vmml_upgrade_forget();
}
