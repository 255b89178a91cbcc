/* SPDX-License-Identifier: MIT */
/* Range queries on the model of the driver: what an extent is, what ends it,
 * what it costs, and that it follows changes, seen and unseen. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "create/create.h"
#include "create/origins.h"
#include "driver_model.h"
#include "hooks.h"
#include "range/extents.h"
#include "range/range.h"

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define RW       CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* A window of 1024 granules at 64, with room on both sides. */
#define WINDOW       64u
#define WINDOW_COUNT 8192u

static int setup(void **state)
{
    model_reset();
    vmml_range_forget();
    vmml_create_forget();
    model_reserve(WINDOW, WINDOW_COUNT);
    return 0;
}

/* --- what the application does -------------------------------------------- */

static void map_handle(unsigned granule, unsigned granules, int device,
                       CUmemGenericAllocationHandle handle)
{
    model_map(granule, handle);
    model_access(granule, granules, device, RW);
    model_release(handle);
}

static void map_unseen(unsigned granule, unsigned granules)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);

    map_handle(granule, granules, 0, model_make(granules, &prop));
}

static void touched(unsigned granule, unsigned granules)
{
    vmml_range_touched(model_address(granule), granules * MODEL_GRANULE);
}

static void map(unsigned granule, unsigned granules)
{
    map_unseen(granule, granules);
    touched(granule, granules);
}

static void map_each(unsigned granule, unsigned chunks)
{
    unsigned i;

    for (i = 0; i < chunks; i++)
        map(granule + i, 1);
}

static void unmap(unsigned granule, unsigned granules)
{
    model_unmap(granule, granules);
    touched(granule, granules);
}

/* --- what UCX asks -------------------------------------------------------- */

struct answer {
    CUresult rc;
    CUdeviceptr base;
    size_t size;
};

static struct answer ask_bytes(CUdeviceptr address, size_t length,
                               bool per_chunk)
{
    struct vmml_range_request request = {
        .address = address, .length = length, .per_chunk = per_chunk};
    struct answer answer = {0};

    answer.rc =
        vmml_range_answer(&answer.base, &answer.size, address, &request);
    return answer;
}

/* A request of a few bytes in the middle of a granule. */
static struct answer ask(unsigned granule)
{
    return ask_bytes(model_address(granule) + 4096, 64, false);
}

static void check(struct answer answer, unsigned granule, unsigned granules)
{
    assert_int_equal(answer.rc, CUDA_SUCCESS);
    assert_int_equal(answer.base, model_address(granule));
    assert_int_equal(answer.size, granules * MODEL_GRANULE);
}

#define assert_extent(asked, granule, granules)                                \
    check(ask(asked), granule, granules)

static unsigned cost_of(unsigned granule)
{
    unsigned before = model_all_calls();

    assert_int_equal(ask(granule).rc, CUDA_SUCCESS);
    return model_all_calls() - before;
}

static unsigned probes(void)
{
    return model_calls(MODEL_cuMemRetainAllocationHandle);
}

/* --- extents -------------------------------------------------------------- */

static void every_address_answers_the_extent(void **state)
{
    static const unsigned counts[] = {1, 2, 3, 26, 92, 4096};
    unsigned i;

    for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        unsigned n = counts[i];

        setup(NULL);
        map_each(WINDOW + 10, n);
        assert_extent(WINDOW + 10 + n / 2, WINDOW + 10, n);
        assert_extent(WINDOW + 10, WINDOW + 10, n);
        assert_extent(WINDOW + 10 + n - 1, WINDOW + 10, n);
        check(ask_bytes(model_address(WINDOW + 10 + n) - 1, 1, false),
              WINDOW + 10, n);
        check(ask_bytes(model_address(WINDOW + 10), 1, false), WINDOW + 10, n);
    }
}

static void chunks_of_other_sizes(void **state)
{
    map(WINDOW + 5, 10);
    map(WINDOW + 15, 1);
    map(WINDOW + 16, 10);
    map(WINDOW + 26, 3);
    assert_extent(WINDOW + 15, WINDOW + 5, 24);
    assert_extent(WINDOW + 28, WINDOW + 5, 24);
    assert_extent(WINDOW + 5, WINDOW + 5, 24);
}

static void whole_window_is_an_extent(void **state)
{
    model_reserve(0, 8);
    map_each(0, 8);
    assert_extent(0, 0, 8);
    assert_extent(7, 0, 8);
}

static void a_border_crossing_request(void **state)
{
    map_each(WINDOW, 3);
    check(ask_bytes(model_address(WINDOW + 1) - 100, 200, false), WINDOW, 3);
    check(ask_bytes(model_address(WINDOW + 1) - 100, 200, true), WINDOW, 3);
    check(ask_bytes(model_address(WINDOW), 3 * MODEL_GRANULE, true), WINDOW, 3);
}

static void nobody_holds_a_handle_afterwards(void **state)
{
    unsigned live;

    map_each(WINDOW, 40);
    live = model_live_handles();
    ask(WINDOW + 7);
    assert_int_equal(model_live_handles(), live);
    unmap(WINDOW, 40);
    assert_int_equal(model_live_handles(), 0);
}

static void null_outputs(void **state)
{
    struct vmml_range_request request = {.address = model_address(WINDOW + 1),
                                         .length = 1};
    CUdeviceptr base = 0;
    size_t size = 0;

    map_each(WINDOW, 4);
    assert_int_equal(vmml_range_answer(NULL, &size, request.address, &request),
                     CUDA_SUCCESS);
    assert_int_equal(size, 4 * MODEL_GRANULE);
    assert_int_equal(vmml_range_answer(&base, NULL, request.address, &request),
                     CUDA_SUCCESS);
    assert_int_equal(base, model_address(WINDOW));
    assert_int_equal(vmml_range_answer(NULL, NULL, request.address, &request),
                     CUDA_ERROR_INVALID_VALUE);
}

