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
#include <sys/auxv.h>
#include <unistd.h>

#include "base/choices.h"
#include "base/conf_log.h"
#include "base/log.h"
#include "base/spelling.h"

struct vmml_settings {
    struct vmml_conf conf;
    struct vmml_log_levels log_levels;
    unsigned log_rate;
    const char *log_file;
    /* Text is copied: an application may change its environment later. */
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)                       \
    char text_##field[size];
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)
#define VMML_TOGGLE_LOG_FILE(variable, meaning) char text_log_file[PATH_MAX];
#include "base/toggles.def"
};

#define LEVELS_DEFAULT                                                         \
    {                                                                          \
        .rest = VMML_LOG_WARN, .of = {                                         \
            [0 ... VMML_LOG_TOPICS - 1] = VMML_LOG_WARN                        \
        }                                                                      \
    }

/* For as many threads as may come first at once. */
#define VMML_SETTINGS_PLACES 16

static struct vmml_settings vmml_settings[VMML_SETTINGS_PLACES];
static const struct vmml_settings vmml_settings_default = {
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
    .conf.field = (fallback),
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning) .log_levels = LEVELS_DEFAULT,
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

static void vmml_report_levels(const char *variable, const char *text)
{
    char topics[160] = "";
    int i;

    for (i = 0; i < VMML_LOG_TOPICS; i++) {
        strncat(topics, i > 0 ? ", " : "", sizeof(topics) - strlen(topics) - 1);
        strncat(topics, vmml_log_topics[i],
                sizeof(topics) - strlen(topics) - 1);
    }
    vmml_warn("%s=%s is not one of off, error, warn, info, debug, trace, or a "
              "list of them and TOPIC=LEVEL with ',' between (topics: %s): "
              "warn is used",
              variable, text, topics);
}

static void vmml_read_levels(const char *variable,
                             struct vmml_log_levels *levels, bool report)
{
    const char *text = vmml_environment(variable);

    *levels = (struct vmml_log_levels)LEVELS_DEFAULT;
    if (text != NULL && !vmml_log_levels_parse(text, levels) && report)
        vmml_report_levels(variable, text);
}

/* text: of the setting, or NULL. */
static unsigned vmml_read_number(const char *variable, const char *text,
                                 bool report)
{
    unsigned long value;
    char *end;

    if (text == NULL)
        return 0;
    value = strtoul(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && value <= UINT_MAX)
        return (unsigned)value;
    if (report)
        vmml_warn("%s=%s is no number: 0 is used", variable, text);
    return 0;
}

static void vmml_read_settings(struct vmml_settings *s, bool report)
{
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
    s->conf.field = vmml_read_choice(#variable, choices, fallback, report);
#define VMML_TOGGLE_TEXT(variable, field, size, meaning)                       \
    s->conf.field = vmml_read_text(#variable, s->text_##field,                 \
                                   sizeof(s->text_##field), report);
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)                               \
    vmml_read_levels(#variable, &s->log_levels, report);
#define VMML_TOGGLE_LOG_FILE(variable, meaning)                                \
    s->log_file = vmml_read_path(#variable, s->text_log_file,                  \
                                 sizeof(s->text_log_file), report);
#include "base/toggles.def"
    s->log_rate =
        vmml_read_number("VMMLANE_LOG_RATE", s->conf.log_rate, report);
}

/* One line for each: they have nothing in common but their start. */
static void vmml_report_misspelt(void)
{
    char name[VMML_SETTING_NAME_MAX];
    const char *meant;

    /* As secure_getenv(3), which has no setting then. */
    if (environ == NULL || getauxval(AT_SECURE) != 0)
        return;
    for (char **entry = environ; *entry != NULL; entry++) {
        if (!vmml_misspelt(*entry, name, &meant))
            continue;
        vmml_warn(
            "%s is no setting of vmmlane, and changes nothing: %s%s", name,
            meant != NULL ? "the nearest one is " : "see `vmmlane --settings`",
            meant != NULL ? meant : "");
    }
}

static const struct vmml_settings *
vmml_settings_publish(const struct vmml_settings *own)
{
    static struct vmml_settings again; /* the publisher's alone */
    const struct vmml_settings *ready = NULL;

    if (!atomic_compare_exchange_strong(&vmml_settings_ready, &ready, own))
        return ready;
    __atomic_store_n(&vmml_log_level, vmml_log_level_highest(&own->log_levels),
                     __ATOMIC_RELAXED);
    /* Bad values are told when the log knows its level and its file. */
    vmml_read_settings(&again, true);
    vmml_report_misspelt();
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

const struct vmml_log_levels *vmml_conf_log_levels(void)
{
    return &vmml_settings_get()->log_levels;
}

unsigned vmml_conf_log_rate(void)
{
    return vmml_settings_get()->log_rate;
}
