/* SPDX-License-Identifier: MIT */
/* The cuMemCreate upgrade on the model of the driver: what is upgraded, that
 * it never costs an allocation, and that only UCX can tell. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/fork.h"
#include "create/create.h"
#include "create/origins.h"
#include "create/upgrade.h"
#include "driver_model.h"
#include "hooks.h"

#define NONE     CU_MEM_HANDLE_TYPE_NONE
#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC   CU_MEM_HANDLE_TYPE_FABRIC
#define SIZE     (3 * MODEL_GRANULE)

static int setup(void **state)
{
    model_reset();
    vmml_create_forget();
    model_reserve(0, 1024);
    return 0;
}

static CUmemGenericAllocationHandle make(const CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle = 0;

    assert_int_equal(vmml_cuMemCreate(NULL, &handle, SIZE, prop, 0),
                     CUDA_SUCCESS);
    return handle;
}

static CUmemGenericAllocationHandle make_plain(void)
{
    CUmemAllocationProp prop = model_prop(0, NONE);

    return make(&prop);
}

/* What the driver was asked for, byte for byte. */
static void check_reached(const CUmemAllocationProp *prop, size_t size,
                          unsigned long long flags)
{
    assert_memory_equal(&model_last_prop, prop, sizeof(*prop));
    assert_int_equal(model_last_size, size);
    assert_int_equal(model_last_flags, flags);
}

static void check_left_alone(const CUmemAllocationProp *prop)
{
    CUmemAllocationProp before = *prop;
    unsigned calls = model_calls(MODEL_cuMemCreate);
    CUmemGenericAllocationHandle handle = make(prop);

    assert_int_equal(model_calls(MODEL_cuMemCreate), calls + 1);
    check_reached(&before, SIZE, 0);
    assert_memory_equal(prop, &before, sizeof(before));
    assert_false(vmml_create_is_upgraded(handle));
}

/* --- H1: never costs an allocation ---------------------------------------- */

static void a_request_without_type_is_upgraded(void **state)
{
    CUmemAllocationProp prop = model_prop(1, NONE), expected, given;
    CUmemGenericAllocationHandle handle;

    prop.allocFlags.gpuDirectRDMACapable = 1;
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    given = prop;
    expected = prop;
    expected.requestedHandleTypes = POSIX_FD;
    handle = make(&prop);
    /* All other fields are kept, and the caller's own request is not written
     * to. */
    check_reached(&expected, SIZE, 0);
    assert_memory_equal(&prop, &given, sizeof(prop));
    assert_int_equal(model_calls(MODEL_cuMemCreate), 1);
    assert_true(vmml_create_is_upgraded(handle));
    assert_int_equal(vmml_create_origin(handle), VMML_HANDLE_UPGRADED);
}

static void every_other_request_reaches_the_driver(void **state)
{
    CUmemAllocationProp prop;

    prop = model_prop(0, POSIX_FD);
    check_left_alone(&prop);
    prop = model_prop(0, FABRIC);
    check_left_alone(&prop);
    prop = model_prop(0, FABRIC | POSIX_FD);
    check_left_alone(&prop);
    prop = model_prop(0, NONE);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    check_left_alone(&prop);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    check_left_alone(&prop);
    prop = model_prop(0, NONE);
    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    check_left_alone(&prop);
    prop = model_prop(0, NONE);
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    check_left_alone(&prop);
    prop.allocFlags.usage = 0x8000;
    check_left_alone(&prop);
    prop = model_prop(0, NONE);
    prop.allocFlags.reserved[3] = 1;
    check_left_alone(&prop);
    prop = model_prop(0, NONE);
    prop.win32HandleMetaData = &prop;
    check_left_alone(&prop);
    prop = model_prop(0, NONE);
    prop.type = (CUmemAllocationType)2;
    check_left_alone(&prop);
}

