/* SPDX-License-Identifier: MIT */
/*
 * An exporter as an importer sees it: its process, its ledger, and the way by
 * which its descriptors travel.
 */
#ifndef VMML_MIRROR_PEER_H
#define VMML_MIRROR_PEER_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lane/handle.h"
#include "ledger/reader.h"

/* In a count of references: none is given out any more. */
#define VMML_CONDEMNED UINT32_MAX

struct vmml_peer {
    uint8_t nonce[VMML_NONCE_SIZE];
    uint32_t pid;     /* in its own PID namespace */
    atomic_int pidfd; /* -1: it cannot be had, or is not wanted */
    int ledger_fd;    /* its number in the peer */
    dev_t ledger_dev;
    ino_t ledger_ino;
    atomic_int socket;  /* to the exporter; negative: not connected */
    atomic_int life_fd; /* hangs up at its end or exec; -1: it cannot be had */
    struct vmml_ledger_reader *reader;
    atomic_bool dead;
    bool remote; /* on another node: `reader` is of a ledger of our own, and
                  * nothing tells of its end */
    pthread_mutex_t asking; /* one question at a time on `socket` */
    unsigned patience;      /* transport/client.h; with `asking` */
    atomic_uint mirrors;    /* that refer to it, or VMML_CONDEMNED */
    _Atomic(struct vmml_peer *) next;

    /* Of the thread that gives back. */
    bool stripped;
    struct vmml_peer *next_condemned;
};

/*
 * The peer of a handle: found again by its nonce, or attached to. The pointer
 * stays good as long as the caller is a user (mirror/use.h), or a mirror holds
 * it (vmml_peer_hold()).
 *
 * Returns NULL when it cannot be reached; the cause is logged once each, with
 * its remedy. *may_pass: it is one that may pass, as a want of memory or of
 * descriptors. Makes system calls and no driver call; waits for the exporter at
 * most its patience (transport/client.h), and a fork does not wait for that.
 */
struct vmml_peer *vmml_peer_attach(const struct vmml_handle *handle,
                                   bool *may_pass);

/*
 * The peer of a handle that was attached to before, has ended and may have been
 * freed since: a dead one is made. NULL for one that never was attached to, but
 * with VMMLANE_STRICT, where that one's copies are to fail.
 */
struct vmml_peer *vmml_peer_lost(const struct vmml_handle *handle);

/*
 * Enter an exporter on another node, whose ledger `reader` is kept by
 * fabric/import.c. Takes `reader` over. False where memory is short.
 */
bool vmml_peer_add_remote(const struct vmml_handle *handle,
                          struct vmml_ledger_reader *reader);

/* A mirror refers to it. False: it is about to be freed. */
bool vmml_peer_hold(struct vmml_peer *peer);
void vmml_peer_drop(struct vmml_peer *peer);

/* A dead peer that nobody looks at any more: its descriptors are closed and
 * its ledger is unmapped. */
void vmml_peer_strip(struct vmml_peer *peer);

/* A peer that is dead and that no mirror holds leaves the list. Returns false
 * when a mirror does, and while another thread changes the list. Waits for
 * nobody. */
bool vmml_peer_unlink(struct vmml_peer *peer);
/* Nobody looks at it any more. */
void vmml_peer_free(struct vmml_peer *peer);

/* The peer with this nonce, if it was attached to before. */
struct vmml_peer *vmml_peer_find(const uint8_t nonce[VMML_NONCE_SIZE]);

/* First peer of the list, for the watcher; follow `next`. */
struct vmml_peer *vmml_peer_first(void);

/* Has the process ended or called exec? One poll(2) until it has. */
bool vmml_peer_ended(struct vmml_peer *peer);

/*
 * Has the peer still the ledger under its number? After an exec, and where it
 * closed all its descriptors, it has not: then it counts as ended. False also
 * where that cannot be told now. Without a pidfd, what its socket tells.
 */
bool vmml_peer_is_same(struct vmml_peer *peer);

/* What to poll(2) for its end: fills up to VMML_PEER_SIGNS entries, returns
 * how many. */
#define VMML_PEER_SIGNS 3
size_t vmml_peer_signs(const struct vmml_peer *peer,
                       struct pollfd signs[VMML_PEER_SIGNS]);

/*
 * A copy of a published chunk's descriptor, close-on-exec; the caller closes
 * it, and believes it only if the publication is live and the peer not dead
 * afterwards.
 * Returns -errno: EBADF, ENOENT it has no such descriptor, ESRCH, EPIPE it
 * ended, EPERM not allowed by any step.
 */
int vmml_peer_get_chunk(struct vmml_peer *peer,
                        const struct vmml_chunk_view *chunk);

/* For base/fork.c. */
void vmml_peer_fork_lock(void);
void vmml_peer_fork_unlock(void);
void vmml_peer_fork_child(void);

#endif
