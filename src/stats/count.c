/* SPDX-License-Identifier: MIT */
#include "stats/count.h"

#include <time.h>

struct vmml_stats_file vmml_stats_private;
_Atomic(struct vmml_stats_file *) vmml_stats = &vmml_stats_private;
__thread unsigned vmml_stats_shard __attribute__((tls_model("initial-exec")));

static __thread bool none_left __attribute__((tls_model("initial-exec")));
atomic_uint vmml_stats_next_shard = 1;

static unsigned take_shard(void)
{
    unsigned shard;

    if (none_left)
        return 0;
    shard = atomic_fetch_add_explicit(&vmml_stats_next_shard, 1,
                                      memory_order_relaxed);
    if (shard < VMML_STATS_SHARDS)
        return shard;
    none_left = true;
    /* It never comes near an overflow that way. */
    atomic_store_explicit(&vmml_stats_next_shard, VMML_STATS_SHARDS,
                          memory_order_relaxed);
    return 0;
}

void vmml_count_shared(unsigned slot, uint64_t by)
{
    unsigned shard = take_shard();

    if (shard != 0) {
        vmml_stats_shard = shard;
        vmml_count_slot(slot, by);
        return;
    }
    atomic_fetch_add_explicit(&atomic_load(&vmml_stats)->shards[0].counts[slot],
                              by, memory_order_relaxed);
}

uint64_t vmml_count_get(unsigned slot)
{
    struct vmml_stats_file *stats = atomic_load(&vmml_stats);
    uint64_t sum = 0;
    unsigned i;

    for (i = 0; i < VMML_STATS_SHARDS; i++)
        sum += atomic_load_explicit(&stats->shards[i].counts[slot],
                                    memory_order_relaxed);
    return sum;
}

static uint64_t now_ns(void)
{
    struct timespec time = {0, 0};

    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

#define PUT(word, value)                                                       \
    atomic_store_explicit(&(word), value, memory_order_release)

/* Two at once: the one that came second is only counted. */
static void describe(struct vmml_stats_lost *lost, const struct vmml_loss *loss)
{
    uint32_t sequence =
        atomic_load_explicit(&lost->sequence, memory_order_relaxed);

    if ((sequence & 1) != 0 || !atomic_compare_exchange_strong(
                                   &lost->sequence, &sequence, sequence + 1))
        return;
    PUT(lost->last, now_ns());
    PUT(lost->address, loss->address);
    PUT(lost->length, loss->length);
    PUT(lost->handle_types, loss->handle_types);
    PUT(lost->pid, loss->pid);
    PUT(lost->chunks, loss->chunks);
    PUT(lost->code, loss->code);
    PUT(lost->sequence, sequence + 2);
}

bool vmml_lost(unsigned cause, const struct vmml_loss *loss)
{
    struct vmml_stats_lost *lost;

    if (cause >= VMML_STATS_CAUSES)
        return false;
    lost = &atomic_load(&vmml_stats)->lost[cause];
    describe(lost, loss);
    return atomic_fetch_add_explicit(&lost->count, 1, memory_order_relaxed) ==
           0;
}
