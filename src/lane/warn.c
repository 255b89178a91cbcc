/* SPDX-License-Identifier: MIT */
/*
 * The one warning for each cause of a lost lane: what, why and the remedy.
 */
#include "lane/state.h"

#include "base/log.h"

#define REASON_COUNT (VMML_REASON_DEVICE + 1)

static const char *remedy(enum vmml_reason reason)
{
    switch (reason) {
    case VMML_REASON_HOLE:
        return "register only memory that is mapped and has access set";
    case VMML_REASON_NOT_SHAREABLE:
        return "let the allocator ask cuMemCreate for "
               "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or leave "
               "VMMLANE_CREATE on";
    case VMML_REASON_IMPORTED:
        return "register it in the process that made it";
    case VMML_REASON_NO_DESCRIPTOR:
        return "raise the limit of open files (ulimit -n)";
    case VMML_REASON_FABRIC:
        return "register each handle of fabric memory by itself";
    case VMML_REASON_DEVICE:
    case VMML_REASON_WINDOW:
        return "register each reservation by itself";
    default:
        return "see the log with VMMLANE_LOG=debug";
    }
}

void vmml_lane_warn(enum vmml_reason reason, uint64_t address, uint64_t length)
{
    static struct vmml_once seen[REASON_COUNT];

    if (reason <= VMML_REASON_NONE || reason >= REASON_COUNT ||
        !vmml_once(&seen[reason]))
        return;
    vmml_warn("no fast lane for 0x%lx+0x%lx: %s. Transfers of it are correct "
              "and slow. Remedy: %s",
              (unsigned long)address, (unsigned long)length,
              vmml_reason_string(reason), remedy(reason));
}
