/* SPDX-License-Identifier: MIT */
/*
 * Everything at once on stream-ordered pools: an exporter's threads allocate,
 * register, pack, deregister, free in every way and destroy pools with memory
 * in use, while an importer's threads unpack and copy.
 *
 * What is checked: a copy that was posted gives the bytes of the allocation
 * that its key was made of, and none is posted by a key whose free had
 * returned. A free that no hook sees gives no other's bytes either.
 *
 * VMML_TEST_SECONDS: for so long, with more threads.
 */
#include "exporter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hooks.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"

#define FD_TYPE     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define SLOTS_EACH  8 /* of a thread of the exporter */
#define THREADS_MAX 4 /* of a kind */
#define SLOTS       (SLOTS_EACH * THREADS_MAX)
#define LENGTH_MAX  (3 * CHUNK)

/* What both processes see. */
struct slot {
    atomic_uint version; /* odd while its thread writes */
    atomic_uint freed;   /* version whose free has returned */
    unsigned seed;       /* no other allocation's */
    uint64_t base;
    uint64_t length;
    uint8_t key[KEY_SIZE];
};

static struct shared {
    atomic_bool done;
    struct slot slots[SLOTS];
    atomic_uint seeds, served, unseen, pools; /* the exporter's */
    atomic_uint copied, refused;              /* the importer's */
} * shared;

static unsigned threads = 2;
static uint64_t run_ms = 2000;

/* ---- the exporter ---- */

struct owned {
    CUdeviceptr ptr;
    vmml_uct_mem_h memh;
    bool registered;
};

struct worker {
    CUcontext context;
    unsigned number;
    unsigned random;
    CUmemoryPool pool;
    struct owned owned[SLOTS_EACH];
};

static unsigned roll(unsigned *random, unsigned sides)
{
    *random = *random * 1103515245 + 12345;
    return (*random >> 16) % sides;
}

static CUmemoryPool make_pool(void)
{
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = FD_TYPE,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemoryPool pool;

    CHECK_CU(cuMemPoolCreate(&pool, &props));
    atomic_fetch_add(&shared->pools, 1);
    return pool;
}

static void allocate(struct worker *worker, struct owned *owned,
                     struct slot *slot)
{
    uint64_t length = 64 + 8 * roll(&worker->random, LENGTH_MAX / 8 - 8);
    uint8_t key[KEY_SIZE];

    CHECK_CU(cuMemAllocFromPoolAsync(&owned->ptr, length, worker->pool, NULL));
    atomic_fetch_add(&slot->version, 1);
    slot->seed = atomic_fetch_add(&shared->seeds, 1) + 1;
    slot->base = owned->ptr;
    slot->length = length;
    lane_fill(sim_host_view(owned->ptr, length), owned->ptr, length,
              slot->seed);
    owned->memh = lane_reg(owned->ptr, length);
    owned->registered = true;
    CHECK(lane_pack(owned->memh, owned->ptr, length, key));
    atomic_fetch_add(&shared->served, lane_reason(key) == VMML_REASON_NONE);
    memcpy(slot->key, key, sizeof(key));
    atomic_fetch_add(&slot->version, 1);
}

static void end_registration(struct owned *owned)
{
    if (owned->registered)
        lane_dereg(owned->memh);
    owned->registered = false;
}

static void give_up(struct worker *worker, struct owned *owned,
                    struct slot *slot)
{
    unsigned way = roll(&worker->random, 8);

    if (way % 2 == 0)
        end_registration(owned);
    if (way == 7) {
        CHECK_CU(cuMemFree_v2(owned->ptr));
        atomic_fetch_add(&shared->unseen, 1);
    } else if (way < 3) {
        CHECK_CU(vmml_cuMemFree_v2(NULL, owned->ptr));
    } else {
        CHECK_CU(vmml_cuMemFreeAsync(NULL, owned->ptr, NULL));
    }
    if (way != 7)
        atomic_store(&slot->freed, atomic_load(&slot->version));
    end_registration(owned);
    owned->ptr = 0;
}

static void pack_again(struct owned *owned, const struct slot *slot)
{
    uint8_t key[KEY_SIZE];

    CHECK(lane_pack(owned->memh, owned->ptr, slot->length, key));
    if (lane_reason(key) == VMML_REASON_NONE &&
        lane_reason(slot->key) == VMML_REASON_NONE)
        CHECK(memcmp(key, slot->key, sizeof(key)) == 0);
}

