/* SPDX-License-Identifier: MIT */
/*
 * Who looks at mirrors and peers without a lock, so that what was taken out of
 * their tables is freed only when nobody can hold a pointer to it any more.
 */
#ifndef VMML_MIRROR_USE_H
#define VMML_MIRROR_USE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stats/count.h"

struct vmml_mirror;

/* From here on pointers that are found stay good until vmml_use_end() is
 * called with what this returned. May be nested, and may take long. */
unsigned vmml_use_begin(void);
void vmml_use_end(unsigned use);

/*
 * The thread that posts one short copy says so in a place of its own: a use,
 * and a poster inside that mirror, on a cache line that no other thread writes
 * (hazard pointers: Michael, 2004). Threads have the place of their statistics.
 */
struct vmml_posting {
    _Atomic uint64_t turn; /* odd: inside */
    _Atomic(const struct vmml_mirror *) mirror;
} __attribute__((aligned(64)));

extern struct vmml_posting vmml_postings[VMML_STATS_SHARDS];

/* vmml_posting_barrier() makes the poster's fence unnecessary (membarrier(2):
 * "the key idea is to replace, for each matching pair, the fast-side memory
 * barriers with simple compiler barriers"). It costs 20 ns on a Xeon. */
extern atomic_bool vmml_postings_unfenced;

/* The mirror may be gone, and be used only when it is found to be in the index
 * after this. NULL: this thread has no place, or is inside already. */
static inline struct vmml_posting *
vmml_posting_begin(const struct vmml_mirror *mirror)
{
    struct vmml_posting *posting = &vmml_postings[vmml_stats_shard];
    uint64_t turn = atomic_load_explicit(&posting->turn, memory_order_relaxed);

    if (posting == vmml_postings || (turn & 1) != 0)
        return NULL;
    /* Who finds this mirror in a turn that it read before knows that the thread
     * has left the mirror of that turn, and what it did there. */
    atomic_store_explicit(&posting->mirror, mirror, memory_order_release);
    atomic_store_explicit(&posting->turn, turn + 1, memory_order_release);
    /* The turn is seen before anything is looked at. */
    if (atomic_load_explicit(&vmml_postings_unfenced, memory_order_acquire))
        atomic_signal_fence(memory_order_seq_cst);
    else
        atomic_thread_fence(memory_order_seq_cst);
    return posting;
}

static inline void vmml_posting_end(struct vmml_posting *posting)
{
    uint64_t turn = atomic_load_explicit(&posting->turn, memory_order_relaxed);

    atomic_store_explicit(&posting->turn, turn + 1, memory_order_release);
}

/* Ask the kernel for membarrier. May take some milliseconds. */
void vmml_posting_start(void);

/* Between a change and a look at the postings: a poster that began before it is
 * seen from then on, one that begins later sees the change. False: neither. */
bool vmml_posting_barrier(void);

/* Is a thread inside this mirror? */
bool vmml_posting_is_in(const struct vmml_mirror *mirror);

/*
 * For the one thread that frees. After things were taken out of the tables:
 * vmml_use_seal(); they may be freed when it was true and vmml_use_is_over()
 * has said so. Waits for nobody, and minds postings too.
 */
bool vmml_use_seal(void);
bool vmml_use_is_over(void);

/* In a child of fork. */
void vmml_use_fork_child(void);

#endif
