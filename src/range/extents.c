/* SPDX-License-Identifier: MIT */
#include "range/extents.h"

#include <errno.h>
#include <string.h>

/* Less than this is not worth having. */
#define CAPACITY_MIN 1024

int vmml_extents_init(struct vmml_extents *extents, uint32_t capacity)
{
    int rc = -ENOMEM;

    memset(extents, 0, sizeof(*extents));
    /* Index 0 of a pool stays unused. There are never more extents than
     * chunks, so that a cut always finds room for its second half. */
    for (;; capacity /= 2) {
        rc = vmml_tree_init(&extents->chunks, sizeof(struct vmml_chunk),
                            capacity + 1);
        if (rc == 0) {
            rc = vmml_tree_init(&extents->extents, sizeof(struct vmml_extent),
                                capacity + 1);
            if (rc == 0)
                return 0;
            vmml_tree_fini(&extents->chunks);
        }
        if (capacity / 2 < CAPACITY_MIN)
            return rc;
    }
}

void vmml_extents_fini(struct vmml_extents *extents)
{
    vmml_tree_fini(&extents->chunks);
    vmml_tree_fini(&extents->extents);
}

/* The pool's key is the base, so that a new base means a new item. */
static void add_part(struct vmml_extents *extents,
                     const struct vmml_extent *whole, uint64_t base,
                     uint64_t end, bool low_known, bool high_known)
{
    const struct vmml_chunk *low = vmml_extents_chunk(extents, base);
    const struct vmml_chunk *high = vmml_extents_chunk(extents, end - 1);
    struct vmml_extent *part;

    if (low == NULL || high == NULL)
        return;
    part = vmml_tree_add(&extents->extents, base, end);
    if (part == NULL)
        return;
    part->traits = whole->traits;
    part->low_end = low->node.end;
    part->low_id = low->buffer_id;
    part->high_base = high->node.base;
    part->high_id = high->buffer_id;
    part->patrol = base;
    part->low_known = low_known;
    part->high_known = high_known;
}

/* Takes the chunks of [base, end) out of the extent, whole. */
static void cut(struct vmml_extents *extents, const struct vmml_extent *extent,
                uint64_t base, uint64_t end)
{
    struct vmml_extent whole = *extent;
    struct vmml_chunk *chunk;

    chunk = vmml_tree_floor(&extents->chunks, base);
    if (chunk != NULL && chunk->node.end > base)
        base = chunk->node.base;
    if (base < whole.node.base)
        base = whole.node.base;
    vmml_tree_remove(&extents->extents, whole.node.base);
    for (;;) {
        chunk = vmml_tree_ceiling(&extents->chunks, base);
        if (chunk == NULL || chunk->node.base >= end ||
            chunk->node.base >= whole.node.end)
            break;
        if (chunk->node.end > end)
            end = chunk->node.end;
        vmml_tree_remove(&extents->chunks, chunk->node.base);
    }
    if (base > whole.node.base)
        add_part(extents, &whole, whole.node.base, base, whole.low_known,
                 false);
    if (end < whole.node.end)
        add_part(extents, &whole, end, whole.node.end, false, whole.high_known);
}

static void forget(struct vmml_extents *extents, uint64_t base, uint64_t end)
{
    struct vmml_extent *extent = NULL;
    uint64_t next;

    if (base > 0)
        extent = vmml_tree_floor(&extents->extents, base - 1);
    if (extent == NULL || extent->node.end < base)
        extent = vmml_tree_ceiling(&extents->extents, base);
    while (extent != NULL && extent->node.base <= end) {
        next = extent->node.end;
        if (extent->node.end == base)
            extent->high_known = !extent->traits.joins;
        else if (extent->node.base == end)
            extent->low_known = !extent->traits.joins;
        else
            cut(extents, extent, base, end);
        extent = vmml_tree_ceiling(&extents->extents, next);
    }
}

void vmml_extents_change(struct vmml_extents *extents, uint64_t base,
                         uint64_t end)
{
    size_t slot = extents->change_count++ % VMML_CHANGES;

    extents->changes[slot].base = base;
    extents->changes[slot].end = end;
    forget(extents, base, end);
}

bool vmml_extents_changed(const struct vmml_extents *extents, uint64_t since,
                          uint64_t base, uint64_t end)
{
    uint64_t i;

    if (extents->change_count - since > VMML_CHANGES)
        return true;
    for (i = since; i < extents->change_count; i++) {
        size_t slot = i % VMML_CHANGES;

        if (extents->changes[slot].base < end &&
            base < extents->changes[slot].end)
            return true;
    }
    return false;
}

static bool alike(const struct vmml_traits *a, const struct vmml_traits *b)
{
    return a->joins && b->joins && a->window_base == b->window_base &&
           a->window_end == b->window_end &&
           a->handle_types == b->handle_types && a->access == b->access &&
           a->device == b->device && a->usage == b->usage &&
           a->compression == b->compression && a->rdma == b->rdma;
}

/* Another thread was quicker. */
static bool is_known(const struct vmml_extents *extents, uint64_t base,
                     uint64_t end, uint64_t buffer_id,
                     const struct vmml_traits *traits)
{
    const struct vmml_chunk *chunk = vmml_extents_chunk(extents, base);
    const struct vmml_extent *extent = vmml_extents_find(extents, base);

    return chunk != NULL && extent != NULL && chunk->node.base == base &&
           chunk->node.end == end && chunk->buffer_id == buffer_id &&
           alike(&extent->traits, traits);
}

void vmml_extents_add(struct vmml_extents *extents, uint64_t base, uint64_t end,
                      uint64_t buffer_id, const struct vmml_traits *traits)
{
    struct vmml_extent *extent;
    struct vmml_chunk *chunk;

    if (is_known(extents, base, end, buffer_id, traits))
        return;
    forget(extents, base, end);
    chunk = vmml_tree_add(&extents->chunks, base, end);
    if (chunk == NULL) {
        vmml_tree_clear(&extents->chunks);
        vmml_tree_clear(&extents->extents);
        extents->overflow_count++;
        chunk = vmml_tree_add(&extents->chunks, base, end);
    }
    extent = vmml_tree_add(&extents->extents, base, end);
    if (chunk == NULL || extent == NULL)
        return;
    chunk->buffer_id = buffer_id;
    extent->traits = *traits;
    extent->low_end = end;
    extent->low_id = buffer_id;
    extent->high_base = base;
    extent->high_id = buffer_id;
    extent->patrol = base;
    extent->low_known = !traits->joins || base <= traits->window_base;
    extent->high_known = !traits->joins || end >= traits->window_end;
}

struct vmml_extent *vmml_extents_find(const struct vmml_extents *extents,
                                      uint64_t address)
{
    return vmml_tree_find(&extents->extents, address);
}

struct vmml_chunk *vmml_extents_chunk(const struct vmml_extents *extents,
                                      uint64_t address)
{
    return vmml_tree_find(&extents->chunks, address);
}

bool vmml_extents_join(struct vmml_extents *extents, uint64_t border)
{
    struct vmml_extent *low, *high;

    low = vmml_extents_find(extents, border - 1);
    high = vmml_extents_find(extents, border);
    if (low == NULL || high == NULL || low->node.end != border ||
        high->node.base != border)
        return false;
    if (!alike(&low->traits, &high->traits)) {
        low->high_known = true;
        high->low_known = true;
        return true;
    }
    low->high_known = high->high_known;
    low->high_base = high->high_base;
    low->high_id = high->high_id;
    low->node.end = high->node.end;
    vmml_tree_remove(&extents->extents, border);
    return true;
}
