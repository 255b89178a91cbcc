/* SPDX-License-Identifier: MIT */
/*
 * The command `vmmlane` and its subcommands.
 *
 * A subcommand NAME is three things:
 *   - a file NAME.c that defines `const struct argp vmml_NAME_argp` (glibc's
 *     argp; --help and shell completion come out of it) and
 *     `int vmml_command_NAME(int argc, char **argv)`;
 *   - a line `VMML_COMMAND(NAME, "what it does")` in commands.def;
 *   - its files in meson.build.
 *
 * The function gets its own arguments: argv[0] is "vmmlane NAME", for
 * argp_parse(&vmml_NAME_argp, argc, argv, ...). What it returns is the exit
 * status. An error in the arguments (argp_error, argp_usage) exits with
 * VMML_EXIT_FAILED, which no verdict of a subcommand uses.
 *
 * The command needs nothing but glibc: it is in a wheel that must run on any
 * distribution. For JSON there is json.h. `core_lib` is linked, so that
 * functions of the library (the ledger's reader) can be called; no hook is.
 */
#ifndef VMML_COMMAND_COMMAND_H
#define VMML_COMMAND_COMMAND_H

#include <argp.h>
#include <stddef.h>

/* The command itself failed, or was not understood: as env(1), timeout(1). */
#define VMML_EXIT_FAILED 125

struct vmml_command {
    const char *name;
    const char *summary;
    const struct argp *argp;
    int (*run)(int argc, char **argv);
};

#define VMML_COMMAND(name, summary)                                            \
    extern const struct argp vmml_##name##_argp;                               \
    int vmml_command_##name(int argc, char **argv);
#include "command/commands.def"
#undef VMML_COMMAND

/* All of them; the last has no name. */
extern const struct vmml_command vmml_commands[];

/* Absolute path of the libvmmlane.so that belongs to this command, in `path`.
 * Returns 0, or -ENOENT where there is none, or another negative errno. */
int vmml_library_path(char *path, size_t size);

#endif
