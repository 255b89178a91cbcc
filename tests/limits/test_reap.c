/* SPDX-License-Identifier: MIT */
/*
 * What an importer gives back of exporters that have ended and of windows that
 * are gone: descriptors, ledgers, reservations; and when it must not.
 */
#include "tests/lane/exporter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "lane/exporter.h"
#include "mirror/index.h"
#include "mirror/state.h"
#include "mirror/use.h"

#define WINDOW (64 * CHUNK)

struct pair {
    struct exporter ex;
    uint64_t base;
    uint64_t memh;
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;
};

static void start_exporter(struct pair *pair, unsigned count)
{
    pair->ex = ex_start();
    pair->base = ex_reserve(&pair->ex, WINDOW);
    ex_map(&pair->ex, pair->base, CHUNK, count, 1);
    pair->memh = ex_reg(&pair->ex, pair->base, count * CHUNK);
    CHECK(ex_pack(&pair->ex, pair->memh, pair->base, count * CHUNK, pair->key));
}

static void start(struct pair *pair, unsigned count)
{
    start_exporter(pair, count);
    lane_cuda(0);
    im_buffer();
    im_stream();
}

/* Lines of this process's /proc/self/maps that hold `text`. */
static unsigned maps_of(const char *text)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned count = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, text) != NULL;
    fclose(maps);
    return count;
}

static bool no_ledger(void *arg)
{
    (void)arg;
    return maps_of("vmmlane-ledger") == 0;
}

static bool is_off_index(void *arg)
{
    return vmml_index_find(*(CUdeviceptr *)arg) == NULL;
}

static bool is_peer_gone(void *arg)
{
    return vmml_peer_find(arg) == NULL;
}

static bool are_frees(void *arg)
{
    return sim_call_count("cuMemAddressFree") >= *(long *)arg;
}

static void wait_for_frees(long count)
{
    CHECK(lane_wait(are_frees, &count));
    CHECK_EQUAL(sim_call_count("cuMemAddressFree"), count);
}

/* The watcher has come by often enough to give back what it would. */
static void let_the_watcher_look(void)
{
    sleep(4);
}

/* --- exporters that have ended -------------------------------------------- */

/* UCX still has the mirror open: it stays, and all else goes. */
static void a_dead_exporter_costs_no_descriptor(void)
{
    struct pair pair;
    unsigned fds, fds_with_watcher;

    start(&pair, 4);
    fds = lane_fd_count();
    pair.mirror = im_attach(pair.key);
    im_expect(pair.mirror, pair.base, 4 * CHUNK, 1);
    CHECK(maps_of("vmmlane-ledger") == 1);
    ex_kill(&pair.ex);
    CHECK(lane_wait(no_ledger, NULL));
    fds_with_watcher = lane_fd_count();
    CHECK(fds_with_watcher <= fds); /* one for the watcher, none to ex */
    CHECK(vmml_index_find(pair.mirror) != NULL);
    im_refused(pair.mirror, CHUNK);
    CHECK(!im_prepare(pair.key));
    CHECK_EQUAL(im_open(pair.key), pair.mirror);
    im_refused(pair.mirror, CHUNK);
    CHECK(maps_of("vmmlane-ledger") == 0);
    CHECK_EQUAL(lane_fd_count(), fds_with_watcher);
}

/* Closed by UCX as well: the reservation and the peer go. */
static void a_closed_mirror_of_a_dead_exporter_goes(void)
{
    struct vmml_handle handle;
    CUdeviceptr again;
    struct pair pair;

    start(&pair, 4);
    handle = lane_handle(pair.key);
    pair.mirror = im_attach(pair.key);
    ex_kill(&pair.ex);
    CHECK(lane_wait(no_ledger, NULL));
    CHECK_EQUAL(sim_call_count("cuMemAddressFree"), 0);
    CHECK(im_close(pair.mirror));
    CHECK(lane_wait(is_off_index, &pair.mirror));
    wait_for_frees(1);
    CHECK(lane_wait(is_peer_gone, handle.nonce));
    /* An unpack is refused, an open gives an empty mirror as before. */
    CHECK(!im_prepare(pair.key));
    again = im_open(pair.key);
    CHECK(vmml_index_find(again) != NULL);
    im_refused(again, CHUNK);
    CHECK(im_close(again));
    CHECK(!im_close(again));
    CHECK(lane_wait(is_off_index, &again));
    wait_for_frees(2);
}

/* Attached to, never opened: UCX opens late. */
static void opened_after_the_peer_was_freed(void)
{
    struct vmml_handle handle;
    struct pair pair, other;
    CUdeviceptr mirror;

    start_exporter(&pair, 2);
    start(&other, 1);
    handle = lane_handle(pair.key);
    CHECK(vmml_mirror_prepare(&handle, -1));
    /* Any mirror starts the watcher. */
    im_attach(other.key);
    ex_kill(&pair.ex);
    CHECK(lane_wait(is_peer_gone, handle.nonce));
    CHECK(!vmml_mirror_prepare(&handle, -1));
    CHECK_CU(vmml_mirror_open(&handle, &mirror));
    im_refused(mirror, CHUNK);
    ex_stop(&other.ex);
}

