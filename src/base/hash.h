/* SPDX-License-Identifier: MIT */
/*
 * Hashes of a few bytes. None of them resists an attacker: what they are
 * computed over is checked by other means.
 */
#ifndef VMML_BASE_HASH_H
#define VMML_BASE_HASH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a, 64 bits: offset basis and prime of
 * draft-eastlake-fnv (http://www.isthe.com/chongo/tech/comp/fnv/). */
#define VMML_FNV_START 0xcbf29ce484222325ull

static inline uint64_t vmml_fnv1a64(uint64_t hash, const void *bytes,
                                    size_t length)
{
    const uint8_t *at = bytes;

    while (length-- > 0)
        hash = (hash ^ *at++) * 0x100000001b3ull;
    return hash;
}

/* The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable
 * Pseudorandom Number Generators, 2014; variant 13 of David Stafford). */
static inline uint64_t vmml_mix64(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

/* Of a window: the nonce of its exporter (16 bytes), base and size. */
static inline uint64_t vmml_hash_window(const uint8_t *nonce, uint64_t base,
                                        uint64_t size)
{
    uint64_t words[4] = {0, 0, base, size};
    uint64_t hash = 0;
    unsigned i;

    memcpy(words, nonce, 16);
    for (i = 0; i < 4; i++)
        hash = vmml_mix64((hash ^ words[i]) + 0x9e3779b97f4a7c15ull);
    return hash;
}

/* CRC-32C (Castagnoli), as in RFC 3720, 4 bits at a time. */
static inline uint32_t vmml_crc32c_by_table(uint32_t crc, const uint8_t *at,
                                            size_t length)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };

    while (length-- > 0) {
        crc ^= *at++;
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Asked once: a virtual machine may take microseconds to answer. */
static inline bool vmml_has_crc32c(void)
{
    enum { UNKNOWN, NO, YES };
    static _Atomic int known;
    unsigned a, b, c, d;
    int now = atomic_load_explicit(&known, memory_order_relaxed);

    if (now == UNKNOWN) {
        now = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) ? YES : NO;
        atomic_store_explicit(&known, now, memory_order_relaxed);
    }
    return now == YES;
}

__attribute__((target("sse4.2"))) static inline uint32_t
vmml_crc32c_by_instruction(uint32_t crc, const uint8_t *at, size_t length)
{
    uint64_t word;

    for (; length >= sizeof(word); at += sizeof(word), length -= sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        crc = (uint32_t)__builtin_ia32_crc32di(crc, word);
    }
    while (length-- > 0)
        crc = __builtin_ia32_crc32qi(crc, *at++);
    return crc;
}
#endif

/* A handle has 60 bytes of it in each pack and unpack: the table takes 0.2 us
 * for them, the instruction 0.01 (measured). */
static inline uint32_t vmml_crc32c(const void *bytes, size_t length)
{
#if defined(__x86_64__)
    if (vmml_has_crc32c())
        return ~vmml_crc32c_by_instruction(UINT32_MAX, bytes, length);
#endif
    return ~vmml_crc32c_by_table(UINT32_MAX, bytes, length);
}

#endif
