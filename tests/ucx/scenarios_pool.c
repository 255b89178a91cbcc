/* Scenarios of stream-ordered pools (H4). */
#include "client.h"

#include <stdlib.h>

static void both_ways(const struct key *key, const char *detail)
{
    const struct remote *remote = key->remote;
    uint64_t offset = remote->length / 3 + 8;
    uint64_t length = remote->length / 3;
    uint64_t seed = new_seed();

    remote_fill(remote, 0, remote->length, seed);
    report_detail(remote, "get", key_get(key, 0, remote->length, seed), detail);
    report_detail(remote, "get", key_get(key, offset, length, seed), detail);
    report_detail(remote, "put", key_put(key, offset, length, new_seed()),
                  detail);
}

/*
 * Memory that is freed, and made again where it was: an import goes on reading
 * the old bytes, so that an old key must fail. Ends in both orders: freed while
 * the key lives, and after it.
 */
void scenario_pool(void)
{
    struct remote remote = filled(opt.kind, new_seed());
    struct key old = key_make_all(&remote), key;
    CUdeviceptr first = remote.base;

    both_ways(&old, "first");
    remote_unmap(&remote, 0, 1, false);
    key_must_fail(&old, 0, remote.length, "freed");
    remote_map(&remote, 0, 1);
    expect("same-address", remote.base == first);
    remote_fill(&remote, 0, remote.length, new_seed());
    key_must_fail(&old, 0, remote.length, "made-again");
    key = key_make_all(&remote);
    both_ways(&key, "second");
    /* Two keys of one address, used in turn. */
    key_must_fail(&old, 0, remote.length, "beside-the-new");
    both_ways(&key, "second-again");
    key_destroy(&old);
    key_deregister(&old);
    both_ways(&key, "second-alone");
    key_destroy(&key);
    key_deregister(&key);
    remote_unmap(&remote, 0, 1, false);
    remote_map(&remote, 0, 1);
    key = key_make_all(&remote);
    both_ways(&key, "third");
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
}

/* Many allocations of one pool, all in use at once. */
void scenario_pool_many(void)
{
    enum { COUNT = 1000 };
    struct remote *remotes = calloc(COUNT, sizeof(*remotes));
    struct key *keys = calloc(COUNT, sizeof(*keys));
    uint64_t *seeds = calloc(COUNT, sizeof(*seeds));

    if (remotes == NULL || keys == NULL || seeds == NULL)
        die(EXIT_SETUP, "out of memory");
    for (int i = 0; i < COUNT; i++) {
        seeds[i] = new_seed();
        remotes[i] = filled(opt.kind, seeds[i]);
        keys[i] = key_make_all(&remotes[i]);
    }
    for (int i = 0; i < COUNT; i++)
        report_detail(&remotes[i], "get",
                      key_get(&keys[i], 0, remotes[i].length, seeds[i]),
                      "many");
    for (int i = 0; i < COUNT; i++) {
        if (i % 2)
            remote_free(&remotes[i]);
        key_destroy(&keys[i]);
        key_deregister(&keys[i]);
        if (i % 2 == 0)
            remote_free(&remotes[i]);
    }
    free(remotes);
    free(keys);
    free(seeds);
}
