#include "client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void send_all(int fd, const void *data, size_t length)
{
    const char *at = data;

    while (length > 0) {
        ssize_t n = send(fd, at, length, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            die(EXIT_SETUP, "send: %s", strerror(errno));
        at += n;
        length -= (size_t)n;
    }
}

static bool receive_all(int fd, void *data, size_t length)
{
    char *at = data;

    while (length > 0) {
        ssize_t n = recv(fd, at, length, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != ECONNRESET)
            die(EXIT_SETUP, "recv: %s", strerror(errno));
        if (n <= 0)
            return false;
        at += n;
        length -= (size_t)n;
    }
    return true;
}

void wire_send(int fd, struct wire_header *header, const void *payload)
{
    send_all(fd, header, sizeof(*header));
    if (header->payload_length > 0)
        send_all(fd, payload, header->payload_length);
}

bool wire_receive(int fd, struct wire_header *header, void **payload)
{
    *payload = NULL;
    if (!receive_all(fd, header, sizeof(*header)))
        return false;
    if (header->payload_length == 0)
        return true;
    *payload = malloc(header->payload_length + 1);
    if (*payload == NULL)
        die(EXIT_SETUP, "out of memory");
    ((char *)*payload)[header->payload_length] = '\0';
    return receive_all(fd, *payload, header->payload_length);
}