/* --- windows that are gone ------------------------------------------------ */

static void a_closed_mirror_of_a_freed_window_goes(void)
{
    struct pair pair;

    start(&pair, 4);
    pair.mirror = im_attach(pair.key);
    im_expect(pair.mirror, pair.base, 4 * CHUNK, 1);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    CHECK(im_close(pair.mirror));
    let_the_watcher_look();
    /* Its window is still served. */
    CHECK(vmml_index_find(pair.mirror) != NULL);
    ex_free_address(&pair.ex, pair.base, WINDOW);
    CHECK(lane_wait(is_off_index, &pair.mirror));
    wait_for_frees(1);
    CHECK(!im_prepare(pair.key));
    /* The same reservation again: another mirror. */
    ex_reserve_at(&pair.ex, pair.base, WINDOW);
    ex_map(&pair.ex, pair.base, CHUNK, 4, 2);
    ex_key(&pair.ex, pair.base, 4 * CHUNK, pair.key);
    pair.mirror = im_attach(pair.key);
    im_expect(pair.mirror, pair.base, 4 * CHUNK, 2);
    CHECK_EQUAL(maps_of("vmmlane-ledger"), 1);
    ex_stop(&pair.ex);
}

/* --- what keeps a reservation --------------------------------------------- */

static void open_pinned_or_copied_from_stays(void)
{
    struct pair pair[3];
    uint8_t *bytes;
    unsigned i;

    for (i = 0; i < 3; i++)
        start_exporter(&pair[i], 2);
    lane_cuda(0);
    bytes = sim_host_view(im_buffer(), 2 * CHUNK);
    for (i = 0; i < 3; i++)
        pair[i].mirror = im_attach(pair[i].key);
    /* 0 stays open; 1 is pinned by a key of uct_rkey_ptr; of 2 a copy runs. */
    CHECK(vmml_mirror_hand_out(pair[1].mirror, 99));
    sim_hold_copies(1);
    CHECK_CU(im_post(im_buffer(), pair[2].mirror, 2 * CHUNK));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    CHECK(im_close(pair[1].mirror));
    CHECK(im_close(pair[2].mirror));
    for (i = 0; i < 3; i++)
        ex_kill(&pair[i].ex);
    let_the_watcher_look();
    for (i = 0; i < 3; i++)
        CHECK(vmml_index_find(pair[i].mirror) != NULL);
    CHECK_EQUAL(sim_call_count("cuMemAddressFree"), 0);
    CHECK(sim_host_view(pair[1].mirror, CHUNK) != NULL);
    sim_hold_copies(0);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK_EQUAL(lane_differs(bytes, pair[2].base, 2 * CHUNK, 1), 2 * CHUNK);
    CHECK(lane_wait(is_off_index, &pair[2].mirror));
    vmml_mirror_take_back(99);
    CHECK(lane_wait(is_off_index, &pair[1].mirror));
    wait_for_frees(2);
    CHECK(vmml_index_find(pair[0].mirror) != NULL);
    im_refused(pair[0].mirror, CHUNK);
}

/* A key of uct_rkey_ptr for a window in which nothing is mapped any more. */
static void pinned_and_empty_stays(void)
{
    struct pair pair;

    start(&pair, 2);
    pair.mirror = im_attach(pair.key);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 2 * CHUNK));
    CHECK(vmml_mirror_hand_out(pair.mirror, 99));
    CHECK(im_close(pair.mirror));
    ex_kill(&pair.ex);
    CHECK(lane_wait(no_ledger, NULL));
    let_the_watcher_look();
    CHECK(vmml_index_find(pair.mirror) != NULL);
    CHECK_EQUAL(sim_call_count("cuMemAddressFree"), 0);
    vmml_mirror_take_back(99);
    vmml_watch_wake(); /* which otherwise is done by the next event */
    wait_for_frees(1);
}

static void device_elements_keep_everything(void)
{
    struct pair pair;

    start(&pair, 2);
    pair.mirror = im_attach(pair.key);
    vmml_mirror_pin_all();
    CHECK(im_close(pair.mirror));
    ex_kill(&pair.ex);
    CHECK(lane_wait(no_ledger, NULL));
    let_the_watcher_look();
    CHECK(sim_host_view(pair.mirror, CHUNK) != NULL);
    CHECK(vmml_index_find(pair.mirror) != NULL);
    CHECK_EQUAL(sim_call_count("cuMemAddressFree"), 0);
}

static void start_closed(struct pair *pair)
{
    start(pair, 1);
    pair->mirror = im_attach(pair->key);
    CHECK(im_close(pair->mirror));
}

static void its_end_frees_nothing(struct pair *pair)
{
    ex_kill(&pair->ex);
    let_the_watcher_look();
    CHECK(maps_of("vmmlane-ledger") == 1);
    CHECK_EQUAL(sim_call_count("cuMemAddressFree"), 0);
}