/* --- what ends an extent -------------------------------------------------- */

/* Good chunks at 0-2 and 4-6 of the window, the other one between. */
static void place_good(void)
{
    map_each(WINDOW + 20, 3);
    map_each(WINDOW + 24, 3);
}

static void check_ended(void)
{
    assert_extent(WINDOW + 21, WINDOW + 20, 3);
    assert_extent(WINDOW + 22, WINDOW + 20, 3);
    assert_extent(WINDOW + 24, WINDOW + 24, 3);
    assert_extent(WINDOW + 26, WINDOW + 24, 3);
}

/* Also when the other chunk is asked for first. */
static void check_ended_around(void)
{
    check_ended();
    vmml_range_forget();
    assert_extent(WINDOW + 23, WINDOW + 23, 1);
    check_ended();
    assert_extent(WINDOW + 23, WINDOW + 23, 1);
}

static void place_with(const CUmemAllocationProp *prop, int device)
{
    place_good();
    map_handle(WINDOW + 23, 1, device, model_make(1, prop));
    touched(WINDOW + 23, 1);
}

static void ended_by_a_hole(void **state)
{
    place_good();
    check_ended();
    assert_int_equal(ask(WINDOW + 23).rc, CUDA_ERROR_NOT_FOUND);
}

static void ended_by_another_device(void **state)
{
    CUmemAllocationProp prop = model_prop(1, POSIX_FD);

    place_with(&prop, 1);
    check_ended_around();
}

/* The other device gave this one access too. */
static void ended_by_another_device_with_access(void **state)
{
    CUmemAllocationProp prop = model_prop(1, POSIX_FD);

    place_with(&prop, 1);
    model_access(WINDOW + 20, 3, 1, RW);
    model_access(WINDOW + 23, 4, 0, RW);
    model_access(WINDOW + 23, 4, 1, RW);
    touched(WINDOW + 20, 7);
    check_ended_around();
}

static void ended_by_memory_that_is_not_pinned(void **state)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);

    prop.type = (CUmemAllocationType)2; /* managed, since CUDA 13.0 */
    place_with(&prop, 0);
    check_ended_around();
}

static void ended_by_host_memory(void **state)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);

    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    place_with(&prop, 0);
    check_ended_around();
}

static void ended_by_no_access(void **state)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);

    place_good();
    model_map(WINDOW + 23, model_make(1, &prop));
    check_ended();
    assert_int_equal(ask(WINDOW + 23).rc, CUDA_ERROR_NOT_FOUND);
}

static void ended_by_access_of_another_device_only(void **state)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);

    place_with(&prop, 1);
    check_ended_around();
}

static void chunks_without_own_access_stay_alone(void **state)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);
    unsigned i;

    for (i = 0; i < 3; i++)
        map_handle(WINDOW + i, 1, 1, model_make(1, &prop));
    assert_extent(WINDOW + 1, WINDOW + 1, 1);
}

static void ended_by_other_access(void **state)
{
    place_good();
    map(WINDOW + 23, 1);
    model_access(WINDOW + 23, 1, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    touched(WINDOW + 23, 1);
    check_ended_around();
}

static void ended_by_other_handle_types(void **state)
{
    CUmemAllocationProp prop = model_prop(0, CU_MEM_HANDLE_TYPE_FABRIC);

    place_with(&prop, 0);
    check_ended_around();
}

static void ended_by_unshareable_memory(void **state)
{
    CUmemAllocationProp prop = model_prop(0, 0);
    CUmemGenericAllocationHandle handle;

    model_conf.create = false;
    place_good();
    assert_int_equal(vmml_cuMemCreate(NULL, &handle, MODEL_GRANULE, &prop, 0),
                     CUDA_SUCCESS);
    map_handle(WINDOW + 23, 1, 0, handle);
    touched(WINDOW + 23, 1);
    check_ended_around();
}

static void ended_by_compression_usage_and_rdma(void **state)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);

    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    place_with(&prop, 0);
    check_ended_around();

    setup(NULL);
    prop = model_prop(0, POSIX_FD);
    prop.allocFlags.gpuDirectRDMACapable = 1;
    place_with(&prop, 0);
    check_ended_around();

    setup(NULL);
    prop = model_prop(0, POSIX_FD);
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    place_with(&prop, 0);
    check_ended_around();
}

static CUmemGenericAllocationHandle import_one(void)
{
    CUmemGenericAllocationHandle handle = 0;

    assert_int_equal(
        vmml_cuMemImportFromShareableHandle(NULL, &handle, NULL, POSIX_FD),
        CUDA_SUCCESS);
    return handle;
}

static void ended_by_imported_memory(void **state)
{
    place_good();
    map_handle(WINDOW + 23, 1, 0, import_one());
    touched(WINDOW + 23, 1);
    check_ended_around();
}

/* Known by their origin, whatever a driver shows of their properties. */
static void ended_by_origin_alone(void **state)
{
    CUmemGenericAllocationHandle handle = 0;

    model_foreign_types = POSIX_FD;
    place_good();
    map_handle(WINDOW + 23, 1, 0, import_one());
    touched(WINDOW + 23, 1);
    check_ended_around();
    assert_int_equal(vmml_cuMulticastCreate(NULL, &handle, NULL), CUDA_SUCCESS);
    unmap(WINDOW + 23, 1);
    map_handle(WINDOW + 23, 1, 0, handle);
    touched(WINDOW + 23, 1);
    check_ended_around();
}

