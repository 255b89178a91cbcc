/* SPDX-License-Identifier: MIT */
/*
 * From an address to the mirror that holds it. Read without a lock before
 * every copy of UCX; written when a mirror is made or given back.
 */
#ifndef VMML_MIRROR_INDEX_H
#define VMML_MIRROR_INDEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct vmml_mirror;

/* No mirror ever lay outside. They only grow, so that they are right at any
 * time for an address that was given out. */
extern struct vmml_index_bounds {
    _Atomic uint64_t lowest;
    _Atomic uint64_t highest;
} vmml_index_bounds;

/* One of a copy's two ends is mostly told by this alone. */
static inline bool vmml_index_may_hold(uint64_t address)
{
    return address >= atomic_load_explicit(&vmml_index_bounds.lowest,
                                           memory_order_relaxed) &&
           address < atomic_load_explicit(&vmml_index_bounds.highest,
                                          memory_order_relaxed);
}

/* The mirror that holds `address`, or NULL. Wait-free but for the moment in
 * which an entry is added or removed. */
struct vmml_mirror *vmml_index_find(uint64_t address);

struct vmml_index_entry {
    uint64_t from;
    uint64_t size; /* bytes; 0: none */
    struct vmml_mirror *mirror;
    unsigned sequence; /* of the index when it was read */
};

/* The same with the whole entry. False, and a size of 0, where there is none.
 */
bool vmml_index_look(uint64_t address, struct vmml_index_entry *entry);

extern atomic_uint vmml_index_sequence;

/* Is the entry still in the index? For certain only after a fence. */
static inline bool vmml_index_has(const struct vmml_index_entry *entry)
{
    return atomic_load(&vmml_index_sequence) == entry->sequence;
}

/* Add [from, to). One caller at a time. False when memory is short. */
bool vmml_index_add(uint64_t from, uint64_t to, struct vmml_mirror *mirror);

/* Take out the entry that begins at `from`, if there is one. One caller at a
 * time, not beside vmml_index_add(). */
void vmml_index_remove(uint64_t from);

#endif
