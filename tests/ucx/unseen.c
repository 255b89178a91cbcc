/*
 * Looks into the symbol table of the loaded libcuda.so.1 by hand, so that no
 * hook on dlsym, cuGetProcAddress or an ELF symbol sees the call.
 */
#include "unseen.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

struct search {
    const char *name;
    void *address;
};

static size_t symbol_count_gnu(const uint32_t *table)
{
    uint32_t buckets = table[0];
    uint32_t first = table[1];
    const uint32_t *bucket =
        (const uint32_t *)((const Elf64_Addr *)(table + 4) + table[2]);
    const uint32_t *chain = bucket + buckets;
    uint32_t last = 0;

    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < first)
        return first;
    while ((chain[last - first] & 1) == 0)
        last++;
    return last + 1;
}

/* glibc relocates the dynamic section's addresses on most, not all, machines.
 */
static const void *absolute(const struct dl_phdr_info *info, Elf64_Addr value)
{
    return (const void *)(value < info->dlpi_addr ? value + info->dlpi_addr
                                                  : value);
}

static void *look_up(const struct dl_phdr_info *info, const Elf64_Dyn *dynamic,
                     const char *name)
{
    const Elf64_Sym *symbols = NULL;
    const char *strings = NULL;
    size_t count = 0;

    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = absolute(info, dynamic->d_un.d_ptr);
        else if (dynamic->d_tag == DT_STRTAB)
            strings = absolute(info, dynamic->d_un.d_ptr);
        else if (dynamic->d_tag == DT_HASH)
            count = ((const uint32_t *)absolute(info, dynamic->d_un.d_ptr))[1];
        else if (dynamic->d_tag == DT_GNU_HASH && count == 0)
            count = symbol_count_gnu(absolute(info, dynamic->d_un.d_ptr));
    }
    if (symbols == NULL || strings == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (symbols[i].st_shndx != SHN_UNDEF &&
            strcmp(strings + symbols[i].st_name, name) == 0)
            return (void *)(info->dlpi_addr + symbols[i].st_value);
    return NULL;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct search *search = data;
    const char *base = strrchr(info->dlpi_name, '/');

    base = base != NULL ? base + 1 : info->dlpi_name;
    if (strncmp(base, "libcuda.so", strlen("libcuda.so")) != 0)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            search->address = look_up(
                info,
                (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr),
                search->name);
    return search->address != NULL;
}

void *unseen_symbol(const char *name)
{
    struct search search = {name, NULL};

    dl_iterate_phdr(visit, &search);
    return search.address;
}
