/* SPDX-License-Identifier: MIT */
#include "command/settings.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/choices.h"
#include "base/levels.h"

const struct vmml_setting vmml_settings_list[] = {
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
    {#variable, choices, meaning},
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)                       \
    {#variable, NULL, meaning},
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)                               \
    {#variable, vmml_log_choices, meaning},
#define VMML_TOGGLE_LOG_FILE(variable, meaning) {#variable, NULL, meaning},
#include "base/toggles.def"
    {NULL, NULL, NULL},
};

const struct vmml_setting *vmml_setting_find(const char *variable)
{
    const struct vmml_setting *s;

    for (s = vmml_settings_list; s->variable != NULL; s++) {
        if (strcmp(s->variable, variable) == 0)
            return s;
    }
    return NULL;
}

bool vmml_setting_takes(const struct vmml_setting *setting, const char *value)
{
    struct vmml_log_levels levels;

    if (setting->choices == NULL)
        return true;
    /* More than one word: levels of topics. */
    if (setting->choices == vmml_log_choices)
        return vmml_log_levels_parse(value, &levels);
    for (const struct vmml_choice *c = setting->choices; c->word != NULL; c++) {
        if (strcasecmp(c->word, value) == 0)
            return true;
    }
    return false;
}

void vmml_setting_words(const struct vmml_setting *setting, char *words,
                        size_t size)
{
    const struct vmml_choice *c = setting->choices;
    size_t used = 0;

    words[0] = '\0';
    for (; c != NULL && c->word != NULL && used < size; c++) {
        int length = snprintf(words + used, size - used, "%s%s",
                              used > 0 ? ", " : "", c->word);

        if (length < 0)
            return;
        used += (size_t)length;
    }
}
