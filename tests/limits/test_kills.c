/* SPDX-License-Identifier: MIT */
/*
 * An exporter or an importer is killed at each point of a script: at the n-th
 * entry into or return from a system call, of any of its threads, counted
 * while the shim is at work. The other process goes on: right bytes or errors,
 * and nothing is left behind.
 *
 * VMML_TEST_EVERY: of how many points one is tried, by default 7; 1: all.
 */
#include "tests/lane/exporter.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "lane/state.h"

#define WINDOW (16 * CHUNK)
#define CHUNKS 3

/* Far from anything else of either process. */
#define PLACE (1ul << 44)

/* Whose system calls count. */
enum counted { NOBODY, EVERYONE, ALL_BUT_MAIN };

/* Between the two processes. */
static struct shared {
    atomic_int counted;
    atomic_int go;   /* it is traced: begin */
    atomic_int step; /* that the victim has done */
    atomic_int ack;  /* that the other has seen */
    uint8_t key[KEY_SIZE];
} * shared;

/* --- the tracer ----------------------------------------------------------- */

struct tracer {
    pid_t pid;
    long point; /* at which it is killed; 0: never */
    long count;
    bool killed; /* with `deciding` */
    atomic_bool ended;
    bool denied;
    pthread_t thread;
};

/* Held while a stop is looked at: afterwards it is known what became of it. */
static pthread_mutex_t deciding = PTHREAD_MUTEX_INITIALIZER;

static bool was_killed(const struct tracer *tracer)
{
    bool killed;

    pthread_mutex_lock(&deciding);
    killed = tracer->killed;
    pthread_mutex_unlock(&deciding);
    return killed;
}

static bool is_counted(const struct tracer *tracer, pid_t tid)
{
    int counted = atomic_load(&shared->counted);

    return counted == EVERYONE ||
           (counted == ALL_BUT_MAIN && tid != tracer->pid);
}

static void go_on(struct tracer *tracer, pid_t tid, int status)
{
    int signal = WSTOPSIG(status);

    if (signal == (SIGTRAP | 0x80)) {
        pthread_mutex_lock(&deciding);
        if (is_counted(tracer, tid) && ++tracer->count == tracer->point) {
            tracer->killed = true;
            kill(tracer->pid, SIGKILL);
        }
        pthread_mutex_unlock(&deciding);
        signal = 0;
    } else if (status >> 16 != 0) {
        signal = 0; /* a new thread, or our interruption */
    }
    /* Fails where it was killed meanwhile. */
    ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)signal);
}

static void *trace(void *arg)
{
    struct tracer *tracer = arg;
    int status;
    pid_t tid;

    if (ptrace(PTRACE_SEIZE, tracer->pid, NULL,
               (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE)) != 0 ||
        ptrace(PTRACE_INTERRUPT, tracer->pid, NULL, NULL) != 0) {
        tracer->denied = errno == EPERM;
        kill(tracer->pid, SIGKILL);
        atomic_store(&tracer->ended, true);
        return NULL;
    }
    atomic_store(&shared->go, 1);
    while ((tid = waitpid(-1, &status, __WALL)) > 0) {
        if (WIFSTOPPED(status))
            go_on(tracer, tid, status);
        else if (tid == tracer->pid)
            break;
    }
    atomic_store(&tracer->ended, true);
    return NULL;
}

/* --- the two scripts' steps ----------------------------------------------- */

static void begin_script(void)
{
    while (!atomic_load(&shared->go))
        usleep(1000);
}

/* Victim: what follows is the shim's work. */
static void count(void)
{
    atomic_store(&shared->counted, EVERYONE);
}

static void did(int step)
{
    atomic_store(&shared->counted, NOBODY);
    atomic_store(&shared->step, step);
    while (atomic_load(&shared->ack) < step)
        usleep(500);
}

/* Survivor: whether the victim came to the end of a step. */
static bool reached(struct tracer *tracer, int step)
{
    uint64_t end = lane_ms() + 20000;

    while (atomic_load(&shared->step) < step) {
        if (atomic_load(&tracer->ended))
            return false;
        CHECK(lane_ms() < end);
        usleep(200);
    }
    return !was_killed(tracer);
}

static void saw(int step)
{
    atomic_store(&shared->ack, step);
}

/* A victim at its script. */
static struct exporter start_victim(struct tracer *tracer, long point,
                                    uint64_t (*script)(uint64_t arg))
{
    struct exporter victim = ex_start();

    atomic_store(&shared->counted, NOBODY);
    atomic_store(&shared->go, 0);
    atomic_store(&shared->step, 0);
    atomic_store(&shared->ack, 0);
    memset(tracer, 0, sizeof(*tracer));
    tracer->pid = victim.pid;
    tracer->point = point;
    ex_begin(&victim, script, 0);
    CHECK_EQUAL(pthread_create(&tracer->thread, NULL, trace, tracer), 0);
    return victim;
}

