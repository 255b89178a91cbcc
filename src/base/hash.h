/* SPDX-License-Identifier: MIT */
/*
 * Hashes of a few bytes. None of them resists an attacker: what they are
 * computed over is checked by other means.
 */
#ifndef VMML_BASE_HASH_H
#define VMML_BASE_HASH_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>

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
    const uint64_t range[2] = {htole64(base), htole64(size)};

    return vmml_mix64(vmml_fnv1a64(vmml_fnv1a64(VMML_FNV_START, nonce, 16),
                                   range, sizeof(range)));
}

/* CRC-32C (Castagnoli), as in RFC 3720, 4 bits at a time. */
static inline uint32_t vmml_crc32c(const void *bytes, size_t length)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *at = bytes;
    uint32_t crc = UINT32_MAX;

    while (length-- > 0) {
        crc ^= *at++;
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

#endif
