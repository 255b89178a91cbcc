/*
 * Physical memory, address ranges, mappings.
 *
 * Physical memory is a memfd with one page behind its data, the label, which
 * tells an importer what it is. The device address itself is only reserved
 * (PROT_NONE): UCM takes readable mappings for host memory. The bytes are
 * reached through an alias elsewhere.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the driver's own descriptors lie, out of the way of the program's. */
#define FD_FLOOR 2048

struct sim_state sim = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .progress = PTHREAD_COND_INITIALIZER,
    .next_buffer_id = 1,
    .next_block_id = 1,
    .next_ctx_id = 1,
    .next_stream_id = 1,
};

void sim_lock(void)
{
    pthread_mutex_lock(&sim.lock);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&sim.lock);
}

size_t sim_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

struct sim_range *sim_range_at(CUdeviceptr ptr)
{
    return (struct sim_range *)sim_tree_find(&sim.ranges, ptr);
}

struct sim_map *sim_map_at(CUdeviceptr ptr)
{
    return (struct sim_map *)sim_tree_find(&sim.maps, ptr);
}

struct sim_map *sim_visible_map(CUdeviceptr ptr)
{
    struct sim_map *map = sim_map_at(ptr);

    return map == NULL || map->range->freed ? NULL : map;
}

bool sim_map_allows(const struct sim_map *map, CUdevice dev, bool write)
{
    unsigned need = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                          : CU_MEM_ACCESS_FLAGS_PROT_READ;

    return (map->access[dev] & need) == need;
}

/* ---- handles: small numbers, the last one freed is the next one given ---- */

#define HANDLE_BASE 0x5100000000ull

static uint64_t *free_handles;
static size_t free_count, free_room;
static uint64_t next_handle = HANDLE_BASE;

bool sim_handle_was_given(uint64_t handle)
{
    return handle > HANDLE_BASE &&
           handle <= __atomic_load_n(&next_handle, __ATOMIC_RELAXED) &&
           handle % 16 == 0;
}

static uint64_t handle_new(void)
{
    if (free_count > 0) {
        return free_handles[--free_count];
    }
    /* Looked at without the lock, too. */
    return __atomic_add_fetch(&next_handle, 0x10, __ATOMIC_RELAXED);
}

static void handle_free(uint64_t handle)
{
    size_t room = free_room == 0 ? 256 : free_room * 2;
    uint64_t *grown;

    if (free_count == free_room) {
        grown = sim_zalloc(room * sizeof(*grown));
        if (grown == NULL) {
            return; /* the value is never used again, which harms nobody */
        }
        if (free_room > 0) {
            memcpy(grown, free_handles, free_room * sizeof(*grown));
            sim_free(free_handles, free_room * sizeof(*grown));
        }
        free_handles = grown;
        free_room = room;
    }
    free_handles[free_count++] = handle;
}

/* ---- physical memory ---- */

int sim_raise_fd(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FD_FLOOR);

    if (high < 0) {
        return fd; /* a low limit on descriptors */
    }
    close(fd);
    return high;
}

void sim_fabric_path(uint64_t name, char *path, size_t size)
{
    snprintf(path, size, "%s/%016llx", sim.config.fabric_dir,
             (unsigned long long)name);
}

/* Memory that the fabric can reach, where a folder stands for it: a file in
 * that folder, as long as this process has the memory. */
static int fabric_file(struct sim_phys *phys)
{
    char path[sizeof(sim.config.fabric_dir) + 32];
    uint64_t name;
    int fd;

    if (getrandom(&name, sizeof(name), 0) != (ssize_t)sizeof(name) ||
        name == 0) {
        return -1;
    }
    sim_fabric_path(name, path, sizeof(path));
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        phys->fabric_name = name;
    }
    return fd;
}

