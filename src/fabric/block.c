/* SPDX-License-Identifier: MIT */
#include "fabric/block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static uint32_t head_check(const struct vmml_block_head *head)
{
    return vmml_crc32c(head, offsetof(struct vmml_block_head, check));
}

static uint32_t window_check(const struct vmml_block_window *window)
{
    return vmml_crc32c(window, offsetof(struct vmml_block_window, check));
}

static uint32_t entry_check(const struct vmml_block_entry *entry)
{
    struct vmml_block_entry copy = *entry;

    copy.check = 0;
    return vmml_crc32c(&copy, sizeof(copy));
}

void vmml_block_seal_front(struct vmml_block_front *front)
{
    front->head.check = head_check(&front->head);
    front->window.check = window_check(&front->window);
}

void vmml_block_seal_entry(struct vmml_block_entry *entry, uint32_t index)
{
    entry->index = index;
    entry->check = entry_check(entry);
}

int vmml_block_check_head(const struct vmml_block_head *head,
                          const struct vmml_block_expected *expected)
{
    if (head->magic != VMML_BLOCK_MAGIC)
        return -EPROTO;
    if (head->version != VMML_BLOCK_VERSION)
        return -EPROTONOSUPPORT;
    if (head->check != head_check(head))
        return -EAGAIN;
    if (memcmp(head->nonce, expected->nonce, VMML_NONCE_SIZE) != 0)
        return -ESTALE;
    if ((head->flags & ~(uint32_t)(VMML_BLOCK_FORWARD | VMML_BLOCK_CLOSED)) !=
            0 ||
        head->capacity != vmml_block_capacity(expected->order) ||
        head->count > head->capacity)
        return -EPROTO;
    return 0;
}

int vmml_block_check_front(const struct vmml_block_front *front,
                           const struct vmml_block_expected *expected)
{
    int status = vmml_block_check_head(&front->head, expected);

    if (status != 0)
        return status;
    if (front->window.check != window_check(&front->window))
        return -EAGAIN;
    if (front->window.base != expected->base ||
        front->window.size != expected->size)
        return -ESTALE;
    if ((front->head.flags & VMML_BLOCK_FORWARD) != 0 &&
        (front->window.successor_order <= expected->order ||
         front->window.successor_order > VMML_BLOCK_ORDER_MAX))
        return -EPROTO;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    uint64_t left = ((const struct vmml_block_entry *)a)->offset;
    uint64_t right = ((const struct vmml_block_entry *)b)->offset;

    return left < right ? -1 : left > right;
}

static bool is_sound(const struct vmml_block_entry *entry, uint64_t base,
                     uint64_t size, uint64_t granule)
{
    return entry->offset < size && entry->size <= size - entry->offset &&
           (base + entry->offset) % granule == 0 &&
           entry->size % granule == 0 && entry->serial != 0;
}

int vmml_block_check_entries(const struct vmml_block_head *head,
                             const struct vmml_block_expected *expected,
                             uint64_t granule, struct vmml_block_entry *entries)
{
    uint32_t sum = 0;
    uint32_t kept = 0;
    uint32_t i;

    for (i = 0; i < head->count; i++) {
        const struct vmml_block_entry *entry = &entries[i];

        if (entry->check != entry_check(entry) || entry->index != i)
            return -EAGAIN;
        sum += entry->check;
    }
    if (sum != head->sum)
        return -EAGAIN;
    for (i = 0; i < head->count; i++) {
        if (entries[i].size == 0)
            continue;
        if (!is_sound(&entries[i], expected->base, expected->size, granule))
            return -EPROTO;
        entries[kept++] = entries[i];
    }
    qsort(entries, kept, sizeof(*entries), by_offset);
    for (i = 1; i < kept; i++)
        if (entries[i].offset - entries[i - 1].offset < entries[i - 1].size)
            return -EPROTO;
    return (int)kept;
}
