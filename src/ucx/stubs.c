/* SPDX-License-Identifier: MIT */
/*
 * uct_md_mem_elem_pack hands a mirror's address to GPU kernels: no copy is
 * posted that could be checked.
 */
#include "ucx/stubs.h"

#include "base/fork.h"
#include "mirror/mirror.h"
#include "ucx/component.h"

enum {
#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name) STUB_##name,
#include "hooks.def"
};

void vmml_uct_stub_hook(unsigned index, uintptr_t args[], const void *caller)
{
    (void)caller;
    /* The first argument is the memory domain in every version. */
    if (index == STUB_uct_md_mem_elem_pack && !vmml_in_child &&
        vmml_is_cuda_ipc_md((vmml_uct_md_h)args[0]))
        vmml_mirror_pin_all();
}
