/* SPDX-License-Identifier: MIT */
#include "transport/server.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"

/* The thread's own, but for the descriptors that a child of fork closes. */
static struct {
    uint8_t nonce[VMML_NONCE_SIZE];
    vmml_server_get get;
    /* [0] is the listening socket. */
    struct pollfd fds[1 + VMML_SERVER_CLIENTS];
    _Atomic nfds_t count;
} server;

static void drop(nfds_t i)
{
    nfds_t last = atomic_load(&server.count) - 1;

    vmml_fd_close(server.fds[i].fd);
    server.fds[i] = server.fds[last];
    atomic_store(&server.count, last);
}

static void take(void)
{
    nfds_t count = atomic_load(&server.count);
    int fd =
        accept4(server.fds[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    if (count == 1 + VMML_SERVER_CLIENTS || !vmml_wire_is_same_user(fd)) {
        vmml_debug("a connection was turned away");
        vmml_fd_close(fd);
        return;
    }
    fd = vmml_fd_raise(fd);
    if (fd < 0)
        return;
    server.fds[count] = (struct pollfd){.fd = fd, .events = POLLIN};
    atomic_store(&server.count, count + 1);
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

/* Compared in constant time: it is what makes an importer known. */
static bool is_nonce(const uint8_t nonce[VMML_NONCE_SIZE])
{
    unsigned difference = 0;
    size_t i;

    for (i = 0; i < VMML_NONCE_SIZE; i++)
        difference |= (unsigned)(nonce[i] ^ server.nonce[i]);
    return difference == 0;
}

/* Returns false when the connection is to be ended: it closed, or it does not
 * speak our language, or does not know the nonce. */
static bool answer(int socket)
{
    struct vmml_wire_request request;
    ssize_t length =
        recv(socket, &request, sizeof(request), MSG_DONTWAIT | MSG_TRUNC);
    bool sent;
    int fd;

    if (length < 0)
        return errno == EAGAIN || errno == EINTR;
    if (length != (ssize_t)sizeof(request) ||
        request.magic != VMML_WIRE_MAGIC ||
        request.version != VMML_WIRE_VERSION || !is_nonce(request.nonce))
        return false;
    fd = server.get(request.what, request.slot, request.serial);
    sent = send_answer(socket, fd < 0 ? fd : 0, fd);
    vmml_fd_close(fd);
    return sent;
}

static void *serve(void *arg)
{
    (void)arg;
    for (;;) {
        nfds_t i = atomic_load(&server.count);

        if (poll(server.fds, i, -1) < 0)
            continue;
        /* From the end: drop() moves the last entry to where one was. */
        while (--i > 0)
            if (server.fds[i].revents != 0 && !answer(server.fds[i].fd))
                drop(i);
        if (server.fds[0].revents & POLLIN)
            take();
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
    server.fds[0] = (struct pollfd){.fd = fd, .events = POLLIN};
    atomic_store(&server.count, 1);
    error = vmml_thread_start(serve);
    if (error != 0) {
        atomic_store(&server.count, 0);
        vmml_fd_close(fd);
    }
    return -error;
}

void vmml_server_fork_child(void)
{
    nfds_t count = atomic_load(&server.count);
    nfds_t i;

    for (i = 0; i < count; i++)
        vmml_fd_close(server.fds[i].fd);
    atomic_store(&server.count, 0);
}
