/* SPDX-License-Identifier: MIT */
/* Built without tail calls: vmmlane tells callers apart by their return
 * address. */
#include "module.h"

#include <dlfcn.h>
#include <string.h>

/* Where UCX 1.22's key has what the driver gave (uct_cuda_ipc_rkey_t). */
#define KEY_HANDLE 8
#define KEY_ID     (KEY_HANDLE + 64)
#define KEY_UUID   (KEY_ID + 8)
#define KEY_RANGE  (KEY_UUID + 16)

extern const struct bench_module bench_module;

static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    return cuMemGetAddressRange(base, size, ptr);
}

static CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t length,
                     CUstream stream)
{
    return cuMemcpyDtoDAsync(dst, src, length, stream);
}

static CUresult (*real)(CUdeviceptr dst, CUdeviceptr src, size_t length,
                        CUstream stream);

static CUresult copy_real(CUdeviceptr dst, CUdeviceptr src, size_t length,
                          CUstream stream)
{
    return real(dst, src, length, stream);
}

static CUresult material(uint8_t key[BENCH_KEY], CUdeviceptr ptr)
{
    unsigned long long types = 0, id = 0;
    int legacy = 0;
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    void *data[] = {&legacy, &types};
    CUipcMemHandle handle;
    CUdeviceptr base = 0;
    size_t size = 0;
    CUuuid uuid;
    CUresult result;

    memset(key, 0, BENCH_KEY);
    result = cuMemGetAddressRange(&base, &size, ptr);
    if (result == CUDA_SUCCESS)
        result =
            cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
    if (result == CUDA_SUCCESS)
        result = cuPointerGetAttributes(2, attributes, data, ptr);
    if (result == CUDA_SUCCESS)
        result = cuIpcGetMemHandle(&handle, ptr);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetUuid(&uuid, 0);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(key + KEY_HANDLE, &handle, sizeof(handle));
    memcpy(key + KEY_ID, &id, sizeof(id));
    memcpy(key + KEY_UUID, &uuid, sizeof(uuid));
    memcpy(key + KEY_RANGE, &base, sizeof(base));
    memcpy(key + KEY_RANGE + 8, &size, sizeof(size));
    return CUDA_SUCCESS;
}

static CUresult open_key(CUdeviceptr *ptr, const uint8_t key[BENCH_KEY])
{
    CUipcMemHandle handle;

    memcpy(&handle, key + KEY_HANDLE, sizeof(handle));
    return cuIpcOpenMemHandle(ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void *symbol(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);

    return driver == NULL ? NULL : dlsym(driver, name);
}

static const struct vmml_uct_component ipc_component = {"cuda_ipc"};
static const struct vmml_uct_component copy_component = {"cuda_cpy"};
static struct bench_md ipc_md = {{{NULL, &ipc_component}, 0}, &bench_module};
static struct bench_md copy_md = {{{NULL, &copy_component}, 0}, &bench_module};

__attribute__((visibility("default")))
const struct bench_module bench_module = {
    .ipc_md = &ipc_md.super.super,
    .copy_md = &copy_md.super.super,
    .range = range,
    .copy = copy,
    .copy_real = copy_real,
    .real = (void **)&real,
    .material = material,
    .open = open_key,
    .symbol = symbol,
};
