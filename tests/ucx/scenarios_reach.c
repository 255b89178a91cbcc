/*
 * Scenarios of memory that stays: all of it, parts, growth, aliases.
 * The letters name the cases that a scenario covers.
 */
#include "client.h"

#include <stdio.h>
#include <string.h>

/* ---- whole (A1, A3, E1) ---- */

void scenario_whole(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key = key_make_all(&remote);

    report_detail(&remote, "get",
                  key_time(&key, OP_GET, remote.offset, remote.length, seed),
                  "whole");
    report_detail(
        &remote, "put",
        key_time(&key, OP_PUT, remote.offset, remote.length, new_seed()),
        "whole");
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
}

/* ---- windows: interior and border-crossing (E1) ---- */

static void window(const struct key *key, uint64_t offset, uint64_t length,
                   uint64_t seed, const char *detail)
{
    const struct remote *remote = key->remote;
    struct outcome outcome = key_get(key, offset, length, seed);
    uint64_t end = remote->offset + remote->length;
    uint64_t written = new_seed();

    report_detail(remote, "get", outcome, detail);
    outcome = key_put(key, offset, length, written);
    /* What lies around the window must be as it was. */
    if (outcome.status == UCS_OK && offset > remote->offset &&
        !remote_check(remote, offset - 1, 1, seed))
        outcome.verdict = BYTES_BAD;
    if (outcome.status == UCS_OK && offset + length < end &&
        !remote_check(remote, offset + length, 1, seed))
        outcome.verdict = BYTES_BAD;
    report_detail(remote, "put", outcome, detail);
    remote_fill(remote, offset, length, seed);
}

static void straddle(const struct key *key, uint64_t border, uint64_t length,
                     uint64_t seed, const char *name)
{
    uint64_t start = key->offset;
    uint64_t end = key->offset + key->length;
    uint64_t low = border > start + length / 2 ? border - length / 2 : start;
    char detail[64];

    if (low + length > end)
        low = end > start + length ? end - length : start;
    if (length > end - low)
        length = end - low;
    snprintf(detail, sizeof(detail), "%s@%llu", name, (unsigned long long)low);
    window(key, low, length, seed, detail);
}

void scenario_windows(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key key = key_make_all(&remote);
    uint64_t end = remote.offset + remote.length;

    for (uint64_t i = 0; i < remote.chunk_count; i++) {
        uint64_t border = chunks_end(&remote, i);

        if (border > end)
            border = end;
        window(&key, border - 1, 1, seed, "last-byte");
        if (border == end)
            break;
        straddle(&key, border, 2, seed, "2B");
        straddle(&key, border, 4096, seed, "4K");
        straddle(&key, border, remote.chunks[i].size / 2 * 3, seed,
                 "1.5-chunks");
    }
    key_destroy(&key);
    remote_free(&remote);
}

/* Registrations that begin and end inside chunks, each read in full. */
void scenario_interior(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    uint64_t start = remote.offset;
    uint64_t length = remote.length;
    uint64_t size = remote.chunks[0].size;
    const uint64_t parts[][2] = {
        {start + 4096, 8192},                        /* inside one chunk */
        {start + size / 4, length / 2},              /* much of it */
        {start + length - size / 2, size / 2 - 512}, /* the tail */
        {start, size < length ? size : length},      /* just one chunk */
        {start + size - 4096, 8192},                 /* short, over a border */
    };
    size_t count = sizeof(parts) / sizeof(parts[0]);

    if (remote.chunk_count == 1)
        count--;
    for (size_t i = 0; i < count; i++) {
        struct key key = key_make(&remote, parts[i][0], parts[i][1]);
        char detail[64];

        snprintf(detail, sizeof(detail), "reg%zu", i);
        report_detail(&remote, "get",
                      key_get(&key, parts[i][0], parts[i][1], seed), detail);
        seed = new_seed();
        report_detail(&remote, "put",
                      key_put(&key, parts[i][0], parts[i][1], seed), detail);
        seed = new_seed();
        remote_fill(&remote, start, length, seed);
        key_destroy(&key);
    }
    remote_free(&remote);
}

/*
 * ---- the end of a large extent (B5) ----
 *
 * UCX registers whole extents up to a tenth of the device's memory only.
 */

void scenario_tail(void)
{
    uint64_t seed = new_seed();
    struct remote remote = remote_alloc(opt.kind, 0);
    uint64_t length = remote.length / 8;
    uint64_t offset;
    struct key key;

    if (length > 100 << 20)
        length = 100 << 20;
    offset = remote.offset + remote.length - length;
    remote_fill(&remote, offset, length, seed);
    key = key_make(&remote, offset, length);
    report_detail(&remote, "get", key_get(&key, offset, 1, seed), "first-byte");
    report_detail(&remote, "get", key_get(&key, offset + length - 1, 1, seed),
                  "last-byte");
    report_detail(&remote, "get", key_get(&key, offset, length, seed), "tail");
    report_detail(&remote, "put", key_put(&key, offset, length, new_seed()),
                  "tail");
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
}

/* ---- 16 tensors in one segment, 16 registrations ---- */

void scenario_tensors(void)
{
    enum { COUNT = 16 };
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    uint64_t size = remote.length / COUNT / 512 * 512;
    struct key keys[COUNT];

    for (int i = 0; i < COUNT; i++)
        keys[i] = key_make(&remote, remote.offset + (uint64_t)i * size, size);
    for (int i = 0; i < COUNT; i++)
        report_detail(&remote, "get",
                      key_get(&keys[i], keys[i].offset, size, seed), "tensor");
    seed = new_seed();
    for (int i = 0; i < COUNT; i++)
        report_detail(&remote, "put",
                      key_put(&keys[i], keys[i].offset, size, seed), "tensor");
    expect("all-tensors-together",
           keys[0].rkey == NULL ||
               remote_check(&remote, remote.offset, size * COUNT, seed));
    for (int i = 0; i < COUNT; i++)
        key_destroy(&keys[i]);
    remote_free(&remote);
}

