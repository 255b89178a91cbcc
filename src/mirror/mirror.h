/* SPDX-License-Identifier: MIT */
/*
 * The importer: mirrors of other processes' windows.
 *
 * A mirror is an own reservation as large as the window, in which the
 * published chunks are mapped at their offsets. It follows the window: new
 * chunks are mapped, revoked ones unmapped, its address stays.
 */
#ifndef VMML_MIRROR_MIRROR_H
#define VMML_MIRROR_MIRROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "lane/handle.h"

/*
 * A key with this handle is about to be unpacked for `device` (-1: none was
 * found, then only what can be told without one is checked).
 *
 * Attaches to the exporter, makes the mirror and brings it up to date. When
 * nothing changed: a look-up and two loads.
 * Returns false when the key cannot be served now.
 */
bool vmml_mirror_prepare(const struct vmml_handle *handle, int device);

/* The same for a key that came over the wire: `fabric` names the window's block
 * where the handle says that there is one, else NULL. An exporter on another
 * node is reached by that alone. */
bool vmml_mirror_prepare_key(const struct vmml_handle *handle,
                             const uint8_t *fabric, int device);

/*
 * cuIpcOpenMemHandle on one of our handles, on the current device: the
 * mirror's address, or the window itself for a handle of this process. Does
 * not map: that is done in prepare and before a copy. Never fails for a key
 * that prepare let through, but for lack of address space.
 */
CUresult vmml_mirror_open(const struct vmml_handle *handle, CUdeviceptr *ptr);

/* The same; where no context is current, on `device` (-1: as above). */
CUresult vmml_mirror_open_on(const struct vmml_handle *handle, int device,
                             CUdeviceptr *ptr);

/* cuIpcCloseMemHandle: true when `ptr` was opened by vmml_mirror_open().
 * Mirrors are kept and used again. */
bool vmml_mirror_close(CUdeviceptr ptr);

/* One posted copy, as the driver's function takes it. Posting changes an
 * address on a mirror to that of the memory, where it lies elsewhere. */
struct vmml_copy {
    CUdeviceptr dst;
    CUdeviceptr src;
    size_t length;
};

/*
 * Post copies of libuct_cuda: `post` calls the real function. Ranges on
 * mirrors are checked first (bounds, the exporter's life, revocations) and
 * mirrors brought up to date where they must be.
 *
 * no_holes: `post` must not see a range that is not mapped everywhere. A copy
 * from device to device is refused by the driver then; one of a kind that may
 * also be of host memory takes the hole for that, and the process dies
 * (measured: cuMemcpyAsync; cuMemcpyBatchAsync is such a one).
 *
 * Returns the driver's result, or CUDA_ERROR_INVALID_VALUE, as the driver
 * gives for a hole, when a range cannot be served any more.
 */
CUresult vmml_mirror_post(struct vmml_copy *copies, size_t count, bool no_holes,
                          CUstream stream, CUresult (*post)(void *arg),
                          void *arg);

/* Copies from here on may be posted in pieces: see below. */
#define VMML_CUT_LENGTH ((size_t)48 << 20)

/*
 * The same for one copy that is shorter than VMML_CUT_LENGTH, by
 * cuMemcpyDtoDAsync, where nothing has to be found out first: with one end on a
 * mirror that is up to date, or none. *result: as above. False: nothing was
 * posted, and vmml_mirror_post() is to be called.
 */
struct vmml_real;
bool vmml_mirror_post_short(const struct vmml_real *real,
                            const struct vmml_copy *copy, CUstream stream,
                            CUresult *result);

/*
 * How to post a copy. The driver looks at each chunk of both ranges before the
 * GPU begins. So a copy over many chunks is posted in pieces, each `growth`
 * times the one before: the GPU works on one while the driver looks at the
 * next. Anywhere else `first` is the whole length.
 */
struct vmml_pieces {
    size_t first;
    size_t growth;
};
struct vmml_pieces vmml_mirror_pieces(const struct vmml_real *real,
                                      const struct vmml_copy *copy);

/*
 * uct_rkey_ptr gave out `*ptr`: its mirror is brought up to date and keeps what
 * it maps until `rkey` is released. False when it cannot be served. True for
 * addresses that are on no mirror.
 */
bool vmml_mirror_hand_out(CUdeviceptr ptr, uintptr_t rkey);
void vmml_mirror_take_back(uintptr_t rkey);

/* One hand-out under `rkey` ends; *base: the mirror's address. False where
 * there is none on a mirror. */
bool vmml_mirror_take_back_one(uintptr_t rkey, CUdeviceptr *base);

/* Where the memory of an address on a mirror lies, as long as it is handed
 * out; elsewhere for a pool's. Any other address is its own. */
CUdeviceptr vmml_mirror_memory_at(CUdeviceptr ptr);

/* Device-side elements are packed: every mirror is brought up to date and
 * keeps what it maps until the process ends. */
void vmml_mirror_pin_all(void);

/* Bring every mirror up to date that is not; the watcher's work. Returns
 * whether any mirror maps anything. */
bool vmml_mirror_refresh(void);

/* For base/fork.c. */
void vmml_mirror_fork_lock(void);
void vmml_mirror_fork_unlock(void);
void vmml_mirror_fork_child(void);

#endif
