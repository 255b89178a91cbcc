/* SPDX-License-Identifier: MIT */
/*
 * What libuct_cuda is told about memory. Everyone else, and libuct_cuda
 * outside a scope, gets the driver's answer bit for bit.
 */
#include "ucx/scope.h"

#include <string.h>

#include "base/conf.h"
#include "base/fork.h"
#include "base/log.h"
#include "create/create.h"
#include "doors/caller.h"
#include "doors/real.h"
#include "hooks.h"
#include "ipc/ipc.h"
#include "pool/pool.h"

__thread struct vmml_scope *vmml_scope
    __attribute__((tls_model("initial-exec")));

/* The pack that `ptr` is asked for in, or NULL. */
static struct vmml_pack *pack_for(const void *caller, CUdeviceptr ptr)
{
    struct vmml_scope *scope = vmml_scope;

    if (scope == NULL || scope->kind != VMML_SCOPE_PACK ||
        ptr < scope->pack->base ||
        ptr - scope->pack->base > scope->pack->size ||
        vmml_hook_caller(caller) != VMML_CALLER_UCT_CUDA)
        return NULL;
    return scope->pack;
}

/*
 * A UCX that walks ranges by itself asks for the address behind each answer;
 * with the window as the answer it would see one chunk. Then it gets the
 * truth, and later registrations are its own business.
 */
static CUresult answer_pack(const struct vmml_real *real,
                            struct vmml_pack *pack, CUdeviceptr *base,
                            size_t *size, CUdeviceptr ptr)
{
    if (ptr == pack->base + pack->size) {
        vmml_lane_stand_down();
        return real->cuMemGetAddressRange_v2(base, size, ptr);
    }
    pack->queries++;
    if (base != NULL)
        *base = pack->base;
    if (size != NULL)
        *size = pack->size;
    return CUDA_SUCCESS;
}

CUresult vmml_cuMemGetAddressRange_v2(const void *caller, CUdeviceptr *base,
                                      size_t *size, CUdeviceptr ptr)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_scope *scope = vmml_scope;
    struct vmml_pack *pack;
    enum vmml_caller class;

    if (real == NULL || real->cuMemGetAddressRange_v2 == NULL)
        return VMML_CU_MISSING;
    pack = pack_for(caller, ptr);
    if (pack != NULL)
        return answer_pack(real, pack, base, size, ptr);
    if (vmml_in_child || vmml_conf()->range == VMML_RANGE_OFF ||
        !vmml_conf()->on)
        goto plain;
    if (scope == NULL && vmml_conf()->range_callers == NULL)
        goto plain;
    class = vmml_hook_caller(caller);
    if (scope != NULL && scope->kind == VMML_SCOPE_QUERY &&
        class == VMML_CALLER_UCT_CUDA)
        return vmml_range_answer(base, size, ptr, scope->request);
    if (class == VMML_CALLER_NAMED)
        return vmml_range_answer(base, size, ptr, NULL);
plain:
    return real->cuMemGetAddressRange_v2(base, size, ptr);
}

/* An upgraded allocation shows its type to libuct_cuda only. */
static bool hides_types(const void *caller, CUdeviceptr ptr)
{
    return vmml_create_is_upgraded_at(ptr) &&
           vmml_hook_caller(caller) != VMML_CALLER_UCT_CUDA;
}

/* UCX alone is told a context for memory of a pool that has none. */
static void answer_context(const struct vmml_real *real, const void *caller,
                           CUcontext *context, CUdeviceptr ptr)
{
    if (*context == NULL && !vmml_in_child && vmml_conf()->on &&
        vmml_conf()->share && vmml_conf()->pools != VMML_POOLS_OFF &&
        vmml_hook_caller(caller) == VMML_CALLER_UCT_CUDA)
        *context = vmml_pool_context(real, ptr);
}

CUresult vmml_cuPointerGetAttribute(const void *caller, void *data,
                                    CUpointer_attribute attribute,
                                    CUdeviceptr ptr)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_pack *pack;
    CUresult result;

    if (real == NULL || real->cuPointerGetAttribute == NULL)
        return VMML_CU_MISSING;
    result = real->cuPointerGetAttribute(data, attribute, ptr);
    if (data == NULL)
        return result;
    if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) {
        pack = pack_for(caller, ptr);
        if (pack != NULL) {
            memcpy(data, &pack->identity, sizeof(pack->identity));
            return CUDA_SUCCESS;
        }
    }
    if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
        answer_context(real, caller, data, ptr);
    if (result == CUDA_SUCCESS &&
        attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES &&
        hides_types(caller, ptr))
        memset(data, 0, sizeof(uint64_t));
    return result;
}

