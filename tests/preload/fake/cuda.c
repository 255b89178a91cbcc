/* SPDX-License-Identifier: MIT */
/* Every driver function of the table. Those of cuda_answers.c replace the weak
 * ones here. */
#include "fake_cuda.h"

#include <stddef.h>

enum {
#define VMML_CU(name, params, args) FAKE_##name,
#define VMML_CU_REAL(name)          FAKE_##name,
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name)
#include "hooks.def"
};

#define FAKE_RESULT(name) (20000 + FAKE_##name)

/* Under a C name of their own: cuda.h's prototypes are not wanted. */
#define VMML_CU_REAL(name)                                                     \
    FAKE_EXPORT int fake_##name(void) __asm__(#name);                          \
    __attribute__((weak)) int fake_##name(void)                                \
    {                                                                          \
        return FAKE_RESULT(name);                                              \
    }
#define VMML_CU(name, params, args) VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name)
#include "hooks.def"

/* Newer than the shim. */
FAKE_EXPORT int fake_new(void) __asm__("cuNewInFuture");
int fake_new(void)
{
    return 30000;
}

FAKE_EXPORT const struct fake_function fake_functions[] = {
#define VMML_CU(name, params, args)                                            \
    {#name, (void *)fake_##name, true, FAKE_RESULT(name)},
#define VMML_CU_REAL(name)                                                     \
    {#name, (void *)fake_##name, false, FAKE_RESULT(name)},
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name)
#include "hooks.def"
    {"cuNewInFuture", (void *)fake_new, false, 30000}, {NULL, NULL, false, 0}};
