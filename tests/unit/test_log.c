/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "base/conf.h"
#include "base/levels.h"
#include "base/log.h"
#include "base/text.h"
#include "child.h"
#include "lane/handle.h"

#define THREADS 4
#define LINES   200

static char output[65536];
static char folder[] = "/tmp/vmmlane-log-XXXXXX";

/* The same line by the C library, for comparison. */
__attribute__((format(printf, 2, 3))) static void
expect_line(const char *got, const char *format, ...)
{
    char expected[1024], head[64];
    const char *message = strstr(got, ": ");
    va_list args;

    va_start(args, format);
    vsnprintf(expected, sizeof(expected), format, args);
    va_end(args);
    snprintf(head, sizeof(head), "vmmlane[");
    assert_memory_equal(got, head, strlen(head));
    assert_non_null(message);
    assert_string_equal(message + 2, expected);
}

#define ASSERT_FORMAT(...)                                                     \
    do {                                                                       \
        pipe_start();                                                          \
        vmml_log_write(VMML_LOG_ERROR, "src/lane/f.c", "f", __VA_ARGS__);      \
        pipe_end();                                                            \
        output[strcspn(output, "\n")] = '\0';                                  \
        expect_line(output, __VA_ARGS__);                                      \
    } while (0)

static int saved_stderr, reader;

static void pipe_start(void)
{
    int pair[2];

    assert_int_equal(pipe(pair), 0);
    saved_stderr = dup(STDERR_FILENO);
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    reader = pair[0];
}

static void pipe_end(void)
{
    ssize_t count;

    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    count = read(reader, output, sizeof(output) - 1);
    close(reader);
    output[count > 0 ? count : 0] = '\0';
}

static void test_conversions(void **state)
{
    size_t big = SIZE_MAX;

    ASSERT_FORMAT("plain");
    ASSERT_FORMAT("%d %i %d", 0, -1, INT_MIN);
    ASSERT_FORMAT("%u %x", UINT_MAX, 0xdeadbeefu);
    ASSERT_FORMAT("%ld %lu %lx", LONG_MIN, ULONG_MAX, 0x123456789abcdefl);
    ASSERT_FORMAT("%lld %llu %llx", LLONG_MIN, ULLONG_MAX, 1ull << 63);
    ASSERT_FORMAT("%zu %zx", big, big);
    ASSERT_FORMAT("[%5d] [%05d] [%5d] [%05d]", 42, 42, -42, -42);
    ASSERT_FORMAT("[%016llx] [%#x] [%#06x]", 0xabcull, 0x10u, 0x10u);
    ASSERT_FORMAT("[%2d]", 12345);
    ASSERT_FORMAT("%s|%8s|%c|%%", "text", "right", 'c');
    ASSERT_FORMAT("%p", (void *)output);
}

static void test_line(void **state)
{
    const char *volatile null = NULL; /* the compiler warns of a plain one */
    unsigned hours, minutes, seconds, micro;
    int pid;

    pipe_start();
    vmml_warn("one\ntwo %s", "a\tb\x7f");
    pipe_end();
    /* The format's own control bytes are the author's; a value's are not. */
    assert_int_equal(sscanf(output, "vmmlane[%d] %2u:%2u:%2u.%6uZ WARN", &pid,
                            &hours, &minutes, &seconds, &micro),
                     5);
    assert_int_equal(pid, getpid());
    assert_true(hours < 24 && minutes < 60 && seconds < 60);
    assert_non_null(strstr(output, "Z WARN unit test_line: one\ntwo a?b?\n"));
    pipe_start();
    vmml_log_write(VMML_LOG_ERROR, "src/lane/f.c", "f", "%s", null);
    pipe_end();
    assert_non_null(strstr(output, "ERROR lane f: (null)\n"));
}

static void test_cut(void **state)
{
    char text[2000];

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    pipe_start();
    vmml_warn("%s", text);
    pipe_end();
    assert_int_equal(strlen(output), VMML_LOG_LINE_MAX);
    assert_string_equal(output + VMML_LOG_LINE_MAX - 5, "x...\n");
}

static void test_errno_kept(void **state)
{
    pipe_start();
    errno = 4242;
    vmml_warn("something");
    assert_int_equal(errno, 4242);
    pipe_end();
    saved_stderr = dup(STDERR_FILENO);
    close(STDERR_FILENO);
    errno = 4243;
    vmml_warn("nowhere to go");
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    assert_int_equal(errno, 4243);
}

static int evaluated;

static int evaluate(void)
{
    return ++evaluated;
}

