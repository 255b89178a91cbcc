/* SPDX-License-Identifier: MIT */
/*
 * The exporter's windows and the chunks that it has published in each.
 *
 * No driver call and no system call on descriptors here. The caller holds the
 * exporter's lock around every function.
 */
#ifndef VMML_LANE_WINDOW_H
#define VMML_LANE_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

/* The unit of cuMemMap on every GPU that has VMM: 2 MiB (measured). Chunks
 * that are not aligned to it are not served. */
#define VMML_GRANULE (2ul << 20)

#define VMML_FABRIC_SIZE 64 /* of a CUmemFabricHandle */

#define VMML_NO_CHUNK UINT32_MAX
#define VMML_NO_SLOT  UINT32_MAX

enum vmml_export_state {
    VMML_EXPORT_FREE,
    VMML_EXPORT_PENDING, /* not in the ledger yet: it is compared once more */
    VMML_EXPORT_LIVE,
    VMML_EXPORT_UNMAPPING, /* a thread is in cuMemUnmap on it */
};

/* A chunk that is published, or about to be. */
struct vmml_chunk {
    uint64_t address;
    uint64_t size;
    uint64_t buffer_id;
    uint64_t serial; /* of its publication in the ledger */
    uint64_t token;  /* of the unmap that it is in */
    uint64_t idle;   /* its place among those to be closed, 0: none */
    int fd;          /* -1: it is shared by its fabric handle */
    uint32_t slot;   /* in the ledger, or VMML_NO_SLOT */
    uint32_t next_free;
    uint32_t entry;  /* its place in the window's block */
    uint8_t state;   /* enum vmml_export_state */
    bool has_fabric; /* vmml_window_fabric() */
};

/* For each granule of a window. */
struct vmml_granule {
    uint32_t chunk; /* 1 + index of the published chunk; 0: none */
    uint32_t cover; /* live registrations that cover the granule */
};

struct vmml_block;

struct vmml_window {
    uint64_t base;
    uint64_t size;
    CUdevice device;
    CUuuid gpu;
    uint32_t index;           /* in the ledger */
    uint64_t changes;         /* maps and unmaps seen in it */
    unsigned refs;            /* registrations, and 1 while in the table */
    bool retired;             /* its reservation is gone */
    unsigned registered;      /* registrations of it */
    uint64_t published;       /* counts changes of what is published */
    struct vmml_block *block; /* fabric/export.c; or NULL */
    bool ipc; /* ipc/ gave out handles: all of it counts as covered */
    uint64_t ipc_changes; /* `changes` when all of it was published last */
    uint32_t ipc_made;    /* and the number of that in this process: it makes
                           * the bytes of a handle others than all before */
    struct vmml_granule *granules;
    struct vmml_chunk *chunks;
    uint8_t (*fabrics)[VMML_FABRIC_SIZE]; /* of the first fabric_capacity */
    uint32_t fabric_capacity;             /* 0 while no chunk has one */
    uint32_t chunk_capacity;
    uint32_t chunk_count; /* chunks [0, count) were ever used */
    uint32_t first_free;
    uint32_t live;
};

/* All windows, sorted by base; none overlaps another. */
struct vmml_windows {
    struct vmml_window **entries;
    size_t count;
    size_t capacity;
};

/* The window that holds `address`, or NULL. */
struct vmml_window *vmml_windows_at(const struct vmml_windows *windows,
                                    uint64_t address);

/* Index of the first window that ends above `address`. */
size_t vmml_windows_from(const struct vmml_windows *windows, uint64_t address);

/* Make a window and put it into the table; nothing there may overlap it.
 * Returns NULL when memory is short. */
struct vmml_window *vmml_windows_add(struct vmml_windows *windows,
                                     uint64_t base, uint64_t size,
                                     CUdevice device, const CUuuid *gpu);

/* Take it out of the table and drop the table's reference. */
void vmml_windows_remove(struct vmml_windows *windows,
                         struct vmml_window *window);

/* Drop a reference; the last frees. Its chunks must be free by then. */
void vmml_window_release(struct vmml_window *window);

/* The chunk entry at `address`, or NULL. */
struct vmml_chunk *vmml_window_chunk_at(const struct vmml_window *window,
                                        uint64_t address);

/* A new chunk entry over [address, address+size), all of whose granules must
 * be free; it is pending. NULL when memory is short. */
struct vmml_chunk *vmml_window_add_chunk(struct vmml_window *window,
                                         uint64_t address, uint64_t size);

/* The chunk is shared by a CUmemFabricHandle, of which a copy is kept. False
 * when memory is short. */
bool vmml_window_set_fabric(struct vmml_window *window,
                            struct vmml_chunk *chunk, const void *handle);
/* That copy, of a chunk that has_fabric. */
const uint8_t *vmml_window_fabric(const struct vmml_window *window,
                                  const struct vmml_chunk *chunk);

/* Free the entry. Its descriptor is the caller's to close. */
void vmml_window_remove_chunk(struct vmml_window *window,
                              struct vmml_chunk *chunk);

/* The next published chunk that overlaps [*from, end), or NULL; *from moves
 * behind it. Chunks may be removed between two calls. */
struct vmml_chunk *vmml_window_next_chunk(const struct vmml_window *window,
                                          uint64_t *from, uint64_t end);

/* A registration of [address, address+length) begins (+1) or ends (-1). */
void vmml_window_cover(struct vmml_window *window, uint64_t address,
                       uint64_t length, int change);

/* Does a registration cover any of the chunk? */
bool vmml_window_is_covered(const struct vmml_window *window,
                            const struct vmml_chunk *chunk);

#endif
