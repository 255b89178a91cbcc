/* SPDX-License-Identifier: MIT */
/* The order between copies, on a model of streams. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fork.h"
#include "doors/real.h"
#include "fake_streams.h"
#include "hooks.h"
#include "order/order.h"

static struct vmml_stream_set set;

static vmml_ucs_status_t worker_fence(vmml_ucp_worker_h worker)
{
    return (vmml_ucs_status_t)(uintptr_t)worker;
}

int vmml_fork_watch(void)
{
    return 0;
}

const struct vmml_uct *vmml_uct(const void *caller)
{
    static const struct vmml_uct uct = {.ucp_worker_fence = worker_fence};

    return caller != NULL ? &uct : NULL;
}

static int set_up(void **state)
{
    fake_reset();
    vmml_order_forget();
    memset(&set, 0, sizeof(set));
    vmml_order_activate();
    vmml_count(copies); /* a place of its own, as a thread in a hook has */
    return 0;
}

/* Contexts and capture mode are as they were. */
static int tear_down(void **state)
{
    assert_int_equal(fake_context_depth(), 1);
    return 0;
}

/* As a hooked copy of UCX does it. */
static int copy(CUstream stream, struct vmml_stream_set *into)
{
    int op;

    assert_int_equal(vmml_order_begin_copy(stream, into), CUDA_SUCCESS);
    op = fake_copy(stream);
    assert_int_equal(vmml_order_end_copy(stream), CUDA_SUCCESS);
    return op;
}

static void destroy(CUstream stream)
{
    assert_int_equal(vmml_cuStreamDestroy_v2(NULL, stream), CUDA_SUCCESS);
    assert_false(fake_stream_exists(stream));
}

/* --- fences --------------------------------------------------------------- */

static void test_no_fence_no_order(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int first = copy(a, &set), second = copy(b, &set), calls = fake_calls();
    int i;

    assert_false(fake_waits_for(second, first));
    for (i = 0; i < 100; i++) {
        copy(a, &set);
        copy(b, NULL);
    }
    assert_int_equal(fake_calls(), calls);
    assert_int_equal(fake_events(), 0);
}

static void test_fence(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1), c = fake_stream(1);
    int before_a, before_b, after_a, after_c, calls;

    before_a = copy(a, NULL);
    before_b = copy(b, NULL);
    vmml_order_fence();
    after_c = copy(c, NULL);
    assert_true(fake_waits_for(after_c, before_a));
    assert_true(fake_waits_for(after_c, before_b));
    after_a = copy(a, NULL);
    assert_true(fake_waits_for(after_a, before_b));
    /* Once for each stream and fence. */
    calls = fake_calls();
    assert_true(fake_waits_for(copy(c, NULL), before_b));
    copy(a, NULL);
    assert_int_equal(fake_calls(), calls);
}

static void test_fences_again_and_again(void **state)
{
    CUstream streams[3] = {fake_stream(1), fake_stream(2), fake_stream(3)};
    int last[3], round, i, j;

    for (i = 0; i < 3; i++) {
        fake_set_context(i + 1);
        last[i] = copy(streams[i], NULL);
    }
    for (round = 0; round < 50; round++) {
        int next[3];

        vmml_order_fence();
        for (i = 0; i < 3; i++) {
            fake_set_context(i + 1);
            next[i] = copy(streams[i], NULL);
            for (j = 0; j < 3; j++)
                assert_true(fake_waits_for(next[i], last[j]));
        }
        memcpy(last, next, sizeof(last));
    }
    assert_int_equal(fake_events(), 3);
}

/* A fence does not put the copies that come after it one behind the other:
 * transfers to several GPUs run side by side. */
