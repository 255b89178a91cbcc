/* SPDX-License-Identifier: MIT */
/*
 * Read without a lock and without waiting: every thread that comes before the
 * first is done reads the environment into a place of its own, and one is
 * published. Nothing can be left half done by a fork.
 */
#include "base/conf.h"

#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/choices.h"
#include "base/conf_log.h"
#include "base/log.h"

struct vmml_settings {
    struct vmml_conf conf;
    int log_level;
    const char *log_file;
    /* Text is copied: an application may change its environment later. */
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)                       \
    char text_##field[size];
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)
#define VMML_TOGGLE_LOG_FILE(variable, meaning) char text_log_file[PATH_MAX];
#include "base/toggles.def"
};

/* For as many threads as may come first at once. */
#define VMML_SETTINGS_PLACES 16

static struct vmml_settings vmml_settings[VMML_SETTINGS_PLACES];
static const struct vmml_settings vmml_settings_default = {
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
    .conf.field = (fallback),
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning) .log_level = VMML_LOG_WARN,
#define VMML_TOGGLE_LOG_FILE(variable, meaning)
#include "base/toggles.def"
};
static atomic_uint vmml_settings_taken;
static _Atomic(const struct vmml_settings *) vmml_settings_ready;

static const char *vmml_environment(const char *variable)
{
    const char *text = secure_getenv(variable);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

static bool vmml_word_in(const char *word, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcasecmp(word, *words) == 0)
            return true;
    }
    return false;
}

static const char *vmml_usual_spelling(const char *word)
{
    static const char *const on[] = {"1", "y", "yes", "true", NULL};
    static const char *const off[] = {"0", "n", "no", "false", NULL};

    if (vmml_word_in(word, on))
        return "on";
    return vmml_word_in(word, off) ? "off" : word;
}

static const struct vmml_choice *
vmml_find_choice(const struct vmml_choice *choices, const char *word)
{
    word = vmml_usual_spelling(word);
    for (; choices->word != NULL; choices++) {
        if (strcasecmp(word, choices->word) == 0)
            return choices;
    }
    return NULL;
}

static const char *vmml_choice_word(const struct vmml_choice *choices,
                                    int value)
{
    while (choices->word != NULL && choices->value != value)
        choices++;
    return choices->word;
}

static void vmml_report_choice(const char *variable, const char *word,
                               const struct vmml_choice *choices, int fallback)
{
    char allowed[128] = "";

    for (const struct vmml_choice *c = choices; c->word != NULL; c++) {
        if (c != choices)
            strncat(allowed, ", ", sizeof(allowed) - strlen(allowed) - 1);
        strncat(allowed, c->word, sizeof(allowed) - strlen(allowed) - 1);
    }
    vmml_warn("%s=%s is not one of %s: %s is used", variable, word, allowed,
              vmml_choice_word(choices, fallback));
}

static int vmml_read_choice(const char *variable,
                            const struct vmml_choice *choices, int fallback,
                            bool report)
{
    const char *word = vmml_environment(variable);
    const struct vmml_choice *choice;

    if (word == NULL)
        return fallback;
    choice = vmml_find_choice(choices, word);
    if (choice != NULL)
        return choice->value;
    if (report)
        vmml_report_choice(variable, word, choices, fallback);
    return fallback;
}

static const char *vmml_read_text(const char *variable, char *buffer,
                                  size_t size, bool report)
{
    const char *text = vmml_environment(variable);

    if (text == NULL)
        return NULL;
    if (strlen(text) >= size) {
        if (report)
            vmml_warn("%s is longer than %zu bytes: it is not used", variable,
                      size - 1);
        return NULL;
    }
    strcpy(buffer, text);
    return buffer;
}

/* Absolute, so that it stays one file when the application changes its
 * directory. */
static const char *vmml_read_path(const char *variable, char *buffer,
                                  size_t size, bool report)
{
    const char *text = vmml_environment(variable);
    size_t used = 0;

    if (text == NULL)
        return NULL;
    if (text[0] != '/' && getcwd(buffer, size) != NULL) {
        used = strlen(buffer);
        if (used + 1 < size)
            buffer[used++] = '/';
    }
    if (used + strlen(text) >= size) {
        if (report)
            vmml_warn("%s is longer than %zu bytes: stderr is used", variable,
                      size - 1);
        return NULL;
    }
    strcpy(buffer + used, text);
    return buffer;
}

static void vmml_read_settings(struct vmml_settings *s, bool report)
{
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
    s->conf.field = vmml_read_choice(#variable, choices, fallback, report);
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)                       \
    s->conf.field = vmml_read_text(#variable, s->text_##field,                 \
                                   sizeof(s->text_##field), report);
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)                               \
    s->log_level =                                                             \
        vmml_read_choice(#variable, vmml_log_choices, VMML_LOG_WARN, report);
#define VMML_TOGGLE_LOG_FILE(variable, meaning)                                \
    s->log_file = vmml_read_path(#variable, s->text_log_file,                  \
                                 sizeof(s->text_log_file), report);
#include "base/toggles.def"
}

static const struct vmml_settings *
vmml_settings_publish(const struct vmml_settings *own)
{
    static struct vmml_settings again; /* the publisher's alone */
    const struct vmml_settings *ready = NULL;

    if (!atomic_compare_exchange_strong(&vmml_settings_ready, &ready, own))
        return ready;
    __atomic_store_n(&vmml_log_level, own->log_level, __ATOMIC_RELAXED);
    /* Bad values are told when the log knows its level and its file. */
    vmml_read_settings(&again, true);
    return own;
}

static const struct vmml_settings *vmml_settings_get(void)
{
    const struct vmml_settings *ready =
        atomic_load_explicit(&vmml_settings_ready, memory_order_acquire);
    unsigned place;

    if (ready != NULL)
        return ready;
    place = atomic_fetch_add(&vmml_settings_taken, 1);
    if (place >= VMML_SETTINGS_PLACES)
        return &vmml_settings_default;
    vmml_read_settings(&vmml_settings[place], false);
    return vmml_settings_publish(&vmml_settings[place]);
}

const struct vmml_conf *vmml_conf(void)
{
    return &vmml_settings_get()->conf;
}

bool vmml_conf_children(void)
{
    return vmml_read_choice("VMMLANE_CHILDREN", vmml_on_off, true, false);
}

const char *vmml_conf_log_file(void)
{
    return vmml_settings_get()->log_file;
}
