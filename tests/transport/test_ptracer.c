/* SPDX-License-Identifier: MIT */
/*
 * Yama's scopes and PR_SET_PTRACER (case F2), and the export of prctl(2),
 * which is linked in here.
 *
 * Where the kernel has no Yama, a folder is mounted in its file's place in a
 * mount namespace, and PR_SET_PTRACER is counted by a seccomp filter.
 */
#include "../lane/exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "gate.h"
#include "transport/ptracer.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

#define WINDOW  (16 * CHUNK)
#define SKIPPED 77

/* ---- the file ------------------------------------------------------------ */

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void scopes_are_read(void)
{
    static const struct {
        const char *text;
        int scope;
    } files[] = {{"0\n", 0}, {"1\n", 1}, {"2\n", 2}, {"3\n", 3},
                 {"", 0},    {"\n", 0},  {"x\n", 0}, {"-1\n", 0}};
    char path[] = "/tmp/ptrace_scope.XXXXXX";
    size_t i;
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    close(fd);
    for (i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        write_file(path, files[i].text);
        CHECK_EQUAL(vmml_ptrace_scope(path), files[i].scope);
    }
    CHECK(unlink(path) == 0);
    CHECK_EQUAL(vmml_ptrace_scope(path), 0);
    CHECK_EQUAL(vmml_ptrace_scope("/tmp"), 0);
}

/* ---- who allows tracing -------------------------------------------------- */

/* `scope`: NULL for a kernel without Yama. */
static void mount_scope(const char *scope)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/proc/sys/kernel", "tmpfs", 0, NULL) != 0) {
        fprintf(stderr, "Yama's file cannot be replaced here\n");
        _exit(SKIPPED);
    }
    if (scope == NULL)
        return;
    CHECK(mkdir("/proc/sys/kernel/yama", 0755) == 0);
    write_file("/proc/sys/kernel/yama/ptrace_scope", scope);
}

static void publish(void)
{
    uint8_t key[KEY_SIZE];
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(WINDOW);
    lane_map(base, CHUNK, 1);
    CHECK(lane_pack(lane_reg(base, CHUNK), base, CHUNK, key));
}

static void begin(const char *scope)
{
    const long call = SYS_prctl;

    lane_log_to_file();
    CHECK(setenv("VMMLANE_LOG", "info", 1) == 0);
    mount_scope(scope);
    gate_count(&call, 1, PR_SET_PTRACER);
}

static void allowed_at_scope_1(void)
{
    begin("1\n");
    publish();
    CHECK_EQUAL(gate_counted(), 1);
    CHECK_EQUAL(gate_arguments[1], (unsigned long)-1);
    CHECK_EQUAL(lane_log_count("ptrace_scope is 1"), 1);
}

