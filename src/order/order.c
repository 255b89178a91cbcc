/* SPDX-License-Identifier: MIT */
/*
 * Each stream of libuct_cuda has a slot that counts its copies. Three counts
 * tell what a fence has to wait for:
 *
 *   posted    copies posted: a count of the thread that posted the stream's
 *             first copy, whose addition need not be atomic, and one of others
 *   recorded  of those, covered by the slot's event
 *   finished  of those, known to have ended
 *
 * They are read before the call that makes them true, so that a race makes
 * them too low: an event or a query more, never a copy that is overlooked.
 *
 * The mutex guards the table of slots and is never held across a driver call.
 * What a driver call needs is kept alive by two counts: `pins` keep the stream
 * (its destruction waits for them; they last as long as an event is recorded
 * and waited for on another stream), `holds` keep the event.
 */
#include "order/order.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "base/driver.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/log.h"
#include "doors/real.h"
#include "stats/count.h"

#define BUCKETS 1024

enum state {
    FREE,
    LIVE,
    CLOSED,    /* the event stands for a stream that was destroyed */
    RECYCLING, /* idle; the event is being destroyed */
};

struct slot {
    struct vmml_stream_head head;
    _Atomic uint64_t posted_by_others;
    _Atomic uint64_t recorded;
    _Atomic uint64_t recorded_fence; /* what lay before it is covered */
    _Atomic uint64_t finished;
    _Atomic(CUevent) event; /* made when it is first needed */
    CUstream handle;        /* constant while pinned */
    CUcontext context;
    uint64_t context_id; /* plus 1; 0: it cannot be told */
    _Atomic uint32_t state;
    _Atomic uint32_t pins;
    _Atomic uint32_t holds;
    _Atomic uint32_t next; /* in the bucket: index plus 1 */
} __attribute__((aligned(128)));

_Atomic uint64_t vmml_order_fences;

static struct {
    _Atomic bool active;
    _Atomic uint32_t used;             /* slots [0, used) were ever used */
    _Atomic uint32_t closed;           /* slots that wait to be recycled */
    _Atomic uint32_t buckets[BUCKETS]; /* index plus 1 */
} order;

static struct slot slots[VMML_STREAMS_MAX];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

__thread struct vmml_stream_head *vmml_order_last
    __attribute__((tls_model("initial-exec")));

#define GET(word) atomic_load_explicit(&(word), memory_order_acquire)
#define PUT(word, value)                                                       \
    atomic_store_explicit(&(word), value, memory_order_release)

static uint64_t posted_of(const struct slot *slot)
{
    return GET(slot->head.posted_by_owner) + GET(slot->posted_by_others);
}

/* --- the driver's state around our calls ---------------------------------- */

struct scope {
    CUstreamCaptureMode mode;
    bool exchanged;
};

/* In another mode some calls would break a graph that a thread captures. */
static struct scope enter_relaxed(const struct vmml_real *real)
{
    struct scope scope = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED};

    scope.exchanged =
        real->cuThreadExchangeStreamCaptureMode != NULL &&
        real->cuThreadExchangeStreamCaptureMode(&scope.mode) == CUDA_SUCCESS;
    return scope;
}

static void leave_relaxed(const struct vmml_real *real, struct scope *scope)
{
    if (scope->exchanged)
        (void)real->cuThreadExchangeStreamCaptureMode(&scope->mode);
}

/* --- what an error says ----------------------------------------------------
 *
 * A copy has ended when the driver says so, or when its context has: nothing
 * of that runs any more. Any other error says nothing of the copy. Then it
 * counts as running: the fence or the unmap that waits for it fails, and is
 * tried again with the next.
 */

/* The context is gone, or can never be used again (driver documentation,
 * CUresult: "any further CUDA work will return the same error"). */
static bool is_dead(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
        return true;
    default:
        return false;
    }
}

/* Of a push. A fault that it reports may be that of another context. */
static bool is_gone(CUresult result)
{
    return result == CUDA_ERROR_INVALID_CONTEXT ||
           result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
           result == CUDA_ERROR_DEINITIALIZED;
}