static void test_level(void **state)
{
    assert_int_equal(vmml_conf()->on, true);
    assert_int_equal(vmml_log_level, VMML_LOG_WARN);
    pipe_start();
    vmml_info("%d", evaluate());
    vmml_trace("%d", evaluate());
    pipe_end();
    assert_int_equal(evaluated, 0);
    assert_string_equal(output, "");
    for (int i = 0; i < 3; i++) {
        pipe_start();
        vmml_warn_once("once %d", evaluate());
        pipe_end();
        assert_int_equal(output[0] != '\0', i == 0);
    }
    assert_int_equal(evaluated, 1);
}

/* A reader that is gone must not end the process. */
static void test_broken_pipe(void **state)
{
    sigset_t pending;
    int pair[2];

    assert_int_equal(pipe(pair), 0);
    saved_stderr = dup(STDERR_FILENO);
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    close(pair[0]);
    vmml_warn("nobody reads this");
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGPIPE), 0);
}

/* Nor a file that is not to grow (RLIMIT_FSIZE). */
static void test_file_that_may_not_grow(void **state)
{
    struct rlimit limit, small;
    FILE *file = tmpfile();
    sigset_t pending;

    assert_non_null(file);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 0;
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    vmml_warn("nobody writes this");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    fclose(file);
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGXFSZ), 0);
}

static size_t read_file(const char *path)
{
    int fd = open(path, O_RDONLY);
    ssize_t count;
    size_t used = 0;

    if (fd < 0)
        return 0;
    while ((count = read(fd, output + used, sizeof(output) - 1 - used)) > 0)
        used += (size_t)count;
    output[used] = '\0';
    close(fd);
    return used;
}

static void *log_lines(void *number)
{
    for (int i = 0; i < LINES; i++)
        vmml_warn("thread %d line %03d", (int)(intptr_t)number, i);
    return NULL;
}

/* Run with VMMLANE_LOG_FILE in folder. */
static int log_by_threads(void)
{
    pthread_t threads[THREADS];

    for (intptr_t i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, log_lines, (void *)i) != 0)
            return 1;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

static void test_threads(void **state)
{
    char path[PATH_MAX], *line, *next;
    int seen[THREADS] = {0};

    snprintf(path, sizeof(path), "%s/threads", folder);
    assert_int_equal(
        unit_child("VMMLANE_LOG_FILE", path, log_by_threads, output, 4096), 0);
    assert_string_equal(output, "");
    assert_true(read_file(path) > 0);
    assert_int_equal(unit_lines(output), THREADS * LINES);
    for (line = output; *line != '\0'; line = next + 1) {
        char expected[64], *message = strstr(line, "log_lines: ");
        int thread;

        next = strchr(line, '\n');
        *next = '\0';
        assert_non_null(message);
        assert_int_equal(sscanf(message, "log_lines: thread %d", &thread), 1);
        assert_in_range(thread, 0, THREADS - 1);
        snprintf(expected, sizeof(expected), "log_lines: thread %d line %03d",
                 thread, seen[thread]++);
        assert_string_equal(message, expected);
    }
    unlink(path);
}

