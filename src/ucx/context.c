/* SPDX-License-Identifier: MIT */
/*
 * A key of ours that comes before its process has a CUDA context. UCX then
 * opens none (uct_cuda_ipc_rkey_unpack) and loses cuda_ipc for the life of the
 * key, though a mirror is made without a context. So libuct_cuda, while it
 * unpacks that key, is told of a context; none is made. What it does with it is
 * to push and pop it around cuIpcOpenMemHandle. Whether there is one is learned
 * from UCX's own first question (uct_cuda_ctx_primary_push_avail,
 * uct_cuda_ipc_is_peer_accessible: cuCtxGetDevice).
 */
#include "doors/caller.h"
#include "doors/real.h"
#include "hooks.h"
#include "ucx/device.h"
#include "ucx/scope.h"

/* The context that there is none of: an address that no driver gives out. */
static char no_context;
#define NO_CONTEXT ((CUcontext)(void *)&no_context)

static struct vmml_scope *unpack_of(const void *caller)
{
    struct vmml_scope *scope = vmml_scope;

    return scope != NULL && scope->kind == VMML_SCOPE_UNPACK &&
                   vmml_hook_caller(caller) == VMML_CALLER_UCT_CUDA
               ? scope
               : NULL;
}

/* current: what the driver answered to UCX's question for the current device.
 * No question of ours comes before it: an unpack of a known key asks the driver
 * for nothing that UCX does not. */
static void settle(const struct vmml_real *real, struct vmml_scope *scope,
                   CUresult current)
{
    unsigned flags;
    int active = 0;

    if (scope->settled)
        return;
    scope->settled = true;
    if (current == CUDA_SUCCESS || real->cuDevicePrimaryCtxGetState == NULL ||
        real->cuDevicePrimaryCtxGetState(scope->device, &flags, &active) !=
            CUDA_SUCCESS)
        return;
    scope->bare = true;
    scope->no_primary = !active;
}

static void settle_now(const struct vmml_real *real, struct vmml_scope *scope)
{
    CUdevice device;

    if (!scope->settled)
        settle(real, scope, real->cuCtxGetDevice(&device));
}

bool vmml_unpack_is_bare(CUdevice *device)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_scope *scope = vmml_scope;

    if (real == NULL || scope == NULL || scope->kind != VMML_SCOPE_UNPACK)
        return false;
    settle_now(real, scope);
    *device = scope->device;
    return scope->bare;
}

/* The unpack in which `device` is to seem to have a primary context. */
static struct vmml_scope *primary_of(const void *caller, CUdevice device)
{
    struct vmml_scope *scope = unpack_of(caller);

    if (scope == NULL || scope->device != device)
        return NULL;
    settle_now(vmml_real(), scope);
    return scope->no_primary ? scope : NULL;
}

CUresult vmml_cuCtxGetDevice(const void *caller, CUdevice *device)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_scope *scope;
    CUresult result;

    if (real == NULL || real->cuCtxGetDevice == NULL)
        return VMML_CU_MISSING;
    result = real->cuCtxGetDevice(device);
    if (vmml_scope == NULL || device == NULL)
        return result;
    scope = unpack_of(caller);
    if (scope == NULL)
        return result;
    settle(real, scope, result);
    if (result == CUDA_SUCCESS || !scope->bare)
        return result;
    *device = scope->device;
    return CUDA_SUCCESS;
}

CUresult vmml_cuDevicePrimaryCtxGetState(const void *caller, CUdevice device,
                                         unsigned *flags, int *active)
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    if (real == NULL || real->cuDevicePrimaryCtxGetState == NULL)
        return VMML_CU_MISSING;
    result = real->cuDevicePrimaryCtxGetState(device, flags, active);
    if (result == CUDA_SUCCESS && primary_of(caller, device) != NULL)
        *active = 1;
    return result;
}

CUresult vmml_cuDevicePrimaryCtxRetain(const void *caller, CUcontext *context,
                                       CUdevice device)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuDevicePrimaryCtxRetain == NULL)
        return VMML_CU_MISSING;
    if (context == NULL || primary_of(caller, device) == NULL)
        return real->cuDevicePrimaryCtxRetain(context, device);
    *context = NO_CONTEXT;
    return CUDA_SUCCESS;
}

CUresult vmml_cuDevicePrimaryCtxRelease_v2(const void *caller, CUdevice device)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuDevicePrimaryCtxRelease_v2 == NULL)
        return VMML_CU_MISSING;
    if (primary_of(caller, device) != NULL)
        return CUDA_SUCCESS;
    return real->cuDevicePrimaryCtxRelease_v2(device);
}

CUresult vmml_cuCtxPushCurrent_v2(const void *caller, CUcontext context)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_scope *scope;

    if (real == NULL || real->cuCtxPushCurrent_v2 == NULL)
        return VMML_CU_MISSING;
    scope = context == NO_CONTEXT ? unpack_of(caller) : NULL;
    if (scope == NULL)
        return real->cuCtxPushCurrent_v2(context);
    scope->pushed++;
    return CUDA_SUCCESS;
}

CUresult vmml_cuCtxPopCurrent_v2(const void *caller, CUcontext *context)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_scope *scope = unpack_of(caller);

    if (real == NULL || real->cuCtxPopCurrent_v2 == NULL)
        return VMML_CU_MISSING;
    if (scope == NULL || scope->pushed == 0)
        return real->cuCtxPopCurrent_v2(context);
    scope->pushed--;
    if (context != NULL)
        *context = NO_CONTEXT;
    return CUDA_SUCCESS;
}
