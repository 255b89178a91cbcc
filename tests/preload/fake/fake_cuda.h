/* SPDX-License-Identifier: MIT */
/* What the fake driver tells a test about itself. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>

struct fake_function {
    const char *name;
    void *address;
    bool hooked;
    int result; /* of a function that has no answer of its own */
};

/* All functions, the last with a NULL name. In the fake libcuda. */
extern const struct fake_function fake_functions[];

/* Set before cuInit: it then looks itself and others up, as the real one does,
 * and returns 999 where it got anything but its own. */
extern int fake_init_looks_up;

#endif