static void all_is_freed(void)
{
    CHECK(lane_wait(no_ledger, NULL));
    wait_for_frees(1);
}

/* One who looks at the tables keeps what he may have found. */
static void a_user_keeps_what_was_taken_out(void)
{
    struct pair pair;
    unsigned use;

    start_closed(&pair);
    use = vmml_use_begin();
    its_end_frees_nothing(&pair);
    vmml_use_end(use);
    all_is_freed();
}

/* One who posts a short copy, too. */
static void a_poster_keeps_what_was_taken_out(void)
{
    struct vmml_posting *posting;
    struct pair pair;

    start_closed(&pair);
    vmml_count(copies);
    posting = vmml_posting_begin(NULL);
    CHECK(posting != NULL);
    CHECK(vmml_posting_begin(NULL) == NULL);
    its_end_frees_nothing(&pair);
    vmml_posting_end(posting);
    all_is_freed();
}

/* --- churn ---------------------------------------------------------------- */

/* A mirror for each of many exporters that end at once. UCX closes it, or does
 * not: 1 of 16. */
static void churn_of_exporters(void)
{
    const char *wanted = getenv("VMML_TEST_EXPORTERS");
    unsigned count = wanted != NULL ? (unsigned)atoi(wanted) : 200;
    unsigned i, fds = 0, most_ledgers = 0, open = 0;
    struct pair pair, last;

    alarm(LANE_TEST_SECONDS + count / 5);
    ex_nursery();
    start(&last, 1);
    last.mirror = im_attach(last.key);
    fds = lane_fd_count();
    for (i = 0; i < count; i++) {
        unsigned ledgers;

        start_exporter(&pair, 1 + i % 3);
        pair.mirror = im_attach(pair.key);
        im_expect(pair.mirror, pair.base, CHUNK, 1);
        if (i % 16 == 0)
            open++;
        else
            CHECK(im_close(pair.mirror));
        if (i % 2 == 0)
            ex_kill(&pair.ex);
        else
            ex_stop(&pair.ex);
        ledgers = maps_of("vmmlane-ledger");
        most_ledgers = ledgers > most_ledgers ? ledgers : most_ledgers;
    }
    wait_for_frees((long)(count - open));
    /* Its own, and for each that is left behind a mirror without a ledger. */
    CHECK_EQUAL(maps_of("vmmlane-ledger"), 1);
    CHECK_EQUAL(lane_fd_count(), fds);
    printf("%u exporters, at most %u ledgers mapped at a time\n", count,
           most_ledgers);
    fflush(stdout);
    im_expect(last.mirror, last.base, CHUNK, 1);
    ex_stop(&last.ex);
}

/* --- races ---------------------------------------------------------------- */

static atomic_bool stop_racing;
static struct pair racing;

static void *open_and_close(void *arg)
{
    CUdeviceptr ptr;

    (void)arg;
    lane_cuda(0);
    while (!atomic_load(&stop_racing)) {
        if (!im_prepare(racing.key))
            continue;
        ptr = im_open(racing.key);
        if (im_post(im_buffer(), ptr, CHUNK) == CUDA_SUCCESS)
            CHECK_CU(cuStreamSynchronize(im_stream()));
        CHECK(im_close(ptr));
    }
    return NULL;
}

/* Windows come and go under threads that open, copy and close; the simulated
 * driver refuses a copy of memory that is gone, and the bytes are those of the
 * window's present chunk. */
static void races(void)
{
    uint8_t key[KEY_SIZE];
    pthread_t threads[3];
    unsigned i, round;
    long frees;

    start(&racing, 1);
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, open_and_close, NULL), 0);
    for (round = 0; round < 4; round++) {
        usleep(200000);
        CHECK_CU(ex_unmap(&racing.ex, racing.base, CHUNK));
        ex_free_address(&racing.ex, racing.base, WINDOW);
        frees = round + 1;
        CHECK(lane_wait(are_frees, &frees));
        ex_reserve_at(&racing.ex, racing.base, WINDOW);
        ex_map(&racing.ex, racing.base, CHUNK, 1, round);
        /* The key of a window is always the same. */
        ex_key(&racing.ex, racing.base, CHUNK, key);
        CHECK(memcmp(key, racing.key, sizeof(key)) == 0);
    }
    ex_kill(&racing.ex);
    usleep(500000);
    atomic_store(&stop_racing, true);
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK(lane_wait(no_ledger, NULL));
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(a_dead_exporter_costs_no_descriptor),
        LANE_PAIR(a_closed_mirror_of_a_dead_exporter_goes),
        LANE_PAIR(opened_after_the_peer_was_freed),
        LANE_PAIR(a_closed_mirror_of_a_freed_window_goes),
        LANE_PAIR(open_pinned_or_copied_from_stays),
        LANE_PAIR(pinned_and_empty_stays),
        LANE_PAIR(device_elements_keep_everything),
        LANE_PAIR(a_user_keeps_what_was_taken_out),
        LANE_PAIR(a_poster_keeps_what_was_taken_out),
        LANE_PAIR(churn_of_exporters),
        LANE_PAIR(races),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
