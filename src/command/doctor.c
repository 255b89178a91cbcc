/* SPDX-License-Identifier: MIT */
/*
 * vmmlane doctor: every gate with a verdict, the evidence and the remedy.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command/command.h"
#include "doctor/gates.h"
#include "doctor/paths.h"

/* cuInit of a machine with eight GPUs and without nvidia-persistenced takes
 * several seconds. */
#define TIMEOUT_S 30u

/* NVML was not asked. */
#define LINKS_NOT_ASKED (-2)

#define PLACES_MAX 16

enum { KEY_JSON = 0x100, KEY_PID, KEY_PAIR, KEY_UCX, KEY_VENV, KEY_TIMEOUT };

static const struct argp_option options[] = {
    {"json", KEY_JSON, NULL, 0, "For machines: one JSON object", 0},
    {"pid", KEY_PID, "PID", 0, "Judge a running process", 0},
    {"pair", KEY_PAIR, "PID PID", 0,
     "Judge two running processes, and each's way to the other", 0},
    {"ucx", KEY_UCX, "FOLDER", 0,
     "Look for UCX there, not in the environment; can be repeated", 0},
    {"venv", KEY_VENV, "FOLDER", 0,
     "The Python environment of the job, instead of the current one", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0,
     "How long the driver may take to answer (30)", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

struct arguments {
    struct vmml_doctor doctor;
    const char *places[PLACES_MAX + 1];
    size_t place_count;
    pid_t pids[2];
    unsigned pid_count, pids_wanted;
    bool json;
};

static pid_t parse_pid(const char *text, struct argp_state *state)
{
    char *end;
    long pid = strtol(text, &end, 10);

    if (*end != '\0' || pid <= 0 || pid > 1 << 22)
        argp_error(state, "'%s' is no process", text);
    return (pid_t)pid;
}

static void parse_first_pid(struct arguments *arguments, unsigned wanted,
                            const char *text, struct argp_state *state)
{
    if (arguments->pids_wanted != 0)
        argp_error(state, "--pid or --pair, once");
    arguments->pids_wanted = wanted;
    arguments->pids[0] = parse_pid(text, state);
    arguments->pid_count = 1;
}

static void parse_timeout(struct arguments *arguments, const char *text,
                          struct argp_state *state)
{
    char *end;
    unsigned long seconds = strtoul(text, &end, 10);

    if (*end != '\0' || seconds == 0 || seconds > 3600)
        argp_error(state, "--timeout is 1 to 3600 seconds");
    arguments->doctor.timeout = (unsigned)seconds * 1000;
}

static void check_folder(const char *option, const char *path,
                         struct argp_state *state)
{
    struct stat status;

    if (stat(path, &status) != 0)
        argp_error(state, "%s: %s: %s", option, path, strerror(errno));
    else if (!S_ISDIR(status.st_mode))
        argp_error(state, "%s: %s is no folder", option, path);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct arguments *arguments = state->input;

    switch (key) {
    case KEY_JSON:
        arguments->json = true;
        return 0;
    case KEY_PID:
    case KEY_PAIR:
        parse_first_pid(arguments, key == KEY_PID ? 1 : 2, text, state);
        return 0;
    case KEY_UCX:
        if (arguments->place_count == PLACES_MAX)
            argp_error(state, "--ucx at most %d times", PLACES_MAX);
        check_folder("--ucx", text, state);
        arguments->places[arguments->place_count++] = text;
        return 0;
    case KEY_VENV:
        check_folder("--venv", text, state);
        arguments->doctor.venv = text;
        return 0;
    case KEY_TIMEOUT:
        parse_timeout(arguments, text, state);
        return 0;
    case ARGP_KEY_ARG:
        if (arguments->pid_count >= arguments->pids_wanted)
            return ARGP_ERR_UNKNOWN;
        arguments->pids[arguments->pid_count++] = parse_pid(text, state);
        return 0;
    case ARGP_KEY_END:
        if (arguments->pid_count < arguments->pids_wanted)
            argp_error(state, "--pair takes two processes");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp vmml_doctor_argp = {
    .options = options,
    .parser = parse,
    .doc = "Can the lane come up here? Judges each gate, with the evidence "
           "and the remedy."
           "\vExit status: 0 the lane can come up, 1 it cannot, 125 the "
           "question was not understood. A verdict of `warn` costs something, "
           "of `fail` the lane. Each gate is described in docs/doctor.md.",
};

/* ---- what is judged ---- */

static void judge_here(struct vmml_report *report,
                       const struct arguments *arguments)
{
    struct vmml_subject subject;
    struct vmml_trial trial;

    if (vmml_subject_read(&subject, 0) != 0)
        return;
    vmml_trial_run(&trial);
    vmml_gates_kernel(report, &subject, &trial);
    vmml_gates_limits(report, &subject);
    vmml_gates_settings(report, &subject);
    vmml_gates_driver(report, &arguments->doctor);
    vmml_gates_python(report, &subject, &arguments->doctor);
    vmml_gates_ucx(report, &subject, &arguments->doctor,
                   vmml_driver_nvlinks(&arguments->doctor));
    vmml_subject_free(&subject);
}

static void judge_process(struct vmml_report *report,
                          const struct arguments *arguments,
                          const struct vmml_subject *subject)
{
    struct vmml_trial trial;

    vmml_trial_run(&trial);
    vmml_gates_process(report, subject, &trial);
    vmml_gates_bound(report, subject);
    vmml_gates_settings(report, subject);
    vmml_gates_limits(report, subject);
    if (!subject->environment_known || !subject->files_known)
        return; /* process.readable has said so */
    vmml_gates_python(report, subject, &arguments->doctor);
    vmml_gates_ucx(report, subject, &arguments->doctor, LINKS_NOT_ASKED);
}

static void explain_absence(pid_t pid)
{
    if (kill(pid, 0) == 0 || errno == EPERM)
        fprintf(stderr,
                "vmmlane doctor: process %d cannot be seen in /proc (hidepid): "
                "ask as root\n",
                (int)pid);
    else
        fprintf(stderr, "vmmlane doctor: no process %d\n", (int)pid);
}

static int judge_running(struct vmml_report *report,
                         const struct arguments *arguments)
{
    struct vmml_subject subjects[2];
    unsigned i, read = 0;

    for (i = 0; i < arguments->pids_wanted; i++) {
        if (vmml_subject_read(&subjects[i], arguments->pids[i]) != 0) {
            explain_absence(arguments->pids[i]);
            break;
        }
        read++;
        judge_process(report, arguments, &subjects[i]);
    }
    if (read == 2)
        vmml_gates_pair(report, &subjects[0], &subjects[1]);
    for (i = 0; i < read; i++)
        vmml_subject_free(&subjects[i]);
    return read == arguments->pids_wanted ? 0 : -1;
}

/* https://no-color.org: set, and not to nothing. */
static bool wants_colour(void)
{
    const char *no = getenv("NO_COLOR"), *terminal = getenv("TERM");

    return isatty(STDOUT_FILENO) != 0 && (no == NULL || no[0] == '\0') &&
           (terminal == NULL || strcmp(terminal, "dumb") != 0);
}

static int show(const struct vmml_report *report, bool json)
{
    if (json)
        vmml_report_print_json(report, stdout);
    else
        vmml_report_print(report, stdout, wants_colour());
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("vmmlane doctor: standard output");
        return VMML_EXIT_FAILED;
    }
    return vmml_report_can_come_up(report) ? 0 : 1;
}

int vmml_command_doctor(int argc, char **argv)
{
    struct arguments arguments = {.doctor.timeout = TIMEOUT_S * 1000};
    struct vmml_report *report;
    int status = VMML_EXIT_FAILED;

    arguments.doctor.places = arguments.places;
    if (argp_parse(&vmml_doctor_argp, argc, argv, 0, NULL, &arguments) != 0)
        return status;
    report = vmml_report_new();
    if (report == NULL) {
        fputs("vmmlane doctor: no memory\n", stderr);
        return status;
    }
    if (arguments.pids_wanted == 0)
        judge_here(report, &arguments);
    if (arguments.pids_wanted == 0 || judge_running(report, &arguments) == 0)
        status = show(report, arguments.json);
    vmml_report_free(report);
    return status;
}
