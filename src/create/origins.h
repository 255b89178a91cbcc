/* SPDX-License-Identifier: MIT */
/*
 * Where handles came from: a set of handle values, each with its origin.
 *
 * Thread-safe. Grows with the number of values, up to a bound: nobody sees
 * when a handle ends, and the driver uses its values again.
 */
#ifndef VMML_CREATE_ORIGINS_H
#define VMML_CREATE_ORIGINS_H

#include "create/create.h"

/*
 * Remember the origin of a handle that was just made; VMML_HANDLE_UNKNOWN
 * forgets the value.
 * Returns 0, or -ENOMEM where the set cannot grow: the value is then unknown.
 */
int vmml_origins_set(CUmemGenericAllocationHandle handle,
                     enum vmml_handle_origin origin);

enum vmml_handle_origin vmml_origins_get(CUmemGenericAllocationHandle handle);

/* Is there room for one more value? Makes it, where that takes memory. */
bool vmml_origins_reserve(void);

/* How many values are in the set as VMML_HANDLE_UPGRADED. */
unsigned vmml_origins_upgraded(void);

/* Forget everything, with the lock made anew. */
void vmml_origins_forget(void);

#endif