static void imported_chunks_stay_alone(void **state)
{
    unsigned i;

    for (i = 0; i < 4; i++) {
        map_handle(WINDOW + i, 1, 0, import_one());
        touched(WINDOW + i, 1);
    }
    assert_extent(WINDOW + 1, WINDOW + 1, 1);
}

/* An import that no hook saw looks like memory made without a handle type. */
static void unknown_untyped_chunks_stay_alone(void **state)
{
    CUmemAllocationProp prop = model_prop(0, 0);
    unsigned i;

    for (i = 0; i < 4; i++)
        map_handle(WINDOW + i, 1, 0, model_make(1, &prop));
    assert_extent(WINDOW + 1, WINDOW + 1, 1);
}

static void own_untyped_chunks_join(void **state)
{
    CUmemAllocationProp prop = model_prop(0, 0);
    CUmemGenericAllocationHandle handle;
    unsigned i;

    model_conf.create = false;
    for (i = 0; i < 4; i++) {
        assert_int_equal(
            vmml_cuMemCreate(NULL, &handle, MODEL_GRANULE, &prop, 0),
            CUDA_SUCCESS);
        map_handle(WINDOW + i, 1, 0, handle);
    }
    assert_extent(WINDOW + 1, WINDOW, 4);
}

static void ended_by_a_multicast_mapping(void **state)
{
    CUmemGenericAllocationHandle handle = 0;

    place_good();
    assert_int_equal(vmml_cuMulticastCreate(NULL, &handle, NULL), CUDA_SUCCESS);
    map_handle(WINDOW + 23, 1, 0, handle);
    touched(WINDOW + 23, 1);
    check_ended_around();
}

static void ended_by_cumemalloc_memory(void **state)
{
    map_each(WINDOW, 2);
    model_alloc(WINDOW - 4, 4);
    assert_extent(WINDOW, WINDOW, 2);
    assert_extent(WINDOW - 2, WINDOW - 4, 4);
}

static void ended_by_another_reservation(void **state)
{
    model_unreserve(WINDOW);
    model_reserve(WINDOW, 4);
    model_reserve(WINDOW + 4, 4);
    map_each(WINDOW, 8);
    assert_extent(WINDOW + 3, WINDOW, 4);
    assert_int_equal(probes(), 4); /* nothing is asked outside */
    assert_extent(WINDOW + 4, WINDOW + 4, 4);
    check(ask_bytes(model_address(WINDOW + 2), 4 * MODEL_GRANULE, false),
          WINDOW, 4);
}

/* --- modes ---------------------------------------------------------------- */

static void a_request_inside_a_chunk_needs_no_walk(void **state)
{
    map_each(WINDOW, 100);
    model_conf.range = VMML_RANGE_REQUEST;
    ask(WINDOW + 50);
    assert_int_equal(probes(), 1);
}

static void off_is_the_driver(void **state)
{
    map_each(WINDOW, 4);
    model_conf.range = VMML_RANGE_OFF;
    assert_extent(WINDOW + 1, WINDOW + 1, 1);
    model_conf.range = VMML_RANGE_EXTENT;
    model_conf.on = false;
    assert_extent(WINDOW + 1, WINDOW + 1, 1);
    assert_int_equal(model_all_calls(), 2);
}

static void per_chunk_requests(void **state)
{
    unsigned before;

    map_each(WINDOW, 4);
    before = model_all_calls();
    check(ask_bytes(model_address(WINDOW + 1), MODEL_GRANULE, true), WINDOW + 1,
          1);
    assert_int_equal(model_all_calls(), before + 1);
    check(ask_bytes(model_address(WINDOW + 1), MODEL_GRANULE + 1, true), WINDOW,
          4);
    /* Also when the extent is known. */
    check(ask_bytes(model_address(WINDOW + 2), 10, true), WINDOW + 2, 1);
}

static void request_mode_answers_what_was_asked(void **state)
{
    CUdeviceptr address = model_address(WINDOW + 1) - 512;
    struct answer answer;
    int per_chunk;

    map_each(WINDOW, 4);
    model_conf.range = VMML_RANGE_REQUEST;
    for (per_chunk = 0; per_chunk < 2; per_chunk++) {
        answer = ask_bytes(address, 1024, per_chunk);
        assert_int_equal(answer.base, address);
        assert_int_equal(answer.size, 1024);
        answer = ask_bytes(address + 512, 100, per_chunk);
        assert_int_equal(answer.base, address + 512);
        assert_int_equal(answer.size, 100);
        answer = ask_bytes(model_address(WINDOW), 4 * MODEL_GRANULE, per_chunk);
        assert_int_equal(answer.base, model_address(WINDOW));
        assert_int_equal(answer.size, 4 * MODEL_GRANULE);
        /* Past the end: the driver's. */
        answer =
            ask_bytes(model_address(WINDOW + 3), 2 * MODEL_GRANULE, per_chunk);
        check(answer, WINDOW + 3, 1);
    }
    /* No VMM memory: the driver's. */
    model_alloc(WINDOW - 4, 4);
    check(ask_bytes(model_address(WINDOW - 3), 10, false), WINDOW - 4, 4);
}

static void a_request_that_makes_no_sense(void **state)
{
    struct vmml_range_request request = {.address = model_address(WINDOW + 1),
                                         .length = 0};
    CUdeviceptr base = 0;
    size_t size = 0;
    int i;

    map_each(WINDOW, 4);
    for (i = 0; i < 3; i++) {
        if (i == 1)
            request.length = SIZE_MAX;
        if (i == 2)
            request = (struct vmml_range_request){
                .address = model_address(WINDOW), .length = 64};
        assert_int_equal(vmml_range_answer(&base, &size,
                                           model_address(WINDOW + 1), &request),
                         CUDA_SUCCESS);
        assert_int_equal(base, model_address(WINDOW + 1));
        assert_int_equal(size, MODEL_GRANULE);
    }
}

