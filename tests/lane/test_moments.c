/* SPDX-License-Identifier: MIT */
/*
 * Two threads on one window, in every order that can be forced: while one does
 * something, another one does something else at the n-th driver call of the
 * first, before it or after it. The process is its own importer on a second
 * device. Each deed is tried at each moment of each other one, over a window in
 * each state.
 *
 * After each: every entry of the ledger is of what is mapped, copies gave bytes
 * that were mapped when they were posted, and later ones give the present
 * bytes or are refused; nothing is left.
 *
 * VMML_TEST_EVERY: of how many moments one is tried, by default 47; 1: all.
 * VMML_TEST_VERBOSE: say what is tried.
 */
#include "exporter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "lane/state.h"
#include "mirror/mirror.h"

#define WINDOW (8 * CHUNK)
#define CHUNKS 4    /* that are ever mapped */
#define PART   8192 /* of each that is filled and compared */
#define SEEDS  32   /* that one run uses at most */
#define KEYS   16   /* registrations and pins that one run makes at most */

#define STEADY  0u /* only freeing the window changes it */
#define CHANGED 1u /* the chunk that most deeds change */
#define GROWN   3u /* not mapped at first */

/* One run's. Deeds of two threads never run at a time, but for an importer's
 * beside an importer's. */
static struct {
    uint64_t base;
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memhs[KEYS];
    unsigned memh_count;
    atomic_bool gone[SEEDS]; /* their unmap has returned */
    unsigned seeds;          /* given out */
    bool freed;              /* the reservation is no more */
    bool cleared;            /* everything is unmapped for that */
    struct pin {
        uintptr_t rkey;
        CUdeviceptr mirror;
        bool mapped; /* CHANGED was, when it was handed out */
    } pins[KEYS];
    atomic_uint pin_count;
    atomic_bool pinned; /* something was, for a while or still */
} run;

/* At each moment of this thread's copy it has passed the checks: nothing may be
 * taken away from under it. */
static __thread bool is_inside;

static uint64_t scratch;
static atomic_uint runs;

static uint64_t at_chunk(unsigned chunk)
{
    return run.base + chunk * CHUNK;
}

/* ---- the exporter's memory ---- */

/* Which mapping these bytes are of, 0: none of this run's. */
static unsigned seed_of(const void *bytes, uint64_t address)
{
    unsigned seed;

    for (seed = 1; seed <= run.seeds; seed++)
        if (lane_differs(bytes, address, PART, seed) == PART)
            return seed;
    return 0;
}

/* What is mapped there now, 0: nothing. */
static unsigned seed_at(unsigned chunk)
{
    const void *view = sim_host_view(at_chunk(chunk), PART);
    unsigned seed = 0;

    if (view != NULL) {
        seed = seed_of(view, at_chunk(chunk));
        CHECK(seed != 0);
    }
    return seed;
}

static CUmemGenericAllocationHandle filled(uint64_t address, unsigned seed)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemGenericAllocationHandle handle;

    CHECK_CU(cuMemCreate(&handle, CHUNK, &prop, 0));
    CHECK_CU(cuMemMap(scratch, CHUNK, 0, handle, 0));
    lane_fill(sim_host_view(scratch, PART), address, PART, seed);
    CHECK_CU(cuMemUnmap(scratch, CHUNK));
    return handle;
}

/* False: something is mapped there. */
static bool map(unsigned chunk)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    uint64_t address = at_chunk(chunk);
    CUmemGenericAllocationHandle handle;
    bool mapped;

    CHECK(run.seeds + 1 < SEEDS);
    handle = filled(address, ++run.seeds);
    mapped = vmml_cuMemMap(NULL, address, CHUNK, 0, handle, 0) == CUDA_SUCCESS;
    CHECK_CU(cuMemRelease(handle));
    /* It fails where another thread has unmapped it by now. */
    if (mapped)
        mapped =
            vmml_cuMemSetAccess(NULL, address, CHUNK, &desc, 1) == CUDA_SUCCESS;
    return mapped;
}

static void unmap(unsigned chunk)
{
    unsigned seed = seed_at(chunk);

    if (lane_unmap(at_chunk(chunk), CHUNK) == CUDA_SUCCESS)
        run.gone[seed] = true;
}

