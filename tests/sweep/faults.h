/*
 * Preload that counts the calls which libvmmlane.so itself makes, of the C
 * library and of the driver, and fails the n-th of one of them.
 *
 * Nobody else's calls are touched: the C library's functions are replaced in
 * the shim's own GOT, the driver's in the addresses that the shim looks up.
 */
#ifndef VMMLANE_TESTS_SWEEP_FAULTS_H
#define VMMLANE_TESTS_SWEEP_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * rule: NAME:N:ERROR[:from][:pass]. The N-th call of NAME from now on (from 1)
 * fails with ERROR, an errno or a CUresult; with `from` all later ones too;
 * with `pass` calls that the shim hands on for its caller count as well.
 * NULL or "": counts only. Sets all counts to zero.
 */
__attribute__((visibility("default"))) void sweep_arm(const char *rule);

/* No call fails any more, and none is counted. */
__attribute__((visibility("default"))) void sweep_disarm(void);

/*
 * Writes "fired=N" and "calls NAME=OWN+PASSED ..." since sweep_arm() as one
 * line, and "live NAME=N ..." as another: what this process holds, and what
 * the shim holds in it.
 */
__attribute__((visibility("default"))) void sweep_report(char *text,
                                                         size_t size);

/* ---- inside ---- */

struct call {
    const char *name;
    int error;         /* when the rule names none */
    unsigned long own; /* since sweep_arm(), atomically */
    unsigned long passed;
};

/* Counts a call. Returns 0, or the error that it shall fail with. */
int sweep_hit(struct call *call, bool passed);

enum live {
    LIVE_ALLOCATIONS, /* malloc */
    LIVE_MAPS,        /* mmap */
    LIVE_THREADS,     /* started */
    LIVE_RESERVATIONS,
    LIVE_MAPPINGS,
    LIVE_HANDLES,
    LIVE_EVENTS,
    LIVE_CONTEXTS, /* pushed, or retained primary ones */
    LIVE_COUNT,
};

/* Arms VMMLANE_SWEEP_RULE, for what the shim does before main(). */
void sweep_arm_from(char **environment);

void sweep_live(enum live what, long change);

/* libc_calls.c and count_calls.c: the replacement of an import of the shim, or
 * NULL. */
void *sweep_replacement(const char *name);
struct call *sweep_libc_call(size_t index);

/* driver_calls.c */
void *sweep_dlvsym(void *handle, const char *name, const char *version);
struct call *sweep_driver_call_at(size_t index);

/* shim.c: the shim in this process. */
bool sweep_in_shim(const void *address);

/* Visits the functions that the shim imports, and their slots in its GOT. */
typedef void sweep_import_fn(const char *name, void **slot);
void sweep_each_import(sweep_import_fn *visit);
void sweep_write_slot(void **slot, void *value);

/* Name of the shim's function around `address`, or "". */
const char *sweep_function_at(const void *address);

#endif
