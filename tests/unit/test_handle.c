/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "lane/handle.h"

static const struct vmml_handle sample = {
    .pid = 4711,
    .pid_ns = 0xeffffffc,
    .ledger_fd = 1027,
    .nonce = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
    .base = 0x7f1234000000,
    .size = 0x2000000000,
};

static void assert_same(const struct vmml_handle *a,
                        const struct vmml_handle *b)
{
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->reason, b->reason);
    assert_int_equal(a->node, b->node);
    assert_int_equal(a->pid, b->pid);
    assert_int_equal(a->pid_ns, b->pid_ns);
    assert_int_equal(a->ledger_fd, b->ledger_fd);
    assert_memory_equal(a->nonce, b->nonce, VMML_NONCE_SIZE);
    assert_true(a->base == b->base);
    assert_true(a->size == b->size);
}

/* The bytes go over the wire: a change of them needs a new version. */
static void test_wire_bytes(void **state)
{
    static const uint8_t expected[VMML_HANDLE_SIZE - 8] = {
        'v',  'm',  'm',  'l',  2,    0,  0,  0,  0x67, 0x12, 0, 0, 0xfc,
        0xff, 0xff, 0xef, 0x03, 0x04, 0,  0,  1,  2,    3,    4, 5, 6,
        7,    8,    9,    10,   11,   12, 13, 14, 15,   16,   0, 0, 0,
        0x34, 0x12, 0x7f, 0,    0,    0,  0,  0,  0,    0x20, 0, 0, 0,
    };
    static const uint8_t zero[4];
    uint8_t bytes[VMML_HANDLE_SIZE];

    vmml_handle_encode(&sample, bytes);
    assert_memory_equal(bytes, zero, 4);
    assert_memory_equal(bytes + 4, expected, 52);
    assert_memory_equal(bytes + 60, zero, 4);
}

