/* SPDX-License-Identifier: MIT */
/* Who is told extents: a module that VMMLANE_RANGE_CALLERS names, nobody else.
 * On the simulated driver, VMMLANE_RANGE_CALLERS=libother*,libfake_named.so. */
#include "preload.h"

#include "cuda_abi.h"

#define CHUNK  (2ull << 20)
#define CHUNKS 3

extern int fake_named(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
extern int fake_unnamed(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);

static void map_chunk(CUdeviceptr at)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
    };
    CUmemAccessDesc desc = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    CHECK_INT(cuMemCreate(&handle, CHUNK, &prop, 0), CUDA_SUCCESS);
    CHECK_INT(cuMemMap(at, CHUNK, 0, handle, 0), CUDA_SUCCESS);
    CHECK_INT(cuMemSetAccess(at, CHUNK, &desc, 1), CUDA_SUCCESS);
    CHECK_INT(cuMemRelease(handle), CUDA_SUCCESS);
}

static void check_range(int (*ask)(CUdeviceptr *, size_t *, CUdeviceptr),
                        CUdeviceptr ptr, CUdeviceptr base, size_t size)
{
    CUdeviceptr got_base = 0;
    size_t got_size = 0;

    CHECK_INT(ask(&got_base, &got_size, ptr), CUDA_SUCCESS);
    CHECK_INT(got_base, base);
    CHECK_INT(got_size, size);
    CHECK_INT(ask(NULL, &got_size, ptr), CUDA_SUCCESS);
    CHECK_INT(got_size, size);
    CHECK_INT(ask(NULL, NULL, ptr), CUDA_SUCCESS);
}

static int ask_here(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    return cuMemGetAddressRange_v2(base, size, ptr);
}

int main(void)
{
    CUdeviceptr window;
    CUcontext context;

    CHECK_INT(cuInit(0), CUDA_SUCCESS);
    CHECK_INT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    CHECK_INT(cuMemAddressReserve(&window, 16 * CHUNK, 0, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < CHUNKS; i++)
        map_chunk(window + i * CHUNK);
    for (int i = 0; i < CHUNKS; i++) {
        CUdeviceptr chunk = window + i * CHUNK, ptr = chunk + 12345;

        check_range(ask_here, ptr, chunk, CHUNK);
        check_range(fake_unnamed, ptr, chunk, CHUNK);
        check_range(fake_named, ptr, window, CHUNKS * CHUNK);
    }
    CHECK_INT(fake_named(&window, NULL, window + CHUNKS * CHUNK),
              CUDA_ERROR_NOT_FOUND);
    return 0;
}
