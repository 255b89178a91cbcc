/* SPDX-License-Identifier: MIT */
/*
 * A running process as it is seen from outside: what it shares by /proc, read
 * without stopping it. Nothing of it is believed.
 *
 * It takes what opening /proc/PID/fd takes: ptrace(2) access in the mode
 * PTRACE_MODE_READ_FSCREDS, so the same user, and no rule of Yama.
 */
#ifndef VMML_INSPECT_TARGET_H
#define VMML_INSPECT_TARGET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ledger/reader.h"
#include "stats/layout.h"

struct vmml_target {
    pid_t pid;
    uint32_t own_pid; /* in its own PID namespace */
    char name[32];    /* /proc/PID/comm */
    bool loaded;      /* a libvmmlane.so is mapped */
    char library[256];
    char settings[1024]; /* of its environment, a blank between */

    const struct vmml_stats_file *stats; /* NULL: stats_error */
    int stats_error; /* ENOENT: none; EPROTO; EPROTONOSUPPORT; others */
    struct vmml_ledger_reader *ledger; /* NULL: ledger_error */
    int ledger_error;
    dev_t ledger_dev;
    ino_t ledger_ino;

    unsigned descriptors; /* that it has open */
    unsigned long descriptor_limit;
};

/*
 * Returns 0, or an errno: ESRCH no such process, EACCES not allowed. Then
 * nothing is to be closed.
 */
int vmml_target_open(pid_t pid, struct vmml_target *target);
void vmml_target_close(struct vmml_target *target);

/* Processes that have mapped its ledger: fills up to `max` pids, returns how
 * many there are. Reads /proc/PID/maps of every process of this user. */
size_t vmml_target_importers(const struct vmml_target *target, pid_t *pids,
                             size_t max);

/* A counter, or a hook's calls at VMML_COUNTERS + hook. */
uint64_t vmml_target_count(const struct vmml_target *target, unsigned slot);

/* A consistent copy; false: none, or it changes all the time. */
bool vmml_target_lost(const struct vmml_target *target, unsigned cause,
                      struct vmml_stats_lost *lost);
bool vmml_target_mirror(const struct vmml_target *target, unsigned entry,
                        struct vmml_stats_mirror *mirror);

#endif
