/* Many descriptors: what one costs, and memory sent in pieces. */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../sweep/faults.h"

__attribute__((weak)) void sweep_arm(const char *rule);

/* Posts pieces of a key's memory, `size` bytes each, lap after lap. */
struct run {
    const struct key *keys; /* one for all, or one for each piece */
    size_t key_count;
    enum operation operation;
    CUdeviceptr local;
    uint64_t size;
    uint64_t pieces;
    char lane[LANE_SIZE];
    bool one_lane; /* all were posted by the same */
    ucs_status_t status;
};

enum { IN_FLIGHT = 64 };

static ucs_status_ptr_t post_piece(struct run *run, uint64_t number)
{
    uint64_t piece = number % run->pieces;
    const struct key *key = &run->keys[run->key_count > 1 ? piece : 0];
    const struct remote *remote = key->remote;
    struct transfer t = {
        .operation = run->operation,
        .local = run->local + piece * run->size,
        .length = run->size,
        .remote = remote->base + remote->offset + piece * run->size,
        .rkey = key->rkey,
    };
    char lane[LANE_SIZE];
    ucs_status_ptr_t request;

    if (key->rkey == NULL)
        return UCS_STATUS_PTR(key->status);
    /* UCX describes a request in a string: not for each of many. */
    if (number >= run->pieces)
        return transfer_post(&t, NULL);
    request = transfer_post(&t, lane);
    if (number == 0)
        memcpy(run->lane, lane, sizeof(lane));
    run->one_lane &= strcmp(run->lane, lane) == 0;
    return request;
}

static void post_pieces(struct run *run, uint64_t count)
{
    ucs_status_ptr_t requests[IN_FLIGHT] = {NULL};

    for (uint64_t i = 0; i < count + IN_FLIGHT; i++) {
        ucs_status_t status = transport_wait(requests[i % IN_FLIGHT]);

        if (status != UCS_OK)
            run->status = status;
        requests[i % IN_FLIGHT] = i < count ? post_piece(run, i) : NULL;
    }
    if (run->operation == OP_PUT && run->status == UCS_OK)
        run->status = transport_flush(ucx.ep);
}

static struct run run_of(const struct key *keys, size_t key_count,
                         enum operation operation, uint64_t size)
{
    return (struct run){
        .keys = keys,
        .key_count = key_count,
        .operation = operation,
        .local = local_buffer(keys->remote->length),
        .size = size,
        .pieces = keys->remote->length / size,
        .lane = "-",
        .one_lane = true,
        .status = UCS_OK,
    };
}

static void report_run(const struct run *run, bool right, double gbps,
                       const char *detail)
{
    struct outcome outcome = {.status = run->status, .gbps = gbps};

    outcome.verdict = run->status != UCS_OK ? BYTES_NONE
                      : right               ? BYTES_OK
                                            : BYTES_BAD;
    wrong_bytes |= outcome.verdict == BYTES_BAD;
    memcpy(outcome.lane, run->lane, sizeof(outcome.lane));
    report_detail(run->keys->remote, run->operation == OP_GET ? "get" : "put",
                  outcome, detail);
    expect("one-lane", run->one_lane);
}

/* ---- what a descriptor costs (A5) ---- */

void scenario_descriptors(void)
{
    enum { SIZE = 40 << 10 };
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key = key_make_all(&remote);
    struct run run = run_of(&key, 1, OP_GET, SIZE);
    uint64_t count = (uint64_t)opt.posts;
    uint64_t first;
    char *calls;

    if (sweep_arm == NULL)
        die(EXIT_SETUP, "the preload that counts calls is missing");
    if (count < run.pieces)
        count = run.pieces; /* each is compared */
    post_pieces(&run, run.pieces);
    device_fill(run.local, run.pieces * SIZE, POISON, 0);
    free(sweep_obey("arm "));
    post_pieces(&run, count);
    calls = sweep_obey("disarm");
    printf("steady posts=%llu %s\n", (unsigned long long)count, calls);
    free(calls);
    report_run(&run,
               device_compare(run.local, run.pieces * SIZE, seed, remote.offset,
                              &first) == 0,
               0, "descriptors");
    key_destroy(&key);
    remote_free(&remote);
}

/* ---- in pieces, each with a key of its own, and as one (A6) ---- */

enum { PIECES = 512 };

static void in_pieces(const struct key *keys, const struct remote *remote,
                      uint64_t seed)
{
    uint64_t size = remote->length / PIECES;
    uint64_t length = size * PIECES;
    struct run get = run_of(keys, PIECES, OP_GET, size);
    struct run put = run_of(keys, PIECES, OP_PUT, size);
    uint64_t first;
    double start;

    device_fill(get.local, length, POISON, 0);
    post_pieces(&get, PIECES);
    report_run(
        &get,
        device_compare(get.local, length, seed, remote->offset, &first) == 0, 0,
        "pieces");
    seed = new_seed();
    device_fill(put.local, length, seed, remote->offset);
    start = now();
    post_pieces(&put, PIECES);
    start = now() - start;
    report_run(&put,
               put.status == UCS_OK &&
                   remote_check(remote, remote->offset, length, seed),
               (double)length / start / 1e9, "pieces");
}

void scenario_split(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    uint64_t size = remote.length / PIECES;
    struct key *keys = calloc(PIECES, sizeof(*keys));
    struct key all;

    if (keys == NULL)
        die(EXIT_SETUP, "out of memory");
    for (int i = 0; i < PIECES; i++)
        keys[i] = key_make(&remote, remote.offset + (uint64_t)i * size, size);
    in_pieces(keys, &remote, seed);
    all = key_make_all(&remote);
    seed = new_seed();
    remote_fill(&remote, remote.offset, remote.length, seed);
    report_detail(&remote, "get",
                  key_time(&all, OP_GET, all.offset, all.length, seed), "one");
    report_detail(&remote, "put",
                  key_time(&all, OP_PUT, all.offset, all.length, new_seed()),
                  "one");
    for (int i = 0; i < PIECES; i++) {
        key_destroy(&keys[i]);
        key_deregister(&keys[i]);
    }
    key_destroy(&all);
    key_deregister(&all);
    remote_free(&remote);
    free(keys);
}

/* ---- another memory domain refuses (I2, I3) ---- */

/* Registrations inside one chunk, then one over several. */
void scenario_refused(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    uint64_t size = remote.chunks[0].size;
    struct key all;

    for (int i = 0; i < 2; i++) {
        uint64_t offset = remote.offset + (uint64_t)i * 2 * size + 4096;
        struct key key = key_make(&remote, offset, size / 2);

        report_detail(&remote, "get", key_get(&key, offset, size / 2, seed),
                      "inside");
        key_destroy(&key);
        key_deregister(&key);
    }
    all = key_make_all(&remote);
    report_detail(&remote, "get-several",
                  key_get(&all, all.offset, all.length, seed), "several");
    key_destroy(&all);
    key_deregister(&all);
    remote_free(&remote);
}
