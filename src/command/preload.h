/* SPDX-License-Identifier: MIT */
#ifndef VMML_COMMAND_PRELOAD_H
#define VMML_COMMAND_PRELOAD_H

#include <stdbool.h>

/* Is there an entry for `library` in the value of an LD_PRELOAD? */
bool vmml_preload_has(const char *preload, const char *library);

/* `preload` (or NULL) with `library` as its last entry, to be freed; NULL:
 * no memory. */
char *vmml_preload_append(const char *preload, const char *library);

/* ld.so(8): a space or a colon ends an entry, and nothing escapes it; $ begins
 * a token. */
bool vmml_preload_can(const char *library);

#endif
