/* SPDX-License-Identifier: MIT */
/*
 * What programs do around UCX: contexts that end under it, threads that come
 * and go, forks, limits that are set. Every byte is compared.
 */
#include "exporter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/fork.h"
#include "hooks.h"
#include "mirror/mirror.h"
#include "order/order.h"
#include "stats/count.h"

#define COUNT  8
#define LENGTH (COUNT * CHUNK)

struct pair {
    struct exporter ex;
    uint64_t base;
    CUdeviceptr mirror;
};

/* An exporter with COUNT chunks of seed 1, and their mirror here. */
static void start(struct pair *pair)
{
    uint8_t key[KEY_SIZE];

    pair->ex = ex_start();
    pair->base = ex_reserve(&pair->ex, 2 * LENGTH);
    ex_map(&pair->ex, pair->base, CHUNK, COUNT, 1);
    ex_key(&pair->ex, pair->base, LENGTH, key);
    lane_cuda(0);
    pair->mirror = im_attach(key);
}

/* The first `count` chunks are mapped with the pattern of `seed`, and a key of
 * all comes. */
static void back(struct pair *pair, unsigned count, unsigned seed)
{
    uint8_t key[KEY_SIZE];

    ex_map(&pair->ex, pair->base, CHUNK, count, seed);
    ex_key(&pair->ex, pair->base, LENGTH, key);
    CHECK(im_prepare(key));
}

static void back_anew(struct pair *pair, unsigned seed)
{
    CHECK_CU(ex_unmap(&pair->ex, pair->base, LENGTH));
    back(pair, COUNT, seed);
}

/* --- contexts ------------------------------------------------------------- */

/* What UCX makes in a context. */
struct lane {
    CUstream stream;
    CUdeviceptr buffer;
};

static struct lane open_lane(void)
{
    struct lane lane;

    CHECK_CU(vmml_cuStreamCreate(lane_caller(), &lane.stream,
                                 CU_STREAM_NON_BLOCKING));
    CHECK_CU(cuMemAlloc_v2(&lane.buffer, LENGTH));
    return lane;
}

/* The same; its stream has the name of one that is gone, if that can be had. */
static struct lane open_lane_again(CUstream name)
{
    struct lane lane = open_lane();
    unsigned tries;

    for (tries = 0; lane.stream != name && tries < 16; tries++)
        CHECK_CU(vmml_cuStreamCreate(lane_caller(), &lane.stream,
                                     CU_STREAM_NON_BLOCKING));
    return lane;
}

static CUresult get(const struct lane *lane, const struct pair *pair,
                    unsigned chunk, unsigned count)
{
    return vmml_cuMemcpyDtoDAsync_v2(
        lane_caller(), lane->buffer + chunk * CHUNK,
        pair->mirror + chunk * CHUNK, count * CHUNK, lane->stream);
}

static bool has_got(const struct lane *lane, const struct pair *pair,
                    unsigned chunk, unsigned count, unsigned seed)
{
    return lane_differs(
               sim_host_view(lane->buffer + chunk * CHUNK, count * CHUNK),
               pair->base + chunk * CHUNK, count * CHUNK,
               seed) == count * CHUNK;
}

static void check_lane(const struct lane *lane, const struct pair *pair,
                       unsigned seed)
{
    memset(sim_host_view(lane->buffer, LENGTH), 0, LENGTH);
    CHECK_CU(get(lane, pair, 0, COUNT));
    CHECK_CU(cuStreamSynchronize(lane->stream));
    CHECK(has_got(lane, pair, 0, COUNT, seed));
}

/* The exporter gives memory back while a copy of this lane runs. */
static void check_waits(const struct lane *lane, struct pair *pair,
                        unsigned seed)
{
    long unmaps;

    memset(sim_host_view(lane->buffer, LENGTH), 0, LENGTH);
    sim_hold_copies(1);
    CHECK_CU(get(lane, pair, 0, COUNT));
    CHECK_EQUAL(sim_wait_held(1, 10000), 0);
    unmaps = sim_call_count("cuMemUnmap");
    CHECK_CU(ex_unmap(&pair->ex, pair->base, CHUNK));
    usleep(450000); /* the watcher's turn */
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), unmaps);
    sim_hold_copies(0);
    CHECK_CU(cuStreamSynchronize(lane->stream));
    CHECK(has_got(lane, pair, 0, COUNT, seed));
    back(pair, 1, seed);
}

