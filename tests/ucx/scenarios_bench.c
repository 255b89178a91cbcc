/*
 * Speed: kinds of memory in turn, message by message, so that whoever else uses
 * the machine slows all of them. Lines "bench NAME key=value ..."; tests/bench
 * reads them.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LANES = 4 };

static const char *const OPERATIONS[] = {"GET", "PUT"};

/* One of the ways that are timed in turn. */
struct lane {
    const char *name;
    const struct key *key; /* by UCX, */
    const struct raw *raw; /* or by the driver alone */
    const struct remote *remote;
    char of_ucx[LANE_SIZE];
    double *seconds;
    double *post;
};

static double *room(void)
{
    double *values = calloc((size_t)opt.reps, sizeof(*values));

    if (values == NULL)
        die(EXIT_SETUP, "out of memory");
    return values;
}

static void make_rooms(struct lane *lanes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lanes[i].seconds = room();
        lanes[i].post = room();
    }
}

static void free_rooms(struct lane *lanes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(lanes[i].seconds);
        free(lanes[i].post);
    }
}

static double by_ucx(struct lane *lane, enum operation operation,
                     uint64_t offset, uint64_t length, double *post)
{
    struct transfer transfer = {
        .operation = operation,
        .local = local_buffer(length),
        .length = length,
        .remote = lane->remote->base + lane->remote->offset + offset,
        .rkey = lane->key->rkey,
    };
    double begin = now();
    bool ask = lane->of_ucx[0] == '\0';
    ucs_status_ptr_t request =
        transfer_post(&transfer, ask ? lane->of_ucx : NULL);
    ucs_status_t status;

    *post = now() - begin;
    status = transport_wait(request);
    if (status == UCS_OK && operation == OP_PUT)
        status = transport_flush(ucx.ep);
    if (status != UCS_OK)
        die(EXIT_SETUP, "a transfer: %s", ucs_status_string(status));
    return now() - begin;
}

static double run_lane(struct lane *lane, enum operation operation,
                       uint64_t offset, uint64_t length, double *post)
{
    CUdeviceptr there, here;

    if (lane->raw == NULL)
        return by_ucx(lane, operation, offset, length, post);
    there = lane->raw->base + lane->remote->offset + offset;
    here = local_buffer(length);
    return operation == OP_GET ? raw_copy(here, there, length, 0, 1, post)
                               : raw_copy(there, here, length, 0, 1, post);
}

/* Another place for each repetition, off the chunks' borders, in one order for
 * all. */
static uint64_t place(uint64_t length, uint64_t all, size_t repetition)
{
    uint64_t last = all - length;

    return last == 0 ? 0 : (repetition * (length + (68 << 10))) % last & ~4095u;
}

/* In turn, each beginning as often as the others. Returns how often. */
static size_t time_lanes(struct lane *lanes, size_t count,
                         enum operation operation, uint64_t length,
                         uint64_t all)
{
    enum { LEAST = 3, WARM = 2 };
    double end = now() + opt.budget;
    double post;
    size_t done;

    for (size_t i = 0; i < WARM * count; i++)
        run_lane(&lanes[i % count], operation, 0, length, &post);
    for (done = 0; done < (size_t)opt.reps; done++) {
        if (done >= LEAST && now() > end)
            break;
        for (size_t i = 0; i < count; i++) {
            struct lane *lane = &lanes[(i + done) % count];

            lane->seconds[done] =
                run_lane(lane, operation, place(length, all, done), length,
                         &lane->post[done]);
        }
    }
    return done;
}

/* Median of the ratios of what was measured one after the other: how many times
 * as fast `lane` is as `base`. */
static double ratio(const struct lane *lane, const struct lane *base,
                    size_t count)
{
    double *values = room();
    double value;

    for (size_t i = 0; i < count; i++)
        values[i] = base->seconds[i] / lane->seconds[i];
    value = median(values, count);
    free(values);
    return value;
}

