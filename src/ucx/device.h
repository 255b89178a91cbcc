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
 * Returns -1 when there is none: then UCX cannot open the key either.
 */
int vmml_unpack_device(const struct vmml_uct *uct, uint8_t sys_device);

/*
 * The same for a key of ours, which needs no context: the only device, where
 * there is one, without a question for a context; and the first where there is
 * none. Returns -1 where the driver has none, or does not say.
 */
int vmml_unpack_device_of_ours(const struct vmml_uct *uct, uint8_t sys_device);

/* One warning: a key came that UCX cannot open for lack of a context. */
void vmml_warn_no_context(void);

/*
 * Does this thread unpack a key of ours without a current context? UCX up to
 * 1.20.0 opens no key then, later ones none where no primary context is active.
 * *device: on which to open it.
 */
bool vmml_unpack_is_bare(CUdevice *device);

#endif
