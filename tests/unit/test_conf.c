/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/conf.h"
#include "base/log.h"
#include "child.h"
#include "transport/steps.h"

static const char *const variables[] = {
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
#variable,
#define VMML_TOGGLE_TEXT(variable, field, size, meaning) #variable,
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)         #variable,
#define VMML_TOGGLE_LOG_FILE(variable, meaning)          #variable,
#include "base/toggles.def"
};

static char output[4096];

static int read_on(void)
{
    return vmml_conf()->on;
}

static int read_range(void)
{
    return (int)vmml_conf()->range;
}

static int read_native(void)
{
    return (int)vmml_conf()->native;
}

static int read_level(void)
{
    vmml_conf();
    return vmml_log_level;
}

static int check_defaults(void)
{
    const struct vmml_conf *conf = vmml_conf();

    return conf->on && conf->range == VMML_RANGE_EXTENT &&
           conf->range_callers == NULL && conf->share && conf->create &&
           conf->native == VMML_NATIVE_AUTO && conf->transport == NULL &&
           vmml_log_level == VMML_LOG_WARN;
}

static int check_callers(void)
{
    /* What the application does to its environment later changes nothing. */
    const char *callers = vmml_conf()->range_callers;

    setenv("VMMLANE_RANGE_CALLERS", "other", 1);
    return callers != NULL && strcmp(callers, "libfoo*,libbar.so") == 0 &&
           vmml_conf()->range_callers == callers;
}

static int no_callers(void)
{
    return vmml_conf()->range_callers == NULL;
}

/* The steps as digits, in their order. */
static int read_steps(void)
{
    const enum vmml_step *steps = vmml_steps();
    int digits = 0;

    for (size_t i = 0; i < VMML_STEPS; i++) {
        if (steps[i] == VMML_STEP_NONE)
            break;
        digits = 10 * digits + (int)steps[i];
    }
    /* Asked again, nothing is said again. */
    vmml_steps();
    for (int step = VMML_STEP_GETFD; step <= VMML_STEP_SOCKET; step++) {
        bool listed = false;

        for (size_t i = 0; i < VMML_STEPS; i++)
            listed |= (int)steps[i] == step;
        if (listed != vmml_step_allowed((enum vmml_step)step))
            return 0;
    }
    return digits;
}

static int clear_environment(void)
{
    environ = NULL;
    return check_defaults();
}

static void test_defaults(void **state)
{
    assert_int_equal(unit_child(NULL, NULL, check_defaults, output, 4096), 1);
    assert_string_equal(output, "");
    assert_int_equal(unit_child(NULL, NULL, clear_environment, output, 4096),
                     1);
    /* An empty value is none. */
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        assert_int_equal(
            unit_child(variables[i], "", check_defaults, output, 4096), 1);
        assert_string_equal(output, "");
    }
}

static void test_spellings(void **state)
{
    static const char *const on[] = {"on", "1",   "y",    "yes", "true",
                                     "ON", "Yes", "True", "Y"};
    static const char *const off[] = {"off",   "0",   "n",    "no",
                                      "false", "OFF", "False"};

    for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++) {
        assert_int_equal(unit_child("VMMLANE", on[i], read_on, output, 4096),
                         1);
        assert_string_equal(output, "");
    }
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        assert_int_equal(unit_child("VMMLANE", off[i], read_on, output, 4096),
                         0);
        assert_int_equal(
            unit_child("VMMLANE_RANGE", off[i], read_range, output, 4096),
            VMML_RANGE_OFF);
        assert_string_equal(output, "");
    }
    assert_int_equal(
        unit_child("VMMLANE_RANGE", "Request", read_range, output, 4096),
        VMML_RANGE_REQUEST);
    assert_int_equal(
        unit_child("VMMLANE_NATIVE", "never", read_native, output, 4096),
        VMML_NATIVE_NEVER);
    assert_int_equal(
        unit_child("VMMLANE_LOG", "trace", read_level, output, 4096),
        VMML_LOG_TRACE);
    assert_int_equal(unit_child("VMMLANE_LOG", "0", read_level, output, 4096),
                     VMML_LOG_OFF);
}

/* One line with the variable, the value, what is allowed, and the default. */
static void assert_warning(const char *variable, const char *value,
                           int (*read_value)(void), int fallback,
                           const char *const *words)
{
    assert_int_equal(unit_child(variable, value, read_value, output, 4096),
                     fallback);
    assert_int_equal(unit_lines(output), 1);
    assert_non_null(strstr(output, variable));
    assert_non_null(strstr(output, value));
    for (; *words != NULL; words++)
        assert_non_null(strstr(output, *words));
}

static void test_bad_values(void **state)
{
    static const char *const on_off[] = {"on, off", "on is used", NULL};
    static const char *const range[] = {"extent, request, off",
                                        "extent is used", NULL};
    static const char *const native[] = {"auto, never", "auto is used", NULL};
    static const char *const levels[] = {"off, error, warn, info, debug, trace",
                                         "warn is used", NULL};

    assert_warning("VMMLANE", "maybe", read_on, 1, on_off);
    assert_warning("VMMLANE_RANGE", "on", read_range, VMML_RANGE_EXTENT, range);
    assert_warning("VMMLANE_NATIVE", "always", read_native, VMML_NATIVE_AUTO,
                   native);
    assert_warning("VMMLANE_LOG", "loud", read_level, VMML_LOG_WARN, levels);
}