static void a_named_caller_gets_extents(void **state)
{
    CUdeviceptr base = 0;
    size_t size = 0;

    map_each(WINDOW, 4);
    assert_int_equal(
        vmml_range_answer(&base, &size, model_address(WINDOW + 1), NULL),
        CUDA_SUCCESS);
    assert_int_equal(base, model_address(WINDOW));
    assert_int_equal(size, 4 * MODEL_GRANULE);
}

/* --- cost ----------------------------------------------------------------- */

static void a_repeated_query_costs_the_same(void **state)
{
    unsigned first, i;

    map_each(WINDOW, 4096);
    ask(WINDOW + 100);
    first = cost_of(WINDOW + 100);
    /* The range, and the ids of the chunk and of both ends. */
    assert_in_range(first, 1, 4);
    for (i = 0; i < 4096; i += 7)
        assert_in_range(cost_of(WINDOW + i), 1, 4);
}

/* Where the ids are the same, so are the mappings. */
static void a_remembered_answer_asks_for_no_range(void **state)
{
    unsigned before;

    map_each(WINDOW, 3);
    ask(WINDOW + 1);
    before = model_calls(MODEL_cuMemGetAddressRange_v2);
    assert_extent(WINDOW + 1, WINDOW, 3);
    assert_int_equal(model_calls(MODEL_cuMemGetAddressRange_v2), before);
    unmap(WINDOW + 1, 1);
    assert_int_equal(ask(WINDOW + 1).rc, CUDA_ERROR_NOT_FOUND);
    model_unmap(WINDOW, 1);
    assert_int_equal(ask(WINDOW).rc, CUDA_ERROR_NOT_FOUND);
}

static void a_crossing_query_has_a_bound(void **state)
{
    unsigned before, i;

    map_each(WINDOW, 4096);
    ask(WINDOW);
    for (i = 0; i < 100; i++) {
        before = model_all_calls();
        check(ask_bytes(model_address(WINDOW), 4096 * MODEL_GRANULE, true),
              WINDOW, 4096);
        assert_in_range(model_all_calls() - before, 1, 16);
    }
}

static void each_chunk_is_probed_once(void **state)
{
    map_each(WINDOW + 1, 1000);
    ask(WINDOW + 500);
    assert_int_equal(probes(), 1000);
}

/* B1's "also N chunks asked piece by piece": never quadratic. */
static void pieces_share_what_is_known(void **state)
{
    unsigned i;

    map_each(WINDOW + 1, 1000);
    for (i = 0; i < 1000; i++)
        assert_extent(WINDOW + 1 + i, WINDOW + 1, 1000);
    assert_int_equal(probes(), 1000);
}

static void memory_of_cumemalloc_costs_little(void **state)
{
    model_alloc(0, 16);
    cost_of(3);
    assert_in_range(cost_of(3), 1, 3);
}

/* --- changes that are seen ------------------------------------------------ */

static void growth_probes_what_is_new(void **state)
{
    static const unsigned growths[] = {1, 8, 64};
    unsigned size = 100, before, i;

    map_each(WINDOW + 200, size);
    assert_extent(WINDOW + 200, WINDOW + 200, size);
    for (i = 0; i < 3; i++) {
        map_each(WINDOW + 200 + size, growths[i]);
        size += growths[i];
        before = probes();
        assert_extent(WINDOW + 200, WINDOW + 200, size);
        assert_int_equal(probes() - before, growths[i]);
    }
    map_each(WINDOW + 195, 5);
    before = probes();
    assert_extent(WINDOW + 200, WINDOW + 195, size + 5);
    assert_int_equal(probes() - before, 5);
}

static void a_hole_splits_the_extent(void **state)
{
    unsigned before;

    map_each(WINDOW, 1000);
    ask(WINDOW);
    before = probes();
    unmap(WINDOW + 400, 3);
    assert_extent(WINDOW + 399, WINDOW, 400);
    assert_extent(WINDOW + 403, WINDOW + 403, 597);
    assert_int_equal(ask(WINDOW + 401).rc, CUDA_ERROR_NOT_FOUND);
    assert_int_equal(probes() - before, 0);
    /* Backed anew: the halves are one again. */
    map_each(WINDOW + 400, 3);
    assert_extent(WINDOW + 7, WINDOW, 1000);
    assert_int_equal(probes() - before, 3);
    assert_extent(WINDOW + 401, WINDOW, 1000);
    assert_extent(WINDOW + 999, WINDOW, 1000);
    assert_int_equal(probes() - before, 3);
}

static void shrinking_at_both_ends(void **state)
{
    unsigned before;

    map_each(WINDOW, 100);
    ask(WINDOW);
    before = probes();
    unmap(WINDOW + 90, 10);
    assert_extent(WINDOW + 50, WINDOW, 90);
    unmap(WINDOW, 5);
    assert_extent(WINDOW + 50, WINDOW + 5, 85);
    assert_int_equal(probes() - before, 0);
}

static void one_unmap_over_everything(void **state)
{
    map_each(WINDOW, 100);
    ask(WINDOW);
    vmml_range_touched(0, SIZE_MAX);
    model_unmap(WINDOW, 100);
    touched(WINDOW - 10, 300);
    map_each(WINDOW + 50, 2);
    assert_extent(WINDOW + 50, WINDOW + 50, 2);
}

