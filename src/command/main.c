/* SPDX-License-Identifier: MIT */
/* The command's frame: its own options, then one subcommand. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/command.h"
#include "command/completion.h"
#include "command/settings.h"

/* Read by argp, so not hidden. */
__attribute__((visibility("default"))) const char *argp_program_version =
    "vmmlane " VMML_VERSION;

const struct vmml_command vmml_commands[] = {
#define VMML_COMMAND(name, summary)                                            \
    {#name, summary, &vmml_##name##_argp, vmml_command_##name},
#include "command/commands.def"
#undef VMML_COMMAND
    {NULL, NULL, NULL, NULL},
};

enum {
    VMML_KEY_LIBRARY = 0x100,
    VMML_KEY_COMPLETION,
    VMML_KEY_SETTINGS,
};

static const struct argp_option vmml_options[] = {
    {"library", VMML_KEY_LIBRARY, NULL, 0,
     "Print the path of libvmmlane.so, for LD_PRELOAD", 0},
    {"completion", VMML_KEY_COMPLETION, "SHELL", 0,
     "Print the completion script for bash, zsh or fish", 0},
    {"settings", VMML_KEY_SETTINGS, NULL, 0,
     "Print the library's settings (environment variables)", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

struct vmml_arguments {
    int subcommand; /* its place in argv; 0: none */
};

static int vmml_print_library(void)
{
    char path[PATH_MAX];
    int status = vmml_library_path(path, sizeof(path));

    if (status != 0) {
        fprintf(stderr,
                "vmmlane: libvmmlane.so is not where it was "
                "installed: %s\n",
                strerror(-status));
        return VMML_EXIT_FAILED;
    }
    puts(path);
    return 0;
}

static int vmml_print_settings(void)
{
    vmml_settings_print(stdout);
    return fflush(stdout) == 0 ? 0 : VMML_EXIT_FAILED;
}

static error_t vmml_parse(int key, char *argument, struct argp_state *state)
{
    struct vmml_arguments *arguments = state->input;

    switch (key) {
    case VMML_KEY_LIBRARY:
        exit(vmml_print_library());
    case VMML_KEY_SETTINGS:
        exit(vmml_print_settings());
    case VMML_KEY_COMPLETION:
        if (vmml_completion(argument, stdout, vmml_options) != 0)
            argp_error(state,
                       "no completion for the shell '%s': bash, zsh "
                       "or fish",
                       argument);
        exit(0);
    case ARGP_KEY_ARG:
        arguments->subcommand = state->next - 1;
        state->next = state->argc; /* the rest is the subcommand's */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The list of subcommands in --help; argp frees what is not `text`. */
static char *vmml_help_filter(int key, const char *text, void *input)
{
    char *list = NULL;
    size_t size;
    FILE *out;

    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)text;
    out = open_memstream(&list, &size);
    if (out == NULL)
        return (char *)text;
    fputs("Subcommands:\n", out);
    for (const struct vmml_command *c = vmml_commands; c->name != NULL; c++)
        fprintf(out, "  %-10s %s\n", c->name, c->summary);
    fputs("\n`vmmlane SUBCOMMAND --help` tells more of each, `vmmlane "
          "--settings` lists the settings; manual pages: vmmlane(1), "
          "vmmlane(7).",
          out);
    if (fclose(out) != 0) {
        free(list);
        return (char *)text;
    }
    return list;
}

static const struct argp vmml_argp = {
    .options = vmml_options,
    .parser = vmml_parse,
    .args_doc = "SUBCOMMAND [ARGUMENT...]",
    .doc = "The fast lane for CUDA virtual-memory allocations in UCX, NIXL "
           "and PyTorch jobs.\v-",
    .help_filter = vmml_help_filter,
};

static int vmml_run_subcommand(int argc, char **argv)
{
    char name[64];

    for (const struct vmml_command *c = vmml_commands; c->name != NULL; c++) {
        if (strcmp(c->name, argv[0]) != 0)
            continue;
        snprintf(name, sizeof(name), "vmmlane %s", c->name);
        argv[0] = name;
        return c->run(argc, argv);
    }
    fprintf(stderr,
            "vmmlane: no subcommand '%s'; `vmmlane --help` lists "
            "them\n",
            argv[0]);
    return VMML_EXIT_FAILED;
}

int main(int argc, char **argv)
{
    struct vmml_arguments arguments = {0};

    argp_err_exit_status = VMML_EXIT_FAILED;
    if (argp_parse(&vmml_argp, argc, argv, ARGP_IN_ORDER, NULL, &arguments) !=
        0)
        return VMML_EXIT_FAILED;
    return vmml_run_subcommand(argc - arguments.subcommand,
                               argv + arguments.subcommand);
}