static void test_misspelt(void **state)
{
    static const struct {
        const char *variable;
        const char *meant; /* NULL: none is near */
    } names[] = {
        {"VMMLANE_TRANPORT", "VMMLANE_TRANSPORT"},
        {"VMMLANE_TRASNPORT", "VMMLANE_TRANSPORT"},
        {"VMMLANE_STRCIT", "VMMLANE_STRICT"},
        {"VMMLANE_STAT", "VMMLANE_STATS"},
        {"VMMLANE_LOGFILE", "VMMLANE_LOG_FILE"},
        {"VMMLANE_LOG_FROMAT", "VMMLANE_LOG_FORMAT"},
        {"VMMLANE_ICP", "VMMLANE_IPC"},
        {"VMMLANE_LOG_LEVEL", "VMMLANE_LOG"},
        {"VMMLANE_METRICS", "VMMLANE_METRICS_FILE"},
        {"VMMLANE_NO_CHILDREN", "VMMLANE_CHILDREN"},
        {"VMMLANE_RANGES", "VMMLANE_RANGE"},
        {"VMMLANE_", NULL},
        {"VMMLANE_FROBNICATE", NULL},
        {"VMMLANE_A_NAME_THAT_IS_LONGER_THAN_ANY_THAT_SOMEBODY_WOULD_GIVE_IT",
         NULL},
    };
    /* Of the scripts, the simulated driver, Kubernetes; and no prefix. */
    static const char *const others[] = {
        "VMMLANE_CACHE",
        "VMMLANE_VENV",
        "VMMLANE_CUDA_INCLUDE",
        "VMMLANE_SIM_VRAM_MB",
        "VMMLANE_PORT",
        "VMMLANE_UCX_BUILD",
        "VMMLANE_SERVICE_HOST",
        "VMMLANE_DOCS_PORT_80_TCP_ADDR",
        "VMMLANEX",
        "XVMMLANE_STRICTS",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *name = strndup(names[i].variable, 63);
        char meant[64];

        snprintf(meant, sizeof(meant), "%s\n",
                 names[i].meant != NULL ? names[i].meant : "");
        assert_int_equal(
            unit_child(names[i].variable, "on", check_defaults, output, 4096),
            1);
        assert_int_equal(unit_lines(output), 1);
        assert_non_null(strstr(output, name));
        if (names[i].meant != NULL)
            assert_string_equal(strrchr(output, ' ') + 1, meant);
        else
            assert_non_null(strstr(output, "see `vmmlane --settings`"));
        free(name);
        /* An empty value is none. */
        assert_int_equal(
            unit_child(names[i].variable, "", check_defaults, output, 4096), 1);
        assert_string_equal(output, "");
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_int_equal(
            unit_child(others[i], "on", check_defaults, output, 4096), 1);
        assert_string_equal(output, "");
    }
}

static void test_callers(void **state)
{
    char text[2000];

    assert_int_equal(unit_child("VMMLANE_RANGE_CALLERS", "libfoo*,libbar.so",
                                check_callers, output, 4096),
                     1);
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(
        unit_child("VMMLANE_RANGE_CALLERS", text, no_callers, output, 4096), 1);
    assert_int_equal(unit_lines(output), 1);
    assert_non_null(strstr(output, "VMMLANE_RANGE_CALLERS"));
}

static void test_transport(void **state)
{
    /* Digits: getfd 1, ptracer 2, socket 3; 123 is the default. An exit code
     * holds 8 bits. */
    static const struct {
        const char *text;
        int steps;
    } good[] = {
        {"", 123},
        {"getfd,ptracer,socket", 123},
        {"getfd", 1},
        {"ptracer", 2},
        {"socket", 3},
        {"Socket,GETFD", 31},
        {"ptracer,getfd", 21},
        {"getfd,socket", 13},
        {"socket,getfd,ptracer", 312 % 256},
    };
    static const char *const bad[] = {
        "off",          "none",         ",",
        "getfd socket", "getfd,",       ",getfd",
        "get",          "getfdx",       "getfd,,socket",
        "getfd;socket", "socket,socke", "getfd,getfd,getfd,getfd",
    };
    char text[65];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(unit_child("VMMLANE_TRANSPORT", good[i].text,
                                    read_steps, output, 4096),
                         good[i].steps);
        assert_string_equal(output, "");
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(
            unit_child("VMMLANE_TRANSPORT", bad[i], read_steps, output, 4096),
            123);
        assert_int_equal(unit_lines(output), 1);
        assert_non_null(strstr(output, "VMMLANE_TRANSPORT"));
        assert_non_null(strstr(output, bad[i]));
        assert_non_null(strstr(output, "getfd,ptracer,socket is used"));
    }
    /* Too long to be kept: told by the settings themselves. */
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(
        unit_child("VMMLANE_TRANSPORT", text, read_steps, output, 4096), 123);
    assert_int_equal(unit_lines(output), 1);
}

/* Nothing is read, and nothing said, before somebody asks. */
static int ask_nothing(void)
{
    return 0;
}

static void test_lazy(void **state)
{
    assert_int_equal(
        unit_child("VMMLANE", "nonsense", ask_nothing, output, 4096), 0);
    assert_string_equal(output, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),   cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_bad_values), cmocka_unit_test(test_callers),
        cmocka_unit_test(test_transport),  cmocka_unit_test(test_lazy),
        cmocka_unit_test(test_misspelt),
    };

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
