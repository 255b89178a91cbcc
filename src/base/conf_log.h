/* SPDX-License-Identifier: MIT */
/* What the settings tell the log, and nobody else. */
#ifndef VMML_BASE_CONF_LOG_H
#define VMML_BASE_CONF_LOG_H

/* VMMLANE_LOG_FILE as an absolute path, %p and %h in it; NULL: stderr. */
const char *vmml_conf_log_file(void);

#endif
