/* Virtual memory management: cuMemAddressReserve to cuMemRelease. */
#include "internal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool granular(uint64_t n)
{
    return n % SIM_GRANULE == 0;
}

/* ---- reservations ---- */

CUresult sim_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t align,
                                 CUdeviceptr addr, unsigned long long flags)
{
    CUdeviceptr va;
    struct sim_range *range;

    if (ptr == NULL || size == 0 || !granular(size) || flags != 0 ||
        (align & (align - 1)) != 0 || !granular(addr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    va = sim_va_reserve(size, align, addr);
    if (va == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock();
    range = sim_range_new(SIM_KIND_VMM, va, size, true);
    sim_unlock();
    if (range == NULL) {
        sim_va_release(va, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = va;
    return CUDA_SUCCESS;
}

static bool anything_mapped(CUdeviceptr ptr, size_t size)
{
    struct sim_node *node = sim_tree_from(&sim.maps, ptr);

    return node != NULL && node->start < ptr + size;
}

CUresult sim_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct sim_range *range;

    sim_lock();
    range = sim_range_at(ptr);
    if (range != NULL && range->kind == SIM_KIND_VMM &&
        range->node.start == ptr && range->node.size == size &&
        !anything_mapped(ptr, size)) {
        sim_range_free(range);
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

/* ---- handles ---- */

/* Handles are few hundred to some ten thousand: a tree keyed by their value. */
static struct sim_tree handles;

struct sim_handle {
    struct sim_node node;
    struct sim_phys *phys;
};

static struct sim_phys *handle_phys(CUmemGenericAllocationHandle handle)
{
    struct sim_handle *found;

    found = (struct sim_handle *)sim_tree_find(&handles, handle);
    return found == NULL || found->node.start != handle ? NULL : found->phys;
}

static bool handle_publish(struct sim_phys *phys)
{
    struct sim_handle *entry = sim_zalloc(sizeof(*entry));

    if (entry == NULL) {
        return false;
    }
    entry->node.start = phys->handle;
    entry->node.size = 1;
    entry->phys = phys;
    phys->refs = 1;
    sim_tree_insert(&handles, &entry->node);
    return true;
}

static void handle_withdraw(CUmemGenericAllocationHandle handle)
{
    struct sim_node *node = sim_tree_find(&handles, handle);

    sim_tree_remove(&handles, node);
    sim_free(node, sizeof(struct sim_handle));
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    int types = prop->requestedHandleTypes;
    int refused = CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT;

    /* Bits that it does not know are let through. */
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || (types & refused) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch ((int)prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_dev_valid(prop->location.id) ? CUDA_SUCCESS
                                                : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return prop->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult check_fabric(const CUmemAllocationProp *prop)
{
    if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) == 0 ||
        sim_fabric_creates()) {
        return CUDA_SUCCESS;
    }
    return sim.config.fabric == SIM_FABRIC_OFF ? CUDA_ERROR_NOT_SUPPORTED
                                               : CUDA_ERROR_NOT_PERMITTED;
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                         const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
    CUresult result;
    struct sim_phys *phys;

    if (handle == NULL || prop == NULL || size == 0 || !granular(size) ||
        flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = check_prop(prop);
    if (result == CUDA_SUCCESS) {
        result = check_fabric(prop);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    phys = sim_phys_new(SIM_KIND_VMM, size, prop, &result);
    if (phys != NULL && !handle_publish(phys)) {
        sim_phys_check(phys);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (phys != NULL) {
        *handle = phys->handle;
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct sim_phys *phys;

    sim_lock();
    phys = handle_phys(handle);
    if (phys != NULL && --phys->refs == 0) {
        handle_withdraw(handle);
        sim_phys_check(phys);
    }
    sim_unlock();
    if (phys == NULL && handle != 0 && !sim_handle_was_given(handle)) {
        sim_crash("cuMemRelease of a value that never was a handle");
    }
    return phys == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                         void *addr)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct sim_map *map;

    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    map = sim_map_at((uintptr_t)addr);
    if (map != NULL && map->range->kind == SIM_KIND_VMM) {
        result = CUDA_SUCCESS;
        if (map->phys->refs > 0) {
            map->phys->refs++;
        } else if (!handle_publish(map->phys)) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        *handle = map->phys->handle;
    }
    sim_unlock();
    return result;
}

CUresult
sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                           CUmemGenericAllocationHandle handle)
{
    struct sim_phys *phys;

    if (prop == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    phys = handle_phys(handle);
    if (phys != NULL) {
        *prop = phys->prop;
    }
    sim_unlock();
    return phys == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult
sim_cuMemGetAllocationGranularity(size_t *granularity,
                                  const CUmemAllocationProp *prop,
                                  CUmemAllocationGranularity_flags option)
{
    if (granularity == NULL || prop == NULL ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
         option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) ||
        check_prop(prop) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = SIM_GRANULE;
    return CUDA_SUCCESS;
}

/* ---- sharing ---- */

static CUresult export_locked(void *out, struct sim_phys *phys,
                              CUmemAllocationHandleType type)
{
    struct sim_wire wire;
    int fd;

    if (phys == NULL || phys->imported ||
        (phys->prop.requestedHandleTypes & type) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        if (!sim_fabric_shares()) {
            return CUDA_ERROR_NOT_PERMITTED;
        }
        memset(out, 0, sizeof(CUmemFabricHandle));
        sim_wire_fill_fabric(&wire, phys);
        memcpy(out, &wire, sizeof(wire));
        return CUDA_SUCCESS;
    }
    fd = fcntl(phys->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memcpy(out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

CUresult sim_cuMemExportToShareableHandle(void *out,
                                          CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags)
{
    CUresult result;

    if (out == NULL || flags != 0 ||
        (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
         type != CU_MEM_HANDLE_TYPE_FABRIC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = export_locked(out, handle_phys(handle), type);
    sim_unlock();
    return result;
}

static struct sim_phys *import_fd(int fd, CUresult *result)
{
    struct sim_label label;
    int mine;

    *result = fd == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNKNOWN;
    if (!sim_read_label(fd, &label) || label.kind != SIM_KIND_VMM ||
        label.node != sim.config.node) {
        return NULL;
    }
    mine = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (mine < 0) {
        *result = CUDA_ERROR_OPERATING_SYSTEM;
        return NULL;
    }
    return sim_phys_import(mine, SIM_KIND_VMM, result);
}

static struct sim_phys *import_fabric(const void *os_handle, CUresult *result)
{
    struct sim_wire wire;

    if (!sim_fabric_shares()) {
        *result = CUDA_ERROR_NOT_PERMITTED;
        return NULL;
    }
    memcpy(&wire, os_handle, sizeof(wire));
    if (wire.fabric == SIM_WIRE_LOCAL) {
        *result = CUDA_ERROR_INVALID_VALUE;
        return NULL;
    }
    return sim_wire_open(&wire, SIM_KIND_VMM, result);
}

CUresult
sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                   void *os_handle,
                                   CUmemAllocationHandleType type)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct sim_phys *phys = NULL;

    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        phys = import_fd((int)(intptr_t)os_handle, &result);
    } else if (type == CU_MEM_HANDLE_TYPE_FABRIC && os_handle != NULL) {
        phys = import_fabric(os_handle, &result);
    }
    if (phys != NULL && !handle_publish(phys)) {
        sim_phys_check(phys);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (phys != NULL) {
        *handle = phys->handle;
    }
    sim_unlock();
    return result;
}

/* ---- mapping ---- */

static CUresult map_locked(CUdeviceptr ptr, size_t size, size_t offset,
                           CUmemGenericAllocationHandle handle)
{
    struct sim_phys *phys = handle_phys(handle);
    struct sim_range *range = sim_range_at(ptr);

    if (phys == NULL || range == NULL || range->kind != SIM_KIND_VMM ||
        size > range->node.start + range->node.size - ptr ||
        anything_mapped(ptr, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (offset != 0 || size != phys->size) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return sim_map_new(range, ptr, size, phys) == NULL
               ? CUDA_ERROR_OUT_OF_MEMORY
               : CUDA_SUCCESS;
}

CUresult sim_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
    CUresult result;

    if (size == 0 || !granular(ptr) || !granular(size) || !granular(offset) ||
        flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (handle != 0 && !sim_handle_was_given(handle)) {
        sim_crash("cuMemMap of a value that never was a handle");
    }
    sim_lock();
    result = map_locked(ptr, size, offset, handle);
    sim_unlock();
    if (result == CUDA_SUCCESS) {
        sim_reenter("cuMemMap", ptr, size);
    }
    return result;
}

static bool on_host(const struct sim_map *map)
{
    return map->phys->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Memory that lies on the host can be made readable for the CPU, at its own
 * address. */
static void cpu_view(struct sim_map *map, bool on)
{
    void *at = (void *)(uintptr_t)map->node.start;

    if (on) {
        sim_sys_mmap(at, map->node.size, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, map->phys->fd, 0);
    } else if (map->host_access != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        sim_sys_mmap(at, map->node.size, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                     -1, 0);
    }
}

/* Whether no mapping lies in the range in part, and only VMM ones at all.
 * Holes do not matter to cuMemUnmap. */
static bool can_unmap(CUdeviceptr ptr, size_t size)
{
    struct sim_range *range = sim_range_at(ptr);
    struct sim_node *node = sim_tree_from(&sim.maps, ptr);

    if (range == NULL || range->kind != SIM_KIND_VMM) {
        return false;
    }
    while (node != NULL && node->start < ptr + size) {
        if (((struct sim_map *)node)->range->kind != SIM_KIND_VMM ||
            node->start < ptr || node->start + node->size > ptr + size) {
            return false;
        }
        node = sim_tree_from(&sim.maps, node->start + node->size);
    }
    return true;
}

/* Whether whole VMM mappings fill the range without a hole. */
static bool whole_mappings(CUdeviceptr ptr, size_t size)
{
    CUdeviceptr at = ptr;
    struct sim_map *map;

    while (at < ptr + size) {
        map = sim_map_at(at);
        if (map == NULL || map->node.start != at ||
            map->range->kind != SIM_KIND_VMM) {
            return false;
        }
        at += map->node.size;
    }
    return size > 0 && at == ptr + size;
}

CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct sim_node *node;

    if (size == 0 || !granular(ptr) || !granular(size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_reenter("cuMemUnmap", ptr, size);
    sim_lock();
    if (can_unmap(ptr, size)) {
        while ((node = sim_tree_from(&sim.maps, ptr)) != NULL &&
               node->start < ptr + size) {
            cpu_view((struct sim_map *)node, false);
            sim_map_free((struct sim_map *)node);
        }
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

static bool desc_valid(const CUmemAccessDesc *desc)
{
    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return false;
    }
    return desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
           sim_dev_valid(desc->location.id);
}

/* Whether a device may be given access to this memory (assumed). */
static bool reachable(const struct sim_map *map, int dev)
{
    return sim.config.peer || on_host(map) ||
           map->phys->prop.location.id == dev;
}

static CUresult check_access(CUdeviceptr ptr, size_t size,
                             const CUmemAccessDesc *desc, size_t count)
{
    CUdeviceptr at;
    struct sim_map *map;
    size_t i;

    if (!whole_mappings(ptr, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (at = ptr; at < ptr + size; at += map->node.size) {
        map = sim_map_at(at);
        for (i = 0; i < count; i++) {
            if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
                !on_host(map)) {
                return CUDA_ERROR_NOT_SUPPORTED;
            }
            if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
                !reachable(map, desc[i].location.id)) {
                return CUDA_ERROR_INVALID_DEVICE; /* assumed */
            }
        }
    }
    return CUDA_SUCCESS;
}

static void apply_access(CUdeviceptr ptr, size_t size,
                         const CUmemAccessDesc *desc, size_t count)
{
    CUdeviceptr at;
    struct sim_map *map;
    size_t i;

    for (at = ptr; at < ptr + size; at += map->node.size) {
        map = sim_map_at(at);
        for (i = 0; i < count; i++) {
            if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
                map->access[desc[i].location.id] = (unsigned char)desc[i].flags;
            } else {
                cpu_view(map, desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
                map->host_access = (unsigned char)desc[i].flags;
            }
        }
    }
}

CUresult sim_cuMemSetAccess(CUdeviceptr ptr, size_t size,
                            const CUmemAccessDesc *desc, size_t count)
{
    CUresult result;
    size_t i;

    if (desc == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (i = 0; i < count; i++) {
        if (!desc_valid(&desc[i])) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    sim_lock();
    result = check_access(ptr, size, desc, count);
    if (result == CUDA_SUCCESS) {
        apply_access(ptr, size, desc, count);
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemGetAccess(unsigned long long *flags,
                            const CUmemLocation *location, CUdeviceptr ptr)
{
    struct sim_map *map;
    bool device;

    if (flags == NULL || location == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && !sim_dev_valid(location->id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    map = sim_visible_map(ptr);
    *flags = 0;
    if (map != NULL) {
        *flags = device ? map->access[location->id] : map->host_access;
    }
    sim_unlock();
    return map == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- dmabuf ---- */

/* Whether mappings fill the range; whole ones are not needed here. */
static bool mapped_through(CUdeviceptr ptr, size_t size)
{
    CUdeviceptr at = ptr;
    struct sim_map *map;

    while (at < ptr + size) {
        map = sim_visible_map(at);
        if (map == NULL || map->range->kind == SIM_KIND_HOST ||
            map->range->kind == SIM_KIND_MANAGED || on_host(map)) {
            return false;
        }
        at = map->node.start + map->node.size;
    }
    return size > 0;
}

/* The descriptor has the size of the range and no more: nobody here can map
 * a dmabuf. */
static int dmabuf_fd(size_t size)
{
    int fd = memfd_create("vmmlane-sim-dmabuf", MFD_CLOEXEC);

    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

CUresult sim_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr,
                                           size_t size,
                                           CUmemRangeHandleType type,
                                           unsigned long long flags)
{
    bool mapped;
    int fd;

    if (handle == NULL || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
        size == 0 || ptr % SIM_PAGE != 0 || size % SIM_PAGE != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags == CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    mapped = mapped_through(ptr, size);
    sim_unlock();
    if (!mapped) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    fd = dmabuf_fd(size);
    if (fd < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memcpy(handle, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}
