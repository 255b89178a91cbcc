/* SPDX-License-Identifier: MIT */
#include "transport/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/count.h"

/* So long nobody is taken in where the system lets us take nobody in. */
#define REST_MS 100

/* With `lock`, but for the poll(2) of the thread, which alone changes it. */
static struct {
    pthread_mutex_t lock;
    uint8_t nonce[VMML_NONCE_SIZE];
    vmml_server_get get;
    nfds_t count; /* of server_fds */
    int spare; /* given up to turn somebody away where no descriptor is left */
    bool resting;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER, .spare = -1};

/* The server's; [0] is the listening socket. */
static struct pollfd server_fds[1 + VMML_SERVER_CLIENTS];

static void forget(nfds_t i)
{
    server_fds[i] = server_fds[--server.count];
}

static bool send_answer(int socket, int status, int fd)
{
    struct vmml_wire_answer answer = {VMML_WIRE_MAGIC, status};
    struct iovec iov = {&answer, sizeof(answer)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
           (ssize_t)sizeof(answer);
}

/* Say why, and end it. */
static void turn_away(int fd, int error)
{
    vmml_debug("a connection is turned away (errno %d)", error);
    (void)send_answer(fd, -error, -1);
    vmml_fd_close(fd);
}

static int accept_one(void)
{
    return accept4(server_fds[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static int make_spare(int fd)
{
    int spare = fcntl(fd, F_DUPFD_CLOEXEC, VMML_FD_LOWEST);

    /* EINVAL: the limit lies below it. */
    return spare < 0 && errno == EINVAL ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : spare;
}

/* A connection that is not taken keeps poll(2) from sleeping, and whoever made
 * it waiting. */
static void turn_away_by_spare(void)
{
    int fd;

    vmml_fd_close(server.spare);
    fd = accept_one();
    if (fd >= 0)
        turn_away(fd, EMFILE);
    server.spare = make_spare(server_fds[0].fd);
    server.resting = fd < 0 || server.spare < 0;
}

static void accept_failed(int error)
{
    switch (error) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
        break;
    case EMFILE:
        turn_away_by_spare();
        break;
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        server.resting = true;
        break;
    case EBADF:
    case ENOTSOCK:
    case EINVAL:
    case EOPNOTSUPP:
        vmml_info("the socket for importers was closed by the application");
        server_fds[0].fd = -1; /* passed over by poll(2) */
        break;
    default:
        vmml_info("no socket for importers: accept4(2) gives errno %d", error);
        vmml_fd_close(server_fds[0].fd);
        vmml_fd_close(server.spare);
        server_fds[0].fd = server.spare = -1;
    }
}

static void take(void)
{
    int fd = accept_one();

    if (fd < 0) {
        accept_failed(errno);
        return;
    }
    if (!vmml_wire_is_same_user(fd)) {
        turn_away(fd, EKEYREJECTED);
        return;
    }
    if (server.count == 1 + VMML_SERVER_CLIENTS) {
        turn_away(fd, EUSERS);
        return;
    }
    fd = vmml_fd_raise(fd);
    if (fd >= 0)
        server_fds[server.count++] =
            (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Compared in constant time: it is what makes an importer known. */
static bool is_nonce(const uint8_t nonce[VMML_NONCE_SIZE])
{
    unsigned difference = 0;
    size_t i;

    for (i = 0; i < VMML_NONCE_SIZE; i++)
        difference |= (unsigned)(nonce[i] ^ server.nonce[i]);
    return difference == 0;
}

/* A descriptor cannot be sent while too many are under way (unix(7)): the
 * importer is told, and may ask again. */
static bool send_or_say(int socket, int fd)
{
    int error;

    if (send_answer(socket, fd < 0 ? fd : 0, fd))
        return true;
    error = errno;
    return error == ETOOMANYREFS && send_answer(socket, -error, -1);
}

/* What a request of any version begins with, in bytes. */
#define PREFACE ((ssize_t)offsetof(struct vmml_wire_request, what))

/* Returns false when the connection is to be ended: it closed, or it does not
 * speak our language, or does not know the nonce, or does not read. `*ours`:
 * the number is still our socket's. */
static bool answer(int socket, bool *ours)
{
    struct vmml_wire_request request;
    ssize_t length =
        recv(socket, &request, sizeof(request), MSG_DONTWAIT | MSG_TRUNC);
    bool sent;
    int fd;

    *ours = length >= 0 || (errno != EBADF && errno != ENOTSOCK);
    if (length < 0)
        return errno == EAGAIN || errno == EINTR;
    if (length < PREFACE || request.magic != VMML_WIRE_MAGIC ||
        !is_nonce(request.nonce))
        return false;
    if (request.version != VMML_WIRE_VERSION) {
        (void)send_answer(socket, -EPROTONOSUPPORT, -1);
        return false;
    }
    if (length != (ssize_t)sizeof(request))
        return false;
    fd = server.get(request.what, request.slot, request.serial);
    sent = send_or_say(socket, fd);
    if (sent && fd >= 0)
        vmml_count(descriptors_sent);
    vmml_fd_close(fd);
    return sent;
}

static void handle_events(void)
{
    nfds_t i = server.count;
    bool ours;

    /* From the end: the last entry moves to where one was. */
    while (--i > 0)
        if (server_fds[i].revents != 0 && !answer(server_fds[i].fd, &ours)) {
            if (ours)
                vmml_fd_close(server_fds[i].fd);
            forget(i);
        }
    if (server_fds[0].revents != 0)
        take();
}

static void *serve(void *arg)
{
    (void)arg;
    for (;;) {
        server_fds[0].events = server.resting ? 0 : POLLIN;
        if (poll(server_fds, server.count, server.resting ? REST_MS : -1) < 0) {
            /* EINVAL: the limit of open files was set below our count. */
            poll(NULL, 0, REST_MS);
            continue;
        }
        /* So that a fork sees no descriptor that is not in the table. */
        pthread_mutex_lock(&server.lock);
        server.resting = false;
        handle_events();
        pthread_mutex_unlock(&server.lock);
    }
    return NULL;
}

static int bind_socket(void)
{
    struct sockaddr_un address;
    socklen_t length = vmml_wire_address(server.nonce, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error;

    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&address, length) == 0 &&
        listen(fd, 64) == 0)
        return vmml_fd_raise(fd);
    error = errno;
    vmml_fd_close(fd);
    return -error;
}

int vmml_server_start(const uint8_t nonce[VMML_NONCE_SIZE], vmml_server_get get)
{
    int fd, error;

    memcpy(server.nonce, nonce, VMML_NONCE_SIZE);
    server.get = get;
    fd = bind_socket();
    if (fd < 0)
        return fd;
    server_fds[0] = (struct pollfd){.fd = fd, .events = POLLIN};
    server.count = 1;
    server.spare = make_spare(fd);
    error = vmml_thread_start(serve);
    if (error != 0) {
        server.count = 0;
        vmml_fd_close(server.spare);
        vmml_fd_close(fd);
        server.spare = -1;
    }
    return -error;
}

void vmml_server_fork_lock(void)
{
    pthread_mutex_lock(&server.lock);
}

void vmml_server_fork_unlock(void)
{
    pthread_mutex_unlock(&server.lock);
}

void vmml_server_fork_child(void)
{
    nfds_t i;

    for (i = 0; i < server.count; i++)
        vmml_fd_close(server_fds[i].fd);
    vmml_fd_close(server.spare);
    server.spare = -1;
    server.count = 0;
    pthread_mutex_init(&server.lock, NULL);
}
