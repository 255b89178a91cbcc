/* SPDX-License-Identifier: MIT */
#include "mirror/use.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

/*
 * Two counts, as in sleepable RCU (McKenney, "Sleepable Read-Copy Update",
 * 2006): who begins counts on the current one. What was taken out before a
 * count was seen to be zero is not held by anyone who counts on it: who counts
 * later looks into the tables later. So both must be seen to be zero, each at
 * some time; new users are kept away from the one that is waited for.
 */
static struct {
    atomic_uint inside[2];
    atomic_uint current;
} use;

struct vmml_posting vmml_postings[VMML_STATS_SHARDS];
atomic_bool vmml_postings_unfenced;

/* The freeing thread's. */
static bool seen[2];
static uint64_t sealed_turns[VMML_STATS_SHARDS];

unsigned vmml_use_begin(void)
{
    unsigned current =
        atomic_load_explicit(&use.current, memory_order_relaxed) & 1;

    atomic_fetch_add(&use.inside[current], 1);
    /* Not a load of a table before the count is seen. On x86-64 an atomic
     * addition is such a fence. */
#if !defined(__x86_64__)
    atomic_thread_fence(memory_order_seq_cst);
#endif
    return current;
}

void vmml_use_end(unsigned current)
{
    atomic_fetch_sub_explicit(&use.inside[current], 1, memory_order_release);
}

static int membarrier(int command)
{
    return syscall(SYS_membarrier, command, 0, 0) < 0 ? -errno : 0;
}

void vmml_posting_start(void)
{
    int status = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);

    if (status == 0)
        atomic_store(&vmml_postings_unfenced, true);
    else
        vmml_debug("no membarrier (errno %d): posting a copy takes a fence",
                   -status);
}

/* Where the flag is not set yet, a poster that finds it set does so later than
 * this did not, and sees what was changed before this. */
bool vmml_posting_barrier(void)
{
    int status;

    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load(&vmml_postings_unfenced))
        return true;
    status = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    /* The process is not registered (membarrier(2)), as after it was restored
     * from a checkpoint. */
    if (status == -EPERM &&
        membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
        status = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    return status == 0;
}

bool vmml_posting_is_in(const struct vmml_mirror *mirror)
{
    unsigned i;

    for (i = 1; i < VMML_STATS_SHARDS; i++)
        if ((atomic_load(&vmml_postings[i].turn) & 1) != 0 &&
            atomic_load(&vmml_postings[i].mirror) == mirror)
            return true;
    return false;
}

/* Whoever was inside at the seal has left since. */
static bool are_postings_over(void)
{
    unsigned i;

    for (i = 1; i < VMML_STATS_SHARDS; i++)
        if ((sealed_turns[i] & 1) != 0 &&
            atomic_load(&vmml_postings[i].turn) == sealed_turns[i])
            return false;
    return true;
}

bool vmml_use_seal(void)
{
    unsigned i;

    if (!vmml_posting_barrier())
        return false;
    seen[0] = seen[1] = false;
    for (i = 1; i < VMML_STATS_SHARDS; i++)
        sealed_turns[i] = atomic_load(&vmml_postings[i].turn);
    return true;
}

bool vmml_use_is_over(void)
{
    unsigned current = atomic_load(&use.current) & 1;
    unsigned i;

    for (i = 0; i < 2; i++)
        seen[i] |= atomic_load(&use.inside[i]) == 0;
    if (seen[current ^ 1] && !seen[current])
        atomic_store(&use.current, current ^ 1);
    return seen[0] && seen[1] && are_postings_over();
}

void vmml_use_fork_child(void)
{
    atomic_store(&use.inside[0], 0);
    atomic_store(&use.inside[1], 0);
    memset(vmml_postings, 0, sizeof(vmml_postings));
}
