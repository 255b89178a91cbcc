/* SPDX-License-Identifier: MIT */
/*
 * From the driver's own address of a function to the export that stands in
 * front of it: what dlsym and cuGetProcAddress hand out.
 */
#ifndef VMML_DOORS_DOORS_H
#define VMML_DOORS_DOORS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "doors/caller.h"

struct vmml_uct;

/* One hooked function of libcuda. */
struct vmml_door {
    const char *name;
    void *export; /* the shim's */
};

/* The door of an ELF name, or NULL. */
const struct vmml_door *vmml_door_by_name(const char *name);

/* The driver's own function behind a door; NULL: no libcuda, or an older one.
 */
void *vmml_door_real(const struct vmml_door *door);

/* What to hand out for `address`: the export where `address` is exactly the
 * driver's function behind a door and vmmlane is on, else `address`. */
void *vmml_door_replace(void *address);

/* The definition of `name` that `caller` would have without the shim, in a
 * process without libcuda. NULL when there is none. */
void *vmml_door_next(const void *caller, const char *name);

/* Callers that get the real pointers: the driver, UCM and profilers, which
 * patch or watch it, and the shim. */
bool vmml_door_exempt(const void *caller);

/* Is it a hooked function of UCX? */
bool vmml_door_is_uct(const char *name);

/* The real one for a caller, whose functions are `uct` (may be NULL). */
void *vmml_door_uct_real(const struct vmml_uct *uct, const char *name);

/* Return addresses that were seen, for which no module is looked up. */
extern _Atomic(const void *) vmml_rebind_seen[VMML_KEPT_CALLERS];
void vmml_rebind_look(const void *caller);

/* Brings modules that were opened with RTLD_DEEPBIND back to the shim: called
 * with the return address of each hooked call, looks for them at the first one
 * of each module. */
static inline void vmml_rebind_watch(const void *caller)
{
    if (atomic_load_explicit(&vmml_rebind_seen[vmml_kept_place(caller)],
                             memory_order_relaxed) != caller)
        vmml_rebind_look(caller);
}

/* The same at once; and at once when something was loaded since. */
void vmml_rebind_scan(void);
void vmml_rebind_scan_new(void);

/* What to hand out for a libucp's own ucp_worker_fence, found by its address:
 * a function that calls the hook on behalf of that libucp, since a foreign
 * function interface may be who calls it. */
void *vmml_door_fence(void *address);

/* The function that the dlsym export jumps to, its arguments unchanged. */
void *vmml_dlsym_route(void *handle, const char *name, const void *caller);

/* Called by an export of VMML_UCT_STUB: number `index` of them, the argument
 * registers for whole numbers, the return address. Returns the real function,
 * or NULL where the caller's library has none. */
void *vmml_stub_enter(unsigned index, uintptr_t *args, const void *caller);

#endif