/* The primary context is reset, and is the next one at the same address. */
static void contexts_are_reset(void)
{
    struct pair pair;
    struct lane old[3], new;
    unsigned round, i;

    start(&pair);
    for (round = 1; round < 3; round++) {
        for (i = 0; i < 3; i++) {
            old[i] = open_lane();
            check_lane(&old[i], &pair, round);
            vmml_order_fence();
        }
        /* Over, which nobody has told vmmlane. */
        CHECK_CU(get(&old[0], &pair, 0, 1));
        CHECK_CU(cuStreamSynchronize(old[0].stream));
        CHECK_CU(vmml_cuStreamDestroy_v2(lane_caller(), old[1].stream));
        CHECK_CU(cuDevicePrimaryCtxReset_v2(0));
        lane_cuda(0);
        new = open_lane();
        check_waits(&new, &pair, round);
        back_anew(&pair, round + 1);
        vmml_order_fence();
        check_lane(&new, &pair, round + 1);
    }
    ex_stop(&pair.ex);
}

/* Contexts that a program makes and destroys, in which UCX left streams. */
static void contexts_come_and_go(void)
{
    struct pair pair;
    struct lane lane = {0}, other;
    CUcontext context;
    unsigned round;

    start(&pair);
    other = open_lane();
    for (round = 1; round < 4; round++) {
        CHECK_CU(cuCtxCreate_v2(&context, 0, 0));
        lane = open_lane_again(lane.stream);
        check_waits(&lane, &pair, round);
        check_lane(&lane, &pair, round);
        /* Over, which nobody has told vmmlane. */
        CHECK_CU(get(&lane, &pair, 0, 1));
        CHECK_CU(cuStreamSynchronize(lane.stream));
        CHECK_CU(cuCtxDestroy_v2(context));
        vmml_order_fence();
        check_lane(&other, &pair, round);
        back_anew(&pair, round + 1);
        check_lane(&other, &pair, round + 1);
    }
    ex_stop(&pair.ex);
}

/* --- threads -------------------------------------------------------------- */

#define READERS 40 /* more than have a place of their own */

struct reader {
    struct pair *pair;
    unsigned seed;
    unsigned number;
    bool leaves; /* with its copy in flight */
    struct lane lane;
};

static void *read_and_end(void *arg)
{
    struct reader *reader = arg;
    unsigned i;

    lane_cuda(0);
    vmml_count(keys_unpacked); /* a place, where one is left */
    for (i = 0; !reader->leaves && i < 3; i++) {
        CHECK_CU(get(&reader->lane, reader->pair, reader->number % COUNT, 1));
        CHECK_CU(cuStreamSynchronize(reader->lane.stream));
        CHECK(has_got(&reader->lane, reader->pair, reader->number % COUNT, 1,
                      reader->seed));
    }
    if (reader->leaves)
        CHECK_CU(get(&reader->lane, reader->pair, reader->number % COUNT, 1));
    return NULL;
}

static void run_readers(struct reader *readers, struct pair *pair,
                        unsigned seed, bool leave)
{
    pthread_t ids[READERS];
    unsigned i;

    for (i = 0; i < READERS; i++) {
        readers[i].pair = pair;
        readers[i].number = i;
        readers[i].seed = seed;
        readers[i].leaves = leave;
        CHECK_EQUAL(pthread_create(&ids[i], NULL, read_and_end, &readers[i]),
                    0);
    }
    for (i = 0; i < READERS; i++)
        CHECK_EQUAL(pthread_join(ids[i], NULL), 0);
}

