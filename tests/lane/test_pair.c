/* SPDX-License-Identifier: MIT */
/*
 * Two processes: every byte through a mirror, growth, revocation, ends.
 */
#include "exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "hooks.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"

#define WINDOW (64 * CHUNK)

/* An exporter with `count` chunks of seed 1 that are registered and packed,
 * and this process ready to import. */
struct pair {
    struct exporter ex;
    uint64_t base;
    uint64_t memh;
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;
};

static void start(struct pair *pair, unsigned count)
{
    pair->ex = ex_start();
    pair->base = ex_reserve(&pair->ex, WINDOW);
    ex_map(&pair->ex, pair->base, CHUNK, count, 1);
    pair->memh = ex_reg(&pair->ex, pair->base, count * CHUNK);
    CHECK(ex_pack(&pair->ex, pair->memh, pair->base, count * CHUNK, pair->key));
    lane_cuda(0);
    im_buffer();
    im_stream();
    pair->mirror = 0;
}

static void attach(struct pair *pair)
{
    pair->mirror = im_attach(pair->key);
}

/* Read [from, from+length) of the window and compare with seed's pattern. */
static void expect(const struct pair *pair, size_t from, size_t length,
                   unsigned seed)
{
    im_expect(pair->mirror + from, pair->base + from, length, seed);
}

static void refused(const struct pair *pair, size_t from, size_t length)
{
    im_refused(pair->mirror + from, length);
}

/* After the exporter's death: right until it is noticed, then refused. */
static void refused_soon(const struct pair *pair, size_t from, size_t length,
                         unsigned seed)
{
    uint64_t end = lane_ms() + LANE_WAIT_MS;

    while (im_post(im_buffer(), pair->mirror + from, length) == CUDA_SUCCESS) {
        CHECK_CU(cuStreamSynchronize(im_stream()));
        CHECK_EQUAL(lane_differs(sim_host_view(im_buffer(), length),
                                 pair->base + from, length, seed),
                    length);
        CHECK(lane_ms() < end);
    }
    refused(pair, from, length);
}

static void repack(struct pair *pair, size_t length)
{
    CHECK(ex_pack(&pair->ex, ex_reg(&pair->ex, pair->base, length), pair->base,
                  length, pair->key));
    CHECK(im_prepare(pair->key));
}

/* --- bytes ---------------------------------------------------------------- */

static void every_border(void)
{
    struct pair pair;
    size_t border, back, length;

    start(&pair, 8);
    attach(&pair);
    expect(&pair, 0, 8 * CHUNK, 1);
    for (border = CHUNK; border <= 7 * CHUNK; border += CHUNK) {
        for (back = 1; back <= 9; back++)
            for (length = back; length <= back + 9; length++)
                expect(&pair, border - back, length, 1);
        expect(&pair, border - 4096, 8192, 1);
        expect(&pair, border - 1, CHUNK + 1, 1);
    }
    expect(&pair, 8 * CHUNK - 1, 1, 1);
    ex_stop(&pair.ex);
}

static void puts_reach_the_exporter(void)
{
    struct pair pair;

    start(&pair, 8);
    attach(&pair);
    im_put(pair.mirror + CHUNK - 16, pair.base + CHUNK - 16, 2 * CHUNK + 32, 2);
    CHECK(ex_holds(&pair.ex, pair.base + CHUNK - 16, 16, 2));
    CHECK(ex_holds(&pair.ex, pair.base + CHUNK, CHUNK, 2));
    CHECK(ex_holds(&pair.ex, pair.base + 2 * CHUNK, CHUNK, 2));
    CHECK(ex_holds(&pair.ex, pair.base + 3 * CHUNK, 16, 2));
    CHECK(ex_holds(&pair.ex, pair.base, CHUNK - 16, 1));
    CHECK(ex_holds(&pair.ex, pair.base + 3 * CHUNK + 16, CHUNK - 16, 1));
    /* And what the exporter writes now is read now. */
    ex_fill(&pair.ex, pair.base + CHUNK, CHUNK, 3);
    expect(&pair, CHUNK, CHUNK, 3);
    ex_stop(&pair.ex);
}

/* Over few chunks in one call, over many in pieces; all bytes by either. */
static void pieces_of_a_copy(void)
{
    enum { MOST = 60 };
    static const struct {
        unsigned chunks, to_one, to_chunks; /* calls, by the local memory */
    } copies[] = {{8, 1, 1}, {23, 1, 1}, {24, 2, 2}, {MOST, 3, 4}};
    CUdeviceptr local[2];
    struct pair pair;
    unsigned i, side;

    start(&pair, MOST);
    attach(&pair);
    CHECK_CU(cuMemAlloc_v2(&local[0], MOST * CHUNK));
    local[1] = lane_reserve(MOST * CHUNK);
    lane_map_run(local[1], CHUNK, MOST, 9);
    for (i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
        for (side = 0; side < 2; side++) {
            size_t length = copies[i].chunks * CHUNK;

            sim_reset_counts();
            CHECK_CU(im_post(local[side], pair.mirror, length));
            CHECK_CU(cuStreamSynchronize(im_stream()));
            CHECK_EQUAL(sim_call_count("cuMemcpyDtoDAsync_v2"),
                        side == 0 ? copies[i].to_one : copies[i].to_chunks);
        }
    }
    for (side = 0; side < 2; side++)
        for (i = 0; i < MOST; i++)
            CHECK_EQUAL(
                lane_differs(sim_host_view(local[side] + i * CHUNK, CHUNK),
                             pair.base + i * CHUNK, CHUNK, 1),
                CHUNK);
    ex_stop(&pair.ex);
}

static void chunks_of_all_sizes(void)
{
    static const unsigned sizes[] = {1, 10, 1, 3, 2};
    struct pair pair;
    size_t at = CHUNK, from;
    unsigned i;

    start(&pair, 1);
    for (i = 0; i < 5; i++) {
        ex_map(&pair.ex, pair.base + at, sizes[i] * CHUNK, 1, 1);
        at += sizes[i] * CHUNK;
    }
    ex_key(&pair.ex, pair.base, at, pair.key);
    attach(&pair);
    for (from = 0; from < at; from += CHUNK)
        expect(&pair, from, CHUNK, 1);
    expect(&pair, CHUNK / 2, at - CHUNK, 1);
    ex_stop(&pair.ex);
}

static void prepared_keys_are_one_mirror(void)
{
    struct pair pair;
    uint8_t other[KEY_SIZE];
    CUdeviceptr first;

    start(&pair, 4);
    attach(&pair);
    first = pair.mirror;
    ex_key(&pair.ex, pair.base + 3 * CHUNK, CHUNK, other);
    CHECK_EQUAL(im_attach(other), first);
    CHECK(im_close(first));
    CHECK(im_close(first));
    /* No third one is open, and the driver knows no such pointer. */
    CHECK(!im_close(first));
    CHECK(!im_close(first + CHUNK));
    CHECK_EQUAL(im_attach(pair.key), first);
    CHECK_EQUAL(sim_call_count("cuMemAddressReserve"), 1);
    ex_stop(&pair.ex);
}

/* The driver gives the mirror the very place of the window in its exporter. */
static uint64_t offered;
static unsigned offers;

static CUresult CUDAAPI offer_place(CUdeviceptr *ptr, size_t size, size_t align,
                                    CUdeviceptr address,
                                    unsigned long long flags)
{
    return cuMemAddressReserve(ptr, size, align,
                               offers++ == 0 ? offered : address, flags);
}