static vmml_uct_mem_h pack_new(unsigned chunk, unsigned count)
{
    vmml_uct_mem_h memh = lane_reg(at_chunk(chunk), count * CHUNK);
    uint8_t key[KEY_SIZE];

    if (lane_pack(memh, at_chunk(chunk), count * CHUNK, key) &&
        lane_reason(key) == VMML_REASON_NONE && run.key[4] != 0)
        CHECK(memcmp(key, run.key, sizeof(key)) == 0);
    return memh;
}

static void keep(vmml_uct_mem_h memh)
{
    CHECK(run.memh_count < KEYS);
    run.memhs[run.memh_count++] = memh;
}

/* ---- what the ledger says ---- */

static bool is_published(unsigned chunk)
{
    struct vmml_chunk_view chunks[CHUNKS];
    size_t count = lane_published(run.base, WINDOW, chunks, CHUNKS);
    size_t i;

    for (i = 0; i < count; i++)
        if (chunks[i].address == at_chunk(chunk))
            return true;
    return false;
}

static void check_ledger(void)
{
    struct vmml_chunk_view chunks[CHUNKS];
    size_t count = lane_published(run.base, WINDOW, chunks, CHUNKS);
    size_t i;

    for (i = 0; i < count; i++)
        CHECK(lane_is_present(&chunks[i]));
}

/* ---- deeds of the exporter ---- */

static void do_unmap(void)
{
    unmap(CHANGED);
    CHECK(!is_published(CHANGED) || seed_at(CHANGED) != 0);
}

/* Half of a mapping: the driver refuses. */
static void do_refused_unmap(void)
{
    CHECK(lane_unmap(at_chunk(CHANGED), CHUNK / 2) != CUDA_SUCCESS);
}

static void do_map(void)
{
    (void)map(CHANGED);
}

static void do_replace(void)
{
    unmap(CHANGED);
    (void)map(CHANGED);
}

static void do_publish_anew(void)
{
    unmap(CHANGED);
    if (map(CHANGED)) {
        keep(pack_new(CHANGED, 1));
        CHECK(is_published(CHANGED) || seed_at(CHANGED) == 0);
    }
}

static void do_grow(void)
{
    if (map(GROWN))
        keep(pack_new(GROWN, 1));
}

static void do_pack(void)
{
    keep(pack_new(0, CHUNKS));
}

static void do_pack_for_a_moment(void)
{
    lane_dereg(pack_new(0, CHUNKS));
}

static void do_free(void)
{
    unsigned i;

    run.cleared = true;
    for (i = 0; i < CHUNKS; i++)
        unmap(i);
    run.freed |= vmml_cuMemAddressFree(NULL, run.base, WINDOW) == CUDA_SUCCESS;
}

/* ---- deeds of the importer ---- */

static bool prepare(void)
{
    struct vmml_handle handle = lane_handle(run.key);

    return vmml_mirror_prepare(&handle, 1);
}

/* A copy that was begun when `gone` was gone. */
static void copy_one(CUdeviceptr mirror, unsigned first, unsigned count,
                     bool must)
{
    uint8_t *bytes = sim_host_view(im_buffer(), count * CHUNK);
    bool gone[SEEDS];
    CUresult result;
    unsigned i, seed;

    for (i = 0; i < SEEDS; i++)
        gone[i] = run.gone[i];
    for (i = 0; i < count; i++)
        memset(bytes + i * CHUNK, 0xee, PART);
    result = im_post(im_buffer(), mirror + first * CHUNK, count * CHUNK);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK(result == CUDA_SUCCESS || !must || run.cleared);
    for (i = 0; i < count && result == CUDA_SUCCESS; i++) {
        seed = seed_of(bytes + i * CHUNK, at_chunk(first + i));
        CHECK(seed != 0);
        CHECK(!gone[seed]);
    }
}

static CUdeviceptr open_mirror(void)
{
    struct vmml_handle handle = lane_handle(run.key);
    CUdeviceptr mirror = 0;

    CHECK_CU(vmml_mirror_open(&handle, &mirror));
    CHECK(mirror != run.base);
    return mirror;
}