/* Of a call on an event of ours, which nobody else destroys: one that the
 * driver does not know has gone with its context. */
static bool has_event_ended(CUresult result)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_HANDLE ||
           is_dead(result);
}

/* --- the table of slots --------------------------------------------------- */

static _Atomic uint32_t *bucket_of(CUstream stream)
{
    return &order.buckets[vmml_mix64((uintptr_t)stream) % BUCKETS];
}

/* Without the mutex a change of the chain can lead astray or hide a slot, but
 * what is found is right: a miss is looked up again under the mutex. */
static struct slot *find(CUstream stream)
{
    uint32_t entry = GET(*bucket_of(stream));
    unsigned steps;

    for (steps = 0; entry != 0 && steps < VMML_STREAMS_MAX; steps++) {
        struct slot *slot = &slots[entry - 1];

        if (GET(slot->head.stream) == stream)
            return slot;
        entry = GET(slot->next);
    }
    return NULL;
}

/* For this thread's next copies too. */
static struct slot *find_again(CUstream stream)
{
    struct slot *slot = vmml_order_is_trackable(stream) ? find(stream) : NULL;

    if (slot != NULL)
        vmml_order_last = &slot->head;
    return slot;
}

/* The context that the stream belongs to, which is current; the driver is
 * asked since a caller may have been wrong about that. */
