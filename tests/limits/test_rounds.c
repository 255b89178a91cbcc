/* SPDX-License-Identifier: MIT */
/*
 * Sleep and wake: after each round both processes hold what they held before,
 * and an importer keeps nothing of what its exporter gave back.
 */
#include "tests/lane/exporter.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lane/state.h"
#include "ledger/layout.h"

#define WINDOW (64 * CHUNK)
#define CHUNKS 8
#define ROUNDS 50

/* --- what a process holds ------------------------------------------------- */

static uint64_t count_maps(uint64_t unused)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    uint64_t count = 0;
    int c;

    (void)unused;
    CHECK(maps != NULL);
    while ((c = getc(maps)) != EOF)
        count += c == '\n';
    fclose(maps);
    return count;
}

/* Of the ledger's file: windows and chunks that were ever used. */
static uint64_t count_slots(uint64_t of_windows)
{
    struct vmml_ledger_header *header;
    uint64_t count;

    header = mmap(NULL, sizeof(*header), PROT_READ, MAP_SHARED,
                  vmml_ledger_fd(vmml_exporter.ledger), 0);
    CHECK(header != MAP_FAILED);
    count = of_windows ? atomic_load(&header->window_count)
                       : atomic_load(&header->chunk_count);
    munmap(header, sizeof(*header));
    return count;
}

static uint64_t count_tables(uint64_t unused)
{
    (void)unused;
    return vmml_exporter.chunk_count + vmml_exporter.registration_count;
}

struct held {
    uint64_t memory; /* of the device, of both together */
    unsigned here_fds, there_fds;
    uint64_t here_maps, there_maps;
    uint64_t windows, chunks, tables; /* of the exporter */
};

static struct held held_now(struct exporter *ex)
{
    return (struct held){
        sim_memory_used(0),
        lane_fd_count(),
        ex_fd_count(ex),
        count_maps(0),
        ex_run(ex, count_maps, 0),
        ex_run(ex, count_slots, 1),
        ex_run(ex, count_slots, 0),
        ex_run(ex, count_tables, 0),
    };
}

static struct exporter *exporter;
static struct held start;
/* An importer's reservation and an exporter's table of a window are kept for
 * 2 s after it went: not waited for in each round. */
static bool ignore_maps;

static bool is_back(void *arg)
{
    struct held *held = arg;

    *held = held_now(exporter);
    if (ignore_maps) {
        held->here_maps = start.here_maps;
        held->there_maps = start.there_maps;
    }
    return memcmp(held, &start, sizeof(start)) == 0;
}

static void all_is_back(unsigned round)
{
    struct held held;

    memset(&held, 0, sizeof(held));
    if (lane_wait(is_back, &held))
        return;
    fprintf(stderr, "round %u\n", round);
    CHECK_EQUAL(held.memory, start.memory);
    CHECK_EQUAL(held.here_fds, start.here_fds);
    CHECK_EQUAL(held.there_fds, start.there_fds);
    CHECK_EQUAL(held.here_maps, start.here_maps);
    CHECK_EQUAL(held.there_maps, start.there_maps);
    CHECK_EQUAL(held.windows, start.windows);
    CHECK_EQUAL(held.chunks, start.chunks);
    CHECK_EQUAL(held.tables, start.tables);
    CHECK(!"unequal only in padding");
}

/* --- rounds --------------------------------------------------------------- */

enum wake {
    DEREGISTERED,
    REGISTERED, /* one registration lives through it all */
    RESERVED,   /* a new reservation each time */
};

static void rounds(enum wake wake)
{
    struct exporter ex = ex_start();
    /* Where nothing else of a process lies. */
    const uint64_t base = 1ull << 44;
    uint64_t memh = 0;
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;
    unsigned round;

    alarm(LANE_TEST_SECONDS);
    exporter = &ex;
    ex_reserve_at(&ex, base, WINDOW);
    lane_cuda(0);
    im_buffer();
    im_stream();
    for (round = 0; round <= ROUNDS; round++) {
        if (wake == RESERVED && round > 0)
            ex_reserve_at(&ex, base, WINDOW);
        ex_map(&ex, base, CHUNK, CHUNKS, round);
        if (round == 0 || wake != REGISTERED)
            memh = ex_reg(&ex, base, CHUNKS * CHUNK);
        CHECK(ex_pack(&ex, memh, base, CHUNKS * CHUNK, key));
        mirror = im_attach(key);
        im_expect(mirror, base, CHUNKS * CHUNK, round);
        im_put(mirror, base, CHUNKS * CHUNK, round + 100);
        CHECK(ex_holds(&ex, base + CHUNK, CHUNK, round + 100));
        if (wake != REGISTERED)
            ex_dereg(&ex, memh);
        CHECK(im_close(mirror));
        CHECK_CU(ex_unmap(&ex, base, CHUNKS * CHUNK));
        if (wake == RESERVED)
            ex_free_address(&ex, base, WINDOW);
        /* The first one makes the ledger, the mirror and the watcher. */
        if (round == 0) {
            sleep(VMML_IDLE_SECONDS + 1);
            start = held_now(&ex);
            CHECK_EQUAL(start.memory, BUFFER_SIZE);
        }
        ignore_maps = wake == RESERVED && round != ROUNDS;
        all_is_back(round);
    }
    ex_stop(&ex);
}