static void do_prepare(void)
{
    /* Where a pin keeps what was revoked nothing new can be mapped. */
    CHECK(prepare() || run.cleared || run.pinned);
}

static void do_copy(void)
{
    CUdeviceptr mirror = open_mirror();

    copy_one(mirror, STEADY, 2, is_inside);
    copy_one(mirror, STEADY, 1, true);
    CHECK(im_close(mirror));
}

/* As a kernel would use it: it stays mapped until it is taken back. */
static void do_hand_out(void)
{
    CUdeviceptr mirror = open_mirror();
    unsigned number = atomic_fetch_add(&run.pin_count, 1);

    CHECK(number < KEYS);
    run.pinned = true;
    run.pins[number].rkey = 1000 + number;
    run.pins[number].mirror = mirror;
    run.pins[number].mapped =
        vmml_mirror_hand_out(mirror, 1000 + number) &&
        sim_host_view(mirror + CHANGED * CHUNK, PART) != NULL;
}

static void do_hand_out_for_a_moment(void)
{
    CUdeviceptr mirror = open_mirror();

    run.pinned = true;
    if (vmml_mirror_hand_out(mirror, 1))
        vmml_mirror_take_back(1);
    CHECK(im_close(mirror));
}

/* A third party: what the exporter has taken away is looked for at once. */
static void do_unmap_and_prepare(void)
{
    do_unmap();
    do_prepare();
}

static void do_publish_anew_and_prepare(void)
{
    do_publish_anew();
    do_prepare();
}

struct deed {
    const char *name;
    void (*run)(void);
    bool is_importer;
};

static const struct deed deeds[] = {
    {"unmap", do_unmap, false},
    {"refused unmap", do_refused_unmap, false},
    {"map", do_map, false},
    {"replace", do_replace, false},
    {"publish anew", do_publish_anew, false},
    {"grow", do_grow, false},
    {"pack", do_pack, false},
    {"pack for a moment", do_pack_for_a_moment, false},
    {"free the window", do_free, false},
    {"prepare", do_prepare, true},
    {"copy", do_copy, true},
    {"hand out", do_hand_out, true},
    {"hand out for a moment", do_hand_out_for_a_moment, true},
    {"unmap and prepare", do_unmap_and_prepare, true},
    {"publish anew and prepare", do_publish_anew_and_prepare, true},
};

#define DEEDS (sizeof(deeds) / sizeof(deeds[0]))

/* ---- the other thread ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*deed)(void); /* NULL: nothing to do */
} other = {.lock = PTHREAD_MUTEX_INITIALIZER,
           .changed = PTHREAD_COND_INITIALIZER};

static void *obey(void *arg)
{
    (void)arg;
    lane_cuda(1);
    for (;;) {
        void (*deed)(void);

        pthread_mutex_lock(&other.lock);
        while (other.deed == NULL)
            pthread_cond_wait(&other.changed, &other.lock);
        deed = other.deed;
        pthread_mutex_unlock(&other.lock);
        deed();
        pthread_mutex_lock(&other.lock);
        other.deed = NULL;
        pthread_cond_broadcast(&other.changed);
        pthread_mutex_unlock(&other.lock);
    }
    return NULL;
}

static void begin_other(void (*deed)(void))
{
    pthread_mutex_lock(&other.lock);
    other.deed = deed;
    pthread_cond_broadcast(&other.changed);
    pthread_mutex_unlock(&other.lock);
}

/* ms: 0 for as long as it takes. */
static void await_other(unsigned ms)
{
    struct timespec limit;

    CHECK(clock_gettime(CLOCK_REALTIME, &limit) == 0);
    limit.tv_nsec += ms * 1000000l;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;
    pthread_mutex_lock(&other.lock);
    while (other.deed != NULL) {
        if (ms == 0)
            pthread_cond_wait(&other.changed, &other.lock);
        else if (pthread_cond_timedwait(&other.changed, &other.lock, &limit) !=
                 0)
            break;
    }
    pthread_mutex_unlock(&other.lock);
}

/* ---- one run ---- */

