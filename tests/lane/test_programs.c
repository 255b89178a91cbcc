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

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(contexts_are_reset),
        LANE_PAIR(contexts_come_and_go),
        LANE_PAIR(threads_come_and_go),
        LANE_PAIR(growth_finds_what_was_replaced),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
