/* SPDX-License-Identifier: MIT */
/*
 * What is remembered of the driver's answers: chunks, and extents made of
 * them. Data only: no driver call, no lock, no malloc. The caller holds its
 * own lock around every call.
 *
 * Each end of an extent is either known (the driver said why it ends there)
 * or open (something there changed, or it was not asked yet).
 */
#ifndef VMML_RANGE_EXTENTS_H
#define VMML_RANGE_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "range/tree.h"

/* What the chunks of one extent have in common. */
struct vmml_traits {
    uint64_t window_base; /* the reservation */
    uint64_t window_end;
    uint64_t handle_types; /* CUmemAllocationHandleType bits, as requested */
    uint64_t access;       /* CUmemAccess_flags of the memory's own device */
    int32_t device;
    uint16_t usage;
    uint8_t compression;
    uint8_t rdma;
    bool joins; /* false: of a kind that is an extent by itself */
};

struct vmml_chunk {
    struct vmml_node node;
    uint64_t buffer_id;
};

struct vmml_extent {
    struct vmml_node node;
    struct vmml_traits traits;
    /* Of its first and its last chunk: checked at every use. */
    uint64_t low_end;
    uint64_t low_id;
    uint64_t high_base;
    uint64_t high_id;
    uint64_t patrol; /* where the next sample of its chunks is taken */
    bool low_known;
    bool high_known;
};

/* Chunks remembered at most: 2 TiB of the smallest that the driver maps. The
 * tables take up to 136 MiB, and only as much as they were ever filled. */
#ifndef VMML_CHUNKS_MAX
#define VMML_CHUNKS_MAX (1u << 20)
#endif

/* Changes kept for probes that ran meanwhile. A power of two. */
#define VMML_CHANGES 64

struct vmml_extents {
    struct vmml_tree chunks;
    struct vmml_tree extents;
    /* The last changes, so that an answer which the driver gave before one of
     * them is not remembered after it. */
    uint64_t change_count;
    struct {
        uint64_t base;
        uint64_t end;
    } changes[VMML_CHANGES];
    uint64_t overflow_count; /* how often everything was dropped */
};

/* Room for `capacity` chunks, or less where address space is short.
 * Returns 0, or -errno (ENOMEM). */
int vmml_extents_init(struct vmml_extents *extents, uint32_t capacity);

void vmml_extents_fini(struct vmml_extents *extents);

/* [base, end) changed: forget its chunks, cut its extents, open the ends that
 * it touches. */
void vmml_extents_change(struct vmml_extents *extents, uint64_t base,
                         uint64_t end);

/* Did anything in [base, end) change after the count was `since`? Also true
 * where that is no longer known. */
bool vmml_extents_changed(const struct vmml_extents *extents, uint64_t since,
                          uint64_t base, uint64_t end);

/* Remember a chunk, as an extent of its own with open ends; what was known of
 * its addresses is dropped. A full table is emptied first. Nothing happens
 * where it is known already. */
void vmml_extents_add(struct vmml_extents *extents, uint64_t base, uint64_t end,
                      uint64_t buffer_id, const struct vmml_traits *traits);

/* The extent, or the chunk, that holds `address`; NULL when none is known.
 * Valid until the next call that changes anything. */
struct vmml_extent *vmml_extents_find(const struct vmml_extents *extents,
                                      uint64_t address);
struct vmml_chunk *vmml_extents_chunk(const struct vmml_extents *extents,
                                      uint64_t address);

/*
 * Join the extent that ends at `border` with the one that begins there, where
 * their traits are equal; close both ends there where they are not.
 * Returns false when one of the two is not known.
 */
bool vmml_extents_join(struct vmml_extents *extents, uint64_t border);

#endif
