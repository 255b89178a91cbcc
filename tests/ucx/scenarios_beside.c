/*
 * Scenarios of good memory beside other memory, and of old keys beside new.
 * The letters name the cases that a scenario covers.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what ends an extent, in one job (B2) ---- */

enum { STRANGE = 3 }; /* the chunk that is another's */

static const char *const stranger_names[] = {"no-access", "host", "unshareable",
                                             "imported", "device"};

static void key_end(struct key *key)
{
    key_destroy(key);
    key_deregister(key);
}

static bool put_stranger(struct remote *remote, enum stranger stranger)
{
    int fd = export_memory(remote->chunks[STRANGE].size);
    struct wire_header h = {
        .args = {remote->id, STRANGE, stranger, (uint64_t)getpid(),
                 (uint64_t)fd},
    };

    remote_unmap(remote, STRANGE, 1, false);
    command(CMD_STRANGER, &h, NULL, NULL);
    close(fd);
    return h.args[0] != 0;
}

/* The chunks on both sides of the stranger, by keys of their own. */
struct sides {
    struct key low;
    struct key high;
};

static void use_side(const struct key *key, const char *detail)
{
    uint64_t seed = new_seed();

    remote_fill(key->remote, key->offset, key->length, seed);
    report_detail(key->remote, "get",
                  key_get(key, key->offset, key->length, seed), detail);
    report_detail(key->remote, "put",
                  key_put(key, key->offset, key->length, new_seed()), detail);
}

static struct sides make_sides(const struct remote *remote)
{
    uint64_t border = remote->chunks[STRANGE].offset;
    uint64_t behind = chunks_end(remote, STRANGE);
    uint64_t end = remote->offset + remote->length;
    struct sides sides = {
        .low = key_make(remote, remote->offset, border - remote->offset),
        .high = key_make(remote, behind, end - behind),
    };

    return sides;
}

/* What a key over all of it must be good for. The rest is served around memory
 * without access, as around a hole; a driver may call the host's a hole or
 * not. */
static const char *const across_names[] = {
    "get", "get-across", "get-other-lane", "get-other-lane", "get-other-lane"};

static void use_across(const struct remote *remote, enum stranger stranger)
{
    struct key across = key_make_all(remote);
    uint64_t behind = chunks_end(remote, STRANGE);
    uint64_t length = remote->chunks[0].size;
    uint64_t seed = new_seed();

    remote_fill(remote, behind, length, seed);
    report_detail(remote, across_names[stranger],
                  key_get(&across, behind, length, seed),
                  stranger_names[stranger]);
    key_end(&across);
}

void scenario_strangers(void)
{
    enum { KINDS = sizeof(stranger_names) / sizeof(stranger_names[0]) };
    struct remote plain = filled("malloc:4M", new_seed());
    struct remote host = filled("host:4M", new_seed());
    struct key plain_key = key_make_all(&plain);
    struct key host_key = key_make_all(&host);
    struct remote remotes[KINDS];
    struct sides sides[KINDS];
    bool made[KINDS];

    for (int i = 0; i < KINDS; i++) {
        remotes[i] = remote_alloc(opt.kind, 0);
        made[i] = put_stranger(&remotes[i], (enum stranger)i);
        if (!made[i])
            continue;
        sides[i] = make_sides(&remotes[i]);
        use_side(&sides[i].low, stranger_names[i]);
        use_side(&sides[i].high, stranger_names[i]);
    }
    /* All beside each other: nothing of it is held against another. */
    use_side(&plain_key, "malloc");
    use_side(&host_key, "host");
    for (int i = 0; i < KINDS; i++) {
        if (!made[i])
            continue;
        use_across(&remotes[i], (enum stranger)i);
        use_side(&sides[i].low, stranger_names[i]);
        key_end(&sides[i].low);
        key_end(&sides[i].high);
        remote_free(&remotes[i]);
    }
    use_side(&plain_key, "malloc-again");
    key_end(&plain_key);
    key_end(&host_key);
    remote_free(&plain);
    remote_free(&host);
}

/*
 * ---- an old key beside a copy by a new one (D1) ----
 *
 * UCX's importer finds a mapping by its base: at another identity it throws
 * the old one out, also under a running copy.
 */

enum { QUEUED = 4, TRIES = 20 };