/* UCX 1.20 and 1.21 take equal addresses for the same process. */
static void a_mirror_lies_elsewhere(void)
{
    struct pair pair;

    start(&pair, 1);
    offered = lane_reserve(WINDOW);
    CHECK_CU(cuMemAddressFree(offered, WINDOW));
    pair.base = offered;
    ex_reserve_at(&pair.ex, offered, WINDOW);
    ex_map(&pair.ex, offered, CHUNK, 2, 1);
    ex_key(&pair.ex, offered, 2 * CHUNK, pair.key);
    sim_reset_counts();
    lane_real()->cuMemAddressReserve = offer_place;
    attach(&pair);
    CHECK(pair.mirror != pair.base);
    CHECK_EQUAL(offers, 2);
    CHECK_EQUAL(sim_call_count("cuMemAddressFree"), 1);
    expect(&pair, 0, 2 * CHUNK, 1);
    ex_stop(&pair.ex);
}

/* --- growth --------------------------------------------------------------- */

static long importer_calls(void)
{
    static const char *const names[] = {
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
        "cuMemRelease",
        "cuMemAddressReserve",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
    };
    long sum = 0;
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        sum += sim_call_count(names[i]);
    return sum;
}

static void nothing_new_costs_nothing(void)
{
    struct pair pair;
    unsigned i;

    start(&pair, 8);
    attach(&pair);
    sim_reset_counts();
    for (i = 0; i < 100; i++)
        CHECK(im_prepare(pair.key));
    CHECK_EQUAL(importer_calls(), 0);
    for (i = 0; i < 100; i++)
        CHECK_CU(im_post(im_buffer(), pair.mirror + i, 4096));
    CHECK_EQUAL(importer_calls(), 0);
    CHECK_EQUAL(sim_call_count("cuMemcpyDtoDAsync_v2"), 100);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    ex_stop(&pair.ex);
}

static void growth_costs_by_new_chunks(void)
{
    static const unsigned steps[] = {1, 8, 32};
    struct pair pair;
    size_t at = 4 * CHUNK;
    uint8_t old[KEY_SIZE];
    unsigned i;

    start(&pair, 4);
    attach(&pair);
    memcpy(old, pair.key, sizeof(old));
    for (i = 0; i < 3; i++) {
        ex_map(&pair.ex, pair.base + at, CHUNK, steps[i], 1);
        at += steps[i] * CHUNK;
        sim_reset_counts();
        repack(&pair, at);
        CHECK_EQUAL(sim_call_count("cuMemImportFromShareableHandle"), steps[i]);
        CHECK_EQUAL(sim_call_count("cuMemMap"), steps[i]);
        CHECK_EQUAL(sim_call_count("cuMemUnmap"), 0);
        CHECK_EQUAL(sim_call_count("cuMemAddressReserve"), 0);
        CHECK_EQUAL(ex_calls(&pair.ex, "cuMemExportToShareableHandle"),
                    at / CHUNK);
        CHECK(memcmp(old, pair.key, sizeof(old)) == 0);
        CHECK_EQUAL(im_open(pair.key), pair.mirror);
        expect(&pair, at - CHUNK - 1, CHUNK + 1, 1);
        expect(&pair, 0, CHUNK, 1);
    }
    ex_stop(&pair.ex);
}

/* Published by a pack whose key never came here, or not yet. */
static void growth_is_seen_by_a_copy(void)
{
    struct pair pair;
    uint8_t other[KEY_SIZE];

    start(&pair, 2);
    attach(&pair);
    expect(&pair, 0, 2 * CHUNK, 1);
    refused(&pair, 2 * CHUNK, 10);
    ex_map(&pair.ex, pair.base + 2 * CHUNK, CHUNK, 2, 1);
    refused(&pair, 2 * CHUNK, 10);
    ex_key(&pair.ex, pair.base + 2 * CHUNK, 2 * CHUNK, other);
    expect(&pair, CHUNK, 3 * CHUNK, 1);
    ex_stop(&pair.ex);
}

static void growth_below(void)
{
    struct pair pair;

    start(&pair, 1);
    ex_map(&pair.ex, pair.base + 8 * CHUNK, CHUNK, 2, 1);
    ex_key(&pair.ex, pair.base + 8 * CHUNK, 2 * CHUNK, pair.key);
    attach(&pair);
    ex_map(&pair.ex, pair.base + 4 * CHUNK, CHUNK, 4, 1);
    ex_key(&pair.ex, pair.base + 4 * CHUNK, 6 * CHUNK, pair.key);
    CHECK(im_prepare(pair.key));
    expect(&pair, 4 * CHUNK, 6 * CHUNK, 1);
    ex_stop(&pair.ex);
}

/* --- revocation ----------------------------------------------------------- */

static void revoked_is_refused(void)
{
    struct pair pair;
    unsigned i;

    start(&pair, 8);
    attach(&pair);
    CHECK_CU(ex_unmap(&pair.ex, pair.base + 3 * CHUNK, CHUNK));
    for (i = 0; i < 3; i++) {
        refused(&pair, 3 * CHUNK, 1);
        refused(&pair, 2 * CHUNK, 3 * CHUNK);
        refused(&pair, 4 * CHUNK - 1, 2);
        refused(&pair, 3 * CHUNK - 1, 2);
    }
    expect(&pair, 0, 3 * CHUNK, 1);
    expect(&pair, 4 * CHUNK, 4 * CHUNK, 1);
    /* New memory at the old place, not registered yet. */
    ex_map(&pair.ex, pair.base + 3 * CHUNK, CHUNK, 1, 2);
    refused(&pair, 3 * CHUNK, CHUNK);
    repack(&pair, 8 * CHUNK);
    expect(&pair, 3 * CHUNK, CHUNK, 2);
    expect(&pair, 2 * CHUNK, CHUNK, 1);
    ex_stop(&pair.ex);
}

static void rounds_of_backing(void)
{
    struct pair pair;
    unsigned round, fds, ex_fds;

    start(&pair, 8);
    attach(&pair);
    expect(&pair, 0, 8 * CHUNK, 1);
    fds = lane_fd_count();
    ex_fds = ex_fd_count(&pair.ex);
    for (round = 2; round < 12; round++) {
        CHECK_CU(ex_unmap(&pair.ex, pair.base, 8 * CHUNK));
        refused(&pair, 0, 8 * CHUNK);
        ex_map(&pair.ex, pair.base, CHUNK, 8, round);
        repack(&pair, 8 * CHUNK);
        CHECK_EQUAL(im_open(pair.key), pair.mirror);
        expect(&pair, 0, 8 * CHUNK, round);
        CHECK_EQUAL(lane_fd_count(), fds);
        CHECK_EQUAL(ex_fd_count(&pair.ex), ex_fds);
    }
    ex_stop(&pair.ex);
}

static void unseen_unmap_is_found_by_pack(void)
{
    struct pair pair;
    unsigned round;

    start(&pair, 8);
    attach(&pair);
    for (round = 2; round < 6; round++) {
        CHECK_CU(ex_unmap_unseen(&pair.ex, pair.base + CHUNK, 4 * CHUNK));
        ex_map_unseen(&pair.ex, pair.base + CHUNK, 2 * CHUNK, 2, round);
        repack(&pair, 8 * CHUNK);
        expect(&pair, CHUNK, 4 * CHUNK, round);
        CHECK_CU(ex_unmap_unseen(&pair.ex, pair.base + CHUNK, 4 * CHUNK));
        ex_map_unseen(&pair.ex, pair.base + CHUNK, CHUNK, 4, round + 10);
        repack(&pair, 8 * CHUNK);
        expect(&pair, CHUNK, 4 * CHUNK, round + 10);
        expect(&pair, 0, CHUNK, 1);
        expect(&pair, 5 * CHUNK, 3 * CHUNK, 1);
    }
    ex_stop(&pair.ex);
}