static void backed_anew_with_other_chunk_sizes(void **state)
{
    map_each(WINDOW, 20);
    ask(WINDOW);
    unmap(WINDOW + 5, 10);
    map(WINDOW + 5, 7);
    map(WINDOW + 12, 3);
    assert_extent(WINDOW + 6, WINDOW, 20);
    assert_extent(WINDOW + 19, WINDOW, 20);
    unmap(WINDOW, 20);
    map(WINDOW, 20);
    assert_extent(WINDOW + 6, WINDOW, 20);
}

static void an_access_change_is_followed(void **state)
{
    map_each(WINDOW, 10);
    ask(WINDOW);
    model_access(WINDOW + 4, 1, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    touched(WINDOW + 4, 1);
    assert_extent(WINDOW, WINDOW, 4);
    assert_extent(WINDOW + 4, WINDOW + 4, 1);
    assert_extent(WINDOW + 9, WINDOW + 5, 5);
    model_access(WINDOW + 4, 1, 0, RW);
    touched(WINDOW + 4, 1);
    assert_extent(WINDOW, WINDOW, 10);
}

static void a_map_next_to_another_extent(void **state)
{
    map_each(WINDOW, 3);
    map_each(WINDOW + 5, 3);
    ask(WINDOW);
    ask(WINDOW + 5);
    map(WINDOW + 3, 2);
    assert_extent(WINDOW + 3, WINDOW, 8);
}

static void the_window_is_made_anew(void **state)
{
    map_each(WINDOW, 8);
    ask(WINDOW);
    unmap(WINDOW, 8);
    model_unreserve(WINDOW);
    vmml_range_touched(model_address(WINDOW), WINDOW_COUNT * MODEL_GRANULE);
    model_reserve(WINDOW, 4);
    model_reserve(WINDOW + 4, 4);
    map_each(WINDOW, 8);
    assert_extent(WINDOW + 1, WINDOW, 4);
    assert_extent(WINDOW + 5, WINDOW + 4, 4);
}

/* --- changes that no hook sees -------------------------------------------- */

static void unseen_growth_is_found_when_it_is_asked_for(void **state)
{
    map_each(WINDOW, 4);
    ask(WINDOW);
    map_unseen(WINDOW + 4, 1);
    map_unseen(WINDOW + 5, 1);
    check(ask_bytes(model_address(WINDOW + 3), 3 * MODEL_GRANULE, false),
          WINDOW, 6);
    map_unseen(WINDOW + 6, 1);
    assert_extent(WINDOW + 6, WINDOW, 7);
}

static void unseen_shrinking(void **state)
{
    map_each(WINDOW, 100);
    ask(WINDOW);
    model_unmap(WINDOW + 99, 1);
    assert_extent(WINDOW + 50, WINDOW, 99);
    model_unmap(WINDOW + 60, 39);
    assert_extent(WINDOW + 50, WINDOW, 60);
    model_unmap(WINDOW, 10);
    assert_extent(WINDOW + 50, WINDOW + 10, 50);
}

static void unseen_new_backing(void **state)
{
    unsigned round;

    map_each(WINDOW, 50);
    for (round = 0; round < 4; round++) {
        ask(WINDOW + 5);
        model_unmap(WINDOW, 50);
        map_unseen(WINDOW, 20);
        map_unseen(WINDOW + 20, 20);
        assert_extent(WINDOW + 5, WINDOW, 40);
        assert_extent(WINDOW + 25, WINDOW, 40);
        model_unmap(WINDOW, 40);
        assert_int_equal(ask(WINDOW + 5).rc, CUDA_ERROR_NOT_FOUND);
        map_unseen(WINDOW + 5, 2);
        assert_extent(WINDOW + 5, WINDOW + 5, 2);
        model_unmap(WINDOW + 5, 2);
        map_each(WINDOW, 50);
    }
}

/* Nothing of the old walk is of use, and that costs one walk, not a failure. */
static void unseen_new_backing_of_many(void **state)
{
    unsigned i;

    map_each(WINDOW, 500);
    ask(WINDOW + 250);
    model_unmap(WINDOW, 500);
    for (i = 0; i < 400; i++)
        map_unseen(WINDOW + i, 1);
    assert_extent(WINDOW + 250, WINDOW, 400);
    assert_in_range(probes(), 900, 910);
}

static void unseen_new_backing_of_the_chunk_asked_for(void **state)
{
    map_each(WINDOW, 9);
    ask(WINDOW);
    model_unmap(WINDOW + 4, 1);
    map_unseen(WINDOW + 4, 1);
    model_access(WINDOW + 4, 1, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    assert_extent(WINDOW + 4, WINDOW + 4, 1);
    assert_extent(WINDOW, WINDOW, 4);
}

/* Beside a change that was seen: the border is not joined on trust. */
static void an_unseen_hole_beside_a_seen_change(void **state)
{
    map_each(WINDOW, 100);
    ask(WINDOW);
    unmap(WINDOW + 50, 1);
    map(WINDOW + 50, 1);
    model_unmap(WINDOW + 51, 1);
    assert_extent(WINDOW + 10, WINDOW, 51);
    assert_extent(WINDOW + 60, WINDOW + 52, 48);
}

/* A hole inside, away from every chunk that is always checked: the samples of
 * a registration's queries find it. */
static void an_unseen_hole_is_found_by_registrations(void **state)
{
    unsigned i;

    map_each(WINDOW, 64);
    ask(WINDOW);
    model_unmap(WINDOW + 40, 1);
    for (i = 0; i < 64 / 8; i++)
        (void)ask_bytes(model_address(WINDOW), MODEL_GRANULE + 1, false);
    check(ask_bytes(model_address(WINDOW), MODEL_GRANULE + 1, false), WINDOW,
          40);
}

static void an_unseen_hole_at_the_end_of_the_request(void **state)
{
    map_each(WINDOW, 64);
    ask(WINDOW);
    model_unmap(WINDOW + 40, 1);
    check(ask_bytes(model_address(WINDOW + 30), 11 * MODEL_GRANULE, false),
          WINDOW, 40);
}

/* --- failures ------------------------------------------------------------- */

static void a_failing_driver_never_lies(void **state)
{
    static const enum model_function functions[] = {
        MODEL_cuPointerGetAttribute,
        MODEL_cuPointerGetAttributes,
        MODEL_cuMemRetainAllocationHandle,
        MODEL_cuMemGetAllocationPropertiesFromHandle,
        MODEL_cuMemGetAccess,
        MODEL_cuMemRelease};
    struct answer answer;
    unsigned i, n, seen;

    for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        for (n = 1; n < 60; n++) {
            setup(NULL);
            map_each(WINDOW, 6);
            model_fail(functions[i], n, CUDA_ERROR_UNKNOWN, n % 2);
            answer = ask(WINDOW + 3);
            assert_int_equal(answer.rc, CUDA_SUCCESS);
            /* The extent, a part of it, or the driver's: all mapped. */
            assert_true(answer.base >= model_address(WINDOW));
            assert_true(answer.base <= model_address(WINDOW + 3));
            assert_true(answer.base + answer.size >= model_address(WINDOW + 4));
            assert_true(answer.base + answer.size <= model_address(WINDOW + 6));
            seen = model_all_calls();
            answer = ask(WINDOW + 3);
            assert_int_equal(answer.rc, CUDA_SUCCESS);
            assert_in_range(model_all_calls() - seen, 1, 100);
        }
    }
}

static void answers_of_two_moments_are_not_believed(void **state)
{
    map_each(WINDOW, 6);
    model_torn = true;
    assert_extent(WINDOW + 3, WINDOW, 6);
    assert_false(model_torn);
}

static void the_drivers_own_error_comes_first(void **state)
{
    static const CUresult errors[] = {CUDA_ERROR_NOT_FOUND,
                                      CUDA_ERROR_INVALID_VALUE,
                                      CUDA_ERROR_INVALID_DEVICE};
    struct answer answer;
    unsigned i;

    map_each(WINDOW, 6);
    for (i = 0; i < 3; i++) {
        model_fail(MODEL_cuMemGetAddressRange_v2, 1, errors[i], false);
        answer = ask(WINDOW + 3);
        assert_int_equal(answer.rc, errors[i]);
        assert_int_equal(answer.base, 0);
        assert_int_equal(answer.size, 0);
    }
}

/* --- races ---------------------------------------------------------------- */

/*
 * A change by another thread after the n-th driver call of a query, for every
 * n: the answer is right before or after the change, and the next is right.
 */
static void (*change)(void);
static unsigned change_countdown;

static void count_down(enum model_function function, CUdeviceptr ptr)
{
    if (--change_countdown == 0) {
        model_after = NULL;
        change();
    }
}

static void try_everywhere(void (*what)(void), unsigned asked,
                           unsigned after_base, unsigned after_count)
{
    struct answer answer;
    unsigned n;
    bool came;

    for (n = 1;; n++) {
        setup(NULL);
        map_each(WINDOW, 8);
        change = what;
        change_countdown = n;
        model_after = count_down;
        answer = ask(asked);
        came = model_after == NULL;
        model_after = NULL;
        assert_int_equal(answer.rc, CUDA_SUCCESS);
        assert_true(answer.base <= model_address(asked));
        assert_true(answer.base + answer.size > model_address(asked));
        if (!came)
            break;
        assert_extent(asked, after_base, after_count);
    }
    assert_in_range(n, 40, 400);
}

static void change_unmap(void)
{
    unmap(WINDOW + 3, 1);
}

static void change_remap(void)
{
    unmap(WINDOW + 3, 1);
    map_unseen(WINDOW + 3, 1);
    model_access(WINDOW + 3, 1, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    touched(WINDOW + 3, 1);
}

/* The mapping stays, and its id. */
static void change_access(void)
{
    model_access(WINDOW + 3, 1, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    touched(WINDOW + 3, 1);
}

static void change_map(void)
{
    map(WINDOW + 8, 1);
}

static void change_much(void)
{
    unsigned i;

    unmap(WINDOW + 3, 1);
    for (i = 0; i < 2 * VMML_CHANGES; i++)
        touched(WINDOW + 100 + i, 1);
}

static void a_change_after_every_driver_call(void **state)
{
    try_everywhere(change_unmap, WINDOW, WINDOW, 3);
    try_everywhere(change_unmap, WINDOW + 6, WINDOW + 4, 4);
    try_everywhere(change_remap, WINDOW, WINDOW, 3);
    try_everywhere(change_remap, WINDOW + 3, WINDOW + 3, 1);
    try_everywhere(change_remap, WINDOW + 6, WINDOW + 4, 4);
    try_everywhere(change_access, WINDOW, WINDOW, 3);
    try_everywhere(change_access, WINDOW + 3, WINDOW + 3, 1);
    try_everywhere(change_map, WINDOW, WINDOW, 9);
    try_everywhere(change_map, WINDOW + 7, WINDOW, 9);
    try_everywhere(change_much, WINDOW, WINDOW, 3);
    try_everywhere(change_much, WINDOW + 6, WINDOW + 4, 4);
}

/* Not seen, and in the middle of asking about that very chunk. */
static void remap_unseen_after_access(enum model_function function,
                                      CUdeviceptr ptr)
{
    if (function != MODEL_cuMemGetAccess || ptr != model_address(WINDOW + 3))
        return;
    model_after = NULL;
    model_unmap(WINDOW + 3, 1);
    map_unseen(WINDOW + 3, 1);
    model_access(WINDOW + 3, 1, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static void an_unseen_remap_while_asking(void **state)
{
    map_each(WINDOW, 8);
    model_after = remap_unseen_after_access;
    assert_extent(WINDOW, WINDOW, 3);
    assert_null(model_after);
}

static atomic_bool race_stop;
static atomic_uint race_bad;

/* Chunks 0-31 stay; 32-63 come and go. */
static void *race_ask(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument, i;

    for (i = 0; i < 400; i++) {
        unsigned at = WINDOW + rand_r(&seed) % 32;
        struct answer answer =
            ask_bytes(model_address(at), MODEL_GRANULE * (1 + i % 2), false);

        if (answer.rc != CUDA_SUCCESS || answer.base != model_address(WINDOW) ||
            answer.size < 32 * MODEL_GRANULE ||
            answer.size > 64 * MODEL_GRANULE)
            atomic_fetch_add(&race_bad, 1);
    }
    return NULL;
}

static void *race_change(void *argument)
{
    unsigned seed = 1;

    while (!atomic_load(&race_stop)) {
        unsigned at = WINDOW + 32 + rand_r(&seed) % 32;

        unmap(at, 1);
        map(at, 1);
    }
    return NULL;
}

static void threads_ask_while_one_changes(void **state)
{
    pthread_t threads[4], changer;
    unsigned i;

    map_each(WINDOW, 64);
    atomic_store(&race_stop, false);
    atomic_store(&race_bad, 0);
    assert_int_equal(pthread_create(&changer, NULL, race_change, NULL), 0);
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_ask,
                                        (void *)(uintptr_t)(i + 1)),
                         0);
    for (i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&race_stop, true);
    pthread_join(changer, NULL);
    assert_int_equal(atomic_load(&race_bad), 0);
    /* Left in a right state. */
    assert_extent(WINDOW + 3, WINDOW, 64);
}

static void *race_first(void *argument)
{
    struct answer answer = ask(WINDOW + (unsigned)(uintptr_t)argument);

    if (answer.base != model_address(WINDOW) ||
        answer.size != 500 * MODEL_GRANULE)
        atomic_fetch_add(&race_bad, 1);
    return NULL;
}

static void threads_walk_the_same_extent(void **state)
{
    pthread_t threads[4];
    unsigned i;

    map_each(WINDOW, 500);
    atomic_store(&race_bad, 0);
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_first,
                                        (void *)(uintptr_t)(i * 160)),
                         0);
    for (i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&race_bad), 0);
    assert_extent(WINDOW + 3, WINDOW, 500);
}