/* Check value of the CRC catalogue for "123456789". */
static void test_crc32c(void **state)
{
    assert_int_equal(vmml_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(vmml_crc32c("", 0), 0);
}

/* By whichever way the processor has, of any length and alignment. */
static void crc32c_is_the_same_both_ways(void **state)
{
    uint8_t bytes[100];
    size_t i, length;

    for (i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 151 + 7);
    for (i = 0; i < 8; i++)
        for (length = 0; length <= sizeof(bytes) - i; length++)
            assert_int_equal(
                vmml_crc32c(bytes + i, length),
                (uint32_t)~vmml_crc32c_by_table(UINT32_MAX, bytes + i, length));
}

/* In a key: the handle at 0, 4 or 8, other bytes around it. */
static void test_find_in_key(void **state)
{
    unsigned start;

    for (start = 0; start <= 8; start += 4) {
        uint8_t key[112];
        struct vmml_handle found;

        memset(key, 0xa5, sizeof(key));
        vmml_handle_encode(&sample, key + start);
        memset(&found, 0xff, sizeof(found));
        assert_int_equal(vmml_handle_find(key, sizeof(key), &found), start + 4);
        assert_same(&found, &sample);
    }
}

/* In cuIpcOpenMemHandle's argument: shifted by -4, 0 and 4, one end cut off
 * and filled with another field of the key. */
static void test_find_in_argument(void **state)
{
    int shift;

    for (shift = -4; shift <= 4; shift += 4) {
        uint8_t wire[VMML_HANDLE_SIZE + 16];
        uint8_t *argument;
        struct vmml_handle found;

        memset(wire, 0x5a, sizeof(wire));
        vmml_handle_encode(&sample, wire + 8);
        /* malloc: AddressSanitizer sees a read past the 64 bytes. */
        argument = malloc(VMML_HANDLE_SIZE);
        assert_non_null(argument);
        memcpy(argument, wire + 8 - shift, VMML_HANDLE_SIZE);
        memset(&found, 0xff, sizeof(found));
        assert_int_equal(vmml_handle_find(argument, VMML_HANDLE_SIZE, &found),
                         4 + shift);
        assert_same(&found, &sample);
        free(argument);
    }
}

static void test_bounds(void **state)
{
    unsigned available;
    uint8_t wire[VMML_HANDLE_SCAN];

    memset(wire, 0, sizeof(wire));
    vmml_handle_encode(&sample, wire + 8);
    for (available = 0; available <= VMML_HANDLE_SCAN; available++) {
        uint8_t *bytes = malloc(available + 1);
        struct vmml_handle found;
        int at;

        assert_non_null(bytes);
        memcpy(bytes, wire, available);
        at = vmml_handle_find(bytes, available, &found);
        assert_int_equal(at, available >= 12 + 56 ? 12 : -1);
        free(bytes);
    }
}

/* No single changed byte of 4 to 59 goes unnoticed; the others do not count. */
static void test_every_byte_counts(void **state)
{
    unsigned at, bit;

    for (at = 0; at < VMML_HANDLE_SIZE; at++) {
        for (bit = 0; bit < 8; bit++) {
            uint8_t bytes[VMML_HANDLE_SIZE];
            struct vmml_handle found;
            int expected = at >= 4 && at < 60 ? -1 : 4;

            vmml_handle_encode(&sample, bytes);
            bytes[at] ^= (uint8_t)(1u << bit);
            assert_int_equal(vmml_handle_find(bytes, sizeof(bytes), &found),
                             expected);
        }
    }
}

static int find_encoded(const struct vmml_handle *handle)
{
    uint8_t bytes[VMML_HANDLE_SIZE];
    struct vmml_handle found;

    vmml_handle_encode(handle, bytes);
    return vmml_handle_find(bytes, sizeof(bytes), &found);
}

/* A right checksum over fields that make no sense. */
static void test_nonsense(void **state)
{
    struct vmml_handle handle = sample;

    handle.size = 0;
    assert_int_equal(find_encoded(&handle), -1);
    handle.size = UINT64_MAX - sample.base + 1;
    assert_int_equal(find_encoded(&handle), -1);
    /* Beyond 57 address bits; with a guard behind it, it may overflow. */
    handle.size = (1ull << 57) - sample.base + 1;
    assert_int_equal(find_encoded(&handle), -1);
    handle.size--;
    assert_int_equal(find_encoded(&handle), 4);
    handle.base = 0;
    handle.size = UINT64_MAX - (1ul << 20);
    assert_int_equal(find_encoded(&handle), -1);
    handle = sample;
    handle.ledger_fd = -1;
    assert_int_equal(find_encoded(&handle), -1);
    handle = sample;
    handle.pid = 0;
    assert_int_equal(find_encoded(&handle), -1);
    handle.pid = UINT32_MAX;
    assert_int_equal(find_encoded(&handle), -1);
    handle = sample;
    handle.flags = 32;
    assert_int_equal(find_encoded(&handle), -1);
}

/* Bytes that a right checksum covers, but another version wrote. */
static void test_other_version(void **state)
{
    uint8_t bytes[VMML_HANDLE_SIZE];
    struct vmml_handle found;
    uint32_t crc;

    vmml_handle_encode(&sample, bytes);
    assert_false(vmml_handle_is_foreign(bytes, sizeof(bytes)));
    bytes[8] = VMML_HANDLE_VERSION + 1;
    crc = vmml_crc32c(bytes + 4, 52);
    memcpy(bytes + 56, &crc, 4);
    assert_int_equal(vmml_handle_find(bytes, sizeof(bytes), &found), -1);
    assert_true(vmml_handle_is_foreign(bytes, sizeof(bytes)));
    assert_true(vmml_handle_is_foreign(bytes + 4, sizeof(bytes) - 4));
    bytes[4] ^= 1;
    assert_false(vmml_handle_is_foreign(bytes, sizeof(bytes)));
}

static void test_tombstone(void **state)
{
    struct vmml_handle handle = {.flags = VMML_HANDLE_TOMBSTONE,
                                 .reason = VMML_REASON_LEDGER,
                                 .ledger_fd = -1};
    uint8_t bytes[VMML_HANDLE_SIZE];
    struct vmml_handle found;

    vmml_handle_encode(&handle, bytes);
    assert_int_equal(vmml_handle_find(bytes, sizeof(bytes), &found), 4);
    assert_same(&found, &handle);
}

/* How the exporter's UCX lays keys out stays, whatever is said later. */
static void test_layout(void **state)
{
    struct vmml_handle handle = sample;
    uint8_t bytes[VMML_HANDLE_SIZE], same[VMML_HANDLE_SIZE];
    struct vmml_handle found;

    vmml_handle_encode(&handle, bytes);
    memcpy(same, bytes, sizeof(same));
    vmml_handle_set_layout(bytes, 0);
    assert_memory_equal(bytes, same, sizeof(same));
    vmml_handle_set_layout(bytes, VMML_HANDLE_NO_FABRIC);
    vmml_handle_set_across(bytes, VMML_HANDLE_BLOCK, 3);
    assert_int_equal(vmml_handle_find(bytes, sizeof(bytes), &found), 4);
    assert_int_equal(found.flags, VMML_HANDLE_NO_FABRIC | VMML_HANDLE_BLOCK);
    vmml_handle_set_across(bytes, 0, VMML_REASON_BLOCK);
    assert_int_equal(vmml_handle_find(bytes, sizeof(bytes), &found), 4);
    assert_int_equal(found.flags, VMML_HANDLE_NO_FABRIC);
    assert_int_equal(found.reason, VMML_REASON_BLOCK);
}

static void test_reason_strings(void **state)
{
    int reason;

    for (reason = -1; reason < 256; reason++)
        assert_non_null(vmml_reason_string((enum vmml_reason)reason));
    assert_string_not_equal(vmml_reason_string(VMML_REASON_HOLE),
                            vmml_reason_string(VMML_REASON_DEVICE));
}

static int compare64(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

/* Windows that differ in one property, as a job's do: no two identities are
 * equal, and none can be a driver's. */
static void test_identity(void **state)
{
    enum { count = 3 * 20000 };
    uint64_t *all = malloc(count * sizeof(*all));
    uint8_t nonce[VMML_NONCE_SIZE] = {0};
    unsigned i, n = 0;

    assert_non_null(all);
    for (i = 0; i < count / 3; i++) {
        nonce[0] = nonce[1] = 0;
        all[n++] =
            vmml_identity(nonce, 0x7f0000000000 + i * 0x200000ull, 1 << 21);
        all[n++] = vmml_identity(nonce, 0x7e0000000000, (i + 1) * 0x200000ull);
        nonce[0] = (uint8_t)(i + 1);
        nonce[1] = (uint8_t)((i + 1) >> 8);
        all[n++] = vmml_identity(nonce, 0x7f0000000000, 1 << 21);
    }
    qsort(all, n, sizeof(*all), compare64);
    for (i = 0; i < n; i++) {
        assert_true(all[i] >> 63 == 1);
        assert_true(i == 0 || all[i] != all[i - 1]);
    }
    free(all);
    memset(nonce, 7, sizeof(nonce));
    assert_true(vmml_identity(nonce, 1 << 21, 1 << 21) ==
                vmml_identity(nonce, 1 << 21, 1 << 21));
}

static void test_uuid(void **state)
{
    const uint8_t gpu[2][16] = {{1, 2, 3}, {1, 2, 4}};
    const uint8_t nonce[2][VMML_NONCE_SIZE] = {{9}, {0, 9}};
    uint8_t uuid[4][16], again[16];
    unsigned i, j;

    for (i = 0; i < 4; i++)
        vmml_identity_uuid(nonce[i / 2], gpu[i % 2], uuid[i]);
    for (i = 0; i < 4; i++) {
        assert_memory_not_equal(uuid[i], gpu[i % 2], 16);
        /* The halves: UCX shortens a UUID to pick a stream. */
        assert_memory_not_equal(uuid[i], uuid[i] + 8, 8);
        for (j = 0; j < i; j++)
            assert_memory_not_equal(uuid[i], uuid[j], 8);
    }
    vmml_identity_uuid(nonce[1], gpu[1], again);
    assert_memory_equal(again, uuid[3], 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_bytes),
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(crc32c_is_the_same_both_ways),
        cmocka_unit_test(test_find_in_key),
        cmocka_unit_test(test_find_in_argument),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_tombstone),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_reason_strings),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_uuid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
