/* SPDX-License-Identifier: MIT */
/*
 * Exporter and importer in different PID, network and user namespaces, and
 * exporters with one pid (cases F4 and F5). As root, without which no such
 * namespace can be had here.
 */
#include "../lane/exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "gate.h"
#include "mirror/mirror.h"
#include "mirror/peer.h"

#define WINDOW  (16 * CHUNK)
#define SKIPPED 77

/* ---- what is asked of /proc about other processes ------------------------ */

static atomic_uint asked;

static void note_path(const char *path)
{
    if (strncmp(path, "/proc/", 6) == 0 && path[6] >= '0' && path[6] <= '9')
        atomic_fetch_add(&asked, 1);
}

/* The linker sends the shim's calls here (--wrap). */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list list;
    unsigned mode;

    va_start(list, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(list, unsigned) : 0;
    va_end(list);
    note_path(path);
    return __real_open(path, flags, mode);
}

int __real_stat(const char *path, struct stat *status);
int __wrap_stat(const char *path, struct stat *status);
int __wrap_stat(const char *path, struct stat *status)
{
    note_path(path);
    return __real_stat(path, status);
}

/* From now on calls that take a pid are counted and not made. */
static void watch_pid_calls(void)
{
    const long calls[] = {gate_number("pidfd_open"), gate_number("kill"),
                          gate_number("ptrace")};

    gate_count(calls, 3, 0);
    atomic_store(&asked, 0);
}

static unsigned pid_calls(void)
{
    return gate_counted() + atomic_load(&asked);
}

/* ---- exporters elsewhere ------------------------------------------------- */

struct pair {
    struct exporter ex;
    uint64_t base;
    uint8_t key[KEY_SIZE];
};

/* The first one's: all exporters of a test have one address. */
static uint64_t base;

static void publish(struct pair *pair, unsigned seed)
{
    if (base == 0)
        base = ex_reserve(&pair->ex, WINDOW);
    else
        ex_reserve_at(&pair->ex, base, WINDOW);
    pair->base = base;
    ex_map(&pair->ex, base, CHUNK, 4, seed);
    ex_key(&pair->ex, base, 4 * CHUNK, pair->key);
}

