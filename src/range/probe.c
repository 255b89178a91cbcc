/* SPDX-License-Identifier: MIT */
#include "range/probe.h"

#include <string.h>

#include "base/driver.h"
#include "create/create.h"

uint64_t vmml_probe_buffer_id(const struct vmml_real *real, uint64_t address)
{
    unsigned long long id = 0;

    if (real->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                    address) != CUDA_SUCCESS)
        return 0;
    return id;
}

static bool get_window(const struct vmml_real *real, uint64_t address,
                       struct vmml_traits *traits)
{
    CUdeviceptr base = 0;
    size_t size = 0;

    if (real->cuPointerGetAttribute(&base,
                                    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    address) != CUDA_SUCCESS ||
        real->cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    address) != CUDA_SUCCESS)
        return false;
    traits->window_base = base;
    traits->window_end = base + size;
    return true;
}

/*
 * May the chunk have neighbours in an extent? Not memory that is elsewhere, of
 * another process, or a multicast object. Imported memory shows no handle
 * type, as does memory that was made with none: those that are not known to
 * have been made here stay alone.
 */
static bool may_join(const CUmemAllocationProp *prop,
                     enum vmml_handle_origin origin)
{
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return false;
    if (origin == VMML_HANDLE_IMPORTED || origin == VMML_HANDLE_MULTICAST)
        return false;
    return prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE ||
           origin == VMML_HANDLE_PLAIN;
}

/* A handle whose properties the driver does not tell (a multicast object)
 * makes a chunk that stays alone. */
static enum vmml_probe_result get_properties(const struct vmml_real *real,
                                             uint64_t address,
                                             struct vmml_traits *traits)
{
    CUmemGenericAllocationHandle handle;
    enum vmml_handle_origin origin;
    CUmemAllocationProp prop;
    CUresult rc;

    rc = real->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);
    if (rc == CUDA_ERROR_INVALID_VALUE)
        return VMML_PROBE_NONE;
    if (rc != CUDA_SUCCESS)
        return VMML_PROBE_FAILED;
    memset(&prop, 0, sizeof(prop));
    rc = real->cuMemGetAllocationPropertiesFromHandle(&prop, handle);
    if (rc == CUDA_SUCCESS) {
        /* Before the release: the driver uses handle values again. */
        origin = vmml_create_origin(handle);
        traits->joins = may_join(&prop, origin);
        traits->handle_types = (uint64_t)prop.requestedHandleTypes;
        traits->device = prop.location.id;
        traits->usage = prop.allocFlags.usage;
        traits->compression = prop.allocFlags.compressionType;
        traits->rdma = prop.allocFlags.gpuDirectRDMACapable;
    }
    vmml_release(real, handle);
    return VMML_PROBE_CHUNK;
}

static void get_access(const struct vmml_real *real, uint64_t address,
                       struct vmml_traits *traits)
{
    unsigned long long flags = 0;
    CUmemLocation location;

    memset(&location, 0, sizeof(location));
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = traits->device;
    if (real->cuMemGetAccess(&flags, &location, address) != CUDA_SUCCESS ||
        flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        traits->joins = false;
    traits->access = flags;
}

enum vmml_probe_result vmml_probe(const struct vmml_real *real,
                                  uint64_t address, struct vmml_probe *probe)
{
    enum vmml_probe_result result;
    CUdeviceptr base = 0;
    size_t size = 0;

    memset(probe, 0, sizeof(*probe));
    probe->buffer_id = vmml_probe_buffer_id(real, address);
    if (probe->buffer_id == 0)
        return VMML_PROBE_NONE;
    result = get_properties(real, address, &probe->traits);
    if (result != VMML_PROBE_CHUNK)
        return result;
    if (real->cuMemGetAddressRange_v2(&base, &size, address) != CUDA_SUCCESS)
        return VMML_PROBE_NONE;
    if (size == 0 || base > address || address - base >= size ||
        base + size < base)
        return VMML_PROBE_FAILED;
    probe->base = base;
    probe->end = base + size;
    if (!get_window(real, base, &probe->traits))
        return VMML_PROBE_FAILED;
    if (probe->base < probe->traits.window_base ||
        probe->end > probe->traits.window_end)
        probe->traits.joins = false;
    if (probe->traits.joins)
        get_access(real, base, &probe->traits);
    /* All answers were about one mapping. */
    if (vmml_probe_buffer_id(real, base) != probe->buffer_id)
        return VMML_PROBE_CHANGED;
    return VMML_PROBE_CHUNK;
}
