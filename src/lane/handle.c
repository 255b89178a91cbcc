/* SPDX-License-Identifier: MIT */
#include "lane/handle.h"

#include <limits.h>
#include <string.h>

#include "base/hash.h"
#include "fabric/block.h"

/* Bytes 4 to 59 of the handle: what survives a shift by 4 either way. All
 * offsets below are from byte 4. */
#define BODY_SIZE  56
#define BODY_SHIFT 4

enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_FLAGS = 5,
    AT_REASON = 6,
    AT_NODE = 7,
    AT_PID = 8,
    AT_PID_NS = 12,
    AT_LEDGER_FD = 16,
    AT_NONCE = 20,
    AT_BASE = 36,
    AT_SIZE = 44,
    AT_CHECKSUM = 52,
};

/* "vmml" */
#define MAGIC 0x6c6d6d76u

static void put32(uint8_t *at, uint32_t value)
{
    unsigned i;

    for (i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)value);
    put32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
           (uint32_t)at[3] << 24;
}

static uint64_t get64(const uint8_t *at)
{
    return get32(at) | (uint64_t)get32(at + 4) << 32;
}

const char *vmml_reason_string(enum vmml_reason reason)
{
    switch (reason) {
    case VMML_REASON_NONE:
        return "no reason";
    case VMML_REASON_HOLE:
        return "part of it is not mapped";
    case VMML_REASON_NOT_SHAREABLE:
        return "it was allocated without a handle type that can be shared";
    case VMML_REASON_IMPORTED:
        return "it is memory of another process";
    case VMML_REASON_NO_DESCRIPTOR:
        return "no file descriptor is left";
    case VMML_REASON_LEDGER:
        return "the ledger is full or could not be made";
    case VMML_REASON_DRIVER:
        return "a driver call failed";
    case VMML_REASON_FABRIC:
        return "it is several chunks of fabric memory";
    case VMML_REASON_WINDOW:
        return "it leaves its reservation";
    case VMML_REASON_DEVICE:
        return "it lies on several devices";
    case VMML_REASON_NO_CHANNEL:
        return "only a fabric handle could share it, and the driver does not "
               "permit one (CUDA_ERROR_NOT_PERMITTED): this node has no IMEX "
               "channel that the process may use";
    case VMML_REASON_MIXED:
        return "some of its chunks have a fabric handle and others have none";
    case VMML_REASON_LOCAL:
        return "it has no fabric handle";
    case VMML_REASON_BLOCK:
        return "the metadata block of its window cannot be had";
    case VMML_REASON_FREED:
        return "it was freed while it was registered";
    }
    return "a reason unknown to this version";
}

void vmml_handle_encode(const struct vmml_handle *handle,
                        uint8_t bytes[VMML_HANDLE_SIZE])
{
    uint8_t *body = bytes + BODY_SHIFT;

    memset(bytes, 0, VMML_HANDLE_SIZE);
    put32(body + AT_MAGIC, MAGIC);
    body[AT_VERSION] = VMML_HANDLE_VERSION;
    body[AT_FLAGS] = handle->flags;
    body[AT_REASON] = handle->reason;
    body[AT_NODE] = handle->node;
    put32(body + AT_PID, handle->pid);
    put32(body + AT_PID_NS, handle->pid_ns);
    put32(body + AT_LEDGER_FD, (uint32_t)handle->ledger_fd);
    memcpy(body + AT_NONCE, handle->nonce, VMML_NONCE_SIZE);
    put64(body + AT_BASE, handle->base);
    put64(body + AT_SIZE, handle->size);
    put32(body + AT_CHECKSUM, vmml_crc32c(body, AT_CHECKSUM));
}

void vmml_handle_set_across(uint8_t bytes[VMML_HANDLE_SIZE], uint8_t flags,
                            uint8_t reason)
{
    uint8_t *body = bytes + BODY_SHIFT;

    body[AT_FLAGS] = (body[AT_FLAGS] & VMML_HANDLE_LAYOUT) | flags;
    body[AT_REASON] = reason;
    put32(body + AT_CHECKSUM, vmml_crc32c(body, AT_CHECKSUM));
}

