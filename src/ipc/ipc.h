/* SPDX-License-Identifier: MIT */
/*
 * VMMLANE_IPC=all: legacy CUDA IPC of VMM memory for any caller, between two
 * processes that both have the shim.
 *
 * The handle is the one of UCX's keys (lane/handle.h) with a flag of its own,
 * so that neither is taken for the other. Bytes 0 to 3, which hold nothing in a
 * key, say where in its window the memory begins, in units of 2 MiB; bytes 60
 * to 63 change with the window, for callers that remember what they opened by
 * the handle's bytes.
 */
#ifndef VMML_IPC_IPC_H
#define VMML_IPC_IPC_H

#include <stdbool.h>

#include "doors/real.h"

/* Is it switched on, and `caller` one that it is for? UCX has its own way. */
bool vmml_ipc_is_for(const void *caller);

/*
 * The driver gave no handle for `ptr`, which must be where a reservation or a
 * chunk begins: those two are what callers take for the base of an allocation,
 * and add their offsets to. Publishes what is mapped in its reservation.
 * Returns false where none can be had: the failure stays the driver's.
 */
bool vmml_ipc_get(const struct vmml_real *real, CUipcMemHandle *handle,
                  CUdeviceptr ptr);

/*
 * Open a handle of vmml_ipc_get() on the current device. What is mapped then
 * stays so until it is closed.
 * Returns false for any other handle, and for one of this process, which the
 * driver does not open either; *result is that of the call otherwise.
 */
bool vmml_ipc_open(const struct vmml_real *real, CUdeviceptr *ptr,
                   const CUipcMemHandle *handle, CUresult *result);

/* False: `ptr` was not opened by vmml_ipc_open(). */
bool vmml_ipc_close(CUdeviceptr ptr);

#endif
