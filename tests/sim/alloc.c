/* cuMemAlloc, managed and host memory, address ranges, legacy IPC's owner. */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>

static CUmemAllocationProp plain_prop(CUdevice dev)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = dev;
    return prop;
}

CUresult sim_cuMemGetInfo_v2(size_t *avail, size_t *total)
{
    int physical = sim.config.physical[sim_ctx_current()->dev];
    uint64_t used = sim_vram_used(physical);

    if (avail == NULL || total == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *total = sim.config.vram;
    *avail = used < sim.config.vram ? sim.config.vram - used : 0;
    return CUDA_SUCCESS;
}

static CUresult alloc_locked(CUdeviceptr *ptr, size_t size)
{
    CUcontext ctx = sim_ctx_current();
    CUmemAllocationProp prop = plain_prop(ctx->dev);
    CUresult result;
    struct sim_phys *phys;
    struct sim_map *map;

    phys = sim_phys_new(SIM_KIND_MALLOC, sim_round_up(size, SIM_GRANULE), &prop,
                        &result);
    if (phys == NULL) {
        return result;
    }
    map = sim_whole_new(SIM_KIND_MALLOC, phys, 0, size);
    if (map == NULL) {
        sim_phys_check(phys);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    map->range->ctx = ctx;
    *ptr = map->node.start;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
    CUresult result;

    if (ptr == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = alloc_locked(ptr, size);
    sim_unlock();
    return result;
}

CUresult sim_cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width,
                                size_t height, unsigned int element)
{
    if (ptr == NULL || pitch == NULL || width == 0 || height == 0 ||
        (element != 4 && element != 8 && element != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pitch = sim_round_up(width, 512);
    return sim_cuMemAlloc_v2(ptr, *pitch * height);
}

/* The forms with 32-bit addresses, which no address of ours fits. */
CUresult sim_cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int size)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch,
                             unsigned int width, unsigned int height,
                             unsigned int element)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuMemFree(CUdeviceptr_v1 ptr)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size,
                                  CUdeviceptr_v1 ptr)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult free_locked(CUdeviceptr ptr)
{
    struct sim_range *range = sim_range_at(ptr);

    if (range == NULL || range->node.start != ptr || range->freed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (range->ctx != NULL && range->ctx->error != CUDA_SUCCESS) {
        return range->ctx->error;
    }
    switch (range->kind) {
    case SIM_KIND_MALLOC:
    case SIM_KIND_MANAGED:
        sim_whole_free(range);
        return CUDA_SUCCESS;
    case SIM_KIND_POOL:
        return sim_pool_free(range);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuMemFree_v2(CUdeviceptr ptr)
{
    CUresult result;

    if (ptr == 0) {
        return CUDA_SUCCESS;
    }
    sim_reenter("cuMemFree_v2", ptr, 0);
    /* cuMemFree waits for the work that may use the memory. */
    if (sim_ctx_current() != NULL) {
        result = sim_cuCtxSynchronize();
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    sim_lock();
    result = free_locked(ptr);
    sim_unlock();
    return result;
}

static bool find_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size)
{
    struct sim_map *map = sim_visible_map(ptr);

    if (map == NULL || !sim_map_allows(map, sim_ctx_current()->dev, false)) {
        return false;
    }
    /* Zero for memory on the host: measured. */
    *base = map->range->kind == SIM_KIND_VMM &&
                    map->phys->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE
                ? 0
                : map->node.start;
    *size = map->node.size;
    return true;
}

/* Without outputs nothing is looked up; where nothing is found, they are set to
 * zero: measured. */
CUresult sim_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size,
                                     CUdeviceptr ptr)
{
    CUdeviceptr found_base = 0;
    size_t found_size = 0;
    bool found;

    if (base == NULL && size == NULL) {
        return CUDA_SUCCESS;
    }
    sim_lock();
    found = find_range(ptr, &found_base, &found_size);
    sim_unlock();
    if (base != NULL) {
        *base = found_base;
    }
    if (size != NULL) {
        *size = found_size;
    }
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- managed memory: readable at its own address ---- */

static CUresult managed_locked(CUdeviceptr *ptr, size_t size)
{
    CUcontext ctx = sim_ctx_current();
    CUmemAllocationProp prop = plain_prop(ctx->dev);
    CUresult result;
    struct sim_phys *phys;
    struct sim_map *map;

    phys = sim_phys_new(SIM_KIND_MANAGED, sim_round_up(size, SIM_GRANULE),
                        &prop, &result);
    if (phys == NULL) {
        return result;
    }
    map = sim_whole_new(SIM_KIND_MANAGED, phys, (uintptr_t)phys->host, size);
    if (map == NULL) {
        sim_phys_check(phys);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    map->range->ctx = ctx;
    *ptr = map->node.start;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocManaged(CUdeviceptr *ptr, size_t size,
                               unsigned int flags)
{
    CUresult result;

    if (ptr == NULL || size == 0 ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = managed_locked(ptr, size);
    sim_unlock();
    return result;
}

/* ---- host memory ---- */

static CUresult host_locked(void *ptr, size_t size, unsigned flags,
                            bool registered)
{
    struct sim_phys *phys;
    struct sim_map *map;

    phys = sim_zalloc(sizeof(*phys));
    if (phys == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    phys->kind = SIM_KIND_HOST;
    phys->fd = -1;
    phys->host = ptr;
    phys->size = size;
    phys->prop = plain_prop(sim_ctx_current()->dev);
    phys->block_id = sim.next_block_id++;
    map = sim_whole_new(SIM_KIND_HOST, phys, (uintptr_t)ptr, size);
    if (map == NULL) {
        sim_phys_check(phys);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    map->range->ctx = sim_ctx_current();
    map->range->host_flags = flags;
    map->range->host_registered = registered;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    CUresult result;
    void *mem;

    if (ptr == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    mem =
        sim_sys_mmap(NULL, sim_round_up(size, SIM_PAGE), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock();
    result = host_locked(mem, size, flags, false);
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        sim_sys_munmap(mem, sim_round_up(size, SIM_PAGE));
        return result;
    }
    *ptr = mem;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocHost_v2(void **ptr, size_t size)
{
    return sim_cuMemHostAlloc(ptr, size, 0);
}

static CUresult host_drop(void *ptr, bool registered, CUresult unknown)
{
    CUresult result = unknown;
    struct sim_range *range;
    size_t size;

    sim_lock();
    range = sim_range_at((uintptr_t)ptr);
    if (range != NULL && range->kind == SIM_KIND_HOST &&
        range->node.start == (uintptr_t)ptr &&
        range->host_registered == registered) {
        size = range->node.size;
        sim_whole_free(range);
        if (!registered) {
            sim_sys_munmap(ptr, sim_round_up(size, SIM_PAGE));
        }
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemFreeHost(void *ptr)
{
    return ptr == NULL ? CUDA_SUCCESS
                       : host_drop(ptr, false, CUDA_ERROR_INVALID_VALUE);
}

static bool ranges_overlap(uint64_t start, uint64_t size)
{
    struct sim_node *node = sim_tree_from(&sim.ranges, start);

    return node != NULL && node->start < start + size;
}

CUresult sim_cuMemHostRegister_v2(void *ptr, size_t size, unsigned int flags)
{
    CUresult result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;

    if (ptr == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    if (!ranges_overlap((uintptr_t)ptr, size)) {
        result = host_locked(ptr, size, flags, true);
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemHostUnregister(void *ptr)
{
    return ptr == NULL
               ? CUDA_ERROR_INVALID_VALUE
               : host_drop(ptr, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult sim_cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *ptr,
                                          unsigned int flags)
{
    struct sim_range *range;

    if (dptr == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    range = sim_range_at((uintptr_t)ptr);
    if (range != NULL && range->kind != SIM_KIND_HOST) {
        range = NULL;
    }
    sim_unlock();
    *dptr = range == NULL ? 0 : (uintptr_t)ptr;
    return range == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetFlags(unsigned int *flags, void *ptr)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct sim_range *range;

    if (flags == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    range = sim_range_at((uintptr_t)ptr);
    if (range != NULL && range->kind == SIM_KIND_HOST) {
        *flags = range->host_flags;
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemRangeGetAttribute(void *data, size_t size,
                                    CUmem_range_attribute attribute,
                                    CUdeviceptr ptr, size_t count)
{
    int where = CU_DEVICE_INVALID;
    struct sim_range *range;

    if (data == NULL || size != sizeof(where)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    range = sim_range_at(ptr);
    if (range != NULL && range->kind != SIM_KIND_MANAGED) {
        range = NULL;
    }
    sim_unlock();
    if (range == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Never prefetched, no advice given. */
    memcpy(data, &where, sizeof(where));
    return CUDA_SUCCESS;
}

/* No module can be loaded, so none has a global. */
CUresult sim_cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes,
                                  CUmodule module, const char *name)
{
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes,
                                CUlibrary library, const char *name)
{
    return CUDA_ERROR_INVALID_HANDLE;
}
