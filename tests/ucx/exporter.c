/* The exporter: owns device memory, obeys the importer's commands. */
#include "bench.h"
#include "client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_SEGMENTS = 1024,
    MAX_KEYS = 4096,
};

static struct segment segments[MAX_SEGMENTS];
static size_t segment_count;
static ucp_mem_h keys[MAX_KEYS];
static size_t key_count;

struct segment *segment_of(uint64_t id)
{
    if (id >= segment_count)
        die(EXIT_USAGE, "no segment %llu", (unsigned long long)id);
    return &segments[id];
}

/* A number that was freed is used again. */
static uint64_t free_segment(void)
{
    uint64_t id = 0;

    while (id < segment_count && segments[id].chunks != NULL)
        id++;
    return id;
}

static struct segment *new_segment(uint64_t id)
{
    if (id < segment_count)
        return &segments[id];
    if (segment_count == MAX_SEGMENTS)
        die(EXIT_USAGE, "too many segments");
    return &segments[segment_count++];
}

static ucp_mem_h key_of(uint64_t id)
{
    if (id >= key_count || keys[id] == NULL)
        die(EXIT_USAGE, "no key %llu", (unsigned long long)id);
    return keys[id];
}

static CUdeviceptr address_of(const struct wire_header *h)
{
    return segment_of(h->args[0])->base + h->args[1];
}

/* Fills the reply with a segment's layout; the payload is the caller's. */
static void *describe(struct wire_header *h, uint64_t id)
{
    const struct segment *segment = segment_of(id);
    struct wire_chunk *table = calloc(segment->chunk_count, sizeof(*table));

    if (table == NULL)
        die(EXIT_SETUP, "out of memory");
    for (size_t i = 0; i < segment->chunk_count; i++) {
        table[i].offset = segment->chunks[i].offset;
        table[i].size = segment->chunks[i].size;
        table[i].mapped = segment->chunks[i].mapped;
    }
    h->args[0] = id;
    h->args[1] = segment->base;
    h->args[2] = segment->reserved;
    h->args[3] = segment->data_offset;
    h->args[4] = segment->data_length;
    h->args[5] = segment->chunk_count;
    h->payload_length = segment->chunk_count * sizeof(*table);
    return table;
}

static void *pack(struct wire_header *h, ucp_mem_h memh)
{
    void *packed = NULL;
    size_t length = 0;
    void *copy;

    h->status = memory_pack(memh, &packed, &length);
    if (h->status != UCS_OK)
        return NULL;
    copy = malloc(length);
    if (copy == NULL)
        die(EXIT_SETUP, "out of memory");
    memcpy(copy, packed, length);
    ucp_rkey_buffer_release(packed);
    h->payload_length = length;
    return copy;
}

static void *make_key(struct wire_header *h)
{
    uint64_t id = 0;

    while (id < key_count && keys[id] != NULL)
        id++;
    if (id == MAX_KEYS)
        die(EXIT_USAGE, "too many keys");
    h->status = memory_register(address_of(h), h->args[2], &keys[id]);
    h->args[0] = h->status == UCS_OK ? id : NO_KEY;
    if (h->status != UCS_OK)
        return NULL;
    if (id == key_count)
        key_count++;
    return pack(h, keys[id]);
}

static void deregister(struct wire_header *h)
{
    ucp_mem_h memh = key_of(h->args[0]);

    keys[h->args[0]] = NULL;
    h->status = ucp_mem_unmap(ucx.context, memh);
}

static void fill(const struct wire_header *h)
{
    if (segment_of(h->args[0])->kind == KIND_HOST)
        pattern_write((void *)address_of(h), h->args[2], h->args[3],
                      h->args[1]);
    else
        device_fill(address_of(h), h->args[2], h->args[3], h->args[1]);
}

static void check(struct wire_header *h)
{
    uint64_t first = 0;

    h->args[0] = segment_of(h->args[0])->kind == KIND_HOST
                     ? pattern_compare((void *)address_of(h), h->args[2],
                                       h->args[3], h->args[1], &first)
                     : device_compare(address_of(h), h->args[2], h->args[3],
                                      h->args[1], &first);
    h->args[1] = first;
}

/* Polls a word of device memory, then at once compares the data it announces.
 */
