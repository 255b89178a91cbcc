/* SPDX-License-Identifier: MIT */
#ifndef VMML_COMMAND_PROGRAM_H
#define VMML_COMMAND_PROGRAM_H

enum vmml_program {
    VMML_PROGRAM_USUAL,  /* or a script, or not known */
    VMML_PROGRAM_STATIC, /* no loader, no preload */
    VMML_PROGRAM_MUSL,   /* its loader would load the library, and fail */
    VMML_PROGRAM_SET_ID, /* ld.so(8): the preload is ignored */
};

/* What the file that execvp(3) would run for `name` makes of LD_PRELOAD. */
enum vmml_program vmml_program_kind(const char *name);

#endif