/* ---- growth under live keys (D2) ---- */

enum { IN_FLIGHT = 16 };

/* Reads by the old key are in flight while the exporter grows. */
static struct outcome get_while_growing(struct remote *remote, struct key *key,
                                        uint64_t seed, uint64_t count,
                                        bool below)
{
    struct transfer t = {
        .operation = OP_GET,
        .local = local_buffer(key->length),
        .length = key->length,
        .remote = remote->base + key->offset,
        .rkey = key->rkey,
    };
    ucs_status_ptr_t requests[IN_FLIGHT];
    struct outcome outcome;
    ucs_status_t failed = UCS_OK;

    if (key->rkey == NULL) {
        remote_grow(remote, count, below);
        return key_get(key, key->offset, key->length, seed);
    }
    for (int i = 0; i < IN_FLIGHT; i++)
        requests[i] = transfer_post(&t, NULL);
    remote_grow(remote, count, below);
    for (int i = 0; i < IN_FLIGHT; i++) {
        ucs_status_t status = transport_wait(requests[i]);

        if (status != UCS_OK)
            failed = status;
    }
    outcome = key_get(key, key->offset, key->length, seed);
    if (failed != UCS_OK)
        outcome.status = failed;
    return outcome;
}

/* Returns the memory, for the caller to free at the end: a window that is freed
 * may be overlapped by the next at another size, and UCX then rightly closes
 * the old one. */
static struct remote grow_by(uint64_t count, bool below)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key old = key_make_all(&remote);
    struct outcome outcome;
    struct key all;
    char detail[64];

    snprintf(detail, sizeof(detail), "%s%llu", below ? "below" : "above",
             (unsigned long long)count);
    report_detail(&remote, "get", key_get(&old, old.offset, old.length, seed),
                  "before");
    outcome = get_while_growing(&remote, &old, seed, count, below);
    report_detail(&remote, "get-old-key", outcome, detail);
    seed = new_seed();
    remote_fill(&remote, remote.offset, remote.length, seed);
    all = key_make_all(&remote);
    report_detail(&remote, "get-new-key",
                  key_get(&all, all.offset, all.length, seed), detail);
    report_detail(&remote, "get-old-key",
                  key_get(&old, old.offset, old.length, seed), detail);
    report_detail(&remote, "put-new-key",
                  key_put(&all, all.offset, all.length, new_seed()), detail);
    key_destroy(&old);
    key_destroy(&all);
    return remote;
}

static void free_all(struct remote *remotes, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++)
        remote_free(&remotes[i]);
}

void scenario_growth(void)
{
    struct remote remotes[3];
    size_t count = 0;

    remotes[count++] = grow_by(1, false);
    remotes[count++] = grow_by(8, false);
    if (opt.growth >= 64)
        remotes[count++] = grow_by((uint64_t)opt.growth, false);
    free_all(remotes, count);
}

void scenario_growth_below(void)
{
    struct remote remotes[2];

    remotes[0] = grow_by(1, true);
    remotes[1] = grow_by(8, true);
    free_all(remotes, 2);
}

/* ---- one identity per reservation (D1) ---- */

void scenario_identity(void)
{
    enum { PARTS = 6, LAPS = 3 };
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    uint64_t start = remote.offset;
    uint64_t length = remote.length;
    uint64_t size = remote.chunks[0].size;
    const uint64_t parts[PARTS][2] = {
        {start, size},
        {start + length / 2, size},
        {start + length - size, size},
        {start, length},
        {start, length / 4 * 3},
        {start + length / 2, length / 2},
    };
    struct key keys[PARTS];

    for (int i = 0; i < PARTS; i++)
        keys[i] = key_make(&remote, parts[i][0], parts[i][1]);
    for (int lap = 0; lap < LAPS; lap++)
        for (int i = 0; i < PARTS; i++)
            report_detail(&remote, "get",
                          key_get(&keys[i], parts[i][0], parts[i][1], seed),
                          "part");
    for (int i = 0; i < PARTS; i++)
        key_destroy(&keys[i]);
    remote_free(&remote);
}

/* ---- one handle at several addresses (E2) ---- */

void scenario_aliases(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    uint64_t size = remote.chunks[1].size;
    uint64_t inside;
    struct remote other;
    struct key key;
    struct key other_key;

    remote_alias_inside(&remote, 1);
    inside = remote.chunks[remote.chunk_count - 1].offset;
    other = remote_alias(&remote, 1);
    key = key_make_all(&remote);
    other_key = key_make_all(&other);
    /* A write through one address; the pattern counts from where it is read. */
    remote_fill(&other, 0, size, seed = new_seed());
    report_detail(&other, "get", key_get(&other_key, 0, size, seed),
                  "other-reservation");
    report_detail(&remote, "put", key_put(&key, inside, size, new_seed()),
                  "alias");
    seed = new_seed();
    report_detail(&other, "put", key_put(&other_key, 0, size, seed),
                  "through-other");
    remote_fill(&remote, inside, size, seed = new_seed());
    report_detail(&remote, "get", key_get(&key, inside, size, seed), "inside");
    remote_fill(&remote, remote.chunks[1].offset, size, seed = new_seed());
    report_detail(&remote, "get",
                  key_get(&key, remote.chunks[1].offset, size, seed),
                  "original");
    key_destroy(&key);
    key_destroy(&other_key);
    remote_free(&other);
    remote_free(&remote);
}