static void not_at_others(void)
{
    static const char *const scopes[] = {"0\n", "2\n", "3\n", NULL};
    int status;
    size_t i;

    for (i = 0; i < 4; i++) {
        pid_t pid = fork();

        CHECK(pid >= 0);
        if (pid == 0) {
            begin(scopes[i]);
            publish();
            CHECK_EQUAL(gate_counted(), 0);
            CHECK(!lane_log_has("ptrace_scope"));
            _exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        if (WEXITSTATUS(status) != 0)
            _exit(WEXITSTATUS(status));
    }
}

static void not_where_forbidden(void)
{
    CHECK(setenv("VMMLANE_TRANSPORT", "getfd,socket", 1) == 0);
    begin("1\n");
    publish();
    CHECK_EQUAL(gate_counted(), 0);
}

/* Set, or taken back: the application has spoken. */
static void not_over_an_application(unsigned long tracer)
{
    begin("1\n");
    CHECK_EQUAL(prctl(PR_SET_PTRACER, tracer, 0, 0, 0), 0);
    CHECK_EQUAL(gate_counted(), 1);
    publish();
    CHECK_EQUAL(gate_counted(), 1);
    CHECK_EQUAL(gate_arguments[1], tracer);
    CHECK_EQUAL(lane_log_count("has set its own tracer"), 1);
}

static void not_over_the_applications_own(void)
{
    not_over_an_application(42);
}

static void not_when_taken_back(void)
{
    not_over_an_application(0);
}

/* A prctl(2) that failed has set nothing; other options are no tracer. */
static void a_failed_one_is_none(void)
{
    const long call = SYS_prctl;
    char name[16];

    lane_log_to_file();
    CHECK(setenv("VMMLANE_LOG", "info", 1) == 0);
    mount_scope("1\n");
    if (prctl(PR_SET_PTRACER, 0x7fffffff, 0, 0, 0) == 0)
        _exit(SKIPPED); /* no pid is so large, but Yama may not look */
    CHECK(prctl(PR_GET_NAME, name, 0, 0, 0) == 0);
    gate_count(&call, 1, PR_SET_PTRACER);
    publish();
    CHECK_EQUAL(gate_counted(), 1);
}

/* Two siblings that may not trace each other without it. */
static void real_yama(void)
{
    struct exporter ex;
    uint8_t key[KEY_SIZE];
    uint64_t base;

    if (access(VMML_PTRACE_SCOPE_FILE, R_OK) != 0) {
        fprintf(stderr, "this kernel has no Yama\n");
        _exit(SKIPPED);
    }
    if (vmml_ptrace_scope(VMML_PTRACE_SCOPE_FILE) != 1) {
        fprintf(stderr, "kernel.yama.ptrace_scope is not 1\n");
        _exit(SKIPPED);
    }
    if (geteuid() == 0) {
        /* With CAP_SYS_PTRACE Yama denies nothing. */
        CHECK(setresuid(1000, 1000, 1000) == 0);
        CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    }
    CHECK(setenv("VMMLANE_TRANSPORT", "getfd,ptracer", 1) == 0);
    ex = ex_start();
    base = ex_reserve(&ex, WINDOW);
    ex_map(&ex, base, CHUNK, 4, 1);
    ex_key(&ex, base, 4 * CHUNK, key);
    if (fork() == 0) {
        lane_cuda(0);
        im_expect(im_attach(key), base, 4 * CHUNK, 1);
        _exit(0);
    }
    {
        int status;

        CHECK(wait(&status) > 0 && status == 0);
    }
}

/* ---- prctl(2) passes through --------------------------------------------- */

static void same_as_kernel(int option, unsigned long a, unsigned long b,
                           unsigned long c, unsigned long d)
{
    long wanted, result;
    int error;

    errno = 0;
    wanted = syscall(SYS_prctl, option, a, b, c, d);
    error = errno;
    errno = 0;
    result = prctl(option, a, b, c, d);
    CHECK_EQUAL(result, wanted);
    CHECK_EQUAL(errno, error);
}

static void results_are_the_kernels(void)
{
    int option;

    for (option = 1; option < 80; option++) {
        /* These change the process: with wrong arguments they are refused. */
        switch (option) {
        case PR_SET_SECCOMP:
        case PR_SET_MM:
        case PR_MCE_KILL:
        case PR_SET_NO_NEW_PRIVS:
        case PR_SET_THP_DISABLE:
        case PR_SET_IO_FLUSHER:
            same_as_kernel(option, 99, 99, 99, 99);
            break;
        case PR_GET_DUMPABLE:
        case PR_GET_KEEPCAPS:
        case PR_GET_TIMING:
        case PR_GET_SECUREBITS:
        case PR_GET_TIMERSLACK:
        case PR_CAPBSET_READ:
        case PR_GET_NO_NEW_PRIVS:
        case PR_MCE_KILL_GET:
        case PR_GET_SECCOMP:
            same_as_kernel(option, 0, 0, 0, 0);
            same_as_kernel(option, 1000, 0, 0, 0);
            break;
        default:
            break;
        }
    }
    same_as_kernel(0x7ffffff0, 1, 2, 3, 4);
    same_as_kernel(-1, 0, 0, 0, 0);
    same_as_kernel(PR_GET_PDEATHSIG, 8, 0, 0, 0); /* EFAULT */
}

static void options_take_effect(void)
{
    char name[16] = "";
    int signal = 0;

    CHECK_EQUAL(prctl(PR_SET_NAME, "fifteen letters"), 0);
    CHECK_EQUAL(prctl(PR_GET_NAME, name), 0);
    CHECK(strcmp(name, "fifteen letters") == 0);
    CHECK_EQUAL(prctl(PR_SET_PDEATHSIG, SIGUSR2), 0);
    CHECK_EQUAL(prctl(PR_GET_PDEATHSIG, &signal), 0);
    CHECK_EQUAL(signal, SIGUSR2);
    CHECK_EQUAL(prctl(PR_SET_TIMERSLACK, 123456ul), 0);
    CHECK_EQUAL(prctl(PR_GET_TIMERSLACK), 123456);
    CHECK_EQUAL(prctl(PR_SET_DUMPABLE, 0), 0);
    CHECK_EQUAL(prctl(PR_GET_DUMPABLE), 0);
    errno = 77;
    CHECK_EQUAL(prctl(PR_GET_DUMPABLE), 0);
    CHECK_EQUAL(errno, 77);
}

/* Whole words, in their places. */
static void arguments_arrive(void)
{
    static const unsigned long all[4] = {
        0x8123456789abcdeful, 0xfedcba9876543210ul, 0x1122334455667788ul,
        0x99aabbccddeeff00ul};
    const long call = SYS_prctl;
    int option = 0x71234567;
    int i;

    gate_count(&call, 1, (unsigned long)option);
    CHECK_EQUAL(prctl(option), 0);
    CHECK_EQUAL(prctl(option, all[0]), 0);
    CHECK_EQUAL(gate_arguments[1], all[0]);
    CHECK_EQUAL(prctl(option, all[0], all[1]), 0);
    CHECK_EQUAL(gate_arguments[2], all[1]);
    CHECK_EQUAL(prctl(option, all[0], all[1], all[2]), 0);
    CHECK_EQUAL(gate_arguments[3], all[2]);
    CHECK_EQUAL(prctl(option, all[0], all[1], all[2], all[3]), 0);
    CHECK_EQUAL(gate_arguments[0], option);
    for (i = 0; i < 4; i++)
        CHECK_EQUAL(gate_arguments[1 + i], all[i]);
    CHECK_EQUAL(prctl(option, all[3], all[2], all[1], all[0], 5ul), 0);
    for (i = 0; i < 4; i++)
        CHECK_EQUAL(gate_arguments[1 + i], all[3 - i]);
    CHECK_EQUAL(gate_counted(), 6);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(scopes_are_read),
        LANE_TEST(allowed_at_scope_1),
        LANE_TEST(not_at_others),
        LANE_TEST(not_where_forbidden),
        LANE_TEST(not_over_the_applications_own),
        LANE_TEST(not_when_taken_back),
        LANE_TEST(a_failed_one_is_none),
        LANE_TEST(real_yama),
        LANE_TEST(results_are_the_kernels),
        LANE_TEST(options_take_effect),
        LANE_TEST(arguments_arrive),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
