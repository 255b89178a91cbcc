/* SPDX-License-Identifier: MIT */
/*
 * Many chunks for little: the simulated driver keeps a descriptor and a mapping
 * of the process for each allocation, so a few allocations are mapped again
 * and again.
 */
#ifndef VMML_TESTS_LIMITS_MANY_H
#define VMML_TESTS_LIMITS_MANY_H

#include "tests/lane/harness.h"

/* Allocations; neighbouring chunks are of different ones. */
#define MANY_ALLOCATIONS 16

/* Which allocation the chunk number `chunk` is of, from 0. */
static inline unsigned many_allocation(uint64_t chunk)
{
    return (unsigned)((chunk + chunk / MANY_ALLOCATIONS) % MANY_ALLOCATIONS);
}

/* Map chunks [first, first+count) of the reservation at `base`, through the
 * shim's hooks, with access. The bytes of allocation i are the pattern of seed
 * i at addresses from 0. */
void many_map(uint64_t base, uint64_t first, uint64_t count);

/* `part` bytes on each side of the border above a chunk, read through a mirror
 * of such a reservation: each is compared. */
void many_expect_border(CUdeviceptr mirror, uint64_t chunk, size_t part);

/* An exporter in a process of its own, and an importer in this one, with the
 * two ends of a socket that keeps messages apart. */
void many_pair(void (*exporter)(int sock), void (*importer)(int sock));

#endif
