/* SPDX-License-Identifier: MIT */
/*
 * Into which pieces a copy is cut (docs/performance.md, "Chunks under a copy").
 *
 * Measured on an H200: the driver needs 0.07 us for a chunk that it has just
 * looked at and 0.3 to 0.4 us for one that it has not; the GPU copies 2 MiB in
 * 1 us; a further piece costs 2 to 4 us. So a piece of n chunks is posted while
 * the GPU copies one of a third of it, where chunks have 2 MiB.
 */
#include "mirror/state.h"

#include "mirror/index.h"
#include "mirror/use.h"

#define MIB ((size_t)1 << 20)

/* From so many chunks on, and from VMML_CUT_LENGTH, a copy is cut. */
#define CUT_CHUNKS 20

/* Of larger chunks, which the GPU takes long for, only long copies. */
#define LONG_LENGTH (192 * MIB)

/* Chunks of both ranges behind one byte, as bytes of one chunk: up to these
 * the driver is about as fast as the GPU, and a few times as fast. */
#define SMALLEST_CHUNK (MIB + MIB / 2)
#define SMALL_CHUNK    (4 * MIB)

/* The allocation that this thread's last large copy had at its other end. What
 * is there now may be another: that is worth some microseconds at most. */
static __thread struct {
    CUdeviceptr base;
    size_t size;
} last __attribute__((tls_model("initial-exec")));

/* Mean size of the chunks of the mirror around it, 0 where there is none. */
static size_t mirror_chunk(CUdeviceptr address)
{
    unsigned use = vmml_use_begin();
    struct vmml_mirror *mirror = vmml_index_find(address);
    size_t mean = mirror == NULL ? 0
                                 : atomic_load_explicit(&mirror->mean_chunk,
                                                        memory_order_relaxed);

    vmml_use_end(use);
    return mean;
}

/* Size of the chunk or allocation at an address of this process. */
static size_t own_chunk(const struct vmml_real *real, CUdeviceptr address)
{
    if (address - last.base < last.size)
        return last.size;
    if (real->cuMemGetAddressRange_v2(&last.base, &last.size, address) !=
        CUDA_SUCCESS)
        last.size = 0;
    return last.size;
}

/* Bytes for each chunk that the driver looks at, on both sides; 0: none is on a
 * mirror. */
static size_t bytes_per_chunk(const struct vmml_real *real,
                              const struct vmml_copy *copy)
{
    size_t one = mirror_chunk(copy->src);
    CUdeviceptr other = copy->dst;
    size_t two;

    if (one == 0) {
        one = mirror_chunk(copy->dst);
        other = copy->src;
    }
    if (one == 0)
        return 0;
    two = own_chunk(real, other);
    return two == 0 ? one : (size_t)((double)one * two / ((double)one + two));
}

struct vmml_pieces vmml_mirror_pieces(const struct vmml_real *real,
                                      const struct vmml_copy *copy)
{
    struct vmml_pieces whole = {copy->length, 1};
    size_t chunk;

    if (copy->length < VMML_CUT_LENGTH)
        return whole;
    chunk = bytes_per_chunk(real, copy);
    if (chunk == 0 || copy->length / chunk < CUT_CHUNKS)
        return whole;
    if (chunk <= SMALLEST_CHUNK)
        return (struct vmml_pieces){16 * MIB, 2};
    if (chunk <= SMALL_CHUNK)
        return (struct vmml_pieces){16 * MIB, 3};
    return copy->length >= LONG_LENGTH ? (struct vmml_pieces){48 * MIB, 16}
                                       : whole;
}
