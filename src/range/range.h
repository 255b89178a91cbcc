/* SPDX-License-Identifier: MIT */
/*
 * Range queries: the mapped extent around an address.
 *
 * An extent is the longest run of chunks without a hole, inside one
 * reservation, of one device, with the same properties and access, none of
 * them imported or multicast. The driver is asked; what it said is remembered
 * until a map, an unmap or an access change touches the reservation, and
 * checked by buffer id before use.
 */
#ifndef VMML_RANGE_RANGE_H
#define VMML_RANGE_RANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"

/* What a query was asked for: the arguments of uct_md_mem_query(). */
struct vmml_range_request {
    CUdeviceptr address;
    size_t length;
    bool per_chunk; /* a request inside one chunk is answered with that chunk:
                     * UCX 1.22 and newer export a dmabuf over each answer */
};

/*
 * Answer cuMemGetAddressRange(base, size, ptr) for UCX's registration code.
 *
 * base, size: outputs, either may be NULL.
 * request: of the enclosing memory query, or NULL (a named caller).
 * Where the mode is off, `ptr` is no VMM memory, or anything fails, the
 * answer is the driver's own, bit for bit.
 */
CUresult vmml_range_answer(CUdeviceptr *base, size_t *size, CUdeviceptr ptr,
                           const struct vmml_range_request *request);

/* A map, unmap, access change or address free of [ptr, ptr+size) was seen. */
void vmml_range_touched(CUdeviceptr ptr, size_t size);

/* In a child of fork: forget everything, with locks made anew. */
void vmml_range_forget(void);

#endif