static bool is_on_fabric(const struct sim_phys *phys)
{
    return sim_fabric_creates() && sim.config.fabric_dir[0] != '\0' &&
           (phys->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
}

static int plain_memfd(const struct sim_phys *phys)
{
    char name[128];

    /* account.c reads domain, device, node and size back from /proc. */
    snprintf(name, sizeof(name), "vmmlane-sim:%s:%u:%u:%d:%zu",
             sim.config.domain, phys->label.device, phys->label.node,
             (int)phys->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE,
             phys->size);
    return memfd_create(name, MFD_CLOEXEC);
}

static int file_for(struct sim_phys *phys)
{
    int fd = is_on_fabric(phys) ? fabric_file(phys) : plain_memfd(phys);

    if (fd < 0) {
        return -1;
    }
    if (ftruncate(fd, (off_t)(phys->size + SIM_PAGE)) != 0) {
        close(fd);
        return -1;
    }
    return sim_raise_fd(fd);
}

static bool phys_alias(struct sim_phys *phys)
{
    phys->host = sim_sys_mmap(NULL, phys->size, PROT_READ | PROT_WRITE,
                              MAP_SHARED, phys->fd, 0);
    return phys->host != NULL;
}

static bool phys_inode(struct sim_phys *phys)
{
    struct stat st;

    if (fstat(phys->fd, &st) != 0) {
        return false;
    }
    phys->inode = st.st_ino;
    return true;
}

static void phys_drop(struct sim_phys *phys)
{
    char path[sizeof(sim.config.fabric_dir) + 32];

    if (phys->host != NULL && phys->kind != SIM_KIND_HOST) {
        sim_sys_munmap(phys->host, phys->size);
    }
    if (phys->fd >= 0) {
        close(phys->fd);
    }
    /* Nobody can import it any more; who has goes on using it. */
    if (phys->fabric_name != 0) {
        sim_fabric_path(phys->fabric_name, path, sizeof(path));
        unlink(path);
    }
    if (phys->handle != 0) {
        handle_free(phys->handle);
    }
    sim_free(phys, sizeof(*phys));
}

static void label_fill(struct sim_phys *phys)
{
    struct sim_label *label = &phys->label;
    int dev = phys->prop.location.id;

    label->magic = SIM_LABEL_MAGIC;
    label->size = phys->size;
    label->serial = phys->block_id;
    label->kind = phys->kind;
    if (phys->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        label->device = (uint32_t)sim.config.physical[dev];
    }
    label->node = sim.config.node;
    label->handle_types = phys->prop.requestedHandleTypes;
    label->location_type = phys->prop.location.type;
    label->location_id = phys->prop.location.id;
    label->rdma_capable = phys->prop.allocFlags.gpuDirectRDMACapable;
    label->compression = phys->prop.allocFlags.compressionType;
    label->pid = (uint32_t)getpid();
}

struct sim_phys *sim_phys_new(enum sim_kind kind, size_t size,
                              const CUmemAllocationProp *prop, CUresult *result)
{
    struct sim_phys *phys;
    bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (on_device &&
        !sim_vram_has(sim.config.physical[prop->location.id], size)) {
        return NULL;
    }
    phys = sim_zalloc(sizeof(*phys));
    if (phys == NULL) {
        return NULL;
    }
    phys->kind = kind;
    phys->size = size;
    phys->prop = *prop;
    phys->block_id = sim.next_block_id++;
    label_fill(phys);
    phys->fd = file_for(phys);
    phys->label.owner_fd = (uint32_t)phys->fd;
    if (phys->fd < 0 || !phys_inode(phys) || !phys_alias(phys) ||
        pwrite(phys->fd, &phys->label, sizeof(phys->label), (off_t)size) !=
            (ssize_t)sizeof(phys->label)) {
        phys_drop(phys);
        return NULL;
    }
    if (kind == SIM_KIND_VMM) {
        phys->handle = handle_new();
    }
    *result = CUDA_SUCCESS;
    return phys;
}

bool sim_read_label(int fd, struct sim_label *label)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           st.st_size > (off_t)SIM_PAGE &&
           pread(fd, label, sizeof(*label), st.st_size - (off_t)SIM_PAGE) ==
               (ssize_t)sizeof(*label) &&
           label->magic == SIM_LABEL_MAGIC &&
           label->size + SIM_PAGE == (uint64_t)st.st_size;
}

static int visible_number(uint32_t physical)
{
    int i;

    for (i = 0; i < sim.config.devices; i++) {
        if (sim.config.physical[i] == (int)physical) {
            return i;
        }
    }
    return CU_DEVICE_INVALID; /* hidden: it can be used all the same */
}

static void prop_from_label(CUmemAllocationProp *prop,
                            const struct sim_label *label, int dev)
{
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location.type = label->location_type;
    prop->location.id = label->location_type == CU_MEM_LOCATION_TYPE_DEVICE
                            ? dev
                            : label->location_id;
    prop->allocFlags.gpuDirectRDMACapable = label->rdma_capable;
    prop->allocFlags.compressionType = label->compression;
}

