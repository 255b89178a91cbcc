/* SPDX-License-Identifier: MIT */
/* The library's settings (base/toggles.def) as the command sees them. */
#ifndef VMML_COMMAND_SETTINGS_H
#define VMML_COMMAND_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

struct vmml_choice;

struct vmml_setting {
    const char *variable;
    const struct vmml_choice *choices; /* NULL: any text */
    const char *meaning;
};

/* All of them; the last has no variable. */
extern const struct vmml_setting vmml_settings_list[];

/* NULL: there is none of that name. */
const struct vmml_setting *vmml_setting_find(const char *variable);

/* Does the library take this value? */
bool vmml_setting_takes(const struct vmml_setting *setting, const char *value);

/* The words that it takes, ", " between, default first; "" for any text. */
void vmml_setting_words(const struct vmml_setting *setting, char *words,
                        size_t size);

#endif
