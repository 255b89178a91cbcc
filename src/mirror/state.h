/* SPDX-License-Identifier: MIT */
/*
 * A mirror, shared by the files of mirror/ and by nobody else.
 */
#ifndef VMML_MIRROR_STATE_H
#define VMML_MIRROR_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "doors/real.h"
#include "mirror/mirror.h"
#include "mirror/peer.h"
#include "order/order.h"
#include "pool/import.h"

/* The same unit as in lane/window.h: 2 MiB (measured). */
#define VMML_MIRROR_GRANULE (2ul << 20)

/* So long a thread waits for another that maps, or for posters to leave. */
#define VMML_MIRROR_WAIT_SECONDS 10

/* A chunk that is mapped into a mirror. */
struct vmml_mapped {
    uint64_t address; /* the exporter's */
    uint64_t size;
    uint64_t serial;
    uint32_t slot;
    bool stale; /* revoked, and kept: the mirror is pinned, or cuMemUnmap
                 * failed */
};

struct vmml_mirror {
    struct vmml_peer *peer;
    uint64_t base; /* of the window */
    uint64_t size;
    CUdevice device;
    CUdeviceptr address; /* of the reservation: window size and a guard */

    /* Memory of a pool lies where the driver imports it: UCX is given the
     * reservation's addresses all the same, and copies are posted `shift`
     * bytes further. The busy thread's; `shift` and what it is of do not change
     * while a poster is inside. */
    struct vmml_pool_import import;
    _Atomic uint64_t shift; /* modulo 2^64; 0: nothing is imported */

    /* One thread at a time brings a mirror up to date; `lock` is not held
     * meanwhile, `busy` is. */
    pthread_mutex_t lock;
    pthread_cond_t idle;
    bool busy;

    /* The busy thread's. */
    struct vmml_window_view view;
    bool viewed;     /* `view` is of the window as it was seen last */
    bool complete;   /* all that it shows is mapped */
    uint64_t newest; /* serial up to which publications are mapped */
    struct vmml_mapped *mapped; /* sorted by address */
    size_t mapped_count;
    size_t mapped_capacity;

    /* What a posted copy reads. */
    _Atomic(const _Atomic uint64_t *) revoked; /* in the ledger; NULL: look */
    _Atomic uint64_t revoked_seen;
    atomic_bool has_stale;
    atomic_uint inside;  /* threads between check and post, besides those that
                          * post a short copy (mirror/use.h) */
    atomic_bool closing; /* no new poster may enter */
    struct vmml_stream_set posted;

    atomic_uint opens; /* or VMML_CONDEMNED */
    atomic_uint pins;
    atomic_bool holds;                  /* mapped_count != 0 */
    _Atomic size_t mean_chunk;          /* bytes; 0 while nothing is mapped */
    _Atomic(struct vmml_mirror *) next; /* in the list of all */
    _Atomic(struct vmml_mirror *) next_in_bucket;

    unsigned stats; /* its place in the statistics; the busy thread's */

    /* Of the thread that gives back. */
    uint64_t unused_since; /* ms of CLOCK_MONOTONIC; 0: in use */
    struct vmml_mirror *next_condemned;
};

static inline bool vmml_mirror_is_condemned(const struct vmml_mirror *mirror)
{
    return atomic_load(&mirror->opens) == VMML_CONDEMNED;
}

enum vmml_sync {
    VMML_SYNC_OK,
    VMML_SYNC_GONE,   /* the exporter or the window is no more */
    VMML_SYNC_FAILED, /* something published could not be mapped */
    VMML_SYNC_BUSY,   /* another thread did not finish in time */
};

/* Take `busy`, without waiting for it, and let it go again. */
bool vmml_mirror_try_busy(struct vmml_mirror *mirror);
void vmml_mirror_end_busy(struct vmml_mirror *mirror);

/* The list of all; follow `next`. */
struct vmml_mirror *vmml_mirror_first(void);

/* A condemned mirror leaves the tables; nobody finds it any more. */
void vmml_mirror_unlink(struct vmml_mirror *mirror);
/* Its reservation and its memory go. Nobody looks at it any more. */
void vmml_mirror_free(struct vmml_mirror *mirror);

/* Bring a mirror up to date. No lock is held on entry. */
enum vmml_sync vmml_mirror_sync(struct vmml_mirror *mirror);
/* The same, without waiting for another thread that is at it, nor for an
 * exporter that does not stop writing. */
enum vmml_sync vmml_mirror_try_sync(struct vmml_mirror *mirror);

/* Is there nothing to do for vmml_mirror_sync()? Two loads. */
bool vmml_mirror_is_current(struct vmml_mirror *mirror);

/* Is what is mapped known to be valid, but for chunks marked stale? Without a
 * lock. */
static inline bool vmml_mirror_is_checked(struct vmml_mirror *mirror)
{
    const _Atomic uint64_t *revoked =
        atomic_load_explicit(&mirror->revoked, memory_order_acquire);

    return revoked != NULL &&
           atomic_load_explicit(revoked, memory_order_acquire) ==
               atomic_load_explicit(&mirror->revoked_seen,
                                    memory_order_relaxed) &&
           !atomic_load_explicit(&mirror->peer->dead, memory_order_relaxed);
}

static inline bool vmml_mirror_is_good(struct vmml_mirror *mirror)
{
    return vmml_mirror_is_checked(mirror) &&
           !atomic_load_explicit(&mirror->has_stale, memory_order_relaxed);
}

/* Set by vmml_mirror_pin_all(): nothing is unmapped any more. */
extern atomic_bool vmml_mirrors_pinned;

/* What lies at [address, address+length) of the importer's. Waits for nobody,
 * so that a poster may ask while it is inside. */
enum vmml_content {
    VMML_CONTENT_MAPPED, /* all of it, and nothing of it was revoked */
    VMML_CONTENT_STALE,  /* also a chunk that was revoked and is still mapped */
    VMML_CONTENT_HOLE,   /* not stale, and not mapped everywhere */
    VMML_CONTENT_BUSY,   /* a thread is changing the mirror */
};
enum vmml_content vmml_mirror_content(struct vmml_mirror *mirror,
                                      CUdeviceptr address, size_t length);

/*
 * Give back what nobody needs: descriptors and ledger of exporters that have
 * ended, reservations that UCX has closed and whose window is gone. The
 * watcher's work, one thread's at a time. Waits for nobody.
 * Returns whether there is more to do soon.
 */
bool vmml_reap(void);

/* Start the watcher, once. */
void vmml_watch_start(void);
/* A peer came: look at it too. */
void vmml_watch_wake(void);
void vmml_watch_fork_child(void);

#endif
