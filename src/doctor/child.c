/* SPDX-License-Identifier: MIT */
#include "doctor/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long a killed child is waited for, in milliseconds. */
#define REAP_MS 1000

/* The status of a child whose work returned; exit(3) called by what it ran
 * has a status of its own. */
#define DONE 111

void *vmml_shared_new(size_t size)
{
    void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return shared == MAP_FAILED ? NULL : shared;
}

void vmml_shared_free(void *shared, size_t size)
{
    if (shared != NULL)
        munmap(shared, size);
}

static void be_quiet(void)
{
    const struct rlimit none = {0, 0};
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (fd >= 0) {
        dup2(fd, STDIN_FILENO);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
    }
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* The pipe's write end is the child's alone: it hangs up when it ends. */
static void wait_for_end(int fd, unsigned timeout)
{
    struct pollfd poller = {fd, POLLIN, 0};
    struct timespec start, now;
    int left = (int)timeout;

    clock_gettime(CLOCK_MONOTONIC, &start);
    while (left > 0 && poll(&poller, 1, left) < 0 && errno == EINTR) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        left = (int)timeout - (int)((now.tv_sec - start.tv_sec) * 1000 +
                                    (now.tv_nsec - start.tv_nsec) / 1000000);
    }
}

static struct vmml_child ended(int status)
{
    if (WIFSIGNALED(status))
        return (struct vmml_child){VMML_CHILD_KILLED, WTERMSIG(status)};
    if (WEXITSTATUS(status) == DONE)
        return (struct vmml_child){VMML_CHILD_DONE, 0};
    return (struct vmml_child){VMML_CHILD_EXITED, WEXITSTATUS(status)};
}

static struct vmml_child end_it(pid_t pid)
{
    const struct timespec pause = {0, 10000000};
    int status, i;

    kill(pid, SIGKILL);
    for (i = 0; i < REAP_MS / 10 && waitpid(pid, &status, WNOHANG) == 0; i++)
        nanosleep(&pause, NULL);
    return (struct vmml_child){VMML_CHILD_TIMED_OUT, 0};
}

/* The pipe may hang up a moment before the child can be waited for. */
static struct vmml_child reap(pid_t pid, int fd, unsigned timeout)
{
    struct timespec pause = {0, 1000000};
    int status, i;

    wait_for_end(fd, timeout);
    for (i = 0; i < 100; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return ended(status);
        if (poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0) == 0)
            break; /* it still runs */
        nanosleep(&pause, NULL);
    }
    return end_it(pid);
}

struct vmml_child vmml_child_run(void (*work)(void *), void *shared,
                                 unsigned timeout)
{
    struct vmml_child child = {VMML_CHILD_NOT_STARTED, 0};
    int ends[2];
    pid_t pid;

    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        child.value = errno;
        return child;
    }
    pid = fork();
    if (pid == 0) {
        close(ends[0]);
        be_quiet();
        work(shared);
        _exit(DONE);
    }
    child.value = errno;
    close(ends[1]);
    if (pid > 0)
        child = reap(pid, ends[0], timeout);
    close(ends[0]);
    return child;
}

const char *vmml_child_text(struct vmml_child child, unsigned timeout)
{
    static char text[128];

    switch (child.end) {
    case VMML_CHILD_TIMED_OUT:
        snprintf(text, sizeof(text), "did not answer in %u s", timeout / 1000);
        break;
    case VMML_CHILD_KILLED:
        snprintf(text, sizeof(text), "died of signal %d (%s)", child.value,
                 strsignal(child.value));
        break;
    case VMML_CHILD_EXITED:
        snprintf(text, sizeof(text), "ended its process (status %d)",
                 child.value);
        break;
    case VMML_CHILD_NOT_STARTED:
        snprintf(text, sizeof(text), "could not be tried (%s)",
                 strerror(child.value));
        break;
    case VMML_CHILD_DONE:
        snprintf(text, sizeof(text), "returned");
        break;
    }
    return text;
}
