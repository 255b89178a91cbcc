/* SPDX-License-Identifier: MIT */
#include "stats/count.h"

#include <pthread.h>
#include <time.h>

struct vmml_stats_file vmml_stats_private;
_Atomic(struct vmml_stats_file *) vmml_stats = &vmml_stats_private;
__thread unsigned vmml_stats_shard __attribute__((tls_model("initial-exec")));

/* Its destructors may count, after it has given back its shard. */
static __thread bool is_ending __attribute__((tls_model("initial-exec")));
atomic_uint vmml_stats_next_shard = 1;

/* Shards of threads that have ended, a bit each. */
static atomic_uint given_back;
_Static_assert(VMML_STATS_SHARDS <= 32, "a bit each");

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

/* Whoever takes it finds all that this thread did in it, postings too. */
static void give_back(void *value)
{
    is_ending = true;
    vmml_stats_shard = 0;
    atomic_fetch_or_explicit(&given_back, 1u << (unsigned)(uintptr_t)value,
                             memory_order_release);
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, give_back) == 0;
}

static unsigned take_given_back(void)
{
    unsigned bits = atomic_load_explicit(&given_back, memory_order_relaxed);

    while (bits != 0)
        if (atomic_compare_exchange_weak_explicit(
                &given_back, &bits, bits & (bits - 1), memory_order_acquire,
                memory_order_relaxed))
            return (unsigned)__builtin_ctz(bits);
    return 0;
}

/* No fetch-add where none is left: it would overflow some day. */
static unsigned take_new(void)
{
    unsigned shard =
        atomic_load_explicit(&vmml_stats_next_shard, memory_order_relaxed);

    while (shard < VMML_STATS_SHARDS)
        if (atomic_compare_exchange_weak_explicit(
                &vmml_stats_next_shard, &shard, shard + 1, memory_order_relaxed,
                memory_order_relaxed))
            return shard;
    return 0;
}

/* Returns 0 when none is left. One that cannot be given back is lost with its
 * thread. */
static unsigned take_shard(void)
{
    unsigned shard;

    if (is_ending)
        return 0;
    shard = take_given_back();
    if (shard == 0)
        shard = take_new();
    if (shard == 0)
        return 0;
    vmml_stats_shard = shard;
    if (pthread_once(&key_once, make_key) == 0 && has_key)
        (void)pthread_setspecific(key, (void *)(uintptr_t)shard);
    return shard;
}

void vmml_count_shared(unsigned slot, uint64_t by)
{
    if (take_shard() != 0) {
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