static void test_copies_after_a_fence_are_independent(void **state)
{
    CUstream streams[4];
    int before[4], after[4], i, j, round;

    for (i = 0; i < 4; i++)
        streams[i] = fake_stream(1);
    for (round = 0; round < 3; round++) {
        for (i = 0; i < 4; i++)
            before[i] = copy(streams[i], NULL);
        vmml_order_fence();
        for (i = 0; i < 4; i++)
            after[i] = copy(streams[i], NULL);
        for (i = 0; i < 4; i++) {
            for (j = 0; j < 4; j++)
                assert_true(fake_waits_for(after[i], before[j]));
            for (j = 0; j < i; j++)
                assert_false(fake_waits_for(after[i], after[j]));
        }
    }
}

/* Before there is a mirror nothing waits; what was posted then counts. */
static void test_before_activation(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1), c = fake_stream(1);
    int early, calls;

    vmml_order_forget();
    early = copy(a, NULL);
    vmml_order_fence();
    copy(b, NULL);
    calls = fake_calls();
    vmml_order_fence();
    assert_false(fake_waits_for(copy(b, NULL), early));
    assert_int_equal(fake_calls(), calls);
    assert_int_equal(fake_events(), 0);
    vmml_order_activate();
    assert_true(fake_waits_for(copy(c, &set), early));
    assert_true(fake_waits_for(copy(b, &set), early));
}

/* A stream known to be idle costs no driver call at a fence. */
static void test_idle_stream(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op = copy(a, NULL), calls;

    vmml_order_fence();
    copy(b, NULL);
    fake_finish(op + 1);
    vmml_order_fence();
    copy(b, NULL);
    calls = fake_calls();
    vmml_order_fence();
    copy(b, NULL);
    /* Push, the context's id, record and pop for its own event. */
    assert_int_equal(fake_calls(), calls + 4);
    /* Until it posts again. */
    op = copy(a, NULL);
    vmml_order_fence();
    assert_true(fake_waits_for(copy(b, NULL), op));
}

static void test_default_streams(void **state)
{
    CUstream a = fake_stream(1);
    CUstream special[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    unsigned i;
    int calls;

    copy(a, NULL);
    destroy(a);
    for (i = 0; i < 3; i++) {
        calls = fake_calls();
        assert_int_equal(vmml_order_begin_copy(special[i], &set), CUDA_SUCCESS);
        assert_int_equal(fake_calls(), calls);
        /* Waited for at once: nothing to order later, nothing to drain. */
        assert_int_equal(vmml_order_end_copy(special[i]), CUDA_SUCCESS);
        assert_int_equal(fake_calls(), calls + 1);
    }
    for (i = 0; i < VMML_STREAMS_MAX / 64; i++)
        assert_true(set.bits[i] == 0);
}

static void test_more_streams_than_slots(void **state)
{
    CUstream last;
    int first = 0, i, op;

    for (i = 0; i < VMML_STREAMS_MAX; i++) {
        op = copy(fake_stream(1), &set);
        if (i == 0)
            first = op;
    }
    vmml_order_fence();
    last = fake_stream(1);
    op = copy(last, &set);
    assert_true(fake_waits_for(op, first));
    assert_true(fake_is_finished(op));
    assert_true(fake_waits_for(copy(last, &set), first));
}

/* --- the end of a stream -------------------------------------------------- */

static void test_destroyed_stream_is_waited_for(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(2);
    int op = copy(a, NULL);

    destroy(a);
    vmml_order_fence();
    fake_set_context(2);
    assert_true(fake_waits_for(copy(b, NULL), op));
    assert_int_equal(fake_events(), 1);
    /* The next stream to be seen after its end takes its place. */
    fake_finish(op + 1);
    copy(fake_stream(2), &set);
    assert_true(set.bits[0] == 1);
}

static void test_destroyed_idle_stream_leaves_nothing(void **state)
{
    CUstream a;
    int i;

    for (i = 0; i < 5000; i++) {
        int op;

        a = fake_stream(1);
        op = copy(a, &set);
        vmml_order_fence();
        destroy(a);
        fake_finish(op + 1);
    }
    /* The 5000 of them needed few slots. */
    assert_true((set.bits[0] & ~3ull) == 0);
    for (i = 1; i < VMML_STREAMS_MAX / 64; i++)
        assert_true(set.bits[i] == 0);
    assert_true(fake_events() <= 2);
}

static void test_slot_is_kept_while_copies_run(void **state)
{
    CUstream a = fake_stream(1), b;
    struct vmml_stream_set other = {0};
    int op = copy(a, &set);

    destroy(a);
    b = fake_stream(1);
    copy(b, &other);
    assert_true((set.bits[0] & other.bits[0]) == 0);
    vmml_order_fence();
    assert_true(fake_waits_for(copy(b, &other), op));
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(op));
}

