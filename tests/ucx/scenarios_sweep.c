/*
 * The n-th-call sweep (tests/sweep): for each line of a plan one round with a
 * call that fails, then one without, in the same two processes.
 *
 * A plan's line: ROUND SIDE RULE. SIDE is the process in which the rule of
 * faults.h holds; "-" is no rule, "env" one that the process began with. Or:
 * "most" SIDE FIGURES, the most that the process is to hold after a round, "-"
 * where that is not known and all is waited for;
 * "plain" - SPECIFICATION, memory whose keys are UCX's own.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../sweep/faults.h"

__attribute__((weak)) void sweep_arm(const char *rule);
__attribute__((weak)) void sweep_disarm(void);
__attribute__((weak)) void sweep_report(char *text, size_t size);

enum { REPORT_SIZE = 8192 };

char *sweep_obey(const char *payload)
{
    char *text = calloc(1, REPORT_SIZE);

    if (text == NULL)
        die(EXIT_SETUP, "out of memory");
    if (sweep_arm == NULL || sweep_report == NULL || sweep_disarm == NULL)
        die(EXIT_SETUP, "the preload of the sweep is missing");
    if (strncmp(payload, "arm ", 4) == 0)
        sweep_arm(payload + 4);
    else if (strcmp(payload, "disarm") == 0)
        sweep_disarm();
    sweep_report(text, REPORT_SIZE);
    return text;
}

/* ---- rounds: each makes its memory and keys, and ends them ---- */

#define SPEC "vmm:3x2M~160M"

/* The same of the kind of memory that was asked for. */
static const char *of_kind(const char *specification)
{
    static char text[64];

    if (strncmp(opt.kind, "fabric", 6) != 0 ||
        strncmp(specification, "vmm", 3) != 0)
        return specification;
    snprintf(text, sizeof(text), "fabric%s", specification + strlen("vmm"));
    return text;
}

/* Always at one address: a mirror is kept for each window that there was. */
static struct remote memory(const char *specification, uint64_t seed)
{
    static CUdeviceptr base;
    struct remote remote = remote_alloc(of_kind(specification), base);

    base = remote.base;
    remote_fill(&remote, remote.offset, remote.length, seed);
    return remote;
}

static void get(const struct key *key, uint64_t seed, const char *detail)
{
    report_detail(key->remote, "get",
                  key_get(key, key->offset, key->length, seed), detail);
}

static void get_and_put(const struct key *key, uint64_t seed,
                        const char *detail)
{
    get(key, seed, detail);
    report_detail(key->remote, "put",
                  key_put(key, key->offset, key->length, new_seed()), detail);
}

static void end(struct key *key)
{
    key_destroy(key);
    key_deregister(key);
}

static void round_whole(void)
{
    uint64_t seed = new_seed();
    struct remote remote = memory(SPEC, seed);
    struct key key = key_make_all(&remote);

    get_and_put(&key, seed, "whole");
    end(&key);
    remote_free(&remote);
}

/* Memory that asks for no handle type. */
static void round_upgrade(void)
{
    uint64_t seed = new_seed();
    struct remote remote = memory("none:3x2M~160M", seed);
    struct key key = key_make_all(&remote);

    get_and_put(&key, seed, "upgraded");
    end(&key);
    remote_free(&remote);
}

static void round_growth(void)
{
    uint64_t seed = new_seed();
    struct remote remote = memory(SPEC, seed);
    struct key small = key_make_all(&remote);
    struct key large;

    get(&small, seed, "before");
    remote_grow(&remote, 2, false);
    remote_fill(&remote, remote.offset, remote.length, seed);
    large = key_make_all(&remote);
    get(&large, seed, "grown");
    get_and_put(&small, seed, "old-key");
    end(&small);
    end(&large);
    remote_free(&remote);
}

static void round_reback(void)
{
    uint64_t seed = new_seed();
    struct remote remote = memory(SPEC, seed);
    struct key old = key_make_all(&remote);
    struct key key;

    get(&old, seed, "before");
    remote_unmap(&remote, 1, 1, false);
    remote_map(&remote, 1, 1);
    seed = new_seed();
    remote_fill(&remote, remote.offset, remote.length, seed);
    key = key_make_all(&remote);
    get_and_put(&key, seed, "backed-anew");
    end(&old);
    end(&key);
    remote_free(&remote);
}