static void fork_child_begins_anew(void **state)
{
    map_each(WINDOW, 8);
    assert_extent(WINDOW, WINDOW, 8);
    vmml_range_forget();
    unmap(WINDOW + 4, 1);
    assert_extent(WINDOW, WINDOW, 4);
}

/* --- the table ------------------------------------------------------------ */

static void the_table_is_bounded(void **state)
{
    struct vmml_traits traits = {
        .window_base = 0, .window_end = 1 << 20, .joins = true};
    struct vmml_extents *extents = calloc(1, sizeof(*extents));
    uint64_t i;

    assert_non_null(extents);
    assert_int_equal(vmml_extents_init(extents, 100), 0);
    for (i = 0; i < 100; i++) {
        vmml_extents_add(extents, i * 16, i * 16 + 16, i + 1, &traits);
        if (i > 0)
            assert_true(vmml_extents_join(extents, i * 16));
    }
    assert_int_equal(extents->chunks.count, 100);
    assert_int_equal(extents->extents.count, 1);
    assert_int_equal(extents->overflow_count, 0);
    vmml_extents_add(extents, 1600, 1616, 101, &traits);
    assert_int_equal(extents->overflow_count, 1);
    assert_int_equal(extents->chunks.count, 1);
    assert_non_null(vmml_extents_find(extents, 1600));
    assert_null(vmml_extents_find(extents, 1599));
    vmml_extents_fini(extents);
    free(extents);
}

