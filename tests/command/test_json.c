/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "command/json.h"

static char *text;
static size_t size;
static struct vmml_json json;

static int begin(void **state)
{
    json = (struct vmml_json){.out = open_memstream(&text, &size)};
    return json.out == NULL ? -1 : 0;
}

static int finish(void **state)
{
    free(text);
    return 0;
}

static void assert_written(const char *wanted)
{
    assert_int_equal(fclose(json.out), 0);
    assert_string_equal(text, wanted);
}

static void write_some(void)
{
    vmml_json_open(&json, NULL, '{');
    vmml_json_number(&json, "least", INT64_MIN);
    vmml_json_unsigned(&json, "most", UINT64_MAX);
    vmml_json_open(&json, "list", '[');
    vmml_json_bool(&json, NULL, true);
    vmml_json_null(&json, NULL);
    vmml_json_close(&json);
    vmml_json_open(&json, "empty", '{');
    vmml_json_close(&json);
    vmml_json_close(&json);
}

static void test_indented(void **state)
{
    write_some();
    assert_written("{\n"
                   "  \"least\": -9223372036854775808,\n"
                   "  \"most\": 18446744073709551615,\n"
                   "  \"list\": [\n"
                   "    true,\n"
                   "    null\n"
                   "  ],\n"
                   "  \"empty\": {}\n"
                   "}\n");
}

static void test_one_line(void **state)
{
    json.line = true;
    write_some();
    assert_written("{\"least\": -9223372036854775808, "
                   "\"most\": 18446744073709551615, \"list\": [true, null], "
                   "\"empty\": {}}\n");
}

static void test_text(void **state)
{
    vmml_json_text(&json, NULL, "a\"b\\c\n\x01\x7f/\xc3\xa9\xf0\x9f\x9a\x80");
    assert_written("\"a\\\"b\\\\c\\u000a\\u0001\\u007f/"
                   "\xc3\xa9\xf0\x9f\x9a\x80\"");
}

/* Paths and environments are bytes: what is no UTF-8 must not end in a file
 * that no parser takes. */
static void test_no_utf8(void **state)
{
    vmml_json_text(&json, NULL,
                   "\xff"         /* never */
                   "\xc3"         /* cut short by the next */
                   "x\xc0\xaf"    /* overlong */
                   "\xed\xa0\x80" /* a surrogate */
                   "\xe2\x82");   /* cut short by the end */
    assert_written("\"\\ufffd\\ufffdx\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd"
                   "\\ufffd\\ufffd\"");
}

static void test_values(void **state)
{
    vmml_json_open(&json, NULL, '[');
    vmml_json_real(&json, NULL, 0.5);
    vmml_json_real(&json, NULL, 1.0 / 0.0);
    vmml_json_text(&json, NULL, NULL);
    vmml_json_close(&json);
    assert_written("[\n  0.5,\n  null,\n  null\n]\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_indented, begin, finish),
        cmocka_unit_test_setup_teardown(test_one_line, begin, finish),
        cmocka_unit_test_setup_teardown(test_text, begin, finish),
        cmocka_unit_test_setup_teardown(test_no_utf8, begin, finish),
        cmocka_unit_test_setup_teardown(test_values, begin, finish),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
