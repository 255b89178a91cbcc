/* SPDX-License-Identifier: MIT */
/*
 * Loaded modules, by an address inside them.
 */
#ifndef VMML_DOORS_MODULE_H
#define VMML_DOORS_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "doors/caller.h"

struct vmml_module {
    const char *name;  /* the loader's path of it; "" for the program. Valid
                        * while the module is loaded. */
    uintptr_t base;    /* load bias */
    const void *start; /* first and last + 1 byte of its mapping */
    const void *end;
};

/* False when no module holds `address`. */
bool vmml_module_find(const void *address, struct vmml_module *module);

/* The same without glibc's _dl_find_object. */
bool vmml_module_walk(const void *address, struct vmml_module *module);

/* The file name in module->name without folders; the program's own for "". */
const char *vmml_module_file(const struct vmml_module *module);

/* Class of a module by its file name alone; never VMML_CALLER_SHIM for another
 * address range than the shim's unless the name is the shim's too. */
enum vmml_caller vmml_file_class(const char *file);

/* FNV-1a of the path and the base: tells a module from another one that was
 * loaded at its place later. */
uint64_t vmml_module_identity(const struct vmml_module *module);

/* Set by the linker: the first byte of the shim and the end of its data. */
extern const char vmml_image_start[] __asm__("__ehdr_start")
    __attribute__((visibility("hidden")));
extern const char vmml_image_end[] __asm__("_end")
    __attribute__((visibility("hidden")));

/* Is `address` inside the shim? */
static inline bool vmml_is_own(const void *address)
{
    return (const char *)address >= vmml_image_start &&
           (const char *)address < vmml_image_end;
}

#endif
