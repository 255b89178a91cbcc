/* SPDX-License-Identifier: MIT */
/* What the driver that does nothing exports beside the driver API. */
#ifndef VMML_TESTS_BENCH_NULL_DRIVER_H
#define VMML_TESTS_BENCH_NULL_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Calls of this process so far, by what they do; `all` counts every one. */
struct null_calls {
    unsigned long all;
    unsigned long reserve, free, create, release, retain, properties;
    unsigned long export, import, map, unmap, access, get_access;
    unsigned long range, attribute, attributes;
    unsigned long uuid, context, capture, stream, event, copy, ipc;
};
extern struct null_calls null_calls;

/* Set before the first export. */
extern bool null_share_fds;

#endif
