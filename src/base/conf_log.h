/* SPDX-License-Identifier: MIT */
/* What the settings tell the log, and nobody else. */
#ifndef VMML_BASE_CONF_LOG_H
#define VMML_BASE_CONF_LOG_H

#include "base/levels.h"

/* VMMLANE_LOG. Never NULL. */
const struct vmml_log_levels *vmml_conf_log_levels(void);

/* VMMLANE_LOG_FILE as an absolute path, %p and %h in it; NULL: stderr. */
const char *vmml_conf_log_file(void);

/* VMMLANE_LOG_RATE: lines in a second; 0: as many as there are. */
unsigned vmml_conf_log_rate(void);

#endif