static void refused_unmap_goes_on(void)
{
    struct pair pair;

    start(&pair, 4);
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    ex_refuse_unmap(&pair.ex);
    CHECK_EQUAL(ex_unmap(&pair.ex, pair.base, 4 * CHUNK),
                CUDA_ERROR_INVALID_VALUE);
    expect(&pair, 0, 4 * CHUNK, 1);
    CHECK(im_prepare(pair.key));
    expect(&pair, 0, 4 * CHUNK, 1);
    ex_stop(&pair.ex);
}

static void idle_memory_is_present_or_refused(void)
{
    struct pair pair;
    uint64_t other;
    uint64_t end;

    start(&pair, 4);
    attach(&pair);
    other = ex_reg(&pair.ex, pair.base + 3 * CHUNK, CHUNK);
    ex_dereg(&pair.ex, pair.memh);
    ex_fill(&pair.ex, pair.base, CHUNK, 5);
    expect(&pair, 0, CHUNK, 5);
    end = lane_ms() + LANE_WAIT_MS;
    while (im_post(im_buffer(), pair.mirror, CHUNK) == CUDA_SUCCESS) {
        CHECK(lane_ms() < end);
        usleep(20000);
    }
    CHECK_CU(cuStreamSynchronize(im_stream()));
    refused(&pair, 0, CHUNK);
    /* What another registration covers is not touched. */
    expect(&pair, 3 * CHUNK, CHUNK, 1);
    ex_dereg(&pair.ex, other);
    ex_stop(&pair.ex);
}

static void freed_window(void)
{
    struct pair pair;
    uint8_t old[KEY_SIZE];

    start(&pair, 4);
    attach(&pair);
    memcpy(old, pair.key, sizeof(old));
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    ex_free_address(&pair.ex, pair.base, WINDOW);
    refused(&pair, 0, CHUNK);
    CHECK(!im_prepare(old));
    /* Open never fails for a key that was let through. */
    CHECK_EQUAL(im_open(old), pair.mirror);
    refused(&pair, 0, CHUNK);
    ex_reserve_at(&pair.ex, pair.base, WINDOW);
    ex_map(&pair.ex, pair.base, CHUNK, 4, 2);
    refused(&pair, 0, CHUNK);
    ex_key(&pair.ex, pair.base, 4 * CHUNK, pair.key);
    CHECK(memcmp(old, pair.key, sizeof(old)) == 0);
    CHECK(im_prepare(old));
    expect(&pair, 0, 4 * CHUNK, 2);

    /* Another size at the same base is another window. */
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    ex_free_address(&pair.ex, pair.base, WINDOW);
    ex_reserve_at(&pair.ex, pair.base, WINDOW / 2);
    ex_map(&pair.ex, pair.base, CHUNK, 4, 3);
    ex_key(&pair.ex, pair.base, 4 * CHUNK, pair.key);
    refused(&pair, 0, CHUNK);
    CHECK(im_attach(pair.key) != pair.mirror);
    pair.mirror = im_open(pair.key);
    expect(&pair, 0, 4 * CHUNK, 3);
    ex_stop(&pair.ex);
}

/* --- bounds --------------------------------------------------------------- */

