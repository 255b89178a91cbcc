/* SPDX-License-Identifier: MIT */
/*
 * vmmlane run: sets the environment and becomes the program, so that exit
 * status, signals and terminal are the program's own.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command/command.h"
#include "command/preload.h"
#include "command/program.h"
#include "command/settings.h"

/* As env(1) and the shells have it. */
enum {
    VMML_EXIT_NOT_EXECUTABLE = 126,
    VMML_EXIT_NOT_FOUND = 127,
};

enum {
    VMML_KEY_LOG = 0x100,
    VMML_KEY_LOG_FILE,
    VMML_KEY_LOG_FORMAT,
    VMML_KEY_STATS,
    VMML_KEY_METRICS,
    VMML_KEY_STRICT,
    VMML_KEY_NATIVE,
    VMML_KEY_NO_CHILDREN,
    VMML_KEY_PRINT,
};

static const struct argp_option vmml_run_options[] = {
    {"log", VMML_KEY_LOG, "LEVEL", 0,
     "How much is logged: off, error, warn, info, debug or trace", 0},
    {"log-file", VMML_KEY_LOG_FILE, "FILE", 0,
     "Where it is logged; %p in the name is the process, %h the host", 0},
    {"log-format", VMML_KEY_LOG_FORMAT, "FORMAT", 0,
     "text, or json for one JSON object a line", 0},
    {"stats", VMML_KEY_STATS, NULL, 0,
     "Log what was served and what was lost when a process ends", 0},
    {"metrics", VMML_KEY_METRICS, "FILE", 0,
     "Keep a Prometheus text file of the counters", 0},
    {"strict", VMML_KEY_STRICT, NULL, 0,
     "An error, not a slow transfer, where GPU memory loses the lane", 0},
    {"native", VMML_KEY_NATIVE, "WHEN", 0,
     "auto: leave to UCX what it serves by itself; never: serve it as well", 0},
    {"no-children", VMML_KEY_NO_CHILDREN, NULL, 0,
     "The program alone: what it starts runs without vmmlane", 0},
    {"print", VMML_KEY_PRINT, NULL, 0,
     "Print the settings as assignments of the shell; run nothing", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

/* Option -> setting; a NULL value is the option's argument. */
static const struct vmml_mapping {
    int key;
    const char *variable;
    const char *value;
} vmml_mappings[] = {
    {VMML_KEY_LOG, "VMMLANE_LOG", NULL},
    {VMML_KEY_LOG_FILE, "VMMLANE_LOG_FILE", NULL},
    {VMML_KEY_LOG_FORMAT, "VMMLANE_LOG_FORMAT", NULL},
    {VMML_KEY_STATS, "VMMLANE_STATS", "exit"},
    {VMML_KEY_METRICS, "VMMLANE_METRICS_FILE", NULL},
    {VMML_KEY_STRICT, "VMMLANE_STRICT", "on"},
    {VMML_KEY_NATIVE, "VMMLANE_NATIVE", NULL},
    {VMML_KEY_NO_CHILDREN, "VMMLANE_CHILDREN", "off"},
};

#define VMML_MAPPINGS (sizeof(vmml_mappings) / sizeof(*vmml_mappings))

struct vmml_run {
    const char *values[VMML_MAPPINGS]; /* NULL: not given */
    int program;                       /* its place in argv */
    bool print;
};

static void vmml_check_value(const struct vmml_mapping *mapping,
                             const char *value, struct argp_state *state)
{
    const struct vmml_setting *setting = vmml_setting_find(mapping->variable);
    char words[128];

    if (value[0] == '\0')
        argp_error(state, "an empty value for %s", mapping->variable);
    if (setting == NULL || vmml_setting_takes(setting, value))
        return;
    vmml_setting_words(setting, words, sizeof(words));
    argp_error(state, "'%s' is not one of %s", value, words);
}

static error_t vmml_set(struct vmml_run *run, int key, char *argument,
                        struct argp_state *state)
{
    for (size_t i = 0; i < VMML_MAPPINGS; i++) {
        const struct vmml_mapping *mapping = &vmml_mappings[i];

        if (mapping->key != key)
            continue;
        run->values[i] = mapping->value != NULL ? mapping->value : argument;
        vmml_check_value(mapping, run->values[i], state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static error_t vmml_run_parse(int key, char *argument, struct argp_state *state)
{
    struct vmml_run *run = state->input;

    switch (key) {
    case VMML_KEY_PRINT:
        run->print = true;
        return 0;
    case ARGP_KEY_ARG:
        run->program = state->next - 1;
        state->next = state->argc; /* the rest is the program's */
        return 0;
    case ARGP_KEY_END:
        if (run->program == 0 && !run->print)
            argp_error(state, "no program to run");
        return 0;
    default:
        return vmml_set(run, key, argument, state);
    }
}

const struct argp vmml_run_argp = {
    .options = vmml_run_options,
    .parser = vmml_run_parse,
    .args_doc = "[--] PROGRAM [ARGUMENT...]",
    .doc = "Run PROGRAM with libvmmlane.so preloaded, after whatever is "
           "preloaded already. Both processes of a transfer need it: the one "
           "that owns the memory and the one that reads or writes it."
           "\vThe exit status is PROGRAM's; 125 if vmmlane itself fails, 126 "
           "if PROGRAM cannot be run, 127 if it is not found.",
};

/* As the shell reads it back. */
static void vmml_print_assignment(const char *variable, const char *value)
{
    printf("export %s='", variable);
    for (; *value != '\0'; value++) {
        if (*value == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*value);
    }
    puts("'");
}

static int vmml_give(const struct vmml_run *run, const char *variable,
                     const char *value)
{
    if (run->print) {
        vmml_print_assignment(variable, value);
        return 0;
    }
    return setenv(variable, value, 1);
}

static int vmml_give_library(const struct vmml_run *run)
{
    char library[PATH_MAX], *preload;
    int status = vmml_library_path(library, sizeof(library));

    if (status != 0) {
        fprintf(stderr,
                "vmmlane: libvmmlane.so is not where it was installed: %s\n",
                strerror(-status));
        return -1;
    }
    if (!vmml_preload_can(library)) {
        fprintf(stderr,
                "vmmlane: a path with a space, a colon or a dollar sign "
                "cannot be preloaded: %s\n",
                library);
        return -1;
    }
    preload = vmml_preload_append(getenv("LD_PRELOAD"), library);
    if (preload == NULL || vmml_give(run, "LD_PRELOAD", preload) != 0) {
        perror("vmmlane: LD_PRELOAD");
        free(preload);
        return -1;
    }
    free(preload);
    return 0;
}

static int vmml_give_settings(const struct vmml_run *run)
{
    for (size_t i = 0; i < VMML_MAPPINGS; i++) {
        if (run->values[i] == NULL)
            continue;
        if (vmml_give(run, vmml_mappings[i].variable, run->values[i]) != 0) {
            fprintf(stderr, "vmmlane: %s: %s\n", vmml_mappings[i].variable,
                    strerror(errno));
            return -1;
        }
    }
    return 0;
}

/* False: with the library it would not start. */
static bool vmml_check_program(const char *name)
{
    enum vmml_program kind = vmml_program_kind(name);
    const char *why = NULL;

    if (kind == VMML_PROGRAM_STATIC)
        why = "is a static program";
    else if (kind == VMML_PROGRAM_MUSL)
        why = "was built with musl, not glibc";
    else if (kind == VMML_PROGRAM_SET_ID)
        why = "changes its user or group when it starts";
    if (why != NULL)
        fprintf(stderr, "vmmlane: %s %s: it runs without vmmlane\n", name, why);
    return kind != VMML_PROGRAM_MUSL;
}

int vmml_command_run(int argc, char **argv)
{
    struct vmml_run run = {0};
    int status;

    if (argp_parse(&vmml_run_argp, argc, argv, ARGP_IN_ORDER, NULL, &run) != 0)
        return VMML_EXIT_FAILED;
    if ((run.print || vmml_check_program(argv[run.program])) &&
        vmml_give_library(&run) != 0)
        return VMML_EXIT_FAILED;
    if (vmml_give_settings(&run) != 0)
        return VMML_EXIT_FAILED;
    if (run.print)
        return fflush(stdout) == 0 ? 0 : VMML_EXIT_FAILED;
    execvp(argv[run.program], argv + run.program);
    status = errno == ENOENT ? VMML_EXIT_NOT_FOUND : VMML_EXIT_NOT_EXECUTABLE;
    fprintf(stderr, "vmmlane: %s: %s\n", argv[run.program], strerror(errno));
    return status;
}
