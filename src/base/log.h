/* SPDX-License-Identifier: MIT */
/*
 * The log: one line for each event, without malloc and without stdio, so that
 * it works inside allocators, before main and in a forked child.
 *
 * Line: `vmmlane[PID] LEVEL function: message`, written by one write(2) to
 * stderr or VMMLANE_LOG_FILE. errno is kept.
 */
#ifndef VMML_BASE_LOG_H
#define VMML_BASE_LOG_H

#include <stdbool.h>
#include <stdatomic.h>

enum vmml_log_level {
    VMML_LOG_OFF,
    VMML_LOG_ERROR,
    VMML_LOG_WARN,  /* default: lost lanes, bad settings */
    VMML_LOG_INFO,  /* once a process: what is on, what was found */
    VMML_LOG_DEBUG, /* every decision, with its reason */
    VMML_LOG_TRACE, /* every hooked call of UCX */
    VMML_LOG_STATS, /* statistics that were asked for, at every level */
};

/* Lines longer than this are cut and end in "...". */
#define VMML_LOG_LINE_MAX 512

/* A plain int: read before any argument is evaluated. */
extern int vmml_log_level;

/* printf subset: %s %d %i %u %x %c %p %%, with l, ll, z, 0-padding, width. */
void vmml_log_write(enum vmml_log_level level, const char *function,
                    const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define vmml_log(level, ...)                                                   \
    do {                                                                       \
        if (__builtin_expect(                                                  \
                __atomic_load_n(&vmml_log_level, __ATOMIC_RELAXED) >=          \
                    (int)(level),                                              \
                0))                                                            \
            vmml_log_write(level, __func__, __VA_ARGS__);                      \
    } while (0)

#define vmml_error(...) vmml_log(VMML_LOG_ERROR, __VA_ARGS__)
#define vmml_warn(...)  vmml_log(VMML_LOG_WARN, __VA_ARGS__)
#define vmml_info(...)  vmml_log(VMML_LOG_INFO, __VA_ARGS__)
#define vmml_debug(...) vmml_log(VMML_LOG_DEBUG, __VA_ARGS__)
#define vmml_trace(...) vmml_log(VMML_LOG_TRACE, __VA_ARGS__)

/* A warning that is printed once a process for each place in the code; the
 * repeats are counted. */
struct vmml_once {
    atomic_ulong count;
};

static inline bool vmml_once(struct vmml_once *once)
{
    return atomic_fetch_add_explicit(&once->count, 1, memory_order_relaxed) ==
           0;
}

#define vmml_warn_once(...)                                                    \
    do {                                                                       \
        static struct vmml_once once_;                                         \
        if (vmml_once(&once_))                                                 \
            vmml_warn(__VA_ARGS__);                                            \
    } while (0)

#endif
