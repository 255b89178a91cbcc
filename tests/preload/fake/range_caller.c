/* SPDX-License-Identifier: MIT */
/* Asks from a module of its own. */
#include <stddef.h>

#include "cuda_abi.h"

FAKE_EXPORT int FAKE_NAME(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
FAKE_EXPORT int FAKE_NAME(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    CUresult result = cuMemGetAddressRange_v2(base, size, ptr);

    __asm__ volatile("" : "+r"(result)); /* no tail call */
    return result;
}
