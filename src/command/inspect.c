/* SPDX-License-Identifier: MIT */
/*
 * vmmlane inspect: what a running process exports, imports and has lost. It
 * reads shared memory; the process is not stopped and does not notice.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "command/command.h"
#include "inspect/print.h"

enum {
    VMML_KEY_JSON = 0x100,
    VMML_KEY_CHUNKS,
    VMML_KEY_WATCH,
};

/* Nothing of vmmlane can be seen there. */
#define VMML_EXIT_NOTHING 1

#define VMML_WATCH_SECONDS 2

static const struct argp_option vmml_inspect_options[] = {
    {"json", VMML_KEY_JSON, NULL, 0, "JSON; with --watch one object a line", 0},
    {"chunks", VMML_KEY_CHUNKS, NULL, 0, "Each chunk of every window", 0},
    {"watch", VMML_KEY_WATCH, "SECONDS", OPTION_ARG_OPTIONAL,
     "Again and again, every 2 seconds or as often as given, until the process "
     "ends",
     0},
    {NULL, 0, NULL, 0, NULL, 0},
};

struct vmml_inspect {
    pid_t pid;
    bool json;
    bool chunks;
    double watch; /* seconds; 0: once */
};

static double vmml_seconds(const char *text, struct argp_state *state)
{
    double seconds;
    char *end;

    if (text == NULL)
        return VMML_WATCH_SECONDS;
    seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds >= 0.1) || seconds > 86400)
        argp_error(state, "'%s' is no number of seconds from 0.1 to 86400",
                   text);
    return seconds;
}

static pid_t vmml_pid(const char *text, struct argp_state *state)
{
    char *end;
    long pid = strtol(text, &end, 10);

    if (end == text || *end != '\0' || pid <= 0 || pid != (pid_t)pid)
        argp_error(state, "'%s' is no process id", text);
    return (pid_t)pid;
}

static error_t vmml_inspect_parse(int key, char *argument,
                                  struct argp_state *state)
{
    struct vmml_inspect *inspect = state->input;

    switch (key) {
    case VMML_KEY_JSON:
        inspect->json = true;
        return 0;
    case VMML_KEY_CHUNKS:
        inspect->chunks = true;
        return 0;
    case VMML_KEY_WATCH:
        inspect->watch = vmml_seconds(argument, state);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "one process at a time");
        inspect->pid = vmml_pid(argument, state);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp vmml_inspect_argp = {
    .options = vmml_inspect_options,
    .parser = vmml_inspect_parse,
    .args_doc = "PID",
    .doc = "Show what the process PID exports, imports and has lost, its "
           "counters and the calls of each hooked function. The process is "
           "not stopped. It must be of the same user."
           "\vThe exit status is 0; 1 where libvmmlane.so is not loaded or "
           "shows nothing; 125 if the process cannot be read.",
};

static void vmml_show(const struct vmml_inspect *inspect,
                      const struct vmml_survey *survey)
{
    struct vmml_json json = {.out = stdout, .line = inspect->watch != 0};

    if (inspect->json) {
        vmml_survey_json(survey, inspect->chunks, &json);
        return;
    }
    /* A terminal begins anew. */
    if (inspect->watch != 0 && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout);
    vmml_survey_print(survey, inspect->chunks, stdout);
}

/* Returns the exit status; *gone: the process is there no more. */
static int vmml_inspect_once(const struct vmml_inspect *inspect, bool *gone)
{
    struct vmml_survey *survey = malloc(sizeof(*survey));
    int error =
        survey == NULL ? ENOMEM : vmml_survey_make(inspect->pid, survey);
    int status = 0;

    *gone = error == ESRCH;
    if (error != 0) {
        free(survey);
        fprintf(stderr, "vmmlane inspect: process %d: %s\n", (int)inspect->pid,
                strerror(error));
        return VMML_EXIT_FAILED;
    }
    vmml_show(inspect, survey);
    if (survey->state == VMML_LANE_NOT_LOADED ||
        survey->state == VMML_LANE_UNSEEN)
        status = VMML_EXIT_NOTHING;
    vmml_survey_free(survey);
    free(survey);
    return fflush(stdout) == 0 ? status : VMML_EXIT_FAILED;
}

static void vmml_pause(double seconds)
{
    struct timespec time = {(time_t)seconds, 0};

    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
}

int vmml_command_inspect(int argc, char **argv)
{
    struct vmml_inspect inspect = {0};
    bool gone = false;
    int first, status;

    if (argp_parse(&vmml_inspect_argp, argc, argv, 0, NULL, &inspect) != 0)
        return VMML_EXIT_FAILED;
    first = status = vmml_inspect_once(&inspect, &gone);
    while (inspect.watch != 0 && status != VMML_EXIT_FAILED) {
        vmml_pause(inspect.watch);
        status = vmml_inspect_once(&inspect, &gone);
    }
    /* The end of what was watched is no failure. */
    return first != VMML_EXIT_FAILED && gone ? 0 : status;
}
