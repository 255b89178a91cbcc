/* SPDX-License-Identifier: MIT */
#ifndef VMML_STATS_METRICS_H
#define VMML_STATS_METRICS_H

/* Once a process, when it begins to count for others: where the settings name a
 * file of metrics, it is written now, every ten seconds, and at the end. */
void vmml_metrics_start(void);

#endif
