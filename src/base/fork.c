/* SPDX-License-Identifier: MIT */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>

#include "create/create.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"
#include "order/order.h"
#include "range/range.h"

bool vmml_in_child;

/* Locks are short: none is held over a driver call, so this waits for no
 * driver. The state that the child sees is then whole. */
static void before_fork(void)
{
    vmml_lane_fork_lock();
    vmml_mirror_fork_lock();
}

static void after_fork_parent(void)
{
    vmml_mirror_fork_unlock();
    vmml_lane_fork_unlock();
}

static void after_fork_child(void)
{
    vmml_in_child = true;
    vmml_mirror_fork_child();
    vmml_lane_fork_child();
    vmml_range_forget();
    vmml_create_forget();
    vmml_order_forget();
}

int vmml_fork_watch(void)
{
    static atomic_flag watched = ATOMIC_FLAG_INIT;

    if (atomic_flag_test_and_set(&watched))
        return 0;
    return pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
