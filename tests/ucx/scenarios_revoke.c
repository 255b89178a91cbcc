/*
 * Scenarios of memory that goes: re-backing, holes, deregistration, death.
 * The letters name the cases that a scenario covers.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- re-backing at the same address (D3, D6) ---- */

/*
 * UCX 1.18 ends the process when a posted GET is refused: "'abort' is not
 * implemented for protocol get/zcopy", for cuMemAlloc memory as well. Its PUT
 * gives an error, as both do from 1.19 on.
 */
bool get_aborts(void)
{
    unsigned major;
    unsigned minor;
    unsigned release;

    ucp_get_version(&major, &minor, &release);
    return major == 1 && minor < 19;
}

/* A transfer that ended well has moved old bytes, or no memory's bytes. */
static void report_refused(const struct key *key, const char *operation,
                           struct outcome outcome, const char *detail)
{
    bool fast = strcmp(outcome.lane, "cuda_ipc") == 0;

    outcome.verdict = BYTES_NONE;
    if (fast && outcome.status == UCS_OK)
        outcome.verdict = BYTES_BAD;
    report_detail(key->remote, operation, outcome, detail);
}

void key_must_fail(const struct key *key, uint64_t offset, uint64_t length,
                   const char *detail)
{
    struct outcome outcome = {.status = UCS_OK};

    if (key->rkey == NULL)
        return;
    outcome.status = key_post(key, OP_PUT, offset, length, outcome.lane);
    report_refused(key, "put-refused", outcome, detail);
    if (get_aborts())
        return;
    outcome.status = key_post(key, OP_GET, offset, length, outcome.lane);
    report_refused(key, "get-refused", outcome, detail);
}

static void rebacking(bool unseen, bool deregister)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key = key_make_all(&remote);
    char detail[64];

    for (int round = 0; round <= opt.rounds; round++) {
        struct key old = key;

        snprintf(detail, sizeof(detail), "round%d", round);
        report_detail(&remote, "get",
                      key_time(&key, OP_GET, key.offset, key.length, seed),
                      detail);
        seed = new_seed();
        report_detail(&remote, "put",
                      key_put(&key, key.offset, key.length, seed), detail);
        if (round == opt.rounds)
            break;
        if (deregister)
            key_deregister(&old);
        remote_unmap(&remote, 0, remote.chunk_count, unseen);
        if (!unseen)
            key_must_fail(&old, old.offset, old.length, "unmapped");
        remote_map(&remote, 0, remote.chunk_count);
        seed = new_seed();
        remote_fill(&remote, remote.offset, remote.length, seed);
        if (!unseen)
            key_must_fail(&old, old.offset, old.length, "mapped-anew");
        key = key_make_all(&remote);
        report_detail(&remote, "get-new-key",
                      key_get(&key, key.offset, key.length, seed), detail);
        report_detail(&remote, "get-old-key",
                      key_get(&old, old.offset, old.length, seed), detail);
        key_destroy(&old);
    }
    key_destroy(&key);
    remote_free(&remote);
}

void scenario_reback(void)
{
    rebacking(false, false);
}

void scenario_reback_deregistered(void)
{
    rebacking(false, true);
}

void scenario_unseen(void)
{
    rebacking(true, true);
}

/* The same rounds without a read in between: no revoked key is ever used. */
void scenario_reback_quiet(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    char detail[64];

    for (int round = 0; round <= opt.rounds; round++) {
        struct key key = key_make_all(&remote);

        snprintf(detail, sizeof(detail), "round%d", round);
        report_detail(&remote, "get",
                      key_get(&key, key.offset, key.length, seed), detail);
        report_detail(&remote, "put",
                      key_put(&key, key.offset, key.length, new_seed()),
                      detail);
        key_destroy(&key);
        key_deregister(&key);
        remote_unmap(&remote, 0, remote.chunk_count, false);
        remote_map(&remote, 0, remote.chunk_count);
        seed = new_seed();
        remote_fill(&remote, remote.offset, remote.length, seed);
    }
    remote_free(&remote);
}

/* ---- a hole (B3) ---- */

enum { HOLE = 7 };

static void around_hole(const struct key *key, uint64_t seed,
                        const char *detail)
{
    const struct remote *remote = key->remote;
    const struct wire_chunk *hole = &remote->chunks[HOLE];
    uint64_t after = hole->offset + hole->size;
    uint64_t end = remote->offset + remote->length;
    struct outcome outcome;

    report_detail(
        remote, "get-before-hole",
        key_get(key, remote->offset, hole->offset - remote->offset, seed),
        detail);
    outcome = key_get(key, after, end - after, seed);
    report_detail(remote, "get-after-hole", outcome, detail);
    /*
     * UCX's emulation of a GET has the exporter copy, and ends it with a fatal
     * error when that fails (1.18 to 1.22, measured): nothing to see there.
     */
    if (strcmp(outcome.lane, "cuda_ipc") != 0)
        return;
    key_must_fail(key, hole->offset, hole->size, "hole");
}