static void odd_arguments_give_the_drivers_error(void **state)
{
    CUmemAllocationProp prop = model_prop(0, NONE);
    CUmemGenericAllocationHandle handle = 77;

    assert_int_equal(vmml_cuMemCreate(NULL, NULL, SIZE, &prop, 0),
                     CUDA_ERROR_INVALID_VALUE);
    check_reached(&prop, SIZE, 0);
    assert_int_equal(vmml_cuMemCreate(NULL, &handle, SIZE, NULL, 0),
                     CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(vmml_cuMemCreate(NULL, &handle, SIZE, &prop, 4),
                     CUDA_ERROR_INVALID_VALUE);
    check_reached(&prop, SIZE, 4);
    assert_int_equal(model_calls(MODEL_cuMemCreate), 3);
    assert_int_equal(vmml_cuMemCreate(NULL, &handle, 1234, &prop, 0),
                     CUDA_ERROR_INVALID_VALUE);
    check_reached(&prop, 1234, 0);
    assert_int_equal(handle, 77);
}

static void a_refusal_repeats_the_own_request(void **state)
{
    static const CUresult errors[] = {
        CUDA_ERROR_INVALID_VALUE,  CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NOT_PERMITTED,  CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_UNKNOWN};
    CUmemAllocationProp prop = model_prop(0, NONE);
    CUmemGenericAllocationHandle handle;
    unsigned i;

    for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        model_refuse_types = errors[i];
        handle = make(&prop);
        check_reached(&prop, SIZE, 0);
        assert_false(vmml_create_is_upgraded(handle));
        assert_int_equal(vmml_create_origin(handle), VMML_HANDLE_PLAIN);
    }
    assert_int_equal(model_calls(MODEL_cuMemCreate), 2 * i);
    /* Nothing sticks. */
    model_refuse_types = CUDA_SUCCESS;
    assert_true(vmml_create_is_upgraded(make(&prop)));
}