enum state { PARTLY, PUBLISHED, CURRENT, STALE, HOLE, STATES };

static const char *const state_names[STATES] = {
    "partly published", "published", "mirrored", "mirrored, then changed",
    "mirrored, a hole"};

static void set_up(enum state state)
{
    unsigned i;

    memset(&run, 0, sizeof(run));
    run.base = lane_reserve(WINDOW);
    for (i = 0; i < GROWN; i++)
        CHECK(map(i));
    keep(lane_reg(at_chunk(STEADY), CHUNK));
    CHECK(lane_pack(run.memhs[0], at_chunk(STEADY), CHUNK, run.key));
    if (state != PARTLY)
        do_pack();
    if (state >= CURRENT)
        CHECK(prepare());
    if (state == STALE) {
        do_publish_anew();
        unmap(2);
    } else if (state == HOLE) {
        do_unmap();
    }
}

/* Pins hold what they were given, and no copy uses what was revoked since. */
static void take_back(void)
{
    unsigned i;

    if (run.pin_count > 0)
        (void)prepare();
    for (i = 0; i < run.pin_count; i++) {
        const struct pin *pin = &run.pins[i];

        CHECK(!pin->mapped ||
              sim_host_view(pin->mirror + CHANGED * CHUNK, PART) != NULL);
        copy_one(pin->mirror, CHANGED, 1, false);
        vmml_mirror_take_back(pin->rkey);
        CHECK(im_close(pin->mirror));
    }
}

static void check_chunk(CUdeviceptr mirror, unsigned chunk)
{
    const uint8_t *bytes = sim_host_view(im_buffer(), PART);
    unsigned seed = seed_at(chunk);

    if (seed == 0) {
        CHECK_EQUAL(im_post(im_buffer(), mirror + chunk * CHUNK, PART),
                    CUDA_ERROR_INVALID_VALUE);
        return;
    }
    CHECK_CU(im_post(im_buffer(), mirror + chunk * CHUNK, PART));
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK_EQUAL(lane_differs(bytes, at_chunk(chunk), PART, seed), PART);
}

static void check_all(void)
{
    CUdeviceptr mirror;
    unsigned i;

    check_ledger();
    /* Each by itself: what begins in a hole is no device memory. */
    for (i = 0; i < CHUNKS; i++)
        if (seed_at(i) != 0)
            keep(pack_new(i, 1));
    check_ledger();
    for (i = 0; i < CHUNKS; i++)
        CHECK_EQUAL(is_published(i), seed_at(i) != 0);
    (void)prepare();
    mirror = open_mirror();
    for (i = 0; i < CHUNKS; i++)
        check_chunk(mirror, i);
    CHECK(im_close(mirror));
}

static void clean_up(void)
{
    unsigned i;

    if (!run.freed)
        do_free();
    CHECK(run.freed);
    for (i = 0; i < run.memh_count; i++)
        lane_dereg(run.memhs[i]);
    CHECK_EQUAL(vmml_exporter.registration_count, 0);
}

struct moment {
    const struct deed *one, *two;
    unsigned step; /* of the driver's calls of one */
    bool happened;
};

static void at_moment(const struct lane_call *call, void *arg)
{
    struct moment *moment = arg;

    if (moment->happened || call->step < moment->step)
        return;
    moment->happened = true;
    begin_other(moment->two->run);
    /* An importer may have to wait for another one; nobody for anybody else. */
    await_other(moment->one->is_importer && moment->two->is_importer ? 5 : 0);
}

static void run_once(enum state state, struct moment *moment)
{
    if (getenv("VMML_TEST_VERBOSE") != NULL)
        fprintf(stderr, "%s: %s, at its call %u %s\n", state_names[state],
                moment->one->name, moment->step, moment->two->name);
    set_up(state);
    moment->happened = false;
    lane_watch(at_moment, moment);
    is_inside = state == CURRENT;
    moment->one->run();
    is_inside = false;
    lane_watch(NULL, NULL);
    await_other(0);
    take_back();
    if (!run.freed)
        check_all();
    clean_up();
    atomic_fetch_add(&runs, 1);
}

