/* SPDX-License-Identifier: MIT */
/* The library's settings (base/toggles.def) as the command sees them. */
#ifndef VMML_COMMAND_SETTINGS_H
#define VMML_COMMAND_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct vmml_choice;

struct vmml_setting {
    const char *variable;
    const struct vmml_choice *choices; /* NULL: any text */
    int fallback;                      /* of the choices, by default */
    const char *meaning;
};

/* All of them; the last has no variable. */
extern const struct vmml_setting vmml_settings_list[];

/* NULL: there is none of that name. */
const struct vmml_setting *vmml_setting_find(const char *variable);

/* Does the library take this value? */
bool vmml_setting_takes(const struct vmml_setting *setting, const char *value);

/* The words that it takes, ", " between; "" for any text. */
void vmml_setting_words(const struct vmml_setting *setting, char *words,
                        size_t size);

/* All of them for a reader: names, words (default first), meanings. */
void vmml_settings_print(FILE *out);

#endif