static void an_error_of_both_is_the_second_one(void **state)
{
    CUmemAllocationProp prop = model_prop(0, NONE);
    CUmemGenericAllocationHandle handle = 5;

    model_refuse_types = CUDA_ERROR_NOT_SUPPORTED;
    model_fail(MODEL_cuMemCreate, 2, CUDA_ERROR_OUT_OF_MEMORY, false);
    assert_int_equal(vmml_cuMemCreate(NULL, &handle, SIZE, &prop, 0),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(handle, 5);
    assert_int_equal(model_live_handles(), 0);
}

static void toggles(void **state)
{
    CUmemAllocationProp prop = model_prop(0, NONE);

    model_conf.create = false;
    check_left_alone(&prop);
    model_conf.create = true;
    model_conf.on = false;
    check_left_alone(&prop);
    model_conf.on = true;
    vmml_in_child = true;
    check_left_alone(&prop);
    vmml_in_child = false;
}

static void drivers_before_535(void **state)
{
    CUmemAllocationProp prop = model_prop(0, NONE);

    model_version = 12000; /* 525 */
    check_left_alone(&prop);
    check_left_alone(&prop);
    vmml_create_forget();
    model_version = 12010; /* 530 */
    check_left_alone(&prop);
    vmml_create_forget();
    model_version = 12020; /* 535 */
    assert_true(vmml_create_is_upgraded(make(&prop)));
}

static void a_device_without_descriptors(void **state)
{
    CUmemAllocationProp prop = model_prop(0, NONE);

    model_posix_fd = 0;
    check_left_alone(&prop);
    prop.location.id = 1000;
    check_left_alone(&prop);
    prop.location.id = -1;
    check_left_alone(&prop);
}

static void wsl_kernels(void **state)
{
    assert_true(vmml_upgrade_is_wsl("5.15.90.1-microsoft-standard-WSL2"));
    assert_true(vmml_upgrade_is_wsl("4.4.0-19041-Microsoft"));
    assert_true(vmml_upgrade_is_wsl("6.6.0-custom-wsl2"));
    assert_false(vmml_upgrade_is_wsl("6.8.0-1015-azure"));
    assert_false(vmml_upgrade_is_wsl("6.1.0-18-amd64"));
}

/* A question that fails is asked again, and is no answer. */
static void failed_questions_do_not_stick(void **state)
{
    static const enum model_function functions[] = {MODEL_cuDriverGetVersion,
                                                    MODEL_cuDeviceGet,
                                                    MODEL_cuDeviceGetAttribute};
    CUmemAllocationProp prop = model_prop(0, NONE);
    unsigned i;

    for (i = 0; i < 3; i++) {
        setup(NULL);
        model_fail(functions[i], 1, CUDA_ERROR_NOT_INITIALIZED, false);
        check_left_alone(&prop);
        assert_true(vmml_create_is_upgraded(make(&prop)));
    }
}

static void the_platform_is_asked_once(void **state)
{
    unsigned i;

    for (i = 0; i < 100; i++)
        make_plain();
    assert_int_equal(model_calls(MODEL_cuDriverGetVersion), 1);
    assert_int_equal(model_calls(MODEL_cuDeviceGet), 1);
    assert_int_equal(model_calls(MODEL_cuDeviceGetAttribute), 1);
    assert_int_equal(model_calls(MODEL_cuMemCreate), 100);
}

/* --- H2: invisible -------------------------------------------------------- */

static CUmemAllocationHandleType types_of(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;

    assert_int_equal(
        vmml_cuMemGetAllocationPropertiesFromHandle(NULL, &prop, handle),
        CUDA_SUCCESS);
    return prop.requestedHandleTypes;
}

static CUresult export_as(CUmemGenericAllocationHandle handle,
                          CUmemAllocationHandleType type)
{
    long long os_handle[8] = {0};
    CUresult rc =
        vmml_cuMemExportToShareableHandle(NULL, os_handle, handle, type, 0);

    if (rc != CUDA_SUCCESS)
        assert_int_equal(os_handle[0], 0);
    return rc;
}

static void only_uct_cuda_and_the_shim_can_tell(void **state)
{
    CUmemGenericAllocationHandle handle = make_plain();
    enum vmml_caller caller;

    for (caller = VMML_CALLER_OTHER; caller <= VMML_CALLER_NAMED; caller++) {
        bool sees =
            caller == VMML_CALLER_UCT_CUDA || caller == VMML_CALLER_SHIM;

        model_caller = caller;
        assert_int_equal(types_of(handle), sees ? POSIX_FD : NONE);
        assert_int_equal(export_as(handle, POSIX_FD),
                         sees ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(export_as(handle, FABRIC), CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(export_as(handle, NONE), CUDA_ERROR_INVALID_VALUE);
    }
}

static void other_properties_are_the_drivers(void **state)
{
    CUmemAllocationProp prop = model_prop(1, NONE), shown;
    CUmemGenericAllocationHandle handle;

    prop.allocFlags.gpuDirectRDMACapable = 1;
    handle = make(&prop);
    assert_int_equal(
        vmml_cuMemGetAllocationPropertiesFromHandle(NULL, &shown, handle),
        CUDA_SUCCESS);
    assert_memory_equal(&shown, &prop, sizeof(prop));
    assert_int_equal(
        vmml_cuMemGetAllocationPropertiesFromHandle(NULL, NULL, handle),
        CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(vmml_cuMemGetAllocationPropertiesFromHandle(
                         NULL, &shown, handle + 0x100),
                     CUDA_ERROR_INVALID_VALUE);
}

static void a_retained_handle_is_no_way_round(void **state)
{
    CUmemGenericAllocationHandle handle = make_plain(), retained;

    model_map(4, handle);
    assert_int_equal(vmml_create_is_upgraded_at(model_address(5)), true);
    model_release(handle);
    assert_int_equal(vmml_create_is_upgraded_at(model_address(5)), true);
    retained = handle;
    assert_int_equal(types_of(retained), NONE);
    assert_int_equal(model_references(handle), 0);
    assert_false(vmml_create_is_upgraded_at(model_address(3)));
}

static void asking_at_an_address_costs_nothing_without_upgrades(void **state)
{
    CUmemAllocationProp prop = model_prop(0, POSIX_FD);

    model_map(4, make(&prop));
    model_caller = VMML_CALLER_OTHER;
    assert_false(vmml_create_is_upgraded_at(model_address(4)));
    assert_int_equal(model_all_calls(), 1);
}

static void a_value_given_again_is_forgotten(void **state)
{
    CUmemAllocationProp typed = model_prop(0, POSIX_FD);
    CUmemGenericAllocationHandle upgraded, again = 0;

    upgraded = make_plain();
    model_release(upgraded);
    again = make(&typed);
    assert_int_equal(again, upgraded);
    assert_int_equal(types_of(again), POSIX_FD);
    assert_int_equal(export_as(again, POSIX_FD), CUDA_SUCCESS);
    model_release(again);

    assert_int_equal(make_plain(), upgraded);
    model_release(upgraded);
    assert_int_equal(
        vmml_cuMemImportFromShareableHandle(NULL, &again, NULL, POSIX_FD),
        CUDA_SUCCESS);
    assert_int_equal(again, upgraded);
    assert_false(vmml_create_is_upgraded(again));
    assert_int_equal(vmml_create_origin(again), VMML_HANDLE_IMPORTED);
    model_release(again);

    assert_int_equal(make_plain(), upgraded);
    assert_true(vmml_create_is_upgraded(upgraded));
    model_release(upgraded);
    assert_int_equal(vmml_cuMulticastCreate(NULL, &again, NULL), CUDA_SUCCESS);
    assert_int_equal(again, upgraded);
    assert_false(vmml_create_is_upgraded(again));
    assert_int_equal(vmml_create_origin(again), VMML_HANDLE_MULTICAST);
    model_release(again);

    model_conf.create = false;
    assert_int_equal(make_plain(), upgraded);
    assert_false(vmml_create_is_upgraded(upgraded));
    assert_int_equal(vmml_create_origin(upgraded), VMML_HANDLE_PLAIN);
}

static void errors_of_other_makers_change_nothing(void **state)
{
    CUmemGenericAllocationHandle upgraded = make_plain(), other = upgraded;

    model_fail(MODEL_cuMemImportFromShareableHandle, 1,
               CUDA_ERROR_INVALID_VALUE, false);
    model_fail(MODEL_cuMulticastCreate, 1, CUDA_ERROR_NOT_SUPPORTED, false);
    assert_int_equal(
        vmml_cuMemImportFromShareableHandle(NULL, &other, NULL, POSIX_FD),
        CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(vmml_cuMulticastCreate(NULL, &other, NULL),
                     CUDA_ERROR_NOT_SUPPORTED);
    assert_true(vmml_create_is_upgraded(upgraded));
}

/* --- the set of values ---------------------------------------------------- */

static void many_values(void **state)
{
    enum { COUNT = 100000 };
    unsigned i;

    for (i = 1; i <= COUNT; i++)
        assert_int_equal(
            vmml_origins_set(i * 0x1000ull,
                             i % 2 ? VMML_HANDLE_UPGRADED : VMML_HANDLE_PLAIN),
            0);
    assert_int_equal(vmml_origins_upgraded(), COUNT / 2);
    for (i = 1; i <= COUNT; i++)
        assert_int_equal(vmml_origins_get(i * 0x1000ull),
                         i % 2 ? VMML_HANDLE_UPGRADED : VMML_HANDLE_PLAIN);
    assert_int_equal(vmml_origins_get(0x500), VMML_HANDLE_UNKNOWN);
    for (i = 1; i <= COUNT; i++)
        assert_int_equal(vmml_origins_set(i * 0x1000ull, VMML_HANDLE_UNKNOWN),
                         0);
    assert_int_equal(vmml_origins_upgraded(), 0);
    assert_int_equal(vmml_origins_get(0x1000), VMML_HANDLE_UNKNOWN);
}

/* Values that come and go leave no trace that fills the set. */
static void values_that_are_never_used_again(void **state)
{
    uint64_t value;

    for (value = 1; value < 4000000; value++) {
        assert_int_equal(vmml_origins_set(value, VMML_HANDLE_UPGRADED), 0);
        assert_int_equal(vmml_origins_set(value, VMML_HANDLE_UNKNOWN), 0);
    }
}

/* When the set is full nothing is upgraded, and nothing is lost. */
static void a_full_set(void **state)
{
    CUmemGenericAllocationHandle handle;
    uint64_t value = 1;

    while (vmml_origins_set(value << 20, VMML_HANDLE_IMPORTED) == 0)
        assert_true(++value < 3000000);
    assert_true(value > 1000000);
    assert_false(vmml_origins_reserve());
    handle = make_plain();
    assert_int_equal(model_calls(MODEL_cuMemCreate), 1);
    assert_int_equal(model_real_prop(handle).requestedHandleTypes, NONE);
    assert_int_equal(vmml_create_origin(handle), VMML_HANDLE_UNKNOWN);
    assert_int_equal(vmml_origins_get(1 << 20), VMML_HANDLE_IMPORTED);
}

static void *churn(void *argument)
{
    uint64_t base = (uint64_t)(uintptr_t)argument << 32, i;

    for (i = 1; i < 5000; i++) {
        if (vmml_origins_set(base + i, VMML_HANDLE_UPGRADED) != 0 ||
            vmml_origins_get(base + i) != VMML_HANDLE_UPGRADED ||
            vmml_origins_get(base + i + 1) != VMML_HANDLE_UNKNOWN)
            return argument;
    }
    return NULL;
}

static void threads_share_the_set(void **state)
{
    pthread_t threads[4];
    unsigned i;
    void *bad;

    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn,
                                        (void *)(uintptr_t)(i + 1)),
                         0);
    for (i = 0; i < 4; i++) {
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    assert_int_equal(vmml_origins_upgraded(), 4 * 4999);
}

static void fork_child_begins_anew(void **state)
{
    CUmemGenericAllocationHandle handle = make_plain();

    vmml_create_forget();
    assert_false(vmml_create_is_upgraded(handle));
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_request_without_type_is_upgraded),
        TEST(every_other_request_reaches_the_driver),
        TEST(odd_arguments_give_the_drivers_error),
        TEST(a_refusal_repeats_the_own_request),
        TEST(an_error_of_both_is_the_second_one),
        TEST(toggles),
        TEST(drivers_before_535),
        TEST(a_device_without_descriptors),
        TEST(wsl_kernels),
        TEST(failed_questions_do_not_stick),
        TEST(the_platform_is_asked_once),
        TEST(only_uct_cuda_and_the_shim_can_tell),
        TEST(other_properties_are_the_drivers),
        TEST(a_retained_handle_is_no_way_round),
        TEST(asking_at_an_address_costs_nothing_without_upgrades),
        TEST(a_value_given_again_is_forgotten),
        TEST(errors_of_other_makers_change_nothing),
        TEST(many_values),
        TEST(values_that_are_never_used_again),
        TEST(a_full_set),
        TEST(threads_share_the_set),
        TEST(fork_child_begins_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
