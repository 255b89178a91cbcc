/* SPDX-License-Identifier: MIT */
#include "base/levels.h"

#include <string.h>
#include <strings.h>

#include "base/choices.h"

const char *const vmml_log_topics[VMML_LOG_TOPICS] = {
    "base",    "command", "create", "doctor",    "doors",  "fabric",
    "inspect", "ipc",     "lane",   "ledger",    "mirror", "order",
    "pool",    "range",   "stats",  "transport", "ucx",
};

/* Is the text of this length the word? */
static bool is_word(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && strncasecmp(text, word, length) == 0;
}

static int find_level(const char *text, size_t length)
{
    const struct vmml_choice *choice;

    /* The usual spellings of "off": conf.c. */
    if (is_word(text, length, "0") || is_word(text, length, "n") ||
        is_word(text, length, "no") || is_word(text, length, "false"))
        return VMML_LOG_OFF;
    for (choice = vmml_log_choices; choice->word != NULL; choice++)
        if (is_word(text, length, choice->word))
            return choice->value;
    return -1;
}

static int find_topic(const char *text, size_t length)
{
    int i;

    for (i = 0; i < VMML_LOG_TOPICS; i++)
        if (is_word(text, length, vmml_log_topics[i]))
            return i;
    return -1;
}

#define UNSET 255

static bool parse_word(const char *text, size_t length,
                       struct vmml_log_levels *levels)
{
    const char *sign = memchr(text, '=', length);
    int topic, level;

    if (sign == NULL) {
        level = find_level(text, length);
        if (level >= 0)
            levels->rest = (unsigned char)level;
        return level >= 0;
    }
    topic = find_topic(text, (size_t)(sign - text));
    level = find_level(sign + 1, length - (size_t)(sign - text) - 1);
    if (topic < 0 || level < 0)
        return false;
    levels->of[topic] = (unsigned char)level;
    return true;
}

bool vmml_log_levels_parse(const char *text, struct vmml_log_levels *levels)
{
    struct vmml_log_levels read = {.rest = VMML_LOG_WARN};
    size_t length;
    unsigned i;

    memset(read.of, UNSET, sizeof(read.of));
    for (;; text += length + 1) {
        length = strcspn(text, ",");
        if (!parse_word(text, length, &read))
            return false;
        if (text[length] == '\0')
            break;
    }
    for (i = 0; i < VMML_LOG_TOPICS; i++)
        if (read.of[i] == UNSET)
            read.of[i] = read.rest;
    *levels = read;
    return true;
}

int vmml_log_level_of(const struct vmml_log_levels *levels, const char *topic)
{
    int i;

    for (i = 0; i < VMML_LOG_TOPICS; i++)
        if (strcmp(topic, vmml_log_topics[i]) == 0)
            return levels->of[i];
    return levels->rest;
}

int vmml_log_level_highest(const struct vmml_log_levels *levels)
{
    int highest = levels->rest;
    unsigned i;

    for (i = 0; i < VMML_LOG_TOPICS; i++)
        if (levels->of[i] > highest)
            highest = levels->of[i];
    return highest;
}
