/*
 * Preloaded in front of the shim: what libuct_cuda is told of memory that is
 * none of vmmlane's business must be the driver's own answer, bit for bit (C2).
 * Each such call is made again past every hook, and compared.
 *
 * Built under a name by which the shim takes it for libuct_cuda: the return
 * address of a call is in here.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unseen.h"

#define EXPORT __attribute__((visibility("default")))

enum { POISONED = 0xa5, ANSWER = 16 };

/* Called, and of these otherwise answered than by the driver. */
static struct counts {
    const char *name;
    unsigned long calls;
    unsigned long differ;
} counts[16];

static void count(const char *name, bool same)
{
    unsigned i = 0;

    while (counts[i].name != NULL && strcmp(counts[i].name, name) != 0)
        i++;
    counts[i].name = name;
    __atomic_add_fetch(&counts[i].calls, 1, __ATOMIC_RELAXED);
    if (!same)
        __atomic_add_fetch(&counts[i].differ, 1, __ATOMIC_RELAXED);
}

__attribute__((destructor)) static void print(void)
{
    for (unsigned i = 0; counts[i].name != NULL; i++)
        printf("compared %s calls=%lu differ=%lu\n", counts[i].name,
               counts[i].calls, counts[i].differ);
    fflush(stdout);
}

/* The shim's, or the driver's where it is not preloaded; and the driver's own.
 */
static void *next_of(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (found == NULL)
        abort();
    return found;
}

#define NAME_OF(function) #function
#define NEXT(function)    ((__typeof__(&(function)))next_of(NAME_OF(function)))
#define RAW(function)                                                          \
    ({                                                                         \
        static void *at;                                                       \
                                                                               \
        if (at == NULL)                                                        \
            at = unseen_symbol(NAME_OF(function));                             \
        if (at == NULL)                                                        \
            abort();                                                           \
        (__typeof__(&(function)))at;                                           \
    })

static bool is_asked_by_ucx(const void *caller)
{
    Dl_info info;

    return dladdr(caller, &info) != 0 &&
           strstr(info.dli_fname, "/libuct_cuda") != NULL;
}

/* Not of cuMemCreate, and not on a mirror, which is. */
static bool is_plain(CUdeviceptr ptr)
{
    CUmemGenericAllocationHandle handle;

    if (RAW(cuMemRetainAllocationHandle)(&handle, (void *)ptr) != CUDA_SUCCESS)
        return true;
    RAW(cuMemRelease)(handle);
    return false;
}

/* Of what this thread's libuct_cuda asked last. */
static __thread bool last_is_plain;

static bool note_asked(const void *caller, CUdeviceptr ptr)
{
    if (!is_asked_by_ucx(caller))
        return false;
    last_is_plain = is_plain(ptr);
    return last_is_plain;
}

#define IS_COMPARED(ptr) note_asked(__builtin_return_address(0), ptr)

EXPORT CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size,
                                     CUdeviceptr ptr)
{
    CUdeviceptr raw_base = 0;
    size_t raw_size = 0;
    CUresult result = NEXT(cuMemGetAddressRange)(base, size, ptr);
    CUresult raw;

    if (!IS_COMPARED(ptr))
        return result;
    raw = RAW(cuMemGetAddressRange)(&raw_base, &raw_size, ptr);
    count("cuMemGetAddressRange",
          raw == result &&
              (raw != CUDA_SUCCESS || ((base == NULL || *base == raw_base) &&
                                       (size == NULL || *size == raw_size))));
    return result;
}

/* Bytes that the driver writes for it (measured). */
static size_t size_of(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    /* 8 bytes, of which UCX 1.18 has room for 4. */
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return 4;
    default:
        return 8;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                      CUdeviceptr ptr)
{
    unsigned char raw_data[ANSWER];
    CUresult result, raw;

    memset(raw_data, POISONED, sizeof(raw_data));
    result = NEXT(cuPointerGetAttribute)(data, attribute, ptr);
    if (!IS_COMPARED(ptr))
        return result;
    raw = RAW(cuPointerGetAttribute)(raw_data, attribute, ptr);
    count("cuPointerGetAttribute",
          raw == result && (raw != CUDA_SUCCESS ||
                            memcmp(data, raw_data, size_of(attribute)) == 0));
    return result;
}

