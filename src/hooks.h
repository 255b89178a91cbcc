/* SPDX-License-Identifier: MIT */
/*
 * Prototypes of the hooks, made from hooks.def.
 *
 * Three names for each function, as in socket_wrapper: `cuMemMap` is the
 * export, `vmml_cuMemMap` the logic in one of the folders beside this file,
 * `real->cuMemMap` the driver's own.
 *
 * `caller` is the return address of the exported function: who asked.
 */
#ifndef VMML_HOOKS_H
#define VMML_HOOKS_H

#include "cuda_abi.h"
#include "ucx/uct_abi.h"

/* ( a, b ) to ( caller, a, b ): the leading parenthesis is dropped. */
#define VMML_WITH_CALLER_(...)   const void *caller, __VA_ARGS__
#define VMML_WITH_CALLER(params) (VMML_WITH_CALLER_ params)

#define VMML_CU(name, params, args)                                            \
    CUresult vmml_##name VMML_WITH_CALLER(params);
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)                            \
    type vmml_##name VMML_WITH_CALLER(params);
#define VMML_UCT_STUB(name)
#include "hooks.def"

#endif