/* Several registrations of one window, one ended before another is read. */
static void round_tensors(void)
{
    uint64_t seed = new_seed();
    struct remote remote = memory(SPEC, seed);
    uint64_t third = remote.length / 3;
    struct key a = key_make(&remote, remote.offset + 4096, third);
    struct key b = key_make(&remote, remote.offset + third, third + 8192);

    get(&a, seed, "a");
    end(&a);
    get(&b, seed, "b");
    a = key_make(&remote, remote.offset + third / 2, 2 * third);
    get(&a, seed, "a-again");
    end(&b);
    end(&a);
    remote_free(&remote);
}

/* So many chunks that a copy is posted in pieces. */
static void round_pieces(void)
{
    uint64_t seed = new_seed();
    struct remote remote = memory("vmm:72x2M~160M", seed);
    struct key key = key_make_all(&remote);

    get(&key, seed, "pieces");
    end(&key);
    remote_free(&remote);
}

static struct transfer put_of(const struct key *key, CUdeviceptr local)
{
    return (struct transfer){
        .operation = OP_PUT,
        .local = local,
        .length = key->length,
        .remote = key->remote->base + key->offset,
        .rkey = key->rkey,
    };
}

/* Two PUTs with a fence between them, on streams of two kinds of keys. */
static void put_both(const struct key keys[2], const uint64_t seeds[2])
{
    CUdeviceptr local = local_buffer(keys[0].length + keys[1].length);
    CUdeviceptr at[2] = {local, local + keys[0].length};
    struct outcome outcomes[2] = {{.verdict = BYTES_NONE},
                                  {.verdict = BYTES_NONE}};
    ucs_status_ptr_t requests[2];
    ucs_status_t flushed;

    for (int i = 0; i < 2; i++)
        device_fill(at[i], keys[i].length, seeds[i], keys[i].offset);
    for (int i = 0; i < 2; i++) {
        struct transfer put = put_of(&keys[i], at[i]);

        requests[i] = transfer_post(&put, outcomes[i].lane);
        if (i == 0)
            outcomes[i].status = ucp_worker_fence(ucx.worker);
    }
    for (int i = 0; i < 2; i++) {
        ucs_status_t status = transport_wait(requests[i]);

        if (status != UCS_OK)
            outcomes[i].status = status;
    }
    flushed = transport_flush(ucx.ep);
    for (int i = 0; i < 2; i++) {
        if (outcomes[i].status == UCS_OK)
            outcomes[i].status = flushed;
        if (outcomes[i].status == UCS_OK)
            outcomes[i].verdict = remote_check(keys[i].remote, keys[i].offset,
                                               keys[i].length, seeds[i])
                                      ? BYTES_OK
                                      : BYTES_BAD;
        report_detail(keys[i].remote, "put", outcomes[i], "fenced");
    }
}

static char plain_memory[32] = "malloc:4M";

static void round_fence(void)
{
    const uint64_t seeds[2] = {new_seed(), new_seed()};
    struct remote vmm = memory(SPEC, new_seed());
    /* One for all rounds: UCX's importer keeps each cudaMalloc memory mapped
     * until its cache needs the place. */
    static struct remote plain;
    struct key keys[2];

    if (plain.base == 0)
        plain = filled(plain_memory, new_seed());
    keys[0] = key_make_all(&vmm);
    keys[1] = key_make_all(&plain);
    if (keys[0].rkey != NULL && keys[1].rkey != NULL)
        put_both(keys, seeds);
    end(&keys[0]);
    end(&keys[1]);
    remote_free(&vmm);
}

/* Memory of a stream-ordered pool. */
static void round_pool(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled("pool:6M", seed);
    struct key key = key_make_all(&remote);

    get_and_put(&key, seed, "pool");
    end(&key);
    remote_free(&remote);
}

static const struct round {
    const char *name;
    void (*run)(void);
} rounds[] = {
    {"whole", round_whole},     {"upgrade", round_upgrade},
    {"growth", round_growth},   {"reback", round_reback},
    {"tensors", round_tensors}, {"pieces", round_pieces},
    {"fence", round_fence},     {"pool", round_pool},
};

static const struct round *round_named(const char *name)
{
    for (size_t i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++)
        if (strcmp(rounds[i].name, name) == 0)
            return &rounds[i];
    die(EXIT_USAGE, "unknown round '%s'", name);
}

/* ---- what is held ---- */

enum { FIGURES = 32 };

