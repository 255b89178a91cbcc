/* SPDX-License-Identifier: MIT */
/*
 * What the driver says about one chunk.
 */
#ifndef VMML_RANGE_PROBE_H
#define VMML_RANGE_PROBE_H

#include <stdint.h>

#include "doors/real.h"
#include "range/extents.h"

enum vmml_probe_result {
    VMML_PROBE_CHUNK,   /* mapped VMM memory, described */
    VMML_PROBE_NONE,    /* not mapped, not accessible, or no VMM memory */
    VMML_PROBE_CHANGED, /* the mapping changed meanwhile */
    VMML_PROBE_FAILED,  /* the driver did not answer */
};

struct vmml_probe {
    uint64_t base;
    uint64_t end;
    uint64_t buffer_id;
    struct vmml_traits traits;
};

/* Describe the chunk that holds `address`. Lets the driver make seven
 * calls; changes nothing. */
enum vmml_probe_result vmml_probe(const struct vmml_real *real,
                                  uint64_t address, struct vmml_probe *probe);

/* The buffer id of the mapping at `address`, one for every mapping ever made
 * in the process; 0 when nothing is mapped there. */
uint64_t vmml_probe_buffer_id(const struct vmml_real *real, uint64_t address);

#endif