/* What `lane`, over chunks, can have of `base` at most: what they cost the
 * driver alone is added to each message of `base`. */
static double limit_of(const struct lane *base, const struct lane *raw_chunks,
                       const struct lane *raw_base, size_t count)
{
    double *values = room();
    double value;

    for (size_t i = 0; i < count; i++)
        values[i] =
            base->seconds[i] /
            (base->seconds[i] + raw_chunks->seconds[i] - raw_base->seconds[i]);
    value = median(values, count);
    free(values);
    return value;
}

/* Ratios first: a median sorts. */
static void print_lanes(const char *name, struct lane *lanes, size_t count,
                        const char *operation, uint64_t length, size_t done)
{
    printf("bench %s kind=%s chunks=%llu bytes=%llu op=%s local=%s reps=%zu",
           name, lanes[0].remote->kind,
           (unsigned long long)lanes[0].remote->chunk_count,
           (unsigned long long)length, operation, opt.local, done);
    for (size_t i = 1; i < count; i++)
        printf(" vs-%s=%.4f", lanes[i].name, ratio(&lanes[0], &lanes[i], done));
    if (count == LANES)
        printf(" limit=%.4f", limit_of(&lanes[1], &lanes[2], &lanes[3], done));
    for (size_t i = 0; i < count; i++)
        printf(" %s=%.3f post-%s=%.2f", lanes[i].name,
               (double)length * 1e-9 / median(lanes[i].seconds, done),
               lanes[i].name, median(lanes[i].post, done) * 1e6);
    printf(" lane=%s\n", lanes[0].of_ucx[0] ? lanes[0].of_ucx : "none");
    fflush(stdout);
}

/* The next of opt.sizes that fits and is larger than the last one, or 0 at
 * their end. */
static uint64_t next_size(const char **at, uint64_t all)
{
    static uint64_t last;

    if (*at == opt.sizes)
        last = 0;
    while (**at != '\0') {
        char *end;
        uint64_t size = strtoull(*at, &end, 10);

        if (strncmp(*at, "all", 3) == 0) {
            size = all;
            end = (char *)*at + 3;
        }
        size <<= *end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0;
        *at = end + strcspn(end, ",");
        *at += **at == ',';
        if (size > last && size <= all)
            return last = size;
    }
    return 0;
}

static void all_sizes(const char *name, struct lane *lanes, size_t count)
{
    uint64_t all = lanes[0].remote->length;
    const char *at = opt.sizes;
    uint64_t length;

    make_rooms(lanes, count);
    local_buffer(all);
    while ((length = next_size(&at, all)) != 0)
        for (int op = OP_GET; op <= OP_PUT; op++) {
            size_t done =
                time_lanes(lanes, count, (enum operation)op, length, all);

            print_lanes(name, lanes, count, OPERATIONS[op], length, done);
        }
    free_rooms(lanes, count);
}

static struct remote malloc_beside(const struct remote *remote)
{
    char specification[64];

    snprintf(specification, sizeof(specification), "malloc:%llu",
             (unsigned long long)remote->length);
    return remote_alloc(specification, 0);
}

/* Right bytes at the ends of the segment. */
static void check_bytes(const struct key *key)
{
    enum { MOST = 8 << 20 };
    uint64_t length = key->length < MOST ? key->length : MOST;
    uint64_t last = key->offset + key->length - length;
    uint64_t seed = new_seed();

    remote_fill(key->remote, last, length, seed);
    report_detail(key->remote, "get", key_get(key, last, length, seed), "tail");
    report_detail(key->remote, "put",
                  key_put(key, key->offset, length, new_seed()), "head");
}

