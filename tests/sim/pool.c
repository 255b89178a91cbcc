/*
 * Stream-ordered pools. Each allocation is a memfd of its own, so that an
 * importer keeps the bytes that it imported (measured on the real driver);
 * a pool keeps the address ranges and gives them out again.
 */
#include "internal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* sim_label.kind of a pool's own memfd; enum sim_kind stays below. */
#define POOL_LABEL 100

struct spare {
    struct spare *next;
    CUdeviceptr va;
    size_t size;
};

struct CUmemPoolHandle_st {
    struct CUmemPoolHandle_st *next;
    CUmemPoolProps props;
    CUdevice dev;
    uint64_t id; /* unique over processes */
    int fd;      /* names the pool; -1 where it cannot be exported */
    bool imported, is_default;
    bool exported; /* once; only then its pointers can be */
    uint64_t threshold, used, used_high, live;
    bool destroyed;
    unsigned char access[SIM_MAX_DEVICES];
    struct spare *spares;
};

static CUmemoryPool pools;
static CUmemoryPool default_pool[SIM_MAX_DEVICES], current[SIM_MAX_DEVICES];
static uint32_t next_pool = 1;

static CUmemoryPool find_pool(CUmemoryPool handle)
{
    CUmemoryPool pool;

    for (pool = pools; pool != NULL && pool != handle; pool = pool->next) {
    }
    return pool;
}

/* ---- making and ending ---- */

static int pool_fd(const struct CUmemPoolHandle_st *pool)
{
    struct sim_label label = {
        .magic = SIM_LABEL_MAGIC,
        .size = SIM_PAGE,
        .serial = pool->id,
        .kind = POOL_LABEL,
        .device = (uint32_t)sim.config.physical[pool->dev],
        .node = sim.config.node,
        .handle_types = pool->props.handleTypes,
    };
    int fd = memfd_create("vmmlane-sim-pool", MFD_CLOEXEC);

    if (fd < 0) {
        return -1;
    }
    if (ftruncate(fd, 2 * (off_t)SIM_PAGE) != 0 ||
        pwrite(fd, &label, sizeof(label), (off_t)SIM_PAGE) !=
            (ssize_t)sizeof(label)) {
        close(fd);
        return -1;
    }
    return sim_raise_fd(fd);
}

static CUmemoryPool pool_new(CUdevice dev, int handle_types)
{
    CUmemoryPool pool = sim_zalloc(sizeof(*pool));

    if (pool == NULL) {
        return NULL;
    }
    pool->dev = dev;
    pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool->props.handleTypes = (CUmemAllocationHandleType)handle_types;
    pool->props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    pool->props.location.id = dev;
    pool->id = (uint64_t)getpid() << 32 | next_pool++;
    pool->access[dev] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->fd = -1;
    pool->next = pools;
    pools = pool;
    return pool;
}

static void pool_drop(CUmemoryPool pool)
{
    CUmemoryPool *link = &pools;
    struct spare *spare;

    while (*link != pool) {
        link = &(*link)->next;
    }
    *link = pool->next;
    while ((spare = pool->spares) != NULL) {
        pool->spares = spare->next;
        sim_va_release(spare->va, spare->size);
        sim_free(spare, sizeof(*spare));
    }
    if (pool->fd >= 0) {
        close(pool->fd);
    }
    sim_free(pool, sizeof(*pool));
}

