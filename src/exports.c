/* SPDX-License-Identifier: MIT */
/*
 * The exported functions, one line each, made from hooks.def. Nothing else has
 * default visibility, but for dlsym and the assembly stubs in doors/.
 */
#include "hooks.h"

#define VMML_EXPORT __attribute__((visibility("default")))

#define VMML_ARGS_(...)   (__builtin_return_address(0), __VA_ARGS__)
#define VMML_ARGS(args)   VMML_ARGS_ args

#define VMML_CU(name, params, args)                                            \
    VMML_EXPORT CUresult name params                                           \
    {                                                                          \
        return vmml_##name VMML_ARGS(args);                                    \
    }
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)                            \
    VMML_EXPORT type name params;                                              \
    VMML_EXPORT type name params                                               \
    {                                                                          \
        return vmml_##name VMML_ARGS(args);                                    \
    }
#define VMML_UCT_STUB(name)
#include "hooks.def"
