/* SPDX-License-Identifier: MIT */
/*
 * The exported functions, one line each, made from hooks.def. Nothing else has
 * default visibility, but for dlsym and the assembly stubs in doors/.
 */
#include "doors/doors.h"
#include "doors/real.h"
#include "hooks.h"

#define VMML_EXPORT __attribute__((visibility("default")))

#define VMML_ARGS_(...) (__builtin_return_address(0), __VA_ARGS__)
#define VMML_ARGS(args) VMML_ARGS_ args

/* Without a libcuda in the process the name may be another library's, of the
 * kind that loads libcuda at its first call: the shim took its place. */
#define VMML_CU(name, params, args)                                            \
    VMML_EXPORT CUresult name params                                           \
    {                                                                          \
        if (__builtin_expect(vmml_real() == NULL, 0)) {                        \
            __typeof__(name) *next = (__typeof__(name) *)vmml_door_next(       \
                __builtin_return_address(0), #name);                           \
                                                                               \
            if (next != NULL)                                                  \
                return next args;                                              \
        }                                                                      \
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