/* Posts by `old` while copies by `running` run. Returns whether they did. */
static bool post_beside(const struct key *running, uint64_t seed,
                        const struct key *old, enum operation operation,
                        struct outcome *runs, struct outcome *olds)
{
    CUdeviceptr local = local_buffer(2 * running->length);
    struct transfer t = {.operation = OP_GET,
                         .local = local + running->length,
                         .length = running->length,
                         .remote = running->remote->base + running->offset,
                         .rkey = running->rkey};
    struct transfer o = {.operation = operation,
                         .local = local,
                         .length = old->remote->chunks[0].size,
                         .remote = old->remote->base + old->offset,
                         .rkey = old->rkey};
    ucs_status_ptr_t requests[QUEUED], other;
    uint64_t first = 0;
    bool in_flight;

    device_fill(t.local, t.length, POISON, running->offset);
    device_fill(o.local, o.length, POISON, old->offset);
    for (int i = 0; i < QUEUED; i++)
        requests[i] = transfer_post(&t, i == 0 ? runs->lane : NULL);
    other = transfer_post(&o, olds->lane);
    ucp_worker_progress(ucx.worker);
    in_flight =
        UCS_PTR_IS_PTR(requests[QUEUED - 1]) &&
        ucp_request_check_status(requests[QUEUED - 1]) == UCS_INPROGRESS;
    olds->status = transport_wait(other);
    if (olds->status == UCS_OK && operation == OP_PUT)
        olds->status = transport_flush(ucx.ep);
    runs->status = UCS_OK;
    for (int i = 0; i < QUEUED; i++) {
        ucs_status_t status = transport_wait(requests[i]);

        if (status != UCS_OK)
            runs->status = status;
    }
    runs->verdict = BYTES_NONE;
    if (runs->status == UCS_OK)
        runs->verdict = device_compare(t.local, t.length, seed, running->offset,
                                       &first) == 0
                            ? BYTES_OK
                            : BYTES_BAD;
    olds->verdict = BYTES_NONE;
    if (olds->status == UCS_OK && operation == OP_GET)
        olds->verdict =
            device_compare(o.local, o.length, seed, old->offset, &first) == 0
                ? BYTES_OK
                : BYTES_BAD;
    return in_flight;
}

/* Until the copies were seen running. The worst of all tries is reported. */
static void beside(const struct key *running, uint64_t seed,
                   const struct key *old, enum operation operation,
                   const char *old_operation, const char *detail)
{
    bool seen = false;

    for (int i = 0; i < TRIES && !seen; i++) {
        struct outcome runs = {.status = UCS_OK};
        struct outcome olds = {.status = UCS_OK};

        seen = post_beside(running, seed, old, operation, &runs, &olds);
        report_detail(running->remote, "get", runs, detail);
        report_detail(old->remote, old_operation, olds, detail);
    }
    expect("copy-in-flight", seen);
}

void scenario_old_key(void)
{
    uint64_t seed = new_seed();
    struct remote first = remote_alloc("vmm:8x2M~32M", PLACE);
    struct remote again, larger;
    struct key old, same, new;

    remote_fill(&first, first.offset, first.length, seed);
    old = key_make_all(&first);
    report_detail(&first, "get", key_get(&old, old.offset, old.length, seed),
                  "first");
    if (old.rkey == NULL) {
        printf("skip %s: no key\n", opt.scenario);
        return;
    }
    key_deregister(&old);
    remote_free_late(&first);
    key_must_fail(&old, old.offset, old.length, "freed");
    /* The same reservation made again: one window, the old key is of it. */
    again = remote_alloc("vmm:8x2M~32M", PLACE);
    seed = new_seed();
    remote_fill(&again, again.offset, again.length, seed);
    same = key_make_all(&again);
    beside(&same, seed, &old, OP_GET, "get-old-key", "same-window");
    key_end(&same);
    remote_free(&again);
    /* Another size at the same base: another window. */
    larger = remote_alloc("vmm:8x2M~64M", PLACE);
    seed = new_seed();
    remote_fill(&larger, larger.offset, larger.length, seed);
    new = key_make_all(&larger);
    report_detail(&larger, "get", key_get(&new, new.offset, new.length, seed),
                  "larger");
    beside(&new, seed, &old, OP_PUT, "put-refused", "other-window");
    report_detail(&larger, "get", key_get(&new, new.offset, new.length, seed),
                  "larger-again");
    report_detail(&larger, "put",
                  key_put(&new, new.offset, new.length, new_seed()), "larger");
    key_destroy(&old);
    key_end(&new);
    remote_free(&larger);
    free(first.chunks);
}
