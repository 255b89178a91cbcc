/*
 * Streams: each has its thread, which does its work in the order it came in.
 * Events hold counts. The legacy stream waits for the blocking streams of its
 * context and they for it.
 */
#include "internal.h"

#include <signal.h>
#include <string.h>
#include <time.h>

enum op_kind {
    OP_COPY,
    OP_RECORD,
    OP_WAIT_EVENT,
    OP_WAIT_STREAM,
    OP_CALL,
    OP_NOTHING
};

struct CUevent_st {
    struct CUevent_st *next;
    unsigned refs; /* the handle's and one per queued operation */
    unsigned flags;
    CUcontext ctx;
    uint64_t recorded, done;
    struct timespec at;
};

struct op {
    struct op *next;
    enum op_kind kind;
    uint64_t ticket;
    struct sim_copy copy;
    struct CUevent_st *event;
    uint64_t event_count;
    struct CUstream_st *other;
    uint64_t other_ticket;
    CUstreamCallback callback;
    CUstream handle;
    void (*fn)(void *arg);
    void *arg;
};

struct CUstream_st {
    struct CUstream_st *next;
    unsigned refs; /* the thread's and one per queued wait for it */
    CUcontext ctx;
    unsigned long long ctx_id;
    unsigned flags;
    int priority;
    unsigned long long id;
    bool destroyed, dropped;
    pthread_cond_t work;
    struct op *head, *tail;
};

/* Counts operations, over all streams. */
static uint64_t last_ticket;
static struct CUevent_st *events;

static __thread CUstream per_thread;
static __thread unsigned long long per_thread_ctx_id;

/* ---- references ---- */

static void stream_put(CUstream stream)
{
    if (--stream->refs == 0) {
        pthread_cond_destroy(&stream->work);
        sim_free(stream, sizeof(*stream));
    }
}

static void event_put(CUevent event)
{
    if (--event->refs == 0) {
        sim_free(event, sizeof(*event));
    }
}

/* Whether everything up to a ticket is done. */
static bool stream_passed(const struct CUstream_st *stream, uint64_t ticket)
{
    return stream->head == NULL || stream->head->ticket > ticket;
}

/* ---- the thread ---- */

static CUresult ctx_error(const struct CUstream_st *stream)
{
    return stream->dropped ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                           : stream->ctx->error;
}

static void fail_ctx(struct CUstream_st *stream, CUresult result)
{
    /* A primary context that began anew has another id. */
    if (stream->ctx->id == stream->ctx_id &&
        stream->ctx->error == CUDA_SUCCESS) {
        __atomic_store_n(&stream->ctx->error, result, __ATOMIC_RELEASE);
        sim.fatal = result;
    }
}

static void run_copy(struct CUstream_st *stream, struct op *op)
{
    CUdevice dev = stream->ctx->dev;
    CUresult result;

    if (ctx_error(stream) != CUDA_SUCCESS) {
        return;
    }
    sim_unlock();
    result = sim_copy_run(dev, &op->copy);
    sim_lock();
    if (result != CUDA_SUCCESS) {
        fail_ctx(stream, result);
    }
}

static void run_call(struct CUstream_st *stream, struct op *op)
{
    CUresult result = ctx_error(stream);

    sim_unlock();
    if (op->callback != NULL) {
        op->callback(op->handle, result, op->arg);
    } else if (result == CUDA_SUCCESS) {
        op->fn(op->arg);
    }
    sim_lock();
}

static void run_op(struct CUstream_st *stream, struct op *op)
{
    switch (op->kind) {
    case OP_COPY:
        run_copy(stream, op);
        break;
    case OP_RECORD:
        clock_gettime(CLOCK_MONOTONIC, &op->event->at);
        op->event->done = op->event_count;
        event_put(op->event);
        break;
    case OP_WAIT_EVENT:
        while (op->event->done < op->event_count) {
            pthread_cond_wait(&sim.progress, &sim.lock);
        }
        event_put(op->event);
        break;
    case OP_WAIT_STREAM:
        while (!stream_passed(op->other, op->other_ticket)) {
            pthread_cond_wait(&sim.progress, &sim.lock);
        }
        stream_put(op->other);
        break;
    case OP_CALL:
        run_call(stream, op);
        break;
    case OP_NOTHING:
        break;
    }
}