void scenario_hole(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key;

    if (remote.chunk_count <= HOLE + 1)
        die(EXIT_USAGE, "the scenario 'hole' needs more chunks");
    remote_unmap(&remote, HOLE, 1, false);
    key = key_make_all(&remote);
    around_hole(&key, seed, "registered-with-hole");
    key_destroy(&key);
    remote_free(&remote);
}

void scenario_hole_later(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key = key_make_all(&remote);

    report_detail(&remote, "get", key_get(&key, key.offset, key.length, seed),
                  "before");
    remote_unmap(&remote, HOLE, 1, false);
    key_repack(&key);
    around_hole(&key, seed, "packed-again");
    key_destroy(&key);
    remote_free(&remote);
}

/* ---- the last deregistration makes idle (D4) ---- */

void scenario_idle(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    uint64_t at = remote.chunks[3].offset;
    uint64_t size = remote.chunks[3].size;
    struct key low = key_make(&remote, remote.offset, at + size);
    struct key high = key_make(&remote, at, remote.offset + remote.length - at);

    report_detail(&remote, "get", key_get(&low, at, size, seed), "both");
    key_deregister(&low);
    report_detail(&remote, "get", key_get(&high, at, size, seed), "one-left");
    key_deregister(&high);
    seed = new_seed();
    remote_fill(&remote, at, size, seed);
    /* Present bytes or an error, never others. */
    report_detail(&remote, "get-idle", key_get(&high, at, size, seed),
                  "none-left");
    key_destroy(&low);
    key_destroy(&high);
    remote_free(&remote);
}

/* ---- an exporter that dies ---- */

void scenario_killed(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key = key_make_all(&remote);
    struct wire_header h = {.command = CMD_KILL};
    struct outcome outcome = key_get(&key, key.offset, key.length, seed);
    double end;
    void *payload;

    report_detail(&remote, "get", outcome, "alive");
    if (outcome.status != UCS_OK || strcmp(outcome.lane, "cuda_ipc") != 0) {
        printf("skip %s: not on cuda_ipc\n", opt.scenario);
        return;
    }
    wire_send(opt.fd, &h, NULL);
    if (wire_receive(opt.fd, &h, &payload))
        die(EXIT_SETUP, "the exporter answered after its end");
    /* What was in flight may end well; a bound later nothing may. */
    end = now() + 5;
    while (key_post(&key, OP_PUT, key.offset, key.length, NULL) == UCS_OK &&
           now() < end)
        ;
    key_must_fail(&key, key.offset, key.length, "killed");
    fflush(NULL);
    /* No orderly end: UCX would wait for the peer. */
    _Exit(wrong_bytes ? EXIT_WRONG_BYTES : 0);
}

/*
 * ---- a restarted exporter (E4) ----
 *
 * The runner starts the second one with the first one's pid. The same
 * reservation at the same address, other contents: UCX looks its cache up by
 * pid, address and buffer id.
 */

void scenario_restarted(void)
{
    uint64_t seed = new_seed();
    struct remote first = remote_alloc(opt.kind, PLACE);
    struct wire_header h = {.command = CMD_KILL};
    struct remote second;
    struct key old;
    struct key new;
    void *payload;

    remote_fill(&first, first.offset, first.length, seed);
    old = key_make_all(&first);
    report_detail(&first, "get", key_get(&old, old.offset, old.length, seed),
                  "first");
    wire_send(opt.fd, &h, NULL);
    if (wire_receive(opt.fd, &h, &payload))
        die(EXIT_SETUP, "the exporter answered after its end");
    opt.fd = opt.next_fd;
    connect_to_exporter();
    second = remote_alloc(opt.kind, PLACE);
    seed = new_seed();
    remote_fill(&second, second.offset, second.length, seed);
    key_must_fail(&old, old.offset, old.length, "before-new-key");
    new = key_make_all(&second);
    report_detail(&second, "get", key_get(&new, new.offset, new.length, seed),
                  "second");
    key_must_fail(&old, old.offset, old.length, "after-new-key");
    report_detail(&second, "get", key_get(&new, new.offset, new.length, seed),
                  "second-again");
    report_detail(&second, "put",
                  key_put(&new, new.offset, new.length, new_seed()), "second");
    command(CMD_QUIT, &h, NULL, NULL);
    fflush(NULL);
    /* No orderly end: UCX would wait for the first one. */
    _Exit(wrong_bytes ? EXIT_WRONG_BYTES : 0);
}

/* ---- a registration for each message (D4) ---- */

void scenario_rounds(void)
{
    enum { ROUNDS = 300, LENGTH = 64 << 10 };
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct outcome outcome = {.status = UCS_OK, .verdict = BYTES_OK};

    for (uint64_t i = 0; i < ROUNDS && outcome.verdict == BYTES_OK; i++) {
        uint64_t at = i * 7919 * 512 % (remote.length - LENGTH);
        struct key key = key_make(&remote, remote.offset + at, LENGTH);

        outcome = key_get(&key, key.offset, LENGTH, seed);
        key_destroy(&key);
        key_deregister(&key);
    }
    report_detail(&remote, "get", outcome, "last-of-the-rounds");
    remote_free(&remote);
}
