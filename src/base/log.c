/* SPDX-License-Identifier: MIT */
#include "base/log.h"

int vmml_log_level = VMML_LOG_WARN;

void vmml_log_write(enum vmml_log_level level, const char *function,
                    const char *format, ...)
{
}
