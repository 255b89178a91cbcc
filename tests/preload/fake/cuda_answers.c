/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "fake_cuda.h"
#include "cuda_abi.h"

FAKE_EXPORT int fake_init_looks_up;

static void *fake_address(const char *name)
{
    for (const struct fake_function *f = fake_functions; f->name != NULL; f++) {
        if (strcmp(f->name, name) == 0)
            return f->address;
    }
    return NULL;
}

/* The base name "cuX" to cuX_v2, or to cuX where there is no other. */
static void *fake_resolve(const char *symbol, int version, cuuint64_t flags)
{
    char name[128];
    void *address;

    if (strcmp(symbol, "cuGetProcAddress") == 0) {
        if (version < 12000)
            return fake_address("cuGetProcAddress");
        return fake_address(
            flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                ? "cuGetProcAddress_v2_ptsz"
                : "cuGetProcAddress_v2");
    }
    snprintf(name, sizeof(name), "%s_v2", symbol);
    address = fake_address(name);
    return address != NULL ? address : fake_address(symbol);
}

static CUresult fake_check(const char *symbol, void **pfn, int version)
{
    if (symbol == NULL || pfn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return version > 13000 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn,
                                      int version, cuuint64_t flags)
{
    CUresult result = fake_check(symbol, pfn, version);

    if (result != CUDA_SUCCESS)
        return result;
    *pfn = fake_resolve(symbol, version, flags);
    return *pfn != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FAKE_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn,
                                         int version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult *status)
{
    CUresult result = fake_check(symbol, pfn, version);

    if (result != CUDA_SUCCESS)
        return result;
    *pfn = fake_resolve(symbol, version, flags);
    if (status != NULL)
        *status = *pfn != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetProcAddress_v2_ptsz(
    const char *symbol, void **pfn, int version, cuuint64_t flags,
    CUdriverProcAddressQueryResult *status)
{
    return cuGetProcAddress_v2(
        symbol, pfn, version,
        flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
}

FAKE_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size,
                                             CUdeviceptr ptr)
{
    if (ptr == 0)
        return CUDA_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = ptr & ~0xfffull;
    if (size != NULL)
        *size = 0x1000;
    return CUDA_SUCCESS;
}

/* Attribute 0 is an error, others give their number. */
FAKE_EXPORT CUresult cuPointerGetAttribute(void *data,
                                           CUpointer_attribute attribute,
                                           CUdeviceptr ptr)
{
    if (data == NULL || attribute == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned *)data = attribute;
    return CUDA_SUCCESS;
}

/* Stops at the first error. */
FAKE_EXPORT CUresult cuPointerGetAttributes(unsigned count,
                                            CUpointer_attribute *attributes,
                                            void **data, CUdeviceptr ptr)
{
    for (unsigned i = 0; i < count; i++) {
        CUresult result = cuPointerGetAttribute(data[i], attributes[i], ptr);

        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static int fake_own(void *found, const char *name)
{
    return found == fake_address(name);
}

/* As the real driver: it asks the loader, and itself, for its own names. */
static int fake_look_up(void)
{
    void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    void *pfn = NULL;
    int good;

    if (self == NULL)
        return 0;
    good = fake_own(dlsym(self, "cuInit"), "cuInit") &&
           fake_own(dlsym(self, "cuMemMap"), "cuMemMap") &&
           fake_own(dlsym(RTLD_DEFAULT, "cuMemUnmap"), "cuMemUnmap");
    good =
        good &&
        cuGetProcAddress_v2("cuMemMap", &pfn, 12000, 0, NULL) == CUDA_SUCCESS &&
        fake_own(pfn, "cuMemMap");
    dlclose(self);
    return good;
}

FAKE_EXPORT CUresult cuInit(unsigned flags)
{
    return fake_init_looks_up && !fake_look_up() ? CUDA_ERROR_UNKNOWN
                                                 : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}
