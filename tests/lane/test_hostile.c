/* SPDX-License-Identifier: MIT */
/*
 * An importer beside an exporter that writes into its own ledger whatever it
 * likes, while it is used: no crash, no hang, nothing touched beside the
 * mirror, nothing kept, and other exporters are served as before.
 */
#include "exporter.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lane/state.h"
#include "mirror/mirror.h"

#define WINDOW (16 * CHUNK)
#define CHUNKS 6
#define ROUNDS 400

/* ---- in the hostile exporter ---- */

/* Its ledger, writable as the shim's own mapping of it. */
static uint8_t *ledger(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    uintptr_t start = 0;
    char line[512];

    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL)
        if (strstr(line, "vmmlane-ledger") != NULL &&
            strstr(line, " rw-s ") != NULL &&
            sscanf(line, "%" SCNxPTR "-", &start) == 1)
            break;
    fclose(file);
    CHECK(start != 0);
    return (uint8_t *)start;
}

static uint64_t any(unsigned *seed)
{
    return (uint64_t)rand_r(seed) << 33 ^ (uint64_t)rand_r(seed) << 11 ^
           (uint64_t)rand_r(seed);
}

/* What a lie may be: anything, or near to what is right. */
static uint64_t lie(const uint8_t *place, unsigned *seed)
{
    uint64_t old;

    memcpy(&old, place, sizeof(old));
    switch (rand_r(seed) % 6) {
    case 0:
        return any(seed);
    case 1:
        return 0;
    case 2:
        return UINT64_MAX;
    case 3:
        return old ^ 1ull << rand_r(seed) % 64;
    case 4:
        return old + (any(seed) % 64 - 32) * CHUNK;
    default:
        return old + any(seed) % 8 - 4;
    }
}

/* Parts of the ledger that are in use. */
#define PARTS 3

struct part {
    uint8_t *at;
    size_t size;
    uint8_t good[4096];
};

static void find_parts(struct part *parts)
{
    uint8_t *map = ledger();
    const struct vmml_ledger_header *header = (void *)map;
    size_t windows = header->window_count, chunks = header->chunk_count;
    unsigned i;

    /* Not the magic and the nonce: who cannot attach sees nothing more. */
    parts[0].at = (uint8_t *)&((struct vmml_ledger_header *)map)->pid;
    parts[0].size = map + sizeof(*header) - parts[0].at;
    parts[1].at = map + VMML_LEDGER_WINDOW_OFFSET;
    parts[1].size = windows * sizeof(struct vmml_ledger_window);
    parts[2].at = map + VMML_LEDGER_CHUNK_OFFSET;
    parts[2].size = chunks * sizeof(struct vmml_ledger_chunk);
    for (i = 0; i < PARTS; i++) {
        CHECK(parts[i].size > 0 && parts[i].size <= sizeof(parts[i].good));
        memcpy(parts[i].good, parts[i].at, parts[i].size);
    }
}

static void scribble(struct part *parts, unsigned *seed)
{
    struct part *part = &parts[(unsigned)rand_r(seed) % PARTS];
    size_t width = (size_t)1 << rand_r(seed) % 4;
    size_t at = (size_t)rand_r(seed) % (part->size / 8) * 8;
    uint64_t value = lie(part->at + at, seed);

    memcpy(part->at + at + (8 - width), &value, width);
}

/* One to eight words, and back. */
static void scribble_for_a_moment(struct part *parts, unsigned *seed)
{
    unsigned count = 1 + (unsigned)rand_r(seed) % 8;
    unsigned i;

    for (i = 0; i < PARTS; i++)
        memcpy(parts[i].good, parts[i].at, parts[i].size);
    while (count-- > 0)
        scribble(parts, seed);
    if (rand_r(seed) % 4 == 0)
        usleep(100);
    for (i = 0; i < PARTS; i++)
        memcpy(parts[i].at, parts[i].good, parts[i].size);
}

/* As published: a chunk of `truth` at a place that may be anywhere, of any
 * size, with a descriptor that may be anything. */