static void unlink_stream(struct CUstream_st *stream)
{
    struct CUstream_st **link = &stream->ctx->streams;

    if (stream->dropped) {
        return; /* its context did it */
    }
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
}

static void *stream_main(void *arg)
{
    struct CUstream_st *stream = arg;
    struct op *op;

    sim_lock();
    for (;;) {
        while (stream->head == NULL && !stream->destroyed) {
            pthread_cond_wait(&stream->work, &sim.lock);
        }
        op = stream->head;
        if (op == NULL) {
            break;
        }
        run_op(stream, op);
        stream->head = op->next;
        if (stream->head == NULL) {
            stream->tail = NULL;
        }
        sim_free(op, sizeof(*op));
        pthread_cond_broadcast(&sim.progress);
    }
    unlink_stream(stream);
    stream_put(stream);
    sim_unlock();
    return NULL;
}

static bool start_thread(struct CUstream_st *stream)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    int result;

    if (pthread_attr_init(&attr) != 0) {
        return false;
    }
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    /* The program's signals are none of this thread's business. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    result = pthread_create(&thread, &attr, stream_main, stream);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return result == 0;
}

/* The lock is held; pthread_create maps memory, which UCM may report to code
 * that calls back into the driver, so it is given up meanwhile. */
static CUstream stream_new(CUcontext ctx, unsigned flags, int priority)
{
    CUstream stream = sim_zalloc(sizeof(*stream));
    bool started;

    if (stream == NULL) {
        return NULL;
    }
    stream->refs = 1;
    stream->ctx = ctx;
    stream->ctx_id = ctx->id;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = sim.next_stream_id++;
    pthread_cond_init(&stream->work, NULL);
    stream->next = ctx->streams;
    ctx->streams = stream;
    sim_unlock();
    started = start_thread(stream);
    sim_lock();
    if (!started) {
        unlink_stream(stream);
        stream_put(stream);
        return NULL;
    }
    return stream;
}

static void stream_end(CUstream stream)
{
    stream->destroyed = true;
    pthread_cond_signal(&stream->work);
}

void sim_streams_drop_ctx(CUcontext ctx)
{
    struct CUstream_st *stream, *next;

    for (stream = ctx->streams; stream != NULL; stream = next) {
        next = stream->next;
        stream->dropped = true;
        stream_end(stream);
    }
    ctx->streams = NULL;
    ctx->legacy = NULL;
    pthread_cond_broadcast(&sim.progress);
}

/* ---- from handle to stream ---- */

static CUstream legacy_stream(CUcontext ctx)
{
    CUstream made;

    if (ctx->legacy == NULL) {
        made = stream_new(ctx, CU_STREAM_DEFAULT, 0);
        if (ctx->legacy == NULL) {
            ctx->legacy = made;
        } else if (made != NULL) {
            stream_end(made); /* another thread was faster */
        }
    }
    return ctx->legacy;
}

static CUstream thread_stream(CUcontext ctx)
{
    if (per_thread == NULL || per_thread_ctx_id != ctx->id) {
        per_thread = stream_new(ctx, CU_STREAM_DEFAULT, 0);
        per_thread_ctx_id = ctx->id;
    }
    return per_thread;
}

static CUstream find_stream(CUstream handle)
{
    CUcontext ctx;
    CUstream stream;

    for (ctx = sim.ctxs; ctx != NULL; ctx = ctx->next) {
        for (stream = ctx->streams; stream != NULL; stream = stream->next) {
            if (stream == handle && !stream->destroyed) {
                return stream;
            }
        }
    }
    return NULL;
}

/*
 * A stream of its own needs no current context (measured: H200, driver 580);
 * the legacy and the per-thread one are the current context's.
 */