void scenario_bench_steady(void)
{
    struct remote vmm = remote_alloc(opt.kind, 0);
    struct remote plain = malloc_beside(&vmm);
    struct key vmm_key = key_make_all(&vmm), plain_key = key_make_all(&plain);
    uint64_t export_ns[2];
    struct raw vmm_raw = raw_open(&vmm, export_ns);
    struct raw plain_raw = raw_open(&plain, export_ns);
    struct lane lanes[LANES] = {
        {.name = "vmm", .key = &vmm_key, .remote = &vmm},
        {.name = "malloc", .key = &plain_key, .remote = &plain},
        {.name = "raw-vmm", .raw = &vmm_raw, .remote = &vmm},
        {.name = "raw-malloc", .raw = &plain_raw, .remote = &plain},
    };

    if (vmm_key.rkey == NULL || plain_key.rkey == NULL)
        die(EXIT_SETUP, "no key");
    check_bytes(&vmm_key);
    check_bytes(&plain_key);
    all_sizes("steady", lanes, LANES);
    raw_close(&vmm_raw);
    raw_close(&plain_raw);
    key_destroy(&vmm_key);
    key_destroy(&plain_key);
    remote_free(&plain);
    remote_free(&vmm);
}

/* One kind alone: for a lane that is slow, or not there. */
void scenario_bench_plain(void)
{
    struct remote remote = remote_alloc(opt.kind, 0);
    struct key key = key_make_all(&remote);
    struct lane lane = {.name = "vmm", .key = &key, .remote = &remote};

    if (key.rkey == NULL)
        die(EXIT_SETUP, "no key");
    check_bytes(&key);
    all_sizes("plain", &lane, 1);
    key_destroy(&key);
    remote_free(&remote);
}

/* ---- the driver alone: a copy whole, and in pieces ---- */

/* A first piece in MiB (0: whole), and how pieces grow. */
static const struct cut {
    size_t first, growth;
} CUTS[] = {{0, 1},  {16, 2}, {16, 3},  {16, 8},
            {32, 2}, {32, 4}, {48, 16}, {64, 8}};
enum { CUT_COUNT = sizeof(CUTS) / sizeof(CUTS[0]) };

/* Another place each time: of chunks that the driver has just looked at it
 * knows all. */
static size_t time_cuts(const struct remote *remote, const struct raw *raw,
                        enum operation operation, uint64_t length,
                        double **seconds)
{
    enum { LEAST = 3 };
    CUdeviceptr here = local_buffer(remote->length);
    double end = now() + opt.budget;
    double post;
    size_t done;

    for (done = 0; done < (size_t)opt.reps; done++) {
        if (done >= LEAST && now() > end)
            break;
        for (size_t i = 0; i < CUT_COUNT; i++) {
            size_t cut = (i + done) % CUT_COUNT;
            uint64_t at = place(length, remote->length, done * CUT_COUNT + i);
            CUdeviceptr there = raw->base + remote->offset + at;

            seconds[cut][done] =
                operation == OP_GET
                    ? raw_copy(here + at, there, length, CUTS[cut].first << 20,
                               CUTS[cut].growth, &post)
                    : raw_copy(there, here + at, length, CUTS[cut].first << 20,
                               CUTS[cut].growth, &post);
        }
    }
    return done;
}

void scenario_bench_cut(void)
{
    struct remote remote = remote_alloc(opt.kind, 0);
    uint64_t export_ns[2];
    struct raw raw = raw_open(&remote, export_ns);
    double *seconds[CUT_COUNT];
    const char *at = opt.sizes;
    uint64_t length;

    for (size_t i = 0; i < CUT_COUNT; i++)
        seconds[i] = room();
    while ((length = next_size(&at, remote.length)) != 0) {
        size_t done = time_cuts(&remote, &raw, OP_GET, length, seconds);

        printf("bench cut kind=%s chunks=%llu bytes=%llu local=%s reps=%zu",
               remote.kind, (unsigned long long)remote.chunk_count,
               (unsigned long long)length, opt.local, done);
        for (size_t i = 0; i < CUT_COUNT; i++)
            printf(" %zux%zu=%.1f", CUTS[i].first, CUTS[i].growth,
                   (double)length * 1e-9 / median(seconds[i], done));
        printf("\n");
        fflush(stdout);
    }
    for (size_t i = 0; i < CUT_COUNT; i++)
        free(seconds[i]);
    raw_close(&raw);
    remote_free(&remote);
}