/* Threads that end, also with a copy in flight: it is waited for. */
static void threads_come_and_go(void)
{
    struct reader readers[READERS];
    struct pair pair;
    unsigned seed, i;
    long unmaps;

    start(&pair);
    for (i = 0; i < READERS; i++)
        readers[i].lane = open_lane();
    for (seed = 1; seed < 4; seed++) {
        run_readers(readers, &pair, seed, false);
        sim_hold_copies(1);
        run_readers(readers, &pair, seed, true);
        CHECK_EQUAL(sim_wait_held(READERS, 10000), 0);
        unmaps = sim_call_count("cuMemUnmap");
        CHECK_CU(ex_unmap(&pair.ex, pair.base, LENGTH));
        usleep(450000); /* the watcher's turn */
        CHECK_EQUAL(sim_call_count("cuMemUnmap"), unmaps);
        sim_hold_copies(0);
        for (i = 0; i < READERS; i++) {
            CHECK_CU(cuStreamSynchronize(readers[i].lane.stream));
            CHECK(has_got(&readers[i].lane, &pair, i % COUNT, 1, seed));
        }
        back(&pair, COUNT, seed + 1);
    }
    ex_stop(&pair.ex);
}

/* --- forks ---------------------------------------------------------------- */

/* UCX that has posted copies, and no lane: what is known of its streams, and
 * the lock of that, are not the child's. */
