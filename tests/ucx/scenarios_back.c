/*
 * Scenarios of what must come back: memory, descriptors, mappings. The letters
 * name the cases that a scenario covers.
 */
#include "client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longest wait for memory that the other side holds: README, "A key names
 * addresses", says 200 ms; the rest is for a busy machine and, after a kill,
 * for the kernel. */
#define BOUND_SECONDS 40.0

/* ---- the state of both processes ---- */

struct both {
    struct state here;
    struct state there;
};

struct state remote_state(void)
{
    struct wire_header h = {.command = 0};
    struct state state;

    command(CMD_STATE, &h, NULL, NULL);
    state.free_bytes = h.args[0];
    state.descriptors = h.args[1];
    state.mappings = h.args[2];
    state.soft_limit = h.args[3];
    state.hard_limit = h.args[4];
    return state;
}

static struct both both_states(void)
{
    return (struct both){state_now(), remote_state()};
}

static void print_both(const char *when, const struct both *both)
{
    printf("state %s %s: free MiB %llu / %llu, descriptors %llu / %llu, "
           "mappings %llu / %llu (exporter / importer)\n",
           opt.scenario, when, (unsigned long long)both->there.free_bytes >> 20,
           (unsigned long long)both->here.free_bytes >> 20,
           (unsigned long long)both->there.descriptors,
           (unsigned long long)both->here.descriptors,
           (unsigned long long)both->there.mappings,
           (unsigned long long)both->here.mappings);
    fflush(stdout);
}

static bool is_back(const struct state *now_, const struct state *start)
{
    return now_->free_bytes >= start->free_bytes &&
           now_->descriptors <= start->descriptors;
}

/* Nothing is known to wait for: time for the importer's watcher and the
 * exporter's idle descriptors. */
static struct both settled(void)
{
    double end = now() + 2.5;

    while (now() < end)
        (void)remote_state();
    return both_states();
}

/* Waits; of UCX only progress is called. Returns seconds, or -1. */
static double wait_back(const struct both *start, struct both *last)
{
    double begin = now();

    for (;;) {
        *last = both_states();
        if (is_back(&last->here, &start->here) &&
            is_back(&last->there, &start->there))
            return now() - begin;
        if (now() - begin > BOUND_SECONDS)
            return -1;
    }
}

/* ---- fifty rounds of sleep and wake (G3, G4) ---- */

enum wake {
    WAKE_DEREGISTERED, /* registered anew in each round */
    WAKE_REGISTERED,   /* the registration lives through it all */
    WAKE_RESERVED,     /* as the first, and the reservation is new, too */
};

static void transfers(const struct key *key, const char *detail)
{
    uint64_t seed = new_seed();
    struct outcome get, put;

    remote_fill(key->remote, key->offset, key->length, seed);
    get = key_get(key, key->offset, key->length, seed);
    put = key_put(key, key->offset, key->length, new_seed());
    report_detail(key->remote, "get", get, detail);
    report_detail(key->remote, "put", put, detail);
}

/* The start values are those after a first round: UCX makes streams, events
 * and connections once. */
static void rounds_of(enum wake wake, const char *name)
{
    enum { ROUNDS = 50 };
    struct remote remote = remote_alloc(opt.kind, 0);
    struct key key = {.rkey = NULL};
    struct both start, last;
    double slowest = 0;
    bool back = true;
    char detail[64];

    for (int round = 0; round <= ROUNDS && back; round++) {
        double seconds;

        if (round > 0 && wake == WAKE_RESERVED)
            remote = remote_alloc(opt.kind, 0);
        else if (round > 0)
            remote_map(&remote, 0, remote.chunk_count);
        if (round == 0 || wake != WAKE_REGISTERED)
            key = key_make_all(&remote);
        else
            key_repack(&key);
        snprintf(detail, sizeof(detail), "%s-round%d", name, round);
        transfers(&key, detail);
        if (wake != WAKE_REGISTERED) {
            key_destroy(&key);
            key_deregister(&key);
        }
        if (wake == WAKE_RESERVED)
            remote_free(&remote);
        else
            remote_unmap(&remote, 0, remote.chunk_count, false);
        if (round == 0) {
            start = settled();
            print_both("start", &start);
            continue;
        }
        seconds = wait_back(&start, &last);
        back = seconds >= 0;
        if (!back || round == ROUNDS)
            print_both(detail, &last);
        slowest = seconds > slowest ? seconds : slowest;
    }
    printf("state %s %s: all back after at most %.3f s\n", opt.scenario, name,
           slowest);
    expect(name, back);
    if (wake == WAKE_REGISTERED) {
        key_destroy(&key);
        key_deregister(&key);
    }
    if (wake != WAKE_RESERVED)
        remote_free(&remote);
}

void scenario_sleep_wake(void)
{
    rounds_of(WAKE_DEREGISTERED, "deregistered");
    rounds_of(WAKE_REGISTERED, "registered");
    rounds_of(WAKE_RESERVED, "reserved-anew");
}

/* ---- the exporter is killed in the middle of transfers (E, G4) ---- */

