/* SPDX-License-Identifier: MIT */
/* The C library's own dlsym, behind the shim's export of that name. */
#ifndef VMML_DOORS_LIBC_H
#define VMML_DOORS_LIBC_H

typedef void *vmml_dlsym_fn(void *handle, const char *name);

/* NULL where there is none (no glibc). A failed look-up of ours leaves its
 * text for the application's next dlerror(): clear it. */
vmml_dlsym_fn *vmml_dlsym_real(void);

#endif
