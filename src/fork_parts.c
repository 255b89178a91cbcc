/* SPDX-License-Identifier: MIT */
/* Whom base/fork.h tells of a fork. */
#include "base/fork.h"

#include <stddef.h>

#include "create/create.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"
#include "order/order.h"
#include "range/range.h"
#include "stats/stats.h"

const struct vmml_fork_part vmml_fork_parts[] = {
    {vmml_lane_fork_lock, vmml_lane_fork_unlock, vmml_lane_fork_child},
    {vmml_mirror_fork_lock, vmml_mirror_fork_unlock, vmml_mirror_fork_child},
    {.child = vmml_range_forget},
    {.child = vmml_create_forget},
    {.child = vmml_order_forget},
    {.child = vmml_stats_fork_child},
};

const size_t vmml_fork_part_count =
    sizeof(vmml_fork_parts) / sizeof(vmml_fork_parts[0]);
