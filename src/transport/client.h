/* SPDX-License-Identifier: MIT */
/*
 * An importer's connection to an exporter's socket.
 */
#ifndef VMML_TRANSPORT_CLIENT_H
#define VMML_TRANSPORT_CLIENT_H

#include <stdint.h>

#include "transport/wire.h"

/* So long an answer is waited for. */
#define VMML_CLIENT_SECONDS 5

/*
 * Connect to the exporter with this nonce, in our network namespace.
 * Returns the socket, close-on-exec and high, or -errno: ECONNREFUSED nobody
 * listens there, EPERM it is another user's.
 */
int vmml_client_connect(const uint8_t nonce[VMML_NONCE_SIZE]);

/*
 * Ask for a descriptor. One caller at a time for one socket.
 * Returns it, close-on-exec, or -errno: EPIPE the exporter has gone, ETIMEDOUT
 * it did not answer, EPROTO it answered nonsense, or what it answered.
 */
int vmml_client_get(int socket, const uint8_t nonce[VMML_NONCE_SIZE],
                    uint32_t what, uint32_t slot, uint64_t serial);

#endif
