/* SPDX-License-Identifier: MIT */
#include "fake_streams.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doors/real.h"

#define STREAMS_MAX  8192
#define EVENTS_MAX   8192
#define OPS_MAX      400000
#define CONTEXTS_MAX 8
#define DEPTH_MAX    8

/* Streams and events are numbers with these added, from 1. */
#define STREAM_TAG 0x10000u
#define EVENT_TAG  0x20000u

struct op {
    int before; /* the one before on its stream, or -1 */
    int event;  /* of a wait: the record that it waits for, or -1 */
    bool finished;
};

static struct {
    pthread_mutex_t mutex;
    struct {
        int context;
        int last; /* operation, or -1 */
        bool exists;
    } streams[STREAMS_MAX];
    struct {
        int context;
        int record; /* operation, or -1 */
        bool exists;
    } events[EVENTS_MAX];
    struct op ops[OPS_MAX];
    bool dead[CONTEXTS_MAX];
    unsigned long long ids[CONTEXTS_MAX];
    CUstream next_stream; /* cuStreamCreate's next, or NULL */
    int stream_count, event_count, live_events, op_count, calls;
    struct {
        int count;
        CUresult error;
    } failures[FAKE_CALLS];
    void (*meanwhile[FAKE_CALLS])(void);
} model = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static __thread int contexts[DEPTH_MAX];
static __thread int depth;
static __thread CUstreamCaptureMode capture_mode;

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: misuse of the driver: !(%s)\n", __FILE__,  \
                    __LINE__, #condition);                                     \
            abort();                                                           \
        }                                                                      \
    } while (0)

static void enter(void)
{
    pthread_mutex_lock(&model.mutex);
    model.calls++;
    CHECK(capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED);
}

/* A call that can be interrupted, before it does anything. */
static void enter_call(enum fake_call call)
{
    void (*meanwhile)(void);

    pthread_mutex_lock(&model.mutex);
    meanwhile = model.meanwhile[call];
    model.meanwhile[call] = NULL;
    pthread_mutex_unlock(&model.mutex);
    if (meanwhile != NULL) {
        CUstreamCaptureMode mode = capture_mode;

        capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        meanwhile();
        CHECK(capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
        capture_mode = mode;
    }
    enter();
}

static CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&model.mutex);
    return result;
}

static bool fails(enum fake_call call, CUresult *error)
{
    if (model.failures[call].count == 0)
        return false;
    model.failures[call].count--;
    *error = model.failures[call].error;
    return true;
}

static int current(void)
{
    return depth != 0 ? contexts[depth - 1] : 0;
}

static int stream_index(CUstream stream)
{
    int index = (int)((uintptr_t)stream - STREAM_TAG);

    CHECK(index >= 0 && index < model.stream_count);
    CHECK(model.streams[index].exists);
    return index;
}

static int event_index(CUevent event)
{
    int index = (int)((uintptr_t)event - EVENT_TAG);

    CHECK(index >= 0 && index < model.event_count);
    CHECK(model.events[index].exists);
    return index;
}

static int add_op(int stream, int event)
{
    struct op *op = &model.ops[model.op_count];

    CHECK(model.op_count < OPS_MAX);
    op->before = model.streams[stream].last;
    op->event = event;
    op->finished = false;
    model.streams[stream].last = model.op_count;
    return model.op_count++;
}

/* --- the driver ----------------------------------------------------------- */

static CUresult get_current(CUcontext *context)
{
    enter();
    *context = (CUcontext)(uintptr_t)current();
    return leave(CUDA_SUCCESS);
}

static CUresult push_current(CUcontext context)
{
    int number = (int)(uintptr_t)context;
    CUresult error;

    enter_call(FAKE_CTX_PUSH);
    CHECK(number > 0 && number < CONTEXTS_MAX && depth < DEPTH_MAX);
    if (fails(FAKE_CTX_PUSH, &error))
        return leave(error);
    if (model.dead[number])
        return leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    contexts[depth++] = number;
    return leave(CUDA_SUCCESS);
}

static CUresult pop_current(CUcontext *context)
{
    enter();
    CHECK(depth > 1);
    *context = (CUcontext)(uintptr_t)contexts[--depth];
    return leave(CUDA_SUCCESS);
}

static CUresult get_id(CUcontext context, unsigned long long *id)
{
    int number = (int)(uintptr_t)context;
    CUresult error;

    enter_call(FAKE_CTX_GET_ID);
    CHECK(number > 0 && number < CONTEXTS_MAX);
    if (fails(FAKE_CTX_GET_ID, &error))
        return leave(error);
    if (model.dead[number])
        return leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    *id = model.ids[number];
    return leave(CUDA_SUCCESS);
}

