/* SPDX-License-Identifier: MIT */
/*
 * Everything at once: threads that map, unmap, register, pack, unpack, copy
 * and hand addresses out, on one window. The process is its own importer on a
 * second device, so that one sanitizer sees both sides.
 *
 * What is checked: a copy that was posted gives the bytes of one mapping, and
 * never of one whose unmap had returned before the copy was posted. An unmap
 * that no hook sees counts from the next pack of its chunk on.
 *
 * VMML_TEST_SECONDS: with 16 threads and for so long.
 */
#include "exporter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "lane/state.h"
#include "mirror/mirror.h"

#define ROUNDS       250
#define SLOTS_EACH   8 /* of a mapper */
#define THREADS_MAX  8 /* of a kind */
#define SLOTS_MAX    (SLOTS_EACH * THREADS_MAX)
#define WINDOW       (2 * SLOTS_MAX * CHUNK)
#define QUIET_PERIOD 10 /* seconds; no registration in the last of them */
#define BUSY_PERIOD  6

static const struct load {
    unsigned mappers, registrars, copiers, holders;
} light = {2, 2, 2, 1}, heavy = {4, 4, 6, 2};

static const struct load *load = &light;
static uint64_t end_ms; /* 0: after ROUNDS */

/* A chunk of the window. Its n-th mapping holds the pattern of seed n. */
struct slot {
    atomic_uint maps;   /* that were begun */
    atomic_uint unmaps; /* that have returned */
    bool mapped;        /* its mapper's */
};

static struct slot slots[SLOTS_MAX];
static unsigned slot_count;
static uint64_t base;
static uint8_t key[KEY_SIZE];
static atomic_bool done;
static atomic_uint copied, refused, packed, mapped, unseen;

static uint64_t address_of(unsigned slot)
{
    return base + slot * CHUNK;
}

/* A chunk that is filled before anyone can see it. */
static CUmemGenericAllocationHandle filled(unsigned slot, uint64_t scratch)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    unsigned seed = atomic_fetch_add(&slots[slot].maps, 1) + 1;
    CUmemGenericAllocationHandle handle;

    CHECK_CU(cuMemCreate(&handle, CHUNK, &prop, 0));
    CHECK_CU(cuMemMap(scratch, CHUNK, 0, handle, 0));
    lane_fill(sim_host_view(scratch, CHUNK), address_of(slot), CHUNK, seed);
    CHECK_CU(cuMemUnmap(scratch, CHUNK));
    atomic_fetch_add(&mapped, 1);
    return handle;
}

