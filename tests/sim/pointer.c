/* Pointer attributes; widths, defaults and errors as measured on an H200. */
#include "internal.h"

#include <string.h>

struct value {
    CUresult result;
    size_t width; /* bytes to write, on some errors too */
    union {
        uint64_t u64;
        uint32_t u32;
        unsigned char bytes[16];
    } as;
};

/* Bytes that the driver writes for an attribute; 0: not one it knows. */
static size_t width_of(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return 12;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        return 4;
    default:
        return 0;
    }
}

/* ---- one question about a mapping each ---- */

static bool on_device(const struct sim_map *map)
{
    return map->range->kind != SIM_KIND_HOST &&
           map->phys->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUcontext context_of(const struct sim_range *range)
{
    return range->kind == SIM_KIND_VMM || range->kind == SIM_KIND_POOL
               ? NULL
               : range->ctx;
}

static uint32_t ordinal_of(const struct sim_map *map)
{
    int dev = map->phys->prop.location.id;
    bool device = map->phys->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;

    /* A GPU that is hidden from this process reads as 0. */
    return device && dev >= 0 ? (uint32_t)dev : 0;
}

static unsigned access_of(const struct sim_map *map)
{
    CUcontext ctx = sim_ctx_current();

    return map->access[ctx == NULL ? 0 : ctx->dev];
}

static uint64_t handle_types(const struct sim_map *map)
{
    return map->phys->imported ? 0
                               : (uint64_t)map->phys->prop.requestedHandleTypes;
}

static bool rdma_capable(const struct sim_map *map)
{
    return map->range->kind == SIM_KIND_MALLOC ||
           (map->range->kind == SIM_KIND_VMM &&
            map->phys->prop.allocFlags.gpuDirectRDMACapable != 0);
}

/* All but registered memory lies in blocks of 2 MiB at least. */
static uint64_t mapping_size(const struct sim_map *map)
{
    return map->range->host_registered
               ? map->node.size
               : sim_round_up(map->node.size, SIM_GRANULE);
}

static void host_pointer(struct value *value, const struct sim_map *map,
                         CUdeviceptr ptr)
{
    if (map->host_access == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        value->result = CUDA_ERROR_INVALID_VALUE; /* and a zero is written */
    } else {
        value->as.u64 = ptr;
    }
}

static void device_pointer(struct value *value, const struct sim_map *map,
                           CUdeviceptr ptr)
{
    if (access_of(map) == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        value->result = CUDA_ERROR_INVALID_VALUE;
    } else {
        value->as.u64 = ptr;
    }
}

/* Asking for the tokens also turns SYNC_MEMOPS on. */
static void p2p_tokens(struct value *value, const struct sim_map *map)
{
    if (!on_device(map)) {
        value->result = CUDA_ERROR_INVALID_VALUE;
        return;
    }
    map->range->sync_memops = true;
}

/* ---- the attributes ---- */

static void mapped_value(struct value *value, CUpointer_attribute attribute,
                         const struct sim_map *map, CUdeviceptr ptr)
{
    const struct sim_range *range = map->range;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        value->as.u64 = (uintptr_t)context_of(range);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        value->as.u32 =
            on_device(map) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        device_pointer(value, map, ptr);
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        host_pointer(value, map, ptr);
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        p2p_tokens(value, map);
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        value->as.u32 = range->sync_memops;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        value->as.u64 = map->buffer_id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        value->as.u32 = range->kind == SIM_KIND_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        value->as.u32 = ordinal_of(map);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        value->as.u32 = range->kind == SIM_KIND_MALLOC;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        value->as.u64 = range->node.start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        value->as.u64 = range->node.size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        value->as.u32 = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        value->as.u64 = handle_types(map);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        value->as.u32 = rdma_capable(map);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        value->as.u32 = access_of(map);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        value->as.u64 = (uintptr_t)range->pool;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        value->as.u64 = mapping_size(map);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        value->as.u64 = map->node.start;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        value->as.u64 = map->phys->block_id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        value->as.u32 = range->kind == SIM_KIND_MALLOC;
        break;
    default:
        break;
    }
}

/* What cuPointerGetAttributes makes of an address that names no memory: it
 * succeeds, and says little. */
static void unmapped_value(struct value *value, CUpointer_attribute attribute,
                           CUdeviceptr ptr)
{
    const struct sim_range *range = sim_range_at(ptr);

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        value->as.u64 = ptr;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        value->as.u32 = (uint32_t)CU_DEVICE_INVALID;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        value->width = range == NULL ? 0 : value->width;
        value->as.u64 = range == NULL ? 0 : range->node.start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        value->width = range == NULL ? 0 : value->width;
        value->as.u64 = range == NULL ? 0 : range->node.size;
        break;
    default:
        break;
    }
}

static struct value lookup(CUpointer_attribute attribute, CUdeviceptr ptr,
                           bool plural)
{
    struct value value;
    const struct sim_map *map;

    memset(&value, 0, sizeof(value));
    value.width = width_of(attribute);
    sim_lock();
    map = sim_visible_map(ptr);
    if (map != NULL) {
        mapped_value(&value, attribute, map, ptr);
    } else if (plural) {
        unmapped_value(&value, attribute, ptr);
    } else {
        value.result = CUDA_ERROR_INVALID_VALUE;
        value.width = 0;
    }
    sim_unlock();
    return value;
}

CUresult sim_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                   CUdeviceptr ptr)
{
    struct value value;

    if (data == NULL || width_of(attribute) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    value = lookup(attribute, ptr, false);
    memcpy(data, &value.as, value.width);
    return value.result;
}

CUresult sim_cuPointerGetAttributes(unsigned int count,
                                    CUpointer_attribute *attributes,
                                    void **data, CUdeviceptr ptr)
{
    struct value value;
    unsigned i;

    if (count == 0 || attributes == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (i = 0; i < count; i++) {
        if (data[i] == NULL || width_of(attributes[i]) == 0 ||
            attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (i = 0; i < count; i++) {
        value = lookup(attributes[i], ptr, true);
        memcpy(data[i], &value.as, value.width);
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(const void *value,
                                   CUpointer_attribute attribute,
                                   CUdeviceptr ptr)
{
    CUresult result = CUDA_SUCCESS;
    const struct sim_map *map;
    uint32_t on;

    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    map = sim_visible_map(ptr);
    if (map == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (map->range->kind == SIM_KIND_VMM) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    } else {
        memcpy(&on, value, sizeof(on));
        map->range->sync_memops = on != 0;
    }
    sim_unlock();
    return result;
}
