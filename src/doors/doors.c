/* SPDX-License-Identifier: MIT */
#include "doors/doors.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "doors/caller.h"
#include "doors/libc.h"
#include "doors/module.h"
#include "doors/real.h"
#include "hooks.h"

/* Relocated once, by the loader, from the shim's own base: no GOT entry that
 * somebody may have patched. */
static const struct vmml_door vmml_doors[] = {
#define VMML_CU(name, params, args) {#name, (void *)name},
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name)
#include "hooks.def"
};

static const size_t vmml_door_offsets[] = {
#define VMML_CU(name, params, args) offsetof(struct vmml_real, name),
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name)
#include "hooks.def"
};

#define VMML_DOOR_COUNT (sizeof(vmml_doors) / sizeof(vmml_doors[0]))

const struct vmml_door *vmml_door_by_name(const char *name)
{
    if (name[0] != 'c' || name[1] != 'u')
        return NULL;
    for (size_t i = 0; i < VMML_DOOR_COUNT; i++) {
        if (strcmp(name, vmml_doors[i].name) == 0)
            return &vmml_doors[i];
    }
    return NULL;
}

static void *vmml_door_address(const struct vmml_real *real, size_t index)
{
    return *(void *const *)((const char *)real + vmml_door_offsets[index]);
}

void *vmml_door_real(const struct vmml_door *door)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL)
        return NULL;
    return vmml_door_address(real, (size_t)(door - vmml_doors));
}

void *vmml_door_replace(void *address)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || address == NULL)
        return address;
    for (size_t i = 0; i < VMML_DOOR_COUNT; i++) {
        if (vmml_door_address(real, i) == address)
            return vmml_conf()->on ? vmml_doors[i].export : address;
    }
    return address;
}

bool vmml_door_is_uct(const char *name)
{
    if (name[0] != 'u' || name[1] != 'c')
        return false;
#define VMML_UCT_STUB(member)                                                  \
    if (strcmp(name, #member) == 0)                                            \
        return true;
#define VMML_UCT(type, member, params, args, missing) VMML_UCT_STUB(member)
#define VMML_CU(member, params, args)
#define VMML_CU_REAL(member)
#include "hooks.def"
    return false;
}

void *vmml_door_uct_real(const struct vmml_uct *uct, const char *name)
{
    if (uct == NULL)
        return NULL;
#define VMML_UCT_STUB(member)                                                  \
    if (strcmp(name, #member) == 0)                                            \
        return (void *)uct->member;
#define VMML_UCT(type, member, params, args, missing) VMML_UCT_STUB(member)
#define VMML_CU(member, params, args)
#define VMML_CU_REAL(member)
#include "hooks.def"
    return NULL;
}

static void *vmml_next_in(void *handle, const char *name)
{
    void *next = vmml_dlsym_real()(handle, name);

    return vmml_is_own(next) ? NULL : next;
}

void *vmml_door_next(const void *caller, const char *name)
{
    struct vmml_module module;
    void *handle = NULL, *next = NULL;

    if (vmml_dlsym_real() == NULL)
        return NULL;
    if (vmml_module_find(caller, &module) && module.name[0] != '\0')
        handle = dlopen(module.name, RTLD_NOLOAD | RTLD_LAZY);
    if (handle != NULL) {
        next = vmml_next_in(handle, name);
        dlclose(handle);
    }
    if (next == NULL)
        next = vmml_next_in(RTLD_NEXT, name);
    dlerror();
    return next;
}

bool vmml_door_exempt(const void *caller)
{
    switch (vmml_caller_class(caller)) {
    case VMML_CALLER_UCM:
    case VMML_CALLER_DRIVER:
    case VMML_CALLER_SHIM:
        return true;
    default:
        return false;
    }
}

/* One for each libucp whose fence was looked up by name. */
static _Atomic(void *) vmml_fences[8];

#define VMML_FENCE(index)                                                      \
    static vmml_ucs_status_t vmml_fence_##index(vmml_ucp_worker_h worker)      \
    {                                                                          \
        return vmml_ucp_worker_fence(vmml_fences[index], worker);              \
    }

VMML_FENCE(0)
VMML_FENCE(1)
VMML_FENCE(2)
VMML_FENCE(3)
VMML_FENCE(4)
VMML_FENCE(5)
VMML_FENCE(6)
VMML_FENCE(7)

void *vmml_door_fence(void *address)
{
    static vmml_ucs_status_t (*const functions[])(vmml_ucp_worker_h) = {
        vmml_fence_0, vmml_fence_1, vmml_fence_2, vmml_fence_3,
        vmml_fence_4, vmml_fence_5, vmml_fence_6, vmml_fence_7};
    const struct vmml_uct *uct;

    if (vmml_caller_class(address) != VMML_CALLER_UCX)
        return address;
    uct = vmml_uct(address);
    if (uct == NULL || (void *)uct->ucp_worker_fence != address ||
        !vmml_conf()->on)
        return address;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *expected = NULL;

        if (atomic_compare_exchange_strong(&vmml_fences[i], &expected,
                                           address) ||
            expected == address)
            return (void *)functions[i];
    }
    vmml_warn_once("more than %zu copies of libucp: the fence of the next ones "
                   "is not seen, and writes to different kinds of memory may "
                   "pass each other",
                   sizeof(functions) / sizeof(functions[0]));
    return address;
}
