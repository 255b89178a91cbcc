/* Handles of 64 bytes: legacy IPC, fabric, pool pointers. */
#include "internal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void sim_wire_fill(struct sim_wire *wire, const struct sim_phys *phys)
{
    memset(wire, 0, sizeof(*wire));
    wire->magic = SIM_WIRE_MAGIC;
    wire->kind = phys->kind;
    wire->pid = (uint32_t)getpid();
    wire->fd = (uint32_t)phys->fd;
    wire->node = sim.config.node;
    wire->inode = phys->inode;
    wire->size = phys->size;
    wire->serial = phys->block_id;
    wire->device = phys->label.device;
}

void sim_wire_fill_fabric(struct sim_wire *wire, const struct sim_phys *phys)
{
    sim_wire_fill(wire, phys);
    wire->fabric = SIM_WIRE_FABRIC;
    if (phys->fabric_name != 0) {
        wire->fabric = SIM_WIRE_NAMED;
        wire->pid = (uint32_t)phys->fabric_name;
        wire->fd = (uint32_t)(phys->fabric_name >> 32);
    }
}

/* What a handle names that came over the fabric: memory of whichever node. */
static int open_named(const struct sim_wire *wire)
{
    char path[sizeof(sim.config.fabric_dir) + 32];
    struct stat st;
    int fd;

    if (sim.config.fabric_dir[0] == '\0') {
        return -1;
    }
    sim_fabric_path(wire->pid | (uint64_t)wire->fd << 32, path, sizeof(path));
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_ino != wire->inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

struct sim_phys *sim_wire_open(const struct sim_wire *wire, enum sim_kind kind,
                               CUresult *result)
{
    int fd;

    *result = CUDA_ERROR_INVALID_VALUE;
    if (wire->magic != SIM_WIRE_MAGIC || wire->kind != (uint32_t)kind ||
        (!wire->fabric && wire->node != sim.config.node)) {
        return NULL;
    }
    /* Less right than pidfd_getfd needs: a refused ptrace stays visible. */
    fd = wire->fabric == SIM_WIRE_NAMED
             ? open_named(wire)
             : sim_open_peer_fd(wire->pid, wire->fd, wire->inode);
    return fd < 0 ? NULL : sim_phys_import(fd, kind, result);
}

/* ---- legacy IPC ---- */

CUresult sim_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    struct sim_wire wire;
    struct sim_map *map;

    if (handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    map = sim_visible_map(ptr);
    if (map != NULL && map->range->kind != SIM_KIND_MALLOC) {
        map = NULL;
    }
    if (map != NULL) {
        sim_wire_fill(&wire, map->phys);
        wire.buffer_id = map->node.size;
    }
    sim_unlock();
    if (map == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(handle, &wire, sizeof(wire));
    return CUDA_SUCCESS;
}

static struct sim_range *opened(const struct sim_wire *wire)
{
    struct sim_node *node;
    struct sim_map *map;
    uint64_t at = 0;

    while ((node = sim_tree_from(&sim.maps, at)) != NULL) {
        map = (struct sim_map *)node;
        at = node->start + node->size;
        if (map->range->kind == SIM_KIND_IPC &&
            map->phys->inode == wire->inode &&
            map->range->ctx == sim_ctx_current()) {
            return map->range;
        }
    }
    return NULL;
}

static CUresult open_locked(CUdeviceptr *ptr, const struct sim_wire *wire)
{
    struct sim_range *range = opened(wire);
    CUresult result;
    struct sim_phys *phys;
    struct sim_map *map;

    if (range != NULL) {
        range->opens++;
        *ptr = range->node.start;
        return CUDA_SUCCESS;
    }
    phys = sim_wire_open(wire, SIM_KIND_MALLOC, &result);
    if (phys == NULL) {
        return result;
    }
    map = sim_whole_new(SIM_KIND_IPC, phys, 0, wire->buffer_id);
    if (map == NULL) {
        sim_phys_check(phys);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    map->range->ctx = sim_ctx_current();
    /* It counts as the opener's device's: measured with two GPUs. */
    phys->prop.location.id = sim_ctx_current()->dev;
    map->range->opens = 1;
    *ptr = map->node.start;
    return CUDA_SUCCESS;
}

CUresult sim_cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle,
                                   unsigned int flags)
{
    CUresult result;
    struct sim_wire wire;

    memcpy(&wire, &handle, sizeof(wire));
    if (ptr == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
        wire.magic != SIM_WIRE_MAGIC || wire.kind != SIM_KIND_MALLOC ||
        wire.fabric || wire.buffer_id == 0 || wire.buffer_id > wire.size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (wire.pid == (uint32_t)getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT; /* its own process's memory */
    }
    sim_lock();
    result = open_locked(ptr, &wire);
    sim_unlock();
    return result;
}

CUresult sim_cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle,
                                unsigned int flags)
{
    return sim_cuIpcOpenMemHandle_v2(ptr, handle, flags);
}

CUresult sim_cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct sim_range *range;

    sim_lock();
    range = sim_range_at(ptr);
    if (range != NULL && range->kind == SIM_KIND_IPC &&
        range->node.start == ptr) {
        if (--range->opens == 0) {
            sim_whole_free(range);
        }
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}
