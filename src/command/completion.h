/* SPDX-License-Identifier: MIT */
/* Shell completion, made from the tables of options. */
#ifndef VMML_COMMAND_COMPLETION_H
#define VMML_COMMAND_COMPLETION_H

#include <argp.h>
#include <stdio.h>

/* Writes the script for `shell` (bash, zsh, fish); `options` are the command's
 * own. Returns 0, or -1 for another shell. */
int vmml_completion(const char *shell, FILE *out,
                    const struct argp_option *options);

#endif
