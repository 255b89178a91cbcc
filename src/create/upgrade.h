/* SPDX-License-Identifier: MIT */
/*
 * Which requests of cuMemCreate are upgraded, and where.
 */
#ifndef VMML_CREATE_UPGRADE_H
#define VMML_CREATE_UPGRADE_H

#include <stdbool.h>

#include "doors/real.h"

/*
 * Should this request be made with POSIX_FD? Decided from the request, the
 * settings, the driver (535 and newer), the device and the platform (not
 * WSL2, whose driver refuses large exportable allocations).
 */
bool vmml_upgrade_wanted(const struct vmml_real *real,
                         const CUmemAllocationProp *prop,
                         unsigned long long flags);

/* Is this a kernel of the Windows Subsystem for Linux, by its release? */
bool vmml_upgrade_is_wsl(const char *release);

/* What was learnt of the driver and its devices is asked anew. */
void vmml_upgrade_forget(void);

#endif
