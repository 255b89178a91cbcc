/* Contexts: one primary context per device, others by cuCtxCreate, and a stack
 * of current ones per thread. */
#include "internal.h"

#include <sched.h>
#include <string.h>

#define STACK_DEPTH 64

static struct CUctx_st primary[SIM_MAX_DEVICES];

static __thread struct CUctx_st *stack[STACK_DEPTH];
static __thread int depth;
static __thread CUstreamCaptureMode capture_mode;

CUcontext sim_ctx_current(void)
{
    return depth == 0 ? NULL : stack[depth - 1];
}

/* A primary context may be named while it is inactive. */
static bool nameable(CUcontext ctx)
{
    return (ctx >= primary && ctx < primary + sim.config.devices) ||
           sim_ctx_valid(ctx);
}

static bool valid_locked(CUcontext ctx)
{
    struct CUctx_st *at;

    for (at = sim.ctxs; at != NULL; at = at->next) {
        if (at == ctx) {
            return true;
        }
    }
    return false;
}

bool sim_ctx_valid(CUcontext ctx)
{
    bool valid;

    sim_lock();
    valid = valid_locked(ctx);
    sim_unlock();
    return valid;
}

static void ctx_start(struct CUctx_st *ctx, CUdevice dev, unsigned flags)
{
    ctx->dev = dev;
    ctx->flags = flags;
    ctx->id = sim.next_ctx_id++;
    ctx->error = CUDA_SUCCESS;
    ctx->live = true;
    ctx->streams = NULL;
    ctx->legacy = NULL;
    memset(ctx->peers, 0, sizeof(ctx->peers));
    ctx->next = sim.ctxs;
    sim.ctxs = ctx;
}

static void ctx_end(struct CUctx_st *ctx)
{
    struct CUctx_st **link = &sim.ctxs;

    sim_streams_drop_ctx(ctx);
    sim_memory_drop_ctx(ctx);
    ctx->live = false;
    while (*link != ctx) {
        link = &(*link)->next;
    }
    *link = ctx->next;
}

/* ---- primary contexts ---- */

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    CUresult result = CUDA_SUCCESS;

    if (ctx == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    if (!primary[dev].live && sim.fatal != CUDA_SUCCESS) {
        result = sim.fatal;
    } else {
        primary[dev].retained++;
        *ctx = &primary[dev];
        if (!primary[dev].live) {
            primary[dev].primary = true;
            ctx_start(&primary[dev], dev, primary[dev].flags);
        }
    }
    sim_unlock();
    return result;
}

CUresult sim_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    CUresult result = CUDA_SUCCESS;

    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    if (primary[dev].retained == 0) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--primary[dev].retained == 0 && primary[dev].live) {
        ctx_end(&primary[dev]);
    }
    sim_unlock();
    return result;
}

CUresult sim_cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return sim_cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult sim_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    if (primary[dev].live) {
        ctx_end(&primary[dev]);
    }
    sim_unlock();
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    primary[dev].flags = flags;
    sim_unlock();
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags,
                                        int *active)
{
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (flags == NULL || active == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    *flags = primary[dev].flags;
    *active = primary[dev].live;
    sim_unlock();
    return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

static CUresult push(CUcontext ctx)
{
    if (depth == STACK_DEPTH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
    struct CUctx_st *made;
    CUresult result;

    if (ctx == NULL || (flags & ~CU_CTX_FLAGS_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    made = sim_zalloc(sizeof(*made));
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock();
    result = sim.fatal;
    if (result == CUDA_SUCCESS) {
        ctx_start(made, dev, flags);
    }
    sim_unlock();
    if (result != CUDA_SUCCESS) {
        sim_free(made, sizeof(*made));
        return result;
    }
    *ctx = made;
    return push(made);
}

CUresult sim_cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *params,
                            int num, unsigned int flags, CUdevice dev)
{
    return sim_cuCtxCreate_v2(ctx, flags, dev);
}

CUresult sim_cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params,
                            unsigned int flags, CUdevice dev)
{
    return sim_cuCtxCreate_v2(ctx, flags, dev);
}

CUresult sim_cuCtxDestroy_v2(CUcontext ctx)
{
    bool found;

    sim_lock();
    found = valid_locked(ctx) && !ctx->primary;
    if (found) {
        ctx_end(ctx);
    }
    sim_unlock();
    if (!found) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    /* The object stays: other threads' stacks may hold it, and must find it
     * dead. */
    if (sim_ctx_current() == ctx) {
        depth--;
    }
    return CUDA_SUCCESS;
}

/* ---- the thread's stack ---- */

CUresult sim_cuCtxPushCurrent_v2(CUcontext ctx)
{
    if (ctx == NULL || !nameable(ctx)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return push(ctx);
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext *ctx)
{
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (ctx != NULL) {
        *ctx = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetCurrent(CUcontext ctx)
{
    if (ctx != NULL && !nameable(ctx)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth > 0) {
        depth--;
    }
    return ctx == NULL ? CUDA_SUCCESS : push(ctx);
}

CUresult sim_cuCtxGetCurrent(CUcontext *ctx)
{
    if (ctx == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *ctx = sim_ctx_current();
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice(CUdevice *dev)
{
    if (sim_ctx_current() == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (dev == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *dev = sim_ctx_current()->dev;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetFlags(unsigned int *flags)
{
    if (flags == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_ctx_current() == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *flags = sim_ctx_current()->flags;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetFlags(unsigned int flags)
{
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_ctx_current() == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    sim_ctx_current()->flags = flags;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
    if (ctx == NULL) {
        ctx = sim_ctx_current();
    }
    if (id == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (ctx == NULL || !sim_ctx_valid(ctx)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *id = ctx->id;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    if (ctx == NULL) {
        ctx = sim_ctx_current();
    }
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (ctx == NULL || !sim_ctx_valid(ctx)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CUcontext ctx = sim_ctx_current();
    CUresult result = CUDA_SUCCESS;

    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (peer == NULL || !sim_ctx_valid(peer)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    sim_lock();
    if (peer->dev == ctx->dev || !sim.config.peer) {
        result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    } else if (ctx->peers[peer->dev]) {
        result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    } else {
        ctx->peers[peer->dev] = 1;
    }
    sim_unlock();
    return result;
}

CUresult sim_cuCtxDisablePeerAccess(CUcontext peer)
{
    CUcontext ctx = sim_ctx_current();
    CUresult result = CUDA_SUCCESS;

    if (peer == NULL || !sim_ctx_valid(peer)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    sim_lock();
    if (!ctx->peers[peer->dev]) {
        result = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    }
    ctx->peers[peer->dev] = 0;
    sim_unlock();
    return result;
}

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode old = capture_mode;

    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
