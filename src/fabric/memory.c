/* SPDX-License-Identifier: MIT */
#include "fabric/memory.h"

#include <string.h>

#include "base/driver.h"
#include "base/log.h"

static CUresult set_access(const struct vmml_real *real,
                           const struct vmml_block_memory *memory)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };

    return real->cuMemSetAccess(memory->address, memory->size, &desc, 1);
}

static void undo(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED)
        vmml_warn_once("%s of a metadata block failed (%d)", what, (int)result);
}

void vmml_block_close(const struct vmml_real *real,
                      struct vmml_block_memory *memory)
{
    CUresult result;

    if (memory->address == 0)
        return;
    /* Each once more: what is not given back now is never. */
    result = real->cuMemUnmap(memory->address, memory->size);
    if (result != CUDA_SUCCESS)
        result = real->cuMemUnmap(memory->address, memory->size);
    undo(result, "cuMemUnmap");
    if (result == CUDA_SUCCESS &&
        real->cuMemAddressFree(memory->address, memory->size) != CUDA_SUCCESS)
        undo(real->cuMemAddressFree(memory->address, memory->size),
             "cuMemAddressFree");
    memory->address = 0;
}

/* The mapping keeps the memory: `handle` stays the caller's to release. */
static CUresult map(const struct vmml_real *real, CUdevice device, size_t size,
                    CUmemGenericAllocationHandle handle,
                    struct vmml_block_memory *memory)
{
    CUresult result;

    memory->size = size;
    memory->device = device;
    result = real->cuMemAddressReserve(&memory->address, size, 0, 0, 0);
    if (result != CUDA_SUCCESS) {
        memory->address = 0;
        return result;
    }
    result = real->cuMemMap(memory->address, size, 0, handle, 0);
    if (result != CUDA_SUCCESS) {
        undo(real->cuMemAddressFree(memory->address, size), "cuMemAddressFree");
        memory->address = 0;
        return result;
    }
    result = set_access(real, memory);
    if (result != CUDA_SUCCESS)
        vmml_block_close(real, memory);
    return result;
}

CUresult vmml_block_create(const struct vmml_real *real, CUdevice device,
                           size_t size, struct vmml_block_memory *memory,
                           CUmemFabricHandle *fabric)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    CUresult result;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    memory->address = 0;
    result = real->cuMemCreate(&handle, size, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuMemExportToShareableHandle(fabric, handle,
                                                CU_MEM_HANDLE_TYPE_FABRIC, 0);
    if (result == CUDA_SUCCESS)
        result = map(real, device, size, handle, memory);
    vmml_release(real, handle);
    return result;
}

CUresult vmml_block_open(const struct vmml_real *real, CUdevice device,
                         const CUmemFabricHandle *fabric, size_t size,
                         struct vmml_block_memory *memory)
{
    CUmemFabricHandle copy = *fabric; /* the driver takes it without const */
    CUmemGenericAllocationHandle handle;
    CUresult result;

    memory->address = 0;
    result = real->cuMemImportFromShareableHandle(&handle, &copy,
                                                  CU_MEM_HANDLE_TYPE_FABRIC);
    if (result != CUDA_SUCCESS)
        return result;
    result = map(real, device, size, handle, memory);
    vmml_release(real, handle);
    return result;
}

static CUresult copy_one(const struct vmml_real *real, bool write,
                         CUdeviceptr at, const struct vmml_block_copy *copy,
                         CUstream stream)
{
    return write ? real->cuMemcpyHtoDAsync_v2(at + copy->offset, copy->host,
                                              copy->length, stream)
                 : real->cuMemcpyDtoHAsync_v2(copy->host, at + copy->offset,
                                              copy->length, stream);
}

static CUresult copy_on(const struct vmml_real *real,
                        const struct vmml_block_memory *memory, bool write,
                        const struct vmml_block_copy *copies, size_t count,
                        CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    CUresult ended;
    size_t i;

    for (i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = copy_one(real, write, memory->address, &copies[i], stream);
    /* Also after a failure: the host memory is the caller's again. */
    ended = real->cuStreamSynchronize(stream);
    return result != CUDA_SUCCESS ? result : ended;
}

/* Its own stream, so that no work of the application is waited for. */
static CUresult copy_in_context(const struct vmml_real *real,
                                const struct vmml_block_memory *memory,
                                bool write,
                                const struct vmml_block_copy *copies,
                                size_t count)
{
    CUstream stream;
    CUresult result = real->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

    if (result != CUDA_SUCCESS)
        return result;
    result = copy_on(real, memory, write, copies, count, stream);
    /* Once only: to destroy a stream that is gone ends the process (measured),
     * and an error may be that of an earlier launch. */
    undo(real->cuStreamDestroy_v2(stream), "cuStreamDestroy");
    return result;
}

static CUresult copy_all(const struct vmml_real *real,
                         const struct vmml_block_memory *memory, bool write,
                         const struct vmml_block_copy *copies, size_t count)
{
    CUdevice current;
    CUresult result;

    if (vmml_push_primary(real, memory->device)) {
        result = copy_in_context(real, memory, write, copies, count);
        vmml_pop_primary(real, memory->device);
        return result;
    }
    if (real->cuCtxGetDevice(&current) != CUDA_SUCCESS ||
        current != memory->device)
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy_in_context(real, memory, write, copies, count);
}

CUresult vmml_block_write(const struct vmml_real *real,
                          const struct vmml_block_memory *memory,
                          const struct vmml_block_copy *copies, size_t count)
{
    return copy_all(real, memory, true, copies, count);
}

CUresult vmml_block_read(const struct vmml_real *real,
                         const struct vmml_block_memory *memory,
                         const struct vmml_block_copy *copies, size_t count)
{
    return copy_all(real, memory, false, copies, count);
}
