/* SPDX-License-Identifier: MIT */
#include "command/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The length of the UTF-8 character at `text` (RFC 3629), or 0. */
static unsigned vmml_utf8(const unsigned char *text)
{
    unsigned length, least, code;

    if (text[0] < 0x80)
        return 1;
    if (text[0] >= 0xc2 && text[0] <= 0xdf)
        length = 2, least = 0x80, code = text[0] & 0x1f;
    else if ((text[0] & 0xf0) == 0xe0)
        length = 3, least = 0x800, code = text[0] & 0x0f;
    else if (text[0] >= 0xf0 && text[0] <= 0xf4)
        length = 4, least = 0x10000, code = text[0] & 0x07;
    else
        return 0;
    for (unsigned i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    return length;
}

static void vmml_json_string(FILE *out, const char *string)
{
    const unsigned char *text = (const unsigned char *)string;

    fputc('"', out);
    while (*text != '\0') {
        unsigned length = vmml_utf8(text);

        if (length == 0)
            fputs("\\ufffd", out);
        else if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if (*text < 0x20 || *text == 0x7f)
            fprintf(out, "\\u%04x", *text);
        else
            fwrite(text, 1, length, out);
        text += length == 0 ? 1 : length;
    }
    fputc('"', out);
}

static void vmml_json_newline(struct vmml_json *json)
{
    if (json->line)
        return;
    fputc('\n', json->out);
    for (unsigned i = 0; i < json->depth; i++)
        fputs("  ", json->out);
}

static void vmml_json_key(struct vmml_json *json, const char *key)
{
    if (json->depth > 0) {
        bool *filled = &json->filled[json->depth - 1];

        if (*filled)
            fputs(json->line ? ", " : ",", json->out);
        *filled = true;
        vmml_json_newline(json);
    }
    if (key != NULL) {
        vmml_json_string(json->out, key);
        fputs(": ", json->out);
    }
}

void vmml_json_open(struct vmml_json *json, const char *key, char kind)
{
    if (json->depth == VMML_JSON_DEPTH)
        abort();
    vmml_json_key(json, key);
    fputc(kind, json->out);
    json->closing[json->depth] = kind == '{' ? '}' : ']';
    json->filled[json->depth++] = false;
}

void vmml_json_close(struct vmml_json *json)
{
    if (json->depth == 0)
        abort();
    json->depth--;
    if (json->filled[json->depth])
        vmml_json_newline(json);
    fputc(json->closing[json->depth], json->out);
    if (json->depth == 0)
        fputc('\n', json->out);
}

void vmml_json_text(struct vmml_json *json, const char *key, const char *text)
{
    if (text == NULL) {
        vmml_json_null(json, key);
        return;
    }
    vmml_json_key(json, key);
    vmml_json_string(json->out, text);
}

void vmml_json_number(struct vmml_json *json, const char *key, int64_t value)
{
    vmml_json_key(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void vmml_json_unsigned(struct vmml_json *json, const char *key, uint64_t value)
{
    vmml_json_key(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void vmml_json_real(struct vmml_json *json, const char *key, double value)
{
    if (!isfinite(value)) {
        vmml_json_null(json, key); /* JSON has neither infinity nor NaN */
        return;
    }
    vmml_json_key(json, key);
    fprintf(json->out, "%.15g", value);
}

void vmml_json_bool(struct vmml_json *json, const char *key, bool value)
{
    vmml_json_key(json, key);
    fputs(value ? "true" : "false", json->out);
}

void vmml_json_null(struct vmml_json *json, const char *key)
{
    vmml_json_key(json, key);
    fputs("null", json->out);
}