struct sim_phys *sim_phys_import(int fd, enum sim_kind kind, CUresult *result)
{
    struct sim_phys *phys = sim_zalloc(sizeof(*phys));
    int dev;

    *result = CUDA_ERROR_UNKNOWN;
    if (phys == NULL) {
        close(fd);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    phys->fd = sim_raise_fd(fd);
    phys->kind = kind;
    phys->imported = true;
    if (!sim_read_label(phys->fd, &phys->label)) {
        phys_drop(phys);
        return NULL;
    }
    dev = visible_number(phys->label.device);
    phys->size = phys->label.size;
    prop_from_label(&phys->prop, &phys->label, dev);
    if (!phys_inode(phys) || !phys_alias(phys)) {
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        phys_drop(phys);
        return NULL;
    }
    phys->block_id = sim.next_block_id++;
    if (kind == SIM_KIND_VMM) {
        phys->handle = handle_new();
    }
    *result = CUDA_SUCCESS;
    return phys;
}

int sim_open_peer_fd(uint32_t pid, uint32_t fd, uint64_t inode)
{
    char path[64];
    struct stat st;
    int mine;

    snprintf(path, sizeof(path), "/proc/%u/fd/%u", pid, fd);
    mine = open(path, O_RDWR | O_CLOEXEC);
    if (mine < 0) {
        return -1;
    }
    if (fstat(mine, &st) != 0 || st.st_ino != inode) {
        close(mine);
        return -1;
    }
    return mine;
}

void sim_phys_check(struct sim_phys *phys)
{
    if (phys->refs == 0 && phys->maps == 0 && phys->pins == 0) {
        phys_drop(phys);
    }
}

/* ---- address space ---- */

static CUdeviceptr reserve_at(CUdeviceptr hint, size_t size)
{
    void *at;

    /* A kernel without MAP_FIXED_NOREPLACE takes it as a hint. */
    at = sim_sys_mmap((void *)(uintptr_t)hint, size, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
                          MAP_FIXED_NOREPLACE,
                      -1, 0);
    if (at != NULL && (uintptr_t)at != hint) {
        sim_sys_munmap(at, size);
        at = NULL;
    }
    return (uintptr_t)at;
}

/* As the real driver's, the addresses lie where the kernel places nothing of
 * its own accord: what is freed stays free until it is reserved again. The
 * thread sanitizer leaves an application the second area only. */
static const struct area {
    CUdeviceptr start, end;
} areas[] = {
    {0x110000000000, 0x180000000000},
    {0x004000000000, 0x008000000000},
};

/* Another place in each process, as address space randomisation gives it. */
static CUdeviceptr first_place(const struct area *area)
{
    return area->start +
           (CUdeviceptr)(getpid() % 64) * ((area->end - area->start) / 128);
}

static CUdeviceptr reserve_in(const struct area *area, CUdeviceptr *next,
                              size_t size, size_t align)
{
    unsigned tries;
    CUdeviceptr at;

    for (tries = 0; tries < 64; tries++) {
        CUdeviceptr place = sim_round_up(*next, align);

        if (place > area->end || area->end - place < size) {
            *next = area->start;
            continue;
        }
        at = reserve_at(place, size);
        *next = place + size;
        if (at != 0) {
            return at;
        }
    }
    return 0;
}

static CUdeviceptr reserve_in_areas(size_t size, size_t align)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static CUdeviceptr next[2];
    static pid_t owner;
    CUdeviceptr at = 0;
    unsigned i;

    pthread_mutex_lock(&lock);
    for (i = 0; i < 2 && at == 0; i++) {
        if (owner != getpid()) {
            next[0] = first_place(&areas[0]);
            next[1] = first_place(&areas[1]);
            owner = getpid();
        }
        at = reserve_in(&areas[i], &next[i], size, align);
    }
    pthread_mutex_unlock(&lock);
    return at;
}

static CUdeviceptr reserve_anywhere(size_t size, size_t slack)
{
    uintptr_t raw, at;

    raw = (uintptr_t)sim_sys_mmap(NULL, size + slack, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                  -1, 0);
    if (raw == 0) {
        return 0;
    }
    at = sim_round_up(raw, slack);
    if (at > raw) {
        sim_sys_munmap((void *)raw, at - raw);
    }
    if (raw + slack > at) {
        sim_sys_munmap((void *)(at + size), raw + slack - at);
    }
    return at;
}

