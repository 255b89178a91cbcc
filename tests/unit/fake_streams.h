/* SPDX-License-Identifier: MIT */
/*
 * A model of CUDA streams that runs nothing: it notes what each operation has
 * to wait for, so that a test can ask whether an order is enforced or only
 * likely. It stands in for vmml_real().
 *
 * Each misuse that a driver would answer with an error or a crash (an event of
 * another context, a destroyed stream, a context that is not current, another
 * capture mode than RELAXED) ends the test program.
 */
#ifndef VMML_TESTS_FAKE_STREAMS_H
#define VMML_TESTS_FAKE_STREAMS_H

#include <stdbool.h>

#include "cuda_abi.h"

void fake_reset(void);

/* Contexts are small numbers from 1. */
void fake_set_context(int context);
int fake_context_depth(void);
void fake_kill_context(int context);
/* Another one at the address of one that was killed. */
void fake_revive_context(int context);

CUstream fake_stream(int context);
bool fake_stream_exists(CUstream stream);

/* Another stream under the name of one that was destroyed. */
void fake_stream_again(CUstream stream, int context);

/* The next stream that is created has this name again, in the current context.
 */
void fake_create_again(CUstream stream);

/* Post a copy; returns the number of the operation. */
int fake_copy(CUstream stream);

/* Must `later` wait for `earlier`, directly or not? */
bool fake_waits_for(int later, int earlier);

/* The operation and all that it waits for have ended. */
void fake_finish(int op);
bool fake_is_finished(int op);

/* Calls of the driver so far, but for fake_copy(). */
int fake_calls(void);
int fake_events(void);

/* The next `count` calls of one function fail with `error`. */
enum fake_call {
    FAKE_CTX_PUSH,
    FAKE_CTX_GET_ID,
    FAKE_EVENT_CREATE,
    FAKE_EVENT_RECORD,
    FAKE_EVENT_QUERY,
    FAKE_EVENT_SYNCHRONIZE,
    FAKE_STREAM_GET_CTX,
    FAKE_STREAM_SYNCHRONIZE,
    FAKE_STREAM_WAIT_EVENT,
    FAKE_CALLS,
};
void fake_fail(enum fake_call call, int count, CUresult error);

/* The next call of one function calls `meanwhile` first: what other threads do
 * while the driver is busy. */
void fake_interrupt(enum fake_call call, void (*meanwhile)(void));

#endif
