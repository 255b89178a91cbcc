/* SPDX-License-Identifier: MIT */
/*
 * Who posts a copy is seen: what membarrier(2) has to say, and who has a place.
 * The kernel's answers are its own but where a test has it forget or refuse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>

#include "mirror/use.h"

static struct {
    bool forgets; /* that the process has registered */
    bool refuses; /* to register */
    unsigned registered;
    unsigned barriers; /* that were made */
} kernel;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

static long membarrier_of(long number, int command, unsigned flags, int cpu)
{
    long result;

    if (command == MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        if (kernel.refuses) {
            errno = EINVAL;
            return -1;
        }
        kernel.forgets = false;
        kernel.registered++;
    } else if (command == MEMBARRIER_CMD_PRIVATE_EXPEDITED && kernel.forgets) {
        errno = EPERM;
        return -1;
    }
    result = __real_syscall(number, command, flags, cpu);
    if (result == 0 && command == MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        kernel.barriers++;
    return result;
}

long __wrap_syscall(long number, ...)
{
    long words[6];
    va_list list;
    size_t i;

    va_start(list, number);
    for (i = 0; i < 6; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_membarrier)
        return membarrier_of(number, (int)words[0], (unsigned)words[1],
                             (int)words[2]);
    return __real_syscall(number, words[0], words[1], words[2], words[3],
                          words[4], words[5]);
}

static void start(void)
{
    kernel.forgets = kernel.refuses = false;
    kernel.registered = kernel.barriers = 0;
    atomic_store(&vmml_postings_unfenced, false);
    vmml_posting_start();
    if (!atomic_load(&vmml_postings_unfenced))
        skip(); /* a kernel without it: nothing to lose */
}

static void test_barrier(void **state)
{
    (void)state;
    start();
    assert_true(vmml_posting_barrier());
    assert_int_equal(kernel.barriers, 1);
    assert_int_equal(kernel.registered, 1);
}

/* As after the process was restored from a checkpoint. */
static void test_registration_is_lost(void **state)
{
    (void)state;
    start();
    kernel.forgets = true;
    assert_true(vmml_posting_barrier());
    assert_int_equal(kernel.barriers, 1);
    assert_int_equal(kernel.registered, 2);
    assert_true(vmml_use_seal());
    assert_int_equal(kernel.registered, 2);
}

/* Then nobody can say who posts, and nothing is freed. */
static void test_registration_is_refused(void **state)
{
    (void)state;
    start();
    kernel.forgets = kernel.refuses = true;
    assert_false(vmml_posting_barrier());
    assert_false(vmml_use_seal());
    assert_int_equal(kernel.barriers, 0);
    kernel.refuses = false;
    assert_true(vmml_use_seal());
    assert_int_equal(kernel.barriers, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_registration_is_lost),
        cmocka_unit_test(test_registration_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