static void copies_stay_in_the_window(void)
{
    struct pair pair;

    start(&pair, 64);
    attach(&pair);
    expect(&pair, WINDOW - CHUNK, CHUNK, 1);
    refused(&pair, WINDOW - CHUNK, CHUNK + 1);
    refused(&pair, WINDOW - 1, 2);
    refused(&pair, WINDOW, 1);
    refused(&pair, WINDOW + CHUNK - 1, 1);
    CHECK_EQUAL(im_post(im_buffer(), pair.mirror, SIZE_MAX),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(im_post(im_buffer(), pair.mirror + 5, SIZE_MAX - 3),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(sim_call_count("cuMemcpyDtoDAsync_v2"), 1);
    ex_stop(&pair.ex);
}

/* Three copies in one batch, as UCX 1.23 posts them. */
static CUresult post_batch(CUdeviceptr dsts[3], CUdeviceptr srcs[3],
                           size_t sizes[3])
{
    CUmemcpyAttributes attributes = {.srcAccessOrder =
                                         CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t index = 0;

    return vmml_cuMemcpyBatchAsync_v2(lane_caller(), dsts, srcs, sizes, 3,
                                      &attributes, &index, 1, im_stream());
}

/* A batch is checked as a whole before any of it is posted. */
static void batches_are_checked_whole(void)
{
    struct pair pair;
    CUdeviceptr dsts[3], srcs[3];
    size_t sizes[3] = {CHUNK, CHUNK, CHUNK};
    unsigned i;

    start(&pair, 8);
    attach(&pair);
    for (i = 0; i < 3; i++) {
        dsts[i] = im_buffer() + i * CHUNK;
        srcs[i] = pair.mirror + 2 * i * CHUNK;
    }
    CHECK_CU(post_batch(dsts, srcs, sizes));
    CHECK_CU(cuStreamSynchronize(im_stream()));
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(lane_differs(sim_host_view(dsts[i], CHUNK),
                                 pair.base + 2 * i * CHUNK, CHUNK, 1),
                    CHUNK);
    CHECK_CU(ex_unmap(&pair.ex, pair.base + 4 * CHUNK, CHUNK));
    memset(sim_host_view(im_buffer(), 3 * CHUNK), 0xee, 3 * CHUNK);
    sim_reset_counts();
    CHECK_EQUAL(post_batch(dsts, srcs, sizes), CUDA_ERROR_INVALID_VALUE);
    srcs[2] = pair.mirror + WINDOW - 1;
    CHECK_EQUAL(post_batch(dsts, srcs, sizes), CUDA_ERROR_INVALID_VALUE);
    /* The driver never saw them: to it a hole is memory of the program. */
    CHECK_EQUAL(sim_call_count("cuMemcpyBatchAsync_v2"), 0);
    /* A chunk that was published since is no hole. */
    ex_map(&pair.ex, pair.base + 4 * CHUNK, CHUNK, 1, 2);
    ex_key(&pair.ex, pair.base + 4 * CHUNK, CHUNK, pair.key);
    srcs[2] = pair.mirror + 4 * CHUNK;
    CHECK_CU(post_batch(dsts, srcs, sizes));
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK_EQUAL(lane_differs(sim_host_view(dsts[2], CHUNK),
                             pair.base + 4 * CHUNK, CHUNK, 2),
                CHUNK);
    ex_stop(&pair.ex);
}

/* --- ends ----------------------------------------------------------------- */

static unsigned ledger_maps(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned count = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "vmmlane-ledger") != NULL;
    fclose(maps);
    return count;
}

static uint64_t used_at_start;

static bool is_memory_back(void *arg)
{
    return sim_memory_used(0) <= used_at_start + *(uint64_t *)arg;
}

static void watcher_gives_back_what_is_revoked(void)
{
    struct pair pair;
    uint64_t more = 4 * CHUNK;

    lane_own_domain();
    start(&pair, 8);
    used_at_start = sim_memory_used(0) - 8 * CHUNK;
    attach(&pair);
    expect(&pair, 0, 8 * CHUNK, 1);
    /* No call of this process from here on. */
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    CHECK(lane_wait(is_memory_back, &more));
    CHECK_CU(ex_unmap(&pair.ex, pair.base + 4 * CHUNK, 4 * CHUNK));
    more = 0;
    CHECK(lane_wait(is_memory_back, &more));
    ex_stop(&pair.ex);
}

static void watcher_gives_back_after_a_kill(void)
{
    struct pair pair;
    uint64_t none = 0;
    unsigned fds;

    lane_own_domain();
    start(&pair, 8);
    used_at_start = sim_memory_used(0) - 8 * CHUNK;
    fds = lane_fd_count();
    attach(&pair);
    expect(&pair, 0, 8 * CHUNK, 1);
    ex_kill(&pair.ex);
    CHECK(lane_wait(is_memory_back, &none));
    refused(&pair, 0, CHUNK);
    CHECK(!im_prepare(pair.key));
    CHECK_EQUAL(im_open(pair.key), pair.mirror);
    refused(&pair, 0, CHUNK);
    CHECK(lane_fd_count() <= fds + 2); /* the watcher's, and a pidfd */
}

static void copies_after_a_kill_are_refused(void)
{
    struct pair pair;

    start(&pair, 2);
    attach(&pair);
    ex_kill(&pair.ex);
    refused_soon(&pair, 0, CHUNK, 1);
    refused(&pair, 0, 1);
}

static bool has_two_ledgers(void *arg)
{
    return ledger_maps() == 2;
}

static void a_second_exporter(void)
{
    struct exporter ex[3];
    uint8_t key[3][KEY_SIZE];
    CUdeviceptr mirror[3];
    uint64_t base[3];
    unsigned i;

    for (i = 0; i < 3; i++)
        ex[i] = ex_start();
    /* The first two have equal addresses. */
    base[0] = base[1] = ex_reserve(&ex[0], WINDOW);
    ex_reserve_at(&ex[1], base[1], WINDOW);
    base[2] = ex_reserve(&ex[2], WINDOW);
    for (i = 0; i < 3; i++) {
        ex_map(&ex[i], base[i], CHUNK, 2, i + 1);
        ex_key(&ex[i], base[i], 2 * CHUNK, key[i]);
    }
    lane_cuda(0);
    for (i = 0; i < 3; i++)
        mirror[i] = im_attach(key[i]);
    for (i = 0; i < 3; i++)
        im_expect(mirror[i], base[i], 2 * CHUNK, i + 1);
    ex_kill(&ex[1]);
    refused_soon(&(struct pair){.mirror = mirror[1], .base = base[1]}, 0, CHUNK,
                 2);
    im_expect(mirror[0], base[0], 2 * CHUNK, 1);
    im_expect(mirror[2], base[2], 2 * CHUNK, 3);
    /* The ledger of the dead one is given back. */
    CHECK(lane_wait(has_two_ledgers, NULL));
    ex_stop(&ex[0]);
    ex_stop(&ex[2]);
}

/* --- failures ------------------------------------------------------------- */

/* A key whose chunks could not all be mapped is not served, the next one is:
 * nothing of the failure sticks. */
static void importer_failures_are_not_remembered(void)
{
    static const char *const calls[] = {
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemSetAccess",
    };
    struct pair pair;
    unsigned i, n, fds, seed = 1;

    start(&pair, 4);
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    fds = lane_fd_count();
    for (i = 0; i < 3; i++)
        for (n = 1; n <= 4; n++) {
            seed++;
            CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
            ex_map(&pair.ex, pair.base, 2 * CHUNK, 2, seed);
            ex_key(&pair.ex, pair.base, 4 * CHUNK, pair.key);
            CHECK_EQUAL(sim_fail(calls[i], n, CUDA_ERROR_UNKNOWN, 0), 0);
            /* Two chunks: later calls do not fail. */
            CHECK_EQUAL(im_prepare(pair.key), n > 2);
            sim_clear_failures();
            CHECK(im_prepare(pair.key));
            expect(&pair, 0, 4 * CHUNK, seed);
            CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
            ex_map(&pair.ex, pair.base, CHUNK, 4, seed);
            repack(&pair, 4 * CHUNK);
            expect(&pair, 0, 4 * CHUNK, seed);
            CHECK_EQUAL(lane_fd_count(), fds);
        }
    ex_stop(&pair.ex);
}

/* Twice in a row: the second answer must not call it served. */
static void a_missing_chunk_stays_unserved(void)
{
    struct pair pair;

    start(&pair, 4);
    CHECK_EQUAL(sim_fail("cuMemMap", 3, CUDA_ERROR_UNKNOWN, 1), 0);
    CHECK(!im_prepare(pair.key));
    CHECK(!im_prepare(pair.key));
    sim_clear_failures();
    /* A copy gets it, too. */
    pair.mirror = im_open(pair.key);
    expect(&pair, 0, 4 * CHUNK, 1);
    CHECK(im_prepare(pair.key));
    ex_stop(&pair.ex);
}

static void no_address_space(void)
{
    struct pair pair;

    start(&pair, 4);
    CHECK_EQUAL(sim_fail("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY, 0),
                0);
    CHECK(!im_prepare(pair.key));
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    ex_stop(&pair.ex);
}

/* --- copies in flight ----------------------------------------------------- */

static void *prepare_on_thread(void *arg)
{
    CHECK_EQUAL(im_prepare(arg), true);
    return NULL;
}

/* The exporter unmaps and backs anew while a copy of the old bytes runs. */
static void a_running_copy_is_waited_for(void)
{
    struct pair pair;
    uint8_t *bytes;
    pthread_t thread;

    start(&pair, 4);
    attach(&pair);
    bytes = sim_host_view(im_buffer(), 4 * CHUNK);
    sim_hold_copies(1);
    CHECK_CU(im_post(im_buffer(), pair.mirror, 4 * CHUNK));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 2 * CHUNK));
    ex_map(&pair.ex, pair.base, CHUNK, 2, 2);
    ex_key(&pair.ex, pair.base, 4 * CHUNK, pair.key);
    CHECK_EQUAL(pthread_create(&thread, NULL, prepare_on_thread, pair.key), 0);
    usleep(300000); /* the watcher comes by as well */
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 0);
    sim_hold_copies(0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    /* The copy read the memory that it was posted on. */
    CHECK_EQUAL(lane_differs(bytes, pair.base, 4 * CHUNK, 1), 4 * CHUNK);
    expect(&pair, 0, 2 * CHUNK, 2);
    expect(&pair, 2 * CHUNK, 2 * CHUNK, 1);
    ex_stop(&pair.ex);
}

static bool has_tried(void *arg)
{
    return sim_call_count("cuEventSynchronize") >= *(long *)arg;
}

static bool has_unmapped(void *arg)
{
    return sim_call_count("cuMemUnmap") == *(long *)arg;
}

/* The wait for a running copy fails, again and again: what it reads stays
 * mapped, whoever comes by, and is not offered any more. */
static void unmapped_when_the_wait_succeeds(void)
{
    long tries = 3, unmaps = 2;
    struct pair pair;
    uint8_t *bytes;

    start(&pair, 4);
    attach(&pair);
    bytes = sim_host_view(im_buffer(), 4 * CHUNK);
    sim_hold_copies(1);
    CHECK_CU(im_post(im_buffer(), pair.mirror, 4 * CHUNK));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    CHECK_EQUAL(sim_fail("cuEventSynchronize", 1, CUDA_ERROR_OUT_OF_MEMORY, 1),
                0);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 2 * CHUNK));
    CHECK(lane_wait(has_tried, &tries));
    CHECK_EQUAL(im_post(im_buffer(), pair.mirror + CHUNK, 1),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 0);
    sim_hold_copies(0);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK_EQUAL(lane_differs(bytes, pair.base, 4 * CHUNK, 1), 4 * CHUNK);
    /* The rest of the window goes on meanwhile. */
    expect(&pair, 2 * CHUNK, 2 * CHUNK, 1);
    sim_clear_failures();
    CHECK(lane_wait(has_unmapped, &unmaps));
    refused(&pair, 0, CHUNK);
    expect(&pair, 2 * CHUNK, 2 * CHUNK, 1);
    ex_stop(&pair.ex);
}

