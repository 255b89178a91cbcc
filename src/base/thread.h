/* SPDX-License-Identifier: MIT */
#ifndef VMML_BASE_THREAD_H
#define VMML_BASE_THREAD_H

#include <pthread.h>

/*
 * Start a detached thread of the shim. All signals are blocked in it: they
 * stay with the application's threads.
 * Returns 0 or an errno of pthread_create(3).
 */
int vmml_thread_start(void *(*function)(void *));

/* The same for one that does a part of the caller's work, with `arg`. It must
 * be joined. */
int vmml_thread_start_joinable(void *(*function)(void *), void *arg,
                               pthread_t *thread);

/* Waits for its end; no point at which the caller can be cancelled. */
void vmml_thread_join(pthread_t thread);

#endif
