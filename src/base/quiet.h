/* SPDX-License-Identifier: MIT */
/*
 * The host must not die of a signal that a call of ours raises: SIGPIPE where
 * nobody reads what is written, SIGXFSZ where a file is not to grow that far
 * (RLIMIT_FSIZE, which a memfd is under too).
 */
#ifndef VMML_BASE_QUIET_H
#define VMML_BASE_QUIET_H

#include <signal.h>
#include <stdbool.h>

struct vmml_quiet {
    sigset_t before; /* the thread's mask */
    sigset_t ours;   /* those of the two that were not pending */
    bool blocked;
};

/* Block both in this thread. */
void vmml_quiet_begin(struct vmml_quiet *quiet);

/* Take back what came of calls in between, and restore the mask. Leaves errno
 * as it is. raised: one of the calls failed with EPIPE or EFBIG. */
void vmml_quiet_end(struct vmml_quiet *quiet, bool raised);

#endif
