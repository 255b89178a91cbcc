/* SPDX-License-Identifier: MIT */
/*
 * VMMLANE_IPC: legacy IPC of VMM memory for callers that are not UCX.
 */
#include "exporter.h"

#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"

#define WINDOW (64 * CHUNK)

/* A caller that is no part of UCX: code that is in no module. */
#define OTHER NULL

static CUresult get(CUdeviceptr ptr, CUipcMemHandle *handle)
{
    return vmml_cuIpcGetMemHandle(OTHER, handle, ptr);
}

static CUresult open_here(const CUipcMemHandle *handle, CUdeviceptr *ptr)
{
    return vmml_cuIpcOpenMemHandle_v2(OTHER, ptr, *handle,
                                      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult close_here(CUdeviceptr ptr)
{
    return vmml_cuIpcCloseMemHandle(OTHER, ptr);
}

static void opt_in(void)
{
    setenv("VMMLANE_IPC", "all", 1);
}

/* Of the exporter: the handle that it made last, byte by byte. */
static CUipcMemHandle ex_made;

static uint64_t ex_get(uint64_t ptr)
{
    return get(ptr, &ex_made);
}

static uint64_t ex_word(uint64_t index)
{
    uint64_t word;

    memcpy(&word, ex_made.reserved + 8 * index, sizeof(word));
    return word;
}

static CUresult handle_of(struct exporter *ex, uint64_t ptr,
                          CUipcMemHandle *handle)
{
    CUresult result = (CUresult)ex_run(ex, ex_get, ptr);
    uint64_t word, i;

    for (i = 0; i < sizeof(*handle) / 8; i++) {
        word = ex_run(ex, ex_word, i);
        memcpy(handle->reserved + 8 * i, &word, sizeof(word));
    }
    return result;
}

struct pair {
    struct exporter ex;
    uint64_t base;
    CUipcMemHandle handle;
    CUdeviceptr ptr;
};

/* An exporter with `count` chunks of seed 1, and its handle of the whole. */
static void start(struct pair *pair, unsigned count)
{
    pair->ex = ex_start();
    pair->base = ex_reserve(&pair->ex, WINDOW);
    ex_map(&pair->ex, pair->base, CHUNK, count, 1);
    CHECK_CU(handle_of(&pair->ex, pair->base, &pair->handle));
    lane_cuda(0);
    CHECK_CU(open_here(&pair->handle, &pair->ptr));
}

/* As a kernel reads it: no copy is posted that could be checked. */
static bool holds(CUdeviceptr here, uint64_t there, size_t length,
                  unsigned seed)
{
    const void *bytes = sim_host_view(here, length);

    CHECK(bytes != NULL);
    return lane_differs(bytes, there, length, seed) == length;
}

/* ---- by default ---------------------------------------------------------- */

static void off_by_default(void)
{
    uint8_t key[KEY_SIZE];
    CUipcMemHandle handle, before;
    vmml_uct_mem_h memh;
    CUdeviceptr ptr;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(WINDOW);
    lane_map_run(base, CHUNK, 4, 1);
    memset(&handle, 0x5a, sizeof(handle));
    before = handle;
    CHECK_EQUAL(get(base, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(get(base + CHUNK, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK(memcmp(&handle, &before, sizeof(handle)) == 0);
    CHECK_EQUAL(sim_call_count("cuMemExportToShareableHandle"), 0);
    /* Bytes of UCX's keys are none that others can open. */
    memh = lane_reg(base, 4 * CHUNK);
    CHECK(lane_pack(memh, base, 4 * CHUNK, key));
    memcpy(handle.reserved + 4, key + 8, 56);
    CHECK(open_here(&handle, &ptr) != CUDA_SUCCESS);
    CHECK(close_here(base) != CUDA_SUCCESS);
}

/* The bytes are good for a UCX of another process, and for nobody else. */
static void keys_stay_ucx_own(void)
{
    struct exporter ex;
    uint8_t key[KEY_SIZE];
    CUipcMemHandle handle = {{0}};
    CUdeviceptr ptr;
    uint64_t base;

    opt_in();
    ex = ex_start();
    base = ex_reserve(&ex, WINDOW);
    ex_map(&ex, base, CHUNK, 4, 1);
    ex_key(&ex, base, 4 * CHUNK, key);
    lane_cuda(0);
    memcpy(handle.reserved, key + 4, 64);
    CHECK_EQUAL(open_here(&handle, &ptr), CUDA_ERROR_INVALID_VALUE);
    memset(&handle, 0, sizeof(handle));
    CHECK_CU(handle_of(&ex, base, &handle));
    /* And UCX takes none that others were given. */
    CHECK_EQUAL(vmml_cuIpcOpenMemHandle_v2(lane_caller(), &ptr, handle, 0),
                CUDA_ERROR_INVALID_VALUE);
    ex_stop(&ex);
}

static void other_memory_is_the_drivers(void)
{
    CUipcMemHandle handle, own;
    CUdeviceptr malloced, ptr;
    uint64_t base;

    opt_in();
    lane_cuda(0);
    CHECK_CU(cuMemAlloc_v2(&malloced, 4 * MIB));
    CHECK_CU(get(malloced, &handle));
    CHECK_CU(cuIpcGetMemHandle(&own, malloced));
    CHECK(memcmp(&handle, &own, sizeof(handle)) == 0);
    base = lane_reserve(WINDOW);
    lane_map_run(base, CHUNK, 4, 1);
    /* Whose offset would be to what? Only a base has a handle. */
    CHECK_EQUAL(get(base + 64, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(get(base + CHUNK / 2, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(get(base + 7 * CHUNK, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(get(12345, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(cuMemAllocAsync(&ptr, 4 * MIB, NULL));
    CHECK_EQUAL(get(ptr, &handle), CUDA_ERROR_INVALID_VALUE);
    /* As with cudaMalloc memory, a process does not open its own. */
    CHECK_CU(get(base, &handle));
    CHECK(open_here(&handle, &ptr) != CUDA_SUCCESS);
    /* What cannot be shared keeps the driver's failure. */
    base = lane_reserve(WINDOW);
    lane_map_as(base, CHUNK, 1,
                &(struct lane_memory){.device = 0, .handle_types = 0});
    CHECK_EQUAL(get(base, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(get(base, &handle), CUDA_ERROR_INVALID_VALUE);
}

/* ---- two processes ------------------------------------------------------- */

static void bytes_of_a_window(void)
{
    struct pair pair;
    CUipcMemHandle part;
    CUdeviceptr ptr, again;

    opt_in();
    start(&pair, 8);
    CHECK(holds(pair.ptr, pair.base, CHUNK, 1));
    CHECK(holds(pair.ptr + 7 * CHUNK, pair.base + 7 * CHUNK, CHUNK, 1));
    lane_fill(sim_host_view(pair.ptr + CHUNK, CHUNK), pair.base + CHUNK, CHUNK,
              2);
    CHECK(ex_holds(&pair.ex, pair.base + CHUNK, CHUNK, 2));
    /* The handle of a chunk opens at that chunk. */
    CHECK_CU(handle_of(&pair.ex, pair.base + 3 * CHUNK, &part));
    CHECK(memcmp(&part, &pair.handle, sizeof(part)) != 0);
    CHECK_CU(open_here(&part, &ptr));
    CHECK_EQUAL(ptr, pair.ptr + 3 * CHUNK);
    CHECK(holds(ptr, pair.base + 3 * CHUNK, CHUNK, 1));
    /* Opened twice, closed twice. */
    CHECK_CU(open_here(&part, &again));
    CHECK_EQUAL(again, ptr);
    CHECK_CU(close_here(ptr));
    CHECK_CU(close_here(ptr));
    CHECK(close_here(ptr) != CUDA_SUCCESS);
    CHECK(holds(pair.ptr, pair.base, CHUNK, 1));
    CHECK_CU(close_here(pair.ptr));
    ex_stop(&pair.ex);
}

/* vLLM remembers what it opened by the handle's bytes. */
static void growth_changes_the_bytes(void)
{
    struct pair pair;
    CUipcMemHandle same, grown;
    CUdeviceptr ptr;

    opt_in();
    start(&pair, 4);
    CHECK_CU(handle_of(&pair.ex, pair.base, &same));
    CHECK(memcmp(&same, &pair.handle, sizeof(same)) == 0);
    CHECK_EQUAL(ex_calls(&pair.ex, "cuMemExportToShareableHandle"), 4);
    ex_map(&pair.ex, pair.base + 4 * CHUNK, CHUNK, 4, 1);
    CHECK_CU(handle_of(&pair.ex, pair.base, &grown));
    CHECK(memcmp(&same, &grown, sizeof(same)) != 0);
    CHECK_CU(open_here(&grown, &ptr));
    CHECK_EQUAL(ptr, pair.ptr);
    CHECK(holds(ptr + 7 * CHUNK, pair.base + 7 * CHUNK, CHUNK, 1));
    ex_stop(&pair.ex);
}

/* Other memory at the place has other bytes, however it came there: who
 * remembers what it opened must not take the old for it. */
static void other_memory_has_other_bytes(void)
{
    struct pair pair;
    CUipcMemHandle fresh;
    CUdeviceptr ptr;
    unsigned round;

    opt_in();
    start(&pair, 4);
    CHECK_CU(close_here(pair.ptr));
    for (round = 2; round < 6; round++) {
        if (round % 2 == 0) {
            CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
            ex_free_address(&pair.ex, pair.base, WINDOW);
            ex_reserve_at(&pair.ex, pair.base, WINDOW);
            ex_map(&pair.ex, pair.base, CHUNK, 4, round);
        } else {
            CHECK_CU(ex_unmap_unseen(&pair.ex, pair.base, 4 * CHUNK));
            ex_map_unseen(&pair.ex, pair.base, CHUNK, 4, round);
        }
        CHECK_CU(handle_of(&pair.ex, pair.base, &fresh));
        CHECK(memcmp(&fresh, &pair.handle, sizeof(fresh)) != 0);
        CHECK_CU(open_here(&fresh, &ptr));
        CHECK(holds(ptr, pair.base, CHUNK, round));
        CHECK(holds(ptr + 3 * CHUNK, pair.base + 3 * CHUNK, CHUNK, round));
        CHECK_CU(close_here(ptr));
        pair.handle = fresh;
    }
    ex_stop(&pair.ex);
}

/* The reservation's first part may have nothing mapped. */
static void hole_at_the_base(void)
{
    struct pair pair;

    opt_in();
    pair.ex = ex_start();
    pair.base = ex_reserve(&pair.ex, WINDOW);
    ex_map(&pair.ex, pair.base + 4 * CHUNK, CHUNK, 2, 1);
    CHECK_CU(handle_of(&pair.ex, pair.base, &pair.handle));
    lane_cuda(0);
    CHECK_CU(open_here(&pair.handle, &pair.ptr));
    CHECK(holds(pair.ptr + 5 * CHUNK, pair.base + 5 * CHUNK, CHUNK, 1));
    ex_stop(&pair.ex);
}

static bool is_unmapped(void *arg)
{
    return sim_host_view(*(CUdeviceptr *)arg, CHUNK) == NULL;
}

/* A kernel may be reading it: what is open stays mapped. Nothing opened
 * afterwards is the old memory. */
static void unmapped_while_it_is_open(void)
{
    struct pair pair;
    CUipcMemHandle fresh;
    CUdeviceptr ptr;

    opt_in();
    start(&pair, 4);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    ex_map(&pair.ex, pair.base, CHUNK, 4, 2);
    usleep(500000); /* the watcher's turn */
    CHECK(holds(pair.ptr, pair.base, CHUNK, 1));
    CHECK_CU(handle_of(&pair.ex, pair.base, &fresh));
    CHECK_EQUAL(open_here(&fresh, &ptr), CUDA_ERROR_MAP_FAILED);
    CHECK_CU(close_here(pair.ptr));
    CHECK_CU(open_here(&fresh, &ptr));
    CHECK(holds(ptr, pair.base, CHUNK, 2));
    CHECK(holds(ptr + 3 * CHUNK, pair.base + 3 * CHUNK, CHUNK, 2));
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    CHECK_CU(close_here(ptr));
    CHECK(lane_wait(is_unmapped, &ptr));
    ex_stop(&pair.ex);
}

static void ends_of_the_exporter(void)
{
    struct pair pair;
    CUdeviceptr ptr;

    opt_in();
    start(&pair, 4);
    ex_kill(&pair.ex);
    usleep(500000);
    CHECK(holds(pair.ptr, pair.base, CHUNK, 1));
    CHECK_EQUAL(open_here(&pair.handle, &ptr), CUDA_ERROR_MAP_FAILED);
    CHECK_CU(close_here(pair.ptr));
    CHECK(lane_wait(is_unmapped, &pair.ptr));
}

/* A registration of UCX that ends leaves what others hold. */
static void ucx_beside_it(void)
{
    struct pair pair;
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror, ptr;
    uint64_t memh;

    opt_in();
    start(&pair, 4);
    memh = ex_reg(&pair.ex, pair.base, 4 * CHUNK);
    CHECK(ex_pack(&pair.ex, memh, pair.base, 4 * CHUNK, key));
    mirror = im_attach(key);
    CHECK_EQUAL(mirror, pair.ptr);
    CHECK_EQUAL(ex_calls(&pair.ex, "cuMemExportToShareableHandle"), 4);
    ex_dereg(&pair.ex, memh);
    sleep(VMML_IDLE_SECONDS + 1);
    CHECK(im_close(mirror));
    CHECK(holds(pair.ptr, pair.base, CHUNK, 1));
    CHECK_CU(open_here(&pair.handle, &ptr));
    ex_stop(&pair.ex);
}

static void wrong_bytes(void)
{
    struct pair pair;
    CUipcMemHandle bad;
    CUdeviceptr ptr;
    unsigned i;

    opt_in();
    start(&pair, 4);
    for (i = 0; i < sizeof(bad); i++) {
        bad = pair.handle;
        bad.reserved[i] ^= 0x40;
        if (open_here(&bad, &ptr) != CUDA_SUCCESS)
            continue;
        /* The place in the window, and the count of changes. */
        CHECK(i < 4 || i >= 60);
        CHECK(ptr - pair.ptr < WINDOW);
        CHECK_CU(close_here(ptr));
    }
    ex_stop(&pair.ex);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(off_by_default),
        LANE_PAIR(keys_stay_ucx_own),
        LANE_TEST(other_memory_is_the_drivers),
        LANE_PAIR(bytes_of_a_window),
        LANE_PAIR(growth_changes_the_bytes),
        LANE_PAIR(other_memory_has_other_bytes),
        LANE_PAIR(hole_at_the_base),
        LANE_PAIR(unmapped_while_it_is_open),
        LANE_PAIR(ends_of_the_exporter),
        LANE_PAIR(ucx_beside_it),
        LANE_PAIR(wrong_bytes),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
