/*
 * Where UCX can serve memory by itself (A4): what its key is, what a round of
 * register, pack, import and release moves, and the descriptors of both sides
 * at each step. native.py compares runs.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

static void print_key(const char *kind, const struct key *key)
{
    size_t length = 0;
    uint8_t *packed;

    if (key->id == NO_KEY)
        return;
    packed = key_packed(key, &length);
    printf("key %s ", kind);
    for (size_t i = 0; i < length; i++)
        printf("%02x", packed[i]);
    printf("\n");
    free(packed);
}

static void print_descriptors(const char *kind, const char *step)
{
    printf("descriptors %s %s %llu %llu\n", kind, step,
           (unsigned long long)remote_state().descriptors,
           (unsigned long long)state_now().descriptors);
}

static void round_of(const char *kind, const char *detail)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(kind, seed);
    struct key key;

    print_descriptors(kind, "allocated");
    key = key_make_all(&remote);
    print_key(kind, &key);
    print_descriptors(kind, "packed");
    report_detail(&remote, "get",
                  key_get(&key, remote.offset, remote.length, seed), detail);
    report_detail(&remote, "put",
                  key_put(&key, remote.offset, remote.length, new_seed()),
                  detail);
    print_descriptors(kind, "imported");
    key_destroy(&key);
    key_deregister(&key);
    print_descriptors(kind, "released");
    remote_free(&remote);
    print_descriptors(kind, "freed");
}

/* The first round is cudaMalloc memory's: UCX makes connections, streams and
 * events once. */
void scenario_native(void)
{
    char warm[64];

    snprintf(warm, sizeof(warm), "malloc:%zu", specification_bytes(opt.kind));
    round_of(warm, "warm");
    round_of(opt.kind, "first");
    round_of(opt.kind, "second");
}