static void add_flags(uint8_t bytes[VMML_HANDLE_SIZE], uint8_t flags)
{
    uint8_t *body = bytes + BODY_SHIFT;

    body[AT_FLAGS] |= flags;
    put32(body + AT_CHECKSUM, vmml_crc32c(body, AT_CHECKSUM));
}

void vmml_handle_set_ipc(uint8_t bytes[VMML_HANDLE_SIZE])
{
    add_flags(bytes, VMML_HANDLE_IPC);
}

void vmml_handle_set_layout(uint8_t bytes[VMML_HANDLE_SIZE], uint8_t layout)
{
    if (layout != 0)
        add_flags(bytes, layout);
}

/* No CPU and no GPU has more address bits (x86-64 with five levels of tables):
 * sums of base, size and a guard do not overflow below it. */
#define ADDRESS_MAX (1ull << 57)

/* A handle that is to be served names a process, a descriptor and a range. A
 * tombstone may have none of them. */
static bool makes_sense(const struct vmml_handle *handle)
{
    if (handle->flags & VMML_HANDLE_TOMBSTONE)
        return (handle->flags & VMML_HANDLE_BLOCK) == 0;
    if ((handle->flags & VMML_HANDLE_BLOCK) &&
        handle->reason > VMML_BLOCK_ORDER_MAX)
        return false;
    return handle->pid != 0 && handle->pid <= INT_MAX &&
           handle->ledger_fd >= 0 && handle->size != 0 &&
           handle->size <= ADDRESS_MAX &&
           handle->base <= ADDRESS_MAX - handle->size;
}

static bool decode(const uint8_t *body, struct vmml_handle *handle)
{
    struct vmml_handle read;

    if (get32(body + AT_MAGIC) != MAGIC ||
        body[AT_VERSION] != VMML_HANDLE_VERSION ||
        (body[AT_FLAGS] & ~(VMML_HANDLE_TOMBSTONE | VMML_HANDLE_IPC |
                            VMML_HANDLE_BLOCK | VMML_HANDLE_LAYOUT)) != 0 ||
        get32(body + AT_CHECKSUM) != vmml_crc32c(body, AT_CHECKSUM))
        return false;
    read.flags = body[AT_FLAGS];
    read.reason = body[AT_REASON];
    read.node = body[AT_NODE];
    read.pid = get32(body + AT_PID);
    read.pid_ns = get32(body + AT_PID_NS);
    read.ledger_fd = (int32_t)get32(body + AT_LEDGER_FD);
    memcpy(read.nonce, body + AT_NONCE, VMML_NONCE_SIZE);
    read.base = get64(body + AT_BASE);
    read.size = get64(body + AT_SIZE);
    if (!makes_sense(&read))
        return false;
    *handle = read;
    return true;
}

int vmml_handle_find(const uint8_t *bytes, unsigned available,
                     struct vmml_handle *handle)
{
    int at;

    for (at = 0; at <= 12; at += 4) {
        if ((unsigned)at + BODY_SIZE > available)
            break;
        if (decode(bytes + at, handle))
            return at;
    }
    return -1;
}

bool vmml_handle_is_foreign(const uint8_t *bytes, unsigned available)
{
    unsigned at;

    for (at = 0; at <= 12 && at + BODY_SIZE <= available; at += 4) {
        if (get32(bytes + at + AT_MAGIC) == MAGIC &&
            bytes[at + AT_VERSION] != VMML_HANDLE_VERSION)
            return true;
    }
    return false;
}

uint64_t vmml_identity(const uint8_t nonce[VMML_NONCE_SIZE], uint64_t base,
                       uint64_t size)
{
    return vmml_hash_window(nonce, base, size) | 1ull << 63;
}

void vmml_identity_uuid(const uint8_t nonce[VMML_NONCE_SIZE],
                        const uint8_t gpu[16], uint8_t uuid[16])
{
    uint64_t hash;

    hash = vmml_fnv1a64(VMML_FNV_START, nonce, VMML_NONCE_SIZE);
    hash = vmml_fnv1a64(hash, gpu, 16);
    /* Two steps of SplitMix64's sequence from this start. */
    put64(uuid, vmml_mix64(hash + 0x9e3779b97f4a7c15ull));
    put64(uuid + 8, vmml_mix64(hash + 2 * 0x9e3779b97f4a7c15ull));
}