static void a_fork_after_a_copy(void)
{
    struct lane lane;
    int status;
    pid_t pid;

    CHECK(setenv("VMMLANE_STATS", "off", 1) == 0);
    lane_cuda(0);
    lane = open_lane();
    CHECK_CU(vmml_cuMemcpyDtoDAsync_v2(
        lane_caller(), lane.buffer, lane.buffer + CHUNK, CHUNK, lane.stream));
    CHECK_CU(cuStreamSynchronize(lane.stream));
    CHECK(vmml_order_last != NULL);
    pid = fork();
    if (pid == 0) {
        CHECK(vmml_in_child);
        CHECK(atomic_load(&vmml_order_last->stream) == NULL);
        _exit(0);
    }
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* --- growth --------------------------------------------------------------- */

/* An old chunk in the middle is other memory now, and no hook saw it. */
static void growth_finds_what_was_replaced(void)
{
    struct pair pair;
    uint8_t key[KEY_SIZE];
    unsigned seed, chunk;

    start(&pair);
    im_expect(pair.mirror, pair.base, LENGTH, 1);
    for (seed = 2; seed < 6; seed++) {
        chunk = seed % COUNT;
        CHECK_CU(ex_unmap_unseen(&pair.ex, pair.base + chunk * CHUNK, CHUNK));
        ex_map_unseen(&pair.ex, pair.base + chunk * CHUNK, CHUNK, 1, seed);
        ex_map(&pair.ex, pair.base + LENGTH + (seed - 2) * CHUNK, CHUNK, 1,
               seed);
        ex_key(&pair.ex, pair.base, LENGTH + (seed - 1) * CHUNK, key);
        CHECK(im_prepare(key));
        im_expect(pair.mirror + chunk * CHUNK, pair.base + chunk * CHUNK, CHUNK,
                  seed);
        im_expect(pair.mirror + LENGTH + (seed - 2) * CHUNK,
                  pair.base + LENGTH + (seed - 2) * CHUNK, CHUNK, seed);
        im_expect(pair.mirror, pair.base, 2 * CHUNK, 1);
    }
    ex_stop(&pair.ex);
}

/* --- histories ------------------------------------------------------------ */

#define SPAN  24 /* granules of a window, at most */
#define REGS  5
#define STALE 8

/* A granule: what is mapped there, and what may still be read there because it
 * ended unseen. */
struct granule {
    unsigned seed;         /* 0: nothing */
    unsigned first, count; /* the mapping's */
    unsigned stale[STALE];
    unsigned stale_count;
};

struct history {
    struct exporter ex;
    unsigned random;
    uint64_t base;
    unsigned span;
    struct granule granules[SPAN];
    struct {
        uint64_t memh; /* 0: none */
        unsigned from, to;
    } regs[REGS];
    CUdeviceptr mirror; /* 0: none yet */
    unsigned seeds, reads, refusals;
};

static unsigned pick(struct history *history, unsigned below)
{
    return (unsigned)rand_r(&history->random) % below;
}

static uint64_t at(const struct history *history, unsigned granule)
{
    return history->base + granule * CHUNK;
}

static void forget_stale(struct history *history, unsigned from, unsigned to)
{
    for (; from < to; from++)
        history->granules[from].stale_count = 0;
}

static void end_mapping(struct granule *granule, bool seen)
{
    if (seen)
        granule->stale_count = 0;
    else if (granule->seed != 0 && granule->stale_count < STALE)
        granule->stale[granule->stale_count++] = granule->seed;
    granule->seed = 0;
}

static void do_map(struct history *history, bool seen)
{
    unsigned from = pick(history, history->span), count = 1 + pick(history, 4);
    unsigned i;

    for (i = 0; i < count; i++)
        if (from + i >= history->span ||
            history->granules[from + i].seed != 0 ||
            history->granules[from + i].stale_count >= STALE - 1)
            break;
    count = i;
    if (count == 0)
        return;
    history->seeds++;
    if (seen)
        ex_map(&history->ex, at(history, from), count * CHUNK, 1,
               history->seeds);
    else
        ex_map_unseen(&history->ex, at(history, from), count * CHUNK, 1,
                      history->seeds);
    for (i = from; i < from + count; i++) {
        history->granules[i].seed = history->seeds;
        history->granules[i].first = from;
        history->granules[i].count = count;
    }
    if (seen)
        forget_stale(history, from, from + count);
}

/* One mapping, or all that a few granules hold. */
static void do_unmap(struct history *history, bool seen)
{
    unsigned from = pick(history, history->span), to, i;

    if (history->granules[from].seed == 0)
        return;
    to = history->granules[from].first + history->granules[from].count;
    from = history->granules[from].first;
    while (to < history->span && history->granules[to].seed != 0 &&
           pick(history, 2) == 0)
        to += history->granules[to].count;
    CHECK_CU((seen ? ex_unmap : ex_unmap_unseen)(
        &history->ex, at(history, from), (to - from) * CHUNK));
    for (i = from; i < to; i++)
        end_mapping(&history->granules[i], seen);
}

static bool is_allowed(const struct granule *granule, unsigned seed)
{
    unsigned i;

    for (i = 0; i < granule->stale_count; i++)
        if (granule->stale[i] == seed)
            return true;
    return granule->seed == seed && seed != 0;
}

static bool holds_allowed(const struct history *history, unsigned granule,
                          const uint8_t *bytes)
{
    unsigned seed;

    for (seed = 1; seed <= history->seeds; seed++)
        if (lane_differs(bytes, at(history, granule), CHUNK, seed) == CHUNK) {
            if (is_allowed(&history->granules[granule], seed))
                return true;
            fprintf(stderr, "granule %u: bytes of seed %u, mapped is %u\n",
                    granule, seed, history->granules[granule].seed);
        }
    return false;
}

static void do_read(struct history *history, unsigned from, unsigned count,
                    bool must)
{
    uint8_t *bytes = sim_host_view(im_buffer(), count * CHUNK);
    CUresult result;
    unsigned i;

    if (history->mirror == 0)
        return;
    memset(bytes, 0xee, count * CHUNK);
    result =
        im_post(im_buffer(), history->mirror + from * CHUNK, count * CHUNK);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    history->reads++;
    if (result != CUDA_SUCCESS) {
        CHECK_EQUAL(result, CUDA_ERROR_INVALID_VALUE);
        CHECK(!must);
        history->refusals++;
        return;
    }
    for (i = 0; i < count; i++)
        CHECK(holds_allowed(history, from + i, bytes + i * CHUNK));
}

/* What is mapped and known to be. */
static void read_mapped(struct history *history, unsigned from, unsigned to)
{
    unsigned first;

    while (from < to) {
        for (first = from; from < to && history->granules[from].seed != 0 &&
                           history->granules[from].stale_count == 0;
             from++)
            continue;
        if (from > first)
            do_read(history, first, from - first, true);
        else
            from++;
    }
}

static void do_pack(struct history *history, unsigned i, bool fresh)
{
    unsigned from = history->regs[i].from, to = history->regs[i].to;
    uint8_t key[KEY_SIZE];

    if (!fresh) {
        from += pick(history, to - from);
        to = from + 1 + pick(history, to - from);
    }
    CHECK(ex_pack(&history->ex, history->regs[i].memh, at(history, from),
                  (to - from) * CHUNK, key));
    CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
    if (fresh)
        forget_stale(history, from, to);
    CHECK(im_prepare(key));
    history->mirror = im_open(key);
    read_mapped(history, from, to);
}

static void do_reg(struct history *history)
{
    unsigned i = pick(history, REGS), from, to;

    if (history->regs[i].memh != 0) {
        ex_dereg(&history->ex, history->regs[i].memh);
        history->regs[i].memh = 0;
        return;
    }
    from = pick(history, history->span);
    while (from < history->span && history->granules[from].seed == 0)
        from++;
    if (from == history->span)
        return;
    to = from + 1 + pick(history, history->span - from);
    if (pick(history, 4) != 0) /* a run without a hole */
        for (to = from + 1;
             to < history->span && history->granules[to].seed != 0; to++)
            continue;
    history->regs[i].from = from;
    history->regs[i].to = to;
    history->regs[i].memh =
        ex_reg(&history->ex, at(history, from), (to - from) * CHUNK);
    CHECK(history->regs[i].memh != 0);
    do_pack(history, i, true);
}

/* The reservation goes, and comes back, as large or not. */
static void do_reserve(struct history *history)
{
    unsigned i, span = 8 + pick(history, SPAN - 8);

    for (i = 0; i < REGS; i++) {
        if (history->regs[i].memh != 0)
            ex_dereg(&history->ex, history->regs[i].memh);
        history->regs[i].memh = 0;
    }
    for (i = 0; i < history->span; i++) {
        if (history->granules[i].seed == 0)
            continue;
        CHECK_CU(ex_unmap(&history->ex, at(history, i),
                          history->granules[i].count * CHUNK));
        i += history->granules[i].count - 1;
    }
    ex_free_address(&history->ex, history->base, history->span * CHUNK);
    memset(history->granules, 0, sizeof(history->granules));
    if (history->mirror != 0 && pick(history, 2) == 0)
        CHECK(im_close(history->mirror));
    if (pick(history, 3) == 0)
        span = history->span;
    do_read(history, 0, history->span, false);
    ex_reserve_at(&history->ex, history->base, span * CHUNK);
    do_read(history, 0, 1, false);
    history->span = span;
    history->mirror = 0;
}

static void one_step(struct history *history)
{
    unsigned step = pick(history, 100), from;

    if (step < 25) {
        do_map(history, step < 13);
    } else if (step < 42) {
        do_unmap(history, step < 33);
    } else if (step < 54) {
        do_reg(history);
    } else if (step < 84) {
        from = pick(history, REGS);
        if (history->regs[from].memh != 0)
            do_pack(history, from, false);
    } else if (step < 99) {
        from = pick(history, history->span);
        do_read(history, from, 1 + pick(history, history->span - from), false);
    } else {
        do_reserve(history);
    }
}

/* Chunks of several sizes, mapped, unmapped and replaced, seen or not; what is
 * registered and packed in parts; the reservation made anew. Each byte that a
 * copy gives is of what is mapped, or of what ended unseen since a registration
 * was packed there for the first time; and what a key names can be read. */
static void histories(void)
{
    const char *rounds = getenv("VMML_TEST_HISTORIES");
    const char *first = getenv("VMML_TEST_HISTORY");
    unsigned count = rounds != NULL ? (unsigned)atoi(rounds) : 8, round, step;
    static struct history history;

    history.ex = ex_start();
    history.span = SPAN;
    history.base = ex_reserve(&history.ex, SPAN * CHUNK);
    lane_cuda(0);
    for (round = 0; round < count; round++) {
        history.random = round + (first != NULL ? (unsigned)atoi(first) : 0);
        if (rounds != NULL)
            fprintf(stderr, "history %u: %u reads, %u refused\n",
                    history.random, history.reads, history.refusals);
        do_reserve(&history);
        history.seeds = 0;
        for (step = 0; step < 150; step++)
            one_step(&history);
    }
    CHECK(history.refusals < history.reads);
    ex_stop(&history.ex);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(contexts_are_reset),
        LANE_PAIR(contexts_come_and_go),
        LANE_PAIR(threads_come_and_go),
        LANE_TEST(a_fork_after_a_copy),
        LANE_PAIR(growth_finds_what_was_replaced),
        LANE_PAIR(histories),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
