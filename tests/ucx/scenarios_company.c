/*
 * Scenarios of memory and keys beside each other, and of both roles in one.
 * The letters name the cases that a scenario covers.
 */
#include "client.h"

#include <stdio.h>
#include <string.h>

/* ---- neighbours by chance (B4) ---- */

/* Far from what either driver chooses by itself. */
#define PLACE ((CUdeviceptr)1 << 44)

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

/* ---- PUT, fence, PUT (E5) ---- */

static ucs_status_t post_fenced(const struct transfer *data,
                                const struct transfer *flag, char *lane)
{
    ucs_status_ptr_t first = transfer_post(data, lane);
    ucs_status_ptr_t second;
    ucs_status_t status = ucp_worker_fence(ucx.worker);
    ucs_status_t other;

    if (status != UCS_OK)
        die(EXIT_SETUP, "ucp_worker_fence: %s", ucs_status_string(status));
    second = transfer_post(flag, NULL);
    status = transport_wait(first);
    other = transport_wait(second);
    if (status == UCS_OK)
        status = other;
    return status == UCS_OK ? transport_flush(ucx.ep) : status;
}

static void fence_round(const struct key *data, const struct key *flag,
                        uint64_t value, const char *detail)
{
    uint64_t seed = new_seed();
    struct outcome outcome = {.verdict = BYTES_NONE};
    CUdeviceptr local = local_buffer(data->length + sizeof(value));
    struct transfer t = {.operation = OP_PUT,
                         .local = local,
                         .length = data->length,
                         .remote = data->remote->base + data->offset,
                         .rkey = data->rkey};
    struct transfer f = {.operation = OP_PUT,
                         .local = local + data->length,
                         .length = sizeof(value),
                         .remote = flag->remote->base + flag->offset,
                         .rkey = flag->rkey};
    struct wire_header h = {.command = CMD_WATCH,
                            .args = {data->remote->id, data->offset,
                                     data->length, seed, flag->remote->id,
                                     flag->offset, value}};
    void *payload;

    device_fill(local, data->length, seed, data->offset);
    CU_MUST(cuMemcpyHtoD(local + data->length, &value, sizeof(value)));
    wire_send(opt.fd, &h, NULL);
    outcome.status = post_fenced(&t, &f, outcome.lane);
    transport_until_readable(opt.fd);
    if (!wire_receive(opt.fd, &h, &payload))
        die(EXIT_SETUP, "the exporter died while it watched the flag");
    free(payload);
    outcome.verdict = h.args[0] == 0 ? BYTES_OK : BYTES_BAD;
    report_detail(data->remote, "put-fence-put", outcome, detail);
}

static bool on_cuda_ipc(const struct key *key, uint64_t seed)
{
    struct outcome outcome = key_get(key, key->offset, key->length, seed);

    return outcome.status == UCS_OK && strcmp(outcome.lane, "cuda_ipc") == 0;
}

void scenario_fence(void)
{
    enum { ROUNDS = 10 };
    uint64_t seed = new_seed();
    struct remote vmm = filled(opt.kind, seed);
    struct remote plain;
    struct key vmm_key = key_make_all(&vmm);
    struct key plain_key;
    char specification[64];

    snprintf(specification, sizeof(specification), "malloc:%llu",
             (unsigned long long)vmm.length);
    plain = filled(specification, seed);
    plain_key = key_make_all(&plain);
    /* While it polls, the exporter could not answer emulated PUTs. */
    if (!on_cuda_ipc(&vmm_key, seed) || !on_cuda_ipc(&plain_key, seed)) {
        printf("skip %s: not on cuda_ipc\n", opt.scenario);
        return;
    }
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        struct key flag = plain_key;

        fence_round(&vmm_key, &flag, 2 * i, "data-vmm");
        flag = vmm_key;
        fence_round(&plain_key, &flag, 2 * i + 1, "data-malloc");
    }
    key_destroy(&vmm_key);
    key_destroy(&plain_key);
    remote_free(&plain);
    remote_free(&vmm);
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
