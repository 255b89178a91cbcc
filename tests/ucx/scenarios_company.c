/*
 * Scenarios of memory and keys beside each other, and of both roles in one.
 * The letters name the cases that a scenario covers.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- neighbours by chance (B4) ---- */

void scenario_neighbours(void)
{
    uint64_t seed = new_seed();
    const char *kind =
        strncmp(opt.kind, "fabric", 6) == 0 ? "fabric:4x2M~8M" : "vmm:4x2M~8M";
    struct remote low = remote_alloc(kind, PLACE);
    struct remote high = remote_alloc(kind, PLACE + low.reserved);
    uint64_t high_seed = new_seed();
    struct key low_key;
    struct key high_key;
    struct key across;
    struct outcome outcome;

    remote_fill(&low, low.offset, low.length, seed);
    remote_fill(&high, high.offset, high.length, high_seed);
    low_key = key_make_all(&low);
    high_key = key_make_all(&high);
    report_detail(&low, "get", key_get(&low_key, 0, low.length, seed), "low");
    report_detail(&high, "get", key_get(&high_key, 0, high.length, high_seed),
                  "high");
    across = key_make(&low, low.length - (2 << 20), 4 << 20);
    outcome = key_get(&across, low.length - (2 << 20), 2 << 20, seed);
    report_detail(&low, "get-across", outcome, "low-half");
    /* The pattern counts from each reservation's own base: read the halves. */
    across.remote = &high;
    outcome = key_get(&across, 0, 2 << 20, high_seed);
    report_detail(&high, "get-across", outcome, "high-half");
    report_detail(&low, "get", key_get(&low_key, 0, low.length, seed),
                  "low-again");
    key_destroy(&low_key);
    key_destroy(&high_key);
    key_destroy(&across);
    remote_free(&high);
    remote_free(&low);
}

/* ---- VMM and cudaMalloc memory side by side (E3) ---- */

static void side_by_side(const char *first, const char *second)
{
    uint64_t seed = new_seed();
    struct remote a = filled(first, seed);
    struct remote b = filled(second, seed);
    struct key a_key = key_make_all(&a);
    struct key b_key;

    report_detail(&a, "get", key_get(&a_key, a.offset, a.length, seed),
                  "first");
    b_key = key_make_all(&b);
    report_detail(&b, "get", key_time(&b_key, OP_GET, b.offset, b.length, seed),
                  "second");
    report_detail(&a, "get", key_get(&a_key, a.offset, a.length, seed),
                  "first-again");
    report_detail(&a, "put", key_put(&a_key, a.offset, a.length, new_seed()),
                  "first");
    report_detail(&b, "put", key_put(&b_key, b.offset, b.length, new_seed()),
                  "second");
    key_destroy(&a_key);
    key_destroy(&b_key);
    remote_free(&a);
    remote_free(&b);
}

void scenario_vmm_then_malloc(void)
{
    side_by_side(opt.kind, "malloc:16M");
}

void scenario_malloc_then_vmm(void)
{
    side_by_side("malloc:16M", opt.kind);
}

/* ---- a key with a wrong bit (E3) ---- */

/* The bytes of a handle that travel, from its magic on (src/lane/handle.h). */
enum { HANDLE_BYTES = 56 };
static const uint8_t HANDLE_MAGIC[] = "vmml";

static size_t handle_offset(const uint8_t *packed, size_t length)
{
    size_t at;

    for (at = 0; at + HANDLE_BYTES <= length; at++)
        if (memcmp(packed + at, HANDLE_MAGIC, 4) == 0)
            return at;
    return length;
}

/* Another lane with right bytes, or an error. */
static void try_flipped(const struct key *good, const uint8_t *packed,
                        size_t byte, uint64_t seed)
{
    enum { LENGTH = 64 << 10 };
    struct key key = key_unpacked(good, packed);
    struct outcome outcome = {.status = key.status, .verdict = BYTES_NONE};
    char detail[32];

    snprintf(detail, sizeof(detail), "byte%zu", byte);
    if (key.rkey != NULL && get_aborts())
        outcome = key_put(&key, key.offset, LENGTH, seed);
    else if (key.rkey != NULL)
        outcome = key_get(&key, key.offset, LENGTH, seed);
    report_detail(good->remote, get_aborts() ? "put-flipped" : "get-flipped",
                  outcome, detail);
    key_destroy(&key);
}