static unsigned every(void)
{
    const char *text = getenv("VMML_TEST_EVERY");
    unsigned value = text == NULL ? 47 : (unsigned)atoi(text);

    return value == 0 ? 1 : value;
}

static uint64_t used_before;

static bool memory_is_back(void *arg)
{
    (void)arg;
    return sim_memory_used(0) == used_before;
}

static void begin(void)
{
    pthread_t thread;

    lane_own_domain();
    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    lane_cuda(0);
    used_before = sim_memory_used(0);
    scratch = lane_reserve(CHUNK);
    CHECK_EQUAL(pthread_create(&thread, NULL, obey, NULL), 0);
    lane_cuda(1);
    /* What is made once and kept: buffers and streams of both threads. */
    set_up(CURRENT);
    do_copy();
    begin_other(do_copy);
    await_other(0);
    clean_up();
    CHECK(lane_wait(memory_is_back, NULL));
}

static void all_pairs(void)
{
    static unsigned skipped;
    struct moment moment;
    unsigned fds, i, j;
    enum state state;

    if (every() < 10)
        alarm(1500);
    begin();
    fds = lane_fd_count();
    for (i = 0; i < DEEDS; i++) {
        for (j = 0; j < DEEDS; j++) {
            for (state = 0; state < STATES; state++) {
                moment = (struct moment){&deeds[i], &deeds[j], 0, true};
                /* The first one that is tried moves on from pair to pair. */
                for (moment.step = 1 + skipped++ % every(); moment.happened;
                     moment.step += every())
                    run_once(state, &moment);
            }
        }
        CHECK(lane_wait(memory_is_back, NULL));
        CHECK(lane_fds_become(fds));
    }
    fprintf(stderr, "%u runs\n", atomic_load(&runs));
}

/* ---- the driver calls back ---- */

static unsigned reentries;
static __thread bool is_reentered; /* this thread is, and not now */

/* As UCM does, whose callbacks end registrations. */
static void reenter(const char *name, uint64_t address, size_t size, void *arg)
{
    (void)name;
    (void)address;
    (void)size;
    (void)arg;
    if (!is_reentered)
        return;
    is_reentered = false;
    do_pack_for_a_moment();
    reentries++;
    is_reentered = true;
}

/* No lock that a registration needs is held over a call of the driver. */
static void reentered(void)
{
    enum state state;
    unsigned i;

    sim_set_reentry(reenter, NULL);
    begin();
    for (i = 0; i < DEEDS; i++) {
        for (state = 0; state < STATES; state++) {
            set_up(state);
            is_reentered = true;
            deeds[i].run();
            is_reentered = false;
            take_back();
            if (!run.freed)
                check_all();
            clean_up();
        }
    }
    CHECK(reentries > DEEDS * STATES);
}

/* ---- the driver goes first ---- */

/* At an exit the driver may be torn down before those who use it: each call of
 * it says so from now on. */
static void tear_down_driver(void)
{
    static const char *const names[] = {
        "cuCtxGetDevice",
        "cuCtxPopCurrent_v2",
        "cuCtxPushCurrent_v2",
        "cuEventDestroy_v2",
        "cuEventRecord",
        "cuMemAddressFree",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemExportToShareableHandle",
        "cuMemGetAccess",
        "cuMemGetAddressRange_v2",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemRelease",
        "cuMemRetainAllocationHandle",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemcpyDtoDAsync_v2",
        "cuPointerGetAttribute",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
        "cuThreadExchangeStreamCaptureMode",
    };
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK_EQUAL(sim_fail(names[i], 1, CUDA_ERROR_DEINITIALIZED, 1), 0);
}

