/* SPDX-License-Identifier: MIT */
/*
 * The exporter's side of its ledger. No driver call is made here; chunk
 * descriptors are only numbers here and are closed by the caller.
 *
 * Not thread-safe: the caller holds its own lock around every call.
 */
#ifndef VMML_LEDGER_WRITER_H
#define VMML_LEDGER_WRITER_H

#include <stdint.h>

#include "ledger/layout.h"

struct vmml_ledger;

/*
 * Make the ledger of this process: a new random nonce, an empty table.
 * Returns 0, or -errno (ENOMEM, ENOSYS, EMFILE, ENOSPC, ENOENT where there is
 * no /proc, EIO for no randomness).
 */
int vmml_ledger_create(struct vmml_ledger **ledger);

/* Unmap and close everything of it. Chunk descriptors stay open. */
void vmml_ledger_destroy(struct vmml_ledger *ledger);

/* A ledger that no other process will ask for: what only such need is closed,
 * and one descriptor is left. */
void vmml_ledger_keep_private(struct vmml_ledger *ledger);

/* In a child of fork, which must not keep the parent's ledger: only this. The
 * rest stays as it is, so that no allocator is called. */
void vmml_ledger_close_descriptors(struct vmml_ledger *ledger);

/* The nonce, VMML_NONCE_SIZE bytes, valid as long as the ledger. */
const uint8_t *vmml_ledger_nonce(const struct vmml_ledger *ledger);

/* The descriptor that a handle names: read-only, close-on-exec, high. */
int vmml_ledger_fd(const struct vmml_ledger *ledger);

/* Read end of the pipe that hangs up when this process ends or calls exec. */
int vmml_ledger_life_fd(const struct vmml_ledger *ledger);

/* The descriptor of publication `serial` in `slot` while it is live, else -1.
 */
int vmml_ledger_chunk_fd(const struct vmml_ledger *ledger, uint32_t slot,
                         uint64_t serial);

/* Pid and PID-namespace inode as written in the header. */
uint32_t vmml_ledger_pid(const struct vmml_ledger *ledger);
uint32_t vmml_ledger_pid_ns(const struct vmml_ledger *ledger);

/*
 * Add a window, or find the one with this base and size again (also a retired
 * one, which then serves again).
 * When the table is full, the window that was retired longest ago makes room.
 * Returns its index, or -errno (ENOSPC when all are in use, ENOMEM).
 */
int vmml_ledger_add_window(struct vmml_ledger *ledger, uint64_t base,
                           uint64_t size, uint32_t device,
                           const uint8_t device_uuid[16]);

/*
 * Publish a live chunk. Its serial is written to *serial.
 * Returns its slot, or -errno (ENOSPC, ENOMEM, EINVAL: the window is retired).
 */
int vmml_ledger_publish(struct vmml_ledger *ledger, uint32_t window,
                        uint64_t address, uint64_t size, int fd,
                        uint32_t device, uint64_t *serial);

/* The size of a CUmemFabricHandle. */
#define VMML_FABRIC_HANDLE_SIZE 64

/* The same for a chunk that is shared by a fabric handle: it has no descriptor.
 */
int vmml_ledger_publish_fabric(struct vmml_ledger *ledger, uint32_t window,
                               uint64_t address, uint64_t size,
                               const uint8_t handle[VMML_FABRIC_HANDLE_SIZE],
                               uint32_t device, uint64_t *serial);

/* What an importer needs of an allocation of a stream-ordered pool. */
struct vmml_pooled_record {
    uint64_t address;                  /* in the exporter */
    uint64_t size;                     /* bytes */
    uint64_t pool;                     /* number of the pool */
    uint64_t data[VMML_POINTER_WORDS]; /* CUmemPoolPtrExportData */
};

/*
 * The same for an allocation of a pool, which fills its window alone; `fd` is
 * the pool's. The window must have no other chunk.
 */
int vmml_ledger_publish_pooled(struct vmml_ledger *ledger, uint32_t window,
                               const struct vmml_pooled_record *record, int fd,
                               uint32_t device, uint64_t *serial);

/* The exporter is about to unmap the chunk: no new copy may use it. */
void vmml_ledger_begin_unmap(struct vmml_ledger *ledger, uint32_t slot);

/* The unmap failed: the chunk is live again, under a new serial. */
void vmml_ledger_restore(struct vmml_ledger *ledger, uint32_t slot,
                         uint64_t *serial);

/* The chunk is dead: its slot may be reused. Call it before its descriptor is
 * closed. Works on live and on unmapping chunks. */
void vmml_ledger_kill(struct vmml_ledger *ledger, uint32_t slot);

/* The reservation is gone and all its chunks are dead. */
void vmml_ledger_retire_window(struct vmml_ledger *ledger, uint32_t window);

#endif
