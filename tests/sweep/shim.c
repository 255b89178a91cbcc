/*
 * Finds the shim in this process, puts replacements into its GOT, and tells
 * its functions apart by the symbol table of its file.
 */
#include "faults.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    uintptr_t base;
    uintptr_t from, to; /* its code */
    char path[4096];
    const Elf64_Dyn *dynamic;
    const Elf64_Sym *symbols; /* of the file */
    size_t symbol_count;
    const char *strings;
} shim;

bool sweep_in_shim(const void *address)
{
    return (uintptr_t)address >= shim.from && (uintptr_t)address < shim.to;
}

const char *sweep_function_at(const void *address)
{
    uintptr_t offset = (uintptr_t)address - shim.base;

    for (size_t i = 0; i < shim.symbol_count; i++) {
        const Elf64_Sym *symbol = &shim.symbols[i];

        if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
            offset >= symbol->st_value &&
            offset - symbol->st_value < symbol->st_size)
            return shim.strings + symbol->st_name;
    }
    return "";
}

static int find_shim(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *slash = strrchr(info->dlpi_name, '/');

    if (slash == NULL || strcmp(slash + 1, "libvmmlane.so") != 0)
        return 0;
    shim.base = info->dlpi_addr;
    snprintf(shim.path, sizeof(shim.path), "%s", info->dlpi_name);
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *header = &info->dlpi_phdr[i];
        uintptr_t start = shim.base + header->p_vaddr;

        if (header->p_type == PT_LOAD && (header->p_flags & PF_X) != 0) {
            shim.from = start;
            shim.to = start + header->p_memsz;
        } else if (header->p_type == PT_DYNAMIC) {
            shim.dynamic = (const Elf64_Dyn *)start;
        }
    }
    return 1;
}

static void must(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "sweep: %s\n", what);
    abort();
}

static void read_symbols(void)
{
    int fd = open(shim.path, O_RDONLY | O_CLOEXEC);
    const Elf64_Shdr *sections;
    const Elf64_Ehdr *header;
    struct stat status;
    const char *file;

    must(fd >= 0 && fstat(fd, &status) == 0, "the shim's file");
    file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    must(file != MAP_FAILED, "no mapping of the shim's file");
    close(fd);
    header = (const void *)file;
    sections = (const void *)(file + header->e_shoff);
    for (size_t i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        shim.symbols = (const void *)(file + sections[i].sh_offset);
        shim.symbol_count = sections[i].sh_size / sizeof(*shim.symbols);
        shim.strings = file + sections[sections[i].sh_link].sh_offset;
    }
    must(shim.symbols != NULL, "the shim has no symbol table");
}

void sweep_write_slot(void **slot, void *value)
{
    uintptr_t page = (uintptr_t)slot & ~4095ul;

    must(mprotect((void *)page, 4096, PROT_READ | PROT_WRITE) == 0,
         "mprotect of the shim's GOT");
    *slot = value;
}

static uintptr_t entry(Elf64_Sxword tag)
{
    for (const Elf64_Dyn *d = shim.dynamic; d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag)
            return d->d_un.d_ptr;
    return 0;
}

static void visit_table(uintptr_t table, size_t bytes, sweep_import_fn *visit)
{
    const Elf64_Sym *symbols = (const Elf64_Sym *)entry(DT_SYMTAB);
    const char *strings = (const char *)entry(DT_STRTAB);
    const Elf64_Rela *rela = (const Elf64_Rela *)table;

    for (size_t i = 0; i < bytes / sizeof(*rela); i++) {
        unsigned long type = ELF64_R_TYPE(rela[i].r_info);
        const Elf64_Sym *symbol = &symbols[ELF64_R_SYM(rela[i].r_info)];

        if ((type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT) &&
            symbol->st_shndx == SHN_UNDEF &&
            ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT)
            visit(strings + symbol->st_name,
                  (void **)(shim.base + rela[i].r_offset));
    }
}

void sweep_each_import(sweep_import_fn *visit)
{
    visit_table(entry(DT_JMPREL), entry(DT_PLTRELSZ), visit);
    visit_table(entry(DT_RELA), entry(DT_RELASZ), visit);
}

static size_t replaced;

static void replace(const char *name, void **slot)
{
    void *replacement = sweep_replacement(name);

    if (replacement == NULL)
        return;
    sweep_write_slot(slot, replacement);
    replaced++;
}

/* Linked with -z initfirst: before the constructors of all other libraries,
 * the C library's included, so that getenv() knows nothing yet. */
__attribute__((constructor)) static void install(int count, char **arguments,
                                                 char **environment)
{
    (void)count;
    (void)arguments;
    if (dl_iterate_phdr(find_shim, NULL) == 0)
        return;
    read_symbols();
    sweep_each_import(replace);
    must(replaced > 0, "no import of the shim was found");
    sweep_arm_from(environment);
}
