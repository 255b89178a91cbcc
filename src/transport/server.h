/* SPDX-License-Identifier: MIT */
/*
 * The exporter's socket: hands descriptors to processes of the same user that
 * know the nonce, where pidfd_getfd(2) is denied.
 */
#ifndef VMML_TRANSPORT_SERVER_H
#define VMML_TRANSPORT_SERVER_H

#include <stdint.h>

#include "transport/wire.h"

/*
 * A new descriptor for what is asked, which the server closes after it was
 * sent; or -errno: ENOENT no such publication (any more).
 */
typedef int (*vmml_server_get)(uint32_t what, uint32_t slot, uint64_t serial);

/* Importers that are connected at one time; more are turned away (EUSERS). */
#define VMML_SERVER_CLIENTS 512

/*
 * Bind the socket and start its thread. Called until it succeeds.
 * Returns 0, or -errno: then importers have pidfd_getfd(2) alone.
 */
int vmml_server_start(const uint8_t nonce[VMML_NONCE_SIZE],
                      vmml_server_get get);

/* For base/fork.c, by way of lane/exporter.c. Before the exporter's lock. In a
 * child: it answers nobody in its parent's name. */
void vmml_server_fork_lock(void);
void vmml_server_fork_unlock(void);
void vmml_server_fork_child(void);

#endif