/* Everything ends all the same: no crash, no hang, no copy. */
static void driver_is_torn_down(void)
{
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;

    begin();
    set_up(CURRENT);
    mirror = open_mirror();
    copy_one(mirror, STEADY, 2, true);
    CHECK(vmml_mirror_hand_out(mirror, 1));
    tear_down_driver();
    CHECK_EQUAL(lane_unmap(at_chunk(CHANGED), CHUNK), CUDA_ERROR_DEINITIALIZED);
    CHECK(!is_published(CHANGED));
    usleep(400000); /* the watcher's turn */
    CHECK(im_post(im_buffer(), mirror, CHUNK) != CUDA_SUCCESS);
    (void)lane_pack(run.memhs[1], run.base, CHUNKS * CHUNK, key);
    (void)prepare();
    (void)vmml_mirror_hand_out(mirror, 2);
    vmml_mirror_take_back(2);
    vmml_mirror_take_back(1);
    CHECK(im_close(mirror));
    while (run.memh_count > 0)
        lane_dereg(run.memhs[--run.memh_count]);
    CHECK_EQUAL(vmml_cuMemAddressFree(NULL, run.base, WINDOW),
                CUDA_ERROR_DEINITIALIZED);
    usleep(400000);
    exit(0);
}

/* ---- the exporter is killed ---- */

struct death {
    struct exporter exporter;
    unsigned step;
    bool happened;
};

static void kill_at(const struct lane_call *call, void *arg)
{
    struct death *death = arg;

    if (death->happened || call->step < death->step)
        return;
    death->happened = true;
    ex_kill(&death->exporter);
}

enum victim { PREPARE, COPY, HAND_OUT, VICTIMS };

/* In the copy of a mirror that is out of date: all of it is present, or it was
 * refused. */
static void copy_three(CUdeviceptr mirror, uint64_t base)
{
    const uint8_t *bytes = sim_host_view(im_buffer(), 3 * CHUNK);
    CUresult result = im_post(im_buffer(), mirror, 3 * CHUNK);
    unsigned i;

    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    for (i = 0; i < 3 && result == CUDA_SUCCESS; i++)
        CHECK_EQUAL(lane_differs(bytes + i * CHUNK, base + i * CHUNK, CHUNK,
                                 i == 1 ? 2 : 1),
                    CHUNK);
}

/* The watcher may not have had its turn. */
static bool is_noticed(void *key)
{
    return !im_prepare(key);
}

static void kill_during(enum victim victim, struct death *death)
{
    CUdeviceptr mirror = 0;
    uint8_t key[KEY_SIZE];
    uint64_t base;

    death->exporter = ex_start();
    base = ex_reserve(&death->exporter, WINDOW);
    ex_map(&death->exporter, base, CHUNK, 3, 1);
    ex_key(&death->exporter, base, 3 * CHUNK, key);
    if (victim != PREPARE) {
        mirror = im_attach(key);
        im_expect(mirror, base, 3 * CHUNK, 1);
        CHECK_CU(ex_unmap(&death->exporter, base + CHUNK, CHUNK));
        ex_map(&death->exporter, base + CHUNK, CHUNK, 1, 2);
        ex_key(&death->exporter, base, 3 * CHUNK, key);
    }
    death->happened = false;
    lane_watch(kill_at, death);
    if (victim == PREPARE)
        (void)im_prepare(key);
    else if (victim == COPY)
        copy_three(mirror, base);
    else if (vmml_mirror_hand_out(mirror, 1))
        vmml_mirror_take_back(1);
    lane_watch(NULL, NULL);
    if (!death->happened)
        ex_kill(&death->exporter);
    CHECK(lane_wait(is_noticed, key));
    if (victim != PREPARE) {
        im_refused(mirror, CHUNK);
        CHECK(im_close(mirror));
    }
}

static void killed_at_every_moment(void)
{
    struct death death;
    unsigned count = 0, fds;
    enum victim victim;

    lane_own_domain();
    ex_nursery();
    lane_cuda(0);
    (void)im_buffer();
    (void)im_stream();
    used_before = sim_memory_used(0);
    fds = lane_fd_count() + 1; /* the watcher's */
    for (victim = 0; victim < VICTIMS; victim++) {
        death.happened = true;
        for (death.step = 1; death.happened; death.step += 1 + every() / 8) {
            kill_during(victim, &death);
            CHECK(lane_wait(memory_is_back, NULL));
            CHECK(lane_fds_become(fds));
            count++;
        }
    }
    fprintf(stderr, "%u exporters killed\n", count);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(all_pairs),
        LANE_PAIR(reentered),
        LANE_PAIR(driver_is_torn_down),
        LANE_PAIR(killed_at_every_moment),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
