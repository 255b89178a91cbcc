/* SPDX-License-Identifier: MIT */
/*
 * VMMLANE_STATS=exit: what was counted, when the process ends.
 */
#include <unistd.h>

#include "base/conf.h"
#include "base/fork.h"
#include "base/log.h"
#include "stats/count.h"

#define tell(...) vmml_log_write(VMML_LOG_STATS, __FILE__, "exit", __VA_ARGS__)

static void tell_counters(void)
{
    unsigned i;

    for (i = 0; i < VMML_COUNTERS; i++) {
        uint64_t count = vmml_count_get(i);

        if (count != 0)
            tell("%s %lu: %s", vmml_counter_names[i], (unsigned long)count,
                 vmml_counter_meanings[i]);
    }
}

static void tell_hooks(void)
{
    unsigned i;

    for (i = 0; i < VMML_HOOKS; i++) {
        uint64_t count = vmml_count_get(VMML_COUNTERS + i);

        if (count != 0)
            tell("calls of %s %lu", vmml_hook_names[i], (unsigned long)count);
    }
}

static void tell_lost(void)
{
    const struct vmml_stats_file *stats = atomic_load(&vmml_stats);
    unsigned i;

    for (i = 0; i < VMML_STATS_CAUSES; i++) {
        uint64_t count = atomic_load(&stats->lost[i].count);
        const char *label = vmml_cause_label(i);

        if (count == 0)
            continue;
        if (label != NULL)
            tell("lost %s %lu: %s", label, (unsigned long)count,
                 vmml_cause_text(i));
        else
            tell("lost reason-%u %lu", i, (unsigned long)count);
    }
}

__attribute__((destructor)) static void tell_at_exit(void)
{
    /* Nothing is said by a process that uses no CUDA, nor are its settings
     * read. */
    if (!vmml_count_any() || vmml_in_child ||
        vmml_conf()->stats != VMML_STATS_EXIT)
        return;
    tell_counters();
    tell_lost();
    tell_hooks();
}
