/* SPDX-License-Identifier: MIT */
/*
 * Real seccomp filters, as container runtimes install them.
 */
#ifndef VMML_TEST_GATE_H
#define VMML_TEST_GATE_H

#include <stdbool.h>
#include <stddef.h>

/* From now on these system calls of this process and its children give
 * `error`. Ends the process where the kernel has no filters. */
void gate_deny(const long *calls, size_t count, int error);

/* From now on these system calls of this thread and what it starts are not
 * made: each is counted and gives 0. With `first` != 0 only calls with that
 * first argument. */
void gate_count(const long *calls, size_t count, unsigned long first);
unsigned gate_counted(void);
/* The five arguments behind the number of the call counted last. */
extern unsigned long gate_arguments[5];

/* Number of pidfd_open, pidfd_getfd, prctl, ... by name; -1: not known. */
long gate_number(const char *name);

#endif
