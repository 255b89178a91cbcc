/*
 * The parts of the simulated driver, seen from each other.
 *
 * One mutex, sim.lock, guards all state but the counters; it is never held
 * across a callback of the application, a copy or a wait.
 */
#ifndef VMMLANE_SIM_INTERNAL_H
#define VMMLANE_SIM_INTERNAL_H

/* All versions of every function, under their own names. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sim.h"

#define SIM_EXPORT      __attribute__((visibility("default")))
#define SIM_MAX_DEVICES 16
#define SIM_GRANULE     ((size_t)2 << 20)
#define SIM_PAGE        ((size_t)4096)

/* ---- entry points (entries.def) ---- */

enum sim_mode { SIM_LEGACY, SIM_PTSZ };
enum sim_need { SIM_NONE, SIM_INIT, SIM_CTX, SIM_STREAM };

enum sim_id {
#define ENTRY(name, base, since, mode, need, params, args) SIM_ID_##name,
#define ENTRY_WIDE                                         ENTRY
#include "entries.def"
#undef ENTRY
#undef ENTRY_WIDE
    SIM_ID_COUNT
};

#define ENTRY(name, base, since, mode, need, params, args)                     \
    CUresult sim_##name params;
#define ENTRY_WIDE ENTRY
#include "entries.def"
#undef ENTRY
#undef ENTRY_WIDE

struct sim_entry {
    const char *name;
    const char *base;
    int since;
    enum sim_mode mode;
    void *address; /* of the exported symbol, in this library */
};

extern const struct sim_entry sim_entries[SIM_ID_COUNT];

/* ---- settings (config.c) ---- */

enum sim_fabric { SIM_FABRIC_LYING, SIM_FABRIC_ON, SIM_FABRIC_OFF };

/* What the IMEX channel lets through. */
enum sim_imex { SIM_IMEX_NONE, SIM_IMEX_ALL, SIM_IMEX_CREATE };

struct sim_config {
    int devices;                   /* visible */
    int physical[SIM_MAX_DEVICES]; /* visible number -> physical number */
    int peer;
    enum sim_fabric fabric;
    enum sim_imex imex;
    /* The folder that stands for the fabric; empty: processes of one PID
     * namespace find each other's memory in /proc. */
    char fabric_dir[128];
    int driver_version;
    int nvlink;
    int nvml;
    int sync_pageable;
    unsigned node;
    uint64_t vram;
    bool vram_limited;
    char domain[32];
};

void sim_config_read(void);

/* May FABRIC memory be made; may its handles be exported and imported? */
bool sim_fabric_creates(void);
bool sim_fabric_shares(void);

/* ---- memory for the driver itself (heap.c) ---- */

/* Zeroed memory from raw mappings: malloc() is watched by UCM, and a
 * sanitizer would count the driver's own objects as leaks. */
void *sim_zalloc(size_t size);

/* The driver's own descriptor goes where the application has none, if it can;
 * `fd` is closed then. */
int sim_raise_fd(int fd);
void sim_free(void *ptr, size_t size);

/* mmap and munmap as plain system calls: UCM patches libc's. The errno is
 * left alone; NULL for failure. */
void *sim_sys_mmap(void *addr, size_t size, int prot, int flags, int fd,
                   off_t offset);
void sim_sys_munmap(void *addr, size_t size);

/* ---- interval trees (itree.c) ---- */

struct sim_node {
    struct sim_node *left, *right;
    uint64_t start, size;
    uint64_t priority;
};

struct sim_tree {
    struct sim_node *root;
};

void sim_tree_insert(struct sim_tree *tree, struct sim_node *node);
void sim_tree_remove(struct sim_tree *tree, struct sim_node *node);
/* The node that contains the address, or NULL. */
struct sim_node *sim_tree_find(const struct sim_tree *tree, uint64_t address);
/* The lowest node that ends after the address, or NULL. */
struct sim_node *sim_tree_from(const struct sim_tree *tree, uint64_t address);

/* ---- physical memory, ranges and mappings (memory.c) ---- */

enum sim_kind {
    SIM_KIND_VMM,     /* cuMemCreate, or an import of one */
    SIM_KIND_MALLOC,  /* cuMemAlloc */
    SIM_KIND_IPC,     /* cuIpcOpenMemHandle */
    SIM_KIND_POOL,    /* cuMemAllocAsync, or an import of one */
    SIM_KIND_MANAGED, /* cuMemAllocManaged */
    SIM_KIND_HOST,    /* cuMemHostAlloc, cuMemHostRegister */
};