/* ---- publishing and the first open ---- */

/* FIRST: bytes of the first transfer. */
enum { STEPS = 11, FIRST = 1 << 20 };

/* Microseconds. */
static const char *const STEP_NAMES[STEPS] = {
    "raw-export",   "raw-retain", "publish",     "raw-getfd",
    "raw-import",   "raw-map",    "raw-access",  "unpack",
    "raw-transfer", "transfer",   "raw-reserve",
};

static void measure_raw(const struct remote *remote, double *steps)
{
    uint64_t export_ns[2];
    struct raw raw = raw_open(remote, export_ns);
    CUdeviceptr here = local_buffer(FIRST);
    CUdeviceptr there = raw.base + remote->offset;
    double first, second, post;

    first = raw_copy(here, there, FIRST, 0, 1, &post);
    second = raw_copy(here, there, FIRST, 0, 1, &post);
    steps[8] = (first - second) * 1e6;
    steps[0] = (double)export_ns[0] * 1e-3;
    steps[1] = (double)export_ns[1] * 1e-3;
    steps[3] = raw.get_fd * 1e6;
    steps[4] = raw.import * 1e6;
    steps[5] = raw.map * 1e6;
    steps[6] = raw.access * 1e6;
    steps[10] = raw.reserve * 1e6;
    raw_close(&raw);
}

static double unpack(const void *packed, ucp_rkey_h *rkey)
{
    double begin = now();

    if (ucp_ep_rkey_unpack(ucx.ep, packed, rkey) != UCS_OK)
        die(EXIT_SETUP, "a key cannot be unpacked");
    return (now() - begin) * 1e6;
}

/* What the first pack, unpack and transfer cost more than the second ones. */
static void measure_lane(const struct remote *remote, double *steps)
{
    struct wire_header h = {
        .args = {0, remote->id, remote->offset, remote->length}};
    struct key key = {.remote = remote, .status = UCS_OK};
    struct lane lane = {.key = &key, .remote = remote};
    double first, second, post;
    ucp_rkey_h again;
    void *packed;

    bench_command(BENCH_KEY, &h, &packed);
    steps[2] = ((double)h.args[1] - (double)h.args[2]) * 1e-3;
    first = unpack(packed, &key.rkey);
    second = unpack(packed, &again);
    steps[7] = first - second;
    first = by_ucx(&lane, OP_GET, 0, FIRST, &post);
    second = by_ucx(&lane, OP_GET, 0, FIRST, &post);
    steps[9] = (first - second) * 1e6;
    ucp_rkey_destroy(key.rkey);
    ucp_rkey_destroy(again);
    free(packed);
    h.args[1] = remote->id;
    bench_command(BENCH_UNKEY, &h, NULL);
}

/* The watcher unmaps behind a window that is gone. */
static void settle(uint64_t chunks)
{
    struct timespec pause = {.tv_nsec = 300000000};

    nanosleep(&pause, NULL);
    pause.tv_nsec = (long)(chunks % 7000) * 60000;
    nanosleep(&pause, NULL);
}

void scenario_bench_open(void)
{
    double *values[STEPS], steps[STEPS] = {0};
    uint64_t chunks = 0;

    local_buffer(FIRST);
    for (int i = 0; i < STEPS; i++)
        values[i] = room();
    for (int round = 0; round < opt.reps; round++) {
        struct remote remote = remote_alloc(opt.kind, 0);

        chunks = remote.chunk_count;
        if (round % 2 == 0)
            measure_raw(&remote, steps);
        measure_lane(&remote, steps);
        if (round % 2 != 0)
            measure_raw(&remote, steps);
        for (int i = 0; i < STEPS; i++)
            values[i][round] = steps[i];
        remote_free(&remote);
        settle(chunks);
    }
    printf("bench open kind=%s chunks=%llu", opt.kind,
           (unsigned long long)chunks);
    for (int i = 0; i < STEPS; i++) {
        printf(" %s=%.2f", STEP_NAMES[i], median(values[i], (size_t)opt.reps));
        free(values[i]);
    }
    printf("\n");
}

