/* SPDX-License-Identifier: MIT */
/*
 * What an importer asks an exporter's socket for, and the socket's name.
 *
 * SOCK_SEQPACKET over an abstract AF_UNIX address (unix(7)): no file is left
 * behind, and the address ends with the exporter. One request is one packet,
 * its answer is one packet with at most one descriptor (SCM_RIGHTS).
 */
#ifndef VMML_TRANSPORT_WIRE_H
#define VMML_TRANSPORT_WIRE_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "ledger/layout.h"

#define VMML_WIRE_MAGIC 0x746c6d76u /* "vmlt" */

/* Tests build the shim with another number. */
#ifndef VMML_WIRE_VERSION
#define VMML_WIRE_VERSION 1
#endif

enum vmml_wire_what {
    VMML_WIRE_LEDGER = 1, /* the ledger, read-only */
    VMML_WIRE_LIFE = 2,   /* the pipe that ends with the exporter */
    VMML_WIRE_CHUNK = 3,  /* the publication `serial` in `slot` */
};

/* Magic, version and nonce stay where they are in every version: another one
 * is told so (-EPROTONOSUPPORT). */
struct vmml_wire_request {
    uint32_t magic;
    uint32_t version;
    uint8_t nonce[VMML_NONCE_SIZE];
    uint32_t what;
    uint32_t slot;
    uint64_t serial;
};

struct vmml_wire_answer {
    uint32_t magic;
    int32_t status; /* 0 with a descriptor, or -errno without one */
};

/*
 * The address of the exporter with this nonce: a keyed hash of a constant,
 * with the nonce as the key, so that it tells nothing of the nonce.
 * Returns its length.
 */
socklen_t vmml_wire_address(const uint8_t nonce[VMML_NONCE_SIZE],
                            struct sockaddr_un *address);

/* May this peer be spoken to: is it of our user, and of a user that is mapped
 * into our user namespace? (The overflow uid stands for all that are not.) */
int vmml_wire_is_same_user(int fd);

#endif
