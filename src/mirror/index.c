/* SPDX-License-Identifier: MIT */
#include "mirror/index.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

struct span {
    _Atomic uint64_t from;
    _Atomic uint64_t to;
    _Atomic(struct vmml_mirror *) mirror;
};

/* A sorted array under a sequence lock. A replaced array is kept: a reader may
 * still be in it, and each is half as large as the next. */
static struct {
    _Atomic(struct span *) spans;
    _Atomic size_t count;
    size_t capacity;
} index_;

atomic_uint vmml_index_sequence; /* odd while it is written */
struct vmml_index_bounds vmml_index_bounds = {.lowest = UINT64_MAX};

static size_t first_above(const struct span *spans, size_t count,
                          uint64_t address)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (atomic_load_explicit(&spans[middle].to, memory_order_relaxed) <=
            address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool look_once(uint64_t address, struct vmml_index_entry *entry)
{
    /* The count first: the array that is read after it is large enough. It
     * may have shrunk since; what lies behind the end is old entries. */
    size_t count = atomic_load_explicit(&index_.count, memory_order_acquire);
    struct span *spans =
        atomic_load_explicit(&index_.spans, memory_order_acquire);
    size_t i = first_above(spans, count, address);

    entry->size = 0;
    if (i == count ||
        atomic_load_explicit(&spans[i].from, memory_order_relaxed) > address)
        return false;
    entry->from = atomic_load_explicit(&spans[i].from, memory_order_relaxed);
    entry->size =
        atomic_load_explicit(&spans[i].to, memory_order_relaxed) - entry->from;
    entry->mirror =
        atomic_load_explicit(&spans[i].mirror, memory_order_relaxed);
    return true;
}

bool vmml_index_look(uint64_t address, struct vmml_index_entry *entry)
{
    unsigned before;
    bool found;

    for (;;) {
        before =
            atomic_load_explicit(&vmml_index_sequence, memory_order_acquire);
        if (before & 1) {
            sched_yield();
            continue;
        }
        found = look_once(address, entry);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&vmml_index_sequence, memory_order_relaxed) ==
            before)
            break;
    }
    entry->sequence = before;
    return found;
}

struct vmml_mirror *vmml_index_find(uint64_t address)
{
    struct vmml_index_entry entry;

    return vmml_index_may_hold(address) && vmml_index_look(address, &entry)
               ? entry.mirror
               : NULL;
}

static void copy_span(struct span *to, const struct span *from)
{
    atomic_store_explicit(
        &to->from, atomic_load_explicit(&from->from, memory_order_relaxed),
        memory_order_relaxed);
    atomic_store_explicit(&to->to,
                          atomic_load_explicit(&from->to, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(
        &to->mirror, atomic_load_explicit(&from->mirror, memory_order_relaxed),
        memory_order_relaxed);
}

static bool grow(size_t count)
{
    size_t capacity = index_.capacity ? 2 * index_.capacity : 64;
    struct span *old = atomic_load(&index_.spans);
    struct span *spans;
    size_t i;

    if (count < index_.capacity)
        return true;
    spans = calloc(capacity, sizeof(*spans));
    if (spans == NULL)
        return false;
    for (i = 0; i < count; i++)
        copy_span(&spans[i], &old[i]);
    atomic_store(&index_.spans, spans);
    index_.capacity = capacity;
    return true;
}

bool vmml_index_add(uint64_t from, uint64_t to, struct vmml_mirror *mirror)
{
    size_t count = atomic_load(&index_.count);
    struct span *spans;
    size_t i, at;

    if (!grow(count))
        return false;
    spans = atomic_load(&index_.spans);
    at = first_above(spans, count, from);
    atomic_fetch_add(&vmml_index_sequence, 1);
    atomic_thread_fence(memory_order_seq_cst);
    for (i = count; i > at; i--)
        copy_span(&spans[i], &spans[i - 1]);
    atomic_store_explicit(&spans[at].from, from, memory_order_relaxed);
    atomic_store_explicit(&spans[at].to, to, memory_order_relaxed);
    atomic_store_explicit(&spans[at].mirror, mirror, memory_order_relaxed);
    if (from < atomic_load(&vmml_index_bounds.lowest))
        atomic_store(&vmml_index_bounds.lowest, from);
    if (to > atomic_load(&vmml_index_bounds.highest))
        atomic_store(&vmml_index_bounds.highest, to);
    atomic_store(&index_.count, count + 1);
    atomic_fetch_add(&vmml_index_sequence, 1);
    return true;
}

void vmml_index_remove(uint64_t from)
{
    size_t count = atomic_load(&index_.count);
    struct span *spans = atomic_load(&index_.spans);
    size_t i = first_above(spans, count, from);

    if (i == count ||
        atomic_load_explicit(&spans[i].from, memory_order_relaxed) != from)
        return;
    atomic_fetch_add(&vmml_index_sequence, 1);
    atomic_thread_fence(memory_order_seq_cst);
    for (; i + 1 < count; i++)
        copy_span(&spans[i], &spans[i + 1]);
    atomic_store(&index_.count, count - 1);
    atomic_fetch_add(&vmml_index_sequence, 1);
}
