/* SPDX-License-Identifier: MIT */
/*
 * From an address to the mirror that holds it. Read without a lock before
 * every copy of UCX; written when a mirror is made or given back.
 */
#ifndef VMML_MIRROR_INDEX_H
#define VMML_MIRROR_INDEX_H

#include <stdbool.h>
#include <stdint.h>

struct vmml_mirror;

/* The mirror that holds `address`, or NULL. Wait-free but for the moment in
 * which an entry is added or removed. */
struct vmml_mirror *vmml_index_find(uint64_t address);

/* Add [from, to). One caller at a time. False when memory is short. */
bool vmml_index_add(uint64_t from, uint64_t to, struct vmml_mirror *mirror);

/* Take out the entry that begins at `from`, if there is one. One caller at a
 * time, not beside vmml_index_add(). */
void vmml_index_remove(uint64_t from);

#endif