static int own_namespace(const char *name)
{
    char path[32];
    int fd;

    snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
    fd = __real_open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

/* In new namespaces; this process stays where it is. */
static void start_in(struct pair *pair, int flags, unsigned seed)
{
    int pid = own_namespace("pid");
    int net = own_namespace("net");

    if (unshare(flags) != 0) {
        perror("unshare(2)");
        _exit(SKIPPED);
    }
    pair->ex = ex_start();
    /* Else no thread can be made here (EINVAL of clone(2)). */
    CHECK(setns(pid, CLONE_NEWPID) == 0);
    CHECK(setns(net, CLONE_NEWNET) == 0);
    close(pid);
    close(net);
    publish(pair, seed);
}

static void log_and_start(struct pair *pair, int flags)
{
    lane_log_to_file();
    CHECK(setenv("VMMLANE_LOG", "info", 1) == 0);
    start_in(pair, flags, 1);
    lane_cuda(0);
}

static bool holds_nothing(void *arg)
{
    (void)arg;
    return !vmml_mirror_refresh();
}

static void refused_in_one_line(const struct pair *pair)
{
    unsigned i;

    for (i = 0; i < 5; i++)
        CHECK(!im_prepare(pair->key));
    CHECK_EQUAL(lane_log_count("no fast lane to process"), 1);
}

/* ---- F4 ------------------------------------------------------------------ */

static void pid_namespace(void)
{
    struct pair pair;
    CUdeviceptr mirror;

    log_and_start(&pair, CLONE_NEWPID);
    /* A live process here has that number. */
    CHECK_EQUAL(lane_handle(pair.key).pid, 1);
    CHECK(kill(1, 0) == 0);
    watch_pid_calls();
    mirror = im_attach(pair.key);
    im_expect(mirror, pair.base, 4 * CHUNK, 1);
    ex_map(&pair.ex, base + 4 * CHUNK, CHUNK, 4, 1);
    ex_key(&pair.ex, base, 8 * CHUNK, pair.key);
    CHECK(im_prepare(pair.key));
    im_expect(mirror, pair.base, 8 * CHUNK, 1);
    CHECK_CU(ex_unmap(&pair.ex, base, CHUNK));
    im_refused(mirror, CHUNK);
    ex_stop(&pair.ex);
    CHECK(lane_wait(holds_nothing, NULL));
    im_refused(mirror + CHUNK, CHUNK);
    CHECK_EQUAL(pid_calls(), 0);
    CHECK_EQUAL(lane_log_count("by its socket"), 1);
    CHECK(!lane_log_has("no fast lane"));
}

static void pid_and_network_namespace(void)
{
    struct pair pair;

    log_and_start(&pair, CLONE_NEWPID | CLONE_NEWNET);
    watch_pid_calls();
    refused_in_one_line(&pair);
    CHECK(lane_log_has("it lives in another PID namespace"));
    CHECK(lane_log_has("another network namespace"));
    CHECK(lane_log_has("--pid=host"));
    CHECK_EQUAL(pid_calls(), 0);
}

static void pid_namespace_without_socket(void)
{
    struct pair pair;

    CHECK(setenv("VMMLANE_TRANSPORT", "getfd", 1) == 0);
    log_and_start(&pair, CLONE_NEWPID);
    watch_pid_calls();
    refused_in_one_line(&pair);
    CHECK(lane_log_has("it lives in another PID namespace"));
    CHECK(lane_log_has("switched off by VMMLANE_TRANSPORT"));
    CHECK_EQUAL(pid_calls(), 0);
}

static void become_another(void)
{
    CHECK(setresuid(1000, 1000, 1000) == 0);
}

/* Nor is its number looked at to explain a refusal. */
static void pid_namespace_of_another_user(void)
{
    struct pair pair;

    CHECK(setenv("VMMLANE_TRANSPORT", "socket", 1) == 0);
    ex_setup = become_another;
    log_and_start(&pair, CLONE_NEWPID);
    watch_pid_calls();
    refused_in_one_line(&pair);
    CHECK(lane_log_has("belongs to another user"));
    CHECK_EQUAL(pid_calls(), 0);
}

/* Nor where the socket is denied as pidfd_getfd(2) would be. */
static void pid_namespace_without_any_socket(void)
{
    const long call = gate_number("socket");
    struct pair pair;

    CHECK(setenv("VMMLANE_TRANSPORT", "socket", 1) == 0);
    log_and_start(&pair, CLONE_NEWPID);
    gate_deny(&call, 1, EPERM);
    watch_pid_calls();
    refused_in_one_line(&pair);
    CHECK(lane_log_has("its socket cannot be used"));
    CHECK_EQUAL(pid_calls(), 0);
}

static void network_namespace(void)
{
    struct pair pair;

    log_and_start(&pair, CLONE_NEWNET);
    im_expect(im_attach(pair.key), pair.base, 4 * CHUNK, 1);
    CHECK_EQUAL(lane_log_count("by pidfd_getfd"), 1);
}

/* ---- user namespaces ----------------------------------------------------- */

/* Not with a thread of a sanitizer's own (EINVAL of unshare(2)). */
static void need_one_thread(void)
{
#ifdef __SANITIZE_THREAD__
    fprintf(stderr, "the thread sanitizer has a thread of its own\n");
    _exit(SKIPPED);
#endif
}

/* The kernel refuses one to a process in a chroot, and where none are left or
 * allowed; asked in a child, since there is no way back. */
static void need_user_namespace(void)
{
    int status;
    pid_t child;

    need_one_thread();
    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    status = WEXITSTATUS(status);
    if (status == EPERM || status == ENOSPC) {
        fprintf(stderr, "no user namespace: %s\n", strerror(status));
        _exit(SKIPPED);
    }
    CHECK_EQUAL(status, 0);
}

/* `inside`: what root is called there; negative: nothing. */
static void enter_user_namespace(int inside)
{
    char map[32];
    int fd;

    CHECK(unshare(CLONE_NEWUSER) == 0);
    if (inside < 0)
        return;
    fd = __real_open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    snprintf(map, sizeof(map), "%d 0 1", inside);
    CHECK(write(fd, map, strlen(map)) > 0);
    close(fd);
}

static void start_then_enter(struct pair *pair, int inside)
{
    need_user_namespace();
    lane_log_to_file();
    CHECK(setenv("VMMLANE_LOG", "info", 1) == 0);
    pair->ex = ex_start();
    publish(pair, 1);
    enter_user_namespace(inside);
    lane_cuda(0);
}

static void user_is_not_mapped(void)
{
    struct pair pair;

    start_then_enter(&pair, -1);
    CHECK_EQUAL(geteuid(), 65534);
    refused_in_one_line(&pair);
    CHECK(lane_log_has("not mapped into this user namespace"));
}

static void user_is_mapped_to(int inside)
{
    struct pair pair;

    start_then_enter(&pair, inside);
    im_expect(im_attach(pair.key), pair.base, 4 * CHUNK, 1);
    CHECK_EQUAL(lane_log_count("by its socket"), 1);
}

static void user_is_mapped(void)
{
    user_is_mapped_to(0);
}

static void user_has_another_number(void)
{
    user_is_mapped_to(1000);
}

static void enter_unmapped(void)
{
    enter_user_namespace(-1);
}

static void exporter_is_not_mapped(void)
{
    struct pair pair;

    need_user_namespace();
    CHECK(setenv("VMMLANE_TRANSPORT", "socket", 1) == 0);
    ex_setup = enter_unmapped;
    log_and_start(&pair, 0);
    refused_in_one_line(&pair);
}

/* ---- F5 ------------------------------------------------------------------ */

/* Both pid 1, at one address, with one number for each descriptor. */
static void two_with_one_pid(void)
{
    struct pair one, two;
    CUdeviceptr first, second;
    unsigned i;

    start_in(&one, CLONE_NEWPID, 1);
    start_in(&two, CLONE_NEWPID, 2);
    lane_cuda(0);
    CHECK_EQUAL(lane_handle(one.key).pid, lane_handle(two.key).pid);
    CHECK_EQUAL(lane_handle(one.key).ledger_fd, lane_handle(two.key).ledger_fd);
    first = im_attach(one.key);
    second = im_attach(two.key);
    CHECK(first != second);
    for (i = 0; i < 3; i++) {
        im_expect(first, base, 4 * CHUNK, 1);
        im_expect(second, base, 4 * CHUNK, 2);
    }
    ex_stop(&one.ex);
    im_expect(second, base, 4 * CHUNK, 2);
    while (im_post(im_buffer(), first, CHUNK) == CUDA_SUCCESS)
        usleep(1000);
    im_expect(second, base, 4 * CHUNK, 2);
}

/* Runs as the first process of a PID namespace of its own. */
static void in_pid_namespace(void (*run)(void))
{
    int status;
    pid_t pid;

    if (unshare(CLONE_NEWPID) != 0) {
        perror("unshare(2)");
        _exit(SKIPPED);
    }
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK_EQUAL(getpid(), 1);
        run();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    _exit(WEXITSTATUS(status));
}

static void next_pid(pid_t pid)
{
    char text[16];
    int fd = __real_open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);

    if (fd < 0) {
        perror("ns_last_pid");
        _exit(SKIPPED);
    }
    snprintf(text, sizeof(text), "%d", pid - 1);
    CHECK(write(fd, text, strlen(text)) > 0);
    close(fd);
}

