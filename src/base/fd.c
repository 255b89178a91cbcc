/* SPDX-License-Identifier: MIT */
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

void vmml_fd_close(int fd)
{
    int saved = errno;

    if (fd >= 0)
        close(fd);
    errno = saved;
}

/* Raise the soft limit to `wanted` where the hard one allows it, and as far as
 * that does to `times` what it was. *limit: as it is. Returns whether there is
 * as much. */
static bool raise_limit(struct rlimit *limit, rlim_t wanted, unsigned times)
{
    struct rlimit raised = *limit;

    /* Not raised in vain. */
    if (limit->rlim_cur >= wanted || limit->rlim_max < wanted)
        return limit->rlim_cur >= wanted;
    raised.rlim_cur = times * limit->rlim_cur;
    if (raised.rlim_cur < wanted)
        raised.rlim_cur = wanted;
    if (raised.rlim_cur > limit->rlim_max)
        raised.rlim_cur = limit->rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) != 0)
        return false;
    vmml_info("RLIMIT_NOFILE raised from %lu to %lu",
              (unsigned long)limit->rlim_cur, (unsigned long)raised.rlim_cur);
    *limit = raised;
    return true;
}

/*
 * A number outside of the kernel's table of descriptors makes that twice as
 * large, and where threads share it the one that needs it waits 7 to 18 ms
 * (fs/file.c, expand_fdtable: synchronize_rcu; measured). So a thread of its
 * own does it before: while it waits, others get numbers that lie inside.
 */
static atomic_uint table_end; /* numbers below it lie inside, or soon will */

/* dup3() makes the table larger before it looks at the old descriptor, and
 * there is none: nothing is opened. Where a kernel does it the other way round,
 * nothing is lost. */
static void *enlarge_table(void *arg)
{
    (void)arg;
    (void)dup3(-1, (int)atomic_load(&table_end) - 1, O_CLOEXEC);
    return NULL;
}

/* A number was got. The next size is begun at three quarters of the last. */
static void stay_ahead(struct rlimit *limit, int fd)
{
    unsigned number = (unsigned)fd;
    unsigned end = atomic_load_explicit(&table_end, memory_order_relaxed);
    unsigned next = 2 * VMML_FD_LOWEST;

    if (number < end / 4 * 3)
        return;
    while (number >= next / 4 * 3)
        next *= 2;
    if (!raise_limit(limit, next, 1) ||
        !atomic_compare_exchange_strong(&table_end, &end, next) ||
        number >= next / 2) /* then it has that size */
        return;
    if (vmml_thread_start(enlarge_table) != 0)
        vmml_debug("no thread enlarges the table of descriptors");
}

/* Doubling keeps the number of calls small. */
static bool leaves_room(struct rlimit *limit, int fd)
{
    return raise_limit(limit, (rlim_t)fd + 1 + VMML_FD_SPARE, 2);
}

/* Returns -error, with nothing left open. */
static int give_up(int fd, int error)
{
    vmml_fd_close(fd);
    return -error;
}

/* Is there room above VMML_FD_LOWEST? */
static bool goes_high(struct rlimit *limit)
{
    const rlim_t least = VMML_FD_LOWEST + VMML_FD_SPARE;
    rlim_t wanted = least + VMML_FD_SPARE;

    if (wanted > limit->rlim_max)
        wanted = limit->rlim_max;
    return wanted > least &&
           (raise_limit(limit, wanted, 2) || limit->rlim_cur > least);
}

/* Returns -errno. The application, or another thread that raised it from what
 * it was, may have set the limit below what is in use. */
static int dup_high(int fd, struct rlimit *limit)
{
    int high, error;

    for (;;) {
        high = fcntl(fd, F_DUPFD_CLOEXEC, VMML_FD_LOWEST);
        error = errno;
        if (high >= 0 || error != EMFILE || limit->rlim_cur >= limit->rlim_max)
            break;
        if (!raise_limit(limit, limit->rlim_cur + 1, 2))
            break;
    }
    return high < 0 ? -error : high;
}

int vmml_fd_raise(int fd)
{
    struct rlimit limit;
    int high;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return give_up(fd, errno);
    if (fd < VMML_FD_LOWEST && goes_high(&limit)) {
        high = dup_high(fd, &limit);
        /* EMFILE: every number from there on is taken. The low ones stay the
         * application's all the same. */
        if (high < 0)
            return give_up(fd, -high);
        vmml_fd_close(fd);
        fd = high;
    } else if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return give_up(fd, errno);
    }
    if (!leaves_room(&limit, fd))
        return give_up(fd, EMFILE);
    stay_ahead(&limit, fd);
    return fd;
}

/* The lowest number that is used: see vmml_fd_raise(). */
static size_t lowest(unsigned long hard)
{
    return hard > VMML_FD_LOWEST + VMML_FD_SPARE ? VMML_FD_LOWEST : 0;
}

struct vmml_fd_limit vmml_fd_limit(void)
{
    struct vmml_fd_limit limit = {0, 0};
    struct rlimit now;

    if (getrlimit(RLIMIT_NOFILE, &now) != 0)
        return limit;
    limit.hard = now.rlim_max;
    if (limit.hard > lowest(limit.hard) + VMML_FD_SPARE)
        limit.numbers = limit.hard - VMML_FD_SPARE - lowest(limit.hard);
    return limit;
}

size_t vmml_fd_room(void)
{
    struct vmml_fd_limit limit = vmml_fd_limit();
    unsigned long from = lowest(limit.hard), number;
    DIR *dir = opendir("/proc/self/fd");
    size_t room = limit.numbers;
    struct dirent *entry;

    if (dir == NULL)
        return SIZE_MAX;
    while ((entry = readdir(dir)) != NULL) {
        number = strtoul(entry->d_name, NULL, 10);
        if (entry->d_name[0] != '.' && number >= from &&
            number - from < limit.numbers && room > 0)
            room--;
    }
    closedir(dir);
    return room;
}