/* Another stream of the context holds a copy that has nothing to do with the
 * mirror: nobody waits for it. */
static void other_streams_are_not_waited_for(void)
{
    struct pair pair;
    CUdeviceptr from, to;
    CUstream stream;

    start(&pair, 4);
    attach(&pair);
    expect(&pair, 0, CHUNK, 1);
    CHECK_CU(cuMemAlloc_v2(&from, CHUNK));
    CHECK_CU(cuMemAlloc_v2(&to, CHUNK));
    CHECK_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    sim_hold_copies(1);
    CHECK_CU(vmml_cuMemcpyDtoDAsync_v2(lane_caller(), to, from, CHUNK, stream));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNK));
    CHECK_EQUAL(im_post(im_buffer(), pair.mirror, CHUNK),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 1);
    CHECK_EQUAL(sim_call_count("cuCtxSynchronize"), 0);
    sim_hold_copies(0);
    CHECK_CU(cuStreamSynchronize(stream));
    ex_stop(&pair.ex);
}

/* A stream that UCX destroys while its copy runs. */
static void a_destroyed_stream_is_waited_for(void)
{
    struct pair pair;
    CUstream stream;
    uint8_t *bytes;

    start(&pair, 2);
    attach(&pair);
    bytes = sim_host_view(im_buffer(), 2 * CHUNK);
    CHECK_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    sim_hold_copies(1);
    CHECK_CU(vmml_cuMemcpyDtoDAsync_v2(lane_caller(), im_buffer(), pair.mirror,
                                       2 * CHUNK, stream));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    CHECK_CU(vmml_cuStreamDestroy_v2(lane_caller(), stream));
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 2 * CHUNK));
    usleep(500000); /* the watcher's turn */
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 0);
    sim_hold_copies(0);
    CHECK_EQUAL(im_post(im_buffer() + 2 * CHUNK, pair.mirror, CHUNK),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(lane_differs(bytes, pair.base, 2 * CHUNK, 1), 2 * CHUNK);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    ex_stop(&pair.ex);
}

static void exporter_dies_under_a_copy(void)
{
    struct pair pair;
    uint8_t *bytes;

    start(&pair, 2);
    attach(&pair);
    bytes = sim_host_view(im_buffer(), 2 * CHUNK);
    sim_hold_copies(1);
    CHECK_CU(im_post(im_buffer(), pair.mirror, 2 * CHUNK));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    ex_kill(&pair.ex);
    usleep(500000);
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 0);
    sim_hold_copies(0);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK_EQUAL(lane_differs(bytes, pair.base, 2 * CHUNK, 1), 2 * CHUNK);
    refused(&pair, 0, CHUNK);
}

/* --- at every moment ------------------------------------------------------ */

/* What the exporter does while this process is in its n-th driver call. */
struct moment {
    struct pair *pair;
    unsigned step;  /* at which it happens, 0: never */
    unsigned steps; /* that were seen */
    unsigned chunk;
    unsigned seed; /* of the new memory there, 0: none */
    bool happened; /* the watcher may have done a part of the work instead */
};

static void change_at(const struct lane_call *call, void *arg)
{
    struct moment *moment = arg;
    struct pair *pair = moment->pair;
    uint64_t address = pair->base + moment->chunk * CHUNK;

    moment->steps = call->step;
    if (call->step != moment->step)
        return;
    moment->happened = true;
    CHECK_CU(ex_unmap(&pair->ex, address, CHUNK));
    if (moment->seed == 0)
        return;
    ex_map(&pair->ex, address, CHUNK, 1, moment->seed);
    ex_key(&pair->ex, address, CHUNK, pair->key);
}

/* All that is served must be present; `chunk` was changed under way. */
static void check_after(struct pair *pair, const struct moment *moment)
{
    unsigned i;

    for (i = 0; i < 3; i++)
        if (i != moment->chunk || !moment->happened)
            expect(pair, i * CHUNK, CHUNK, 1);
    if (!moment->happened)
        return;
    if (moment->seed == 0)
        refused(pair, moment->chunk * CHUNK, CHUNK);
    else
        expect(pair, moment->chunk * CHUNK, CHUNK, moment->seed);
}

/* Fresh memory of seed 1 in all three chunks, unknown to this process. */
static void back_anew(struct pair *pair)
{
    (void)ex_unmap(&pair->ex, pair->base, CHUNK);
    (void)ex_unmap(&pair->ex, pair->base + CHUNK, CHUNK);
    (void)ex_unmap(&pair->ex, pair->base + 2 * CHUNK, CHUNK);
    ex_map(&pair->ex, pair->base, CHUNK, 3, 1);
    ex_key(&pair->ex, pair->base, 3 * CHUNK, pair->key);
}

static void revoked_at_every_moment_of_a_sync(void)
{
    struct pair pair;
    struct moment moment = {.pair = &pair};
    unsigned kind, last;

    start(&pair, 3);
    pair.mirror = im_open(pair.key);
    for (kind = 0; kind < 4; kind++) {
        moment.chunk = 1 + kind / 2;
        moment.seed = kind % 2 ? 2 : 0;
        moment.step = 0;
        last = 0;
        do {
            back_anew(&pair);
            moment.happened = false;
            lane_watch(change_at, &moment);
            (void)im_prepare(pair.key);
            lane_watch(NULL, NULL);
            check_after(&pair, &moment);
            if (moment.steps > last)
                last = moment.steps;
        } while (++moment.step <= last);
        CHECK(last >= 18); /* unmap, import, map, release, access */
    }
    ex_stop(&pair.ex);
}

/* Between two chunks of a sync the second one's descriptor number is given to
 * memory of another window. */
struct recycler {
    struct pair *pair;
    uint64_t other;
    bool done;
};

static void recycle(const struct lane_call *call, void *arg)
{
    struct recycler *recycler = arg;
    struct pair *pair = recycler->pair;
    uint8_t key[KEY_SIZE];

    if (recycler->done || strcmp(call->name, "cuMemMap") != 0)
        return;
    recycler->done = true;
    CHECK_CU(ex_unmap(&pair->ex, pair->base + CHUNK, CHUNK));
    ex_map(&pair->ex, recycler->other, CHUNK, 1, 9);
    ex_key(&pair->ex, recycler->other, CHUNK, key);
}

static void a_recycled_number_is_not_believed(void)
{
    struct pair pair;
    struct recycler recycler = {.pair = &pair};

    start(&pair, 2);
    recycler.other = ex_reserve(&pair.ex, CHUNK * 2);
    lane_watch(recycle, &recycler);
    (void)im_prepare(pair.key);
    lane_watch(NULL, NULL);
    CHECK(recycler.done);
    pair.mirror = im_open(pair.key);
    expect(&pair, 0, CHUNK, 1);
    refused(&pair, CHUNK, CHUNK);
    ex_stop(&pair.ex);
}

