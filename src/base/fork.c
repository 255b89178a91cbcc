/* SPDX-License-Identifier: MIT */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>

#include "create/create.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"
#include "order/order.h"
#include "range/range.h"
#include "stats/stats.h"

bool vmml_in_child;

/* There is state: until then a fork is nobody's business. */
static atomic_bool watched;

/* Does the fork that this thread is in hold the locks? */
static __thread bool holds_locks __attribute__((tls_model("initial-exec")));

/* Locks are short: none is held over a driver call, so this waits for no
 * driver. The state that the child sees is then whole. */
static void before_fork(void)
{
    if (!atomic_load(&watched))
        return;
    vmml_lane_fork_lock();
    vmml_mirror_fork_lock();
    holds_locks = true;
}

static void after_fork_parent(void)
{
    if (!holds_locks)
        return;
    holds_locks = false;
    vmml_mirror_fork_unlock();
    vmml_lane_fork_unlock();
}

static void after_fork_child(void)
{
    /* A child of a child: what was inherited is closed, and its numbers may
     * be the application's by now. */
    if (vmml_in_child) {
        after_fork_parent();
        return;
    }
    if (!holds_locks)
        return;
    holds_locks = false;
    vmml_in_child = true;
    vmml_mirror_fork_child();
    vmml_lane_fork_child();
    vmml_range_forget();
    vmml_create_forget();
    vmml_order_forget();
    vmml_stats_fork_child();
}

static int install(void)
{
    static atomic_flag installed = ATOMIC_FLAG_INIT;
    int error;

    if (atomic_flag_test_and_set(&installed))
        return 0;
    error = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    if (error != 0)
        atomic_flag_clear(&installed);
    return error;
}

/*
 * Before a fork UCX ends the registrations of its cache (ucs_rcache_before_fork
 * in src/ucs/memory/rcache.c), under its own lock and through our hooks. What
 * is installed first runs last: so our locks are taken when UCX is done, and
 * neither waits for a lock of the other's.
 */
__attribute__((constructor)) static void install_first(void)
{
    (void)install(); /* tried again by vmml_fork_watch() */
}

int vmml_fork_watch(void)
{
    int error = install();

    if (error == 0)
        atomic_store(&watched, true);
    return error;
}
