/* SPDX-License-Identifier: MIT */
#ifndef VMML_UCX_DEVICE_H
#define VMML_UCX_DEVICE_H

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

#endif