static CUcontext context_of(const struct vmml_real *real, CUstream stream)
{
    CUcontext context = NULL;

    if (real->cuStreamGetCtx != NULL &&
        real->cuStreamGetCtx(stream, &context) == CUDA_SUCCESS &&
        context != NULL)
        return context;
    if (real->cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return NULL;
    return context;
}

/* The context's id plus 1; 0 where the driver has none to tell. */
static CUresult id_of(const struct vmml_real *real, CUcontext context,
                      uint64_t *id)
{
    unsigned long long told = 0;
    CUresult result;

    *id = 0;
    if (real->cuCtxGetId == NULL) /* before CUDA 12.0 */
        return CUDA_SUCCESS;
    result = real->cuCtxGetId(context, &told);
    if (result == CUDA_SUCCESS)
        *id = told + 1;
    return result;
}

static struct slot *take_free(void)
{
    uint32_t used = GET(order.used), i;

    for (i = 0; i < used; i++) {
        if (GET(slots[i].state) == FREE)
            return &slots[i];
    }
    if (used == VMML_STREAMS_MAX)
        return NULL;
    PUT(order.used, used + 1);
    return &slots[used];
}

static void link_in(struct slot *slot)
{
    _Atomic uint32_t *bucket = bucket_of(slot->handle);

    PUT(slot->next, GET(*bucket));
    PUT(slot->head.stream, slot->handle);
    PUT(*bucket, (uint32_t)(slot - slots) + 1);
}

static struct slot *insert(CUstream stream, CUcontext context, uint64_t id)
{
    struct slot *slot = take_free();
    uint64_t posted;

    if (slot == NULL)
        return NULL;
    posted = posted_of(slot);
    slot->handle = stream;
    slot->context = context;
    slot->context_id = id;
    PUT(slot->recorded, posted);
    PUT(slot->recorded_fence, 0);
    PUT(slot->finished, posted);
    PUT(slot->head.fence, 0);
    PUT(slot->head.owner, vmml_stats_shard);
    slot->head.index = (uint32_t)(slot - slots);
    PUT(slot->state, LIVE);
    link_in(slot);
    return slot;
}

static void take_out(struct slot *slot)
{
    uint32_t entry = (uint32_t)(slot - slots) + 1;
    _Atomic uint32_t *link = bucket_of(slot->handle);

    while (GET(*link) != entry)
        link = &slots[GET(*link) - 1].next;
    PUT(*link, GET(slot->next));
    PUT(slot->head.stream, NULL);
}

/* --- pins and events ------------------------------------------------------ */

/* Keep the stream of a live slot, and the event of a live or closed one. The
 * pin comes before the look at the state, and stream_ends() and recycle()
 * change the state before they look at the pins: one of both sees the other,
 * which takes sequential consistency. False: there is nothing to wait for. */
static bool pin(struct slot *slot, uint32_t *state)
{
    atomic_fetch_add(&slot->pins, 1);
    *state = atomic_load(&slot->state);
    if (*state == LIVE || *state == CLOSED)
        return true;
    atomic_fetch_sub(&slot->pins, 1);
    return false;
}

static void unpin(struct slot *slot)
{
    atomic_fetch_sub(&slot->pins, 1);
}

/*
 * Make the slot's context current. Another one may lie at the address of one
 * that is gone, as the primary one does after a reset: streams and events of
 * the old one must not be used in it. Its id is another (driver documentation,
 * cuCtxGetId: "unique for the life of the program").
 */
static CUresult push_context(const struct vmml_real *real,
                             const struct slot *slot)
{
    CUresult result = real->cuCtxPushCurrent_v2(slot->context);
    uint64_t id;

    if (result != CUDA_SUCCESS || slot->context_id == 0)
        return result;
    result = id_of(real, slot->context, &id);
    if (result == CUDA_SUCCESS && id != slot->context_id)
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (result != CUDA_SUCCESS)
        vmml_pop_context(real);
    return result;
}

/* In the slot's context. */
static CUevent event_of(const struct vmml_real *real, struct slot *slot)
{
    CUevent event = GET(slot->event), made;

    if (event != NULL)
        return event;
    if (real->cuEventCreate(&made, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return NULL;
    if (atomic_compare_exchange_strong(&slot->event, &event, made))
        return made;
    (void)real->cuEventDestroy_v2(made);
    return event;
}

/* For record(): all copies, not only those before a fence. */
#define ALL UINT64_MAX

enum outcome {
    COVERED,  /* by the event as it was */
    RECORDED, /* by the event, now recorded anew */
    OVER,     /* nothing to wait for */
    FAILED,   /* it cannot be told whether the copies have ended */
};

/*
 * Make the slot's event cover the copies posted on its stream before `fence`,
 * and not more than these where that can be had: streams that post after a
 * fence do not wait for each other. The caller keeps the stream.
 *
 * Where there is no event to be had, wait for the copies. *result: the error
 * by which they have ended, or of a wait that failed.
 */
static enum outcome record(const struct vmml_real *real, struct slot *slot,
                           uint64_t fence, CUresult *result)
{
    uint64_t posted = posted_of(slot), fences = GET(vmml_order_fences);
    CUevent event = NULL;
    bool pushed;

    *result = CUDA_SUCCESS;
    if (posted == GET(slot->finished))
        return OVER;
    if (posted == GET(slot->recorded) || GET(slot->recorded_fence) >= fence)
        return COVERED;
    *result = push_context(real, slot);
    pushed = *result == CUDA_SUCCESS;
    if (is_gone(*result)) {
        PUT(slot->finished, posted);
        return OVER;
    }
    if (pushed)
        event = event_of(real, slot);
    if (event != NULL &&
        real->cuEventRecord(event, slot->handle) == CUDA_SUCCESS) {
        vmml_pop_context(real);
        PUT(slot->recorded, posted);
        PUT(slot->recorded_fence, fences);
        return RECORDED;
    }
    /* A stream can be waited for from another context as well. */
    *result = real->cuStreamSynchronize(slot->handle);
    if (pushed)
        vmml_pop_context(real);
    if (*result != CUDA_SUCCESS && !is_dead(*result))
        return FAILED;
    PUT(slot->finished, posted);
    return OVER;
}

/* The same for a slot that is pinned: the event of a closed one is final. */
static enum outcome record_pinned(const struct vmml_real *real,
                                  struct slot *slot, uint32_t state,
                                  uint64_t fence, CUresult *result)
{
    if (state == LIVE)
        return record(real, slot, fence, result);
    *result = CUDA_SUCCESS;
    return posted_of(slot) == GET(slot->finished) ? OVER : COVERED;
}

static bool is_idle(const struct slot *slot)
{
    return posted_of(slot) == GET(slot->finished);
}

/* Have the copies that the event covers ended? Then no fence need look again.
 */
static bool has_ended(const struct vmml_real *real, struct slot *slot)
{
    uint64_t recorded = GET(slot->recorded);
    CUevent event = GET(slot->event);
    CUresult pushed;
    bool ended;

    if (event == NULL)
        return false;
    pushed = push_context(real, slot);
    if (is_gone(pushed)) {
        PUT(slot->finished, posted_of(slot));
        return true;
    }
    ended = has_event_ended(real->cuEventQuery(event));
    if (pushed == CUDA_SUCCESS)
        vmml_pop_context(real);
    if (ended)
        PUT(slot->finished, recorded);
    return ended;
}

/* --- slots that are used again -------------------------------------------- */

static bool is_closed_and_idle(const struct vmml_real *real, struct slot *slot)
{
    uint32_t state;
    bool closed;

    if (!pin(slot, &state))
        return false;
    closed = state == CLOSED;
    if (closed && !is_idle(slot))
        (void)has_ended(real, slot);
    unpin(slot);
    return closed && is_idle(slot);
}

/* In a context that is gone the event went with it. */
static void destroy_event(const struct vmml_real *real, struct slot *slot)
{
    CUevent event = GET(slot->event);

    if (event == NULL || push_context(real, slot) != CUDA_SUCCESS)
        return;
    (void)real->cuEventDestroy_v2(event);
    vmml_pop_context(real);
}

/* Of a closed slot, make a free one, if nothing of it is in use or running. */
static void recycle(const struct vmml_real *real, struct slot *slot)
{
    uint32_t closed = CLOSED;

    if (!is_closed_and_idle(real, slot) ||
        !atomic_compare_exchange_strong(&slot->state, &closed, RECYCLING))
        return;
    if (atomic_load(&slot->pins) != 0 || atomic_load(&slot->holds) != 0) {
        atomic_store(&slot->state, CLOSED);
        return;
    }
    destroy_event(real, slot);
    PUT(slot->event, NULL);
    atomic_fetch_sub(&order.closed, 1);
    atomic_store(&slot->state, FREE);
}

static void recycle_all(const struct vmml_real *real)
{
    uint32_t used = GET(order.used), i;

    for (i = 0; i < used && GET(order.closed) != 0; i++) {
        if (GET(slots[i].state) == CLOSED)
            recycle(real, &slots[i]);
    }
}

/* A stream's first copy. NULL when it cannot be tracked. */
static struct slot *add(const struct vmml_real *real, CUstream stream)
{
    CUcontext context;
    struct slot *slot;
    struct scope scope;
    uint64_t id = 0;

    if (!vmml_order_is_trackable(stream) || vmml_fork_watch() != 0)
        return NULL;
    scope = enter_relaxed(real);
    if (GET(order.closed) != 0)
        recycle_all(real);
    context = context_of(real, stream);
    if (context != NULL)
        (void)id_of(real, context, &id);
    leave_relaxed(real, &scope);
    if (context == NULL)
        return NULL;
    pthread_mutex_lock(&mutex);
    slot = find(stream);
    if (slot == NULL)
        slot = insert(stream, context, id);
    pthread_mutex_unlock(&mutex);
    if (slot != NULL)
        vmml_order_last = &slot->head;
    else
        vmml_warn_once("more than %d streams of UCX: copies on further ones "
                       "are waited for at once",
                       VMML_STREAMS_MAX);
    return slot;
}

/* --- fences --------------------------------------------------------------- */

void vmml_order_activate(void)
{
    PUT(order.active, true);
}

void vmml_order_fence(void)
{
    atomic_fetch_add(&vmml_order_fences, 1);
}

/* Let `stream` wait for what `other` held at the fence. */
static CUresult wait_for(const struct vmml_real *real, CUstream stream,
                         struct slot *other, uint64_t fence)
{
    CUresult result;
    enum outcome outcome;
    uint32_t state;

    if (!pin(other, &state))
        return CUDA_SUCCESS;
    outcome = record_pinned(real, other, state, fence, &result);
    if (result != CUDA_SUCCESS)
        vmml_debug("stream %p %s: error %d", (void *)other->handle,
                   outcome == FAILED ? "cannot be waited for"
                                     : "counts as idle",
                   (int)result);
    if (outcome != FAILED)
        result = CUDA_SUCCESS;
    if (outcome == RECORDED || (outcome == COVERED && !has_ended(real, other)))
        result = real->cuStreamWaitEvent(stream, GET(other->event), 0);
    unpin(other);
    return result;
}

/* own: the slot of `stream`, or NULL where it is not tracked. Its own event is
 * recorded too, before the copy that comes now: see record(). */
static CUresult wait_for_others(CUstream stream, struct slot *own)
{
    const struct vmml_real *real = vmml_real();
    uint64_t fence = GET(vmml_order_fences);
    uint32_t used = GET(order.used), i;
    CUresult result = CUDA_SUCCESS, ignored;
    struct scope scope;

    if (real == NULL)
        return VMML_CU_MISSING;
    scope = enter_relaxed(real);
    for (i = 0; i < used && result == CUDA_SUCCESS; i++) {
        if (&slots[i] != own && !is_idle(&slots[i]))
            result = wait_for(real, stream, &slots[i], fence);
    }
    if (result == CUDA_SUCCESS && own != NULL) {
        if (used > 1)
            (void)record(real, own, fence, &ignored);
        PUT(own->head.fence, fence);
    }
    leave_relaxed(real, &scope);
    return result;
}

/* --- copies --------------------------------------------------------------- */

CUresult vmml_order_begin_other(CUstream stream, struct vmml_stream_set *set)
{
    struct slot *slot = find_again(stream);
    const struct vmml_real *real;

    if (slot == NULL) {
        real = vmml_real();
        if (real == NULL)
            return VMML_CU_MISSING;
        slot = add(real, stream);
        if (slot == NULL)
            return GET(order.active) && GET(vmml_order_fences) != 0
                       ? wait_for_others(stream, NULL)
                       : CUDA_SUCCESS;
    }
    if (set != NULL)
        vmml_stream_set_add(set, &slot->head);
    if (GET(slot->head.fence) != GET(vmml_order_fences) && GET(order.active))
        return wait_for_others(stream, slot);
    return CUDA_SUCCESS;
}

CUresult vmml_order_end_other(CUstream stream)
{
    struct slot *slot = find_again(stream);
    const struct vmml_real *real;
    struct scope scope;
    CUresult result;

    if (slot != NULL) {
        atomic_fetch_add_explicit(&slot->posted_by_others, 1,
                                  memory_order_release);
        return CUDA_SUCCESS;
    }
    real = vmml_real();
    if (real == NULL)
        return VMML_CU_MISSING;
    scope = enter_relaxed(real);
    result = real->cuStreamSynchronize(stream);
    leave_relaxed(real, &scope);
    return result;
}

/* --- the end of a stream -------------------------------------------------- */

/* From here on no look-up finds it. */
static struct slot *find_and_take_out(CUstream stream)
{
    struct slot *slot;

    pthread_mutex_lock(&mutex);
    slot = find(stream);
    if (slot != NULL)
        take_out(slot);
    pthread_mutex_unlock(&mutex);
    return slot;
}

/* Whoever saw it live may be recording on it. */
static void close_slot(const struct vmml_real *real, struct slot *slot)
{
    atomic_fetch_add(&order.closed, 1);
    atomic_store(&slot->state, CLOSED);
    while (atomic_load(&slot->pins) != 0)
        sched_yield();
    recycle(real, slot);
}

static bool has_gone(const struct vmml_real *real, const struct slot *slot)
{
    CUresult result = push_context(real, slot);

    if (result == CUDA_SUCCESS)
        vmml_pop_context(real);
    return is_gone(result);
}

void vmml_order_stream_begins(CUstream stream)
{
    const struct vmml_real *real = vmml_real();
    struct scope scope;
    struct slot *slot;

    if (real == NULL || GET(order.used) == 0)
        return;
    pthread_mutex_lock(&mutex);
    slot = find(stream);
    pthread_mutex_unlock(&mutex);
    if (slot == NULL)
        return;
    scope = enter_relaxed(real);
    if (has_gone(real, slot) && find_and_take_out(stream) == slot) {
        PUT(slot->finished, posted_of(slot));
        close_slot(real, slot);
    }
    leave_relaxed(real, &scope);
}

static void put_back(struct slot *slot)
{
    pthread_mutex_lock(&mutex);
    link_in(slot);
    pthread_mutex_unlock(&mutex);
}

CUresult vmml_order_stream_ends(CUstream stream)
{
    const struct vmml_real *real = vmml_real();
    CUresult result = CUDA_SUCCESS;
    enum outcome outcome;
    struct slot *slot;
    struct scope scope;

    if (real == NULL || !vmml_order_is_trackable(stream) ||
        GET(order.used) == 0)
        return CUDA_SUCCESS;
    slot = find_and_take_out(stream);
    if (slot == NULL)
        return CUDA_SUCCESS;
    scope = enter_relaxed(real);
    outcome = record(real, slot, ALL, &result);
    if (result != CUDA_SUCCESS)
        vmml_debug("stream %p ends with error %d", (void *)stream, (int)result);
    if (outcome == FAILED) {
        put_back(slot);
        leave_relaxed(real, &scope);
        return result;
    }
    close_slot(real, slot);
    leave_relaxed(real, &scope);
    return CUDA_SUCCESS;
}

/* --- draining ------------------------------------------------------------- */

/* The slot is held: its event stays. */
static CUresult wait_for_event(const struct vmml_real *real, struct slot *slot)
{
    uint64_t recorded = GET(slot->recorded);
    CUresult pushed = push_context(real, slot);
    CUresult result = pushed;

    if (!is_gone(pushed)) {
        result = real->cuEventSynchronize(GET(slot->event));
        if (pushed == CUDA_SUCCESS)
            vmml_pop_context(real);
        if (!has_event_ended(result))
            return result;
    }
    if (result != CUDA_SUCCESS)
        vmml_debug("stream %p ended with error %d", (void *)slot->handle,
                   (int)result);
    PUT(slot->finished, recorded);
    return CUDA_SUCCESS;
}

static CUresult drain_slot(const struct vmml_real *real, struct slot *slot)
{
    CUresult result = CUDA_SUCCESS;
    enum outcome outcome;
    uint32_t state;

    if (is_idle(slot) || !pin(slot, &state))
        return CUDA_SUCCESS;
    outcome = record_pinned(real, slot, state, ALL, &result);
    if (outcome == OVER || outcome == FAILED) {
        unpin(slot);
        return outcome == OVER ? CUDA_SUCCESS : result;
    }
    atomic_fetch_add(&slot->holds, 1);
    unpin(slot);
    result = wait_for_event(real, slot);
    atomic_fetch_sub(&slot->holds, 1);
    return result;
}

CUresult vmml_order_drain(struct vmml_stream_set *set)
{
    const struct vmml_real *real = vmml_real();
    CUresult result = CUDA_SUCCESS, one;
    struct scope scope;
    unsigned word;

    if (real == NULL)
        return VMML_CU_MISSING;
    scope = enter_relaxed(real);
    for (word = 0; word < VMML_STREAMS_MAX / 64; word++) {
        uint64_t bits = atomic_exchange(&set->bits[word], 0);

        for (; bits != 0; bits &= bits - 1) {
            struct slot *slot =
                &slots[word * 64 + (unsigned)__builtin_ctzll(bits)];

            one = drain_slot(real, slot);
            if (one == CUDA_SUCCESS)
                continue;
            vmml_stream_set_add(set, &slot->head);
            result = one;
        }
    }
    leave_relaxed(real, &scope);
    return result;
}

void vmml_order_forget(void)
{
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    /* Not the pages that were never touched. */
    memset(slots, 0, GET(order.used) * sizeof(*slots));
    memset(&order, 0, sizeof(order));
    atomic_store(&vmml_order_fences, 0);
    mutex = fresh;
}
