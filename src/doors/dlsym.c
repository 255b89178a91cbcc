/* SPDX-License-Identifier: MIT */
/*
 * The logic behind the dlsym export, which is an assembly stub: it asks
 * vmml_dlsym_route where to go and jumps there with its arguments and its
 * return address as they came. A C function that called the real dlsym would
 * be the caller of RTLD_NEXT itself.
 *
 * Whatever the real dlsym answered, dlerror() and errno stay as it left them:
 * nothing of the loader is called after a failure.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "doors/doors.h"
#include "doors/libc.h"
#include "doors/real.h"

static void *vmml_dlsym_none(void *handle, const char *name)
{
    return NULL;
}

/* A handle of its own: the answer does not depend on who asks. */
static void *vmml_dlsym_handle(void *handle, const char *name)
{
    void *address = vmml_dlsym_real()(handle, name);
    int saved_errno = errno;

    if (address == NULL)
        return NULL;
    address =
        name[0] == 'u' ? vmml_door_fence(address) : vmml_door_replace(address);
    errno = saved_errno;
    return address;
}

/* The driver's own function, where the global scope would give the shim's. */
static void *vmml_dlsym_driver(void *handle, const char *name)
{
    dlerror();
    return vmml_door_real(vmml_door_by_name(name));
}

/* A name that only the shim has: a process that probes for it must be told
 * that it is not there. What stands behind the shim is what it would see. */
static void *vmml_dlsym_behind(void *handle, const char *name)
{
    void *address = vmml_dlsym_real()(RTLD_NEXT, name);

    /* No tail call: the shim is who asks. */
    __asm__ volatile("" : "+r"(address));
    return address;
}

/* RTLD_DEFAULT finds the shim's export first. */
static vmml_dlsym_fn *vmml_route_default(vmml_dlsym_fn *real, const char *name,
                                         const void *caller)
{
    const struct vmml_door *door = vmml_door_by_name(name);

    if (door != NULL) {
        if (vmml_door_real(door) == NULL)
            return vmml_dlsym_behind;
        return vmml_door_exempt(caller) ? vmml_dlsym_driver : real;
    }
    if (name[0] != 'u' || name[1] != 'c' || !vmml_door_is_uct(name))
        return real;
    if (vmml_door_uct_real(vmml_uct(caller), name) == NULL)
        return vmml_dlsym_behind;
    return real;
}

static vmml_dlsym_fn *vmml_route(void *handle, const char *name,
                                 const void *caller)
{
    vmml_dlsym_fn *real = vmml_dlsym_real();

    if (real == NULL)
        return vmml_dlsym_none;
    if (handle == RTLD_NEXT || name == NULL)
        return real;
    if (handle == RTLD_DEFAULT)
        return vmml_route_default(real, name, caller);
    /* UCX's next step after it has opened a module: src/ucs/sys/module.c. */
    if (name[0] == 'u' && strcmp(name, "ucs_module_global_init") == 0)
        vmml_rebind_scan();
    if (vmml_door_by_name(name) == NULL &&
        (name[0] != 'u' || strcmp(name, "ucp_worker_fence") != 0))
        return real;
    return vmml_door_exempt(caller) ? real : vmml_dlsym_handle;
}

void *vmml_dlsym_route(void *handle, const char *name, const void *caller)
{
    int saved_errno = errno;
    vmml_dlsym_fn *target = vmml_route(handle, name, caller);

    errno = saved_errno;
    return (void *)target;
}