static CUresult stream_of(CUstream handle, CUstream *stream)
{
    CUcontext ctx = sim_ctx_current();

    if (ctx == NULL && (uintptr_t)handle <= (uintptr_t)CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        *stream = legacy_stream(ctx);
        return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        *stream = thread_stream(ctx);
        return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    *stream = find_stream(handle);
    if (*stream == NULL && ctx == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (*stream == NULL) {
        sim_crash("use of a stream that does not exist");
    }
    return (*stream)->ctx->error;
}

CUstream sim_per_thread_stream(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* ---- queueing ---- */

static void append(CUstream stream, struct op *op)
{
    op->ticket = ++last_ticket;
    op->next = NULL;
    if (stream->tail == NULL) {
        stream->head = op;
    } else {
        stream->tail->next = op;
    }
    stream->tail = op;
    pthread_cond_signal(&stream->work);
}

static bool append_wait(CUstream stream, CUstream other)
{
    struct op *op;

    if (other == NULL || other == stream || other->head == NULL) {
        return true;
    }
    op = sim_zalloc(sizeof(*op));
    if (op == NULL) {
        return false;
    }
    op->kind = OP_WAIT_STREAM;
    op->other = other;
    op->other_ticket = last_ticket;
    other->refs++;
    append(stream, op);
    return true;
}

static bool blocking(const struct CUstream_st *stream)
{
    return (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

static bool append_legacy_order(CUstream stream)
{
    CUstream other;
    bool good = true;

    if (stream != stream->ctx->legacy) {
        return !blocking(stream) || append_wait(stream, stream->ctx->legacy);
    }
    for (other = stream->ctx->streams; other != NULL && good;
         other = other->next) {
        good = !blocking(other) || append_wait(stream, other);
    }
    return good;
}

/* Queues a copy of *op and says its ticket. */
static CUresult enqueue(CUstream stream, const struct op *from,
                        uint64_t *ticket)
{
    struct op *op = sim_zalloc(sizeof(*op));

    if (op == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!append_legacy_order(stream)) {
        sim_free(op, sizeof(*op));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *op = *from;
    append(stream, op);
    if (ticket != NULL) {
        *ticket = op->ticket;
    }
    return CUDA_SUCCESS;
}

static CUresult wait_for(CUstream stream, uint64_t ticket)
{
    CUresult result;

    stream->refs++;
    while (!stream_passed(stream, ticket)) {
        pthread_cond_wait(&sim.progress, &sim.lock);
    }
    result = ctx_error(stream);
    stream_put(stream);
    return result;
}

CUresult sim_stream_copy(CUstream handle, const struct sim_copy *copy,
                         bool wait)
{
    struct op op = {.kind = OP_COPY, .copy = *copy};
    uint64_t ticket;
    CUstream stream;
    CUresult result;

    sim_lock();
    result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_copy_check(&op.copy, stream->ctx->dev);
    }
    if (result == CUDA_SUCCESS) {
        result = enqueue(stream, &op, &ticket);
    }
    /* The caller of an asynchronous copy from or to pageable memory may use
     * its buffer as soon as the call returns. */
    if (result == CUDA_SUCCESS && (wait || !op.copy.dst_mapped ||
                                   (!op.copy.set && !op.copy.src_mapped))) {
        result = wait_for(stream, ticket);
    }
    sim_unlock();
    return result;
}

static CUresult enqueue_call(CUstream handle, const struct op *from)
{
    CUstream stream;
    CUresult result;

    sim_lock();
    result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = enqueue(stream, from, NULL);
    }
    sim_unlock();
    return result;
}

CUresult sim_stream_call(CUstream stream, void (*fn)(void *arg), void *arg)
{
    struct op op = {.kind = OP_CALL, .fn = fn, .arg = arg};

    return enqueue_call(stream, &op);
}

/* ---- stream entry points ---- */

CUresult sim_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags,
                                        int priority)
{
    CUstream made;

    if (stream == NULL || (flags & ~CU_STREAM_NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    made = stream_new(sim_ctx_current(), flags, priority);
    sim_unlock();
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *stream = made;
    return CUDA_SUCCESS;
}

CUresult sim_cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return sim_cuStreamCreateWithPriority(stream, flags, 0);
}

/* What the stream still holds is done all the same. */
CUresult sim_cuStreamDestroy_v2(CUstream handle)
{
    CUstream stream;

    sim_lock();
    stream = find_stream(handle);
    if (stream != NULL && stream == stream->ctx->legacy) {
        stream = NULL;
    }
    if (stream != NULL) {
        stream_end(stream);
    }
    sim_unlock();
    if (stream == NULL && (uintptr_t)handle > 2) {
        sim_crash("use of a stream that does not exist");
    }
    return stream == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult sim_cuStreamSynchronize(CUstream handle)
{
    struct op nothing = {.kind = OP_NOTHING};
    uint64_t ticket;
    CUstream stream;
    CUresult result;

    sim_lock();
    result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = enqueue(stream, &nothing, &ticket);
    }
    if (result == CUDA_SUCCESS) {
        result = wait_for(stream, ticket);
    }
    sim_unlock();
    return result;
}

CUresult sim_cuStreamQuery(CUstream handle)
{
    CUstream stream;
    CUresult result;

    sim_lock();
    result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && stream->head != NULL) {
        result = CUDA_ERROR_NOT_READY;
    }
    sim_unlock();
    return result;
}

static bool ctx_busy(CUcontext ctx, uint64_t ticket)
{
    CUstream stream;

    for (stream = ctx->streams; stream != NULL; stream = stream->next) {
        if (!stream_passed(stream, ticket)) {
            return true;
        }
    }
    return false;
}

CUresult sim_cuCtxSynchronize(void)
{
    CUcontext ctx = sim_ctx_current();
    uint64_t ticket;
    CUresult result;

    sim_lock();
    ticket = last_ticket;
    while (ctx_busy(ctx, ticket)) {
        pthread_cond_wait(&sim.progress, &sim.lock);
    }
    result = ctx->error;
    sim_unlock();
    return result;
}

CUresult sim_cuStreamAddCallback(CUstream stream, CUstreamCallback callback,
                                 void *data, unsigned int flags)
{
    struct op op = {
        .kind = OP_CALL, .callback = callback, .arg = data, .handle = stream};

    if (callback == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return enqueue_call(stream, &op);
}

CUresult sim_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
    return fn == NULL ? CUDA_ERROR_INVALID_VALUE
                      : sim_stream_call(stream, fn, data);
}

/* One field of a stream, copied out under the lock. */
static CUresult stream_field(CUstream handle, void *out, size_t offset,
                             size_t size)
{
    CUstream stream;
    CUresult result;

    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) {
        memcpy(out, (char *)stream + offset, size);
    }
    sim_unlock();
    return result;
}

#define STREAM_FIELD(handle, out, field)                                       \
    stream_field(handle, out, offsetof(struct CUstream_st, field),             \
                 sizeof(((struct CUstream_st *)0)->field))

CUresult sim_cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
    return STREAM_FIELD(stream, ctx, ctx);
}

CUresult sim_cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
    return STREAM_FIELD(stream, flags, flags);
}

