/* SPDX-License-Identifier: MIT */
/*
 * Hooks of what an importer's UCX does with a mirror.
 */
#include "hooks.h"

#include <stdlib.h>

#include "base/conf.h"
#include "base/driver.h"
#include "base/fork.h"
#include "base/log.h"
#include "doors/caller.h"
#include "doors/real.h"
#include "ipc/ipc.h"
#include "mirror/mirror.h"
#include "ucx/device.h"

static bool is_ucx(const void *caller)
{
    return !vmml_in_child && vmml_conf()->on &&
           vmml_hook_caller(caller) == VMML_CALLER_UCT_CUDA;
}

CUresult vmml_cuIpcOpenMemHandle_v2(const void *caller, CUdeviceptr *ptr,
                                    CUipcMemHandle handle, unsigned flags)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_handle ours;
    CUdevice device;
    CUresult result;

    if (real == NULL || real->cuIpcOpenMemHandle_v2 == NULL)
        return VMML_CU_MISSING;
    if (vmml_ipc_is_for(caller) && vmml_ipc_open(real, ptr, &handle, &result))
        return result;
    if (ptr == NULL || !is_ucx(caller) ||
        vmml_handle_find((const uint8_t *)handle.reserved,
                         sizeof(handle.reserved), &ours) < 0 ||
        (ours.flags & VMML_HANDLE_IPC))
        return real->cuIpcOpenMemHandle_v2(ptr, handle, flags);
    if (!vmml_conf()->share)
        return CUDA_ERROR_INVALID_VALUE;
    if (vmml_unpack_is_bare(&device))
        return vmml_mirror_open_on(&ours, device, ptr);
    return vmml_mirror_open(&ours, ptr);
}

CUresult vmml_cuIpcCloseMemHandle(const void *caller, CUdeviceptr ptr)
{
    const struct vmml_real *real = vmml_real();

    if (is_ucx(caller) && vmml_mirror_close(ptr))
        return CUDA_SUCCESS;
    if (vmml_ipc_is_for(caller) && vmml_ipc_close(ptr))
        return CUDA_SUCCESS;
    if (real == NULL || real->cuIpcCloseMemHandle == NULL)
        return VMML_CU_MISSING;
    return real->cuIpcCloseMemHandle(ptr);
}

struct single {
    const struct vmml_real *real;
    struct vmml_copy copy;
    CUstream stream;
};

/* UCX takes a copy whose post failed for one that never began: no piece of it
 * may still be under way then. */
static CUresult give_up(const struct single *single, CUresult result)
{
    struct vmml_relaxed relaxed;

    vmml_relax(single->real, &relaxed);
    if (single->real->cuStreamSynchronize(single->stream) != CUDA_SUCCESS)
        vmml_debug("the stream of a refused copy has failed");
    vmml_relax_end(single->real, &relaxed);
    return result;
}

static CUresult post_single(void *arg)
{
    const struct single *single = arg;
    const struct vmml_copy *copy = &single->copy;
    struct vmml_pieces pieces = vmml_mirror_pieces(single->real, copy);
    size_t piece = pieces.first;
    size_t at = 0;

    do {
        size_t rest = copy->length - at;
        size_t length = piece < rest ? piece : rest;
        CUresult result = single->real->cuMemcpyDtoDAsync_v2(
            copy->dst + at, copy->src + at, length, single->stream);

        if (result != CUDA_SUCCESS)
            return at == 0 ? result : give_up(single, result);
        at += length;
        piece *= pieces.growth;
    } while (at < copy->length);
    return CUDA_SUCCESS;
}

static CUresult post(const struct vmml_real *real, struct vmml_copy copy,
                     CUstream stream)
{
    struct single single = {real, copy, stream};
    CUresult result;

    if (vmml_mirror_post_short(real, &copy, stream, &result))
        return result;
    return vmml_mirror_post(&single.copy, 1, false, stream, post_single,
                            &single);
}

CUresult vmml_cuMemcpyDtoDAsync_v2(const void *caller, CUdeviceptr dst,
                                   CUdeviceptr src, size_t length,
                                   CUstream stream)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuMemcpyDtoDAsync_v2 == NULL)
        return VMML_CU_MISSING;
    if (!is_ucx(caller))
        return real->cuMemcpyDtoDAsync_v2(dst, src, length, stream);
    return post(real, (struct vmml_copy){dst, src, length}, stream);
}

struct batch {
    const struct vmml_real *real;
    CUdeviceptr *dsts;
    CUdeviceptr *srcs;
    size_t *sizes;
    size_t count;
    const struct vmml_copy *copies; /* NULL: dsts and srcs as they are */
    CUmemcpyAttributes *attributes;
    size_t *attribute_idx;
    size_t attribute_count;
    CUstream stream;
};

static CUresult post_batch(void *arg)
{
    const struct batch *batch = arg;
    size_t i;

    for (i = 0; batch->copies != NULL && i < batch->count; i++) {
        batch->dsts[i] = batch->copies[i].dst;
        batch->srcs[i] = batch->copies[i].src;
    }
    return batch->real->cuMemcpyBatchAsync_v2(
        batch->dsts, batch->srcs, batch->sizes, batch->count, batch->attributes,
        batch->attribute_idx, batch->attribute_count, batch->stream);
}

CUresult vmml_cuMemcpyBatchAsync_v2(const void *caller, CUdeviceptr *dsts,
                                    CUdeviceptr *srcs, size_t *sizes,
                                    size_t count,
                                    CUmemcpyAttributes *attributes,
                                    size_t *attribute_idx,
                                    size_t attribute_count, CUstream stream)
{
    const struct vmml_real *real = vmml_real();
    struct batch batch = {
        .real = real,
        .dsts = dsts,
        .srcs = srcs,
        .sizes = sizes,
        .count = count,
        .attributes = attributes,
        .attribute_idx = attribute_idx,
        .attribute_count = attribute_count,
        .stream = stream,
    };
    struct vmml_copy *copies;
    CUdeviceptr *addresses;
    CUresult result;
    size_t i;

    if (real == NULL || real->cuMemcpyBatchAsync_v2 == NULL)
        return VMML_CU_MISSING;
    if (!is_ucx(caller) || count == 0 || dsts == NULL || srcs == NULL ||
        sizes == NULL)
        return post_batch(&batch);
    copies = malloc(count * (sizeof(*copies) + 2 * sizeof(*addresses)));
    if (copies == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    addresses = (CUdeviceptr *)(copies + count);
    for (i = 0; i < count; i++)
        copies[i] = (struct vmml_copy){dsts[i], srcs[i], sizes[i]};
    batch.copies = copies;
    batch.dsts = addresses;
    batch.srcs = addresses + count;
    result = vmml_mirror_post(copies, count, true, stream, post_batch, &batch);
    free(copies);
    return result;
}
