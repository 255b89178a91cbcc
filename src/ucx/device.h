/* SPDX-License-Identifier: MIT */
#ifndef VMML_UCX_DEVICE_H
#define VMML_UCX_DEVICE_H

#include <stdbool.h>

#include "doors/real.h"

/*
 * The device that UCX will open a key on: the one that `sys_device` names (an
 * index into UCS's topology), else that of the current context, else, as UCX
 * does from 1.20.1 on (uct_cuda_ctx_primary_push_avail), the first with an
 * active primary context.
 *
 * has_context: whether a context is known to be current; false says nothing.
 * Returns -1 when there is none: then UCX cannot open the key either.
 */
int vmml_unpack_device(const struct vmml_uct *uct, uint8_t sys_device,
                       bool *has_context);

/* One warning: a key came that UCX cannot open for lack of a context. */
void vmml_warn_no_context(void);

/*
 * Is no context current in this thread? UCX up to 1.20.0 then opens no key,
 * later ones none where no primary context is active. *device: on which to open
 * one of ours, which needs no context; *no_primary: its primary one is not
 * active.
 */
bool vmml_unpack_lacks_context(int found, CUdevice *device, bool *no_primary);

#endif