CUresult sim_cuStreamGetPriority(CUstream stream, int *priority)
{
    return STREAM_FIELD(stream, priority, priority);
}

CUresult sim_cuStreamGetId(CUstream stream, unsigned long long *id)
{
    return STREAM_FIELD(stream, id, id);
}

CUresult sim_cuStreamGetDevice(CUstream stream, CUdevice *dev)
{
    CUcontext ctx;
    CUresult result = sim_cuStreamGetCtx(stream, &ctx);

    if (dev == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *dev = ctx->dev;
    }
    return result;
}

/* Nothing here captures. */
CUresult sim_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    if (status == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* ---- events ---- */

static CUevent find_event(CUevent handle)
{
    CUevent event;

    for (event = events; event != NULL && event != handle;
         event = event->next) {
    }
    return event;
}

CUresult sim_cuEventCreate(CUevent *event, unsigned int flags)
{
    CUevent made;

    if (event == NULL || flags > 7) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    made = sim_zalloc(sizeof(*made));
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->refs = 1;
    made->flags = flags;
    made->ctx = sim_ctx_current();
    sim_lock();
    made->next = events;
    events = made;
    sim_unlock();
    *event = made;
    return CUDA_SUCCESS;
}

CUresult sim_cuEventDestroy_v2(CUevent handle)
{
    CUevent *link = &events;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    sim_lock();
    while (*link != NULL && *link != handle) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        *link = handle->next;
        event_put(handle);
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

static CUresult record_locked(CUevent handle, CUstream stream_handle)
{
    CUevent event = find_event(handle);
    struct op op = {.kind = OP_RECORD, .event = event};
    CUstream stream;
    CUresult result;

    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    result = stream_of(stream_handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    op.event_count = event->recorded + 1;
    result = enqueue(stream, &op, NULL);
    if (result == CUDA_SUCCESS) {
        event->refs++;
        event->recorded++;
    }
    return result;
}

CUresult sim_cuEventRecord(CUevent event, CUstream stream)
{
    CUresult result;

    sim_lock();
    result = record_locked(event, stream);
    sim_unlock();
    return result;
}

CUresult sim_cuEventQuery(CUevent handle)
{
    CUevent event;
    CUresult result;

    sim_lock();
    event = find_event(handle);
    if (event == NULL) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (sim_ctx_current() == NULL && !event->ctx->live) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (event->done < event->recorded) {
        result = CUDA_ERROR_NOT_READY;
    } else {
        result = event->ctx->error;
    }
    sim_unlock();
    return result;
}

CUresult sim_cuEventSynchronize(CUevent handle)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    CUevent event;
    uint64_t count;

    sim_lock();
    event = find_event(handle);
    if (event != NULL) {
        count = event->recorded;
        event->refs++;
        while (event->done < count) {
            pthread_cond_wait(&sim.progress, &sim.lock);
        }
        result = event->ctx->error;
        event_put(event);
    }
    sim_unlock();
    return result;
}

CUresult sim_cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    CUresult result = CUDA_SUCCESS;
    CUevent a, b;

    if (ms == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    a = find_event(start);
    b = find_event(end);
    if (a == NULL || b == NULL || a->recorded == 0 || b->recorded == 0 ||
        ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (a->done < a->recorded || b->done < b->recorded) {
        result = CUDA_ERROR_NOT_READY;
    } else {
        *ms = (float)(b->at.tv_sec - a->at.tv_sec) * 1e3f +
              (float)(b->at.tv_nsec - a->at.tv_nsec) / 1e6f;
    }
    sim_unlock();
    return result;
}

CUresult sim_cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
    return sim_cuEventElapsedTime(ms, start, end);
}

static CUresult wait_event_locked(CUstream stream_handle, CUevent handle)
{
    CUevent event = find_event(handle);
    struct op op = {.kind = OP_WAIT_EVENT, .event = event};
    CUstream stream;
    CUresult result;

    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    result = stream_of(stream_handle, &stream);
    if (result != CUDA_SUCCESS || event->done >= event->recorded) {
        return result;
    }
    op.event_count = event->recorded;
    result = enqueue(stream, &op, NULL);
    if (result == CUDA_SUCCESS) {
        event->refs++;
    }
    return result;
}

CUresult sim_cuStreamWaitEvent(CUstream stream, CUevent event,
                               unsigned int flags)
{
    CUresult result;

    if (flags > CU_EVENT_WAIT_EXTERNAL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    result = wait_event_locked(stream, event);
    sim_unlock();
    return result;
}

/* ---- per-thread default stream forms ---- */

CUresult sim_cuStreamSynchronize_ptsz(CUstream stream)
{
    return sim_cuStreamSynchronize(sim_per_thread_stream(stream));
}

CUresult sim_cuStreamQuery_ptsz(CUstream stream)
{
    return sim_cuStreamQuery(sim_per_thread_stream(stream));
}

CUresult sim_cuStreamWaitEvent_ptsz(CUstream stream, CUevent event,
                                    unsigned int flags)
{
    return sim_cuStreamWaitEvent(sim_per_thread_stream(stream), event, flags);
}

CUresult sim_cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return sim_cuEventRecord(event, sim_per_thread_stream(stream));
}
