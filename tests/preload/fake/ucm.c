/* SPDX-License-Identifier: MIT */
/* Looks for functions to patch, as UCX's ucm_reloc_get_orig: on its own handle
 * first, then everywhere. */
#include <dlfcn.h>
#include <stddef.h>

#include "cuda_abi.h"

FAKE_EXPORT void *fake_ucm_find(const char *name, int everywhere);
FAKE_EXPORT void *fake_ucm_find(const char *name, int everywhere)
{
    void *handle, *address;
    Dl_info info;

    if (everywhere) {
        address = dlsym(RTLD_DEFAULT, name);
        __asm__ volatile("" : "+r"(address)); /* no tail call */
        return address;
    }
    if (dladdr((void *)fake_ucm_find, &info) == 0)
        return NULL;
    handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return handle != NULL ? dlsym(handle, name) : NULL;
}

FAKE_EXPORT void *fake_ucm_resolve(const char *symbol);
FAKE_EXPORT void *fake_ucm_resolve(const char *symbol)
{
    void *pfn = NULL;

    if (cuGetProcAddress_v2(symbol, &pfn, 12000, 0, NULL) != CUDA_SUCCESS)
        return NULL;
    return pfn;
}

/* Keeps libcuda among the dependencies. */
FAKE_EXPORT int fake_ucm_range(CUdeviceptr *base, size_t *size, CUdeviceptr p);
FAKE_EXPORT int fake_ucm_range(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
    return cuMemGetAddressRange_v2(base, size, p);
}