static void watch(struct wire_header *h)
{
    const struct segment *data = segment_of(h->args[0]);
    const struct segment *flag = segment_of(h->args[4]);
    double end = now() + opt.timeout;
    uint64_t value = 0;
    uint64_t first = 0;

    while (value != h->args[6]) {
        CU_MUST(cuMemcpyDtoH(&value, flag->base + h->args[5], sizeof(value)));
        if (now() > end)
            die(EXIT_TIMEOUT, "the flag did not come");
    }
    h->args[0] = device_compare(data->base + h->args[1], h->args[2], h->args[3],
                                h->args[1], &first);
    h->args[1] = first;
}

static void tell_state(struct wire_header *h)
{
    struct state state = state_now();

    h->args[0] = state.free_bytes;
    h->args[1] = state.descriptors;
    h->args[2] = state.mappings;
    h->args[3] = state.soft_limit;
    h->args[4] = state.hard_limit;
    h->args[5] = (uint64_t)getpid();
}

static void *exchange_addresses(struct wire_header *h, const void *address)
{
    ucp_address_t *own;
    size_t length;
    void *copy;

    if (ucp_worker_get_address(ucx.worker, &own, &length) != UCS_OK)
        die(EXIT_SETUP, "ucp_worker_get_address failed");
    if (ucx.ep == NULL)
        ucx.ep = transport_connect(address);
    copy = malloc(length);
    if (copy == NULL)
        die(EXIT_SETUP, "out of memory");
    memcpy(copy, own, length);
    h->payload_length = length;
    ucp_worker_release_address(ucx.worker, own);
    return copy;
}

static void *memory_command(struct wire_header *h, const char *payload)
{
    uint64_t id = h->args[0];
    struct segment *of;

    switch (h->command) {
    case CMD_ALLOC:
        id = free_segment();
        segment_create(new_segment(id), payload, h->args[0]);
        break;
    case CMD_FREE:
        segment_destroy(segment_of(id));
        return NULL;
    case CMD_UNMAP:
        segment_unmap(segment_of(id), h->args[1], h->args[2], h->args[3] != 0);
        break;
    case CMD_MAP:
        segment_map(segment_of(id), h->args[1], h->args[2]);
        break;
    case CMD_GROW:
        segment_grow(segment_of(id), h->args[1], h->args[2] != 0);
        break;
    case CMD_ALIAS:
        of = segment_of(id);
        id = free_segment();
        segment_alias(new_segment(id), of, h->args[1]);
        break;
    case CMD_ALIAS_INSIDE:
        segment_alias_inside(segment_of(id), h->args[1]);
        break;
    default:
        break;
    }
    return describe(h, id);
}

static void *obey(struct wire_header *h, const void *payload)
{
    char *copy;

    switch (h->command) {
    case CMD_ADDRESS:
        return exchange_addresses(h, payload);
    case CMD_FILL:
        fill(h);
        return NULL;
    case CMD_CHECK:
        check(h);
        return NULL;
    case CMD_STRANGER:
        h->args[0] = segment_put_stranger(segment_of(h->args[0]), h->args[1],
                                          (enum stranger)h->args[2],
                                          (pid_t)h->args[3], (int)h->args[4]);
        return NULL;
    case CMD_REGISTER:
        return make_key(h);
    case CMD_REPACK:
        return pack(h, key_of(h->args[0]));
    case CMD_DEREGISTER:
        deregister(h);
        return NULL;
    case CMD_WATCH:
        watch(h);
        return NULL;
    case CMD_STATE:
        tell_state(h);
        return NULL;
    case CMD_SWEEP:
        copy = sweep_obey(payload);
        h->payload_length = strlen(copy);
        return copy;
    case CMD_BENCH:
        return bench_obey(h);
    case CMD_KILL:
        raise(SIGKILL);
        return NULL;
    default:
        return memory_command(h, payload);
    }
}

int exporter_main(void)
{
    struct wire_header header;
    void *payload;

    device_open(true);
    transport_open();
    for (;;) {
        void *reply;

        transport_until_readable(opt.fd);
        if (!wire_receive(opt.fd, &header, &payload))
            break;
        header.status = UCS_OK;
        header.payload_length = 0;
        if (header.command == CMD_QUIT) {
            wire_send(opt.fd, &header, NULL);
            break;
        }
        reply = obey(&header, payload);
        wire_send(opt.fd, &header, reply);
        free(reply);
        free(payload);
    }
    fflush(NULL);
    transport_close();
    return 0;
}