static void *data_of(unsigned count, const CUpointer_attribute *attributes,
                     void **data, CUpointer_attribute wanted)
{
    unsigned i;

    for (i = 0; i < count; i++)
        if (attributes[i] == wanted)
            return data[i];
    return NULL;
}

CUresult vmml_cuPointerGetAttributes(const void *caller, unsigned count,
                                     CUpointer_attribute *attributes,
                                     void **data, CUdeviceptr ptr)
{
    const struct vmml_real *real = vmml_real();
    CUresult result;
    void *legacy, *types, *context;

    if (real == NULL || real->cuPointerGetAttributes == NULL)
        return VMML_CU_MISSING;
    result = real->cuPointerGetAttributes(count, attributes, data, ptr);
    if (attributes == NULL || data == NULL || result != CUDA_SUCCESS)
        return result;
    /* ALLOWED_HANDLE_TYPES is 8 bytes and UCX 1.18 passes 4: the legacy flag,
     * 4 bytes, is written after it (measured). */
    legacy = data_of(count, attributes, data,
                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
    if (legacy != NULL && pack_for(caller, ptr) != NULL) {
        const uint32_t yes = 1;

        memcpy(legacy, &yes, sizeof(yes));
    }
    context = data_of(count, attributes, data, CU_POINTER_ATTRIBUTE_CONTEXT);
    if (context != NULL)
        answer_context(real, caller, context, ptr);
    types = data_of(count, attributes, data,
                    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
    if (types != NULL && hides_types(caller, ptr))
        memset(types, 0, sizeof(uint64_t));
    return result;
}

/* Constant for the exporter's life, and never the GPU's own: UCX remembers
 * for each UUID whether keys can be opened (facts in docs/design.md). */
static void mix_uuid(const void *caller, CUresult result, CUuuid *uuid)
{
    struct vmml_scope *scope = vmml_scope;
    uint8_t gpu[16];

    if (result != CUDA_SUCCESS || uuid == NULL || scope == NULL ||
        scope->kind != VMML_SCOPE_PACK ||
        vmml_hook_caller(caller) != VMML_CALLER_UCT_CUDA)
        return;
    memcpy(gpu, uuid->bytes, sizeof(gpu));
    vmml_identity_uuid(scope->pack->nonce, gpu, (uint8_t *)uuid->bytes);
}

CUresult vmml_cuDeviceGetUuid(const void *caller, CUuuid *uuid, CUdevice device)
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    if (real == NULL || real->cuDeviceGetUuid == NULL)
        return VMML_CU_MISSING;
    result = real->cuDeviceGetUuid(uuid, device);
    mix_uuid(caller, result, uuid);
    return result;
}

CUresult vmml_cuDeviceGetUuid_v2(const void *caller, CUuuid *uuid,
                                 CUdevice device)
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    if (real == NULL || real->cuDeviceGetUuid_v2 == NULL)
        return VMML_CU_MISSING;
    result = real->cuDeviceGetUuid_v2(uuid, device);
    mix_uuid(caller, result, uuid);
    return result;
}

CUresult vmml_cuIpcGetMemHandle(const void *caller, CUipcMemHandle *handle,
                                CUdeviceptr ptr)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_pack *pack = pack_for(caller, ptr);
    CUresult result;

    if (pack != NULL && handle != NULL) {
        memcpy(handle->reserved, pack->handle, VMML_HANDLE_SIZE);
        return CUDA_SUCCESS;
    }
    if (real == NULL || real->cuIpcGetMemHandle == NULL)
        return VMML_CU_MISSING;
    result = real->cuIpcGetMemHandle(handle, ptr);
    if (result != CUDA_SUCCESS && handle != NULL && vmml_ipc_is_for(caller) &&
        vmml_ipc_get(real, handle, ptr))
        return CUDA_SUCCESS;
    return result;
}
