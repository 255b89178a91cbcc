/* SPDX-License-Identifier: MIT */
/*
 * Exporters on other nodes. Their blocks are read into a ledger of this
 * process's own, so that a mirror of such a window is like any other.
 */
#ifndef VMML_FABRIC_IMPORT_H
#define VMML_FABRIC_IMPORT_H

#include <stdbool.h>

#include "fabric/block.h"
#include "lane/handle.h"

/*
 * A key with this handle, which names a block, is unpacked for `device`: read
 * the block if it has changed. When nothing changed: one copy of 64 bytes.
 *
 * fabric: the block's handle, as it stands in the key.
 * Returns false when the block cannot be read now; the cause is logged once.
 */
bool vmml_remote_prepare(const struct vmml_handle *handle,
                         const uint8_t fabric[VMML_BLOCK_HANDLE_SIZE],
                         int device);

/* In a child of fork. */
void vmml_remote_fork_child(void);

#endif
