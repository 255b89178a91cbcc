/* The importer's tools: commands to the exporter, keys, checked transfers. */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool wrong_bytes;

/* count_ipc.c, where it is preloaded. */
__attribute__((weak)) void ipc_counts(unsigned long counts[2]);

/* Windows that the exporter has had: each costs UCX one open, ever. */
static unsigned windows;

uint64_t new_seed(void)
{
    static uint64_t seed;

    return ++seed;
}

/* ---- reporting ---- */

void report(const char *kind, const char *operation,
            const struct outcome *outcome, const char *detail)
{
    static const char *const verdicts[] = {"ok", "BAD", "none"};
    char status[64];

    snprintf(status, sizeof(status), "%s", ucs_status_string(outcome->status));
    for (char *c = status; *c != '\0'; c++)
        if (*c == ' ')
            *c = '_';
    printf("result %s %s %s lane=%s bytes=%s status=%s gbps=%.2f %s\n",
           opt.scenario, kind, operation,
           outcome->lane[0] != '\0' ? outcome->lane : "none",
           verdicts[outcome->verdict],
           outcome->status == UCS_OK ? "OK" : status, outcome->gbps, detail);
    fflush(stdout);
    if (outcome->verdict == BYTES_BAD)
        wrong_bytes = true;
}

void expect(const char *name, bool holds)
{
    printf("expect %s %s %s\n", opt.scenario, name, holds ? "ok" : "BROKEN");
    fflush(stdout);
}

/* ---- commands ---- */

void command(enum command command, struct wire_header *header,
             const void *payload, void **reply)
{
    void *received;

    header->command = command;
    wire_send(opt.fd, header, payload);
    transport_until_readable(opt.fd);
    if (!wire_receive(opt.fd, header, &received))
        die(EXIT_SETUP, "the exporter died at command %d", (int)command);
    if (reply != NULL)
        *reply = received;
    else
        free(received);
}

static void adopt(struct remote *remote, const struct wire_header *h,
                  void *table)
{
    free(remote->chunks);
    remote->id = h->args[0];
    remote->base = h->args[1];
    remote->reserved = h->args[2];
    remote->offset = h->args[3];
    remote->length = h->args[4];
    remote->chunk_count = h->args[5];
    remote->chunks = table;
}

struct remote remote_alloc(const char *specification, CUdeviceptr hint)
{
    struct wire_header h = {.args = {hint},
                            .payload_length = strlen(specification)};
    struct remote remote = {.chunks = NULL};
    void *table;

    windows++;
    command(CMD_ALLOC, &h, specification, &table);
    adopt(&remote, &h, table);
    snprintf(remote.kind, sizeof(remote.kind), "%s", specification);
    return remote;
}

void remote_free_late(struct remote *remote)
{
    struct wire_header h = {.args = {remote->id}};

    command(CMD_FREE, &h, NULL, NULL);
}

void remote_free(struct remote *remote)
{
    remote_free_late(remote);
    free(remote->chunks);
    remote->chunks = NULL;
}

void remote_fill(const struct remote *remote, uint64_t offset, uint64_t length,
                 uint64_t seed)
{
    struct wire_header h = {.args = {remote->id, offset, length, seed}};

    command(CMD_FILL, &h, NULL, NULL);
}

static void change(struct remote *remote, enum command what,
                   struct wire_header *h)
{
    void *table;

    command(what, h, NULL, &table);
    adopt(remote, h, table);
}

void remote_unmap(struct remote *remote, uint64_t first, uint64_t count,
                  bool unseen)
{
    struct wire_header h = {.args = {remote->id, first, count, unseen}};

    change(remote, CMD_UNMAP, &h);
}

void remote_map(struct remote *remote, uint64_t first, uint64_t count)
{
    struct wire_header h = {.args = {remote->id, first, count}};

    change(remote, CMD_MAP, &h);
}

void remote_grow(struct remote *remote, uint64_t count, bool below)
{
    struct wire_header h = {.args = {remote->id, count, below}};

    change(remote, CMD_GROW, &h);
}

struct remote remote_alias(const struct remote *remote, uint64_t chunk)
{
    struct wire_header h = {.args = {remote->id, chunk}};
    struct remote alias = {.kind = "alias"};

    windows++;
    change(&alias, CMD_ALIAS, &h);
    return alias;
}

void remote_alias_inside(struct remote *remote, uint64_t chunk)
{
    struct wire_header h = {.args = {remote->id, chunk}};

    change(remote, CMD_ALIAS_INSIDE, &h);
}

