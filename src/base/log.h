/* SPDX-License-Identifier: MIT */
/*
 * The log: one line for each event, without malloc and without stdio, so that
 * it works inside allocators, before main and in a forked child.
 *
 * A line is written by one write(2) to stderr or VMMLANE_LOG_FILE. As text
 *
 *   vmmlane[PID] 12:34:56.123456Z LEVEL topic function [KEY]: message
 *
 * where the topic is the folder of the source file, and KEY is there while the
 * line concerns a key: `key 9f3c21aa 0x7f0000000000+0x4000000`, an id that is
 * the same in both processes, and the window in the exporter. With
 * VMMLANE_LOG_FORMAT=json one object with the same members. errno is kept.
 */
#ifndef VMML_BASE_LOG_H
#define VMML_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum vmml_log_level {
    VMML_LOG_OFF,
    VMML_LOG_ERROR,
    VMML_LOG_WARN,  /* default: lost lanes, bad settings */
    VMML_LOG_INFO,  /* once a process: what is on, what was found */
    VMML_LOG_DEBUG, /* every decision, with its reason */
    VMML_LOG_TRACE, /* every hooked call of UCX, every copy */
    VMML_LOG_STATS, /* statistics that were asked for, at every level */
};

/* Lines longer than this are cut and end in "...". */
#define VMML_LOG_LINE_MAX 1024

/* The highest level of any topic. A plain int: read before any argument is
 * evaluated. */
extern int vmml_log_level;

/* See vmml_text_printf(). file: __FILE__, which tells the topic. */
void vmml_log_write(enum vmml_log_level level, const char *file,
                    const char *function, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define vmml_log(level, ...)                                                   \
    do {                                                                       \
        if (__builtin_expect(                                                  \
                __atomic_load_n(&vmml_log_level, __ATOMIC_RELAXED) >=          \
                    (int)(level),                                              \
                0))                                                            \
            vmml_log_write(level, __FILE__, __func__, __VA_ARGS__);            \
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

/* The key that this thread is busy with. */
struct vmml_log_key {
    const uint8_t *nonce; /* 16 bytes; NULL: no key */
    uint64_t base;
    uint64_t size;
    struct vmml_log_key *outer;
};

extern __thread struct vmml_log_key *vmml_log_key
    __attribute__((tls_model("initial-exec")));

static inline void vmml_log_key_leave(const struct vmml_log_key *key)
{
    vmml_log_key = key->outer;
}

/* From here to the end of the block, lines of this thread concern the key of a
 * window. The nonce is read when a line is written: it must stay. */
#ifndef __clang_analyzer__ /* which does not know the attribute */
#define VMML_LOG_KEY(nonce_, base_, size_)                                     \
    struct vmml_log_key log_key_                                               \
        __attribute__((cleanup(vmml_log_key_leave))) = {                       \
            (nonce_), (base_), (size_), vmml_log_key};                         \
    vmml_log_key = &log_key_
#else
#define VMML_LOG_KEY(nonce_, base_, size_)                                     \
    ((void)(nonce_), (void)(base_), (void)(size_))
#endif

#endif