/* Returns whether the script's end was not reached. */
static bool end_victim(struct exporter *victim, struct tracer *tracer,
                       bool finished)
{
    if (finished)
        kill(victim->pid, SIGKILL);
    CHECK_EQUAL(pthread_join(tracer->thread, NULL), 0);
    close(victim->sock);
    if (tracer->denied) {
        fprintf(stderr, "ptrace(2) is not permitted here\n");
        _exit(77);
    }
    return !finished;
}

static unsigned ledgers(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned found = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        found += strstr(line, "vmmlane-ledger") != NULL;
    fclose(maps);
    return found;
}

static bool no_ledger(void *arg)
{
    (void)arg;
    return ledgers() == 0;
}

/* The healthy exporter's, or the own one. */
static bool one_ledger(void *arg)
{
    (void)arg;
    return ledgers() == 1;
}

/* What this process holds, and the memory of both. */
struct held {
    uint64_t memory;
    unsigned fds;
    unsigned ledgers;
};

static struct held start;

static struct held held_now(void)
{
    return (struct held){sim_memory_used(0), lane_fd_count(), ledgers()};
}

static bool is_back(void *arg)
{
    struct held *held = arg;

    *held = held_now();
    return held->memory == start.memory && held->fds == start.fds &&
           held->ledgers == start.ledgers;
}

static void all_is_back(long point)
{
    struct held held;

    if (lane_wait(is_back, &held))
        return;
    fprintf(stderr, "point %ld\n", point);
    CHECK_EQUAL(held.memory, start.memory);
    CHECK_EQUAL(held.fds, start.fds);
    CHECK_EQUAL(held.ledgers, start.ledgers);
}

static void set_up(const char *name, const char *transport)
{
    char domain[64];

    alarm(900);
    snprintf(domain, sizeof(domain), "kills-%s-%d", name, (int)getpid());
    CHECK(setenv("VMMLANE_SIM_DOMAIN", domain, 1) == 0);
    CHECK(setenv("VMMLANE_LOG", "error", 0) == 0);
    CHECK(setenv("VMMLANE_TRANSPORT", transport, 1) == 0);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    ex_nursery();
}

static long every(void)
{
    const char *text = getenv("VMML_TEST_EVERY");
    long value = text != NULL ? atol(text) : 7;

    CHECK(value > 0);
    return value;
}

/* Runs with one point after the other, until one is not reached. */
static void all_points(const char *name, bool (*run)(long point))
{
    long step = every(), point = 1, killed = 0;

    CHECK(!run(0)); /* what is made once */
    CHECK(lane_wait(one_ledger, NULL));
    sleep(1); /* a service may still be about to close its connection */
    start = held_now();
    while (run(point)) {
        point += step;
        killed++;
    }
    CHECK(killed > 5);
    printf("%s killed at %ld of about %ld points\n", name, killed,
           killed * step);
    fflush(stdout);
}

/* --- the exporter is killed ----------------------------------------------- */

static void export_pack(vmml_uct_mem_h memh, uint64_t address, size_t length)
{
    CHECK(lane_pack(memh, address, length, shared->key));
    CHECK_EQUAL(lane_reason(shared->key), VMML_REASON_NONE);
}

static uint64_t export_script(uint64_t unused)
{
    vmml_uct_mem_h first, second;

    (void)unused;
    begin_script();
    lane_reserve_at(PLACE, WINDOW);
    lane_map_run(PLACE, CHUNK, CHUNKS, 1);
    count();
    first = lane_reg(PLACE, CHUNKS * CHUNK);
    export_pack(first, PLACE, CHUNKS * CHUNK);
    did(1);
    count();
    CHECK_CU(lane_unmap(PLACE + CHUNK, CHUNK));
    did(2);
    lane_map(PLACE + CHUNK, CHUNK, 2);
    count();
    export_pack(first, PLACE, CHUNKS * CHUNK);
    did(3);
    lane_map(PLACE + CHUNKS * CHUNK, CHUNK, 3);
    count();
    second = lane_reg(PLACE, (CHUNKS + 1) * CHUNK);
    export_pack(second, PLACE, (CHUNKS + 1) * CHUNK);
    did(4);
    count();
    lane_dereg(second);
    lane_dereg(first);
    did(5);
    count();
    CHECK_CU(lane_unmap(PLACE, (CHUNKS + 1) * CHUNK));
    lane_free_address(PLACE, WINDOW);
    did(6);
    return 0;
}

/* The exporter that lives, with the same address in it. */
static struct {
    struct exporter ex;
    uint64_t base;
    CUdeviceptr mirror;
} healthy;

