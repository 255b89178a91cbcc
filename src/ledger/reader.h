/* SPDX-License-Identifier: MIT */
/*
 * The importer's side of a ledger: checked, read-only, and safe against an
 * exporter that writes anything at any time. No driver call is made here.
 *
 * Thread-safe: a reader has no state that changes after it was opened.
 */
#ifndef VMML_LEDGER_READER_H
#define VMML_LEDGER_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ledger/layout.h"

struct vmml_ledger_reader;

/* A chunk as it was when it was read: a consistent copy. */
struct vmml_chunk_view {
    uint64_t serial;
    uint64_t address;
    uint64_t size;
    uint32_t slot;
    uint32_t device;
    int32_t fd;
    uint8_t kind;
};

/* A window as it was when it was read. */
struct vmml_window_view {
    uint64_t base;
    uint64_t size;
    uint32_t index;
    uint32_t device;
    uint8_t device_uuid[16];
    uint64_t origin; /* where its memory lies in the exporter; 0: at base */
    uint64_t newest;
    uint64_t revoked;
};

/*
 * Check and map a ledger.
 *
 * fd: of the exporter's memfd; stays the caller's. It must be a memfd of
 * VMML_LEDGER_FILE_SIZE bytes with the seals SHRINK, GROW and SEAL; its header
 * must have our magic, version, sizes and `nonce`.
 * Returns 0, or -errno: EPROTO not a ledger or wrong seals, ESTALE another
 * nonce, EPROTONOSUPPORT another version, ENOMEM, EIO.
 */
int vmml_ledger_open(int fd, const uint8_t nonce[VMML_NONCE_SIZE],
                     struct vmml_ledger_reader **reader);
void vmml_ledger_close(struct vmml_ledger_reader *reader);

/* Pid, its namespace and start time from the (checked) header. */
uint32_t vmml_ledger_reader_pid(const struct vmml_ledger_reader *reader);
uint32_t vmml_ledger_reader_pid_ns(const struct vmml_ledger_reader *reader);
int vmml_ledger_reader_life_fd(const struct vmml_ledger_reader *reader);
uint64_t vmml_ledger_reader_start_time(const struct vmml_ledger_reader *reader);

/*
 * Find a window by base and size. Returns 0, -ENOENT when there is none or it
 * is retired, -EAGAIN when the exporter wrote all the time (bounded tries, a
 * few milliseconds), -EPROTO when the directory makes no sense.
 */
int vmml_ledger_find_window(const struct vmml_ledger_reader *reader,
                            uint64_t base, uint64_t size,
                            struct vmml_window_view *view);

/* For who looks at a whole ledger: how many windows were ever used. */
uint32_t vmml_ledger_windows(const struct vmml_ledger_reader *reader);

/*
 * The window of an index below that. Returns 0, -ENOENT when none is served
 * there, -EAGAIN (wrote all the time).
 */
int vmml_ledger_window_at(const struct vmml_ledger_reader *reader,
                          uint32_t index, struct vmml_window_view *view);

/*
 * The nonce in the header of a ledger that no handle names. Returns 0, or
 * -errno as vmml_ledger_open().
 */
int vmml_ledger_read_nonce(int fd, uint8_t nonce[VMML_NONCE_SIZE]);

/*
 * Has the window changed since `view` was read? Two loads; no system call.
 * `*revoked` is false when chunks were only added.
 */
bool vmml_ledger_window_changed(const struct vmml_ledger_reader *reader,
                                const struct vmml_window_view *view,
                                bool *revoked);

/* Address of the window's revocation count, for the check at each copy. */
const _Atomic uint64_t *
vmml_ledger_revoked_word(const struct vmml_ledger_reader *reader,
                         uint32_t window);

/*
 * The live chunks of a window that were published after `since` (a serial; 0:
 * all), newest first. Every chunk lies inside the window, is not empty, is
 * aligned to `granule` bytes and overlaps no other; at most
 * window size / granule chunks.
 *
 * chunks: malloc'ed array, *count entries; the caller frees it.
 * view: refreshed to the state that the array shows.
 * Returns 0, or -errno: EAGAIN (wrote all the time), EPROTO (nonsense in it),
 * ENOENT (retired, or the entry now holds another window), ENOMEM, EINVAL
 * (granule 0). On failure view, chunks and count are left alone.
 */
int vmml_ledger_collect(const struct vmml_ledger_reader *reader,
                        struct vmml_window_view *view, uint64_t since,
                        uint64_t granule, struct vmml_chunk_view **chunks,
                        size_t *count);

/*
 * The fabric handle of a collected chunk of that kind, 64 bytes. Returns false
 * when the publication is not live any more: the bytes may be of another then.
 */
bool vmml_ledger_fabric_handle(const struct vmml_ledger_reader *reader,
                               const struct vmml_chunk_view *chunk,
                               uint8_t handle[64]);

/* Is the publication `serial` (one that was collected) in `slot` still live?
 * The check that makes a received descriptor believable, and that tells which
 * mapped chunks died. */
bool vmml_ledger_is_live(const struct vmml_ledger_reader *reader, uint32_t slot,
                         uint64_t serial);

/* An allocation of a stream-ordered pool, as it was when it was read. */
struct vmml_pooled_view {
    uint64_t size; /* bytes, at least 1, at most the window's size */
    uint64_t pool; /* number of the pool in its exporter */
    uint64_t data[VMML_POINTER_WORDS];
};

/*
 * What belongs to a chunk of kind VMML_CHUNK_POOLED that was collected from
 * `window`. Returns false when it is no longer live.
 */
bool vmml_ledger_pooled(const struct vmml_ledger_reader *reader,
                        const struct vmml_window_view *window,
                        const struct vmml_chunk_view *chunk,
                        struct vmml_pooled_view *view);

#endif
