/* SPDX-License-Identifier: MIT */
/*
 * While another thread captures a CUDA graph in global mode, a call that the
 * driver takes for unsafe invalidates its capture, unless the calling thread's
 * mode is RELAXED (driver documentation, cuThreadExchangeStreamCaptureMode).
 * So each such call that the shim makes by itself is made in that mode, on
 * whichever thread, and no thread's own mode is changed.
 */
#include "tests/lane/exporter.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "mirror/index.h"

#define WINDOW (128 * CHUNK)

/* --- what is watched ------------------------------------------------------ */

#define UNSAFE(F)                                                              \
    F(cuMemRetainAllocationHandle)                                             \
    F(cuMemRelease)                                                            \
    F(cuMemExportToShareableHandle)                                            \
    F(cuMemImportFromShareableHandle)                                          \
    F(cuMemAddressReserve)                                                     \
    F(cuMemAddressFree)                                                        \
    F(cuMemMap)                                                                \
    F(cuMemUnmap)                                                              \
    F(cuMemSetAccess)                                                          \
    F(cuStreamSynchronize)                                                     \
    F(cuEventSynchronize)

enum {
#define NUMBER(name) CALL_##name,
    UNSAFE(NUMBER) CALLS
};

static const char *const names[] = {
#define NAME(name) #name,
    UNSAFE(NAME)};

static atomic_int relaxed_calls[CALLS];
static struct vmml_real driver;

static CUstreamCaptureMode mode_now(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED, own;

    CHECK_CU(driver.cuThreadExchangeStreamCaptureMode(&mode));
    own = mode;
    CHECK_CU(driver.cuThreadExchangeStreamCaptureMode(&mode));
    return own;
}

static void note(int call)
{
    if (mode_now() != CU_STREAM_CAPTURE_MODE_RELAXED)
        fprintf(stderr, "%s is called in mode %d\n", names[call],
                (int)mode_now());
    CHECK_EQUAL(mode_now(), CU_STREAM_CAPTURE_MODE_RELAXED);
    atomic_fetch_add(&relaxed_calls[call], 1);
}

