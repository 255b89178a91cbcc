/* SPDX-License-Identifier: MIT */
/*
 * Bytes where a metadata block may lie: a good one with changes, of which some
 * are sealed again, so that the checks behind the sums are reached; and cut off
 * anywhere.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/block.h"

#define GRANULE 4096ul
#define BASE    0x10000000ul
#define SIZE    (32 * GRANULE)
#define COUNT   16
#define CHANGE  4 /* bytes of input for each */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t nonce[VMML_NONCE_SIZE] = "sixteen bytes ok";

struct block {
    struct vmml_block_front front;
    struct vmml_block_entry entries[COUNT];
};

static void fill(struct block *block)
{
    uint32_t i;

    memset(block, 0, sizeof(*block));
    block->front.head.magic = VMML_BLOCK_MAGIC;
    block->front.head.version = VMML_BLOCK_VERSION;
    block->front.head.count = COUNT;
    block->front.head.capacity = vmml_block_capacity(1);
    memcpy(block->front.head.nonce, nonce, sizeof(nonce));
    block->front.window.base = BASE;
    block->front.window.size = SIZE;
    for (i = 0; i < COUNT; i++) {
        block->entries[i].offset = i * GRANULE;
        block->entries[i].size = i % 5 == 4 ? 0 : GRANULE;
        block->entries[i].serial = i + 1;
    }
}

static void seal(struct block *block)
{
    uint32_t i;

    block->front.head.sum = 0;
    for (i = 0; i < COUNT; i++) {
        vmml_block_seal_entry(&block->entries[i], i);
        if (i < block->front.head.count)
            block->front.head.sum += block->entries[i].check;
    }
    vmml_block_seal_front(&block->front);
}

static void check(const struct vmml_block_entry *entries, int count)
{
    int i;

    for (i = 0; i < count; i++) {
        if (entries[i].size == 0 || entries[i].offset >= SIZE ||
            entries[i].size > SIZE - entries[i].offset ||
            (BASE + entries[i].offset) % GRANULE != 0 ||
            entries[i].size % GRANULE != 0)
            abort();
        if (i > 0 &&
            entries[i].offset < entries[i - 1].offset + entries[i - 1].size)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct vmml_block_expected expected = {
        .nonce = nonce, .base = BASE, .size = SIZE, .order = 1};
    struct vmml_block_entry *entries;
    struct block block;
    size_t at;
    int count;

    if (size < 1)
        return 0;
    fill(&block);
    seal(&block);
    for (at = 1; at + CHANGE <= size; at += CHANGE) {
        size_t offset = data[at] | (size_t)data[at + 1] << 8;

        memcpy((uint8_t *)&block + offset % (sizeof(block) - 1), data + at + 2,
               2);
    }
    if (data[0] & 1)
        seal(&block);
    if (vmml_block_check_front(&block.front, &expected) != 0)
        return 0;
    if (block.front.head.count > block.front.head.capacity)
        abort();
    /* Exactly what the head says: a read past it is seen. */
    if (block.front.head.count > COUNT)
        return 0;
    entries = malloc(block.front.head.count * sizeof(*entries) + 1);
    if (entries == NULL)
        return 0;
    memcpy(entries, block.entries, block.front.head.count * sizeof(*entries));
    count = vmml_block_check_entries(&block.front.head, &expected, GRANULE,
                                     entries);
    if (count > (int)block.front.head.count)
        abort();
    check(entries, count);
    free(entries);
    return 0;
}
