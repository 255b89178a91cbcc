/* SPDX-License-Identifier: MIT */
/* A file of its own: .symver renames the symbol of the whole object. */
#include "preload.h"

extern void *old_dlsym(void *handle, const char *name);

#if defined(__x86_64__)
__asm__(".symver old_dlsym, dlsym@GLIBC_2.2.5");
#else
__asm__(".symver old_dlsym, dlsym@GLIBC_2.17");
#endif

void *preload_old_dlsym(void *handle, const char *name)
{
    void *address = old_dlsym(handle, name);

    __asm__ volatile("" : "+r"(address)); /* no tail call */
    return address;
}
