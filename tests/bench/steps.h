/* SPDX-License-Identifier: MIT */
/*
 * Counting instructions without a clock: a process that steps another one
 * through what is to be measured (PTRACE_SINGLESTEP). Counts are the same in
 * each run, on a loaded machine too, and no counter of the processor is needed.
 */
#ifndef VMML_TESTS_BENCH_STEPS_H
#define VMML_TESTS_BENCH_STEPS_H

#include <stdbool.h>
#include <stdint.h>

/* Instructions by whose they are. */
struct steps {
    uint64_t shim;   /* libvmmlane.so */
    uint64_t libc;   /* libc, the loader, the vDSO */
    uint64_t driver; /* libcuda.so.1 */
    uint64_t rest;   /* the program, and what stands for UCX */
    uint64_t system_calls;
};

/*
 * Run `run` in a child that steps_count() works in, and return its exit status.
 * To be called before the process has threads or has called the driver.
 */
int steps_run(int (*run)(void *arg), void *arg);

/* What run(arg) takes on this thread: its instructions, but for those of
 * other threads. x86-64 alone. Ends the process where it cannot count. */
void steps_count(void (*run)(void *arg), void *arg, struct steps *steps);

#endif
