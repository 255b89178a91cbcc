/* SPDX-License-Identifier: MIT */
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"

void vmml_fd_close(int fd)
{
    int saved = errno;

    if (fd >= 0)
        close(fd);
    errno = saved;
}

/* The soft limit, raised to `wanted` where the hard limit allows it. */
static rlim_t limit_at_least(rlim_t wanted)
{
    struct rlimit limit;
    rlim_t before;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    /* Not raised in vain. */
    if (limit.rlim_cur >= wanted || limit.rlim_max < wanted)
        return limit.rlim_cur;
    before = limit.rlim_cur;
    /* Doubling keeps the number of calls small; never above the hard limit. */
    limit.rlim_cur = wanted > 2 * before ? wanted : 2 * before;
    if (limit.rlim_cur > limit.rlim_max)
        limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_cur <= before || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return before;
    vmml_info("RLIMIT_NOFILE raised from %lu to %lu", (unsigned long)before,
              (unsigned long)limit.rlim_cur);
    return limit.rlim_cur;
}

static bool leaves_room(int fd)
{
    rlim_t wanted = (rlim_t)fd + 1 + VMML_FD_SPARE;

    return limit_at_least(wanted) >= wanted;
}

/* Returns -error, with nothing left open. */
static int give_up(int fd, int error)
{
    vmml_fd_close(fd);
    return -error;
}

/* Is there room above VMML_FD_LOWEST? */
static bool goes_high(void)
{
    const rlim_t least = VMML_FD_LOWEST + VMML_FD_SPARE;
    rlim_t wanted = least + VMML_FD_SPARE;
    rlim_t hard = vmml_fd_limit().hard;

    return hard > least &&
           limit_at_least(wanted < hard ? wanted : hard) > least;
}

int vmml_fd_raise(int fd)
{
    int high;

    if (fd < VMML_FD_LOWEST && goes_high()) {
        high = fcntl(fd, F_DUPFD_CLOEXEC, VMML_FD_LOWEST);
        /* EMFILE: every number from there on is taken. The low ones stay the
         * application's all the same. */
        if (high < 0)
            return give_up(fd, errno);
        vmml_fd_close(fd);
        fd = high;
    } else if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return give_up(fd, errno);
    }
    return leaves_room(fd) ? fd : give_up(fd, EMFILE);
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