/* The mirror of the victim, 0 while there is none. */
static CUdeviceptr mirror;

/* False: the exporter was killed meanwhile. */
static bool prepare(struct tracer *tracer)
{
    bool done;

    /* What the exporter's other threads do for it. */
    atomic_store(&shared->counted, ALL_BUT_MAIN);
    done = im_prepare(shared->key);
    atomic_store(&shared->counted, NOBODY);
    if (was_killed(tracer))
        return false;
    CHECK(done);
    return true;
}

static bool read_step(struct tracer *tracer, int step)
{
    switch (step) {
    case 1:
        if (!prepare(tracer))
            return false;
        mirror = im_open(shared->key);
        im_expect(mirror, PLACE, CHUNKS * CHUNK, 1);
        break;
    case 2:
        im_refused(mirror + CHUNK, 64);
        im_expect(mirror, PLACE, CHUNK, 1);
        im_expect(mirror + 2 * CHUNK, PLACE + 2 * CHUNK, CHUNK, 1);
        break;
    case 3:
        if (!prepare(tracer))
            return false;
        im_expect(mirror + CHUNK, PLACE + CHUNK, CHUNK, 2);
        break;
    case 4:
        if (!prepare(tracer))
            return false;
        im_expect(mirror + CHUNKS * CHUNK, PLACE + CHUNKS * CHUNK, CHUNK, 3);
        im_put(mirror, PLACE, CHUNK, 4);
        break;
    case 5:
        im_expect(mirror, PLACE, CHUNK, 4);
        break;
    default:
        im_refused(mirror, 64);
    }
    saw(step);
    return true;
}

static bool is_refused(void *arg)
{
    CUresult result = im_post(im_buffer(), *(CUdeviceptr *)arg, 64);

    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    return result != CUDA_SUCCESS;
}

static bool run_dying_exporter(long point)
{
    struct tracer tracer;
    struct exporter victim = start_victim(&tracer, point, export_script);
    bool finished = true;
    int step;

    mirror = 0;
    for (step = 1; step <= 6 && finished; step++)
        finished = reached(&tracer, step) && read_step(&tracer, step);
    finished = !end_victim(&victim, &tracer, finished);
    if (mirror != 0) {
        CHECK(lane_wait(is_refused, &mirror));
        im_refused(mirror, 64);
        CHECK(!im_prepare(shared->key));
        CHECK(im_close(mirror));
    }
    im_expect(healthy.mirror, healthy.base, 2 * CHUNK, 7);
    if (start.fds != 0)
        all_is_back(point);
    return !finished;
}

/* Each mirror was closed and its exporter is gone, but for the healthy one. */
static bool are_freed(void *arg)
{
    (void)arg;
    return sim_call_count("cuMemAddressFree") ==
           sim_call_count("cuMemAddressReserve") - 1;
}

static void kill_exporters(const char *name, const char *transport)
{
    uint8_t key[KEY_SIZE];

    set_up(name, transport);
    healthy.ex = ex_start();
    healthy.base = ex_reserve(&healthy.ex, WINDOW);
    ex_map(&healthy.ex, healthy.base, CHUNK, 2, 7);
    ex_key(&healthy.ex, healthy.base, 2 * CHUNK, key);
    lane_cuda(0);
    im_buffer();
    im_stream();
    healthy.mirror = im_attach(key);
    all_points(name, run_dying_exporter);
    CHECK(lane_wait(are_freed, NULL));
    ex_stop(&healthy.ex);
}

static void exporter_killed(void)
{
    kill_exporters("exporter", "getfd");
}

static void exporter_killed_by_socket(void)
{
    kill_exporters("exporter-with-socket", "socket");
}

/* --- the importer is killed ----------------------------------------------- */

static uint64_t import_script(uint64_t unused)
{
    CUdeviceptr ptr;

    (void)unused;
    im_buffer();
    im_stream();
    begin_script();
    count();
    ptr = im_attach(shared->key);
    did(1);
    count();
    im_expect(ptr, PLACE, CHUNKS * CHUNK, 1);
    did(2);
    /* A chunk is new, one is gone. */
    count();
    CHECK(im_prepare(shared->key));
    im_expect(ptr + CHUNKS * CHUNK, PLACE + CHUNKS * CHUNK, CHUNK, 2);
    im_refused(ptr, 64);
    did(3);
    count();
    im_refused(ptr, 64);
    CHECK(im_close(ptr));
    did(4);
    return 0;
}

