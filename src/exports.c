/* SPDX-License-Identifier: MIT */
/*
 * The exported functions, one line each, made from hooks.def. Nothing else has
 * default visibility, but for dlsym and the assembly stubs in doors/.
 */
#include <stdatomic.h>

#include "doors/doors.h"
#include "doors/real.h"
#include "hooks.h"
#include "stats/count.h"

#define VMML_EXPORT __attribute__((visibility("default")))

#define VMML_CALLER     __builtin_return_address(0)
#define VMML_ARGS_(...) (VMML_CALLER, __VA_ARGS__)
#define VMML_ARGS(args) VMML_ARGS_ args

/* Without a libcuda in the process the name may be another library's, of the
 * kind that loads libcuda at its first call: the shim took its place.
 *
 * A new allocation is when modules that came meanwhile are looked at, also
 * when none of them ever calls the shim. */
#define VMML_CU(name, params, args)                                            \
    VMML_EXPORT CUresult name params                                           \
    {                                                                          \
        if (__builtin_expect(vmml_real() == NULL, 0)) {                        \
            __typeof__(name) *next =                                           \
                (__typeof__(name) *)vmml_door_next(VMML_CALLER, #name);        \
                                                                               \
            if (next != NULL)                                                  \
                return next args;                                              \
        }                                                                      \
        vmml_count_hook(VMML_HOOK_##name);                                     \
        vmml_rebind_watch(VMML_CALLER);                                        \
        if (__builtin_strcmp(#name, "cuMemCreate") == 0)                       \
            vmml_rebind_scan_new();                                            \
        return vmml_##name VMML_ARGS(args);                                    \
    }
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)                            \
    VMML_EXPORT type name params;                                              \
    VMML_EXPORT type name params                                               \
    {                                                                          \
        vmml_count_hook(VMML_HOOK_##name);                                     \
        vmml_rebind_watch(VMML_CALLER);                                        \
        return vmml_##name VMML_ARGS(args);                                    \
    }
#define VMML_UCT_STUB(name)
#include "hooks.def"
