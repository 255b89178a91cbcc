/* SPDX-License-Identifier: MIT */
#include "base/spelling.h"

#include <stddef.h>
#include <string.h>

#define PREFIX        "VMMLANE_"
#define PREFIX_LENGTH (sizeof(PREFIX) - 1)

static const char *const settings[] = {
#define VMML_TOGGLE_CHOICE(variable, field, choices, fallback, meaning)        \
#variable,
#define VMML_TOGGLE_TEXT(variable, field, size, meaning) #variable,
#define VMML_TOGGLE_LOG_LEVEL(variable, meaning)         #variable,
#define VMML_TOGGLE_LOG_FILE(variable, meaning)          #variable,
#include "base/toggles.def"
};

#define SETTINGS (sizeof(settings) / sizeof(settings[0]))

/* Of the scripts and tests (scripts/setup, tests/sim/README.md). */
static const char *const starts_of_others[] = {
    "CACHE", "VENV", "CUDA_", "UCX_", "NIXL_", "SIM_", "SWEEP_", "TEST",
};

/* What Kubernetes sets for a service that is called so:
 * https://kubernetes.io/docs/concepts/services-networking/service/ */
static const char *const parts_of_others[] = {"_SERVICE_", "_PORT_"};

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);

    return length >= tail && strcmp(name + length - tail, end) == 0;
}

static bool is_of_others(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof(starts_of_others) / sizeof(*starts_of_others); i++)
        if (strncmp(name + PREFIX_LENGTH, starts_of_others[i],
                    strlen(starts_of_others[i])) == 0)
            return true;
    for (i = 0; i < sizeof(parts_of_others) / sizeof(*parts_of_others); i++)
        if (strstr(name, parts_of_others[i]) != NULL)
            return true;
    return ends_with(name, "_PORT");
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* How many letters are to be put in, left out or changed (Levenshtein). */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[VMML_SETTING_NAME_MAX], length = (unsigned)strlen(b);

    for (unsigned j = 0; j <= length; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1] != '\0'; i++) {
        unsigned diagonal = row[0];

        row[0] = i;
        for (unsigned j = 1; j <= length; j++) {
            unsigned changed = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = least(least(row[j], row[j - 1]) + 1, changed);
        }
    }
    return row[length];
}

/* One that holds the other is near too (METRICS, LOG_LEVEL, NO_CHILDREN):
 * between those with two letters wrong and those with three. */
#define HOLDS 5
#define FAR   1000u

static unsigned distance_of(const char *name, const char *setting)
{
    unsigned letters = distance(name, setting), least_far = FAR;

    if (name[0] != '\0' &&
        (strstr(name, setting) != NULL || strstr(setting, name) != NULL))
        least_far = HOLDS;
    return letters <= 1 + strlen(name) / 3 ? least(2 * letters, least_far)
                                           : least_far;
}

static const char *nearest(const char *name)
{
    const char *found = NULL;
    unsigned shortest = FAR;

    for (size_t i = 0; i < SETTINGS; i++) {
        unsigned letters;

        if (strlen(settings[i]) <= PREFIX_LENGTH)
            continue; /* the master switch: it is in every name */
        letters =
            distance_of(name + PREFIX_LENGTH, settings[i] + PREFIX_LENGTH);
        if (letters < shortest) {
            shortest = letters;
            found = settings[i];
        }
    }
    return found;
}

static bool is_named(const char *name, size_t length)
{
    for (size_t i = 0; i < SETTINGS; i++)
        if (strlen(settings[i]) == length &&
            strncmp(settings[i], name, length) == 0)
            return true;
    return false;
}

bool vmml_is_setting(const char *entry)
{
    return is_named(entry, strcspn(entry, "="));
}

bool vmml_misspelt(const char *entry, char name[VMML_SETTING_NAME_MAX],
                   const char **meant)
{
    size_t length;

    if (strncmp(entry, PREFIX, PREFIX_LENGTH) != 0)
        return false;
    length = strcspn(entry, "=");
    if (entry[length] == '\0' || entry[length + 1] == '\0')
        return false;
    if (length >= VMML_SETTING_NAME_MAX)
        length = VMML_SETTING_NAME_MAX - 1;
    memcpy(name, entry, length);
    name[length] = '\0';
    if (is_named(name, length) || is_of_others(name))
        return false;
    *meant = nearest(name);
    return true;
}
