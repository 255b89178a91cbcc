/* SPDX-License-Identifier: MIT */
#include "doctor/trial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor/child.h"
#include "mirror/pidfd.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61 /* Yama (linux/prctl.h) */
#endif
#ifndef PR_SET_PTRACER_ANY
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

#define TIMEOUT_MS 10000

struct shared {
    struct vmml_trial trial;
    pid_t exporter;
    int descriptor; /* of the exporter */
    struct sockaddr_un address;
    socklen_t address_length; /* 0: no socket */
    int orders[2];            /* the importer writes a byte */
    int answers[2];           /* the exporter answers it */
};

static int error_of(long result)
{
    return result < 0 ? errno : 0;
}

/* The other side may have been stopped by what is tried. */
static bool comes(int fd)
{
    struct pollfd poller = {fd, POLLIN, 0};

    return poll(&poller, 1, 2000) == 1;
}

/* ---- the exporter ---- */

static int make_ledger(int *error)
{
    int fd = memfd_create("vmmlane-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    *error = error_of(fd);
    if (fd >= 0 && (ftruncate(fd, 4096) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0))
        *error = errno;
    return fd;
}

static int listen_somewhere(struct shared *shared)
{
    const struct sockaddr_un automatic = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof(shared->address);

    /* unix(7): an address of the family alone gives an abstract name. */
    if (fd < 0 ||
        bind(fd, (const struct sockaddr *)&automatic, sizeof(sa_family_t)) !=
            0 ||
        listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)&shared->address, &length) != 0) {
        shared->trial.socket = errno;
        return -1;
    }
    shared->address_length = length;
    return fd;
}

/* Room for one descriptor (cmsg(3)). */
union control {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
};

static void hand_out(int listener, int fd)
{
    char byte = 0;
    struct iovec part = {&byte, 1};
    union control control = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int peer;

    if (!comes(listener))
        return;
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0)
        return;
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    sendmsg(peer, &message, MSG_NOSIGNAL);
    close(peer);
}

static void be_exporter(struct shared *shared)
{
    int listener, fd;
    char order = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(shared->orders[1]);
    close(shared->answers[0]);
    fd = make_ledger(&shared->trial.memfd);
    shared->descriptor = fd >= 0 ? fd : shared->orders[0];
    listener = listen_somewhere(shared);
    do {
        if (order == 't')
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        if (write(shared->answers[1], &order, 1) != 1)
            break;
        /* After the answer: the importer connects when it has read it. */
        if (order == 's')
            hand_out(listener, shared->descriptor);
    } while (read(shared->orders[0], &order, 1) == 1);
    _exit(0);
}

/* ---- the importer ---- */

static bool ask(const struct shared *shared, char order)
{
    char answer;

    return write(shared->orders[1], &order, 1) == 1 &&
           comes(shared->answers[0]) &&
           read(shared->answers[0], &answer, 1) == 1;
}

static void try_own(struct vmml_trial *trial)
{
    int pidfd = vmml_pidfd_open((uint32_t)getpid()), fd;

    trial->own_open = pidfd < 0 ? -pidfd : 0;
    if (pidfd < 0)
        return;
    fd = vmml_pidfd_getfd(pidfd, pidfd);
    trial->own_getfd = fd < 0 ? -fd : 0;
}

static int getfd_of(int pidfd, const struct shared *shared)
{
    int fd = vmml_pidfd_getfd(pidfd, shared->descriptor);

    return fd < 0 ? -fd : 0;
}

static void try_other(struct shared *shared)
{
    int pidfd = vmml_pidfd_open((uint32_t)shared->exporter);

    shared->trial.open = pidfd < 0 ? -pidfd : 0;
    if (pidfd < 0)
        return;
    shared->trial.getfd = getfd_of(pidfd, shared);
    if (shared->trial.getfd == EPERM && ask(shared, 't'))
        shared->trial.ptracer = getfd_of(pidfd, shared);
}

static int receive(int fd)
{
    char byte;
    struct iovec part = {&byte, 1};
    union control control = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};

    if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 1)
        return errno == 0 ? EPIPE : errno;
    /* A security module may take the descriptor out of the message. */
    return CMSG_FIRSTHDR(&message) == NULL ? EACCES : 0;
}

static void try_socket(struct shared *shared)
{
    int fd;

    if (shared->address_length == 0)
        return;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    errno = fd < 0 ? errno : 0;
    if (fd < 0 || !ask(shared, 's') ||
        connect(fd, (const struct sockaddr *)&shared->address,
                shared->address_length) != 0)
        shared->trial.socket = errno == 0 ? EPIPE : errno;
    else
        shared->trial.socket = receive(fd);
}

/* Most likely to be denied last: a filter may kill. */
static void be_importer(void *argument)
{
    struct shared *shared = argument;
    char ready;

    close(shared->orders[0]);
    close(shared->answers[1]);
    if (!comes(shared->answers[0]) || read(shared->answers[0], &ready, 1) != 1)
        return;
    try_socket(shared);
    try_own(&shared->trial);
    try_other(shared);
}

/* ---- both ---- */

static void close_pipes(struct shared *shared)
{
    close(shared->orders[0]);
    close(shared->orders[1]);
    close(shared->answers[0]);
    close(shared->answers[1]);
}

static void run(struct shared *shared)
{
    struct vmml_child child;
    /* Not in the shared memory: the exporter would write its 0 there. */
    pid_t exporter = fork();

    if (exporter == 0)
        be_exporter(shared);
    if (exporter < 0)
        return;
    shared->exporter = exporter;
    child = vmml_child_run(be_importer, shared, TIMEOUT_MS);
    shared->trial.killed = child.end == VMML_CHILD_KILLED;
    kill(exporter, SIGKILL);
    waitpid(exporter, NULL, 0);
}

void vmml_trial_run(struct vmml_trial *trial)
{
    const struct vmml_trial untried = {
        VMML_NOT_TRIED, VMML_NOT_TRIED, VMML_NOT_TRIED, VMML_NOT_TRIED,
        VMML_NOT_TRIED, VMML_NOT_TRIED, VMML_NOT_TRIED, false};
    struct shared *shared = vmml_shared_new(sizeof(*shared));

    *trial = untried;
    if (shared == NULL)
        return;
    shared->trial = untried;
    if (pipe2(shared->orders, O_CLOEXEC) == 0) {
        if (pipe2(shared->answers, O_CLOEXEC) == 0) {
            run(shared);
            close_pipes(shared);
        } else {
            close(shared->orders[0]);
            close(shared->orders[1]);
        }
    }
    *trial = shared->trial;
    vmml_shared_free(shared, sizeof(*shared));
}

const char *vmml_trial_text(int result)
{
    return result == 0                ? "works"
           : result == VMML_NOT_TRIED ? "not tried"
                                      : strerror(result);
}