/* One after the other, both attached to or neither. */
static void successor(bool attach)
{
    struct pair old, new;
    CUdeviceptr mirror = 0;

    old.ex = ex_start();
    publish(&old, 1);
    if (attach) {
        lane_cuda(0);
        mirror = im_attach(old.key);
        im_expect(mirror, base, 4 * CHUNK, 1);
    }
    ex_kill(&old.ex);
    next_pid(old.ex.pid);
    if (attach) {
        /* Forked from a process that has the shim at work: its child has
         * not. So another program, which has the numbers all the same. */
        pid_t pid = fork();

        if (pid == 0) {
            int fd;

            for (fd = 3; fd < 1200; fd++)
                dup2(0, fd);
            for (;;)
                pause();
        }
        CHECK_EQUAL(pid, old.ex.pid);
        usleep(20000);
        while (im_post(im_buffer(), mirror, CHUNK) == CUDA_SUCCESS)
            usleep(1000);
        im_refused(mirror, CHUNK);
        CHECK(!im_prepare(old.key));
        return;
    }
    new.ex = ex_start();
    CHECK_EQUAL(new.ex.pid, old.ex.pid);
    publish(&new, 2);
    CHECK_EQUAL(lane_handle(new.key).ledger_fd, lane_handle(old.key).ledger_fd);
    lane_cuda(0);
    CHECK(!im_prepare(old.key));
    mirror = im_attach(new.key);
    im_expect(mirror, base, 4 * CHUNK, 2);
    CHECK(!im_prepare(old.key));
}