/* ---- tagged messages: a pack for each ---- */

/* The time from one message's end to the next one's. */
static void receive(struct lane *lanes, uint64_t length, size_t count)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    void *buffer = (void *)local_buffer(length);
    double last = now();

    for (size_t i = 0; i < count; i++) {
        struct lane *lane = &lanes[i % 2];
        ucs_status_ptr_t request =
            ucp_tag_recv_nbx(ucx.worker, buffer, length, i, ~0ull, &param);
        ucs_status_t status = transport_wait(request);
        double end = now();

        if (status != UCS_OK)
            die(EXIT_SETUP, "a message: %s", ucs_status_string(status));
        lane->seconds[i / 2] = end - last;
        last = end;
    }
}

/* The driver alone, of the same places. */
static void time_raw(struct lane *lanes, uint64_t length, size_t reps)
{
    enum { WARM = 2 };
    double post;

    for (size_t i = 0; i < WARM; i++)
        for (size_t j = 2; j < LANES; j++)
            run_lane(&lanes[j], OP_GET, 0, length, &post);
    for (size_t i = 0; i < reps; i++)
        for (size_t j = 2; j < LANES; j++)
            lanes[j].seconds[i] =
                run_lane(&lanes[j], OP_GET, 0, length, &lanes[j].post[i]);
}

static void time_messages(struct lane *lanes, uint64_t length)
{
    enum { WARM = 2 };
    size_t reps = (size_t)opt.reps;
    size_t most = (size_t)(opt.budget * 5e11 / (double)length);
    struct wire_header h = {.command = CMD_BENCH};
    void *reply;

    if (most > WARM && most < reps)
        reps = most;
    h = (struct wire_header){
        .command = CMD_BENCH,
        .args = {BENCH_SEND, lanes[0].remote->id, 0, length, 2 * reps,
                 lanes[1].remote->id},
    };
    wire_send(opt.fd, &h, NULL);
    receive(lanes, length, 2 * reps);
    transport_until_readable(opt.fd);
    if (!wire_receive(opt.fd, &h, &reply) || h.status != UCS_OK)
        die(EXIT_SETUP, "the exporter could not send");
    free(reply);
    for (int i = 0; i < 2; i++)
        memmove(lanes[i].seconds, lanes[i].seconds + WARM,
                (reps - WARM) * sizeof(double));
    time_raw(lanes, length, reps - WARM);
    print_lanes("tag", lanes, LANES, "tag", length, reps - WARM);
}

void scenario_bench_tag(void)
{
    struct remote vmm = remote_alloc(opt.kind, 0);
    struct remote plain = malloc_beside(&vmm);
    uint64_t export_ns[2];
    struct raw vmm_raw = raw_open(&vmm, export_ns);
    struct raw plain_raw = raw_open(&plain, export_ns);
    struct lane lanes[LANES] = {
        {.name = "vmm", .remote = &vmm},
        {.name = "malloc", .remote = &plain},
        {.name = "raw-vmm", .raw = &vmm_raw, .remote = &vmm},
        {.name = "raw-malloc", .raw = &plain_raw, .remote = &plain},
    };
    const char *at = opt.sizes;
    uint64_t length;

    make_rooms(lanes, LANES);
    local_buffer(vmm.length);
    while ((length = next_size(&at, vmm.length)) != 0)
        time_messages(lanes, length);
    free_rooms(lanes, LANES);
    raw_close(&vmm_raw);
    raw_close(&plain_raw);
    remote_free(&plain);
    remote_free(&vmm);
}

