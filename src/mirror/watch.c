/* SPDX-License-Identifier: MIT */
/*
 * The watcher: one thread, started with the first mirror. It learns of an
 * exporter's death from its pidfd, and looks at the revocation counts of the
 * mirrors that hold memory, so that it is given back without the
 * application's help within VMML_WATCH_MS.
 */
#include "mirror/state.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"
#include "mirror/use.h"

/* Bound on giving revoked memory back, but for copies that still run. */
#define VMML_WATCH_MS 200

/* So long an exit waits for the watcher to leave the driver. */
#define EXIT_SECONDS 2

/* Held by the watcher while it works, and by an exit for ever. */
static pthread_mutex_t working = PTHREAD_MUTEX_INITIALIZER;

static atomic_flag started = ATOMIC_FLAG_INIT;
static atomic_int wake_fd = -1;

static size_t count_peers(void)
{
    struct vmml_peer *peer;
    size_t count = 0;

    for (peer = vmml_peer_first(); peer != NULL;
         peer = atomic_load(&peer->next))
        count += !atomic_load(&peer->dead);
    return count;
}

/* One entry for the wake-up, and those of each living exporter. */
static struct pollfd *poll_set(size_t *count)
{
    size_t capacity = count_peers() * VMML_PEER_SIGNS + 1;
    struct pollfd *set = calloc(capacity, sizeof(*set));
    struct vmml_peer *peer;

    *count = 0;
    if (set == NULL)
        return NULL;
    set[(*count)++] =
        (struct pollfd){.fd = atomic_load(&wake_fd), .events = POLLIN};
    for (peer = vmml_peer_first(); peer != NULL;
         peer = atomic_load(&peer->next))
        if (*count + VMML_PEER_SIGNS <= capacity && !atomic_load(&peer->dead))
            *count += vmml_peer_signs(peer, set + *count);
    return set;
}

static void wait_for_news(bool holds)
{
    struct pollfd *set;
    eventfd_t value;
    size_t count;

    set = poll_set(&count);
    if (set == NULL) {
        poll(NULL, 0, VMML_WATCH_MS);
        return;
    }
    /* With nothing to give back there is nothing but deaths to wait for. */
    if (set[0].fd < 0)
        holds = true;
    /* EINVAL: the limit of open files was set below our count. */
    if (poll(set, count, holds ? VMML_WATCH_MS : -1) < 0)
        poll(NULL, 0, VMML_WATCH_MS);
    else if (set[0].revents & POLLIN)
        eventfd_read(set[0].fd, &value);
    /* The application closed it, and the number is not ours any more. */
    else if (set[0].revents & POLLNVAL)
        atomic_store(&wake_fd, -1);
    free(set);
}

static void notice_deaths(void)
{
    struct vmml_peer *peer;

    for (peer = vmml_peer_first(); peer != NULL;
         peer = atomic_load(&peer->next))
        if (!atomic_load(&peer->dead) && vmml_peer_ended(peer))
            vmml_info("process %u has ended: its memory is given back",
                      peer->pid);
        else if (!atomic_load(&peer->dead) && atomic_load(&peer->life_fd) < 0)
            (void)vmml_peer_is_same(peer);
}

static void *watch(void *arg)
{
    bool holds = true;

    (void)arg;
    vmml_posting_start();
    for (;;) {
        wait_for_news(holds);
        pthread_mutex_lock(&working);
        notice_deaths();
        holds = vmml_mirror_refresh();
        holds |= vmml_reap();
        pthread_mutex_unlock(&working);
    }
    return NULL;
}

/* Registered after cuInit, so called before the driver's own handlers: it is
 * not torn down while the watcher is in it. */
static void stop_at_exit(void)
{
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += EXIT_SECONDS;
    (void)pthread_mutex_timedlock(&working, &limit);
}

void vmml_watch_start(void)
{
    int error;
    int fd;

    if (atomic_flag_test_and_set(&started)) {
        vmml_watch_wake();
        return;
    }
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd >= 0)
        fd = vmml_fd_raise(fd);
    atomic_store(&wake_fd, fd);
    error = vmml_thread_start(watch);
    if (error != 0) {
        vmml_warn_once("no watcher thread (error %d): memory that an exporter "
                       "gave back stays in use until the next transfer",
                       error);
        atomic_store(&wake_fd, -1);
        vmml_fd_close(fd);
        atomic_flag_clear(&started);
        return;
    }
    if (atexit(stop_at_exit) != 0)
        vmml_debug("no handler for the exit");
}

void vmml_watch_wake(void)
{
    int fd = atomic_load(&wake_fd);

    if (fd >= 0)
        eventfd_write(fd, 1);
}

void vmml_watch_fork_child(void)
{
    pthread_mutex_init(&working, NULL);
    vmml_fd_close(atomic_load(&wake_fd));
    atomic_store(&wake_fd, -1);
}