/* The page behind the data of every memfd: what an importer must know. */
struct sim_label {
    uint64_t magic;
    uint64_t size;
    uint64_t serial;
    uint32_t kind;
    uint32_t device; /* physical number */
    uint32_t node;
    uint32_t handle_types;
    uint32_t location_type;
    int32_t location_id;
    uint32_t pid;
    uint32_t owner_fd;
    uint8_t rdma_capable;
    uint8_t compression;
    uint8_t pad[6];
};

#define SIM_LABEL_MAGIC 0x6d69732d6c6d6d76ull /* "vmml-sim" */

struct sim_phys {
    enum sim_kind kind;
    int fd;
    char *host; /* readable alias */
    size_t size;
    unsigned refs, maps, pins;
    uint64_t block_id;
    uint64_t inode;
    uint64_t fabric_name;     /* of its file on the fabric, or 0 */
    CUmemAllocationProp prop; /* device: visible number */
    bool imported;
    uint64_t handle; /* SIM_KIND_VMM */
    struct sim_label label;
};

struct sim_range {
    struct sim_node node; /* first */
    enum sim_kind kind;
    struct CUctx_st *ctx; /* NULL where memory belongs to none */
    bool owns_va;
    unsigned opens;       /* SIM_KIND_IPC, imported SIM_KIND_POOL */
    unsigned host_flags;  /* SIM_KIND_HOST */
    bool host_registered; /* SIM_KIND_HOST */
    struct CUmemPoolHandle_st *pool;
    bool sync_memops;
    bool freed; /* by cuMemFreeAsync: queued work alone may still use it */
};

struct sim_map {
    struct sim_node node; /* first */
    struct sim_phys *phys;
    struct sim_range *range;
    uint64_t buffer_id;
    unsigned char access[SIM_MAX_DEVICES]; /* CUmemAccess_flags */
    unsigned char host_access;
};

struct sim_state {
    pthread_mutex_t lock;
    pthread_cond_t progress; /* a stream's work went on */
    int initialised;
    bool forked;
    struct sim_config config;
    struct sim_tree ranges, maps;
    uint64_t next_buffer_id, next_block_id, next_ctx_id, next_stream_id;
    struct CUctx_st *ctxs;
    /* After a fault no context can be made in the process any more. */
    CUresult fatal;
};

extern struct sim_state sim;

void sim_lock(void);
void sim_unlock(void);

struct sim_range *sim_range_at(CUdeviceptr ptr);
struct sim_map *sim_map_at(CUdeviceptr ptr);
/* The same, but for memory that the program has freed. */
struct sim_map *sim_visible_map(CUdeviceptr ptr);
/* Whether a device may use the mapping so. */
bool sim_map_allows(const struct sim_map *map, CUdevice dev, bool write);

/* New physical memory with a label. NULL with *result set on failure. */
struct sim_phys *sim_phys_new(enum sim_kind kind, size_t size,
                              const CUmemAllocationProp *prop,
                              CUresult *result);
/* Takes over fd. NULL with *result set where it is not memory of this kind. */
struct sim_phys *sim_phys_import(int fd, enum sim_kind kind, CUresult *result);
/* Whether a handle of this value was ever given out. */
bool sim_handle_was_given(uint64_t handle);
/* Frees it when nothing refers to it any more. */
void sim_phys_check(struct sim_phys *phys);
/* Opens another process's memfd and checks that it is the one meant. -1. */
int sim_open_peer_fd(uint32_t pid, uint32_t fd, uint64_t inode);
/* The path of memory on the fabric. */
void sim_fabric_path(uint64_t name, char *path, size_t size);
bool sim_read_label(int fd, struct sim_label *label);

/* Reserves address space, aligned to align (0: 2 MiB). 0 on failure. */
CUdeviceptr sim_va_reserve(size_t size, size_t align, CUdeviceptr hint);
void sim_va_release(CUdeviceptr va, size_t size);

struct sim_range *sim_range_new(enum sim_kind kind, CUdeviceptr va, size_t size,
                                bool owns_va);
void sim_range_free(struct sim_range *range);
struct sim_map *sim_map_new(struct sim_range *range, CUdeviceptr va,
                            size_t size, struct sim_phys *phys);
void sim_map_free(struct sim_map *map);
/* A range that one mapping fills, accessible everywhere; NULL: no memory. */
struct sim_map *sim_whole_new(enum sim_kind kind, struct sim_phys *phys,
                              CUdeviceptr va, size_t size);
