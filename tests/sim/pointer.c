/* Pointer attributes. */
#include "internal.h"

#include <string.h>

union value {
    uint64_t u64;
    uint32_t u32;
    uint8_t u8;
};

/* Bytes that the driver writes for an attribute; 0: not one it knows. */
static size_t width_of(CUpointer_attribute attribute)
{
    switch (attribute) {
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

static bool on_device(const struct sim_map *map)
{
    return map->range->kind != SIM_KIND_HOST &&
           map->phys->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUmemorytype memory_type(const struct sim_map *map)
{
    return on_device(map) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

static CUcontext context_of(const struct sim_range *range)
{
    return range->kind == SIM_KIND_VMM || range->kind == SIM_KIND_POOL
               ? NULL
               : range->ctx;
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

static CUresult lookup(union value *out, CUpointer_attribute attribute,
                       CUdeviceptr ptr)
{
    struct sim_map *map = sim_map_at(ptr);
    struct sim_range *range;

    if (map == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    range = map->range;
    out->u64 = 0;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        out->u64 = (uintptr_t)context_of(range);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        out->u32 = memory_type(map);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        out->u64 = ptr;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (map->host_access == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        out->u64 = ptr;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        out->u32 = range->sync_memops;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        out->u64 = map->buffer_id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        out->u32 = range->kind == SIM_KIND_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        out->u32 = on_device(map) || range->kind == SIM_KIND_HOST
                       ? (uint32_t)map->phys->prop.location.id
                       : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        out->u32 = range->kind == SIM_KIND_MALLOC;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        out->u64 = range->node.start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        out->u64 = range->node.size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        out->u32 = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        out->u64 = handle_types(map);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        out->u32 = range->kind == SIM_KIND_VMM
                       ? map->phys->prop.allocFlags.gpuDirectRDMACapable
                       : on_device(map);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        out->u32 = access_of(map);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        out->u64 = (uintptr_t)range->pool;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        out->u64 = map->node.size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        out->u64 = map->node.start;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        out->u64 = map->phys->block_id;
        break;
    default:
        break;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                   CUdeviceptr ptr)
{
    CUresult result;
    union value value;

    if (data == NULL || width_of(attribute) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = lookup(&value, attribute, ptr);
    sim_unlock();
    if (result == CUDA_SUCCESS) {
        memcpy(data, &value, width_of(attribute));
    }
    return result;
}

/* An attribute that has no answer reads as zero here, and the call succeeds
 * (the driver API's documentation of cuPointerGetAttributes). */
CUresult sim_cuPointerGetAttributes(unsigned int count,
                                    CUpointer_attribute *attributes,
                                    void **data, CUdeviceptr ptr)
{
    union value value;
    unsigned i;

    if (count == 0 || attributes == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (i = 0; i < count; i++) {
        if (data[i] == NULL || width_of(attributes[i]) == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    sim_lock();
    for (i = 0; i < count; i++) {
        if (lookup(&value, attributes[i], ptr) != CUDA_SUCCESS) {
            value.u64 = 0;
            if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
                value.u32 = (uint32_t)CU_DEVICE_INVALID;
            }
        }
        memcpy(data[i], &value, width_of(attributes[i]));
    }
    sim_unlock();
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(const void *value,
                                   CUpointer_attribute attribute,
                                   CUdeviceptr ptr)
{
    struct sim_map *map;
    uint32_t on;

    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(&on, value, sizeof(on));
    sim_lock();
    map = sim_map_at(ptr);
    if (map != NULL) {
        map->range->sync_memops = on != 0;
    }
    sim_unlock();
    return map == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
