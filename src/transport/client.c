/* SPDX-License-Identifier: MIT */
#include "transport/client.h"

#include <errno.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/fd.h"

int vmml_client_connect(const uint8_t nonce[VMML_NONCE_SIZE])
{
    struct timeval limit = {.tv_sec = VMML_CLIENT_SECONDS};
    struct sockaddr_un address;
    socklen_t length = vmml_wire_address(nonce, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int error = 0;

    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
        connect(fd, (struct sockaddr *)&address, length) != 0)
        error = errno;
    /* Another user may have bound the name of an exporter that died. */
    else if (!vmml_wire_is_same_user(fd))
        error = EPERM;
    if (error == 0)
        return vmml_fd_raise(fd);
    vmml_fd_close(fd);
    return -error;
}

/* Every descriptor of a message but the first is closed. */
static int take_fd(struct msghdr *message)
{
    struct cmsghdr *header;
    int first = -1;

    for (header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        size_t count, i;

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
            if (first < 0)
                first = fd;
            else
                vmml_fd_close(fd);
        }
    }
    return first;
}

static int receive(int socket)
{
    struct vmml_wire_answer answer;
    struct iovec iov = {&answer, sizeof(answer)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    ssize_t length;
    int fd;

    do {
        length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (length < 0 && errno == EINTR);
    if (length < 0)
        return errno == EAGAIN ? -ETIMEDOUT : -errno;
    fd = take_fd(&message);
    if (length == (ssize_t)sizeof(answer) && answer.magic == VMML_WIRE_MAGIC &&
        answer.status == 0 && fd >= 0)
        return fd;
    vmml_fd_close(fd);
    if (length == 0)
        return -EPIPE;
    if (length != (ssize_t)sizeof(answer) || answer.magic != VMML_WIRE_MAGIC ||
        answer.status >= 0 || answer.status < -4095)
        return -EPROTO;
    return answer.status;
}

int vmml_client_get(int socket, const uint8_t nonce[VMML_NONCE_SIZE],
                    uint32_t what, uint32_t slot, uint64_t serial)
{
    struct vmml_wire_request request = {
        .magic = VMML_WIRE_MAGIC,
        .version = VMML_WIRE_VERSION,
        .what = what,
        .slot = slot,
        .serial = serial,
    };
    ssize_t length;

    memcpy(request.nonce, nonce, VMML_NONCE_SIZE);
    do {
        length = send(socket, &request, sizeof(request), MSG_NOSIGNAL);
    } while (length < 0 && errno == EINTR);
    if (length < 0)
        return errno == EAGAIN ? -ETIMEDOUT : -errno;
    return receive(socket);
}
