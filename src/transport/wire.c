/* SPDX-License-Identifier: MIT */
#include "transport/wire.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Kernel default of kernel.overflowuid (proc(5)). */
#define OVERFLOW_UID 65534u

/* ---- SipHash-2-4, 64-bit (Aumasson, Bernstein: "SipHash: a fast short-input
 * PRF") of one 8-byte block ---- */

struct sip {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t value, unsigned bits)
{
    return value << bits | value >> (64 - bits);
}

static void sip_rounds(struct sip *s, int rounds)
{
    while (rounds-- > 0) {
        s->v0 += s->v1;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v2 = rotate(s->v2, 32);
    }
}

static void sip_block(struct sip *s, uint64_t block)
{
    s->v3 ^= block;
    sip_rounds(s, 2);
    s->v0 ^= block;
}

static uint64_t sip_of(const uint8_t key[16], uint64_t block)
{
    struct sip s;
    uint64_t k0, k1;

    memcpy(&k0, key, sizeof(k0));
    memcpy(&k1, key + 8, sizeof(k1));
    s.v0 = k0 ^ 0x736f6d6570736575ull;
    s.v1 = k1 ^ 0x646f72616e646f6dull;
    s.v2 = k0 ^ 0x6c7967656e657261ull;
    s.v3 = k1 ^ 0x7465646279746573ull;
    sip_block(&s, block);
    /* The last block holds the length, 8 bytes, in its top byte. */
    sip_block(&s, 8ull << 56);
    s.v2 ^= 0xff;
    sip_rounds(&s, 4);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

socklen_t vmml_wire_address(const uint8_t nonce[VMML_NONCE_SIZE],
                            struct sockaddr_un *address)
{
    int length;

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    /* A first byte of zero makes the address abstract. */
    length =
        snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
                 "vmmlane-%016llx%016llx", (unsigned long long)sip_of(nonce, 1),
                 (unsigned long long)sip_of(nonce, 2));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)length);
}

int vmml_wire_is_same_user(int fd)
{
    struct ucred credentials;
    socklen_t length = sizeof(credentials);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
        return 0;
    return credentials.uid == geteuid() && credentials.uid != OVERFLOW_UID;
}