void scenario_flipped(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct remote plain = filled("malloc:16M", seed);
    struct key good = key_make_all(&remote);
    struct key plain_key;
    size_t length, at, i;
    uint8_t *packed;

    report_detail(&remote, "get",
                  key_get(&good, good.offset, good.length, seed), "whole");
    packed = key_packed(&good, &length);
    at = handle_offset(packed, length);
    expect("handle-in-key", at < length);
    for (i = 0; at < length && i < HANDLE_BYTES; i++) {
        packed[at + i] ^= (uint8_t)(1 << (i % 8));
        try_flipped(&good, packed, i, seed);
        packed[at + i] ^= (uint8_t)(1 << (i % 8));
    }
    free(packed);
    /* None of it is remembered against the keys that are right. */
    key_repack(&good);
    seed = new_seed();
    remote_fill(&remote, remote.offset, remote.length, seed);
    report_detail(&remote, "get",
                  key_get(&good, good.offset, good.length, seed),
                  "whole-again");
    remote_fill(&plain, plain.offset, plain.length, seed);
    plain_key = key_make_all(&plain);
    report_detail(&plain, "get",
                  key_get(&plain_key, plain.offset, plain.length, seed),
                  "malloc");
    key_destroy(&good);
    key_destroy(&plain_key);
    remote_free(&plain);
    remote_free(&remote);
}

/* ---- one process as both sides ---- */

void scenario_own_process(void)
{
    struct outcome outcome = {.verdict = BYTES_NONE};
    uint64_t seed = new_seed();
    struct transfer t = {.operation = OP_GET};
    struct segment segment;
    ucp_address_t *address;
    ucp_mem_h memh;
    size_t length;
    void *packed;

    segment_create(&segment, opt.kind, 0);
    device_fill(segment.base + segment.data_offset, segment.data_length, seed,
                segment.data_offset);
    if (ucp_worker_get_address(ucx.worker, &address, &length) != UCS_OK)
        die(EXIT_SETUP, "ucp_worker_get_address failed");
    t.ep = transport_connect(address);
    ucp_worker_release_address(ucx.worker, address);
    outcome.status = memory_register(segment.base + segment.data_offset,
                                     segment.data_length, &memh);
    if (outcome.status == UCS_OK)
        outcome.status = memory_pack(memh, &packed, &length);
    if (outcome.status == UCS_OK) {
        outcome.status = ucp_ep_rkey_unpack(t.ep, packed, &t.rkey);
        ucp_rkey_buffer_release(packed);
    }
    if (outcome.status == UCS_OK) {
        uint64_t first = 0;

        t.local = local_buffer(segment.data_length);
        t.length = segment.data_length;
        t.remote = segment.base + segment.data_offset;
        outcome.status = transfer_run(&t, outcome.lane);
        if (outcome.status == UCS_OK)
            outcome.verdict = device_compare(t.local, t.length, seed,
                                             segment.data_offset, &first) == 0
                                  ? BYTES_OK
                                  : BYTES_BAD;
    }
    report(opt.kind, "get", &outcome, "own-process");
}

/* ---- a key unpacked before the importer has a context ---- */

void scenario_late_context(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key = key_make_all(&remote);
    struct key again;
    unsigned flags;
    int active = 1;

    CU_MUST(cuDevicePrimaryCtxGetState(opt.device, &flags, &active));
    expect("no-context-made", !active);
    device_open(true);
    report_detail(&remote, "get",
                  key_get(&key, remote.offset, remote.length, seed),
                  "unpacked-before");
    again = key_make_all(&remote);
    report_detail(&remote, "get",
                  key_get(&again, remote.offset, remote.length, seed),
                  "unpacked-after");
    key_destroy(&key);
    key_destroy(&again);
    remote_free(&remote);
}

/* ---- contexts that end under UCX ---- */

/* Two keys are two of UCX's streams, in each context. */
static void through(const struct key *keys, unsigned count, const char *detail)
{
    unsigned round, i;

    for (round = 0; round < 2; round++) {
        for (i = 0; i < count; i++) {
            const struct remote *remote = keys[i].remote;
            uint64_t seed = new_seed();

            report_detail(
                remote, "put",
                key_put(&keys[i], remote->offset, remote->length, seed),
                detail);
            report_detail(
                remote, "get",
                key_get(&keys[i], remote->offset, remote->length, seed),
                detail);
        }
        ucp_worker_fence(ucx.worker);
    }
}

/* UCX leaves its streams in them, and goes on in the next one. */
void scenario_contexts(void)
{
    struct remote remotes[2] = {filled(opt.kind, new_seed()),
                                filled("malloc:8M", new_seed())};
    struct key keys[2] = {key_make_all(&remotes[0]), key_make_all(&remotes[1])};
    CUcontext context, primary;
    unsigned i;

    CU_MUST(cuCtxGetCurrent(&primary));
    through(keys, 2, "primary");
    for (i = 0; i < 2; i++) {
        CU_MUST(cuCtxCreate(&context, NULL, 0, opt.device));
        through(keys, 2, "created");
        CU_MUST(cuCtxDestroy(context));
        CU_MUST(cuCtxSetCurrent(primary));
        through(keys, 2, "primary-again");
    }
    for (i = 0; i < 2; i++) {
        CU_MUST(cuDevicePrimaryCtxReset(opt.device));
        CU_MUST(cuDevicePrimaryCtxRetain(&context, opt.device));
        CU_MUST(cuCtxSetCurrent(context));
        through(keys, 1, "reset"); /* an IPC mapping went with the old one */
    }
    for (i = 0; i < 2; i++) {
        key_destroy(&keys[i]);
        remote_free(&remotes[i]);
    }
}
