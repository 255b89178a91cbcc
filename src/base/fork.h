/* SPDX-License-Identifier: MIT */
/*
 * fork(2): a child neither publishes nor serves anything of its parent. A
 * CUDA context cannot be used in a child either (CUDA programming guide), so
 * the shim passes everything through there.
 */
#ifndef VMML_BASE_FORK_H
#define VMML_BASE_FORK_H

#include <stdbool.h>

/* Set in a child of a process that had shim state. */
extern bool vmml_in_child;

/* Watch forks from now on; called by each part that makes state, any number
 * of times. Returns 0 or an errno of pthread_atfork(3). */
int vmml_fork_watch(void);

#endif
