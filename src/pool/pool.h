/* SPDX-License-Identifier: MIT */
/*
 * Memory of stream-ordered pools, in the process that owns it.
 *
 * An allocation of a pool that can export POSIX descriptors is a window of its
 * own in the ledger, with one chunk: the descriptor is the pool's, one for all
 * of its allocations, and beside it lies the pointer's export data. An import
 * goes on reading the old bytes after the exporter's free (measured), so only
 * the ledger says whether one may be used.
 *
 * State of lane/ is used here, and its lock.
 */
#ifndef VMML_POOL_POOL_H
#define VMML_POOL_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "doors/real.h"
#include "lane/exporter.h"

/* There is an allocation in the table: what frees memory looks. */
extern atomic_bool vmml_pool_in_use;

/*
 * The registration that lane/ found to be of no cuMemCreate memory. Taken when
 * it begins in an allocation of a pool that can export descriptors. What is
 * published for it stays so until it is freed, or until many allocations are
 * known and no registration covers it.
 */
void vmml_pool_register(vmml_uct_md_h md, vmml_uct_mem_h memh, uint64_t address,
                        uint64_t length);

/* As vmml_lane_begin_pack(), for a registration of a pool's memory; false for
 * all others. */
bool vmml_pool_begin_pack(vmml_uct_md_h md, vmml_uct_mem_h memh, uint64_t from,
                          uint64_t length, struct vmml_pack *pack);

/* With the lock: device of an own window, or -1; *address: where it lies. */
int vmml_pool_own_window(uint64_t base, uint64_t size, uint64_t *address);

/*
 * The memory at `ptr` is about to be freed, then was or was not. Between the
 * two no new copy may use it. The free takes effect in the order of a stream,
 * but the program has let go of the memory when it calls: UCX itself, told by
 * libucm, forgets it at that moment.
 * Returns the token for the second call, 0 where nothing is known of `ptr`.
 */
uint64_t vmml_pool_begin_free(CUdeviceptr ptr);
void vmml_pool_end_free(const struct vmml_real *real, CUdeviceptr ptr,
                        uint64_t token, CUresult result);

/* The pool is about to be destroyed: what no registration holds is not served
 * any more. */
void vmml_pool_destroyed(CUmemoryPool handle);

/*
 * UCX takes memory whose CONTEXT is NULL for managed memory, and cuda_ipc does
 * not register that. For memory of a pool that can export descriptors, the
 * device's primary context where it is active; NULL otherwise. Makes none.
 */
CUcontext vmml_pool_context(const struct vmml_real *real, CUdeviceptr ptr);

/* VMMLANE_POOLS=default: give the device that `stream` belongs to (NULL: the
 * current one) an exportable current pool, once. */
void vmml_pool_provide(const struct vmml_real *real, CUstream stream);
void vmml_pool_provide_for(const struct vmml_real *real, CUdevice device);

/* The pool that was given to the device whose default pool this is, or NULL. */
CUmemoryPool vmml_pool_twin(CUmemoryPool usual);
/* This pool is about to be destroyed. */
void vmml_pool_forget_twin(CUmemoryPool pool);

/* In a child of fork: close what was inherited. */
void vmml_pool_fork_child(void);

#endif