bool remote_check(const struct remote *remote, uint64_t offset, uint64_t length,
                  uint64_t seed)
{
    struct wire_header h = {.args = {remote->id, offset, length, seed}};

    command(CMD_CHECK, &h, NULL, NULL);
    if (h.args[0] != 0)
        printf("wrong %llu bytes at the exporter, first at offset %llu\n",
               (unsigned long long)h.args[0], (unsigned long long)h.args[1]);
    return h.args[0] == 0;
}

/* ---- keys ---- */

static void adopt_key(struct key *key, const struct wire_header *h,
                      void *packed)
{
    key->status = h->status;
    key->rkey = NULL;
    if (key->status == UCS_OK)
        key->status = ucp_ep_rkey_unpack(key->ep, packed, &key->rkey);
    free(packed);
}

struct key key_make(const struct remote *remote, uint64_t offset,
                    uint64_t length)
{
    struct wire_header h = {.args = {remote->id, offset, length}};
    struct key key = {
        .remote = remote,
        .offset = offset,
        .length = length,
        .ep = ucx.ep,
    };
    void *packed;

    command(CMD_REGISTER, &h, NULL, &packed);
    key.id = h.args[0];
    adopt_key(&key, &h, packed);
    if (key.status != UCS_OK)
        printf("key %s: %s\n", remote->kind, ucs_status_string(key.status));
    return key;
}

struct key key_make_all(const struct remote *remote)
{
    return key_make(remote, remote->offset, remote->length);
}

void key_repack(struct key *key)
{
    struct wire_header h = {.args = {key->id}};
    void *packed;

    command(CMD_REPACK, &h, NULL, &packed);
    if (key->rkey != NULL)
        ucp_rkey_destroy(key->rkey);
    adopt_key(key, &h, packed);
}

uint8_t *key_packed(const struct key *key, size_t *length)
{
    struct wire_header h = {.args = {key->id}};
    void *packed;

    command(CMD_REPACK, &h, NULL, &packed);
    *length = h.status == UCS_OK ? h.payload_length : 0;
    return packed;
}

struct key key_unpacked(const struct key *key, const uint8_t *packed)
{
    struct key other = *key;

    other.rkey = NULL;
    other.status = ucp_ep_rkey_unpack(key->ep, packed, &other.rkey);
    return other;
}

void key_deregister(struct key *key)
{
    struct wire_header h = {.args = {key->id}};

    if (key->id == NO_KEY)
        return;
    command(CMD_DEREGISTER, &h, NULL, NULL);
}

void key_destroy(struct key *key)
{
    if (key->rkey != NULL)
        ucp_rkey_destroy(key->rkey);
    key->rkey = NULL;
}

/* ---- local memory ---- */

static struct segment local;
static ucp_mem_h local_memh;

/* Pinned, so that it can be compared as device memory is. */
static CUdeviceptr host_buffer(size_t length)
{
    void *host;

    if (local.base != 0)
        CU_MUST(cuMemFreeHost((void *)local.base));
    CU_MUST(cuMemAllocHost(&host, length));
    local.base = (CUdeviceptr)host;
    local.data_length = length;
    return local.base;
}

CUdeviceptr local_buffer(size_t length)
{
    char specification[64];

    if (length <= local.data_length)
        return local.base + local.data_offset;
    if (local_memh != NULL)
        ucp_mem_unmap(ucx.context, local_memh);
    local_memh = NULL;
    if (strcmp(opt.local, "host") == 0)
        return host_buffer(length);
    if (local.base != 0)
        segment_destroy(&local);
    if (strcmp(opt.local, "vmm") == 0)
        snprintf(specification, sizeof(specification), "vmm:%zux2M",
                 (length + (2 << 20) - 1) >> 21);
    else
        snprintf(specification, sizeof(specification), "malloc:%zu", length);
    segment_create(&local, specification, 0);
    if (opt.local_memh &&
        memory_register(local.base, local.data_length, &local_memh) != UCS_OK)
        die(EXIT_SETUP, "the local buffer cannot be registered");
    return local.base + local.data_offset;
}

/* ---- checked transfers ---- */

static struct transfer transfer_of(const struct key *key,
                                   enum operation operation, uint64_t offset,
                                   uint64_t length)
{
    struct transfer transfer = {
        .operation = operation,
        .local = local_buffer(length),
        .length = length,
        .remote = key->remote->base + offset,
        .rkey = key->rkey,
        .ep = key->ep,
    };

    transfer.local_memh = local_memh;
    return transfer;
}

static struct outcome no_key(const struct key *key)
{
    struct outcome outcome = {.status = key->status, .verdict = BYTES_NONE};

    snprintf(outcome.lane, LANE_SIZE, "no-key");
    return outcome;
}