void sim_whole_free(struct sim_range *range);
/* The kinds whose context owns them go with it. */
void sim_memory_drop_ctx(struct CUctx_st *ctx);

size_t sim_round_up(size_t n, size_t to);

/* ---- accounting (account.c) ---- */

uint64_t sim_vram_used(int physical);
bool sim_vram_has(int physical, size_t size);

/* ---- devices and contexts (device.c, ctx.c) ---- */

struct CUctx_st {
    struct CUctx_st *next;
    CUdevice dev;
    unsigned flags;
    unsigned long long id;
    CUresult error; /* sticky */
    bool primary;
    bool live;
    unsigned retained;
    struct CUstream_st *streams;
    struct CUstream_st *legacy;
    unsigned char peers[SIM_MAX_DEVICES];
};

CUcontext sim_ctx_current(void);
bool sim_ctx_valid(CUcontext ctx);
bool sim_dev_valid(CUdevice dev);
void sim_ctx_reset_thread(void);
const char *sim_device_bus_id(int physical, char *buf, size_t size);
void sim_device_uuid(int physical, unsigned char *uuid);

/* ---- streams (stream.c) and copies (copy.c) ---- */

/* A copy or a memset. */
struct sim_copy {
    CUdeviceptr dst, src;
    size_t n;
    bool set; /* memset: the pattern repeats every width bytes */
    unsigned pattern, width;
    bool dst_device, src_device; /* the entry point takes device memory only */
    bool dst_mapped, src_mapped; /* a range of the driver's, at the call */
};

/* Queues a copy. wait: return when it is done. */
CUresult sim_stream_copy(CUstream stream, const struct sim_copy *copy,
                         bool wait);
/* Queues a call; it is left out once the context has failed. */
CUresult sim_stream_call(CUstream stream, void (*fn)(void *arg), void *arg);
CUstream sim_per_thread_stream(CUstream stream);
/* Ends every stream and event wait of a context. */
void sim_streams_drop_ctx(CUcontext ctx);
/* Does one copy for a context of this device. */
CUresult sim_copy_run(CUdevice dev, const struct sim_copy *copy);
/* Says which sides are the driver's memory; INVALID_VALUE where a copy would
 * touch a hole, or memory that the device has no right to. */
CUresult sim_copy_check(struct sim_copy *copy, CUdevice dev);

/* ---- pools (pool.c) ---- */

CUresult sim_pool_free(struct sim_range *range);

/* ---- faults and counters (fault.c) ---- */

CUresult sim_enter(enum sim_id id, enum sim_need need);
void sim_reenter(const char *name, CUdeviceptr ptr, size_t size);
void sim_fault_init(void);
/* Ends the process, where the real driver does so with SIGSEGV. */
__attribute__((noreturn)) void sim_crash(const char *why);
/* VMMLANE_SIM_TRACE: 1 calls that fail, 2 all calls, on standard error. */
extern int sim_tracing;
void sim_trace(enum sim_id id, CUresult result);

/* ---- fabric and legacy handles (ipc.c) ---- */

/* What the 64 bytes of an IPC, fabric or pool pointer handle hold. */
struct sim_wire {
    uint64_t magic;
    uint32_t kind;
    uint32_t pid; /* with SIM_WIRE_NAMED: the file's name, low half */
    uint32_t fd;  /* and its high half */
    uint32_t node;
    uint64_t inode;
    uint64_t size;
    uint64_t buffer_id;
    uint64_t serial;
    uint32_t device;
    uint32_t fabric; /* enum sim_wire_fabric */
};

enum sim_wire_fabric {
    SIM_WIRE_LOCAL,  /* ends at its node */
    SIM_WIRE_FABRIC, /* found by pid and descriptor */
    SIM_WIRE_NAMED,  /* found in the fabric's folder */
};

_Static_assert(sizeof(struct sim_wire) == 64, "an IPC handle has 64 bytes");

#define SIM_WIRE_MAGIC 0x657269772d6d6973ull /* "sim-wire" */

void sim_wire_fill(struct sim_wire *wire, const struct sim_phys *phys);
/* The same for a handle that other nodes can use. */
void sim_wire_fill_fabric(struct sim_wire *wire, const struct sim_phys *phys);
/* Opens the memory that a wire handle names. NULL with *result set. */
struct sim_phys *sim_wire_open(const struct sim_wire *wire, enum sim_kind kind,
                               CUresult *result);

#endif