/* "live NAME=N ..." of one side. */
struct held {
    size_t count;
    long figures[FIGURES];
};

static char *ask(int role, const char *payload)
{
    struct wire_header h = {.payload_length = strlen(payload)};
    void *reply = NULL;

    if (role == 1)
        return sweep_obey(payload);
    command(CMD_SWEEP, &h, payload, &reply);
    return reply;
}

static struct held held_by(int role)
{
    char *text = ask(role, "report");
    const char *at = strstr(text, "\nlive ");
    struct held held = {.count = 0};

    while (at != NULL && (at = strchr(at, '=')) != NULL && held.count < FIGURES)
        held.figures[held.count++] = atol(++at);
    free(text);
    return held;
}

static bool is_more(const struct held *now, const struct held *before)
{
    bool more = false;

    for (size_t i = 0; i < now->count; i++)
        more |= now->figures[i] > before->figures[i];
    return more;
}

static void keep_larger(struct held *most, const struct held *now)
{
    most->count = now->count;
    for (size_t i = 0; i < now->count; i++)
        if (most->figures[i] < now->figures[i])
            most->figures[i] = now->figures[i];
}

/* By the plan, or by what was seen. */
static struct held most[2];

enum { SETTLE_SECONDS = 3 };

/* What the two processes are to hold after a round: no more than after one of
 * those before. The importer gives memory back when its watcher comes by, the
 * exporter what is idle after 2 s; what stays shows in the report. */
static void settle(void)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    double end = now() + SETTLE_SECONDS;
    bool is_late, settled;
    struct held held[2];

    do {
        nanosleep(&pause, NULL);
        is_late = now() > end;
        for (int i = 0; i < 2; i++)
            held[i] = held_by(i);
        settled = most[0].count != 0 && !is_more(&held[0], &most[0]) &&
                  !is_more(&held[1], &most[1]);
    } while (!settled && !is_late);
    for (int i = 0; i < 2; i++)
        keep_larger(&most[i], &held[i]);
}

/* ---- the plan ---- */

static const char *const roles[] = {"exporter", "importer"};

/* Has a side obey; prints what it reports. */
static void side(int role, const char *payload, bool print)
{
    char *text = ask(role, payload);
    char *line, *rest;

    for (line = strtok_r(text, "\n", &rest); line != NULL && print;
         line = strtok_r(NULL, "\n", &rest))
        printf("sweep %s %s\n", roles[role], line);
    fflush(stdout);
    free(text);
}

static void arm(const char *where, const char *rule)
{
    char payload[600];

    if (strcmp(where, "env") == 0)
        return;
    for (int i = 0; i < 2; i++) {
        snprintf(payload, sizeof(payload), "arm %s",
                 strcmp(where, roles[i]) == 0 ? rule : "");
        side(i, payload, false);
    }
}

/* Figures with commas between them, in the order of a report. */
static void take_most(const char *where, const char *figures)
{
    struct held *held = &most[strcmp(where, roles[1]) == 0];
    char *rest;

    held->count = 0;
    if (strcmp(figures, "-") == 0)
        return;
    while (held->count < FIGURES) {
        held->figures[held->count++] = strtol(figures, &rest, 10);
        if (*rest != ',')
            break;
        figures = rest + 1;
    }
}

static void run_line(const char *round, const char *where, const char *rule)
{
    printf("sweep begin %s %s %s\n", round, where, rule);
    fflush(stdout);
    arm(where, rule);
    round_named(round)->run();
    side(0, "disarm", true);
    side(1, "disarm", true);
    printf("sweep next\n");
    round_named(round)->run();
    settle();
    printf("sweep held\n");
    side(0, "report", true);
    side(1, "report", true);
    printf("sweep end\n");
    fflush(stdout);
}

void scenario_sweep(void)
{
    FILE *plan = opt.plan != NULL ? fopen(opt.plan, "re") : NULL;
    char round[32], where[32], rule[512];

    if (plan == NULL)
        die(EXIT_USAGE, "no plan of the sweep can be read");
    while (fscanf(plan, "%31s %31s %511s", round, where, rule) == 3) {
        if (strcmp(round, "most") == 0)
            take_most(where, rule);
        else if (strcmp(round, "plain") == 0)
            snprintf(plain_memory, sizeof(plain_memory), "%.31s", rule);
        else
            run_line(round, where, rule);
    }
    fclose(plan);
}