static void publish(struct part *parts, const struct vmml_ledger_chunk *truth,
                    bool is_lie, unsigned *seed)
{
    static uint64_t serial = 1000;
    struct vmml_ledger_window *window = (void *)parts[1].at;
    struct vmml_ledger_chunk *chunks = (void *)parts[2].at;
    uint32_t slot = (uint32_t)rand_r(seed) % CHUNKS;
    struct vmml_ledger_chunk *chunk = &chunks[slot];
    unsigned kind = is_lie ? 1 + (unsigned)rand_r(seed) % 4 : 0;

    window->sequence++;
    window->revoked++;
    memcpy(chunk, &truth[slot], sizeof(*chunk));
    chunk->serial = ++serial;
    chunk->next = VMML_LEDGER_NONE;
    if (kind == 1)
        chunk->address += (any(seed) % 64 - 32) * CHUNK;
    else if (kind == 2)
        chunk->size = (1 + any(seed) % 32) * CHUNK;
    else if (kind == 3)
        chunk->fd = (int)(any(seed) % 1200);
    else if (kind == 4)
        chunk->next = (uint32_t)any(seed) % (CHUNKS + 1);
    window->head = slot;
    window->newest = serial;
    window->sequence++;
}

static void *scribble_for_ever(void *arg)
{
    static struct vmml_ledger_chunk truth[CHUNKS];
    static struct part parts[PARTS];
    unsigned seed = 7;

    (void)arg;
    find_parts(parts);
    memcpy(truth, parts[2].at, sizeof(truth));
    for (;;) {
        if (rand_r(&seed) % 2 == 0)
            scribble_for_a_moment(parts, &seed);
        publish(parts, truth, rand_r(&seed) % 2, &seed);
        if (rand_r(&seed) % 2 == 0)
            usleep(2000);
    }
    return NULL;
}

static uint64_t begin_to_scribble(uint64_t arg)
{
    pthread_t thread;

    (void)arg;
    CHECK_EQUAL(pthread_create(&thread, NULL, scribble_for_ever, NULL), 0);
    return 0;
}

/* Every window has been changed, and is being written, for ever. */
static uint64_t be_stuck(uint64_t count)
{
    struct vmml_ledger_window *windows =
        (void *)(ledger() + VMML_LEDGER_WINDOW_OFFSET);
    uint64_t i;

    for (i = 0; i < count; i++) {
        windows[i].sequence |= 1;
        windows[i].revoked++;
    }
    return 0;
}

/* ---- in the importer ---- */

/* Memory of this process right before and behind a mirror. */
struct fence {
    uint64_t below, above;
};

static uint64_t reserve_beside(uint64_t address)
{
    CUdeviceptr got;

    CHECK_CU(cuMemAddressReserve(&got, WINDOW, 0, address, 0));
    if (got == address)
        return got;
    CHECK_CU(cuMemAddressFree(got, WINDOW));
    return 0;
}

static struct fence build_fence(CUdeviceptr mirror)
{
    return (struct fence){reserve_beside(mirror - WINDOW),
                          reserve_beside(mirror + WINDOW + CHUNK)};
}

static void check_fence(const struct fence *fence)
{
    uint64_t offset;

    for (offset = 0; offset < WINDOW; offset += CHUNK) {
        CHECK(fence->below == 0 ||
              sim_host_view(fence->below + offset, 1) == NULL);
        CHECK(fence->above == 0 ||
              sim_host_view(fence->above + offset, 1) == NULL);
    }
}

/* A copy is posted or refused; beside its target nothing is written. */
static bool copy_between_canaries(CUdeviceptr mirror, size_t offset,
                                  size_t length)
{
    CUdeviceptr buffer = im_buffer();
    uint8_t *bytes = sim_host_view(buffer, BUFFER_SIZE);
    CUresult result;
    size_t i;

    memset(bytes, 0x77, 4096);
    memset(bytes + 4096 + length, 0x77, 4096);
    result = im_post(buffer + 4096, mirror + offset, length);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    for (i = 0; i < 4096; i++)
        CHECK(bytes[i] == 0x77 && bytes[4096 + length + i] == 0x77);
    return result == CUDA_SUCCESS;
}

