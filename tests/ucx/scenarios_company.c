/*
 * Scenarios of memory and keys beside each other, and of both roles in one.
 * The letters name the cases that a scenario covers.
 */
#include "client.h"

#include <stdio.h>
#include <string.h>

/* ---- neighbours by chance (B4) ---- */

void scenario_neighbours(void)
{
    uint64_t seed = new_seed();
    struct remote low = remote_alloc("vmm:4x2M~8M", PLACE);
    struct remote high = remote_alloc("vmm:4x2M~8M", PLACE + low.reserved);
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
