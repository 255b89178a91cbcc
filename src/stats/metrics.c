/* SPDX-License-Identifier: MIT */
/*
 * VMMLANE_METRICS_FILE: the counters in the text format of Prometheus
 * (https://prometheus.io/docs/instrumenting/exposition_formats/), for the
 * textfile collector of its node exporter. Another file is written and renamed,
 * so that a reader sees a whole one.
 */
#include "stats/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/quiet.h"
#include "base/text.h"
#include "base/thread.h"
#include "stats/count.h"

#define PERIOD_SECONDS 10

/* So long an exit waits for the thread to be done with a file. */
#define EXIT_TRIES    200
#define EXIT_PAUSE_NS 1000000

static char file_path[PATH_MAX]; /* empty: none is written */
static atomic_flag writing = ATOMIC_FLAG_INIT;
static atomic_bool ended;

/* What is written, a piece at a time. */
struct output {
    int fd;
    int error; /* errno of the first write that failed, or 0 */
    struct vmml_text text;
    char piece[4096];
};

/* A line is never longer than what is kept free. */
#define LINE_ROOM 512

static void flush(struct output *output)
{
    struct vmml_quiet quiet;
    size_t at = 0;

    vmml_quiet_begin(&quiet);
    while (at < output->text.used && output->error == 0) {
        ssize_t done =
            write(output->fd, output->piece + at, output->text.used - at);

        if (done >= 0)
            at += (size_t)done;
        else if (errno != EINTR)
            output->error = errno;
    }
    vmml_quiet_end(&quiet, output->error != 0);
    output->text.used = 0;
}

#define PUT(output, ...)                                                       \
    do {                                                                       \
        if ((output)->text.used + LINE_ROOM > (output)->text.size)             \
            flush(output);                                                     \
        vmml_text_printf(&(output)->text, __VA_ARGS__);                        \
    } while (0)

static void put_counters(struct output *output, int pid)
{
    unsigned i;

    for (i = 0; i < VMML_COUNTERS; i++) {
        const char *name = vmml_counter_names[i];

        PUT(output,
            "# HELP vmmlane_%s_total %s\n# TYPE vmmlane_%s_total counter\n",
            name, vmml_counter_meanings[i], name);
        PUT(output, "vmmlane_%s_total{pid=\"%d\"} %lu\n", name, pid,
            (unsigned long)vmml_count_get(i));
    }
}

static void put_hooks(struct output *output, int pid)
{
    unsigned i;

    PUT(output, "# HELP vmmlane_calls_total calls of hooked functions\n"
                "# TYPE vmmlane_calls_total counter\n");
    for (i = 0; i < VMML_HOOKS; i++)
        PUT(output, "vmmlane_calls_total{pid=\"%d\",function=\"%s\"} %lu\n",
            pid, vmml_hook_names[i],
            (unsigned long)vmml_count_get(VMML_COUNTERS + i));
}

/* Causes without a loss are left out. */
static void put_lost(struct output *output, int pid)
{
    const struct vmml_stats_file *stats = atomic_load(&vmml_stats);
    unsigned i;

    PUT(output, "# HELP vmmlane_lanes_lost_total fast lanes lost, by cause\n"
                "# TYPE vmmlane_lanes_lost_total counter\n");
    for (i = 0; i < VMML_STATS_CAUSES; i++) {
        unsigned long count = atomic_load(&stats->lost[i].count);
        const char *label = vmml_cause_label(i);

        if (count == 0)
            continue;
        PUT(output, "vmmlane_lanes_lost_total{pid=\"%d\",cause=\"", pid);
        if (label != NULL)
            PUT(output, "%s\"} %lu\n", label, count);
        else
            PUT(output, "reason-%u\"} %lu\n", i, count);
    }
}

static void put_all(struct output *output, bool up)
{
    int pid = (int)getpid();

    PUT(output, "# HELP vmmlane_up whether the process runs\n"
                "# TYPE vmmlane_up gauge\n");
    PUT(output, "vmmlane_up{pid=\"%d\",release=\"%s\"} %d\n", pid, VMML_RELEASE,
        (int)up);
    put_counters(output, pid);
    put_lost(output, pid);
    put_hooks(output, pid);
    flush(output);
}

static int write_file(bool up)
{
    struct output output = {.text = {.size = sizeof(output.piece)}};
    char path[PATH_MAX + 16];

    output.text.at = output.piece;
    snprintf(path, sizeof(path), "%s.tmp", file_path);
    /* No link of another user's is followed, and no FIFO waited for. */
    output.fd = open(path,
                     O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY |
                         O_NOFOLLOW | O_NONBLOCK,
                     0644);
    if (output.fd < 0)
        return errno;
    put_all(&output, up);
    vmml_fd_close(output.fd);
    if (output.error == 0 && rename(path, file_path) != 0)
        output.error = errno;
    if (output.error != 0)
        (void)unlink(path);
    return output.error;
}

static void write_and_warn(bool up)
{
    int error = write_file(up);

    if (error != 0)
        vmml_warn_once("VMMLANE_METRICS_FILE: %s cannot be written (errno %d)",
                       file_path, error);
}

static void *write_often(void *arg)
{
    const struct timespec period = {PERIOD_SECONDS, 0};

    (void)arg;
    while (!atomic_load(&ended)) {
        if (!atomic_flag_test_and_set(&writing)) {
            if (!atomic_load(&ended))
                write_and_warn(true);
            atomic_flag_clear(&writing);
        }
        nanosleep(&period, NULL);
    }
    return NULL;
}

/* It stays one file when the application changes its directory. */
static bool make_path(const char *pattern)
{
    char expanded[PATH_MAX], folder[PATH_MAX] = "";
    int length;

    if (!vmml_path_expand(pattern, expanded, sizeof(expanded)))
        return false;
    if (expanded[0] != '/' && getcwd(folder, sizeof(folder)) == NULL)
        return false;
    length = snprintf(file_path, sizeof(file_path), "%s%s%s", folder,
                      folder[0] != '\0' ? "/" : "", expanded);
    if (length > 0 && (size_t)length < sizeof(file_path))
        return true;
    file_path[0] = '\0';
    return false;
}

void vmml_metrics_start(void)
{
    const char *pattern = vmml_conf()->metrics_file;
    int error;

    if (pattern == NULL)
        return;
    if (!make_path(pattern)) {
        vmml_warn_once("VMMLANE_METRICS_FILE=%s: the path is too long",
                       pattern);
        return;
    }
    error = vmml_thread_start(write_often);
    if (error != 0)
        vmml_warn_once("no thread for VMMLANE_METRICS_FILE (error %d): it is "
                       "written at the end alone",
                       error);
}

__attribute__((destructor)) static void write_at_exit(void)
{
    static const struct timespec pause = {0, EXIT_PAUSE_NS};
    int tries;

    if (!vmml_count_any() || file_path[0] == '\0' || vmml_in_child)
        return;
    atomic_store(&ended, true);
    for (tries = 0; atomic_flag_test_and_set(&writing); tries++) {
        if (tries == EXIT_TRIES)
            return;
        nanosleep(&pause, NULL);
    }
    write_and_warn(false);
}
