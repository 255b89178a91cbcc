/* SPDX-License-Identifier: MIT */
/*
 * The metadata block's layout: what is written is read, and nothing else is
 * believed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/block.h"

#define GRANULE (2ul << 20)
#define BASE    0x7f0000000000ul
#define SIZE    (64 * GRANULE)
#define COUNT   8

static const uint8_t nonce[VMML_NONCE_SIZE] = "sixteen bytes ok";

static const struct vmml_block_expected expected = {
    .nonce = nonce, .base = BASE, .size = SIZE, .order = 0};

struct block {
    struct vmml_block_front front;
    struct vmml_block_entry entries[COUNT];
};

static void sum_up(struct block *block)
{
    uint32_t i;

    block->front.head.sum = 0;
    for (i = 0; i < block->front.head.count && i < COUNT; i++)
        block->front.head.sum += block->entries[i].check;
    vmml_block_seal_front(&block->front);
}

static void seal(struct block *block)
{
    uint32_t i;

    for (i = 0; i < COUNT; i++)
        vmml_block_seal_entry(&block->entries[i], i);
    sum_up(block);
}

/* Chunks of one granule, from the last to the first; entry 3 names none. */
static struct block make(void)
{
    struct block block;
    uint32_t i;

    memset(&block, 0, sizeof(block));
    block.front.head.magic = VMML_BLOCK_MAGIC;
    block.front.head.version = VMML_BLOCK_VERSION;
    block.front.head.generation = 7;
    block.front.head.count = COUNT;
    block.front.head.capacity = vmml_block_capacity(0);
    memcpy(block.front.head.nonce, nonce, sizeof(nonce));
    block.front.window.base = BASE;
    block.front.window.size = SIZE;
    for (i = 0; i < COUNT; i++) {
        if (i == 3)
            continue;
        block.entries[i].offset = (COUNT - i) * GRANULE;
        block.entries[i].size = GRANULE;
        block.entries[i].serial = 100 + i;
        memset(block.entries[i].handle, (int)i, VMML_BLOCK_HANDLE_SIZE);
    }
    seal(&block);
    return block;
}

/* As an importer reads it: the number of chunks, or -errno. */
static int read_it(const struct block *block, struct vmml_block_entry *entries)
{
    int status = vmml_block_check_front(&block->front, &expected);

    if (status != 0)
        return status;
    if (block->front.head.flags != 0 || block->front.head.count > COUNT)
        return -EPROTO;
    memcpy(entries, block->entries, sizeof(block->entries));
    return vmml_block_check_entries(&block->front.head, &expected, GRANULE,
                                    entries);
}

static void test_what_is_written_is_read(void **state)
{
    struct vmml_block_entry entries[COUNT] = {{.size = 0}};
    struct block block = make();
    int i;

    assert_int_equal(read_it(&block, entries), COUNT - 1);
    for (i = 0; i < COUNT - 1; i++) {
        assert_true(entries[i].offset ==
                    (uint64_t)(i + 1 + (i >= 4)) * GRANULE);
        assert_true(entries[i].size == GRANULE);
        assert_int_equal(entries[i].handle[5], COUNT - 1 - i - (i >= 4));
    }
}

/* The sizes go over the wire. */
static void test_capacities(void **state)
{
    assert_int_equal(vmml_block_capacity(0), 21843);
    assert_true(vmml_block_capacity(2) >= 65000);
    assert_int_equal(vmml_block_capacity(VMML_BLOCK_ORDER_MAX), 699048);
}

/* A reader that comes while it is written sees a part of both. */
static void test_every_byte_counts(void **state)
{
    struct vmml_block_entry entries[COUNT];
    const struct block good = make();
    struct block block;
    size_t i;

    for (i = 0; i < sizeof(block); i++) {
        if (i >= offsetof(struct vmml_block_head, reserved) &&
            i < sizeof(struct vmml_block_head))
            continue;
        block = good;
        ((uint8_t *)&block)[i] ^= 0x41;
        assert_true(read_it(&block, entries) < 0);
    }
}

/* Entries of one generation under the head of another. */
static void test_torn(void **state)
{
    struct vmml_block_entry entries[COUNT];
    struct block old = make(), new = make(), torn;

    new.entries[2].serial = 500;
    new.front.head.generation++;
    seal(&new);
    assert_int_equal(read_it(&new, entries), COUNT - 1);
    torn = old;
    torn.front = new.front;
    assert_int_equal(read_it(&torn, entries), -EAGAIN);
    torn = new;
    torn.front = old.front;
    assert_int_equal(read_it(&torn, entries), -EAGAIN);
    /* Two entries have changed places. */
    torn = old;
    torn.entries[1] = old.entries[2];
    torn.entries[2] = old.entries[1];
    assert_int_equal(read_it(&torn, entries), -EAGAIN);
}

static void refused(struct block *block, int status)
{
    struct vmml_block_entry entries[COUNT];

    seal(block);
    assert_int_equal(read_it(block, entries), status);
}

static void test_another_block(void **state)
{
    struct block block = make();

    block.front.head.nonce[3]++;
    refused(&block, -ESTALE);
    block = make();
    block.front.window.base += GRANULE;
    refused(&block, -ESTALE);
    block = make();
    block.front.window.size -= GRANULE;
    refused(&block, -ESTALE);
    block = make();
    block.front.head.version++;
    refused(&block, -EPROTONOSUPPORT);
    block = make();
    block.front.head.magic++;
    refused(&block, -EPROTO);
}

static void test_hostile_head(void **state)
{
    struct block block = make();

    block.front.head.capacity++;
    refused(&block, -EPROTO);
    block = make();
    block.front.head.count = block.front.head.capacity + 1;
    refused(&block, -EPROTO);
    block = make();
    block.front.head.flags = 4;
    refused(&block, -EPROTO);
    /* A successor that is no larger could lead round in a circle. */
    block = make();
    block.front.head.flags = VMML_BLOCK_FORWARD;
    refused(&block, -EPROTO);
    block.front.window.successor_order = VMML_BLOCK_ORDER_MAX + 1;
    refused(&block, -EPROTO);
    block.front.window.successor_order = 1;
    vmml_block_seal_front(&block.front);
    assert_int_equal(vmml_block_check_front(&block.front, &expected), 0);
}

static void with_entry(uint64_t offset, uint64_t size, uint64_t serial)
{
    struct block block = make();

    block.entries[0].offset = offset;
    block.entries[0].size = size;
    block.entries[0].serial = serial;
    refused(&block, -EPROTO);
}

static void test_hostile_entries(void **state)
{
    with_entry(SIZE, GRANULE, 1);
    with_entry(SIZE - GRANULE, 2 * GRANULE, 1);
    with_entry(UINT64_MAX - GRANULE + 1, GRANULE, 1);
    with_entry(0, UINT64_MAX - GRANULE + 1, 1);
    with_entry(1, GRANULE, 1);
    with_entry(0, GRANULE - 1, 1);
    with_entry(0, GRANULE, 0);
    with_entry(0, 2 * GRANULE, 1);       /* over the next one */
    with_entry(4 * GRANULE, GRANULE, 1); /* where another is */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_capacities),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_torn),
        cmocka_unit_test(test_another_block),
        cmocka_unit_test(test_hostile_head),
        cmocka_unit_test(test_hostile_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
