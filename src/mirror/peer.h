/* SPDX-License-Identifier: MIT */
/*
 * An exporter as an importer sees it: its process and its ledger.
 */
#ifndef VMML_MIRROR_PEER_H
#define VMML_MIRROR_PEER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lane/handle.h"
#include "ledger/reader.h"

struct vmml_peer {
    uint8_t nonce[VMML_NONCE_SIZE];
    uint32_t pid;
    int pidfd;
    int ledger_fd; /* its number in the peer */
    dev_t ledger_dev;
    ino_t ledger_ino;
    struct vmml_ledger_reader *reader;
    atomic_bool dead;
    struct vmml_peer *next;
};

/*
 * The peer of a handle: found again by its nonce, or attached to. Peers are
 * never freed, so the pointer stays good.
 *
 * Returns NULL when it cannot be reached; the cause is logged once each, with
 * its remedy. Takes the peer lock, makes system calls, no driver call.
 */
struct vmml_peer *vmml_peer_attach(const struct vmml_handle *handle);

/* The peer with this nonce, if it was attached to before. */
struct vmml_peer *vmml_peer_find(const uint8_t nonce[VMML_NONCE_SIZE]);

/* First peer of the list, for the watcher; follow `next`. */
struct vmml_peer *vmml_peer_first(void);

/* Has the process ended? One poll(2) until it has. */
bool vmml_peer_ended(struct vmml_peer *peer);

/*
 * Has the peer still the ledger under its number? After an exec, and where it
 * closed all its descriptors, it has not: then it counts as ended. False also
 * where that cannot be told now. Three system calls.
 */
bool vmml_peer_is_same(struct vmml_peer *peer);

/* A copy of the peer's descriptor `fd`, close-on-exec. Returns -errno:
 * EBADF it has no such descriptor, ESRCH it ended, EPERM not allowed. */
int vmml_peer_get_fd(const struct vmml_peer *peer, int fd);

/* For base/fork.c. */
void vmml_peer_fork_lock(void);
void vmml_peer_fork_unlock(void);
void vmml_peer_fork_child(void);

#endif
