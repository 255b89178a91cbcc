/* SPDX-License-Identifier: MIT */
#include "transport/client.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork.h"

/* A shorter wait is nobody's fault and is not counted. */
#define FREE_MS 50
/* Between attempts where the exporter's queue of connections is full. */
#define RETRY_MS 10

/* ---- patience ---- */

/* Since `start`. Where the clock cannot be read, what is known: `least`. */
static unsigned passed(int64_t start, unsigned least)
{
    int64_t now = vmml_now_ms();

    return start == 0 || now < start ? least : (unsigned)(now - start);
}

static void spend(unsigned *patience, unsigned ms)
{
    if (ms > FREE_MS)
        *patience = ms < *patience ? *patience - ms : 0;
}

/* Until something happens to `fd`: 0, or -ETIMEDOUT when the patience is spent,
 * or what poll(2) has to say. Not by SO_RCVTIMEO, which starts anew after each
 * signal. */
static int wait_for(int fd, short events, unsigned *patience)
{
    struct pollfd set = {.fd = fd, .events = events};
    int64_t start = vmml_now_ms();
    int holds = vmml_fork_let_go();
    unsigned waited = 0;
    int count = 0, error = 0;

    while (count <= 0 && waited < *patience) {
        count = poll(&set, 1, (int)(*patience - waited));
        error = count < 0 ? errno : 0;
        if (error != 0 && error != EINTR)
            break;
        /* So that signals do not make it endless without a clock. */
        waited = passed(start, count == 0 ? *patience : waited + 1);
    }
    vmml_fork_hold_again(holds);
    spend(patience, waited);
    if (count > 0)
        return 0;
    if (error != 0 && error != EINTR)
        return -error;
    *patience = 0;
    return -ETIMEDOUT;
}

/* ---- connecting ---- */

/* The connected socket. Does not block: -EAGAIN says that the queue is full
 * (unix(7)). */
static int connect_once(const struct sockaddr_un *address, socklen_t length)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int status;

    if (fd < 0)
        return -errno;
    while (connect(fd, (const struct sockaddr *)address, length) != 0)
        if (errno != EINTR) {
            status = -errno;
            vmml_fd_close(fd);
            return status;
        }
    return fd;
}

/* No socket is kept over a pause: a fork may come then. */
static int connect_within(const struct sockaddr_un *address, socklen_t length,
                          unsigned *patience)
{
    unsigned waited = 0;
    int holds, fd;

    while ((fd = connect_once(address, length)) == -EAGAIN) {
        if (waited >= *patience) {
            *patience = 0;
            return -ETIMEDOUT;
        }
        holds = vmml_fork_let_go();
        poll(NULL, 0, RETRY_MS);
        vmml_fork_hold_again(holds);
        waited += RETRY_MS;
    }
    spend(patience, waited);
    return fd;
}

int vmml_client_connect(const uint8_t nonce[VMML_NONCE_SIZE],
                        unsigned *patience)
{
    struct sockaddr_un address;
    socklen_t length = vmml_wire_address(nonce, &address);
    int fd = connect_within(&address, length, patience);

    if (fd < 0)
        return fd;
    /* Another user may have bound the name of an exporter that died. */
    if (vmml_wire_is_same_user(fd))
        return vmml_fd_raise(fd);
    vmml_fd_close(fd);
    return -EKEYREJECTED;
}

/* ---- asking ---- */

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

/* An exporter that closed with a request unread resets the connection once;
 * what it had sent before comes after that. */
static ssize_t receive_once(int socket, struct msghdr *message)
{
    ssize_t length = recvmsg(socket, message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

    if (length < 0 && errno == ECONNRESET)
        length = recvmsg(socket, message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    return length;
}

/* What a message of `length` bytes says. `fd`: what came with it, or -1. */
static int judge(const struct vmml_wire_answer *answer, ssize_t length,
                 const struct msghdr *message, int fd)
{
    if (length == 0)
        return -EPIPE;
    if (length != (ssize_t)sizeof(*answer) ||
        (message->msg_flags & MSG_TRUNC) || answer->magic != VMML_WIRE_MAGIC)
        return -EPROTO;
    if (answer->status == 0 && fd >= 0)
        return 0;
    /* It was sent, and could not be had. */
    if (answer->status == 0 && (message->msg_flags & MSG_CTRUNC))
        return -EMFILE;
    return answer->status < 0 && answer->status >= -4095 ? answer->status
                                                         : -EPROTO;
}

/* The descriptor of a message, or what it says. -EAGAIN: none has come.
 * *taken: there was one. */
static int receive_message(int socket, bool *taken)
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
    ssize_t length = receive_once(socket, &message);
    int status, fd;

    *taken = length >= 0;
    if (length < 0 && (errno == EINTR || errno == EAGAIN))
        return -EAGAIN;
    if (length < 0)
        return errno == ECONNRESET ? -EPIPE : -errno;
    fd = take_fd(&message);
    status = judge(&answer, length, &message, fd);
    if (status == 0)
        return fd;
    vmml_fd_close(fd);
    return status;
}

static int receive(int socket, unsigned *patience, bool *taken)
{
    int status = -EAGAIN;

    *taken = false;
    while (status == -EAGAIN) {
        status = wait_for(socket, POLLIN, patience);
        if (status == 0)
            status = receive_message(socket, taken);
    }
    return status;
}

/* The question could not be sent. An exporter that closed may have said why
 * before; a descriptor is the answer to another question. */
static int last_words(int socket)
{
    bool taken;
    int status = receive_message(socket, &taken);

    vmml_fd_close(status);
    return status < 0 && status != -EAGAIN ? status : -EPIPE;
}

static int send_request(int socket, const struct vmml_wire_request *request,
                        unsigned *patience)
{
    int status = 0;

    while (status == 0 && send(socket, request, sizeof(*request),
                               MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return -errno;
        status = wait_for(socket, POLLOUT, patience);
    }
    return status;
}

int vmml_client_get(int socket, const uint8_t nonce[VMML_NONCE_SIZE],
                    uint32_t what, uint32_t slot, uint64_t serial,
                    unsigned *patience)
{
    struct vmml_wire_request request = {
        .magic = VMML_WIRE_MAGIC,
        .version = VMML_WIRE_VERSION,
        .what = what,
        .slot = slot,
        .serial = serial,
    };
    bool taken = true;
    int status;

    /* A late answer would be taken for that to another question. */
    if (*patience == 0)
        return -ETIMEDOUT;
    memcpy(request.nonce, nonce, VMML_NONCE_SIZE);
    status = send_request(socket, &request, patience);
    if (status == 0)
        status = receive(socket, patience, &taken);
    else if (status == -EPIPE || status == -ECONNRESET)
        status = last_words(socket);
    /* So would one that was not taken. Without patience nobody asks again, and
     * the connection goes on telling of the exporter's end. */
    if (status == -EPROTO || (!taken && *patience != 0))
        shutdown(socket, SHUT_RDWR);
    return status;
}
