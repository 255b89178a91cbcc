/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stddef.h>

#include "doors/doors.h"
#include "doors/real.h"
#include "stats/count.h"
#include "ucx/stubs.h"

static const struct vmml_stub {
    size_t offset; /* in struct vmml_uct */
    enum vmml_hook hook;
} vmml_stub_table[] = {
#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name) {offsetof(struct vmml_uct, name), VMML_HOOK_##name},
#include "hooks.def"
};

void *vmml_stub_enter(unsigned index, uintptr_t *args, const void *caller)
{
    int saved_errno = errno;
    const struct vmml_uct *uct;
    void *real = NULL;

    vmml_count_hook(vmml_stub_table[index].hook);
    vmml_rebind_watch(caller);
    uct = vmml_uct(caller);
    if (uct != NULL)
        real =
            *(void *const *)((const char *)uct + vmml_stub_table[index].offset);
    if (real != NULL && !vmml_uct_stub_hook(index, args, caller))
        real = NULL;
    errno = saved_errno;
    return real;
}