/* Enough of them to outlast the end of a process that uses a GPU. */
enum { IN_FLIGHT = 64 };

static int count_running(ucs_status_ptr_t *requests)
{
    int running = 0;

    ucp_worker_progress(ucx.worker);
    for (int i = 0; i < IN_FLIGHT; i++)
        running += UCS_PTR_IS_PTR(requests[i]) &&
                   ucp_request_check_status(requests[i]) == UCS_INPROGRESS;
    return running;
}

/* Kills the exporter behind IN_FLIGHT posted GETs of everything, from here, so
 * that it is while they run. */
static void kill_behind(const struct key *key, ucs_status_ptr_t *requests,
                        char *lane)
{
    struct transfer transfer = {
        .operation = OP_GET,
        .local = local_buffer(key->length),
        .length = key->length,
        .remote = key->remote->base + key->offset,
        .rkey = key->rkey,
        .ep = key->ep,
    };
    struct wire_header h = {.command = 0};
    int at_signal;
    void *payload;
    pid_t pid;

    command(CMD_STATE, &h, NULL, NULL);
    pid = (pid_t)h.args[5];
    for (int i = 0; i < IN_FLIGHT; i++)
        requests[i] = transfer_post(&transfer, i == 0 ? lane : NULL);
    if (kill(pid, SIGKILL) != 0)
        die(EXIT_SETUP, "the exporter cannot be killed");
    at_signal = count_running(requests);
    if (wire_receive(opt.fd, &h, &payload))
        die(EXIT_SETUP, "the exporter spoke after its end");
    printf("state %s: of %d transfers %d were running when the exporter was "
           "killed, %d when it was gone\n",
           opt.scenario, IN_FLIGHT, at_signal, count_running(requests));
    expect("transfers-were-in-flight", at_signal > 0);
}

/* Those that end well, all together, have moved right bytes. */
static void judge_in_flight(const struct key *key, ucs_status_ptr_t *requests,
                            const char *lane, uint64_t seed)
{
    struct outcome outcome = {.status = UCS_OK, .verdict = BYTES_NONE};
    uint64_t first = 0;
    int ended_well = 0;

    for (int i = 0; i < IN_FLIGHT; i++) {
        ucs_status_t status = transport_wait(requests[i]);

        ended_well += status == UCS_OK;
        if (status != UCS_OK)
            outcome.status = status;
    }
    snprintf(outcome.lane, LANE_SIZE, "%s", lane);
    printf("state %s: %d of %d transfers ended well\n", opt.scenario,
           ended_well, IN_FLIGHT);
    if (ended_well > 0)
        outcome.verdict = device_compare(local_buffer(key->length), key->length,
                                         seed, key->offset, &first) == 0
                              ? BYTES_OK
                              : BYTES_BAD;
    report_detail(key->remote, "get-in-flight", outcome, "killed");
}

/* Until posts fail, and how long that took. */
static void later_ones_fail(const struct key *key)
{
    uint64_t length = key->length < (1 << 20) ? key->length : 1 << 20;
    double begin = now();
    double seconds;

    while (key_post(key, OP_PUT, key->offset, length, NULL) == UCS_OK &&
           now() - begin < BOUND_SECONDS)
        ;
    seconds = now() - begin;
    printf("state %s: posts fail after %.3f s\n", opt.scenario, seconds);
    expect("posts-fail-within-the-bound", seconds < BOUND_SECONDS);
    key_must_fail(key, key->offset, length, "killed");
}

/* A copy, an allocation and a synchronisation that have nothing to do with the
 * exporter. */
static bool context_lives(void)
{
    enum { LENGTH = 4 << 20 };
    CUdeviceptr from, to;
    uint64_t first = 0;
    uint64_t wrong;

    if (cuMemAlloc(&from, LENGTH) != CUDA_SUCCESS ||
        cuMemAlloc(&to, LENGTH) != CUDA_SUCCESS)
        return false;
    device_fill(from, LENGTH, 77, 0);
    if (cuMemcpyDtoD(to, from, LENGTH) != CUDA_SUCCESS ||
        cuCtxSynchronize() != CUDA_SUCCESS)
        return false;
    wrong = device_compare(to, LENGTH, 77, 0, &first);
    CU_MUST(cuMemFree(from));
    CU_MUST(cuMemFree(to));
    return wrong == 0;
}

/* The device's memory as before the exporter had any, without another call of
 * UCX. */
static void memory_comes_back(const struct state *start)
{
    double begin = now();
    struct state state;

    do {
        state = state_now();
    } while (state.free_bytes < start->free_bytes &&
             now() - begin < BOUND_SECONDS);
    printf("state %s: free MiB %llu before the exporter's allocation, %llu "
           "%.3f s after its end; descriptors %llu, %llu\n",
           opt.scenario, (unsigned long long)start->free_bytes >> 20,
           (unsigned long long)state.free_bytes >> 20, now() - begin,
           (unsigned long long)start->descriptors,
           (unsigned long long)state.descriptors);
    expect("memory-comes-back", state.free_bytes >= start->free_bytes);
}