static void run_new_exporter(void)
{
    successor(false);
}

static void run_other_program(void)
{
    successor(true);
}

/* An exporter with the pid and the numbers of one that died. */
static void pid_of_a_dead_exporter(void)
{
    in_pid_namespace(run_new_exporter);
}

static void pid_of_a_peer_that_died(void)
{
    in_pid_namespace(run_other_program);
}

/* A process that has any file under the published number. */
static void run_wrong_file(void)
{
    struct vmml_handle handle;
    struct pair old;
    unsigned kind;

    old.ex = ex_start();
    publish(&old, 1);
    handle = lane_handle(old.key);
    ex_kill(&old.ex);
    lane_log_to_file();
    for (kind = 0; kind < 3; kind++) {
        static const char *const files[] = {"/dev/null", "/proc/self/status",
                                            "/"};
        pid_t pid;
        int status;

        next_pid(old.ex.pid);
        pid = fork();
        if (pid == 0) {
            int fd = __real_open(files[kind], O_RDONLY);

            CHECK(dup2(fd, handle.ledger_fd) == handle.ledger_fd);
            for (;;)
                pause();
        }
        CHECK_EQUAL(pid, old.ex.pid);
        usleep(20000);
        if (kind == 0)
            lane_cuda(0);
        CHECK(!im_prepare(old.key));
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(!im_prepare(old.key));
    }
}

static void wrong_file(void)
{
    in_pid_namespace(run_wrong_file);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(pid_namespace),
        LANE_TEST(pid_and_network_namespace),
        LANE_TEST(pid_namespace_without_socket),
        LANE_TEST(pid_namespace_of_another_user),
        LANE_TEST(pid_namespace_without_any_socket),
        LANE_PAIR(network_namespace),
        LANE_TEST(user_is_not_mapped),
        LANE_TEST(user_is_mapped),
        LANE_TEST(user_has_another_number),
        LANE_TEST(exporter_is_not_mapped),
        LANE_TEST(two_with_one_pid),
        LANE_PAIR(pid_of_a_dead_exporter),
        LANE_PAIR(pid_of_a_peer_that_died),
        LANE_PAIR(wrong_file),
    };

    if (geteuid() != 0) {
        fprintf(stderr, "only root can make these namespaces\n");
        return SKIPPED;
    }
    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
