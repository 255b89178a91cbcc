/* SPDX-License-Identifier: MIT */
/*
 * Counting: one line at the place where something happens.
 *
 * No system call and no lock. Each thread has its own counts, as far as there
 * are enough (VMML_STATS_SHARDS - 1), so that a count is a load and a store
 * that no other thread disturbs, and the next thread has them when it ends; the
 * threads that are more share one set and add atomically. Works at any time,
 * also before main and in a forked child, whose counts nobody sees.
 */
#ifndef VMML_STATS_COUNT_H
#define VMML_STATS_COUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "stats/names.h"

/* Where the process counts: the file, and its own memory until there is one
 * and in a forked child. */
extern _Atomic(struct vmml_stats_file *) vmml_stats;
extern struct vmml_stats_file vmml_stats_private;

/* The shard of this thread alone; 0: none yet, or none was left. */
extern __thread unsigned vmml_stats_shard
    __attribute__((tls_model("initial-exec")));

void vmml_count_shared(unsigned slot, uint64_t by);

static inline void vmml_count_at(_Atomic uint64_t *at, uint64_t by)
{
    atomic_store_explicit(at,
                          atomic_load_explicit(at, memory_order_relaxed) + by,
                          memory_order_relaxed);
}

/* This thread's own counts. shard: not 0. */
static inline _Atomic uint64_t *vmml_counts_of(unsigned shard)
{
    return atomic_load_explicit(&vmml_stats, memory_order_relaxed)
        ->shards[shard]
        .counts;
}

static inline void vmml_count_slot(unsigned slot, uint64_t by)
{
    unsigned shard = vmml_stats_shard;

    if (__builtin_expect(shard == 0, 0))
        vmml_count_shared(slot, by);
    else
        vmml_count_at(&vmml_counts_of(shard)[slot], by);
}

/* Copies that were posted, in few instructions. */
static inline void vmml_count_copies(uint64_t count, uint64_t bytes)
{
    unsigned shard = vmml_stats_shard;
    _Atomic uint64_t *counts;

    if (__builtin_expect(shard == 0, 0)) {
        vmml_count_shared(VMML_COUNT_copies, count);
        vmml_count_shared(VMML_COUNT_copied_bytes, bytes);
        return;
    }
    counts = vmml_counts_of(shard);
    vmml_count_at(&counts[VMML_COUNT_copies], count);
    vmml_count_at(&counts[VMML_COUNT_copied_bytes], bytes);
}

#define vmml_count_by(counter, by) vmml_count_slot(VMML_COUNT_##counter, by)
#define vmml_count(counter)        vmml_count_by(counter, 1)

/* hook: enum vmml_hook */
static inline void vmml_count_hook(unsigned hook)
{
    vmml_count_slot(VMML_COUNTERS + hook, 1);
}

/* Was anything counted? Asked at the end of every program: no call, and a
 * variable that is not in .bss (base/fork.c). */
extern atomic_uint vmml_stats_next_shard; /* 1: none was taken */

static inline bool vmml_count_any(void)
{
    return atomic_load_explicit(&vmml_stats_next_shard, memory_order_relaxed) !=
           1;
}

/* The sum of a counter, or of a hook's calls at VMML_COUNTERS + hook. */
uint64_t vmml_count_get(unsigned slot);

/* What is known of a lost lane; zero where it is not. */
struct vmml_loss {
    uint64_t address;
    uint64_t length;
    uint64_t handle_types;
    uint32_t pid; /* of the exporter; 0: this process */
    uint32_t chunks;
    int code; /* a CUresult, or -errno */
};

/*
 * A lane is lost. cause: enum vmml_cause, or an enum vmml_reason.
 * Returns true for the first one of its cause: then a warning is due. For the
 * others the count is all that is kept, and what they were about.
 */
bool vmml_lost(unsigned cause, const struct vmml_loss *loss);

/* The same in one line: VMML_LOST(YAMA, .pid = pid, .code = -EPERM). */
#define VMML_LOST(cause, ...)                                                  \
    vmml_lost(VMML_CAUSE_##cause, &(struct vmml_loss){__VA_ARGS__})

#endif
