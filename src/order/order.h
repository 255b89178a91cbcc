/* SPDX-License-Identifier: MIT */
/*
 * The order between UCX's copies on different streams.
 *
 * UCX orders PUTs around ucp_worker_fence() by nothing but the use of one
 * stream for each GPU UUID, and vmmlane's keys have a UUID of their own. So
 * the first copy on a stream after a fence waits (cuStreamWaitEvent) for what
 * the other streams of libuct_cuda still hold.
 *
 * Also remembers which streams posted to a mirror, so that an unmap waits for
 * those and never for a whole context. UCX destroys its streams: an event
 * then stands for what the stream still held.
 */
#ifndef VMML_ORDER_ORDER_H
#define VMML_ORDER_ORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "stats/count.h"

/* Streams tracked at one time. A copy on one more is waited for at once. */
#define VMML_STREAMS_MAX 4096

/* A set of stream slots. All zero: empty. */
struct vmml_stream_set {
    _Atomic uint64_t bits[VMML_STREAMS_MAX / 64];
};

/* Of a stream's slot, what a copy needs that waits for nothing. */
struct vmml_stream_head {
    _Atomic(CUstream) stream; /* what a look-up compares; NULL unless live */
    _Atomic uint64_t posted_by_owner;
    _Atomic uint64_t fence; /* the fences up to this one were waited for */
    _Atomic unsigned owner; /* its place in the statistics; 0: nobody */
    uint32_t index;         /* in a set */
};

extern _Atomic uint64_t vmml_order_fences;

/* The slot that this thread used last. Whether it is still that stream's is
 * checked at each use. */
extern __thread struct vmml_stream_head *vmml_order_last
    __attribute__((tls_model("initial-exec")));

/* The two default streams and NULL name another stream in each context or
 * thread: not tracked. */
static inline bool vmml_order_is_trackable(CUstream stream)
{
    return (uintptr_t)stream >= 3;
}

static inline bool vmml_order_is_last(const struct vmml_stream_head *head,
                                      CUstream stream)
{
    return head != NULL && vmml_order_is_trackable(stream) &&
           atomic_load_explicit(&head->stream, memory_order_acquire) == stream;
}

static inline void vmml_stream_set_add(struct vmml_stream_set *set,
                                       const struct vmml_stream_head *head)
{
    _Atomic uint64_t *word = &set->bits[head->index / 64];
    uint64_t bit = 1ull << head->index % 64;

    if ((atomic_load_explicit(word, memory_order_relaxed) & bit) == 0)
        atomic_fetch_or(word, bit);
}

/*
 * From now on fences are acted on: called when the first mirror is opened.
 *
 * Streams are tracked and fences are counted before that too, at the cost of a
 * few nanoseconds for a copy and without a driver call (but for a stream's
 * first copy), so that the first copy to a mirror after a fence also waits for
 * what was posted before there was a mirror.
 */
void vmml_order_activate(void);

/* A fence: a copy that begins after this waits for those that were posted
 * (vmml_order_end_copy() was called) before it. */
void vmml_order_fence(void);

/* What the two functions after these do for other streams. */
CUresult vmml_order_begin_other(CUstream stream, struct vmml_stream_set *set);
CUresult vmml_order_end_other(CUstream stream);

/*
 * A copy of libuct_cuda is about to be posted on `stream`, whose context is
 * current. After a fence, makes the stream wait for the others.
 *
 * set: of the mirror that the copy touches, or NULL; the stream is added.
 * Returns CUDA_SUCCESS, or the error of the wait that could not be queued:
 * then the copy must not be posted.
 */
static inline CUresult vmml_order_begin_copy(CUstream stream,
                                             struct vmml_stream_set *set)
{
    struct vmml_stream_head *head = vmml_order_last;

    if (!vmml_order_is_last(head, stream) ||
        atomic_load_explicit(&head->fence, memory_order_acquire) !=
            atomic_load_explicit(&vmml_order_fences, memory_order_acquire))
        return vmml_order_begin_other(stream, set);
    if (set != NULL)
        vmml_stream_set_add(set, head);
    return CUDA_SUCCESS;
}

/* The copy was posted; called before the poster lets go of the mirror. Waits
 * for the copy only where the stream is not tracked. */
static inline CUresult vmml_order_end_copy(CUstream stream)
{
    struct vmml_stream_head *head = vmml_order_last;
    unsigned thread = vmml_stats_shard;
    uint64_t posted;

    if (!vmml_order_is_last(head, stream) || thread == 0 ||
        atomic_load_explicit(&head->owner, memory_order_relaxed) != thread)
        return vmml_order_end_other(stream);
    posted = atomic_load_explicit(&head->posted_by_owner, memory_order_relaxed);
    atomic_store_explicit(&head->posted_by_owner, posted + 1,
                          memory_order_release);
    return CUDA_SUCCESS;
}

/* `stream` was made just now. A slot that has its name is of a stream that went
 * with its context, which UCX does not destroy. */
void vmml_order_stream_begins(CUstream stream);

/* `stream` is about to be destroyed by anyone. An event stands for what it
 * still holds; its slot is used again when that has ended. An error: that can
 * neither be had nor waited for, and the stream must not be destroyed. */
CUresult vmml_order_stream_ends(CUstream stream);

/*
 * Wait until all copies that the streams in `set` hold now have ended, and
 * empty the set. No lock is held while waiting. The caller keeps posters out.
 * A copy whose context is dead has ended.
 * Returns CUDA_SUCCESS, or the error of a wait that failed: its streams stay
 * in the set, and what they touch must stay mapped.
 */
CUresult vmml_order_drain(struct vmml_stream_set *set);

/* In a child of fork: forget everything, with locks made anew. */
void vmml_order_forget(void);

#endif
