/* SPDX-License-Identifier: MIT */
/*
 * A small shared object, changed at some places: each three bytes of input are
 * an offset and what is written there; the last byte cuts it short.
 */
#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/elf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NAME "ucp_get_version_string"

struct object {
    Elf64_Ehdr header;
    Elf64_Phdr part;
    Elf64_Shdr sections[4];
    Elf64_Sym symbols[3];
    Elf64_Rela relocation;
    char names[64];
    uint8_t code[8];
    char version[8];
};

#define AT(member) offsetof(struct object, member)

static void make(struct object *object, unsigned machine)
{
    /* lea rax, [rip + 1]; ret. adrp x0, 0; add x0, x0, #AT(version). */
    static const uint8_t x86[8] = {0x48, 0x8d, 0x05, 1, 0, 0, 0, 0xc3};
    const uint32_t arm[2] = {0x90000000, 0x91000000 | (uint32_t)AT(version)
                                                          << 10};

    memcpy(object->header.e_ident, ELFMAG, SELFMAG);
    object->header.e_ident[EI_CLASS] = ELFCLASS64;
    object->header.e_ident[EI_DATA] = ELFDATA2LSB;
    object->header.e_machine = (uint16_t)machine;
    object->header.e_phoff = AT(part);
    object->header.e_phentsize = sizeof(Elf64_Phdr);
    object->header.e_phnum = 1;
    object->header.e_shoff = AT(sections);
    object->header.e_shentsize = sizeof(Elf64_Shdr);
    object->header.e_shnum = 4;
    object->part.p_type = PT_LOAD;
    object->part.p_filesz = sizeof(*object);
    object->sections[1].sh_type = SHT_DYNSYM;
    object->sections[1].sh_link = 2;
    object->sections[1].sh_offset = AT(symbols);
    object->sections[1].sh_size = sizeof(object->symbols);
    object->sections[2].sh_offset = AT(names);
    object->sections[2].sh_size = sizeof(object->names);
    object->sections[3].sh_type = SHT_RELA;
    object->sections[3].sh_offset = AT(relocation);
    object->sections[3].sh_size = sizeof(object->relocation);
    object->relocation.r_offset = AT(version);
    object->relocation.r_info = ELF64_R_INFO(
        2, machine == EM_X86_64 ? R_X86_64_JUMP_SLOT : R_AARCH64_JUMP_SLOT);
    object->symbols[1].st_name = 1;
    object->symbols[1].st_shndx = 1;
    object->symbols[1].st_value = AT(code);
    object->symbols[2].st_name = 1 + sizeof(NAME);
    memcpy(object->names + 1, NAME, sizeof(NAME));
    strcpy(object->names + 1 + sizeof(NAME), "syscall");
    memcpy(object->code, machine == EM_X86_64 ? (const void *)x86 : arm, 8);
    strcpy(object->version, "1.22.0");
}

static void look(const uint8_t *bytes, size_t size, int unchanged)
{
    char version[16];
    struct vmml_elf elf;
    void *copy = malloc(size);
    uint64_t slot;
    size_t left;

    if (copy == NULL)
        return;
    memcpy(copy, bytes, size);
    if (vmml_elf_take(&elf, copy, size) != 0) {
        if (unchanged)
            abort();
        return;
    }
    vmml_elf_version_of(&elf, NAME, version, sizeof(version));
    if (unchanged && !vmml_elf_slot(&elf, "syscall", &slot))
        abort();
    if (unchanged &&
        (strcmp(version, "1.22.0") != 0 || !vmml_elf_exports(&elf, NAME) ||
         !vmml_elf_imports(&elf, "syscall") ||
         vmml_elf_exports(&elf, "syscall")))
        abort();
    if (vmml_elf_slot(&elf, "syscall", &slot) && unchanged &&
        slot != AT(version))
        abort();
    if (vmml_elf_find(&elf, "sys", &left) != NULL && left > size)
        abort();
    vmml_elf_close(&elf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct object object = {0};
    uint8_t *bytes = (uint8_t *)&object;
    size_t i, length = sizeof(object);

    make(&object, size % 2 == 0 ? EM_X86_64 : EM_AARCH64);
    look(bytes, length, 1);
    for (i = 0; i + 3 <= size; i += 3)
        bytes[(data[i] | data[i + 1] << 8) % sizeof(object)] = data[i + 2];
    if (size % 3 == 1)
        length = length * data[size - 1] / 255;
    if (length > 0)
        look(bytes, length, 0);
    return 0;
}
