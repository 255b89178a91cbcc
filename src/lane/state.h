/* SPDX-License-Identifier: MIT */
/*
 * The exporter's state, shared by the files of lane/ and of pool/.
 */
#ifndef VMML_LANE_STATE_H
#define VMML_LANE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "doors/real.h"
#include "lane/exporter.h"
#include "lane/window.h"
#include "ledger/writer.h"

/* A taken registration. */
struct vmml_registration {
    vmml_uct_md_h md;
    vmml_uct_mem_h memh;
    uint64_t address;
    uint64_t length;
    bool pooled; /* begins in a pool's memory: pool/export.c's, and of what
                  * follows it has `newest` alone */
    unsigned long long newest; /* BUFFER_ID that was in it */
    struct vmml_window *window;
    enum vmml_reason refused; /* the same for every request, or NONE */
    uint64_t changes;         /* of the window, when last verified */
    uint64_t verified_from;   /* [from, to): chunks known to be published */
    uint64_t verified_to;
    struct vmml_registration *next; /* in its bucket */
};

struct vmml_exporter {
    /* Protects all below. Never held over a driver call. */
    pthread_mutex_t lock;
    struct vmml_ledger *ledger;
    struct vmml_windows windows;
    struct vmml_registration **buckets;
    size_t bucket_count; /* a power of two, or 0 */
    size_t registration_count;
    size_t chunk_count; /* of all windows: those that hold a descriptor */
    /* Read without the lock, so that hooks cost nothing before the first
     * window and after a stand-down. */
    atomic_bool has_windows;
    atomic_bool stood_down;
};

extern struct vmml_exporter vmml_exporter;

/* Of the ledger, which stays once it is there; NULL before. For the log: it
 * may be asked for without the lock by who has a window of it. */
const uint8_t *vmml_exporter_nonce(void);

/* Descriptors to close after the lock was dropped. */
struct vmml_fd_list {
    int *fds;
    size_t count;
    size_t capacity;
    int inline_fds[16];
};

void vmml_fd_list_init(struct vmml_fd_list *list);
/* Takes `fd`; where memory is short it is closed at once. */
void vmml_fd_list_add(struct vmml_fd_list *list, int fd);
void vmml_fd_list_close(struct vmml_fd_list *list);

/* With the lock: the chunk is dead. Ledger first, then its descriptor goes to
 * `fds`. */
void vmml_chunk_kill(struct vmml_window *window, struct vmml_chunk *chunk,
                     struct vmml_fd_list *fds);

/* With the lock: kill all its chunks and take it out of the table. */
void vmml_window_retire(struct vmml_window *window, struct vmml_fd_list *fds);

/* With the lock: make the ledger if there is none. */
bool vmml_exporter_ready(void);

/* With the lock: the window of this reservation, made when it is new; windows
 * that it overlaps are of reservations that are gone. It keeps the device that
 * it has while chunks of that are published. NULL when it cannot be had. */
struct vmml_window *vmml_exporter_window(uint64_t base, uint64_t size,
                                         CUdevice device, const CUuuid *gpu,
                                         struct vmml_fd_list *fds);

/* With the lock. */
struct vmml_registration *vmml_registration_find(vmml_uct_md_h md,
                                                 vmml_uct_mem_h memh);
bool vmml_registration_add(const struct vmml_registration *registration);
struct vmml_registration *vmml_registration_take(vmml_uct_md_h md,
                                                 vmml_uct_mem_h memh);

/* With the lock: the answers for a key of this window. */
void vmml_pack_fill(struct vmml_pack *pack, uint64_t base, uint64_t size,
                    enum vmml_reason reason);

/* The reservation around an address, by the driver; of other memory the
 * allocation. */
CUresult vmml_reservation_at(const struct vmml_real *real, CUdeviceptr ptr,
                             uint64_t *base, uint64_t *size);

/*
 * Publish every chunk behind [from, to) of a registration's window.
 * Without the lock.
 *
 * hole: an address in it where nothing is mapped, or 0. A hole is no reason
 * to refuse: there are no bytes that another lane could carry, and a copy that
 * touches it fails at the importer, as the driver has it.
 * Returns VMML_REASON_NONE when all that is mapped is published.
 */
enum vmml_reason vmml_publish(const struct vmml_real *real,
                              struct vmml_window *window, uint64_t from,
                              uint64_t to, uint64_t *hole);

/*
 * Compare each chunk entry of the range with what is mapped there, by
 * BUFFER_ID, and kill what is stale. Without the lock.
 * token: only chunks in that unmap, which the driver refused: they go back into
 * service; 0: all.
 */
void vmml_compare_range(const struct vmml_real *real, uint64_t ptr,
                        uint64_t size, uint64_t token);

/* With the lock: chunks behind [from, to) that no registration covers any
 * more are to be closed in VMML_IDLE_SECONDS. anew: also those that wait for it
 * already; else they keep their time. */
void vmml_idle_add(struct vmml_window *window, uint64_t from, uint64_t to,
                   bool anew);

/* In a child of fork. */
void vmml_idle_forget(void);

/* What the last export of this thread that failed ended with: a CUresult, or
 * -errno; 0: none failed. For vmml_lane_warn(). */
extern __thread int vmml_publish_code;

/* One warning for each reason, then a count. Makes driver calls at the first:
 * without the lock. */
void vmml_lane_warn(enum vmml_reason reason, uint64_t address, uint64_t length);

/* The same for importers on other nodes, which alone have no lane. */
void vmml_lane_warn_across(enum vmml_reason reason, uint64_t address,
                           uint64_t length);

#endif