/* ---- many small descriptors by one key ---- */

static double storm(const struct key *key, enum operation operation,
                    uint64_t length, size_t count, double *post)
{
    ucs_status_ptr_t *requests = calloc(count, sizeof(*requests));
    struct transfer transfer = {
        .operation = operation,
        .length = length,
        .rkey = key->rkey,
    };
    CUdeviceptr local = local_buffer(key->length);
    ucs_status_t status = UCS_OK;
    double begin;

    if (requests == NULL)
        die(EXIT_SETUP, "out of memory");
    begin = now();
    for (size_t i = 0; i < count; i++) {
        transfer.local = local + i * length;
        transfer.remote = key->remote->base + key->offset + i * length;
        requests[i] = transfer_post(&transfer, NULL);
    }
    *post = now() - begin;
    for (size_t i = 0; i < count && status == UCS_OK; i++)
        status = transport_wait(requests[i]);
    if (status == UCS_OK && operation == OP_PUT)
        status = transport_flush(ucx.ep);
    if (status != UCS_OK)
        die(EXIT_SETUP, "a descriptor: %s", ucs_status_string(status));
    free(requests);
    return now() - begin;
}

void scenario_bench_storm(void)
{
    struct remote remotes[2];
    struct key keys[2];
    size_t count = (size_t)opt.growth;
    struct lane lanes[] = {
        {.name = "vmm"},
        {.name = "malloc"},
    };
    uint64_t length;

    make_rooms(lanes, 2);
    remotes[0] = remote_alloc(opt.kind, 0);
    remotes[1] = malloc_beside(&remotes[0]);
    length = remotes[0].length / count & ~7u;
    for (int i = 0; i < 2; i++) {
        keys[i] = key_make_all(&remotes[i]);
        lanes[i].remote = &remotes[i];
    }
    for (int op = OP_GET; op <= OP_PUT; op++) {
        for (int i = 0; i < 2 * opt.reps; i++) {
            size_t which = (size_t)(i + i / 2) % 2;

            lanes[which].seconds[i / 2] =
                storm(&keys[which], (enum operation)op, length, count,
                      &lanes[which].post[i / 2]);
        }
        print_lanes("storm", lanes, 2, OPERATIONS[op], length * count,
                    (size_t)opt.reps);
    }
    free_rooms(lanes, 2);
    for (int i = 0; i < 2; i++) {
        key_destroy(&keys[i]);
        remote_free(&remotes[i]);
    }
}

/* ---- many registrations in one segment ---- */

enum { REGISTER_TIMES = 5 };

static void register_all(const struct remote *remote, size_t count,
                         bool exports, double seconds[REGISTER_TIMES])
{
    struct wire_header h = {.args = {0, remote->id, remote->offset,
                                     remote->length / count, count, exports}};

    bench_command(BENCH_REGISTER, &h, NULL);
    for (int i = 0; i < REGISTER_TIMES; i++)
        seconds[i] = (double)h.args[i] * 1e-9;
}

void scenario_bench_register(void)
{
    struct remote vmm = remote_alloc(opt.kind, 0);
    struct remote plain = malloc_beside(&vmm);
    size_t count = (size_t)opt.growth;
    struct remote small = remote_alloc("malloc:2M", 0);
    double first[REGISTER_TIMES], again[REGISTER_TIMES];
    double base[REGISTER_TIMES], base_again[REGISTER_TIMES];

    register_all(&small, 1, false, base); /* what UCX does once */
    register_all(&plain, count, false, base);
    register_all(&vmm, count, true, first);
    register_all(&plain, count, false, base_again);
    register_all(&vmm, count, false, again);
    printf("bench register kind=%s chunks=%llu count=%zu malloc=%.6f "
           "malloc-pack=%.6f malloc-end=%.6f malloc-again=%.6f "
           "malloc-again-pack=%.6f vmm=%.6f vmm-pack=%.6f "
           "vmm-end=%.6f vmm-first=%.6f malloc-first=%.6f again=%.6f "
           "again-pack=%.6f exports=%.6f\n",
           opt.kind, (unsigned long long)vmm.chunk_count, count, base[0],
           base[1], base[2], base_again[0], base_again[1], first[0], first[1],
           first[2], first[3], base[3], again[0], again[1], first[4]);
    remote_free(&small);
    remote_free(&plain);
    remote_free(&vmm);
}