EXPORT CUresult cuPointerGetAttributes(unsigned number,
                                       CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr ptr)
{
    unsigned char answers[16][ANSWER];
    void *raw_data[16];
    bool same = number <= 16;
    CUresult result =
        NEXT(cuPointerGetAttributes)(number, attributes, data, ptr);
    CUresult raw;

    if (!IS_COMPARED(ptr))
        return result;
    memset(answers, POISONED, sizeof(answers));
    for (unsigned i = 0; i < 16; i++)
        raw_data[i] = answers[i];
    raw = same ? RAW(cuPointerGetAttributes)(number, attributes, raw_data, ptr)
               : CUDA_ERROR_UNKNOWN;
    same &= raw == result;
    for (unsigned i = 0; i < number && same && raw == CUDA_SUCCESS; i++)
        same = memcmp(data[i], answers[i], size_of(attributes[i])) == 0;
    count("cuPointerGetAttributes", same);
    return result;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    CUipcMemHandle raw_handle;
    CUresult result = NEXT(cuIpcGetMemHandle)(handle, ptr);
    CUresult raw;

    if (!IS_COMPARED(ptr))
        return result;
    raw = RAW(cuIpcGetMemHandle)(&raw_handle, ptr);
    count("cuIpcGetMemHandle",
          raw == result &&
              (raw != CUDA_SUCCESS ||
               memcmp(handle, &raw_handle, sizeof(raw_handle)) == 0));
    return result;
}

/* vmmlane's magic, wherever a shift by 4 leaves it (src/lane/handle.h). */
static bool is_synthetic(const CUipcMemHandle *handle)
{
    for (unsigned i = 0; i <= 12; i += 4)
        if (memcmp(handle->reserved + i, "vmml", 4) == 0)
            return true;
    return false;
}

/* What was opened here and not closed: memory that the driver knows as its. */
static CUdeviceptr opened[64];

static void note_opened(CUdeviceptr from, CUdeviceptr to)
{
    for (unsigned i = 0; i < 64; i++)
        if (opened[i] == from) {
            opened[i] = to;
            return;
        }
}

static bool was_opened(CUdeviceptr ptr)
{
    for (unsigned i = 0; i < 64; i++)
        if (opened[i] == ptr)
            return true;
    return false;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle,
                                   unsigned flags)
{
    CUresult result = NEXT(cuIpcOpenMemHandle)(ptr, handle, flags);
    CUdeviceptr base = 0;

    if (!is_asked_by_ucx(__builtin_return_address(0)) || is_synthetic(&handle))
        return result;
    /* Opened once more it would be counted: look at what came instead. */
    count("cuIpcOpenMemHandle",
          result == CUDA_SUCCESS && is_plain(*ptr) &&
              RAW(cuMemGetAddressRange)(&base, NULL, *ptr) == CUDA_SUCCESS &&
              base == *ptr);
    if (result == CUDA_SUCCESS)
        note_opened(0, *ptr);
    return result;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    bool genuine = was_opened(ptr);
    CUresult result = NEXT(cuIpcCloseMemHandle)(ptr);
    CUdeviceptr base;

    if (genuine) {
        note_opened(ptr, 0);
        count("cuIpcCloseMemHandle",
              result == CUDA_SUCCESS &&
                  RAW(cuMemGetAddressRange)(&base, NULL, ptr) != CUDA_SUCCESS);
    }
    return result;
}

/* In a key of vmmlane's the UUID is another. */
#define COMPARE_UUID(function)                                                 \
    EXPORT CUresult function(CUuuid *uuid, CUdevice device)                    \
    {                                                                          \
        CUresult result = NEXT(function)(uuid, device);                        \
        CUresult raw;                                                          \
        CUuuid own;                                                            \
                                                                               \
        if (!last_is_plain || !is_asked_by_ucx(__builtin_return_address(0)))   \
            return result;                                                     \
        raw = RAW(function)(&own, device);                                     \
        count(NAME_OF(function),                                               \
              raw == result && (raw != CUDA_SUCCESS ||                         \
                                memcmp(uuid, &own, sizeof(own)) == 0));        \
        return result;                                                         \
    }

/* The header calls the second one by the first one's name. */
COMPARE_UUID(cuDeviceGetUuid)
#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
COMPARE_UUID(cuDeviceGetUuid)
