/* SPDX-License-Identifier: MIT */
/*
 * The ELF image of a loaded module, read in memory.
 */
#ifndef VMML_DOORS_IMAGE_H
#define VMML_DOORS_IMAGE_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vmml_image {
    uintptr_t base;
    const ElfW(Phdr) * headers;
    unsigned count;
};

/* What the dynamic section points to; NULL and 0 for what is not there. */
struct vmml_dynamic {
    const ElfW(Sym) * symbols;
    const char *names;
    size_t undefined; /* symbols before the hashed ones: all imports */
    const ElfW(Rela) * plt_relocations;
    size_t plt_count;
    const ElfW(Rela) * relocations;
    size_t count;
};

/* The image that holds `address`. */
bool vmml_image_find(const void *address, struct vmml_image *image);

/* False when there are no symbols. */
bool vmml_image_dynamic(const struct vmml_image *image,
                        struct vmml_dynamic *dynamic);

bool vmml_image_holds(const struct vmml_image *image, const void *address);

/* Is there an entry of DT_NEEDED for which `wanted` is true? */
bool vmml_image_needs(const struct vmml_image *image,
                      bool (*wanted)(const char *file));

#endif
