/* SPDX-License-Identifier: MIT */
#ifndef VMML_BASE_CLOCK_H
#define VMML_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Milliseconds of CLOCK_MONOTONIC; 0 where there is no such clock. */
static inline int64_t vmml_now_ms(void)
{
    struct timespec time;

    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0)
        return 0;
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

#endif