/* A poster that has passed the checks and not yet called the driver. */
static void unmap_before_the_post(const struct lane_call *call, void *arg)
{
    struct pair *pair = arg;

    if (call->after)
        return;
    CHECK_CU(ex_unmap(&pair->ex, pair->base, 2 * CHUNK));
    usleep(500000); /* the watcher's turn */
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 0);
}

static void a_poster_inside_is_waited_for(void)
{
    struct pair pair;

    start(&pair, 2);
    attach(&pair);
    expect(&pair, 0, 2 * CHUNK, 1);
    lane_watch(unmap_before_the_post, &pair);
    CHECK_CU(im_post(im_buffer(), pair.mirror, 2 * CHUNK));
    lane_watch(NULL, NULL);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    refused(&pair, 0, CHUNK);
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 2);
    ex_stop(&pair.ex);
}

/* --- own process, devices ------------------------------------------------- */

static void own_window(void)
{
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(WINDOW);
    lane_map_run(base, CHUNK, 4, 1);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK(lane_pack(memh, base, 4 * CHUNK, key));
    CHECK_EQUAL(im_attach(key), base);
    CHECK_EQUAL(im_open(key), base);
    im_expect(base + CHUNK - 5, base + CHUNK - 5, CHUNK, 1);
    CHECK_EQUAL(sim_call_count("cuMemImportFromShareableHandle"), 0);
    CHECK(im_close(base));
    CHECK(im_close(base));
    CHECK(!im_close(base));
    /* Its holes are the driver's. */
    im_refused(base + 4 * CHUNK, 1);
    CHECK_CU(lane_unmap(base, 4 * CHUNK));
    lane_free_address(base, WINDOW);
    CHECK(!im_prepare(key));
}

/* On another device an own window needs a mirror. */
static void own_window_on_a_second_device(void)
{
    struct vmml_handle handle;
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memh;
    CUdeviceptr mirror;
    CUcontext context;
    uint64_t base;

    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    lane_cuda(0);
    base = lane_reserve(WINDOW);
    lane_map_run(base, CHUNK, 4, 1);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK(lane_pack(memh, base, 4 * CHUNK, key));
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK_CU(cuCtxSetCurrent(context));
    handle = lane_handle(key);
    CHECK(vmml_mirror_prepare(&handle, 1));
    mirror = im_open(key);
    CHECK(mirror != base);
    im_expect(mirror, base, 4 * CHUNK, 1);
    CHECK_CU(lane_unmap(base, 4 * CHUNK));
    im_refused(mirror, CHUNK);
}

/* One handle at two addresses, and in another reservation: a chunk each. */
static void aliases(void)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    uint64_t at[3], base, other;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr mirror[3];
    uint8_t key[2][KEY_SIZE];
    unsigned i;

    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    lane_cuda(0);
    base = lane_reserve(WINDOW);
    other = lane_reserve(WINDOW);
    at[0] = base;
    at[1] = base + CHUNK;
    at[2] = other + 5 * CHUNK;
    CHECK_CU(cuMemCreate(&handle, CHUNK, &prop, 0));
    for (i = 0; i < 3; i++) {
        CHECK_CU(vmml_cuMemMap(NULL, at[i], CHUNK, 0, handle, 0));
        CHECK_CU(vmml_cuMemSetAccess(NULL, at[i], CHUNK, &desc, 1));
    }
    CHECK_CU(cuMemRelease(handle));
    CHECK(lane_pack(lane_reg(base, 2 * CHUNK), base, 2 * CHUNK, key[0]));
    CHECK(lane_pack(lane_reg(at[2], CHUNK), at[2], CHUNK, key[1]));
    /* The process as its own peer: on another device it needs mirrors. */
    lane_cuda(1);
    mirror[0] = im_open(key[0]);
    mirror[1] = mirror[0] + CHUNK;
    mirror[2] = im_open(key[1]) + 5 * CHUNK;
    for (i = 0; i < 3; i++) {
        im_put(mirror[i], at[i], CHUNK, i + 1);
        /* The same bytes through the next alias. */
        im_expect(mirror[(i + 1) % 3], at[i], CHUNK, i + 1);
        CHECK_EQUAL(lane_differs(sim_host_view(at[(i + 2) % 3], CHUNK), at[i],
                                 CHUNK, i + 1),
                    CHUNK);
    }
    /* One alias goes, the others stay. */
    CHECK_CU(lane_unmap(at[0], CHUNK));
    im_refused(mirror[0], CHUNK);
    im_expect(mirror[1], at[2], CHUNK, 3);
    im_expect(mirror[2], at[2], CHUNK, 3);
}

/* The unpack hook prepared one device, UCX opens on another: mapped by the
 * first copy. */
static void read_on_second_device(void *arg)
{
    struct pair *pair = arg;
    CUdeviceptr second;
    CUcontext context;

    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK_CU(cuCtxSetCurrent(context));
    sim_reset_counts();
    second = im_open(pair->key);
    CHECK(second != pair->mirror);
    CHECK_EQUAL(sim_call_count("cuMemMap"), 0);
    im_expect(second, pair->base, 4 * CHUNK, 1);
    CHECK_EQUAL(sim_call_count("cuMemMap"), 4);
    CHECK_CU(ex_unmap(&pair->ex, pair->base, CHUNK));
    im_refused(second, CHUNK);
}

static void opened_on_another_device(void)
{
    struct pair pair;

    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    start(&pair, 4);
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    lane_on_thread(read_on_second_device, &pair);
    refused(&pair, 0, CHUNK);
    expect(&pair, CHUNK, 3 * CHUNK, 1);
    ex_stop(&pair.ex);
}

static void no_peer_access(void)
{
    struct vmml_handle handle;
    struct pair pair;

    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    CHECK(setenv("VMMLANE_SIM_PEER", "0", 1) == 0);
    start(&pair, 4);
    handle = lane_handle(pair.key);
    CHECK(!vmml_mirror_prepare(&handle, 1));
    CHECK(!vmml_mirror_prepare(&handle, 1));
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    ex_stop(&pair.ex);
}

static void prepared_without_a_device(void)
{
    struct vmml_handle handle;
    struct pair pair;

    start(&pair, 2);
    handle = lane_handle(pair.key);
    sim_reset_counts();
    CHECK(vmml_mirror_prepare(&handle, -1));
    CHECK_EQUAL(importer_calls(), 0);
    pair.mirror = im_open(pair.key);
    expect(&pair, 0, 2 * CHUNK, 1);
    ex_kill(&pair.ex);
    CHECK(!vmml_mirror_prepare(&handle, -1));
}

/* --- addresses that leave UCX's copies ------------------------------------ */