static CUresult check_pool_props(const CUmemPoolProps *props)
{
    int known =
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;

    if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (props->handleTypes & ~known) != 0 ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(props->location.id)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if ((props->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 &&
        sim.config.fabric == SIM_FABRIC_OFF) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult result;
    CUmemoryPool made;

    if (pool == NULL || props == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = check_pool_props(props);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    made = pool_new(props->location.id, props->handleTypes);
    if (made != NULL && props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        made->fd = pool_fd(made);
        if (made->fd < 0) {
            pool_drop(made);
            made = NULL;
        }
    }
    sim_unlock();
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pool = made;
    return CUDA_SUCCESS;
}

/* Its allocations outlive it. */
CUresult sim_cuMemPoolDestroy(CUmemoryPool handle)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool;

    sim_lock();
    pool = find_pool(handle);
    if (pool != NULL && !pool->is_default && !pool->destroyed) {
        if (current[pool->dev] == pool) {
            current[pool->dev] = NULL;
        }
        pool->destroyed = true;
        if (pool->live == 0) {
            pool_drop(pool);
        }
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

/* ---- a device's pools ---- */

static CUmemoryPool device_default(CUdevice dev)
{
    if (default_pool[dev] == NULL) {
        default_pool[dev] = pool_new(dev, CU_MEM_HANDLE_TYPE_NONE);
        if (default_pool[dev] != NULL) {
            default_pool[dev]->is_default = true;
        }
    }
    return default_pool[dev];
}

static CUmemoryPool device_current(CUdevice dev)
{
    return current[dev] != NULL ? current[dev] : device_default(dev);
}

static CUresult pool_query(CUmemoryPool *pool, CUdevice dev,
                           CUmemoryPool (*get)(CUdevice dev))
{
    if (pool == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    *pool = get(dev);
    sim_unlock();
    return *pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return pool_query(pool, dev, device_current);
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return pool_query(pool, dev, device_default);
}

CUresult sim_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool handle)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool;

    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    pool = find_pool(handle);
    if (pool != NULL && pool->dev == dev && !pool->imported) {
        current[dev] = pool;
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

/* ---- allocations ---- */

/* The address range that was freed last comes first. */
static CUdeviceptr take_va(CUmemoryPool pool, size_t size)
{
    struct spare **link = &pool->spares, *spare;
    CUdeviceptr va;

    while (*link != NULL && (*link)->size != size) {
        link = &(*link)->next;
    }
    spare = *link;
    if (spare == NULL) {
        return sim_va_reserve(size, 0, 0);
    }
    va = spare->va;
    *link = spare->next;
    sim_free(spare, sizeof(*spare));
    return va;
}

static void give_va(CUmemoryPool pool, CUdeviceptr va, size_t size)
{
    struct spare *spare = sim_zalloc(sizeof(*spare));

    if (spare == NULL) {
        sim_va_release(va, size);
        return;
    }
    spare->va = va;
    spare->size = size;
    spare->next = pool->spares;
    pool->spares = spare;
}

static struct sim_map *pool_map(CUmemoryPool pool, struct sim_phys *phys,
                                size_t size)
{
    CUdeviceptr va = take_va(pool, phys->size);
    struct sim_map *map;

    if (va == 0) {
        return NULL;
    }
    map = sim_whole_new(SIM_KIND_POOL, phys, va, size);
    if (map == NULL) {
        give_va(pool, va, phys->size);
        return NULL;
    }
    map->range->pool = pool;
    pool->live++;
    pool->used += phys->size;
    if (pool->used > pool->used_high) {
        pool->used_high = pool->used;
    }
    return map;
}

static CUresult alloc_locked(CUdeviceptr *ptr, size_t size, CUmemoryPool pool)
{
    CUmemAllocationProp prop;
    CUresult result;
    struct sim_phys *phys;
    struct sim_map *map;

    if (pool == NULL || pool->imported || pool->destroyed) {
        return CUDA_ERROR_INVALID_VALUE;
    }

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = pool->props.handleTypes;
    prop.location = pool->props.location;
    phys = sim_phys_new(SIM_KIND_POOL, sim_round_up(size, SIM_GRANULE), &prop,
                        &result);
    if (phys == NULL) {
        return result;
    }
    map = pool_map(pool, phys, size);
    if (map == NULL) {
        sim_phys_check(phys);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = map->node.start;
    return CUDA_SUCCESS;
}

static CUresult alloc_call(CUdeviceptr *ptr, size_t size, CUmemoryPool handle,
                           bool from_device)
{
    CUresult result;

    if (ptr == NULL || size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = alloc_locked(ptr, size,
                          from_device ? device_current(sim_ctx_current()->dev)
                                      : find_pool(handle));
    sim_unlock();
    return result;
}

/* The memory may be used at once: here no earlier work can still hold it. */
CUresult sim_cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
    return alloc_call(ptr, size, NULL, true);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size,
                                     CUmemoryPool pool, CUstream stream)
{
    return alloc_call(ptr, size, pool, false);
}

CUresult sim_cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size,
                                  CUstream stream)
{
    return sim_cuMemAllocAsync(ptr, size, sim_per_thread_stream(stream));
}

CUresult sim_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t size,
                                          CUmemoryPool pool, CUstream stream)
{
    return sim_cuMemAllocFromPoolAsync(ptr, size, pool,
                                       sim_per_thread_stream(stream));
}

CUresult sim_pool_free(struct sim_range *range)
{
    CUmemoryPool pool = range->pool;
    CUdeviceptr va = range->node.start;
    size_t size = sim_round_up(range->node.size, SIM_GRANULE);

    sim_whole_free(range);
    pool->used -= size;
    give_va(pool, va, size);
    if (--pool->live == 0 && pool->destroyed) {
        pool_drop(pool);
    }
    return CUDA_SUCCESS;
}

static struct sim_range *freeable(CUdeviceptr ptr)
{
    struct sim_range *range = sim_range_at(ptr);

    return range != NULL && range->node.start == ptr &&
                   (range->kind == SIM_KIND_POOL ||
                    range->kind == SIM_KIND_MALLOC)
               ? range
               : NULL;
}

static void free_now(void *arg)
{
    CUdeviceptr ptr = (uintptr_t)arg;
    struct sim_range *range;

    sim_lock();
    range = freeable(ptr);
    if (range != NULL && range->kind == SIM_KIND_POOL) {
        sim_pool_free(range);
    } else if (range != NULL) {
        sim_whole_free(range);
    }
    sim_unlock();
}

CUresult sim_cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    struct sim_range *range;

    sim_reenter("cuMemFreeAsync", ptr, 0);
    sim_lock();
    range = freeable(ptr);
    if (range != NULL && range->freed) {
        range = NULL;
    } else if (range != NULL) {
        range->freed = true;
    }
    sim_unlock();
    return range == NULL
               ? CUDA_ERROR_INVALID_VALUE
               : sim_stream_call(stream, free_now, (void *)(uintptr_t)ptr);
}

CUresult sim_cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    return sim_cuMemFreeAsync(ptr, sim_per_thread_stream(stream));
}

/* ---- settings ---- */

static uint64_t *counter_of(CUmemoryPool pool, CUmemPool_attribute attr)
{
    switch (attr) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

static bool is_flag(CUmemPool_attribute attr)
{
    return attr >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
           attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool handle,
                                   CUmemPool_attribute attr, void *value)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool;

    sim_lock();
    pool = find_pool(handle);
    if (pool != NULL && value != NULL) {
        if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
            memcpy(&pool->threshold, value, sizeof(pool->threshold));
            result = CUDA_SUCCESS;
        } else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH ||
                   attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
            pool->used_high = pool->used;
            result = CUDA_SUCCESS;
        } else if (is_flag(attr)) {
            result = CUDA_SUCCESS; /* how memory is used again: one way here */
        }
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool handle,
                                   CUmemPool_attribute attr, void *value)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool;
    int on = 1;

    sim_lock();
    pool = find_pool(handle);
    if (pool != NULL && value != NULL && is_flag(attr)) {
        memcpy(value, &on, sizeof(on));
        result = CUDA_SUCCESS;
    } else if (pool != NULL && value != NULL &&
               counter_of(pool, attr) != NULL) {
        memcpy(value, counter_of(pool, attr), sizeof(uint64_t));
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

/* Freed memory is given back at once: nothing is left to trim. */
CUresult sim_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    CUmemoryPool pool;

    sim_lock();
    pool = find_pool(handle);
    sim_unlock();
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map,
                                size_t count)
{
    CUresult result = CUDA_SUCCESS;
    CUmemoryPool pool;
    size_t i;

    sim_lock();
    pool = find_pool(handle);
    if (pool == NULL || map == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    for (i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !sim_dev_valid(map[i].location.id)) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else if (map[i].location.id != pool->dev && !sim.config.peer) {
            result = CUDA_ERROR_INVALID_DEVICE; /* assumed */
        } else {
            pool->access[map[i].location.id] = (unsigned char)map[i].flags;
        }
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                CUmemLocation *location)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool;

    sim_lock();
    pool = find_pool(handle);
    if (pool != NULL && flags != NULL && location != NULL &&
        location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
        sim_dev_valid(location->id)) {
        *flags = (CUmemAccess_flags)pool->access[location->id];
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

/* ---- sharing ---- */

static CUresult export_fabric(void *out, CUmemoryPool handle)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool;
    struct sim_wire wire;

    sim_lock();
    pool = find_pool(handle);
    if (pool != NULL && !pool->imported &&
        (pool->props.handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
        memset(&wire, 0, sizeof(wire));
        wire.magic = SIM_WIRE_MAGIC;
        wire.kind = POOL_LABEL;
        wire.serial = pool->id;
        wire.device = (uint32_t)sim.config.physical[pool->dev];
        wire.fabric = SIM_WIRE_FABRIC;
        memcpy(out, &wire, sizeof(wire));
        pool->exported |= sim_fabric_shares();
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    /* The pool was made, its memory can be used; only this fails. */
    return result == CUDA_SUCCESS && !sim_fabric_shares()
               ? CUDA_ERROR_NOT_PERMITTED
               : result;
}

CUresult sim_cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags)
{
    CUmemoryPool pool;
    int fd = -1;

    if (out == NULL || flags != 0 ||
        (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
         type != CU_MEM_HANDLE_TYPE_FABRIC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        return export_fabric(out, handle);
    }
    sim_lock();
    pool = find_pool(handle);
    if (pool != NULL && !pool->imported && pool->fd >= 0 &&
        (pool->props.handleTypes & type) != 0) {
        fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
        pool->exported |= fd >= 0;
    }
    sim_unlock();
    if (fd < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

static CUmemoryPool import_locked(const struct sim_label *label)
{
    CUmemoryPool pool;
    CUdevice dev;

    for (dev = 0; dev < sim.config.devices; dev++) {
        if (sim.config.physical[dev] == (int)label->device) {
            pool = pool_new(dev, 0);
            if (pool != NULL) {
                pool->id = label->serial;
                pool->imported = true;
            }
            return pool;
        }
    }
    return NULL;
}

static bool read_pool(const void *handle, CUmemAllocationHandleType type,
                      struct sim_label *label)
{
    struct sim_wire wire;

    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return sim_read_label((int)(intptr_t)handle, label) &&
               label->kind == POOL_LABEL && label->node == sim.config.node;
    }
    if (type != CU_MEM_HANDLE_TYPE_FABRIC || handle == NULL ||
        !sim_fabric_shares()) {
        return false;
    }
    memcpy(&wire, handle, sizeof(wire));
    memset(label, 0, sizeof(*label));
    label->serial = wire.serial;
    label->device = wire.device;
    return wire.magic == SIM_WIRE_MAGIC && wire.kind == POOL_LABEL &&
           wire.fabric != 0;
}

CUresult sim_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool,
                                                void *handle,
                                                CUmemAllocationHandleType type,
                                                unsigned long long flags)
{
    struct sim_label label;
    CUmemoryPool made;

    if (pool == NULL || flags != 0 || !read_pool(handle, type, &label)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    made = import_locked(&label);
    sim_unlock();
    if (made == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *pool = made;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolExportPointer(CUmemPoolPtrExportData *out,
                                    CUdeviceptr ptr)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct sim_wire wire;
    struct sim_map *map;

    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    map = sim_visible_map(ptr);
    if (map != NULL && map->range->kind == SIM_KIND_POOL &&
        map->node.start == ptr && !map->range->pool->imported &&
        map->range->pool->fd >= 0 && map->range->pool->exported) {
        if (map->range->pool->props.handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) {
            sim_wire_fill_fabric(&wire, map->phys);
        } else {
            sim_wire_fill(&wire, map->phys);
        }
        wire.serial = map->range->pool->id;
        wire.buffer_id = map->node.size;
        memcpy(out, &wire, sizeof(wire));
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

static struct sim_range *imported_already(CUmemoryPool pool, uint64_t inode)
{
    struct sim_node *node;
    struct sim_map *map;
    uint64_t at = 0;

    while ((node = sim_tree_from(&sim.maps, at)) != NULL) {
        map = (struct sim_map *)node;
        at = node->start + node->size;
        if (map->range->pool == pool && map->phys->inode == inode) {
            return map->range;
        }
    }
    return NULL;
}

static CUresult import_pointer(CUdeviceptr *ptr, CUmemoryPool pool,
                               const struct sim_wire *wire)
{
    struct sim_range *range;
    struct sim_phys *phys;
    struct sim_map *map;
    CUresult result;

    if (pool == NULL || !pool->imported || wire->serial != pool->id ||
        wire->buffer_id == 0 || wire->buffer_id > wire->size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    range = imported_already(pool, wire->inode);
    if (range != NULL) {
        *ptr = range->node.start;
        return CUDA_SUCCESS;
    }
    phys = sim_wire_open(wire, SIM_KIND_POOL, &result);
    if (phys == NULL) {
        return result;
    }
    map = pool_map(pool, phys, wire->buffer_id);
    if (map == NULL) {
        sim_phys_check(phys);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = map->node.start;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool handle,
                                    CUmemPoolPtrExportData *data)
{
    CUresult result;
    struct sim_wire wire;

    if (ptr == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(&wire, data, sizeof(wire));
    sim_lock();
    result = import_pointer(ptr, find_pool(handle), &wire);
    sim_unlock();
    return result;
}
