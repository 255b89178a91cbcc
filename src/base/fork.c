/* SPDX-License-Identifier: MIT */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

bool vmml_in_child;

/* There is state: until then a fork is nobody's business. */
static atomic_bool watched;

/* Does the fork that this thread is in hold the locks? */
static __thread bool holds_locks __attribute__((tls_model("initial-exec")));

/* Threads that hold a descriptor of no table; of them this one. Who is to be
 * one waits at the gate while a fork is under way. */
static atomic_int holders;
static __thread int own_holds __attribute__((tls_model("initial-exec")));
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

void vmml_fork_note(void)
{
    atomic_fetch_add(&holders, 1);
    own_holds++;
}

void vmml_fork_hold(void)
{
    pthread_mutex_lock(&gate);
    vmml_fork_note();
    pthread_mutex_unlock(&gate);
}

void vmml_fork_release(void)
{
    own_holds--;
    atomic_fetch_sub(&holders, 1);
}

static bool is_quiet(void)
{
    return atomic_load(&holders) == own_holds;
}

static void lock_parts(void)
{
    for (size_t i = 0; i < vmml_fork_part_count; i++)
        if (vmml_fork_parts[i].lock != NULL)
            vmml_fork_parts[i].lock();
}

static void unlock_parts(void)
{
    for (size_t i = vmml_fork_part_count; i-- > 0;)
        if (vmml_fork_parts[i].unlock != NULL)
            vmml_fork_parts[i].unlock();
}

/* Takes the locks. One that is noted meanwhile is waited for too. */
static void lock_when_quiet(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int waited = 0;

    for (;;) {
        for (; !is_quiet() && waited < VMML_FORK_WAIT_MS; waited++)
            nanosleep(&pause, NULL);
        lock_parts();
        if (is_quiet() || waited >= VMML_FORK_WAIT_MS)
            return;
        unlock_parts();
    }
}

/* Locks are short: none is held over a driver call, so this waits for no
 * driver. The state that the child sees is then whole. */
static void before_fork(void)
{
    if (!atomic_load(&watched))
        return;
    pthread_mutex_lock(&gate);
    lock_when_quiet();
    holds_locks = true;
}

static void after_fork_parent(void)
{
    if (!holds_locks)
        return;
    holds_locks = false;
    unlock_parts();
    pthread_mutex_unlock(&gate);
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
    pthread_mutex_init(&gate, NULL);
    atomic_store(&holders, own_holds);
    for (size_t i = 0; i < vmml_fork_part_count; i++)
        vmml_fork_parts[i].child();
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