static void handed_out_stays_mapped(void)
{
    struct pair pair;
    uint8_t *here;

    start(&pair, 4);
    attach(&pair);
    CHECK(vmml_mirror_hand_out(pair.mirror + CHUNK, 77));
    CHECK(vmml_mirror_hand_out(im_buffer(), 78)); /* on no mirror */
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 2 * CHUNK));
    ex_map(&pair.ex, pair.base, CHUNK, 2, 2);
    usleep(500000); /* the watcher's turn */
    here = sim_host_view(pair.mirror, CHUNK);
    CHECK(here != NULL);
    CHECK_EQUAL(lane_differs(here, pair.base, CHUNK, 1), CHUNK);
    /* Copies are still checked: old bytes never. */
    refused(&pair, 0, CHUNK);
    refused(&pair, CHUNK, 2 * CHUNK);
    expect(&pair, 2 * CHUNK, 2 * CHUNK, 1);
    /* The new chunk lies under the old one: not served until it is gone. */
    ex_key(&pair.ex, pair.base, 4 * CHUNK, pair.key);
    CHECK(!im_prepare(pair.key));
    refused(&pair, 0, CHUNK);
    expect(&pair, 2 * CHUNK, 2 * CHUNK, 1);
    vmml_mirror_take_back(77);
    CHECK(im_prepare(pair.key));
    expect(&pair, 0, 2 * CHUNK, 2);
    expect(&pair, 2 * CHUNK, 2 * CHUNK, 1);
    ex_stop(&pair.ex);
}

static bool is_unmapped(void *arg)
{
    return sim_host_view(*(CUdeviceptr *)arg, CHUNK) == NULL;
}

static void handed_out_twice(void)
{
    struct pair pair;

    start(&pair, 2);
    attach(&pair);
    CHECK(vmml_mirror_hand_out(pair.mirror, 5));
    CHECK(vmml_mirror_hand_out(pair.mirror, 5));
    CHECK(vmml_mirror_hand_out(pair.mirror, 6));
    vmml_mirror_take_back(5);
    vmml_mirror_take_back(5);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 2 * CHUNK));
    refused(&pair, 0, CHUNK);
    CHECK(sim_host_view(pair.mirror, CHUNK) != NULL);
    vmml_mirror_take_back(6);
    refused(&pair, 0, CHUNK);
    CHECK(lane_wait(is_unmapped, &pair.mirror));
    /* Nothing current can be handed out of it any more. */
    ex_kill(&pair.ex);
    CHECK(!vmml_mirror_hand_out(pair.mirror, 7));
}

/* One batch on a pinned mirror: good chunks first, a revoked one later. */
static void pinned_batch(void)
{
    struct pair pair;
    CUdeviceptr dsts[3], srcs[3];
    size_t sizes[3] = {64, 64, 64};
    unsigned i, bad;

    start(&pair, 4);
    attach(&pair);
    CHECK(vmml_mirror_hand_out(pair.mirror, 77));
    CHECK_CU(ex_unmap(&pair.ex, pair.base + CHUNK, CHUNK));
    for (i = 0; i < 3; i++)
        dsts[i] = im_buffer() + i * CHUNK;
    for (bad = 0; bad <= 3; bad++) {
        for (i = 0; i < 3; i++)
            srcs[i] = pair.mirror + (i == bad ? CHUNK : 2 * CHUNK);
        CHECK_EQUAL(post_batch(dsts, srcs, sizes),
                    bad == 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    }
    /* Bounds hold for every one, too. */
    srcs[0] = pair.mirror + 2 * CHUNK;
    srcs[2] = pair.mirror + WINDOW - 1;
    CHECK_EQUAL(post_batch(dsts, srcs, sizes), CUDA_ERROR_INVALID_VALUE);
    /* Both sides of one copy. */
    CHECK_EQUAL(im_post(pair.mirror + 2 * CHUNK, pair.mirror + CHUNK, 64),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(im_post(pair.mirror + CHUNK, pair.mirror + 2 * CHUNK, 64),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(im_post(pair.mirror + 3 * CHUNK, pair.mirror + 2 * CHUNK, 64));
    CHECK_CU(cuStreamSynchronize(im_stream()));
    ex_stop(&pair.ex);
}

static void all_pinned(void)
{
    struct pair pair;

    start(&pair, 4);
    attach(&pair);
    ex_map(&pair.ex, pair.base + 4 * CHUNK, CHUNK, 1, 1);
    ex_key(&pair.ex, pair.base, 5 * CHUNK, pair.key);
    vmml_mirror_pin_all();
    CHECK(sim_host_view(pair.mirror + 4 * CHUNK, CHUNK) != NULL);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNK));
    refused(&pair, 0, CHUNK);
    expect(&pair, CHUNK, 4 * CHUNK, 1);
    CHECK(sim_host_view(pair.mirror, CHUNK) != NULL);
    ex_kill(&pair.ex);
    refused_soon(&pair, CHUNK, CHUNK, 1);
    CHECK(sim_host_view(pair.mirror, CHUNK) != NULL);
}

/* --- fork ----------------------------------------------------------------- */

static void the_exporter_forks(void)
{
    struct pair pair;
    char path[64];
    pid_t child;

    lane_own_domain();
    start(&pair, 4);
    used_at_start = sim_memory_used(0) - 4 * CHUNK;
    child = ex_fork(&pair.ex);
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", child,
             lane_handle(pair.key).ledger_fd);
    CHECK(access(path, F_OK) != 0);
    ex_kill(&pair.ex);
    refused_soon(&pair, 0, CHUNK, 1);
}