/* Longer than what can be remembered: the driver's own answer, and no second
 * walk. */
static void an_extent_that_does_not_fit(void **state)
{
    unsigned i;

    map_each(WINDOW, VMML_CHUNKS_MAX + 10);
    for (i = 0; i < 20; i++)
        assert_extent(WINDOW + 7 * i, WINDOW + 7 * i, 1);
    assert_in_range(probes(), VMML_CHUNKS_MAX, VMML_CHUNKS_MAX + 10);
}

/* What fills the table is not one extent: begun anew. */
static void a_table_full_of_the_past(void **state)
{
    unsigned i;

    map_each(WINDOW, 3 * VMML_CHUNKS_MAX / 5);
    ask(WINDOW);
    model_unmap(WINDOW, 3 * VMML_CHUNKS_MAX / 5);
    for (i = 0; i < VMML_CHUNKS_MAX; i += 20)
        map_each(WINDOW + 3 * VMML_CHUNKS_MAX / 5 + 1 + i, 19);
    for (i = 0; i < VMML_CHUNKS_MAX; i += 20)
        (void)ask(WINDOW + 3 * VMML_CHUNKS_MAX / 5 + 1 + i);
    for (i = 0; i < VMML_CHUNKS_MAX; i += 20)
        assert_extent(WINDOW + 3 * VMML_CHUNKS_MAX / 5 + 1 + i,
                      WINDOW + 3 * VMML_CHUNKS_MAX / 5 + 1 + i, 19);
}

