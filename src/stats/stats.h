/* SPDX-License-Identifier: MIT */
/*
 * The statistics as a whole: where others can read them, and what is told at
 * the end of the process.
 */
#ifndef VMML_STATS_STATS_H
#define VMML_STATS_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "stats/names.h"

extern atomic_bool vmml_stats_started;

void vmml_stats_start_now(void);

/* UCX has asked for GPU memory: from now on the process counts where `vmmlane
 * inspect` can see it. Makes one descriptor, at the first call. Where it cannot
 * be had, the process counts for itself. */
static inline void vmml_stats_start(void)
{
    if (__builtin_expect(
            !atomic_load_explicit(&vmml_stats_started, memory_order_relaxed),
            0))
        vmml_stats_start_now();
}

/* In a child of fork: nothing of it is the parent's. */
void vmml_stats_fork_child(void);

/* A mirror in the table that others can read. */
struct vmml_mirror_stats {
    uint64_t base;
    uint64_t size;
    uint64_t address;
    uint64_t bytes;
    uint32_t pid;
    uint32_t chunks;
    int32_t device;
    uint32_t outcome;
};

/*
 * entry: the place of it, 0 where it has none yet; written with the first call.
 * A mirror for which there is no place is left out. One thread at a time for
 * each mirror.
 */
void vmml_stats_mirror(unsigned *entry, const struct vmml_mirror_stats *mirror);
void vmml_stats_mirror_gone(unsigned entry);

#endif
