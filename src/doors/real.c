/* SPDX-License-Identifier: MIT */
#include "doors/real.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "doors/libc.h"
#include "doors/module.h"

/* What `handle` has under `name`, unless that is the shim's own export. */
static void *vmml_lookup(void *handle, const char *name)
{
    vmml_dlsym_fn *real_dlsym = vmml_dlsym_real();
    void *address = real_dlsym != NULL ? real_dlsym(handle, name) : NULL;

    return vmml_is_own(address) ? NULL : address;
}

/* Every thread that comes before the first is done fills a table of its own:
 * nobody waits for a thread that may hold the loader's lock. */
#define VMML_REAL_PLACES 16

static struct vmml_real vmml_real_tables[VMML_REAL_PLACES];
static atomic_uint vmml_real_taken;
_Atomic(const struct vmml_real *) vmml_real_found;

static void vmml_real_fill(struct vmml_real *real, void *handle)
{
#define VMML_CU_REAL(name)          *(void **)&real->name = vmml_lookup(handle, #name);
#define VMML_CU(name, params, args) VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name)
#include "hooks.def"
}

/* From the heap where more threads than there are places came at once. */
static struct vmml_real *vmml_real_place(void)
{
    unsigned place = atomic_fetch_add(&vmml_real_taken, 1);

    if (place < VMML_REAL_PLACES)
        return &vmml_real_tables[place];
    return calloc(1, sizeof(struct vmml_real));
}

const struct vmml_real *vmml_real_search(void)
{
    /* Keeps the library for as long as its addresses are kept. */
    void *handle = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    const struct vmml_real *found = NULL;
    struct vmml_real *own;

    if (handle == NULL) {
        dlerror();
        return NULL;
    }
    own = vmml_real_place();
    if (own == NULL)
        return NULL;
    vmml_real_fill(own, handle);
    dlerror();
    if (atomic_compare_exchange_strong(&vmml_real_found, &found, own))
        return own;
    return found;
}

/* One for each module that called. Never freed. */
struct vmml_scope {
    struct vmml_scope *next;
    uint64_t identity;
    struct vmml_uct uct;
};

static _Atomic(struct vmml_scope *) vmml_scopes;

static const struct vmml_uct *vmml_scope_known(uint64_t identity)
{
    struct vmml_scope *scope =
        atomic_load_explicit(&vmml_scopes, memory_order_acquire);

    while (scope != NULL && scope->identity != identity)
        scope = scope->next;
    return scope != NULL ? &scope->uct : NULL;
}

static void vmml_scope_add(struct vmml_scope *scope)
{
    scope->next = atomic_load_explicit(&vmml_scopes, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&vmml_scopes, &scope->next,
                                                  scope, memory_order_release,
                                                  memory_order_relaxed))
        ;
}

/* Keeps the library that holds `address`, as long as its address is kept. */
static void vmml_keep(const void *address)
{
    struct vmml_module module;

    if (vmml_module_find(address, &module) && module.name[0] != '\0' &&
        dlopen(module.name, RTLD_NOLOAD | RTLD_LAZY) == NULL)
        vmml_debug("%s: no own reference", module.name);
}

/* Returns whether anything was found. */
static bool vmml_uct_fill(struct vmml_uct *uct, void *handle)
{
    const void *in_uct = NULL;
    const void *in_ucp;

#define VMML_UCT_STUB(name)                                                    \
    *(void **)&uct->name = vmml_lookup(handle, #name);                         \
    if (uct->name != NULL && #name[2] == 't')                                  \
        in_uct = *(void **)&uct->name;
#define VMML_UCT(type, name, params, args, missing) VMML_UCT_STUB(name)
#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#include "hooks.def"
    *(void **)&uct->ucs_topo_get_device_bus_id =
        vmml_lookup(handle, "ucs_topo_get_device_bus_id");
    *(void **)&uct->ucp_get_version = vmml_lookup(handle, "ucp_get_version");
    in_ucp = *(void **)&uct->ucp_worker_fence;

    if (in_uct != NULL)
        vmml_keep(in_uct);
    if (in_ucp != NULL)
        vmml_keep(in_ucp);
    return in_uct != NULL || in_ucp != NULL;
}

/*
 * The module's own scope first. A program, and a module that links no UCX by
 * itself, reach what the program was started with or what came with
 * RTLD_GLOBAL: what stands behind the shim.
 */
static bool vmml_uct_search(struct vmml_uct *uct,
                            const struct vmml_module *module)
{
    void *handle = NULL;
    bool found = false;

    if (module->name != NULL && module->name[0] != '\0')
        handle = dlopen(module->name, RTLD_NOLOAD | RTLD_LAZY);
    if (handle != NULL) {
        found = vmml_uct_fill(uct, handle);
        dlclose(handle);
    }
    if (!found)
        found = vmml_uct_fill(uct, RTLD_NEXT);
    dlerror();
    return found;
}

const struct vmml_uct *vmml_uct(const void *caller)
{
    struct vmml_module module = {.name = ""};
    uint64_t identity = vmml_caller_identity(caller);
    const struct vmml_uct *known = vmml_scope_known(identity);
    struct vmml_scope *scope;

    if (known != NULL)
        return known;
    (void)vmml_module_find(caller, &module);
    scope = calloc(1, sizeof(*scope));
    if (scope == NULL)
        return NULL;
    if (!vmml_uct_search(&scope->uct, &module)) {
        free(scope);
        return NULL;
    }
    scope->identity = identity;
    vmml_scope_add(scope);
    return &scope->uct;
}
