/* SPDX-License-Identifier: MIT */
/*
 * JSON as it is written, indented by two spaces.
 *
 *   struct vmml_json json = {.out = stdout};
 *   vmml_json_open(&json, NULL, '{');
 *   vmml_json_text(&json, "name", "value");
 *   vmml_json_open(&json, "list", '[');
 *   vmml_json_number(&json, NULL, 1);
 *   vmml_json_close(&json);
 *   vmml_json_close(&json);      writes the last newline as well
 *
 * A key is NULL inside a list and for the outermost value. Text is taken for
 * UTF-8; a byte that is none is written as U+FFFD. Errors are `out`'s own:
 * ask ferror(3).
 */
#ifndef VMML_COMMAND_JSON_H
#define VMML_COMMAND_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define VMML_JSON_DEPTH 16

struct vmml_json {
    FILE *out;
    bool line; /* all on one line, for JSON lines */
    unsigned depth;
    char closing[VMML_JSON_DEPTH];
    bool filled[VMML_JSON_DEPTH];
};

/* `kind` is '{' or '['. Deeper than VMML_JSON_DEPTH is abort(3). */
void vmml_json_open(struct vmml_json *json, const char *key, char kind);
void vmml_json_close(struct vmml_json *json);

void vmml_json_text(struct vmml_json *json, const char *key, const char *text);
void vmml_json_number(struct vmml_json *json, const char *key, int64_t value);
void vmml_json_unsigned(struct vmml_json *json, const char *key,
                        uint64_t value);
void vmml_json_real(struct vmml_json *json, const char *key, double value);
void vmml_json_bool(struct vmml_json *json, const char *key, bool value);
void vmml_json_null(struct vmml_json *json, const char *key);

#endif