static void rounds_deregistered(void)
{
    rounds(DEREGISTERED);
}

static void rounds_registered(void)
{
    rounds(REGISTERED);
}

static void rounds_reserved_anew(void)
{
    rounds(RESERVED);
}

/* --- an importer that holds on -------------------------------------------- */

static bool is_memory(void *arg)
{
    return sim_memory_used(0) == *(uint64_t *)arg;
}

static void memory_becomes(uint64_t bytes)
{
    CHECK(lane_wait(is_memory, &bytes));
}

struct pair {
    struct exporter ex;
    uint64_t base;
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;
    uint64_t without; /* device memory without the exporter's */
};

static void open_pair(struct pair *pair)
{
    pair->ex = ex_start();
    pair->base = ex_reserve(&pair->ex, WINDOW);
    ex_map(&pair->ex, pair->base, CHUNK, CHUNKS, 1);
    ex_key(&pair->ex, pair->base, CHUNKS * CHUNK, pair->key);
    lane_cuda(0);
    im_buffer();
    im_stream();
    pair->without = sim_memory_used(0) - CHUNKS * CHUNK;
    pair->mirror = im_attach(pair->key);
    im_expect(pair->mirror, pair->base, CHUNKS * CHUNK, 1);
}

static void it_goes_on_reading(void)
{
    struct pair pair;
    unsigned gone;

    open_pair(&pair);
    for (gone = 1; gone < CHUNKS; gone++) {
        CHECK_CU(ex_unmap(&pair.ex, pair.base + (gone - 1) * CHUNK, CHUNK));
        im_expect(pair.mirror + gone * CHUNK, pair.base + gone * CHUNK,
                  (CHUNKS - gone) * CHUNK, 1);
        memory_becomes(pair.without + (CHUNKS - gone) * CHUNK);
    }
    ex_stop(&pair.ex);
}

static void it_ends_its_keys(void)
{
    struct pair pair;

    open_pair(&pair);
    CHECK(im_close(pair.mirror));
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNKS * CHUNK));
    memory_becomes(pair.without);
    ex_stop(&pair.ex);
}

static void it_stays_idle(void)
{
    struct pair pair;

    open_pair(&pair);
    CHECK_CU(ex_unmap(&pair.ex, pair.base + CHUNK, 2 * CHUNK));
    memory_becomes(pair.without + (CHUNKS - 2) * CHUNK);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNK));
    CHECK_CU(ex_unmap(&pair.ex, pair.base + 3 * CHUNK, (CHUNKS - 3) * CHUNK));
    memory_becomes(pair.without);
    im_refused(pair.mirror, CHUNK);
    ex_stop(&pair.ex);
}

/* Deregistered and still mapped: no descriptor of the exporter's is left, and
 * the memory goes at its own unmap. */
static void idle_chunks_then_an_unmap(void)
{
    struct pair pair;
    uint64_t memh;

    open_pair(&pair);
    memh = ex_reg(&pair.ex, pair.base, CHUNK);
    ex_dereg(&pair.ex, memh);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNKS * CHUNK));
    memory_becomes(pair.without);
    ex_stop(&pair.ex);
}

static void a_copy_runs_meanwhile(void)
{
    struct pair pair;
    uint8_t *bytes;

    open_pair(&pair);
    bytes = sim_host_view(im_buffer(), CHUNKS * CHUNK);
    memset(bytes, 0xee, CHUNKS * CHUNK);
    sim_hold_copies(1);
    CHECK_CU(im_post(im_buffer(), pair.mirror, CHUNKS * CHUNK));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNKS * CHUNK));
    sleep(1); /* several turns of the watcher */
    CHECK_EQUAL(sim_memory_used(0), pair.without + CHUNKS * CHUNK);
    sim_hold_copies(0);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK_EQUAL(lane_differs(bytes, pair.base, CHUNKS * CHUNK, 1),
                CHUNKS * CHUNK);
    memory_becomes(pair.without);
    ex_stop(&pair.ex);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(rounds_deregistered),       LANE_PAIR(rounds_registered),
        LANE_PAIR(rounds_reserved_anew),      LANE_PAIR(it_goes_on_reading),
        LANE_PAIR(it_ends_its_keys),          LANE_PAIR(it_stays_idle),
        LANE_PAIR(idle_chunks_then_an_unmap), LANE_PAIR(a_copy_runs_meanwhile),
    };
    char domain[32];

    snprintf(domain, sizeof(domain), "rounds-%d", (int)getpid());
    if (setenv("VMMLANE_SIM_DOMAIN", domain, 1) != 0)
        return 1;
    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