/* A new stream under the old one's name is another stream. */
static void test_name_again(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(2);
    int old = copy(a, &set), new;

    destroy(a);
    fake_stream_again(a, 2);
    fake_set_context(2);
    new = copy(a, &set);
    vmml_order_fence();
    assert_true(fake_waits_for(copy(b, NULL), old));
    assert_true(fake_waits_for(copy(b, NULL), new));
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(old) && fake_is_finished(new));
}

static void test_untracked_stream_destroyed(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int calls;

    copy(a, NULL);
    calls = fake_calls();
    assert_int_equal(vmml_cuStreamDestroy_v2(NULL, b), CUDA_SUCCESS);
    assert_int_equal(fake_calls(), calls);
    assert_int_equal(fake_events(), 0);
}

/* --- draining ------------------------------------------------------------- */

static void test_drain(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(2), c = fake_stream(1);
    int op_a, op_b, op_c, later;

    op_a = copy(a, &set);
    op_c = copy(c, NULL);
    fake_set_context(2);
    op_b = copy(b, &set);
    later = copy(b, NULL);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(op_a));
    assert_true(fake_is_finished(op_b));
    assert_true(fake_is_finished(later));
    /* A stream that did not post to the mirror may be held up for ever. */
    assert_false(fake_is_finished(op_c));
    assert_true(set.bits[0] == 0);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
}

static void test_drain_works_before_activation(void **state)
{
    CUstream a = fake_stream(1);
    int op;

    vmml_order_forget();
    op = copy(a, &set);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(op));
}

static void test_drain_after_more_copies(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op;

    copy(a, &set);
    vmml_order_fence();
    copy(b, NULL);
    op = copy(a, &set);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(op));
}

/* --- failures ------------------------------------------------------------- */

