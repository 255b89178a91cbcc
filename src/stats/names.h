/* SPDX-License-Identifier: MIT */
/*
 * What is counted, by number and by name.
 */
#ifndef VMML_STATS_NAMES_H
#define VMML_STATS_NAMES_H

#include <stdint.h>

#include "stats/layout.h"

enum vmml_counter {
#define VMML_COUNTER(name, meaning) VMML_COUNT_##name,
#include "stats/counters.def"
    VMML_COUNTERS,
};

/* Calls of each hooked function, by anyone. */
enum vmml_hook {
#define VMML_CU(name, params, args) VMML_HOOK_##name,
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing) VMML_HOOK_##name,
#define VMML_UCT_STUB(name)                         VMML_HOOK_##name,
#include "hooks.def"
    VMML_HOOKS,
};

_Static_assert(VMML_COUNTERS + VMML_HOOKS <= VMML_STATS_SLOTS,
               "a larger shard: VMML_STATS_SLOTS");

/* Of the causes that are the importer's own; below: enum vmml_reason. */
#define VMML_CAUSE_IMPORTER 32

enum vmml_cause {
#define VMML_CAUSE(number, name, label, text) VMML_CAUSE_##name = (number),
#include "stats/causes.def"
};

/* Tables, VMML_COUNTERS and VMML_HOOKS long. The names themselves, not where
 * they are: the loader relocates each pointer in every program that is started,
 * and pages of them are memory of each. */
#define VMML_NAME_SIZE 40
extern const char vmml_counter_names[VMML_COUNTERS][VMML_NAME_SIZE];
extern const char *const vmml_counter_meanings[VMML_COUNTERS];
extern const char vmml_hook_names[VMML_HOOKS][VMML_NAME_SIZE];

/* A word for a cause, and what it says; NULL where none has this number. */
const char *vmml_cause_label(unsigned cause);
const char *vmml_cause_text(unsigned cause);

/* A hash of all names and their order. */
uint64_t vmml_stats_names(void);

#endif