void scenario_killed_in_flight(void)
{
    enum { SOME = 64 << 20 };
    ucs_status_ptr_t requests[IN_FLIGHT];
    uint64_t seed = new_seed();
    uint64_t some;
    char lane[LANE_SIZE] = "";
    struct outcome outcome;
    struct remote remote;
    struct state start;
    struct key key;

    /* UCX's own memory, and the local buffer, are there before the start. */
    remote = filled("malloc:2M", seed);
    key = key_make_all(&remote);
    outcome = key_get(&key, key.offset, key.length, seed);
    report_detail(&remote, "get", outcome, "alive");
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
    local_buffer(specification_bytes(opt.kind));
    start = state_now();

    remote = filled(opt.kind, seed);
    key = key_make_all(&remote);
    some = key.length < SOME ? key.length : SOME;
    outcome = key_get(&key, key.offset, some, seed);
    report_detail(&remote, "get", outcome, "alive");
    if (outcome.status != UCS_OK || strcmp(outcome.lane, "cuda_ipc") != 0) {
        printf("skip %s: not on cuda_ipc\n", opt.scenario);
        return;
    }
    device_fill(local_buffer(key.length), key.length, POISON, key.offset);
    kill_behind(&key, requests, lane);
    judge_in_flight(&key, requests, lane, seed);
    later_ones_fail(&key);
    expect("context-lives", context_lives());
    memory_comes_back(&start);
    expect("context-lives", context_lives());
    fflush(NULL);
    /* No orderly end: UCX would wait for the peer. */
    _Exit(wrong_bytes ? EXIT_WRONG_BYTES : 0);
}

/* ---- as many chunks as the limit of descriptors allows (G2) ---- */

/* A window of any number of chunks, in places: all of it would be gigabytes. */
void scenario_probes(void)
{
    enum { PROBES = 64, LENGTH = 3 << 20 };
    struct outcome outcome = {.status = UCS_OK, .verdict = BYTES_OK};
    struct remote remote = remote_alloc(opt.kind, 0);
    struct key key = key_make_all(&remote);
    uint64_t seed = new_seed();

    for (uint64_t i = 0; i <= PROBES && outcome.verdict == BYTES_OK; i++) {
        uint64_t at = (remote.length - LENGTH) / PROBES * i;

        remote_fill(&remote, remote.offset + at, LENGTH, seed);
        outcome = key_get(&key, key.offset + at, LENGTH, seed);
    }
    report_detail(&remote, "get", outcome, "probes");
    outcome.verdict = BYTES_OK;
    for (uint64_t i = 0; i <= PROBES && outcome.verdict == BYTES_OK; i++)
        outcome =
            key_put(&key, key.offset + (remote.length - LENGTH) / PROBES * i,
                    LENGTH, new_seed());
    report_detail(&remote, "put", outcome, "probes");
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
}

/* Descriptors of an exporter beside its chunks': numbers below 1,024, 64 spare
 * ones, UCX's and the driver's. */
#define OTHER_DESCRIPTORS 2048

void scenario_many_chunks(void)
{
    enum { PROBES = 64, LENGTH = 3 << 20 };
    struct outcome outcome = {.status = UCS_OK, .verdict = BYTES_OK};
    struct state limits = remote_state();
    uint64_t seed = new_seed();
    struct remote remote;
    char specification[64];
    struct both start, last;
    unsigned long count = 0;
    struct key key;
    double seconds;

    if (sscanf(opt.kind, "vmm:%lux2M", &count) != 1 || count < PROBES)
        die(EXIT_USAGE, "the scenario 'many-chunks' needs vmm:COUNTx2M");
    printf("state %s: limit of descriptors %llu, hard %llu\n", opt.scenario,
           (unsigned long long)limits.soft_limit,
           (unsigned long long)limits.hard_limit);
    if (limits.hard_limit < count * opt.descriptors + OTHER_DESCRIPTORS)
        count = (limits.hard_limit - OTHER_DESCRIPTORS) / opt.descriptors;
    /* All that is made once. */
    remote = filled("vmm:2x2M", seed);
    key = key_make_all(&remote);
    outcome = key_get(&key, key.offset, key.length, seed);
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
    start = settled();
    print_both("start", &start);

    snprintf(specification, sizeof(specification), "vmm:%lux2M", count);
    remote = remote_alloc(specification, 0);
    key = key_make_all(&remote);
    last = both_states();
    print_both("mapped", &last);
    for (uint64_t i = 0; i <= PROBES && outcome.verdict == BYTES_OK; i++) {
        uint64_t at = (remote.length - LENGTH) / PROBES * i;

        remote_fill(&remote, remote.offset + at, LENGTH, seed);
        outcome = key_get(&key, key.offset + at, LENGTH, seed);
    }
    report_detail(&remote, "get", outcome, "probes");
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
    seconds = wait_back(&start, &last);
    print_both("end", &last);
    printf("state %s: %lu chunks, all back after %.3f s\n", opt.scenario, count,
           seconds);
    expect("all-back", seconds >= 0);
}