static void test_wait_fails(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op = copy(a, NULL);

    vmml_order_fence();
    fake_fail(FAKE_STREAM_WAIT_EVENT, 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(vmml_order_begin_copy(b, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    /* Not posted; the next copy waits. */
    assert_true(fake_waits_for(copy(b, NULL), op));
}

/* Without an event the copies themselves are waited for. */
static void test_no_event(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op = copy(a, &set);

    vmml_order_fence();
    fake_fail(FAKE_EVENT_CREATE, 1, CUDA_ERROR_OUT_OF_MEMORY);
    copy(b, NULL);
    assert_true(fake_is_finished(op));
    op = copy(a, &set);
    fake_fail(FAKE_EVENT_RECORD, 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(op));
    op = copy(a, &set);
    fake_fail(FAKE_EVENT_RECORD, 1, CUDA_ERROR_OUT_OF_MEMORY);
    destroy(a);
    assert_true(fake_is_finished(op));
}

static void test_drain_fails(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op;

    copy(a, &set);
    op = copy(b, &set);
    fake_fail(FAKE_EVENT_SYNCHRONIZE, 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(vmml_order_drain(&set), CUDA_ERROR_OUT_OF_MEMORY);
    /* The others are drained all the same. */
    assert_true(fake_is_finished(op));
    assert_true(set.bits[0] == 1);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(set.bits[0] == 0);
}

/* The context cannot be used any more: nothing of it runs. */
static void test_drain_after_a_fault(void **state)
{
    CUstream a = fake_stream(1);

    copy(a, &set);
    fake_fail(FAKE_EVENT_SYNCHRONIZE, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(set.bits[0] == 0);
}

/* Errors that say nothing of the copies. */
static const CUresult unsure[] = {
    CUDA_ERROR_INVALID_VALUE,   CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OPERATING_SYSTEM,
    CUDA_ERROR_NOT_PERMITTED,   CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_ERROR_UNKNOWN,
};
enum { UNSURE = sizeof(unsure) / sizeof(unsure[0]) };

static void test_query_fails(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1), c = fake_stream(1);
    int op, i;

    for (i = 0; i < UNSURE; i++) {
        op = copy(a, &set);
        vmml_order_fence();
        copy(b, NULL);
        /* By now there is an event to ask. */
        fake_fail(FAKE_EVENT_QUERY, 3, unsure[i]);
        assert_true(fake_waits_for(copy(c, NULL), op));
        fake_fail(FAKE_EVENT_QUERY, 0, CUDA_SUCCESS);
    }
}

static void test_closed_query_fails(void **state)
{
    CUstream a = fake_stream(1), b;
    struct vmml_stream_set other = {0};
    int op = copy(a, &set), i;

    destroy(a);
    for (i = 0; i < UNSURE; i++) {
        fake_fail(FAKE_EVENT_QUERY, 1, unsure[i]);
        copy(fake_stream(1), &other);
        fake_fail(FAKE_CTX_PUSH, 1, unsure[i]);
        copy(fake_stream(1), &other);
    }
    /* Its slot was given to nobody. */
    assert_true((other.bits[0] & set.bits[0]) == 0);
    b = fake_stream(1);
    vmml_order_fence();
    assert_true(fake_waits_for(copy(b, &other), op));
}

static void test_push_fails(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op, i;

    copy(b, NULL);
    for (i = 0; i < UNSURE; i++) {
        op = copy(a, &set);
        vmml_order_fence();
        fake_fail(FAKE_CTX_PUSH, 1, unsure[i]);
        copy(b, NULL);
        assert_true(fake_is_finished(op));
        op = copy(a, &set);
        fake_fail(FAKE_CTX_PUSH, 2, unsure[i]);
        assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
        assert_true(fake_is_finished(op));
    }
}

static void test_nothing_can_be_told(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op, i;

    copy(b, NULL);
    for (i = 0; i < UNSURE; i++) {
        op = copy(a, &set);
        vmml_order_fence();
        fake_fail(FAKE_CTX_PUSH, 1, unsure[i]);
        fake_fail(FAKE_STREAM_SYNCHRONIZE, 1, unsure[i]);
        assert_int_equal(vmml_order_begin_copy(b, NULL), unsure[i]);
        assert_true(fake_waits_for(copy(b, NULL), op));
        op = copy(a, &set);
        fake_fail(FAKE_EVENT_RECORD, 1, unsure[i]);
        fake_fail(FAKE_STREAM_SYNCHRONIZE, 1, unsure[i]);
        assert_int_equal(vmml_order_drain(&set), unsure[i]);
        assert_true(set.bits[0] == 2);
        assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
        assert_true(fake_is_finished(op));
    }
}

/* What nobody could wait for any more is not destroyed. */
static void test_stream_that_cannot_end(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op = copy(a, &set);

    fake_fail(FAKE_EVENT_RECORD, 1, CUDA_ERROR_UNKNOWN);
    fake_fail(FAKE_STREAM_SYNCHRONIZE, 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(vmml_cuStreamDestroy_v2(NULL, a),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(fake_stream_exists(a));
    vmml_order_fence();
    assert_true(fake_waits_for(copy(b, NULL), op));
    op = copy(a, &set);
    destroy(a);
    vmml_order_fence();
    assert_true(fake_waits_for(copy(b, NULL), op));
}

/* A context that went, with its streams: nothing of it runs any more, and the
 * copies of others are not held up. */
static void test_dead_context(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(2), c = fake_stream(2);

    copy(a, &set);
    fake_set_context(2);
    copy(b, &set);
    vmml_order_fence();
    copy(c, &set);
    copy(a, &set);
    fake_kill_context(1);
    vmml_order_fence();
    copy(b, NULL);
    copy(c, NULL);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_int_equal(vmml_order_stream_ends(a), CUDA_SUCCESS);
    copy(fake_stream(2), NULL);
}

static void test_drain_of_dead_context(void **state)
{
    CUstream a = fake_stream(1);

    copy(a, &set);
    fake_set_context(2);
    fake_kill_context(1);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(set.bits[0] == 0);
}

/* A stream is created, and gets the name of one that went with its context. */
static void create_again(CUstream stream)
{
    CUstream made;

    fake_create_again(stream);
    assert_int_equal(vmml_cuStreamCreate(NULL, &made, CU_STREAM_NON_BLOCKING),
                     CUDA_SUCCESS);
    assert_ptr_equal(made, stream);
}

static void create_again_with_priority(CUstream stream)
{
    CUstream made;

    fake_create_again(stream);
    assert_int_equal(vmml_cuStreamCreateWithPriority(
                         NULL, &made, CU_STREAM_NON_BLOCKING, -1),
                     CUDA_SUCCESS);
    assert_ptr_equal(made, stream);
}

/* A stream that went with its context says nothing of the one that has its
 * name now. */
static void name_again_in_another_context(void (*create)(CUstream))
{
    CUstream a = fake_stream(1), b = fake_stream(2);
    int new;

    copy(a, &set);
    vmml_order_fence();
    copy(a, &set);
    fake_set_context(2);
    fake_kill_context(1);
    create(a);
    new = copy(a, &set);
    vmml_order_fence();
    assert_true(fake_waits_for(copy(b, NULL), new));
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(new));
    destroy(a);
}

static void test_name_again_in_another_context(void **state)
{
    name_again_in_another_context(create_again);
}

static void test_name_again_with_priority(void **state)
{
    name_again_in_another_context(create_again_with_priority);
}

/* The same, and the new context has the old one's address, as the primary one
 * after a reset. The model aborts when an old stream or event is used. */
static void test_name_again_in_a_context_again(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1), c = fake_stream(1);
    CUstream other = fake_stream(2);
    int new;

    copy(a, &set);
    copy(b, &set);
    copy(c, &set);
    vmml_order_fence();
    copy(a, &set);
    copy(c, &set);
    destroy(c);
    fake_kill_context(1);
    fake_revive_context(1);
    create_again(a);
    new = copy(a, &set);
    vmml_order_fence();
    fake_set_context(2);
    assert_true(fake_waits_for(copy(other, NULL), new));
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(new));
    assert_int_equal(vmml_order_stream_ends(b), CUDA_SUCCESS);
    destroy(a);
    copy(fake_stream(2), NULL);
}

/* A failure to tell says nothing. */
static void test_context_cannot_be_told(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op;

    copy(b, NULL);
    op = copy(a, &set);
    vmml_order_fence();
    fake_fail(FAKE_CTX_GET_ID, 1, CUDA_ERROR_UNKNOWN);
    copy(b, NULL);
    assert_true(fake_is_finished(op));
    op = copy(a, &set);
    fake_fail(FAKE_CTX_GET_ID, 1, CUDA_ERROR_UNKNOWN);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(op));
}

/* --- hooks ---------------------------------------------------------------- */

static void test_fence_hook(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    int op = copy(a, NULL);
    vmml_ucp_worker_h worker = (vmml_ucp_worker_h)(uintptr_t)5;

    assert_int_equal(vmml_ucp_worker_fence(NULL, worker),
                     VMML_UCS_ERR_UNSUPPORTED);
    assert_false(fake_waits_for(copy(b, NULL), op));
    assert_int_equal(vmml_ucp_worker_fence(&op, worker), 5);
    assert_true(fake_waits_for(copy(b, NULL), op));
}

/* --- what others do while the driver is busy ------------------------------ */

static CUstream victim;
static pthread_t destroyer;
static atomic_bool started;

static void *destroy_victim(void *argument)
{
    fake_set_context(1);
    atomic_store(&started, true);
    return (void *)(intptr_t)vmml_cuStreamDestroy_v2(NULL, victim);
}

/* Long enough for a destruction that does not wait. */
static void start_destroyer(void)
{
    int i;

    assert_int_equal(pthread_create(&destroyer, NULL, destroy_victim, NULL), 0);
    while (!atomic_load(&started))
        sched_yield();
    for (i = 0; i < 1000; i++)
        sched_yield();
}

static void end_destroyer(void)
{
    void *result;

    assert_int_equal(pthread_join(destroyer, &result), 0);
    assert_int_equal((intptr_t)result, CUDA_SUCCESS);
    atomic_store(&started, false);
}

/* The model aborts when an event is recorded on a destroyed stream. */
static void test_stream_ends_while_it_is_recorded(void **state)
{
    CUstream b = fake_stream(1);
    int op;

    victim = fake_stream(1);
    op = copy(victim, NULL);
    vmml_order_fence();
    fake_interrupt(FAKE_EVENT_RECORD, start_destroyer);
    assert_true(fake_waits_for(copy(b, NULL), op));
    end_destroyer();
    assert_false(fake_stream_exists(victim));

    victim = fake_stream(1);
    op = copy(victim, &set);
    fake_interrupt(FAKE_EVENT_RECORD, start_destroyer);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
    assert_true(fake_is_finished(op));
    end_destroyer();
}

/* All copies end, their streams too, and a new stream looks for a slot. */
static void end_and_recycle(void)
{
    int op = copy(victim, NULL), end = fake_copy(victim);

    destroy(victim);
    fake_finish(end + 1);
    copy(fake_stream(1), NULL);
    assert_true(fake_is_finished(op));
}

/* The model aborts when an event is used that was destroyed. */
static void test_event_stays_while_it_is_drained(void **state)
{
    victim = fake_stream(1);
    copy(victim, &set);
    fake_interrupt(FAKE_EVENT_SYNCHRONIZE, end_and_recycle);
    assert_int_equal(vmml_order_drain(&set), CUDA_SUCCESS);
}

static int closed_op;

static void recycle_others(void)
{
    fake_finish(closed_op + 1);
    copy(fake_stream(1), NULL);
}

static void test_event_stays_while_it_is_waited_for(void **state)
{
    CUstream a = fake_stream(1), b = fake_stream(1);

    closed_op = copy(a, NULL);
    destroy(a);
    vmml_order_fence();
    fake_interrupt(FAKE_STREAM_WAIT_EVENT, recycle_others);
    copy(b, NULL);
}

static void do_everything(void)
{
    CUstream a = fake_stream(1), b = fake_stream(1);
    struct vmml_stream_set other = {0};

    copy(a, &other);
    vmml_order_fence();
    copy(b, &other);
    assert_int_equal(vmml_order_drain(&other), CUDA_SUCCESS);
    copy(a, &other);
    destroy(a);
    destroy(b);
}

/* No lock is held across a call of the driver: all of it can be entered again
 * from there. (A lock would hang the test.) */
static void test_entered_again(void **state)
{
    enum fake_call call;

    for (call = 0; call < FAKE_CALLS; call++) {
        set_up(state);
        fake_interrupt(call, do_everything);
        if (call == FAKE_STREAM_SYNCHRONIZE)
            fake_fail(FAKE_EVENT_CREATE, 1, CUDA_ERROR_OUT_OF_MEMORY);
        do_everything();
        do_everything();
    }
}

/* --- threads -------------------------------------------------------------- */

enum { threads = 4, rounds = 400 };

/* A copy that has ended, in another thread's drain, need not be waited for. */
static bool copies_after(CUstream stream, struct vmml_stream_set *into,
                         int earlier, int *op)
{
    bool ended;

    if (vmml_order_begin_copy(stream, into) != CUDA_SUCCESS)
        return false;
    ended = fake_is_finished(earlier);
    *op = fake_copy(stream);
    return vmml_order_end_copy(stream) == CUDA_SUCCESS &&
           (ended || fake_waits_for(*op, earlier));
}

/* PUT, fence, PUT on another stream, while others do the same, drain, and
 * destroy their streams. */
static void *post(void *argument)
{
    struct vmml_stream_set own;
    CUstream streams[2];
    intptr_t failures = 0;
    int i, first, second = 0;

    memset(&own, 0, sizeof(own));
    vmml_count(copies);
    fake_set_context(1 + (int)(intptr_t)argument % 3);
    streams[0] = fake_stream(1 + (int)(intptr_t)argument % 3);
    streams[1] = fake_stream(1 + (int)(intptr_t)argument % 3);
    for (i = 0; i < rounds; i++) {
        first = copy(streams[0], &own);
        vmml_order_fence();
        failures += !copies_after(streams[1], &own, first, &second);
        if (i % 7 == 0) {
            failures += vmml_order_drain(&own) != CUDA_SUCCESS;
            failures += !fake_is_finished(first) + !fake_is_finished(second);
        }
        if (i % 5 == 0) {
            first = copy(streams[0], &own);
            destroy(streams[0]);
            vmml_order_fence();
            failures += !copies_after(streams[1], &own, first, &second);
            streams[0] = fake_stream(1 + (int)(intptr_t)argument % 3);
        }
    }
    failures += fake_context_depth() != 1;
    return (void *)failures;
}

static void *copy_five_times(void *stream)
{
    int i;

    fake_set_context(1);
    vmml_count(copies);
    for (i = 0; i < 5; i++)
        copy(stream, NULL);
    return NULL;
}

/* What is not added atomically is added by one thread alone. */
static void test_one_stream_of_two_threads(void **state)
{
    CUstream a = fake_stream(1);
    const struct vmml_stream_head *head;
    pthread_t other;
    int i;

    copy(a, NULL);
    head = vmml_order_last;
    assert_int_equal(atomic_load(&head->posted_by_owner), 1);
    assert_int_equal(pthread_create(&other, NULL, copy_five_times, a), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(atomic_load(&head->posted_by_owner), 1);
    for (i = 0; i < 3; i++)
        copy(a, NULL);
    assert_int_equal(atomic_load(&head->posted_by_owner), 4);
}

static void test_threads(void **state)
{
    pthread_t ids[threads];
    void *failures;
    intptr_t i;

    for (i = 0; i < threads; i++)
        assert_int_equal(pthread_create(&ids[i], NULL, post, (void *)i), 0);
    for (i = 0; i < threads; i++) {
        assert_int_equal(pthread_join(ids[i], &failures), 0);
        assert_int_equal((intptr_t)failures, 0);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_no_fence_no_order),
        TEST(test_fence),
        TEST(test_fences_again_and_again),
        TEST(test_copies_after_a_fence_are_independent),
        TEST(test_before_activation),
        TEST(test_idle_stream),
        TEST(test_default_streams),
        TEST(test_more_streams_than_slots),
        TEST(test_destroyed_stream_is_waited_for),
        TEST(test_destroyed_idle_stream_leaves_nothing),
        TEST(test_slot_is_kept_while_copies_run),
        TEST(test_name_again),
        TEST(test_untracked_stream_destroyed),
        TEST(test_drain),
        TEST(test_drain_works_before_activation),
        TEST(test_drain_after_more_copies),
        TEST(test_wait_fails),
        TEST(test_no_event),
        TEST(test_drain_fails),
        TEST(test_drain_after_a_fault),
        TEST(test_query_fails),
        TEST(test_closed_query_fails),
        TEST(test_push_fails),
        TEST(test_nothing_can_be_told),
        TEST(test_stream_that_cannot_end),
        TEST(test_dead_context),
        TEST(test_drain_of_dead_context),
        TEST(test_name_again_in_another_context),
        TEST(test_name_again_with_priority),
        TEST(test_name_again_in_a_context_again),
        TEST(test_context_cannot_be_told),
        TEST(test_fence_hook),
        TEST(test_stream_ends_while_it_is_recorded),
        TEST(test_event_stays_while_it_is_drained),
        TEST(test_event_stays_while_it_is_waited_for),
        TEST(test_entered_again),
        TEST(test_one_stream_of_two_threads),
        TEST(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
