/* SPDX-License-Identifier: MIT */
/*
 * The one warning for each cause of a lost lane: what, why and the remedy.
 */
#include "lane/state.h"

#include "base/fd.h"
#include "base/log.h"
#include "base/remedy.h"
#include "stats/count.h"

static const char *remedy(enum vmml_reason reason)
{
    switch (reason) {
    case VMML_REASON_HOLE:
        return "register only memory that is mapped and has access set";
    case VMML_REASON_NOT_SHAREABLE:
        return VMML_REMEDY_HANDLE_TYPE;
    case VMML_REASON_IMPORTED:
        return "register it in the process that made it";
    case VMML_REASON_NO_DESCRIPTOR:
        return VMML_REMEDY_DESCRIPTORS_HARD;
    case VMML_REASON_NO_CHANNEL:
        return VMML_REMEDY_IMEX;
    case VMML_REASON_DEVICE:
    case VMML_REASON_WINDOW:
        return "register each reservation by itself";
    case VMML_REASON_FREED:
        return "end its registration before memory is freed";
    default:
        return "see the log with VMMLANE_LOG=debug";
    }
}

static void warn_of_limit(uint64_t address, uint64_t length)
{
    struct vmml_fd_limit limit = vmml_fd_limit();
    size_t chunks;

    pthread_mutex_lock(&vmml_exporter.lock);
    chunks = vmml_exporter.chunk_count;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_warn(
        "no fast lane for 0x%lx+0x%lx: too few file descriptors, and each "
        "chunk needs one. RLIMIT_NOFILE's hard limit of %lu allows %zu "
        "(%d stay the application's), %zu are free, %zu chunks have one. "
        "Transfers of it are correct and slow. Remedy: %s",
        (unsigned long)address, (unsigned long)length, limit.hard,
        limit.numbers, VMML_FD_SPARE, vmml_fd_room(), chunks,
        remedy(VMML_REASON_NO_DESCRIPTOR));
}

void vmml_lane_warn(enum vmml_reason reason, uint64_t address, uint64_t length)
{
    /* Not the count of the cause: keys of others count there, too. */
    static struct vmml_once seen[VMML_CAUSE_IMPORTER];

    vmml_count(keys_refused);
    vmml_lost(reason,
              &(struct vmml_loss){.address = address, .length = length});
    if (reason <= VMML_REASON_NONE || reason >= VMML_CAUSE_IMPORTER ||
        !vmml_once(&seen[reason]))
        return;
    if (reason == VMML_REASON_NO_DESCRIPTOR) {
        warn_of_limit(address, length);
        return;
    }
    vmml_warn("no fast lane for 0x%lx+0x%lx: %s. Transfers of it are correct "
              "and slow. Remedy: %s",
              (unsigned long)address, (unsigned long)length,
              vmml_reason_string(reason), remedy(reason));
}
