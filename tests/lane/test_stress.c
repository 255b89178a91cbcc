/* SPDX-License-Identifier: MIT */
/*
 * Everything at once: threads that map, unmap, register, pack, unpack, copy
 * and hand addresses out, on one window. The process is its own importer on a
 * second device, so that one sanitizer sees both sides.
 *
 * What is checked: a copy that was posted gives the bytes of one mapping, and
 * never of one whose unmap had returned before the copy was posted.
 */
#include "exporter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "lane/state.h"
#include "mirror/mirror.h"

#define MAPPERS    2
#define REGISTRARS 2
#define COPIERS    2
#define SLOTS      (8 * MAPPERS)
#define ROUNDS     250
#define WINDOW     (2 * SLOTS * CHUNK)

/* A chunk of the window. Its n-th mapping holds the pattern of seed n. */
struct slot {
    atomic_uint maps;   /* that were begun */
    atomic_uint unmaps; /* that have returned */
    bool mapped;        /* its mapper's */
};

static struct slot slots[SLOTS];
static uint64_t base;
static uint8_t key[KEY_SIZE];
static atomic_bool done;
static atomic_uint copied, refused, packed;

static uint64_t address_of(unsigned slot)
{
    return base + slot * CHUNK;
}

/* A chunk that is filled before anyone can see it. */
static void map_slot(unsigned slot, uint64_t scratch)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    unsigned seed = atomic_fetch_add(&slots[slot].maps, 1) + 1;
    CUmemGenericAllocationHandle handle;

    CHECK_CU(cuMemCreate(&handle, CHUNK, &prop, 0));
    CHECK_CU(cuMemMap(scratch, CHUNK, 0, handle, 0));
    lane_fill(sim_host_view(scratch, CHUNK), address_of(slot), CHUNK, seed);
    CHECK_CU(cuMemUnmap(scratch, CHUNK));
    CHECK_CU(vmml_cuMemMap(NULL, address_of(slot), CHUNK, 0, handle, 0));
    CHECK_CU(vmml_cuMemSetAccess(NULL, address_of(slot), CHUNK, &desc, 1));
    CHECK_CU(cuMemRelease(handle));
    slots[slot].mapped = true;
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
    for (round = 0; round < ROUNDS; round++) {
        unsigned slot = mapper * (SLOTS / MAPPERS) +
                        (unsigned)rand_r(&seed) % (SLOTS / MAPPERS);

        if (slots[slot].mapped)
            unmap_slot(slot);
        else
            map_slot(slot, scratch);
        /* Half of a mapping: refused, and served on. */
        if (round % 16 == 0)
            CHECK(lane_unmap(address_of(slot), CHUNK / 2) != CUDA_SUCCESS);
        usleep((unsigned)rand_r(&seed) % 4000);
    }
    return NULL;
}

static void *register_and_pack(void *arg)
{
    unsigned seed = 200 + (unsigned)(uintptr_t)arg;
    uint8_t bytes[KEY_SIZE];

    while (!atomic_load(&done)) {
        unsigned from = (unsigned)rand_r(&seed) % SLOTS;
        unsigned count = 1 + (unsigned)rand_r(&seed) % (SLOTS - from);
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
    unsigned slot = (unsigned)rand_r(seed) % SLOTS;
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
    unsigned seed = 400;
    CUdeviceptr mirror;

    (void)arg;
    lane_cuda(1);
    mirror = im_open(key);
    while (!atomic_load(&done)) {
        if (vmml_mirror_hand_out(mirror, 7)) {
            usleep((unsigned)rand_r(&seed) % 5000);
            vmml_mirror_take_back(7);
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

static void start(pthread_t *thread, void *(*run)(void *), unsigned number)
{
    CHECK_EQUAL(pthread_create(thread, NULL, run, (void *)(uintptr_t)number),
                0);
}

static void join(pthread_t *threads, unsigned count)
{
    while (count-- > 0)
        CHECK_EQUAL(pthread_join(threads[count], NULL), 0);
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
    pthread_t mappers[MAPPERS], registrars[REGISTRARS], copiers[COPIERS];
    pthread_t holder;
    unsigned i, fds;

    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    CHECK(setenv("VMMLANE_SIM_DOMAIN", "lane-stress", 1) == 0);
    lane_cuda(0);
    lane_ledger();
    used_before = sim_memory_used(0);
    fds = lane_fd_count();
    prepare_window();
    for (i = 0; i < MAPPERS; i++)
        start(&mappers[i], map_and_unmap, i);
    for (i = 0; i < REGISTRARS; i++)
        start(&registrars[i], register_and_pack, i);
    for (i = 0; i < COPIERS; i++)
        start(&copiers[i], unpack_and_copy, i);
    start(&holder, hand_out, 0);
    join(mappers, MAPPERS);
    atomic_store(&done, true);
    join(registrars, REGISTRARS);
    join(copiers, COPIERS);
    join(&holder, 1);
    fprintf(stderr, "%u copies, %u refused, %u packs\n", atomic_load(&copied),
            atomic_load(&refused), atomic_load(&packed));
    CHECK(atomic_load(&copied) > 0);
    CHECK(atomic_load(&refused) > 0);
    CHECK(atomic_load(&packed) > 0);

    for (i = 0; i < SLOTS; i++)
        if (slots[i].mapped)
            unmap_slot(i);
    CHECK(lane_wait(nothing_is_published, NULL));
    CHECK(lane_wait(memory_is_back, NULL));
    /* The watcher's, two of the own process as a peer, the copies' buffers. */
    CHECK(lane_fd_count() <= fds + 3 + COPIERS);
    CHECK_EQUAL(vmml_exporter.registration_count, 0);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(all_at_once),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
