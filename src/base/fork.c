/* SPDX-License-Identifier: MIT */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/clock.h"

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
    /* A fork waits for it already. */
    if (own_holds > 0) {
        vmml_fork_note();
        return;
    }
    pthread_mutex_lock(&gate);
    vmml_fork_note();
    pthread_mutex_unlock(&gate);
}

void vmml_fork_release(void)
{
    own_holds--;
    atomic_fetch_sub(&holders, 1);
}

int vmml_fork_let_go(void)
{
    int holds = own_holds;

    if (holds == 0)
        return 0;
    own_holds = 0;
    atomic_fetch_sub(&holders, holds);
    return holds;
}

void vmml_fork_hold_again(int holds)
{
    if (holds == 0)
        return;
    pthread_mutex_lock(&gate);
    own_holds = holds;
    atomic_fetch_add(&holders, holds);
    pthread_mutex_unlock(&gate);
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

/* A pause may be longer than it was asked for, and there may be no clock. */
static bool is_patient(int64_t start, int pauses)
{
    return pauses < VMML_FORK_WAIT_MS &&
           vmml_now_ms() - start < VMML_FORK_WAIT_MS;
}

/* Takes the locks. One that is noted meanwhile is waited for too. */
static void lock_when_quiet(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int64_t start = vmml_now_ms();
    int pauses = 0;

    for (;;) {
        while (!is_quiet() && is_patient(start, pauses)) {
            nanosleep(&pause, NULL);
            pauses++;
        }
        lock_parts();
        if (is_quiet() || !is_patient(start, pauses))
            return;
        unlock_parts();
    }
}

/* Locks are short: none is held over a driver call or a wait for another
 * process, so this waits for neither. The state that the child sees is then
 * whole. */
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
    /* Not zero, for a program that uses no CUDA: there it lies in a page that
     * the loader has written, and .bss in one of its own. */
    static atomic_bool missing = true;
    int error;

    if (!atomic_exchange(&missing, false))
        return 0;
    error = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    if (error != 0)
        atomic_store(&missing, true);
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
