/* SPDX-License-Identifier: MIT */
#include "doors/image.h"

#include <string.h>

struct vmml_image_search {
    const void *address;
    struct vmml_image *image;
};

bool vmml_image_holds(const struct vmml_image *image, const void *address)
{
    for (unsigned i = 0; i < image->count; i++) {
        const ElfW(Phdr) *header = &image->headers[i];

        if (header->p_type == PT_LOAD &&
            (uintptr_t)address - (image->base + header->p_vaddr) <
                header->p_memsz)
            return true;
    }
    return false;
}

static int vmml_image_match(struct dl_phdr_info *info, size_t size, void *data)
{
    struct vmml_image_search *search = data;

    search->image->base = info->dlpi_addr;
    search->image->headers = info->dlpi_phdr;
    search->image->count = info->dlpi_phnum;
    return vmml_image_holds(search->image, search->address);
}

bool vmml_image_find(const void *address, struct vmml_image *image)
{
    struct vmml_image_search search = {address, image};

    return dl_iterate_phdr(vmml_image_match, &search) == 1;
}

static const ElfW(Dyn) * vmml_image_entries(const struct vmml_image *image)
{
    for (unsigned i = 0; i < image->count; i++) {
        if (image->headers[i].p_type == PT_DYNAMIC)
            return (const void *)(image->base + image->headers[i].p_vaddr);
    }
    return NULL;
}

/* The loader has relocated these pointers, but for the vDSO's. */
static const void *vmml_image_pointer(const struct vmml_image *image,
                                      const ElfW(Dyn) * entry)
{
    uintptr_t pointer = entry->d_un.d_ptr;

    return (const void *)(pointer < image->base ? pointer + image->base
                                                : pointer);
}

bool vmml_image_dynamic(const struct vmml_image *image,
                        struct vmml_dynamic *dynamic)
{
    const ElfW(Dyn) *entry = vmml_image_entries(image);
    const uint32_t *gnu_hash = NULL, *hash = NULL;

    memset(dynamic, 0, sizeof(*dynamic));
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        const void *pointer = vmml_image_pointer(image, entry);

        if (entry->d_tag == DT_SYMTAB)
            dynamic->symbols = pointer;
        else if (entry->d_tag == DT_STRTAB)
            dynamic->names = pointer;
        else if (entry->d_tag == DT_GNU_HASH)
            gnu_hash = pointer;
        else if (entry->d_tag == DT_HASH)
            hash = pointer;
        else if (entry->d_tag == DT_JMPREL)
            dynamic->plt_relocations = pointer;
        else if (entry->d_tag == DT_PLTRELSZ)
            dynamic->plt_count = entry->d_un.d_val / sizeof(ElfW(Rela));
        else if (entry->d_tag == DT_RELA)
            dynamic->relocations = pointer;
        else if (entry->d_tag == DT_RELASZ)
            dynamic->count = entry->d_un.d_val / sizeof(ElfW(Rela));
    }
    if (gnu_hash != NULL)
        dynamic->undefined = gnu_hash[1];
    else if (hash != NULL)
        dynamic->undefined = hash[1];
    return dynamic->symbols != NULL && dynamic->names != NULL;
}

bool vmml_image_needs(const struct vmml_image *image,
                      bool (*wanted)(const char *file))
{
    const ElfW(Dyn) *entry = vmml_image_entries(image);
    struct vmml_dynamic dynamic;

    if (!vmml_image_dynamic(image, &dynamic))
        return false;
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_NEEDED &&
            wanted(dynamic.names + entry->d_un.d_val))
            return true;
    }
    return false;
}
