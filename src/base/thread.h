/* SPDX-License-Identifier: MIT */
#ifndef VMML_BASE_THREAD_H
#define VMML_BASE_THREAD_H

/*
 * Start a detached thread of the shim. All signals are blocked in it: they
 * stay with the application's threads.
 * Returns 0 or an errno of pthread_create(3).
 */
int vmml_thread_start(void *(*function)(void *));

#endif