/* Descriptors of exporters (pidfd) and of the watcher (eventfd). */
static unsigned special_fds(void)
{
    char path[64], target[64];
    unsigned count = 0;
    ssize_t length;
    int fd;

    for (fd = 0; fd < 4096; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        length = readlink(path, target, sizeof(target) - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        count += strstr(target, "[pidfd]") != NULL ||
                 strstr(target, "[eventfd]") != NULL;
    }
    return count;
}

static void the_importer_forks(void)
{
    struct pair pair;
    int status;
    pid_t pid;

    start(&pair, 4);
    lane_fds_note();
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    CHECK_EQUAL(special_fds(), 2);
    CHECK_EQUAL(lane_fds_new(), 3); /* and the pipe of its life */
    CHECK_EQUAL(lane_fds_inherited(), 0);
    pid = fork();
    if (pid == 0) {
        CHECK_EQUAL(special_fds(), 0);
        _exit(0);
    }
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect(&pair, 0, 4 * CHUNK, 1);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    refused(&pair, 0, CHUNK);
    ex_stop(&pair.ex);
}

/* An exporter's socket, and the pipe that tells of its exec. */
static void the_importer_by_socket_forks(void)
{
    struct pair pair;

    CHECK(setenv("VMMLANE_TRANSPORT", "socket", 1) == 0);
    start(&pair, 4);
    lane_fds_note();
    attach(&pair);
    CHECK_EQUAL(lane_fds_new(), 3);
    CHECK_EQUAL(lane_fds_inherited(), 0);
    expect(&pair, 0, 4 * CHUNK, 1);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    refused(&pair, 0, CHUNK);
    ex_stop(&pair.ex);
}

static bool forking_is_over;

static void *copy_all_the_time(void *arg)
{
    struct pair *pair = arg;

    lane_cuda(0);
    while (!__atomic_load_n(&forking_is_over, __ATOMIC_RELAXED)) {
        CUresult result = im_post(im_buffer(), pair->mirror, CHUNK);

        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
        CHECK_CU(cuStreamSynchronize(im_stream()));
        (void)im_prepare(pair->key);
    }
    return NULL;
}

static void the_importer_forks_while_others_work(void)
{
    struct pair pair;
    pthread_t thread;
    unsigned i;

    start(&pair, 2);
    attach(&pair);
    ex_churn(&pair.ex, pair.base, CHUNK, 1);
    CHECK_EQUAL(pthread_create(&thread, NULL, copy_all_the_time, &pair), 0);
    for (i = 0; i < 100; i++) {
        int status;
        pid_t pid = fork();

        if (pid == 0) {
            /* None of these may wait for the other thread's locks. */
            (void)im_post(im_buffer(), pair.mirror, 1);
            (void)im_close(pair.mirror);
            CHECK_EQUAL(special_fds(), 0);
            _exit(0);
        }
        CHECK_EQUAL(waitpid(pid, &status, 0), pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    __atomic_store_n(&forking_is_over, true, __ATOMIC_RELAXED);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    expect(&pair, CHUNK, CHUNK, 1);
    ex_kill(&pair.ex);
}

/* --- who is there --------------------------------------------------------- */

static void the_importer_forks_while_it_imports(void)
{
    struct pair pair;

    start(&pair, 2);
    lane_fork_after("cuMemImportFromShareableHandle");
    attach(&pair);
    CHECK_EQUAL(lane_fork_inherited(), 0);
    expect(&pair, 0, 2 * CHUNK, 1);
    ex_stop(&pair.ex);
}

/* Handles as another process could write them. */
static void hostile_handles(void)
{
    struct vmml_handle good, bad;
    struct pair pair;
    unsigned fds, maps;

    /* The socket asks for the nonce, whatever else a handle says. */
    CHECK(setenv("VMMLANE_TRANSPORT", "getfd", 1) == 0);
    start(&pair, 2);
    good = lane_handle(pair.key);
    fds = lane_fd_count();
    maps = ledger_maps();
#define TRY(change)                                                            \
    do {                                                                       \
        bad = good;                                                            \
        change;                                                                \
        CHECK(!vmml_mirror_prepare(&bad, 0));                                  \
        CHECK_EQUAL(lane_fd_count(), fds);                                     \
        CHECK_EQUAL(ledger_maps(), maps);                                      \
    } while (0)
    TRY(bad.nonce[0] ^= 1);
    TRY(bad.ledger_fd = 0);
    TRY(bad.ledger_fd = -1);
    TRY(bad.ledger_fd = INT32_MAX);
    TRY(bad.pid = (uint32_t)getppid());
    TRY(bad.pid = (uint32_t)getpid());
    TRY(bad.pid = 0);
    TRY(bad.pid = 1);
    TRY(bad.pid = UINT32_MAX);
    TRY(bad.pid_ns ^= 1);
    TRY(bad.flags = VMML_HANDLE_TOMBSTONE);
#undef TRY
    CHECK(vmml_mirror_prepare(&good, 0));
    /* Windows that the ledger does not have: nothing to map. */
    bad = good;
    bad.size += CHUNK;
    CHECK(!vmml_mirror_prepare(&bad, 0));
    bad = good;
    bad.base += CHUNK;
    CHECK(!vmml_mirror_prepare(&bad, 0));
    bad = good;
    bad.base = 1ull << 40;
    bad.size = 1ull << 46;
    CHECK(!vmml_mirror_prepare(&bad, 0));
    bad.base = 1;
    bad.size = 3;
    CHECK(!vmml_mirror_prepare(&bad, 0));
    attach(&pair);
    expect(&pair, 0, 2 * CHUNK, 1);
    ex_stop(&pair.ex);
}

static void the_ledger_number_is_something_else(void)
{
    struct pair pair;

    start(&pair, 2);
    ex_put_null(&pair.ex, lane_handle(pair.key).ledger_fd);
    CHECK(!im_prepare(pair.key));
    ex_close(&pair.ex, lane_handle(pair.key).ledger_fd);
    CHECK(!im_prepare(pair.key));
    ex_kill(&pair.ex);
    CHECK(!im_prepare(pair.key));
}

/* A mirror that keeps changing under copies: right bytes or an error. */
static void churn_under_copies(void)
{
    struct pair pair;
    uint8_t *bytes;
    unsigned i, posted = 0;

    start(&pair, 8);
    attach(&pair);
    bytes = sim_host_view(im_buffer(), CHUNK);
    ex_churn(&pair.ex, pair.base + 2 * CHUNK, CHUNK, 1);
    for (i = 0; i < 300; i++) {
        CUresult result = im_post(im_buffer(), pair.mirror + 2 * CHUNK, CHUNK);

        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
        CHECK_CU(cuStreamSynchronize(im_stream()));
        /* Memory is filled before it is published. */
        if (result == CUDA_SUCCESS)
            CHECK_EQUAL(lane_differs(bytes, pair.base + 2 * CHUNK, CHUNK, 1),
                        CHUNK);
        posted += result == CUDA_SUCCESS;
        expect(&pair, 3 * CHUNK, 4096, 1);
    }
    ex_kill(&pair.ex);
    CHECK(posted > 0);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(every_border),
        LANE_PAIR(puts_reach_the_exporter),
        LANE_PAIR(pieces_of_a_copy),
        LANE_PAIR(chunks_of_all_sizes),
        LANE_PAIR(prepared_keys_are_one_mirror),
        LANE_PAIR(a_mirror_lies_elsewhere),
        LANE_PAIR(nothing_new_costs_nothing),
        LANE_PAIR(growth_costs_by_new_chunks),
        LANE_PAIR(growth_is_seen_by_a_copy),
        LANE_PAIR(growth_below),
        LANE_PAIR(revoked_is_refused),
        LANE_PAIR(rounds_of_backing),
        LANE_PAIR(unseen_unmap_is_found_by_pack),
        LANE_PAIR(refused_unmap_goes_on),
        LANE_PAIR(idle_memory_is_present_or_refused),
        LANE_PAIR(freed_window),
        LANE_PAIR(copies_stay_in_the_window),
        LANE_PAIR(batches_are_checked_whole),
        LANE_PAIR(watcher_gives_back_what_is_revoked),
        LANE_PAIR(watcher_gives_back_after_a_kill),
        LANE_PAIR(copies_after_a_kill_are_refused),
        LANE_PAIR(a_second_exporter),
        LANE_PAIR(importer_failures_are_not_remembered),
        LANE_PAIR(a_missing_chunk_stays_unserved),
        LANE_PAIR(no_address_space),
        LANE_PAIR(a_running_copy_is_waited_for),
        LANE_PAIR(unmapped_when_the_wait_succeeds),
        LANE_PAIR(other_streams_are_not_waited_for),
        LANE_PAIR(a_destroyed_stream_is_waited_for),
        LANE_PAIR(exporter_dies_under_a_copy),
        LANE_PAIR(revoked_at_every_moment_of_a_sync),
        LANE_PAIR(a_recycled_number_is_not_believed),
        LANE_PAIR(a_poster_inside_is_waited_for),
        LANE_TEST(own_window),
        LANE_PAIR(own_window_on_a_second_device),
        LANE_PAIR(aliases),
        LANE_PAIR(opened_on_another_device),
        LANE_PAIR(no_peer_access),
        LANE_PAIR(prepared_without_a_device),
        LANE_PAIR(handed_out_stays_mapped),
        LANE_PAIR(handed_out_twice),
        LANE_PAIR(pinned_batch),
        LANE_PAIR(all_pinned),
        LANE_PAIR(the_exporter_forks),
        LANE_PAIR(the_importer_forks),
        LANE_TEST(the_importer_by_socket_forks),
        LANE_PAIR(the_importer_forks_while_others_work),
        LANE_PAIR(the_importer_forks_while_it_imports),
        LANE_PAIR(hostile_handles),
        LANE_PAIR(the_ledger_number_is_something_else),
        LANE_PAIR(churn_under_copies),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
