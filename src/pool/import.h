/* SPDX-License-Identifier: MIT */
/*
 * Memory of another process's stream-ordered pools, in this one.
 *
 * A pool is imported with its first allocation and destroyed with its last,
 * and each device is given access once. An allocation that is imported twice
 * has one address, and one cuMemFree ends both (measured): imports are counted.
 */
#ifndef VMML_POOL_IMPORT_H
#define VMML_POOL_IMPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "doors/real.h"
#include "ledger/reader.h"
#include "mirror/peer.h"

/* An allocation that is imported for one mirror. */
struct vmml_pool_import {
    CUdeviceptr address; /* 0: nothing is imported */
    size_t size;         /* bytes */
    CUdevice device;
    unsigned long long buffer_id;
};

/*
 * Import the allocation behind `chunk`, of kind VMML_CHUNK_POOLED, for copies
 * of `device`, whose primary context must be active. Makes driver calls; no
 * lock is held by the caller. The cause of a failure is logged once.
 *
 * *dead: the chunk was revoked meanwhile; then, and on any other failure,
 * nothing is imported and false is returned.
 */
bool vmml_pool_import(const struct vmml_real *real, struct vmml_peer *peer,
                      const struct vmml_window_view *window,
                      const struct vmml_chunk_view *chunk, CUdevice device,
                      struct vmml_pool_import *import, bool *dead);

/* End it. The copies on it must be done. False: the driver did not; it is
 * still there. */
bool vmml_pool_unimport(const struct vmml_real *real,
                        struct vmml_pool_import *import);

/* Is the import still what it was? Two imports of one allocation, one of them
 * the application's own, may end together. */
bool vmml_pool_is_there(const struct vmml_real *real,
                        const struct vmml_pool_import *import);

void vmml_pool_import_fork_child(void);

#endif
