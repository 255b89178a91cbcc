/* SPDX-License-Identifier: MIT */
#include "range/probe.h"

#include <string.h>

#include "base/driver.h"
#include "create/create.h"

uint64_t vmml_probe_buffer_id(const struct vmml_real *real, uint64_t address)
{
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    unsigned long long id = 0;
    void *data = &id;
    CUresult rc;

    rc = real->cuPointerGetAttribute(&id, name, address);
    /* Nothing is mapped there (measured); any other failure says nothing, and
     * where a probe learns what this cannot, each query would probe again. */
    if (rc != CUDA_SUCCESS && rc != CUDA_ERROR_INVALID_VALUE &&
        real->cuPointerGetAttributes != NULL)
        rc = real->cuPointerGetAttributes(1, &name, &data, address);
    return rc == CUDA_SUCCESS ? id : 0;
}

/* What is the same of one mapping for ever: its BUFFER_ID, and where its
 * reservation lies. */
struct place {
    unsigned long long buffer_id;
    CUdeviceptr base;
    size_t size;
};

static bool get_place_at_once(const struct vmml_real *real, uint64_t address,
                              struct place *place)
{
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *data[] = {&place->buffer_id, &place->base, &place->size};

    *place = (struct place){0};
    /* Where nothing is mapped it succeeds, with a BUFFER_ID of 0 (measured). */
    return real->cuPointerGetAttributes != NULL &&
           real->cuPointerGetAttributes(3, names, data, address) ==
               CUDA_SUCCESS &&
           place->buffer_id != 0;
}

static enum vmml_probe_result get_place(const struct vmml_real *real,
                                        uint64_t address, struct place *place)
{
    if (get_place_at_once(real, address, place))
        return VMML_PROBE_CHUNK;
    *place = (struct place){.buffer_id = vmml_probe_buffer_id(real, address)};
    if (place->buffer_id == 0)
        return VMML_PROBE_NONE;
    if (real->cuPointerGetAttribute(&place->base,
                                    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    address) != CUDA_SUCCESS ||
        real->cuPointerGetAttribute(&place->size,
                                    CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    address) != CUDA_SUCCESS)
        return VMML_PROBE_FAILED;
    return VMML_PROBE_CHUNK;
}

/* All answers were about one mapping: it is there still, and the first place
 * was its own. The attributes of one call need not be of one moment. */
static bool is_still(const struct vmml_real *real, uint64_t address,
                     const struct place *place)
{
    struct place now;

    return get_place(real, address, &now) == VMML_PROBE_CHUNK &&
           now.buffer_id == place->buffer_id && now.base == place->base &&
           now.size == place->size;
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
    struct place place;
    CUdeviceptr base = 0;
    size_t size = 0;

    memset(probe, 0, sizeof(*probe));
    result = get_place(real, address, &place);
    if (result != VMML_PROBE_CHUNK)
        return result;
    probe->buffer_id = place.buffer_id;
    probe->traits.window_base = place.base;
    probe->traits.window_end = place.base + place.size;
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
    if (probe->base < probe->traits.window_base ||
        probe->end > probe->traits.window_end)
        probe->traits.joins = false;
    if (probe->traits.joins)
        get_access(real, base, &probe->traits);
    return is_still(real, base, &place) ? VMML_PROBE_CHUNK : VMML_PROBE_CHANGED;
}