/* ---- what UCX registers while a segment grows ---- */

/* tests/bench/count_memory.c, where it is preloaded: registrations and bytes of
 * the domain with the most of them, dmabuf exports and their bytes. */
__attribute__((weak)) void memory_counts(unsigned long counts[4]);

static void print_counts(const char *what, const unsigned long before[4],
                         int steps, uint64_t bytes)
{
    unsigned long after[4];

    memory_counts(after);
    printf("bench ranges kind=%s what=%s steps=%d segment=%llu "
           "registrations=%lu registered=%lu dmabufs=%lu exported=%lu\n",
           opt.kind, what, steps, (unsigned long long)bytes,
           after[0] - before[0], after[1] - before[1], after[2] - before[2],
           after[3] - before[3]);
}

static void keep_registration(CUdeviceptr address, size_t length)
{
    ucp_mem_h memh;

    if (memory_register(address, length, &memh) != UCS_OK)
        die(EXIT_SETUP, "a registration failed");
}

/* A registration of each new chunk, or of the two halves at its border, that
 * lives on, as NIXL makes them. */
static void grow_registered(struct segment *segment, bool crossing)
{
    unsigned long before[4];

    memory_counts(before);
    for (int i = 0; i < opt.growth; i++) {
        uint64_t end = segment->data_offset + segment->data_length;
        uint64_t size = segment->sizes[0];

        segment_grow(segment, 1, false);
        keep_registration(segment->base + end - (crossing ? size / 2 : 0),
                          size);
    }
    print_counts(crossing ? "crossing" : "inside", before, opt.growth,
                 segment->data_length);
}

/* As many registrations when the segment has grown. */
static void register_grown(struct segment *segment)
{
    uint64_t size = segment->sizes[0];
    unsigned long before[4];

    segment_grow(segment, (size_t)opt.growth, false);
    memory_counts(before);
    for (int i = 0; i < opt.growth; i++)
        keep_registration(segment->base + segment->data_offset + size / 2 +
                              (uint64_t)i * size,
                          size);
    print_counts("grown-before", before, opt.growth, segment->data_length);
}

/* Transfers from and to memory that the application never registered. */
static void grow_used(struct segment *segment, const struct key *key)
{
    unsigned long before[4];

    memory_counts(before);
    for (int i = 0; i < opt.growth; i++) {
        uint64_t end = segment->data_offset + segment->data_length;
        struct transfer transfer = {
            .operation = OP_PUT,
            .length = segment->sizes[0],
            .local = segment->base + end,
            .remote = key->remote->base,
            .rkey = key->rkey,
        };

        segment_grow(segment, 1, false);
        if (transfer_run(&transfer, NULL) != UCS_OK)
            die(EXIT_SETUP, "a transfer failed");
    }
    print_counts("unregistered", before, opt.growth, segment->data_length);
}

void scenario_bench_ranges(void)
{
    struct remote remote = remote_alloc("malloc:64M", 0);
    struct key key = key_make_all(&remote);
    struct segment segments[4];

    if (memory_counts == NULL)
        die(EXIT_USAGE, "the preload that counts is missing");
    for (int i = 0; i < 4; i++)
        segment_create(&segments[i], opt.kind, 0);
    grow_registered(&segments[0], false);
    grow_registered(&segments[1], true);
    register_grown(&segments[2]);
    grow_used(&segments[3], &key);
    key_destroy(&key);
    remote_free(&remote);
}