CUdeviceptr sim_va_reserve(size_t size, size_t align, CUdeviceptr hint)
{
    size_t slack = align > SIM_GRANULE ? align : SIM_GRANULE;
    CUdeviceptr at;

    if (size + slack < size) {
        return 0;
    }
    if (hint != 0 && hint % slack == 0) {
        at = reserve_at(hint, size);
        if (at != 0) {
            return at;
        }
    }
    at = reserve_in_areas(size, slack);
    return at != 0 ? at : reserve_anywhere(size, slack);
}

void sim_va_release(CUdeviceptr va, size_t size)
{
    sim_sys_munmap((void *)(uintptr_t)va, size);
}

/* ---- ranges and mappings ---- */

struct sim_range *sim_range_new(enum sim_kind kind, CUdeviceptr va, size_t size,
                                bool owns_va)
{
    struct sim_range *range = sim_zalloc(sizeof(*range));

    if (range == NULL) {
        return NULL;
    }
    range->node.start = va;
    range->node.size = size;
    range->kind = kind;
    range->owns_va = owns_va;
    sim_tree_insert(&sim.ranges, &range->node);
    return range;
}

void sim_range_free(struct sim_range *range)
{
    sim_tree_remove(&sim.ranges, &range->node);
    if (range->owns_va) {
        sim_va_release(range->node.start,
                       sim_round_up(range->node.size, SIM_GRANULE));
    }
    sim_free(range, sizeof(*range));
}

struct sim_map *sim_map_new(struct sim_range *range, CUdeviceptr va,
                            size_t size, struct sim_phys *phys)
{
    struct sim_map *map = sim_zalloc(sizeof(*map));

    if (map == NULL) {
        return NULL;
    }
    map->node.start = va;
    map->node.size = size;
    map->phys = phys;
    map->range = range;
    map->buffer_id = sim.next_buffer_id++;
    phys->maps++;
    sim_tree_insert(&sim.maps, &map->node);
    return map;
}

void sim_map_free(struct sim_map *map)
{
    struct sim_phys *phys = map->phys;

    sim_tree_remove(&sim.maps, &map->node);
    sim_free(map, sizeof(*map));
    phys->maps--;
    sim_phys_check(phys);
}

static bool same_address_kind(enum sim_kind kind)
{
    return kind == SIM_KIND_MANAGED || kind == SIM_KIND_HOST;
}

struct sim_map *sim_whole_new(enum sim_kind kind, struct sim_phys *phys,
                              CUdeviceptr va, size_t size)
{
    bool owns = va == 0;
    struct sim_range *range;
    struct sim_map *map;

    if (owns) {
        va = sim_va_reserve(sim_round_up(size, SIM_GRANULE), 0, 0);
        if (va == 0) {
            return NULL;
        }
    }
    range = sim_range_new(kind, va, size, owns && !same_address_kind(kind));
    if (range == NULL) {
        return NULL;
    }
    map = sim_map_new(range, va, size, phys);
    if (map == NULL) {
        sim_range_free(range);
        return NULL;
    }
    memset(map->access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
           sizeof(map->access));
    map->host_access = same_address_kind(kind)
                           ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return map;
}

void sim_whole_free(struct sim_range *range)
{
    struct sim_map *map = sim_map_at(range->node.start);

    if (map != NULL) {
        sim_map_free(map);
    }
    sim_range_free(range);
}

void sim_memory_drop_ctx(struct CUctx_st *ctx)
{
    struct sim_node *node;
    struct sim_range *range;
    uint64_t at = 0;

    while ((node = sim_tree_from(&sim.ranges, at)) != NULL) {
        range = (struct sim_range *)node;
        at = node->start + node->size;
        if (range->ctx == ctx) {
            sim_whole_free(range);
        }
    }
}

/* ---- test controls ---- */

SIM_EXPORT void *sim_host_view(uint64_t address, size_t size)
{
    struct sim_map *map;
    char *view = NULL;

    sim_lock();
    map = sim_map_at(address);
    if (map != NULL &&
        size <= map->node.size - (size_t)(address - map->node.start)) {
        view = map->phys->host + (address - map->node.start);
    }
    sim_unlock();
    return view;
}
