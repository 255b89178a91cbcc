/* SPDX-License-Identifier: MIT */
#include "command/settings.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/choices.h"
#include "base/levels.h"

const struct vmml_setting vmml_settings_list[] = {
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
    {#variable, choices, fallback, meaning},
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)                       \
    {#variable, NULL, 0, meaning},
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)                               \
    {#variable, vmml_log_choices, VMML_LOG_WARN, meaning},
#define VMML_TOGGLE_LOG_FILE(variable, meaning) {#variable, NULL, 0, meaning},
#include "base/toggles.def"
    {NULL, NULL, 0, NULL},
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

/* "  NAME = default | another"; of text "  NAME=TEXT". */
static void print_head(FILE *out, const struct vmml_setting *setting)
{
    const struct vmml_choice *c;

    if (setting->choices == NULL) {
        fprintf(out, "%s=TEXT\n", setting->variable);
        return;
    }
    fprintf(out, "%s =", setting->variable);
    for (c = setting->choices; c->word != NULL; c++)
        if (c->value == setting->fallback)
            fprintf(out, " %s", c->word);
    for (c = setting->choices; c->word != NULL; c++)
        if (c->value != setting->fallback)
            fprintf(out, " | %s", c->word);
    fputc('\n', out);
}

#define LINE_MAX_COLUMNS 78u

static void print_wrapped(FILE *out, const char *text)
{
    size_t column = 0;

    while (*text != '\0') {
        size_t length = strcspn(text, " ");

        if (column > 0 && column + 1 + length > LINE_MAX_COLUMNS) {
            fputc('\n', out);
            column = 0;
        }
        column += (size_t)fprintf(out, "%s%.*s", column == 0 ? "    " : " ",
                                  (int)length, text);
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void vmml_settings_print(FILE *out)
{
    const struct vmml_setting *setting;

    fputs("Environment variables; of several words the first is the default.\n",
          out);
    for (setting = vmml_settings_list; setting->variable != NULL; setting++) {
        fputc('\n', out);
        print_head(out, setting);
        print_wrapped(out, setting->meaning);
    }
}