static const CUmemAccessDesc access_desc = {
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

static void map_slot(unsigned slot, uint64_t scratch)
{
    CUmemGenericAllocationHandle handle = filled(slot, scratch);
    uint64_t at = address_of(slot);

    CHECK_CU(vmml_cuMemMap(NULL, at, CHUNK, 0, handle, 0));
    CHECK_CU(vmml_cuMemSetAccess(NULL, at, CHUNK, &access_desc, 1));
    CHECK_CU(cuMemRelease(handle));
    slots[slot].mapped = true;
}

/* Other memory is there, and nobody was told before the pack. */
static void replace_unseen(unsigned slot, uint64_t scratch)
{
    CUmemGenericAllocationHandle handle = filled(slot, scratch);
    const struct vmml_real *real = lane_real();
    uint64_t at = address_of(slot);
    uint8_t bytes[KEY_SIZE];
    vmml_uct_mem_h memh;

    CHECK_CU(lane_unmap_unseen(at, CHUNK));
    CHECK_CU(real->cuMemMap(at, CHUNK, 0, handle, 0));
    CHECK_CU(real->cuMemSetAccess(at, CHUNK, &access_desc, 1));
    CHECK_CU(cuMemRelease(handle));
    memh = lane_reg(at, CHUNK);
    CHECK(lane_pack(memh, at, CHUNK, bytes));
    atomic_fetch_add(&slots[slot].unmaps, 1);
    lane_dereg(memh);
    atomic_fetch_add(&unseen, 1);
}

static void unmap_slot(unsigned slot)
{
    CHECK_CU(lane_unmap(address_of(slot), CHUNK));
    atomic_fetch_add(&slots[slot].unmaps, 1);
    slots[slot].mapped = false;
}

static void *map_and_unmap(void *arg)
{
    unsigned mapper = (unsigned)(uintptr_t)arg;
    unsigned seed = 100 + mapper;
    uint64_t scratch = lane_reserve(CHUNK);
    unsigned round;

    lane_cuda(0);
    for (round = 0; end_ms == 0 ? round < ROUNDS : lane_ms() < end_ms;
         round++) {
        unsigned slot =
            mapper * SLOTS_EACH + (unsigned)rand_r(&seed) % SLOTS_EACH;

        if (!slots[slot].mapped)
            map_slot(slot, scratch);
        else if (rand_r(&seed) % 6 == 0)
            replace_unseen(slot, scratch);
        else
            unmap_slot(slot);
        /* Half of a mapping: refused, and served on. */
        if (round % 16 == 0)
            CHECK(lane_unmap(address_of(slot), CHUNK / 2) != CUDA_SUCCESS);
        usleep((unsigned)rand_r(&seed) % 4000);
    }
    return NULL;
}

/* In a long run there are times without a registration, in which what is idle
 * is closed. */
static bool is_quiet(void)
{
    return end_ms != 0 && lane_ms() / 1000 % QUIET_PERIOD >= BUSY_PERIOD;
}

static void *register_and_pack(void *arg)
{
    unsigned seed = 200 + (unsigned)(uintptr_t)arg;
    uint8_t bytes[KEY_SIZE];

    while (!atomic_load(&done)) {
        unsigned from = (unsigned)rand_r(&seed) % slot_count;
        unsigned count = 1 + (unsigned)rand_r(&seed) % (slot_count - from);
        vmml_uct_mem_h memh = lane_reg(address_of(from), count * CHUNK);
        unsigned packs = 1 + (unsigned)rand_r(&seed) % 3;

        while (packs-- > 0)
            if (lane_pack(memh, address_of(from), count * CHUNK, bytes) &&
                lane_reason(bytes) == VMML_REASON_NONE) {
                CHECK(memcmp(bytes, key, sizeof(key)) == 0);
                atomic_fetch_add(&packed, 1);
            }
        usleep((unsigned)rand_r(&seed) % 3000);
        lane_dereg(memh);
        while (is_quiet() && !atomic_load(&done))
            usleep(100000);
    }
    return NULL;
}

/* The bytes of a copy that was posted when `unmaps` unmaps had returned. */
static void check_bytes(unsigned slot, unsigned unmaps, size_t from,
                        size_t length)
{
    const uint8_t *bytes = sim_host_view(im_buffer(), length);
    unsigned maps = atomic_load(&slots[slot].maps);
    unsigned seed;

    CHECK(bytes != NULL);
    for (seed = unmaps + 1; seed <= maps; seed++)
        if (lane_differs(bytes, address_of(slot) + from, length, seed) ==
            length)
            return;
    fprintf(stderr, "slot %u: not the bytes of mapping %u to %u\n", slot,
            unmaps + 1, maps);
    for (seed = 1; seed <= unmaps; seed++)
        if (lane_differs(bytes, address_of(slot) + from, length, seed) ==
            length)
            fprintf(stderr, "they are those of mapping %u\n", seed);
    CHECK(!"stale bytes");
}

static void copy_once(CUdeviceptr mirror, unsigned *seed)
{
    unsigned slot = (unsigned)rand_r(seed) % slot_count;
    size_t from = (size_t)rand_r(seed) % (CHUNK - 65536);
    size_t length = 1 + (size_t)rand_r(seed) % 65536;
    unsigned unmaps = atomic_load(&slots[slot].unmaps);
    CUresult result =
        im_post(im_buffer(), mirror + slot * CHUNK + from, length);

    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    if (result != CUDA_SUCCESS) {
        atomic_fetch_add(&refused, 1);
        return;
    }
    check_bytes(slot, unmaps, from, length);
    atomic_fetch_add(&copied, 1);
}

static void *unpack_and_copy(void *arg)
{
    unsigned seed = 300 + (unsigned)(uintptr_t)arg;
    struct vmml_handle handle = lane_handle(key);
    CUdeviceptr mirror;

    lane_cuda(1);
    mirror = im_open(key);
    CHECK(mirror != base);
    while (!atomic_load(&done)) {
        if (rand_r(&seed) % 4 == 0)
            (void)vmml_mirror_prepare(&handle, 1);
        copy_once(mirror, &seed);
    }
    CHECK(im_close(mirror));
    return NULL;
}

/* Now and then a mirror keeps what it maps. */
static void *hand_out(void *arg)
{
    unsigned number = (unsigned)(uintptr_t)arg;
    unsigned seed = 400 + number;
    CUdeviceptr mirror;

    lane_cuda(1);
    mirror = im_open(key);
    while (!atomic_load(&done)) {
        if (vmml_mirror_hand_out(mirror, 7 + number)) {
            usleep((unsigned)rand_r(&seed) % 5000);
            vmml_mirror_take_back(7 + number);
        }
        usleep((unsigned)rand_r(&seed) % 50000);
    }
    CHECK(im_close(mirror));
    return NULL;
}

static bool nothing_is_published(void *arg)
{
    struct vmml_chunk_view chunk;

    (void)arg;
    return lane_published(base, WINDOW, &chunk, 1) == 0;
}

static uint64_t used_before;

static bool memory_is_back(void *arg)
{
    (void)arg;
    return sim_memory_used(0) == used_before;
}

struct crew {
    pthread_t threads[THREADS_MAX];
    unsigned count;
};

static void start(struct crew *crew, void *(*run)(void *), unsigned count)
{
    for (crew->count = 0; crew->count < count; crew->count++)
        CHECK_EQUAL(pthread_create(&crew->threads[crew->count], NULL, run,
                                   (void *)(uintptr_t)crew->count),
                    0);
}

static void join(struct crew *crew)
{
    while (crew->count-- > 0)
        CHECK_EQUAL(pthread_join(crew->threads[crew->count], NULL), 0);
}

static void choose_load(void)
{
    const char *text = getenv("VMML_TEST_SECONDS");
    unsigned seconds = text == NULL ? 0 : (unsigned)atoi(text);

    if (seconds > 0) {
        load = &heavy;
        end_ms = lane_ms() + 1000ul * seconds;
        alarm(seconds + LANE_TEST_SECONDS);
    }
    slot_count = SLOTS_EACH * load->mappers;
}

static void prepare_window(void)
{
    vmml_uct_mem_h memh;
    uint64_t scratch = lane_reserve(CHUNK);

    base = lane_reserve(WINDOW);
    map_slot(0, scratch);
    memh = lane_reg(base, CHUNK);
    CHECK(lane_pack(memh, base, CHUNK, key));
    lane_dereg(memh);
}

static void all_at_once(void)
{
    struct crew mappers, registrars, copiers, holders;
    unsigned i, fds;

    choose_load();
    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    lane_own_domain();
    lane_cuda(0);
    lane_ledger();
    used_before = sim_memory_used(0);
    fds = lane_fd_count();
    prepare_window();
    start(&mappers, map_and_unmap, load->mappers);
    start(&registrars, register_and_pack, load->registrars);
    start(&copiers, unpack_and_copy, load->copiers);
    start(&holders, hand_out, load->holders);
    join(&mappers);
    atomic_store(&done, true);
    join(&registrars);
    join(&copiers);
    join(&holders);
    fprintf(stderr,
            "%u copies, %u refused, %u packs, %u mappings, %u of them unseen\n",
            atomic_load(&copied), atomic_load(&refused), atomic_load(&packed),
            atomic_load(&mapped), atomic_load(&unseen));
    CHECK(atomic_load(&copied) > 0);
    CHECK(atomic_load(&refused) > 0);
    CHECK(atomic_load(&packed) > 0);

    CHECK(atomic_load(&unseen) > 0);

    for (i = 0; i < slot_count; i++)
        if (slots[i].mapped)
            unmap_slot(i);
    CHECK(lane_wait(nothing_is_published, NULL));
    CHECK(lane_wait(memory_is_back, NULL));
    /* The watcher's, two of the own process as a peer, the copies' buffers. */
    CHECK(lane_fd_count() <= fds + 3 + load->copiers);
    CHECK_EQUAL(vmml_exporter.registration_count, 0);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(all_at_once),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
