/* SPDX-License-Identifier: MIT */
#include "doors/libc.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

/* The versions under which glibc exported dlsym: since it moved into libc, and
 * in libdl of each architecture before. */
static const char *const vmml_dlsym_versions[] = {"GLIBC_2.34",
#if defined(__x86_64__)
                                                  "GLIBC_2.2.5",
#elif defined(__aarch64__)
                                                  "GLIBC_2.17",
#endif
                                                  NULL};

static _Atomic(vmml_dlsym_fn *) vmml_dlsym_found;

vmml_dlsym_fn *vmml_dlsym_real(void)
{
    vmml_dlsym_fn *found =
        atomic_load_explicit(&vmml_dlsym_found, memory_order_relaxed);

    for (unsigned i = 0; found == NULL && vmml_dlsym_versions[i] != NULL; i++)
        found =
            (vmml_dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", vmml_dlsym_versions[i]);
    atomic_store_explicit(&vmml_dlsym_found, found, memory_order_relaxed);
    return found;
}