static CUresult get_stream_context(CUstream stream, CUcontext *context)
{
    enter_call(FAKE_STREAM_GET_CTX);
    *context =
        (CUcontext)(uintptr_t)model.streams[stream_index(stream)].context;
    return leave(CUDA_SUCCESS);
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode old = capture_mode;

    capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static CUresult create_event(CUevent *event, unsigned flags)
{
    CUresult error;
    int index;

    enter_call(FAKE_EVENT_CREATE);
    CHECK(flags == CU_EVENT_DISABLE_TIMING && current() != 0);
    if (fails(FAKE_EVENT_CREATE, &error))
        return leave(error);
    CHECK(model.event_count < EVENTS_MAX);
    index = model.event_count++;
    model.events[index].context = current();
    model.events[index].record = -1;
    model.events[index].exists = true;
    model.live_events++;
    *event = (CUevent)(uintptr_t)(index + (int)EVENT_TAG);
    return leave(CUDA_SUCCESS);
}

static CUresult destroy_event(CUevent event)
{
    enter();
    model.events[event_index(event)].exists = false;
    model.live_events--;
    return leave(CUDA_SUCCESS);
}

static CUresult record_event(CUevent event, CUstream stream)
{
    int to, from;
    CUresult error;

    enter_call(FAKE_EVENT_RECORD);
    to = event_index(event);
    from = stream_index(stream);
    CHECK(model.events[to].context == model.streams[from].context);
    CHECK(current() == model.streams[from].context);
    if (fails(FAKE_EVENT_RECORD, &error))
        return leave(error);
    model.events[to].record = add_op(from, -1);
    return leave(CUDA_SUCCESS);
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags)
{
    CUresult error;
    int index;

    enter_call(FAKE_STREAM_WAIT_EVENT);
    CHECK(flags == 0);
    index = event_index(event);
    CHECK(model.events[index].record >= 0);
    if (fails(FAKE_STREAM_WAIT_EVENT, &error))
        return leave(error);
    add_op(stream_index(stream), model.events[index].record);
    return leave(CUDA_SUCCESS);
}

static void finish(int op)
{
    while (op >= 0 && !model.ops[op].finished) {
        model.ops[op].finished = true;
        finish(model.ops[op].event);
        op = model.ops[op].before;
    }
}

static CUresult query_event(CUevent event)
{
    CUresult error;
    int record;

    enter_call(FAKE_EVENT_QUERY);
    if (fails(FAKE_EVENT_QUERY, &error))
        return leave(error);
    record = model.events[event_index(event)].record;
    return leave(record < 0 || model.ops[record].finished
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_NOT_READY);
}

static CUresult synchronize_event(CUevent event)
{
    CUresult error;

    enter_call(FAKE_EVENT_SYNCHRONIZE);
    CHECK(event_index(event) >= 0);
    if (fails(FAKE_EVENT_SYNCHRONIZE, &error))
        return leave(error);
    finish(model.events[event_index(event)].record);
    return leave(CUDA_SUCCESS);
}

static CUresult synchronize_stream(CUstream stream)
{
    CUresult error;

    enter_call(FAKE_STREAM_SYNCHRONIZE);
    if (fails(FAKE_STREAM_SYNCHRONIZE, &error))
        return leave(error);
    if ((uintptr_t)stream >= STREAM_TAG)
        finish(model.streams[stream_index(stream)].last);
    return leave(CUDA_SUCCESS);
}

static CUresult create_stream(CUstream *stream, unsigned flags)
{
    CHECK(model.next_stream != NULL);
    fake_stream_again(model.next_stream, current());
    *stream = model.next_stream;
    model.next_stream = NULL;
    return CUDA_SUCCESS;
}

static CUresult create_stream_with_priority(CUstream *stream, unsigned flags,
                                            int priority)
{
    (void)priority;
    return create_stream(stream, flags);
}

static CUresult destroy_stream(CUstream stream)
{
    pthread_mutex_lock(&model.mutex);
    model.streams[stream_index(stream)].exists = false;
    return leave(CUDA_SUCCESS);
}

_Atomic(const struct vmml_real *) vmml_real_found;

const struct vmml_real *vmml_real_search(void)
{
    static const struct vmml_real real = {
        .cuCtxGetCurrent = get_current,
        .cuCtxPushCurrent_v2 = push_current,
        .cuCtxPopCurrent_v2 = pop_current,
        .cuCtxGetId = get_id,
        .cuStreamCreate = create_stream,
        .cuStreamCreateWithPriority = create_stream_with_priority,
        .cuStreamGetCtx = get_stream_context,
        .cuStreamSynchronize = synchronize_stream,
        .cuStreamWaitEvent = wait_event,
        .cuStreamDestroy_v2 = destroy_stream,
        .cuEventCreate = create_event,
        .cuEventRecord = record_event,
        .cuEventQuery = query_event,
        .cuEventSynchronize = synchronize_event,
        .cuEventDestroy_v2 = destroy_event,
        .cuThreadExchangeStreamCaptureMode = exchange_mode,
    };

    return &real;
}

/* --- for the tests -------------------------------------------------------- */

void fake_reset(void)
{
    pthread_mutex_lock(&model.mutex);
    model.stream_count = model.event_count = model.live_events = 0;
    model.op_count = model.calls = 0;
    memset(model.failures, 0, sizeof(model.failures));
    memset(model.meanwhile, 0, sizeof(model.meanwhile));
    memset(model.dead, 0, sizeof(model.dead));
    memset(model.ids, 0, sizeof(model.ids));
    pthread_mutex_unlock(&model.mutex);
    fake_set_context(1);
}

void fake_set_context(int context)
{
    contexts[0] = context;
    depth = 1;
    capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

int fake_context_depth(void)
{
    CHECK(capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    return depth;
}

void fake_kill_context(int context)
{
    int i;

    model.dead[context] = true;
    for (i = 0; i < model.stream_count; i++) {
        if (model.streams[i].context == context)
            model.streams[i].exists = false;
    }
    for (i = 0; i < model.event_count; i++) {
        if (model.events[i].context == context)
            model.events[i].exists = false;
    }
}

void fake_revive_context(int context)
{
    CHECK(model.dead[context]);
    model.dead[context] = false;
    model.ids[context]++;
}

CUstream fake_stream(int context)
{
    int index;

    pthread_mutex_lock(&model.mutex);
    CHECK(model.stream_count < STREAMS_MAX);
    index = model.stream_count++;
    model.streams[index].context = context;
    model.streams[index].last = -1;
    model.streams[index].exists = true;
    pthread_mutex_unlock(&model.mutex);
    return (CUstream)(uintptr_t)(index + (int)STREAM_TAG);
}

void fake_stream_again(CUstream stream, int context)
{
    int index = (int)((uintptr_t)stream - STREAM_TAG);

    CHECK(!model.streams[index].exists);
    model.streams[index].context = context;
    model.streams[index].last = -1;
    model.streams[index].exists = true;
}

void fake_create_again(CUstream stream)
{
    model.next_stream = stream;
}

bool fake_stream_exists(CUstream stream)
{
    return model.streams[(uintptr_t)stream - STREAM_TAG].exists;
}

int fake_copy(CUstream stream)
{
    int op = -1;

    pthread_mutex_lock(&model.mutex);
    if ((uintptr_t)stream >= STREAM_TAG)
        op = add_op(stream_index(stream), -1);
    pthread_mutex_unlock(&model.mutex);
    return op;
}

/* Operations wait for earlier ones only, so marks made downwards from `later`
 * reach all of them. */
bool fake_waits_for(int later, int earlier)
{
    bool *marked = calloc((size_t)later + 1, sizeof(*marked));
    bool found;
    int op;

    CHECK(marked != NULL && earlier <= later);
    pthread_mutex_lock(&model.mutex);
    marked[later] = true;
    for (op = later; op > earlier; op--) {
        if (!marked[op])
            continue;
        if (model.ops[op].before >= 0)
            marked[model.ops[op].before] = true;
        if (model.ops[op].event >= 0)
            marked[model.ops[op].event] = true;
    }
    pthread_mutex_unlock(&model.mutex);
    found = marked[earlier];
    free(marked);
    return found;
}

void fake_finish(int op)
{
    pthread_mutex_lock(&model.mutex);
    finish(op);
    pthread_mutex_unlock(&model.mutex);
}

bool fake_is_finished(int op)
{
    bool finished;

    pthread_mutex_lock(&model.mutex);
    finished = model.ops[op].finished;
    pthread_mutex_unlock(&model.mutex);
    return finished;
}

int fake_calls(void)
{
    return model.calls;
}

int fake_events(void)
{
    return model.live_events;
}

void fake_fail(enum fake_call call, int count, CUresult error)
{
    model.failures[call].count = count;
    model.failures[call].error = error;
}

void fake_interrupt(enum fake_call call, void (*meanwhile)(void))
{
    model.meanwhile[call] = meanwhile;
}
