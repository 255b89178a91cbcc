/* SPDX-License-Identifier: MIT */
/*
 * Text in a buffer, without malloc, locale or lock: usable inside allocators,
 * before main and in a forked child.
 */
#ifndef VMML_BASE_TEXT_H
#define VMML_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* Of `size` bytes at `at`, `used` are written; there is no zero at the end.
 * What has no room is left out, and `cut` is set. */
struct vmml_text {
    char *at;
    size_t size;
    size_t used;
    bool cut;
};

void vmml_text_char(struct vmml_text *text, char c);

/* A subset of printf(3): %s %d %i %u %x %c %p %%, with l, ll, z, 0-padding,
 * width and #. Control bytes of a %s are written as '?'. */
void vmml_text_printf(struct vmml_text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void vmml_text_vprintf(struct vmml_text *text, const char *format,
                       va_list *args);

/* A string of JSON, with its quotes. What is no UTF-8 becomes U+FFFD. */
void vmml_text_json(struct vmml_text *line, const char *text);

/* 12:34:56.123456Z, in UTC; with the date 2026-12-01T12:34:56.123456Z. */
void vmml_text_time(struct vmml_text *text, const struct timespec *time,
                    bool with_date);

/* A file name from a pattern: %p the process, %h the host, %% a per cent sign.
 * False: it is longer than `size` allows. */
bool vmml_path_expand(const char *pattern, char *path, size_t size);

#endif