/* Against a plain array: random changes, the same answers. */
static void the_table_agrees_with_an_array(void **state)
{
    enum { CELLS = 300, STEPS = 20000 };
    struct vmml_traits traits = {
        .window_base = 0, .window_end = CELLS, .joins = true};
    struct vmml_extents *extents = calloc(1, sizeof(*extents));
    static unsigned owner[CELLS + 1]; /* base + 1 of the chunk; 0: none */
    static bool cut[CELLS + 1];       /* no join at the low border */
    unsigned seed = 7, step, i;

    assert_non_null(extents);
    assert_int_equal(vmml_extents_init(extents, 2048), 0);
    for (i = 0; i <= CELLS; i++)
        owner[i] = 0;
    for (step = 0; step < STEPS; step++) {
        unsigned base = rand_r(&seed) % CELLS;
        unsigned size = 1 + rand_r(&seed) % 6;
        unsigned action = rand_r(&seed) % 3, low, high, j;

        if (base + size > CELLS)
            size = CELLS - base;
        if (action == 0) {
            vmml_extents_change(extents, base, base + size);
        } else if (action == 1) {
            vmml_extents_add(extents, base, base + size, step + 1, &traits);
        } else {
            (void)vmml_extents_join(extents, base);
            if (base > 0 && owner[base] == base + 1 && owner[base - 1] != 0)
                cut[base] = false;
        }
        if (action < 2) {
            for (j = 0; j < CELLS; j++) {
                if (owner[j] == 0)
                    continue;
                low = owner[j] - 1;
                for (high = low; high < CELLS && owner[high] == low + 1; high++)
                    ;
                if (low < base + size && high > base) {
                    for (i = low; i < high; i++)
                        owner[i] = 0;
                    if (high < CELLS)
                        cut[high] = true;
                }
            }
            for (j = base; action == 1 && j < base + size; j++)
                owner[j] = base + 1;
            cut[base] = true;
            cut[base + size] = true;
        }
        for (j = 0; j < CELLS; j++) {
            struct vmml_extent *extent = vmml_extents_find(extents, j);
            struct vmml_chunk *chunk = vmml_extents_chunk(extents, j);

            assert_int_equal(extent != NULL, owner[j] != 0);
            assert_int_equal(chunk != NULL, owner[j] != 0);
            if (owner[j] == 0)
                continue;
            assert_int_equal(chunk->node.base, owner[j] - 1);
            for (low = owner[j] - 1;
                 low > 0 && owner[low - 1] != 0 && !cut[low];
                 low = owner[low - 1] - 1)
                ;
            assert_int_equal(extent->node.base, low);
        }
    }
    vmml_extents_fini(extents);
    free(extents);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_address_answers_the_extent),
        TEST(chunks_of_other_sizes),
        TEST(whole_window_is_an_extent),
        TEST(a_border_crossing_request),
        TEST(nobody_holds_a_handle_afterwards),
        TEST(null_outputs),
        TEST(ended_by_a_hole),
        TEST(ended_by_another_device),
        TEST(ended_by_another_device_with_access),
        TEST(ended_by_memory_that_is_not_pinned),
        TEST(ended_by_host_memory),
        TEST(ended_by_no_access),
        TEST(ended_by_access_of_another_device_only),
        TEST(chunks_without_own_access_stay_alone),
        TEST(ended_by_other_access),
        TEST(ended_by_other_handle_types),
        TEST(ended_by_unshareable_memory),
        TEST(ended_by_compression_usage_and_rdma),
        TEST(ended_by_imported_memory),
        TEST(ended_by_origin_alone),
        TEST(imported_chunks_stay_alone),
        TEST(unknown_untyped_chunks_stay_alone),
        TEST(own_untyped_chunks_join),
        TEST(ended_by_a_multicast_mapping),
        TEST(ended_by_cumemalloc_memory),
        TEST(ended_by_another_reservation),
        TEST(a_request_inside_a_chunk_needs_no_walk),
        TEST(off_is_the_driver),
        TEST(per_chunk_requests),
        TEST(request_mode_answers_what_was_asked),
        TEST(a_request_that_makes_no_sense),
        TEST(a_named_caller_gets_extents),
        TEST(a_repeated_query_costs_the_same),
        TEST(a_remembered_answer_asks_for_no_range),
        TEST(a_crossing_query_has_a_bound),
        TEST(each_chunk_is_probed_once),
        TEST(pieces_share_what_is_known),
        TEST(memory_of_cumemalloc_costs_little),
        TEST(growth_probes_what_is_new),
        TEST(a_hole_splits_the_extent),
        TEST(shrinking_at_both_ends),
        TEST(one_unmap_over_everything),
        TEST(backed_anew_with_other_chunk_sizes),
        TEST(an_access_change_is_followed),
        TEST(a_map_next_to_another_extent),
        TEST(the_window_is_made_anew),
        TEST(unseen_growth_is_found_when_it_is_asked_for),
        TEST(unseen_shrinking),
        TEST(unseen_new_backing),
        TEST(unseen_new_backing_of_many),
        TEST(unseen_new_backing_of_the_chunk_asked_for),
        TEST(an_unseen_hole_beside_a_seen_change),
        TEST(an_unseen_hole_is_found_by_registrations),
        TEST(an_unseen_hole_at_the_end_of_the_request),
        TEST(a_failing_driver_never_lies),
        TEST(answers_of_two_moments_are_not_believed),
        TEST(the_drivers_own_error_comes_first),
        TEST(a_change_after_every_driver_call),
        TEST(an_unseen_remap_while_asking),
        TEST(threads_ask_while_one_changes),
        TEST(threads_walk_the_same_extent),
        TEST(fork_child_begins_anew),
        TEST(the_table_is_bounded),
        TEST(an_extent_that_does_not_fit),
        TEST(a_table_full_of_the_past),
        TEST(the_table_agrees_with_an_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