/* Relative, and the directory changes; a child has its own file. */
static int log_from_parent_and_child(void)
{
    int status = 1;
    pid_t child;

    if (chdir(folder) != 0)
        return 1;
    vmml_warn("first");
    if (chdir("/") != 0)
        return 1;
    vmml_warn("parent");
    child = fork();
    if (child == 0) {
        vmml_warn("child");
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    /* The names hold the process ids: leave them for the test to find. */
    fprintf(stderr, "%d %d\n", (int)getpid(), (int)child);
    return status;
}

static void test_file_name(void **state)
{
    int parent = 0, child = 0;
    char path[PATH_MAX];
    struct utsname host;
    struct stat info;

    assert_int_equal(uname(&host), 0);
    assert_int_equal(unit_child("VMMLANE_LOG_FILE", "log.%h.%p",
                                log_from_parent_and_child, output, 4096),
                     0);
    assert_int_equal(sscanf(output, "%d %d\n", &parent, &child), 2);
    snprintf(path, sizeof(path), "%s/log.%s.%d", folder, host.nodename, parent);
    assert_true(read_file(path) > 0);
    assert_int_equal(unit_lines(output), 2);
    assert_non_null(strstr(output, "first"));
    assert_non_null(strstr(output, "parent"));
    assert_int_equal(stat(path, &info), 0);
    unlink(path);
    snprintf(path, sizeof(path), "%s/log.%s.%d", folder, host.nodename, child);
    assert_true(read_file(path) > 0);
    assert_int_equal(unit_lines(output), 1);
    assert_non_null(strstr(output, "child"));
    unlink(path);
}

static int log_two_lines(void)
{
    vmml_warn("first");
    vmml_warn("second");
    return 0;
}

static void test_file_that_cannot_be_opened(void **state)
{
    assert_int_equal(unit_child("VMMLANE_LOG_FILE", "/nonexistent/folder/log",
                                log_two_lines, output, 4096),
                     0);
    assert_int_equal(unit_lines(output), 3);
    assert_non_null(strstr(output, "VMMLANE_LOG_FILE=/nonexistent/folder/log"));
    assert_non_null(strstr(output, "first"));
    assert_non_null(strstr(output, "second"));
}

/* A line that waits for the FIFO's reader ends these two by SIGALRM. */
static int log_two_lines_at_once(void)
{
    alarm(120);
    return log_two_lines();
}

static int log_more_than_a_pipe_holds(void)
{
    alarm(120);
    for (int i = 0; i < 2000; i++)
        vmml_warn("line %04d %0100d", i, 0);
    return 0;
}

static void test_fifo(void **state)
{
    char path[PATH_MAX];
    ssize_t count;
    int fd;

    snprintf(path, sizeof(path), "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    /* Without a reader: stderr. */
    assert_int_equal(unit_child("VMMLANE_LOG_FILE", path, log_two_lines_at_once,
                                output, 4096),
                     0);
    assert_int_equal(unit_lines(output), 3);
    assert_non_null(strstr(output, "first"));
    assert_non_null(strstr(output, "second"));
    /* With one that does not read: what fits, whole lines. */
    fd = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_int_equal(unit_child("VMMLANE_LOG_FILE", path,
                                log_more_than_a_pipe_holds, output, 4096),
                     0);
    assert_string_equal(output, "");
    count = read(fd, output, sizeof(output) - 1);
    assert_true(count > 0);
    output[count] = '\0';
    assert_non_null(strstr(output, "line 0000"));
    assert_int_equal(output[count - 1], '\n');
    close(fd);
    unlink(path);
}

#define LOG(level, file, ...) vmml_log_write(level, file, "f", __VA_ARGS__)

static int log_topics(void)
{
    vmml_conf();
    if (vmml_log_level != VMML_LOG_TRACE)
        return 1;
    LOG(VMML_LOG_DEBUG, "../src/mirror/a.c", "one");
    LOG(VMML_LOG_TRACE, "../src/mirror/a.c", "two");
    LOG(VMML_LOG_WARN, "../src/lane/a.c", "three");
    LOG(VMML_LOG_ERROR, "../src/lane/a.c", "four");
    LOG(VMML_LOG_TRACE, "/abs/src/ucx/a.c", "five");
    LOG(VMML_LOG_INFO, "../src/range/a.c", "six");
    LOG(VMML_LOG_DEBUG, "../src/range/a.c", "seven");
    LOG(VMML_LOG_INFO, "a.c", "eight");
    LOG(VMML_LOG_STATS, "../src/lane/a.c", "nine");
    return 0;
}

static void test_topics(void **state)
{
    static const char *const seen[] = {"one", "four",  "five",
                                       "six", "eight", "nine"};
    static const char *const unseen[] = {"two", "three", "seven"};
    size_t i;

    assert_int_equal(unit_child("VMMLANE_LOG",
                                "debug,info,mirror=debug,LANE=error,ucx=trace",
                                log_topics, output, 4096),
                     0);
    for (i = 0; i < sizeof(seen) / sizeof(*seen); i++)
        assert_non_null(strstr(output, seen[i]));
    for (i = 0; i < sizeof(unseen) / sizeof(*unseen); i++)
        assert_null(strstr(output, unseen[i]));
    assert_non_null(strstr(output, " DEBUG mirror f: one\n"));
}

static void test_levels(void **state)
{
    static const char *const wrong[] = {
        "",      "mirror",        "=debug",        "mirror=",
        "warn,", "mirror=debugs", "mirrors=debug", "warn mirror=debug",
    };
    struct vmml_log_levels levels = {.rest = 77};
    size_t i;

    for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        assert_false(vmml_log_levels_parse(wrong[i], &levels));
    assert_int_equal(levels.rest, 77);
    assert_true(vmml_log_levels_parse("mirror=trace,mirror=off", &levels));
    assert_int_equal(vmml_log_level_of(&levels, "mirror"), VMML_LOG_OFF);
    assert_int_equal(vmml_log_level_of(&levels, "lane"), VMML_LOG_WARN);
    assert_int_equal(vmml_log_level_of(&levels, "new"), VMML_LOG_WARN);
    assert_int_equal(vmml_log_level_highest(&levels), VMML_LOG_WARN);
    assert_true(vmml_log_levels_parse("0", &levels));
    assert_int_equal(vmml_log_level_highest(&levels), VMML_LOG_OFF);
}

static void log_without_key(void)
{
    VMML_LOG_KEY(NULL, 0, 0);

    vmml_warn("inner");
}

static void test_key(void **state)
{
    const uint8_t nonce[16] = {1, 2, 3};
    char expected[128];
    unsigned id = (unsigned)vmml_identity(nonce, 0x10000, 0x400000);

    snprintf(expected, sizeof(expected),
             " WARN unit test_key [key %08x 0x10000+0x400000]: with\n", id);
    pipe_start();
    {
        VMML_LOG_KEY(nonce, 0x10000, 0x400000);
        vmml_warn("with");
        log_without_key();
        vmml_warn("again");
    }
    vmml_warn("without");
    pipe_end();
    assert_non_null(strstr(output, expected));
    assert_non_null(strstr(output, " log_without_key: inner\n"));
    assert_non_null(strstr(output, "+0x400000]: again\n"));
    assert_non_null(strstr(output, " test_key: without\n"));
}

static int log_json(void)
{
    const uint8_t nonce[16] = {0};
    VMML_LOG_KEY(nonce, 4096, 8192);

    LOG(VMML_LOG_WARN, "../src/mirror/a.c", "a \"b\" \\ c\n%s", "\xc3\xa9\xff");
    return 0;
}

static void test_json(void **state)
{
    const uint8_t nonce[16] = {0};
    char expected[256], *time;
    int year, month, day;
    unsigned micro;
    double seconds;

    assert_int_equal(
        unit_child("VMMLANE_LOG_FORMAT", "json", log_json, output, 4096), 0);
    assert_int_equal(unit_lines(output), 1);
    time = strstr(output, "{\"time\":\"");
    assert_ptr_equal(time, output);
    assert_int_equal(sscanf(time + 9, "%4d-%2d-%2dT%*2u:%*2u:%lf", &year,
                            &month, &day, &seconds),
                     4);
    assert_in_range(year, 2024, 9999);
    assert_in_range(month, 1, 12);
    assert_in_range(day, 1, 31);
    micro = (unsigned)vmml_identity(nonce, 4096, 8192);
    snprintf(expected, sizeof(expected),
             "\"level\":\"warn\",\"topic\":\"mirror\",\"function\":\"f\","
             "\"key\":\"%08x\",\"window\":\"0x1000\",\"window_bytes\":8192,"
             "\"message\":\"a \\\"b\\\" \\\\ c\\u000a\xc3\xa9\\ufffd\"}\n",
             micro);
    assert_non_null(strstr(output, expected));
}

static void test_time(void **state)
{
    static const time_t times[] = {0, 951782400, 1709251199, 1893456000,
                                   4107542399};
    char got[64], expected[64];
    size_t i;

    for (i = 0; i < sizeof(times) / sizeof(*times); i++) {
        struct timespec time = {times[i], 123456789};
        struct vmml_text text = {.at = got, .size = sizeof(got) - 1};

        vmml_text_time(&text, &time, true);
        got[text.used] = '\0';
        strftime(expected, sizeof(expected), "%FT%T.123456Z",
                 gmtime(&times[i]));
        assert_string_equal(got, expected);
    }
}

static int log_much(void)
{
    struct timespec pause = {1, 0};
    int i;

    setenv("VMMLANE_LOG", "info", 1);
    for (i = 0; i < 1000; i++)
        vmml_info("line %d", i);
    vmml_warn("a warning");
    nanosleep(&pause, NULL);
    vmml_info("later");
    return 0;
}

static void test_rate(void **state)
{
    assert_int_equal(
        unit_child("VMMLANE_LOG_RATE", "5", log_much, output, sizeof(output)),
        0);
    /* The thousand may fall into two seconds. */
    assert_in_range(unit_lines(output), 5 + 3, 2 * 5 + 4);
    assert_non_null(strstr(output, "a warning"));
    assert_non_null(strstr(output, "lines were left out (VMMLANE_LOG_RATE=5)"));
    assert_non_null(strstr(output, "later"));
}

static int make_folder(void **state)
{
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* Children first: the settings are not read yet. */
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_file_name),
        cmocka_unit_test(test_file_that_cannot_be_opened),
        cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_topics),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_errno_kept),
        cmocka_unit_test(test_level),
        cmocka_unit_test(test_broken_pipe),
        cmocka_unit_test(test_file_that_may_not_grow),
    };

    unsetenv("VMMLANE_LOG");
    unsetenv("VMMLANE_LOG_FILE");
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
