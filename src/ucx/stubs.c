/* SPDX-License-Identifier: MIT */
/*
 * uct_md_mem_elem_pack hands a mirror's address to GPU kernels: no copy is
 * posted that could be checked.
 */
#include "ucx/stubs.h"

#include "base/fork.h"
#include "mirror/mirror.h"

enum {
#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name) STUB_##name,
#include "hooks.def"
};

void vmml_uct_stub_hook(unsigned index, uintptr_t args[], const void *caller)
{
    (void)args;
    (void)caller;
    if (index == STUB_uct_md_mem_elem_pack && !vmml_in_child)
        vmml_mirror_pin_all();
}