static bool run_dying_importer(long point)
{
    struct tracer tracer;
    struct exporter victim;
    vmml_uct_mem_h memh[2];
    bool finished;

    lane_map_run(PLACE, CHUNK, CHUNKS, 1);
    memh[0] = lane_reg(PLACE, CHUNKS * CHUNK);
    memh[1] = NULL;
    export_pack(memh[0], PLACE, CHUNKS * CHUNK);
    victim = start_victim(&tracer, point, import_script);
    finished = reached(&tracer, 1);
    if (finished) {
        saw(1);
        finished = reached(&tracer, 2);
    }
    if (finished) {
        lane_map(PLACE + CHUNKS * CHUNK, CHUNK, 2);
        memh[1] = lane_reg(PLACE + CHUNKS * CHUNK, CHUNK);
        export_pack(memh[1], PLACE + CHUNKS * CHUNK, CHUNK);
        CHECK_CU(lane_unmap(PLACE, CHUNK));
        saw(2);
        finished = reached(&tracer, 3);
        CHECK_CU(lane_unmap(PLACE + CHUNK, CHUNKS * CHUNK));
        saw(3);
        finished = finished && reached(&tracer, 4);
    } else {
        CHECK_CU(lane_unmap(PLACE, CHUNKS * CHUNK));
    }
    finished = !end_victim(&victim, &tracer, finished);
    lane_dereg(memh[0]);
    if (memh[1] != NULL)
        lane_dereg(memh[1]);
    CHECK_EQUAL(vmml_exporter.registration_count, 0);
    CHECK_EQUAL(vmml_exporter.chunk_count, 0);
    if (start.fds != 0)
        all_is_back(point);
    return !finished;
}

static void kill_importers(const char *name, const char *transport)
{
    set_up(name, transport);
    lane_cuda(0);
    lane_ledger();
    lane_reserve_at(PLACE, WINDOW);
    all_points(name, run_dying_importer);
}

static void importer_killed(void)
{
    kill_importers("importer", "getfd");
}

static void importer_killed_by_socket(void)
{
    kill_importers("importer-with-socket", "socket");
}

/* --- at any instruction --------------------------------------------------- */

/* Publishes and revokes as fast as it can, for ever. Each key is the same, so
 * that the importer may read the first while others are made. */
static uint64_t churn_script(uint64_t unused)
{
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memh;
    unsigned round;

    (void)unused;
    lane_reserve_at(PLACE, WINDOW);
    lane_map_run(PLACE, CHUNK, CHUNKS, 1);
    for (round = 0;; round++) {
        memh = lane_reg(PLACE, CHUNKS * CHUNK);
        CHECK(lane_pack(memh, PLACE, CHUNKS * CHUNK, key));
        CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
        if (round == 0)
            memcpy(shared->key, key, sizeof(key));
        CHECK_EQUAL(memcmp(shared->key, key, sizeof(key)), 0);
        atomic_store(&shared->step, 1);
        CHECK_CU(lane_unmap(PLACE, CHUNK));
        lane_map(PLACE, CHUNK, 1);
        lane_dereg(memh);
    }
    return 0;
}

/* Posts on the chunk that changes, and on one that stays, for some time.
 * Returns how many were posted. */
static unsigned post_for(uint64_t ms)
{
    uint64_t end = lane_ms() + ms;
    CUdeviceptr other;
    unsigned posted = 0;

    while (lane_ms() < end) {
        if (im_prepare(shared->key) && mirror == 0)
            mirror = im_open(shared->key);
        if (mirror == 0)
            continue;
        other = mirror + CHUNK;
        posted += !is_refused(&mirror);
        posted += !is_refused(&other);
    }
    return posted;
}

static void kill_at_random(unsigned *seed, unsigned *posted)
{
    struct exporter victim = ex_start();

    atomic_store(&shared->step, 0);
    ex_begin(&victim, churn_script, 0);
    while (!atomic_load(&shared->step))
        usleep(100);
    mirror = 0;
    *posted += post_for(5 + (unsigned)rand_r(seed) % 60);
    ex_kill(&victim);
    if (mirror != 0) {
        CHECK(lane_wait(is_refused, &mirror));
        im_refused(mirror, 64);
        CHECK(im_close(mirror));
    }
}

/* In the middle of its writes into the ledger, too. */
static void exporter_killed_at_random(void)
{
    unsigned i, seed = 4, posted = 0;

    set_up("random", "getfd,socket");
    lane_cuda(0);
    im_buffer();
    im_stream();
    kill_at_random(&seed, &posted);
    CHECK(lane_wait(no_ledger, NULL));
    start = held_now();
    for (i = 0; i < 40; i++) {
        kill_at_random(&seed, &posted);
        all_is_back(i);
    }
    CHECK(posted > 0);
    printf("exporter killed at 40 instants, %u copies in all\n", posted);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(exporter_killed),
        LANE_PAIR(exporter_killed_by_socket),
        LANE_PAIR(importer_killed),
        LANE_PAIR(importer_killed_by_socket),
        LANE_PAIR(exporter_killed_at_random),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
