/* SPDX-License-Identifier: MIT */
/*
 * The GPU memory of a block: made, mapped, written and read. Driver calls in
 * every function; the caller has the thread's capture mode relaxed.
 */
#ifndef VMML_FABRIC_MEMORY_H
#define VMML_FABRIC_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "doors/real.h"

/* A block that is mapped here. */
struct vmml_block_memory {
    CUdeviceptr address; /* 0: none */
    size_t size;
    CUdevice device;
};

/* Make FABRIC memory and map it. On failure nothing is left. */
CUresult vmml_block_create(const struct vmml_real *real, CUdevice device,
                           size_t size, struct vmml_block_memory *memory,
                           CUmemFabricHandle *handle);

/* Map another process's, of exactly `size` bytes, for `device`. */
CUresult vmml_block_open(const struct vmml_real *real, CUdevice device,
                         const CUmemFabricHandle *handle, size_t size,
                         struct vmml_block_memory *memory);

/* Unmap it; the memory goes when nobody has it mapped any more. */
void vmml_block_close(const struct vmml_real *real,
                      struct vmml_block_memory *memory);

/* One copy of a batch. */
struct vmml_block_copy {
    size_t offset; /* in the block */
    void *host;
    size_t length;
};

/*
 * Copy in this order, on a stream of its own, and wait for that alone. Needs
 * an active context of the device: its primary one, or the current one.
 */
CUresult vmml_block_write(const struct vmml_real *real,
                          const struct vmml_block_memory *memory,
                          const struct vmml_block_copy *copies, size_t count);
CUresult vmml_block_read(const struct vmml_real *real,
                         const struct vmml_block_memory *memory,
                         const struct vmml_block_copy *copies, size_t count);

#endif
