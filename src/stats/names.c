/* SPDX-License-Identifier: MIT */
#include "stats/names.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/hash.h"

const char vmml_counter_names[VMML_COUNTERS][VMML_NAME_SIZE] = {
#define VMML_COUNTER(name, meaning) #name,
#include "stats/counters.def"
};

const char *const vmml_counter_meanings[VMML_COUNTERS] = {
#define VMML_COUNTER(name, meaning) meaning,
#include "stats/counters.def"
};

const char vmml_hook_names[VMML_HOOKS][VMML_NAME_SIZE] = {
#define VMML_CU(name, params, args) #name,
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing) #name,
#define VMML_UCT_STUB(name)                         #name,
#include "hooks.def"
};

static const struct cause {
    char label[VMML_NAME_SIZE];
    char text[72];
} causes[VMML_STATS_CAUSES] = {
#define VMML_CAUSE(number, name, label, text) [number] = {label, text},
#include "stats/causes.def"
};

static bool is_cause(unsigned cause)
{
    return cause < VMML_STATS_CAUSES && causes[cause].label[0] != '\0';
}

const char *vmml_cause_label(unsigned cause)
{
    return is_cause(cause) ? causes[cause].label : NULL;
}

const char *vmml_cause_text(unsigned cause)
{
    return is_cause(cause) ? causes[cause].text : NULL;
}

static uint64_t add_name(uint64_t hash, const char *name)
{
    return vmml_fnv1a64(hash, name, strlen(name) + 1);
}

uint64_t vmml_stats_names(void)
{
    uint64_t hash = VMML_FNV_START;
    unsigned i;

    for (i = 0; i < VMML_COUNTERS; i++)
        hash = add_name(hash, vmml_counter_names[i]);
    for (i = 0; i < VMML_HOOKS; i++)
        hash = add_name(hash, vmml_hook_names[i]);
    return hash;
}
