/* SPDX-License-Identifier: MIT */
/*
 * An importer's connection to an exporter's socket.
 */
#ifndef VMML_TRANSPORT_CLIENT_H
#define VMML_TRANSPORT_CLIENT_H

#include <stdint.h>

#include "transport/wire.h"

/*
 * So long an exporter is waited for, all waits together: `patience`, in
 * milliseconds, starts here and only falls. An exporter that has used it up is
 * not asked again.
 */
#define VMML_CLIENT_PATIENCE_MS 5000u

/*
 * Both calls may wait, and let go of what the caller holds (base/fork.h) while
 * they do: all that it has open by then is in a table.
 */

/*
 * Connect to the exporter with this nonce, in our network namespace.
 * Returns the socket, close-on-exec and high, or -errno: ECONNREFUSED nobody
 * listens there, EKEYREJECTED it is another user's, ETIMEDOUT too many wait
 * before us, or another error of socket(2) and connect(2).
 */
int vmml_client_connect(const uint8_t nonce[VMML_NONCE_SIZE],
                        unsigned *patience);

/*
 * Ask for a descriptor. One caller at a time for one socket.
 * Returns it, close-on-exec, or -errno: EPIPE the exporter has gone, ETIMEDOUT
 * it did not answer in time, EPROTO it answered nonsense (the connection is
 * then at its end), EMFILE the descriptor came and there was no number for it,
 * or what it answered.
 */
int vmml_client_get(int socket, const uint8_t nonce[VMML_NONCE_SIZE],
                    uint32_t what, uint32_t slot, uint64_t serial,
                    unsigned *patience);

#endif
