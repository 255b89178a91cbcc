/* SPDX-License-Identifier: MIT */
/*
 * The 64 bytes that travel in UCX's keys in the place of a legacy CUDA IPC
 * handle. Everything in them is untrusted.
 *
 * Bytes, little-endian: 0-3 zero, 4-7 magic, 8 version, 9 flags, 10 reason,
 * 11 a byte of the node's number, 12-15 pid, 16-19 PID-namespace inode, 20-23
 * ledger descriptor, 24-39 nonce, 40-47 window base, 48-55 window size, 56-59
 * checksum of 4-55, 60-63 zero. UCX 1.21 and older and 1.22 and newer disagree
 * by 4 bytes about where a key holds its handle and cut one end off: 4-59
 * survive both ways.
 */
#ifndef VMML_LANE_HANDLE_H
#define VMML_LANE_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/layout.h"

#define VMML_HANDLE_SIZE 64

/* Tests build the shim with other numbers of these. */
#ifndef VMML_HANDLE_VERSION
#define VMML_HANDLE_VERSION 2
#endif

/* Flag: this request cannot be served; `reason` says why. */
#define VMML_HANDLE_TOMBSTONE 1u
/* Flag: UCX's key holds, behind the handle, the fabric handle of the window's
 * metadata block (fabric/block.h), of order `reason`. */
#define VMML_HANDLE_BLOCK 4u

/* Flag: for cuIpcOpenMemHandle of any caller (ipc/ipc.h); never in a key. */
#define VMML_HANDLE_IPC 2u

/* Flags: how the UCX that packed the key lays keys out: as 1.18.0, which later
 * versions do not; and without the fields of a build with fabric support. Only
 * an importer whose own UCX does the same reads the right fields. */
#define VMML_HANDLE_FIRST_LAYOUT 8u
#define VMML_HANDLE_NO_FABRIC    16u
#define VMML_HANDLE_LAYOUT       (VMML_HANDLE_FIRST_LAYOUT | VMML_HANDLE_NO_FABRIC)

/* Why a request gets a tombstone. Wire values: never renumber. */
enum vmml_reason {
    VMML_REASON_NONE = 0,
    VMML_REASON_HOLE = 1,          /* part of it is not mapped */
    VMML_REASON_NOT_SHAREABLE = 2, /* no handle type that can be exported */
    VMML_REASON_IMPORTED = 3,      /* memory of another process */
    VMML_REASON_NO_DESCRIPTOR = 4, /* RLIMIT_NOFILE */
    VMML_REASON_LEDGER = 5,        /* the ledger is full or could not be made */
    VMML_REASON_DRIVER = 6,        /* a driver call failed */
    VMML_REASON_FABRIC = 7,        /* not given out any more */
    VMML_REASON_WINDOW = 8,        /* the range leaves its reservation */
    VMML_REASON_DEVICE = 9,        /* chunks of several devices */
    VMML_REASON_NO_CHANNEL = 10,   /* FABRIC alone, and no IMEX channel */
    /* Without a flag: why other nodes than the exporter's are not served. */
    VMML_REASON_MIXED = 11, /* not every chunk has a fabric handle */
    VMML_REASON_FREED = 12, /* a pool's memory, freed since */
    VMML_REASON_LOCAL = 13, /* no chunk has a fabric handle */
    VMML_REASON_BLOCK = 14, /* the metadata block cannot be had */
};

/* For log lines; never NULL. */
const char *vmml_reason_string(enum vmml_reason reason);

struct vmml_handle {
    uint8_t flags;
    uint8_t reason;
    uint8_t node; /* vmml_node_byte() of the exporter */
    uint32_t pid;
    uint32_t pid_ns;
    int32_t ledger_fd;
    uint8_t nonce[VMML_NONCE_SIZE];
    uint64_t base;
    uint64_t size;
};

void vmml_handle_encode(const struct vmml_handle *handle,
                        uint8_t bytes[VMML_HANDLE_SIZE]);

/* Make one of ipc/ of it. */
void vmml_handle_set_ipc(uint8_t bytes[VMML_HANDLE_SIZE]);

/* layout: of VMML_HANDLE_LAYOUT. */
void vmml_handle_set_layout(uint8_t bytes[VMML_HANDLE_SIZE], uint8_t layout);

/* Where a key of a UCX that was built with fabric support holds the window,
 * from its first byte; and the block's name, from byte 4 of the handle. */
#define VMML_KEY_IDENTITY 144
#define VMML_KEY_BASE     160
#define VMML_KEY_SIZE     168
#define VMML_KEY_BLOCK    60

/* Say in encoded bytes of a key that is served what other nodes find:
 * VMML_HANDLE_BLOCK and its order, or 0 and why not. The layout stays. */
void vmml_handle_set_across(uint8_t bytes[VMML_HANDLE_SIZE], uint8_t flags,
                            uint8_t reason);

/* How many bytes vmml_handle_find() may read. */
#define VMML_HANDLE_SCAN 76

/*
 * Look for a handle whose byte 0 would lie at `bytes` + -4, 0, 4 or 8: in a
 * key (its handle starts at 0, 4 or 8) and in the 64 bytes that UCX passes to
 * cuIpcOpenMemHandle (shifted by -4, 0 or 4).
 *
 * available: readable bytes.
 * Checks magic, version, checksum, and that base and size make sense (not
 * empty, no overflow). Returns the offset of its byte 4 in `bytes`, or -1.
 */
int vmml_handle_find(const uint8_t *bytes, unsigned available,
                     struct vmml_handle *handle);

/* Whether such bytes, where vmml_handle_find() found no handle, are a handle
 * of another version. */
bool vmml_handle_is_foreign(const uint8_t *bytes, unsigned available);

/* A window's identity: the top bit set (no driver's BUFFER_ID has it) over a
 * hash of nonce, base and size. */
uint64_t vmml_identity(const uint8_t nonce[VMML_NONCE_SIZE], uint64_t base,
                       uint64_t size);

/* UUID of this exporter and GPU: the GPU's, mixed with the nonce. */
void vmml_identity_uuid(const uint8_t nonce[VMML_NONCE_SIZE],
                        const uint8_t gpu[16], uint8_t uuid[16]);

#endif
