/* SPDX-License-Identifier: MIT */
/*
 * uct_md_mem_elem_pack hands a mirror's address to GPU kernels: no copy is
 * posted that could be checked.
 */
#include "ucx/stubs.h"

#include "base/fork.h"
#include "base/log.h"
#include "lane/handle.h"
#include "mirror/mirror.h"
#include "ucx/component.h"

enum {
#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name) STUB_##name,
#include "hooks.def"
};

/* The remote key that cuda_ipc unpacked begins with the packed one
 * (uct_cuda_ipc_unpacked_rkey_t); -1 is UCT_INVALID_RKEY. */
static bool is_pooled_key(uintptr_t rkey)
{
    struct vmml_handle handle;

    return rkey != 0 && rkey != UINTPTR_MAX &&
           vmml_handle_find((const uint8_t *)rkey, VMML_HANDLE_SCAN, &handle) >=
               0 &&
           vmml_is_pooled(handle.base);
}

/* (md, memh, rkey, ...) in every version that has it. Memory of a pool lies
 * elsewhere than the address that UCX has of it, and only copies are moved. */
static bool enter_elem_pack(const uintptr_t args[])
{
    if (!vmml_is_cuda_ipc_md((vmml_uct_md_h)args[0]))
        return true;
    if (is_pooled_key(args[2])) {
        vmml_warn_once("pool memory cannot be used by device-side transfers. "
                       "Remedy: VMM or cudaMalloc memory for them");
        return false;
    }
    vmml_mirror_pin_all();
    return true;
}

bool vmml_uct_stub_hook(unsigned index, uintptr_t args[], const void *caller)
{
    (void)caller;
    return index != STUB_uct_md_mem_elem_pack || vmml_in_child ||
           enter_elem_pack(args);
}