static void compare_local(struct outcome *outcome, const struct transfer *t,
                          uint64_t seed, uint64_t offset)
{
    uint64_t first = 0;
    uint64_t wrong;

    outcome->verdict = BYTES_NONE;
    if (outcome->status != UCS_OK)
        return;
    wrong = device_compare(t->local, t->length, seed, offset, &first);
    outcome->verdict = wrong == 0 ? BYTES_OK : BYTES_BAD;
    if (wrong != 0)
        printf("wrong %llu bytes read, first at offset %llu\n",
               (unsigned long long)wrong, (unsigned long long)first);
}

struct outcome key_get(const struct key *key, uint64_t offset, uint64_t length,
                       uint64_t seed)
{
    struct outcome outcome = {.status = UCS_OK};
    struct transfer t;

    if (key->rkey == NULL)
        return no_key(key);
    t = transfer_of(key, OP_GET, offset, length);
    device_fill(t.local, length, POISON, offset);
    outcome.status = transfer_run(&t, outcome.lane);
    compare_local(&outcome, &t, seed, offset);
    return outcome;
}

struct outcome key_put(const struct key *key, uint64_t offset, uint64_t length,
                       uint64_t seed)
{
    struct outcome outcome = {.status = UCS_OK, .verdict = BYTES_NONE};
    struct transfer t;

    if (key->rkey == NULL)
        return no_key(key);
    t = transfer_of(key, OP_PUT, offset, length);
    device_fill(t.local, length, seed, offset);
    outcome.status = transfer_run(&t, outcome.lane);
    if (outcome.status == UCS_OK)
        outcome.verdict = remote_check(key->remote, offset, length, seed)
                              ? BYTES_OK
                              : BYTES_BAD;
    return outcome;
}

ucs_status_t key_post(const struct key *key, enum operation operation,
                      uint64_t offset, uint64_t length, char *lane)
{
    struct transfer t = transfer_of(key, operation, offset, length);

    device_fill(t.local, length, POISON, offset);
    return transfer_run(&t, lane);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

struct outcome key_time(const struct key *key, enum operation operation,
                        uint64_t offset, uint64_t length, uint64_t seed)
{
    struct outcome outcome = operation == OP_GET
                                 ? key_get(key, offset, length, seed)
                                 : key_put(key, offset, length, seed);
    double *seconds;
    struct transfer t;

    if (outcome.status != UCS_OK || opt.reps == 0)
        return outcome;
    seconds = calloc((size_t)opt.reps, sizeof(*seconds));
    if (seconds == NULL)
        die(EXIT_SETUP, "out of memory");
    t = transfer_of(key, operation, offset, length);
    for (int i = 0; i < opt.reps; i++) {
        double start = now();

        outcome.status = transfer_run(&t, NULL);
        seconds[i] = now() - start;
        if (outcome.status != UCS_OK)
            break;
    }
    if (operation == OP_GET && outcome.verdict == BYTES_OK)
        compare_local(&outcome, &t, seed, offset);
    qsort(seconds, (size_t)opt.reps, sizeof(*seconds), by_value);
    if (outcome.status == UCS_OK)
        outcome.gbps = (double)length / seconds[opt.reps / 2] * 1e-9;
    free(seconds);
    return outcome;
}

/* ---- the role ---- */

static const struct scenario *find_scenario(void)
{
    for (const struct scenario *s = scenarios; s->name != NULL; s++)
        if (strcmp(s->name, opt.scenario) == 0)
            return s;
    die(EXIT_USAGE, "unknown scenario '%s'", opt.scenario);
}

void connect_to_exporter(void)
{
    struct wire_header h = {.command = 0};
    ucp_address_t *own;
    size_t length;
    void *theirs;

    if (ucp_worker_get_address(ucx.worker, &own, &length) != UCS_OK)
        die(EXIT_SETUP, "ucp_worker_get_address failed");
    h.payload_length = length;
    command(CMD_ADDRESS, &h, own, &theirs);
    ucp_worker_release_address(ucx.worker, own);
    ucx.ep = transport_connect(theirs);
    free(theirs);
}

static void report_ipc(void)
{
    unsigned long counts[2];

    if (ipc_counts == NULL)
        return;
    ipc_counts(counts);
    printf("ipc %s windows=%u opens=%lu closes=%lu\n", opt.scenario, windows,
           counts[0], counts[1]);
}

int importer_main(void)
{
    const struct scenario *scenario = find_scenario();
    struct wire_header h = {.command = 0};

    device_open(!scenario->without_context);
    transport_open();
    connect_to_exporter();
    scenario->run();
    report_ipc();
    command(CMD_QUIT, &h, NULL, NULL);
    fflush(NULL);
    transport_close();
    return wrong_bytes ? EXIT_WRONG_BYTES : 0;
}
