/* SPDX-License-Identifier: MIT */
/*
 * Giving back: descriptors and ledgers of exporters that have ended, and
 * reservations that nobody needs.
 *
 * A reservation goes when UCX has closed it, nothing is mapped in it, no pin
 * keeps it, and its window or exporter is gone, all of that for
 * UNUSED_MS: UCX has been seen to close a mapping while it still posted on it.
 * First it is condemned: no open and no sync succeeds any more. Then it leaves
 * the tables, and when nobody can be looking at it any more it is freed.
 */
#include "mirror/state.h"

#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "mirror/use.h"

#define UNUSED_MS 2000

/* What waits for the end of those who may look at it. */
static struct {
    bool sealed;
    struct vmml_mirror *mirrors;
    struct vmml_peer *peers;
    struct vmml_peer *strip; /* by next_condemned, and still in the list */
} batch;

/* ---- mirrors ---- */

static bool is_unused(const struct vmml_mirror *mirror)
{
    return atomic_load(&mirror->opens) == 0 &&
           atomic_load(&mirror->pins) == 0 && !atomic_load(&mirror->holds) &&
           !atomic_load(&vmml_mirrors_pinned);
}

/* Will no key of its window be served any more? It may be again: then another
 * mirror is made. */
static bool is_gone(const struct vmml_mirror *mirror)
{
    struct vmml_window_view view;

    return vmml_peer_ended(mirror->peer) ||
           vmml_ledger_find_window(mirror->peer->reader, mirror->base,
                                   mirror->size, &view) == -ENOENT;
}

/* While it is busy no sync maps anything into it. */
static bool condemn(struct vmml_mirror *mirror)
{
    unsigned none = 0;
    bool done;

    if (!vmml_mirror_try_busy(mirror))
        return false;
    done =
        mirror->mapped_count == 0 && is_unused(mirror) && is_gone(mirror) &&
        atomic_compare_exchange_strong(&mirror->opens, &none, VMML_CONDEMNED);
    vmml_mirror_end_busy(mirror);
    return done;
}

/* Returns whether it is waited for: nothing tells when a window goes. */
static bool collect_mirror(struct vmml_mirror *mirror, uint64_t now)
{
    bool unused = is_unused(mirror);

    if (!unused || !is_gone(mirror)) {
        mirror->unused_since = 0;
        return unused;
    }
    if (mirror->unused_since == 0)
        mirror->unused_since = now;
    if (now - mirror->unused_since < UNUSED_MS || !condemn(mirror))
        return true;
    VMML_LOG_KEY(mirror->peer->nonce, mirror->base, mirror->size);
    vmml_debug("the mirror at 0x%lx of window 0x%lx of process %u is given "
               "back",
               (unsigned long)mirror->address, (unsigned long)mirror->base,
               mirror->peer->pid);
    vmml_mirror_unlink(mirror);
    mirror->next_condemned = batch.mirrors;
    batch.mirrors = mirror;
    return true;
}

/* ---- peers ---- */

/* No sync of it that begins from now on looks into the ledger. */
static bool let_go_of_ledger(struct vmml_mirror *mirror)
{
    if (!vmml_mirror_try_busy(mirror))
        return false;
    mirror->viewed = false;
    mirror->newest = 0;
    atomic_store(&mirror->revoked, NULL);
    vmml_mirror_end_busy(mirror);
    return true;
}

static bool can_strip(const struct vmml_peer *peer)
{
    struct vmml_mirror *mirror;

    for (mirror = vmml_mirror_first(); mirror != NULL;
         mirror = atomic_load(&mirror->next))
        if (mirror->peer == peer && !let_go_of_ledger(mirror))
            return false;
    return true;
}

/* Returns whether it is waited for. */
static bool collect_peer(struct vmml_peer *peer)
{
    if (!atomic_load(&peer->dead))
        return false;
    if (!peer->stripped) {
        if (!can_strip(peer))
            return true;
        peer->stripped = true;
        peer->next_condemned = batch.strip;
        batch.strip = peer;
        return true;
    }
    if (!vmml_peer_unlink(peer))
        return atomic_load(&peer->mirrors) == 0;
    peer->next_condemned = batch.peers;
    batch.peers = peer;
    return true;
}

/* ---- both ---- */

static bool collect(void)
{
    uint64_t now = (uint64_t)vmml_now_ms();
    struct vmml_mirror *mirror, *next_mirror;
    struct vmml_peer *peer, *next_peer;
    bool more = false;

    for (mirror = vmml_mirror_first(); mirror != NULL; mirror = next_mirror) {
        next_mirror = atomic_load(&mirror->next);
        more |= collect_mirror(mirror, now);
    }
    for (peer = vmml_peer_first(); peer != NULL; peer = next_peer) {
        next_peer = atomic_load(&peer->next);
        more |= collect_peer(peer);
    }
    return more;
}

static void free_batch(void)
{
    struct vmml_mirror *mirror;
    struct vmml_peer *peer;

    while ((mirror = batch.mirrors) != NULL) {
        batch.mirrors = mirror->next_condemned;
        vmml_mirror_free(mirror);
    }
    while ((peer = batch.strip) != NULL) {
        batch.strip = peer->next_condemned;
        vmml_peer_strip(peer);
    }
    while ((peer = batch.peers) != NULL) {
        batch.peers = peer->next_condemned;
        vmml_peer_free(peer);
    }
}

static bool has_batch(void)
{
    return batch.mirrors != NULL || batch.peers != NULL || batch.strip != NULL;
}

bool vmml_reap(void)
{
    bool more;

    if (batch.sealed && !vmml_use_is_over())
        return true;
    if (batch.sealed)
        free_batch();
    more = collect();
    batch.sealed = has_batch() && vmml_use_seal();
    return more || has_batch();
}
