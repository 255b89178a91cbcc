/* SPDX-License-Identifier: MIT */
/*
 * A fork while others have fork handlers too. UCX's, which is installed when
 * its registration cache is made, ends registrations and so comes back into
 * the shim (ucs_rcache_before_fork).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fork.h"
#include "lane/exporter.h"
#include "mirror/peer.h"

/* A process that hangs is ended, and that fails the test. */
#define HANG_SECONDS 120

static const uint8_t nonce[VMML_NONCE_SIZE];
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool registering;
static unsigned purges;

/* With the cache's own lock, as UCX. */
static void purge(void)
{
    pthread_mutex_lock(&cache_lock);
    purges++;
    assert_false(vmml_lane_is_own(nonce));
    pthread_mutex_unlock(&cache_lock);
}

static void *register_memory(void *arg)
{
    while (atomic_load(&registering)) {
        pthread_mutex_lock(&cache_lock);
        (void)vmml_lane_is_own(nonce);
        pthread_mutex_unlock(&cache_lock);
    }
    return arg;
}

/* Forks, and returns what the child's `check` says. */
static bool fork_and(bool (*check)(void))
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(check() ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool is_no_child(void)
{
    return !vmml_in_child;
}

static bool is_child_with_locks(void)
{
    alarm(HANG_SECONDS);
    return vmml_in_child && !vmml_lane_is_own(nonce);
}

/* A process that forks before it has state: its child may use the GPU. */
static void test_nothing_to_watch(void **state)
{
    assert_true(fork_and(is_no_child));
}

static void test_handler_that_comes_back(void **state)
{
    pthread_t thread;
    int i;

    alarm(HANG_SECONDS);
    assert_int_equal(pthread_atfork(purge, NULL, NULL), 0);
    assert_int_equal(vmml_fork_watch(), 0);
    assert_int_equal(vmml_fork_watch(), 0);
    atomic_store(&registering, true);
    assert_int_equal(pthread_create(&thread, NULL, register_memory, NULL), 0);
    for (i = 0; i < 200; i++)
        assert_true(fork_and(is_child_with_locks));
    atomic_store(&registering, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(purges, 200);
    assert_false(vmml_in_child);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_to_watch),
        cmocka_unit_test(test_handler_that_comes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
