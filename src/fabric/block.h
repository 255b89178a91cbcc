/* SPDX-License-Identifier: MIT */
/*
 * The metadata block: what one window holds, for importers on other nodes.
 *
 * It lies in a small FABRIC allocation of the exporter's GPU, whose fabric
 * handle travels in the keys of the window. Little-endian, version
 * VMML_BLOCK_VERSION:
 *
 *   offset  bytes
 *        0     64  struct vmml_block_head
 *       64    128  struct vmml_block_window
 *      192  96 each  struct vmml_block_entry, `capacity` of them
 *
 * The exporter writes changed entries, then the first 192 bytes; nothing stops
 * an importer from reading meanwhile. It believes what it read when every
 * check sum fits: of the head, of the window part, of each entry, and the sum
 * of all entries' in the head, which changes with any of them.
 *
 * An importer believes nothing else in it. No driver call is made here.
 */
#ifndef VMML_FABRIC_BLOCK_H
#define VMML_FABRIC_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fabric/name.h"
#include "ledger/layout.h"

#define VMML_BLOCK_MAGIC 0x316b6c626c6d6d76ull /* "vmmlblk1" */
#ifndef VMML_BLOCK_VERSION
#define VMML_BLOCK_VERSION 1
#endif

/* Its allocation has 2 MiB << order bytes: an importer must map exactly that
 * much before it can read it. The largest has room for 699,048 chunks. */
#define VMML_BLOCK_UNIT        (2ul << 20)
#define VMML_BLOCK_ORDER_MAX   5
#define VMML_BLOCK_SIZE(order) (VMML_BLOCK_UNIT << (order))

enum vmml_block_flag {
    VMML_BLOCK_FORWARD = 1, /* a larger block stands for it */
    VMML_BLOCK_CLOSED = 2,  /* no registration of the window is left */
};

struct vmml_block_head {
    uint64_t magic;
    uint32_t version;
    uint32_t flags; /* enum vmml_block_flag */
    uint8_t nonce[VMML_NONCE_SIZE];
    uint64_t generation; /* counts the times that it was written */
    uint32_t count;      /* entries [0, count) were ever used */
    uint32_t capacity;
    uint32_t sum;   /* of the checks of entries [0, count), modulo 2^32 */
    uint32_t check; /* CRC-32C of what stands before it here */
    uint64_t reserved;
};

struct vmml_block_window {
    uint64_t base; /* of the window */
    uint64_t size;
    uint64_t node;           /* the exporter's: fabric/node.h */
    uint8_t device_uuid[16]; /* its GPU's */
    uint8_t successor[VMML_BLOCK_HANDLE_SIZE]; /* with VMML_BLOCK_FORWARD */
    uint32_t successor_order;
    uint32_t reserved[4];
    uint32_t check; /* CRC-32C of what stands before it here */
};

/* A chunk; size 0: none. */
struct vmml_block_entry {
    uint64_t offset; /* from the window's base */
    uint64_t size;
    uint64_t serial; /* of its publication: never used again */
    uint32_t index;  /* its place among the entries */
    uint32_t check;  /* CRC-32C of the entry with 0 here */
    uint8_t handle[VMML_BLOCK_HANDLE_SIZE];
};

/* How a block begins: read in one. */
struct vmml_block_front {
    struct vmml_block_head head;
    struct vmml_block_window window;
};

_Static_assert(sizeof(struct vmml_block_head) == 64, "wire format");
_Static_assert(sizeof(struct vmml_block_window) == 128, "wire format");
_Static_assert(sizeof(struct vmml_block_entry) == 96, "wire format");
_Static_assert(sizeof(struct vmml_block_front) == 192, "wire format");

/* Entries that a block of this order has room for. */
static inline uint32_t vmml_block_capacity(unsigned order)
{
    return (
        uint32_t)((VMML_BLOCK_SIZE(order) - sizeof(struct vmml_block_front)) /
                  sizeof(struct vmml_block_entry));
}

/* The exporter: check sums of what is to be written. */
void vmml_block_seal_front(struct vmml_block_front *front);
void vmml_block_seal_entry(struct vmml_block_entry *entry, uint32_t index);

/* What a block must be of. */
struct vmml_block_expected {
    const uint8_t *nonce;
    uint64_t base;
    uint64_t size;
    unsigned order; /* of the allocation that it was read from */
};

/*
 * Check how a block begins.
 * Returns 0, or -errno: EPROTO no block, or nonsense; EPROTONOSUPPORT of
 * another version; ESTALE another exporter's or window's; EAGAIN a check sum
 * does not fit: it may be being written.
 */
int vmml_block_check_front(const struct vmml_block_front *front,
                           const struct vmml_block_expected *expected);
/* The head alone, as it is read again. */
int vmml_block_check_head(const struct vmml_block_head *head,
                          const struct vmml_block_expected *expected);

/*
 * Check head->count entries that were read behind a checked head, and leave
 * those that name a chunk, sorted by offset. Every chunk lies in the window, is
 * aligned to `granule` and overlaps no other.
 * Returns their number, or -EPROTO, -EAGAIN as above.
 */
int vmml_block_check_entries(const struct vmml_block_head *head,
                             const struct vmml_block_expected *expected,
                             uint64_t granule,
                             struct vmml_block_entry *entries);

#endif