static void *work(void *arg)
{
    struct worker *worker = arg;

    CHECK_CU(cuCtxSetCurrent(worker->context));
    worker->pool = make_pool();
    while (!atomic_load(&shared->done)) {
        unsigned i = roll(&worker->random, SLOTS_EACH);
        struct owned *owned = &worker->owned[i];
        struct slot *slot = &shared->slots[worker->number * SLOTS_EACH + i];

        if (roll(&worker->random, 50) == 0) {
            CHECK_CU(roll(&worker->random, 2)
                         ? vmml_cuMemPoolDestroy(NULL, worker->pool)
                         : cuMemPoolDestroy(worker->pool));
            worker->pool = make_pool();
        }
        if (owned->ptr == 0)
            allocate(worker, owned, slot);
        else if (owned->registered && roll(&worker->random, 3) == 0)
            pack_again(owned, slot);
        else
            give_up(worker, owned, slot);
    }
    return NULL;
}

static uint64_t ex_work(uint64_t count)
{
    static struct worker workers[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    uint64_t i;

    (void)lane_md(); /* found by one thread, for all */
    for (i = 0; i < count; i++) {
        workers[i].number = (unsigned)i;
        workers[i].random = (unsigned)i + 1;
        CHECK_CU(cuCtxGetCurrent(&workers[i].context));
        CHECK_EQUAL(pthread_create(&ids[i], NULL, work, &workers[i]), 0);
    }
    for (i = 0; i < count; i++)
        CHECK_EQUAL(pthread_join(ids[i], NULL), 0);
    return 0;
}

/* ---- the importer ---- */

struct reader {
    CUcontext context;
    unsigned random;
};

/* The slot as it was between two writes; its version, or 0. */
static unsigned snapshot(const struct slot *slot, struct slot *copy)
{
    unsigned version = atomic_load(&slot->version);

    if (version == 0 || version % 2 != 0)
        return 0;
    copy->seed = slot->seed;
    copy->base = slot->base;
    copy->length = slot->length;
    memcpy(copy->key, slot->key, sizeof(copy->key));
    return atomic_load(&slot->version) == version ? version : 0;
}

static void read_slot(const struct slot *slot, const struct slot *copy,
                      unsigned version, CUdeviceptr mirror, CUdeviceptr buffer,
                      CUstream stream)
{
    bool freed = atomic_load(&slot->freed) == version;
    CUresult result = vmml_cuMemcpyDtoDAsync_v2(lane_caller(), buffer, mirror,
                                                copy->length, stream);

    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    if (result != CUDA_SUCCESS) {
        atomic_fetch_add(&shared->refused, 1);
        return;
    }
    CHECK(!freed);
    CHECK_CU(cuStreamSynchronize(stream));
    CHECK_EQUAL(lane_differs(sim_host_view(buffer, copy->length), copy->base,
                             copy->length, copy->seed),
                copy->length);
    atomic_fetch_add(&shared->copied, 1);
}

static void *read_all(void *arg)
{
    struct reader *reader = arg;
    CUdeviceptr buffer, mirror;
    CUstream stream;

    CHECK_CU(cuCtxSetCurrent(reader->context));
    CHECK_CU(cuMemAlloc_v2(&buffer, LENGTH_MAX));
    CHECK_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!atomic_load(&shared->done)) {
        const struct slot *slot =
            &shared->slots[roll(&reader->random, threads * SLOTS_EACH)];
        struct slot copy;
        unsigned version = snapshot(slot, &copy), i;

        if (version == 0 || !im_prepare(copy.key))
            continue;
        mirror = im_open(copy.key);
        for (i = roll(&reader->random, 6); i > 0; i--)
            read_slot(slot, &copy, version, mirror, buffer, stream);
        CHECK(im_close(mirror));
    }
    return NULL;
}

static void everything_at_once(void)
{
    struct reader readers[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    struct exporter ex;
    unsigned i;

    setenv("VMMLANE_LOG", "error", 1);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    ex = ex_start();
    ex_begin(&ex, ex_work, threads);
    lane_cuda(0);
    (void)lane_caller();
    for (i = 0; i < threads; i++) {
        readers[i].random = 100 + i;
        CHECK_CU(cuCtxGetCurrent(&readers[i].context));
        CHECK_EQUAL(pthread_create(&ids[i], NULL, read_all, &readers[i]), 0);
    }
    usleep((useconds_t)run_ms * 1000);
    atomic_store(&shared->done, true);
    for (i = 0; i < threads; i++)
        CHECK_EQUAL(pthread_join(ids[i], NULL), 0);
    fprintf(stderr,
            "%u copies right, %u refused, %u keys, %u freed unseen, %u pools\n",
            shared->copied, shared->refused, shared->served, shared->unseen,
            shared->pools);
    CHECK(shared->copied > 0 && shared->served > 0);
    ex_kill(&ex);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(everything_at_once),
    };
    const char *seconds = getenv("VMML_TEST_SECONDS");

    if (seconds != NULL) {
        threads = THREADS_MAX;
        run_ms = strtoul(seconds, NULL, 10) * 1000;
    }
    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
