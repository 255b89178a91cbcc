/* SPDX-License-Identifier: MIT */
/* A libcuda.so.1 that is ill: BAD_DRIVER says how. */
#include <cuda.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int is(const char *illness)
{
    const char *given = getenv("BAD_DRIVER");

    return given != NULL && strcmp(given, illness) == 0;
}

EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
    while (is("hangs"))
        pause();
    if (is("crashes"))
        raise(SIGSEGV);
    if (is("exits"))
        exit(3);
    if (is("a stub"))
        return CUDA_ERROR_STUB_LIBRARY;
    if (is("mismatched"))
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    *version = 12020;
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    *count = is("without devices") ? 0 : 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult attribute(int *value, CUdevice_attribute which)
{
    if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) {
        *value = is("prohibited")  ? CU_COMPUTEMODE_PROHIBITED
                 : is("exclusive") ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS
                                   : CU_COMPUTEMODE_DEFAULT;
        return CUDA_SUCCESS;
    }
    *value = which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
                 ? !is("without VMM")
                 : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *value,
                                             CUdevice_attribute which,
                                             CUdevice device)
{
    while (is("hangs later"))
        pause();
    return attribute(value, which);
}

/* Looked up, never called: its devices have no POSIX_FD handles. */
__asm__(".globl cuMemGetAllocationGranularity, cuMemCreate, cuMemRelease\n"
        ".globl cuMemExportToShareableHandle, cuMemImportFromShareableHandle\n"
        ".globl cuMemAddressReserve, cuMemAddressFree, cuMemMap, cuMemUnmap\n"
        ".globl cuMemSetAccess\n"
        ".set cuMemGetAllocationGranularity, cuInit\n"
        ".set cuMemCreate, cuInit\n"
        ".set cuMemRelease, cuInit\n"
        ".set cuMemExportToShareableHandle, cuInit\n"
        ".set cuMemImportFromShareableHandle, cuInit\n"
        ".set cuMemAddressReserve, cuInit\n"
        ".set cuMemAddressFree, cuInit\n"
        ".set cuMemMap, cuInit\n"
        ".set cuMemUnmap, cuInit\n"
        ".set cuMemSetAccess, cuInit\n");