#define WATCHED(name, params, args)                                            \
    static CUresult CUDAAPI watched_##name params                              \
    {                                                                          \
        note(CALL_##name);                                                     \
        return driver.name args;                                               \
    }

WATCHED(cuMemRetainAllocationHandle,
        (CUmemGenericAllocationHandle * handle, void *address),
        (handle, address))
WATCHED(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
WATCHED(cuMemExportToShareableHandle,
        (void *out, CUmemGenericAllocationHandle handle,
         CUmemAllocationHandleType type, unsigned long long flags),
        (out, handle, type, flags))
WATCHED(cuMemImportFromShareableHandle,
        (CUmemGenericAllocationHandle * handle, void *os_handle,
         CUmemAllocationHandleType type),
        (handle, os_handle, type))
WATCHED(cuMemAddressReserve,
        (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr,
         unsigned long long flags),
        (ptr, size, alignment, addr, flags))
WATCHED(cuMemAddressFree, (CUdeviceptr ptr, size_t size), (ptr, size))
WATCHED(cuMemMap,
        (CUdeviceptr ptr, size_t size, size_t offset,
         CUmemGenericAllocationHandle handle, unsigned long long flags),
        (ptr, size, offset, handle, flags))
WATCHED(cuMemUnmap, (CUdeviceptr ptr, size_t size), (ptr, size))
WATCHED(cuMemSetAccess,
        (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
         size_t count),
        (ptr, size, desc, count))
WATCHED(cuStreamSynchronize, (CUstream stream), (stream))
WATCHED(cuEventSynchronize, (CUevent event), (event))

/* From now on, for all threads. The harness calls the driver past the shim. */
static void watch(void)
{
    struct vmml_real *real = lane_real();

    driver = *real;
#define REPLACE(name) real->name = watched_##name;
    UNSAFE(REPLACE)
}

static int calls_of(int call)
{
    return atomic_load(&relaxed_calls[call]);
}

/* This thread's mode, which no call of the shim may change. */
static void set_mode(CUstreamCaptureMode mode)
{
    CHECK_CU(driver.cuThreadExchangeStreamCaptureMode(&mode));
}

/* --- the tests ------------------------------------------------------------ */

static void an_exporter_in_mode(CUstreamCaptureMode mode)
{
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(WINDOW);
    lane_map_run(base, CHUNK, 4, 1);
    watch();
    set_mode(mode);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK(lane_pack(memh, base, 4 * CHUNK, key));
    CHECK_EQUAL(mode_now(), mode);
    lane_dereg(memh);
    CHECK_EQUAL(mode_now(), mode);
    CHECK_EQUAL(calls_of(CALL_cuMemExportToShareableHandle), 4);
    CHECK(calls_of(CALL_cuMemRetainAllocationHandle) >= 5);
    CHECK(calls_of(CALL_cuMemRelease) >= 5);
}

static void an_exporter(void)
{
    an_exporter_in_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void an_exporter_that_captures_by_thread(void)
{
    an_exporter_in_mode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

static bool is_off_index(void *arg)
{
    return vmml_index_find(*(CUdeviceptr *)arg) == NULL;
}

static bool has_freed(void *arg)
{
    (void)arg;
    return calls_of(CALL_cuMemAddressFree) == 1;
}

static bool is_unmapped(void *arg)
{
    return sim_host_view(*(CUdeviceptr *)arg, CHUNK) == NULL;
}

static void an_importer(void)
{
    struct exporter ex = ex_start();
    uint64_t base = ex_reserve(&ex, WINDOW);
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;

    ex_map(&ex, base, CHUNK, 60, 1);
    ex_key(&ex, base, 60 * CHUNK, key);
    lane_cuda(0);
    im_buffer();
    im_stream();
    watch();
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    mirror = im_attach(key);
    im_expect(mirror, base, 30 * CHUNK, 1);
    CHECK_EQUAL(calls_of(CALL_cuMemImportFromShareableHandle), 60);
    /* By a copy: something is new, something is gone. */
    ex_map(&ex, base + 60 * CHUNK, CHUNK, 1, 1);
    ex_key(&ex, base + 60 * CHUNK, CHUNK, key);
    CHECK_CU(ex_unmap(&ex, base, CHUNK));
    im_refused(mirror, 64);
    im_expect(mirror + 60 * CHUNK, base + 60 * CHUNK, CHUNK, 1);
    CHECK(calls_of(CALL_cuMemUnmap) >= 1);
    /* By the watcher; then it gives the reservation back. */
    CHECK_CU(ex_unmap(&ex, base + CHUNK, 60 * CHUNK));
    CHECK(lane_wait(is_unmapped, &(CUdeviceptr){mirror + CHUNK}));
    CHECK(im_close(mirror));
    CHECK_EQUAL(mode_now(), CU_STREAM_CAPTURE_MODE_GLOBAL);
    ex_kill(&ex);
    CHECK(lane_wait(is_off_index, &mirror));
    CHECK(lane_wait(has_freed, NULL));
    CHECK_EQUAL(calls_of(CALL_cuMemUnmap), 61);
}

/* A piece of a copy is refused when others of it run: their stream is waited
 * for. The copy is of a window, a hole in its middle. */
static void a_copy_that_is_taken_back(void)
{
    struct exporter ex = ex_start();
    uint64_t base = ex_reserve(&ex, WINDOW);
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror, buffer;

    ex_map(&ex, base, CHUNK, 50, 1);
    ex_map(&ex, base + 51 * CHUNK, CHUNK, 50, 1);
    ex_key(&ex, base, 101 * CHUNK, key);
    lane_cuda(0);
    im_stream();
    CHECK_CU(cuMemAlloc_v2(&buffer, 101 * CHUNK));
    watch();
    mirror = im_attach(key);
    set_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQUAL(im_post(buffer, mirror, 101 * CHUNK), CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_call_count("cuMemcpyDtoDAsync_v2") >= 2);
    CHECK(calls_of(CALL_cuStreamSynchronize) >= 1);
    CHECK_EQUAL(mode_now(), CU_STREAM_CAPTURE_MODE_GLOBAL);
    ex_stop(&ex);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(an_exporter),
        LANE_TEST(an_exporter_that_captures_by_thread),
        LANE_PAIR(an_importer),
        LANE_PAIR(a_copy_that_is_taken_back),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
