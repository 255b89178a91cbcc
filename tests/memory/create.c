/* SPDX-License-Identifier: MIT */
/* The cuMemCreate upgrade, and who can tell. */
#include "memory.h"

#include <string.h>
#include <unistd.h>

#define NONE     CU_MEM_HANDLE_TYPE_NONE
#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC   CU_MEM_HANDLE_TYPE_FABRIC

static CUmemAllocationHandleType
types_shown(const struct asker *who, CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;

    CHECK_CU(who->properties(&prop, handle));
    return prop.requestedHandleTypes;
}

/* As memory of `types` looks to this module, by every question. */
static void check_types(const struct asker *who, CUdeviceptr ptr,
                        CUmemAllocationHandleType types)
{
    CUresult expected = types == NONE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    CUmemGenericAllocationHandle handle = 0;
    unsigned long long allowed = 0;
    int fd = -1;

    CHECK_CU(who->retain(&handle, ptr));
    CHECK_INT(types_shown(who, handle), types);
    CHECK_CU(who->types(&allowed, ptr));
    CHECK_INT(allowed, types);
    CHECK_CU(who->types_of_many(&allowed, ptr));
    CHECK_INT(allowed, types);
    CHECK_INT(who->export_handle(&fd, handle, POSIX_FD), expected);
    if (types == NONE)
        CHECK_INT(fd, -1);
    else
        CHECK_INT(close(fd), 0);
    fd = -1;
    CHECK_INT(who->export_handle(&fd, handle, FABRIC),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_CU(cuMemRelease(handle));
}

static CUdeviceptr map_one(CUmemGenericAllocationHandle handle)
{
    CUdeviceptr ptr = memory_reserve(1, 0);

    memory_map(ptr, 1, handle, 0);
    return ptr;
}

/* The program itself, as one more who asks. */
static CUresult own_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    return cuMemGetAddressRange_v2(base, size, ptr);
}

static CUresult own_properties(CUmemAllocationProp *prop,
                               CUmemGenericAllocationHandle handle)
{
    return cuMemGetAllocationPropertiesFromHandle(prop, handle);
}

static CUresult own_export(int *fd, CUmemGenericAllocationHandle handle,
                           CUmemAllocationHandleType type)
{
    return cuMemExportToShareableHandle(fd, handle, type, 0);
}

static CUresult own_retain(CUmemGenericAllocationHandle *handle,
                           CUdeviceptr ptr)
{
    return cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)ptr);
}

static CUresult own_types(unsigned long long *types, CUdeviceptr ptr)
{
    return cuPointerGetAttribute(
        types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr);
}

static const struct asker own = {own_range,  own_properties, own_export,
                                 own_retain, own_types,      own_types};

void case_upgrade(void)
{
    CUmemAllocationProp prop = memory_prop(NONE), shown;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    prop.allocFlags.gpuDirectRDMACapable = 1;
    memory_count_anew();
    handle = memory_create(1, &prop);
    CHECK_CU(cuMemGetAllocationPropertiesFromHandle(&shown, handle));
    CHECK(memcmp(&shown, &prop, sizeof(prop)) == 0);
    ptr = map_one(handle);
    check_types(&own, ptr, NONE);
    check_types(named, ptr, NONE);
    check_types(ucm_cuda, ptr, NONE);
    check_types(uct_cuda, ptr, POSIX_FD);
    CHECK_INT(memory_calls("cuMemCreate", 1), 1);

    /* What was asked for with a type is shown with it. */
    prop = memory_prop(POSIX_FD);
    handle = memory_create(1, &prop);
    ptr = map_one(handle);
    check_types(&own, ptr, POSIX_FD);
    check_types(uct_cuda, ptr, POSIX_FD);
}

static void check_not_upgraded(const CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle;

    memory_count_anew();
    handle = memory_create(1, prop);
    CHECK_INT(memory_calls("cuMemCreate", 1), 1);
    CHECK_INT(types_shown(uct_cuda, handle), prop->requestedHandleTypes);
    CHECK_CU(cuMemRelease(handle));
}

/* Old drivers and the toggle; and requests that are never altered. */
void case_upgrade_not(void)
{
    CUmemAllocationProp prop = memory_prop(NONE);

    if (getenv("MEMORY_UPGRADES_NOTHING") != NULL)
        check_not_upgraded(&prop);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    check_not_upgraded(&prop);
    memory_need_sim(); /* not every device compresses */
    prop = memory_prop(NONE);
    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    check_not_upgraded(&prop);
    prop = memory_prop(POSIX_FD);
    check_not_upgraded(&prop);
}

/* Whatever the driver says to the first request, the second is the caller's
 * own. */
void case_upgrade_refused(void)
{
    static const CUresult errors[] = {
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};
    CUmemAllocationProp prop = memory_prop(NONE);
    CUmemGenericAllocationHandle handle = 0;
    unsigned i;

    memory_need_sim();
    for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        memory_count_anew();
        CHECK_INT(memory_sim->fail("cuMemCreate", 1, (int)errors[i], 0), 0);
        handle = memory_create(1, &prop);
        CHECK_INT(memory_calls("cuMemCreate", 2), 2);
        CHECK_INT(types_shown(uct_cuda, handle), NONE);
        check_types(&own, map_one(handle), NONE);
        memory_sim->clear_failures();

        /* Both fail: the second one's error. */
        CHECK_INT(memory_sim->fail("cuMemCreate", 1, (int)errors[i], 0), 0);
        CHECK_INT(
            memory_sim->fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
        CHECK_INT(cuMemCreate(&handle, CHUNK, &prop, 0),
                  CUDA_ERROR_OUT_OF_MEMORY);
        memory_sim->clear_failures();
        /* Nothing sticks. */
        handle = memory_create(1, &prop);
        CHECK_INT(types_shown(uct_cuda, handle), POSIX_FD);
        CHECK_CU(cuMemRelease(handle));
    }
}

/* A value that the driver gives again means another allocation. */
void case_upgrade_values(void)
{
    CUmemAllocationProp plain = memory_prop(NONE);
    CUmemAllocationProp typed = memory_prop(POSIX_FD);
    CUmemGenericAllocationHandle source = memory_create(1, &typed), first, next;
    unsigned i, same = 0;
    int fd = -1;

    for (i = 0; i < 20; i++) {
        first = memory_create(1, &plain);
        CHECK_INT(types_shown(&own, first), NONE);
        CHECK_CU(cuMemRelease(first));
        if (i % 2) {
            next = memory_create(1, &typed);
            CHECK_INT(types_shown(&own, next), POSIX_FD);
            CHECK_CU(cuMemExportToShareableHandle(&fd, next, POSIX_FD, 0));
            CHECK_INT(close(fd), 0);
        } else {
            CHECK_CU(cuMemExportToShareableHandle(&fd, source, POSIX_FD, 0));
            CHECK_CU(cuMemImportFromShareableHandle(
                &next, (void *)(uintptr_t)fd, POSIX_FD));
            CHECK_INT(types_shown(uct_cuda, next), NONE);
            CHECK_INT(close(fd), 0);
        }
        same += next == first;
        CHECK_CU(cuMemRelease(next));
    }
    printf("%u of %u values were given again\n", same, i);
}
