/* SPDX-License-Identifier: MIT */
/*
 * Bytes where a handle may lie. Half of the inputs get a right checksum at the
 * place where they have the magic, so that the fields behind it are reached.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "fabric/block.h"
#include "lane/handle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void seal(uint8_t *bytes, size_t size)
{
    size_t at;

    for (at = 0; at <= 12 && at + 56 <= size; at += 4) {
        uint32_t crc = vmml_crc32c(bytes + at, 52);
        unsigned i;

        if (memcmp(bytes + at, "vmml", 4) != 0)
            continue;
        for (i = 0; i < 4; i++)
            bytes[at + 52 + i] = (uint8_t)(crc >> 8 * i);
    }
}

/* What was accepted makes sense, and comes back when it is written again. */
static void check(const struct vmml_handle *handle)
{
    uint8_t bytes[VMML_HANDLE_SIZE];
    struct vmml_handle again;

    if ((handle->flags & ~(VMML_HANDLE_TOMBSTONE | VMML_HANDLE_IPC |
                           VMML_HANDLE_BLOCK | VMML_HANDLE_LAYOUT)) != 0)
        abort();
    if ((handle->flags & VMML_HANDLE_BLOCK) &&
        ((handle->flags & VMML_HANDLE_TOMBSTONE) ||
         handle->reason > VMML_BLOCK_ORDER_MAX))
        abort();
    if ((handle->flags & VMML_HANDLE_TOMBSTONE) == 0 &&
        (handle->size == 0 || handle->base > UINT64_MAX - handle->size ||
         handle->ledger_fd < 0 || handle->pid == 0))
        abort();
    if (vmml_reason_string((enum vmml_reason)handle->reason) == NULL)
        abort();
    vmml_handle_encode(handle, bytes);
    if (vmml_handle_find(bytes, sizeof(bytes), &again) != 4 ||
        again.base != handle->base || again.size != handle->size ||
        again.pid != handle->pid || again.pid_ns != handle->pid_ns ||
        again.ledger_fd != handle->ledger_fd ||
        again.reason != handle->reason || again.flags != handle->flags ||
        again.node != handle->node ||
        memcmp(again.nonce, handle->nonce, VMML_NONCE_SIZE) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vmml_handle handle;
    uint8_t *bytes;
    int at;

    if (size == 0 || size > 4096)
        return 0;
    /* A block of exactly the size: a read past it is seen. */
    bytes = malloc(size - 1 != 0 ? size - 1 : 1);
    if (bytes == NULL)
        return 0;
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 1)
        seal(bytes, size - 1);
    at = vmml_handle_find(bytes, (unsigned)(size - 1), &handle);
    if (at >= 0) {
        if (at > 12 || at % 4 != 0 || (size_t)at + 56 > size - 1)
            abort();
        check(&handle);
    }
    free(bytes);
    return 0;
}