static void use(const uint8_t key[KEY_SIZE], CUdeviceptr mirror, unsigned *seed,
                unsigned *copied)
{
    size_t offset = (size_t)rand_r(seed) % (CHUNKS * CHUNK);
    size_t length = 1 + (size_t)rand_r(seed) % (2 * CHUNK);

    switch (rand_r(seed) % 8) {
    case 0:
        (void)im_prepare(key);
        break;
    case 1:
        if (vmml_mirror_hand_out(mirror, 1))
            vmml_mirror_take_back(1);
        break;
    case 2:
        CHECK_EQUAL(im_open(key), mirror);
        CHECK(im_close(mirror));
        break;
    default:
        *copied += copy_between_canaries(mirror, offset, length);
    }
}

static struct exporter start_exporter(uint64_t *base, unsigned seed,
                                      uint8_t key[KEY_SIZE])
{
    struct exporter exporter = ex_start();

    *base = ex_reserve(&exporter, WINDOW);
    ex_map(&exporter, *base, CHUNK, CHUNKS, seed);
    ex_key(&exporter, *base, CHUNKS * CHUNK, key);
    return exporter;
}

static uint64_t used_before;

static bool memory_is_back(void *arg)
{
    return sim_memory_used(0) <= used_before + *(uint64_t *)arg;
}

static void exporter_that_scribbles(void)
{
    struct exporter hostile, honest;
    uint8_t key[KEY_SIZE], honest_key[KEY_SIZE];
    uint64_t base, honest_base, own = CHUNKS * CHUNK, none = 0;
    unsigned round, copied = 0, seed = 11;
    CUdeviceptr mirror, honest_mirror;
    struct fence fence;
    unsigned fds;

    lane_own_domain();
    ex_nursery();
    lane_cuda(0);
    (void)im_buffer();
    (void)im_stream();
    used_before = sim_memory_used(0);
    honest = start_exporter(&honest_base, 2, honest_key);
    honest_mirror = im_attach(honest_key);
    im_expect(honest_mirror, honest_base, CHUNKS * CHUNK, 2);
    fds = lane_fd_count();
    hostile = start_exporter(&base, 1, key);
    mirror = im_attach(key);
    im_expect(mirror, base, CHUNKS * CHUNK, 1);
    fence = build_fence(mirror);
    ex_run(&hostile, begin_to_scribble, 0);
    for (round = 0; round < ROUNDS; round++) {
        use(key, mirror, &seed, &copied);
        check_fence(&fence);
        if (round % 16 == 0)
            im_expect(honest_mirror, honest_base, CHUNKS * CHUNK, 2);
    }
    fprintf(stderr, "%u copies of %u uses\n", copied, round);
    CHECK(copied > 0);
    ex_kill(&hostile);
    CHECK(lane_wait(memory_is_back, &own));
    im_refused(mirror, CHUNK);
    CHECK(im_close(mirror));
    CHECK(lane_fds_become(fds));
    im_expect(honest_mirror, honest_base, CHUNKS * CHUNK, 2);
    CHECK(im_close(honest_mirror));
    ex_stop(&honest);
    CHECK(lane_wait(memory_is_back, &none));
}

/* Many windows of a stuck exporter do not keep what another one gave back. */
#define STUCK 48

static void exporter_that_is_stuck(void)
{
    uint8_t key[KEY_SIZE], honest_key[KEY_SIZE];
    struct exporter stuck, honest;
    uint64_t honest_base, all = STUCK * CHUNK;
    CUdeviceptr mirror;
    unsigned i;

    lane_own_domain();
    ex_nursery();
    lane_cuda(0);
    (void)im_buffer();
    used_before = sim_memory_used(0);
    stuck = ex_start();
    for (i = 0; i < STUCK; i++) {
        uint64_t base = ex_reserve(&stuck, 2 * CHUNK);

        ex_map(&stuck, base, CHUNK, 1, 1);
        ex_key(&stuck, base, CHUNK, key);
        (void)im_attach(key);
    }
    honest = start_exporter(&honest_base, 2, honest_key);
    mirror = im_attach(honest_key);
    im_expect(mirror, honest_base, CHUNKS * CHUNK, 2);
    ex_run(&stuck, be_stuck, STUCK);
    usleep(300000); /* the watcher is at it */
    for (i = 0; i < CHUNKS; i++)
        CHECK_CU(ex_unmap(&honest, honest_base + i * CHUNK, CHUNK));
    CHECK(lane_wait(memory_is_back, &all));
    ex_stop(&honest);
    ex_kill(&stuck);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(exporter_that_scribbles),
        LANE_PAIR(exporter_that_is_stuck),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
