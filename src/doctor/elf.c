/* SPDX-License-Identifier: MIT */
#include "doctor/elf.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_MAX_READ (1ull << 30)

/* Read, not mapped: it may be cut short by others. */
static int read_whole(struct vmml_elf *elf, int fd)
{
    struct stat status;
    ssize_t got = 1;

    if (fstat(fd, &status) != 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || status.st_size <= 0 ||
        (unsigned long long)status.st_size > SIZE_MAX_READ)
        return -ENOEXEC;
    elf->data = calloc(1, (size_t)status.st_size);
    if (elf->data == NULL)
        return -ENOMEM;
    while (got > 0 && elf->size < (size_t)status.st_size) {
        got =
            read(fd, elf->data + elf->size, (size_t)status.st_size - elf->size);
        elf->size += got > 0 ? (size_t)got : 0;
    }
    return got < 0 ? -errno : 0;
}

static bool inside(const struct vmml_elf *elf, uint64_t offset, uint64_t size)
{
    return offset <= elf->size && size <= elf->size - offset;
}

static bool is_elf(const struct vmml_elf *elf)
{
    static const uint8_t start[] = {ELFMAG0, ELFMAG1,    ELFMAG2,
                                    ELFMAG3, ELFCLASS64, ELFDATA2LSB};
    const Elf64_Ehdr *header = (const void *)elf->data;

    return elf->size > sizeof(*header) &&
           memcmp(elf->data, start, sizeof(start)) == 0 &&
           header->e_shentsize == sizeof(Elf64_Shdr) &&
           header->e_shoff % _Alignof(Elf64_Shdr) == 0 &&
           inside(elf, header->e_shoff,
                  (uint64_t)header->e_shnum * sizeof(Elf64_Shdr));
}

static bool take_symbols(struct vmml_elf *elf)
{
    const Elf64_Ehdr *header = (const void *)elf->data;
    const Elf64_Shdr *sections = (const void *)(elf->data + header->e_shoff);
    unsigned i;

    for (i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *at = &sections[i], *names;

        if (at->sh_type != SHT_DYNSYM || at->sh_link >= header->e_shnum)
            continue;
        names = &sections[at->sh_link];
        if (!inside(elf, at->sh_offset, at->sh_size) ||
            at->sh_offset % _Alignof(Elf64_Sym) != 0 ||
            !inside(elf, names->sh_offset, names->sh_size) ||
            names->sh_size == 0 ||
            elf->data[names->sh_offset + names->sh_size - 1] != '\0')
            return false;
        elf->symbols = (const void *)(elf->data + at->sh_offset);
        elf->symbol_count = at->sh_size / sizeof(Elf64_Sym);
        elf->names = (const char *)elf->data + names->sh_offset;
        elf->names_size = names->sh_size;
        return true;
    }
    return false;
}

int vmml_elf_take(struct vmml_elf *elf, void *data, size_t size)
{
    memset(elf, 0, sizeof(*elf));
    elf->data = data;
    elf->size = size;
    if (is_elf(elf) && take_symbols(elf))
        return 0;
    vmml_elf_close(elf);
    return -ENOEXEC;
}

int vmml_elf_open(struct vmml_elf *elf, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int status;

    memset(elf, 0, sizeof(*elf));
    if (fd < 0)
        return -errno;
    status = read_whole(elf, fd);
    close(fd);
    if (status == 0)
        return vmml_elf_take(elf, elf->data, elf->size);
    vmml_elf_close(elf);
    return status;
}

void vmml_elf_close(struct vmml_elf *elf)
{
    free(elf->data);
    memset(elf, 0, sizeof(*elf));
}

static const Elf64_Sym *symbol(const struct vmml_elf *elf, const char *name,
                               bool defined)
{
    size_t i;

    for (i = 1; i < elf->symbol_count; i++) {
        const Elf64_Sym *at = &elf->symbols[i];

        if ((at->st_shndx != SHN_UNDEF) == defined &&
            at->st_name < elf->names_size &&
            strcmp(elf->names + at->st_name, name) == 0)
            return at;
    }
    return NULL;
}

bool vmml_elf_exports(const struct vmml_elf *elf, const char *name)
{
    return symbol(elf, name, true) != NULL;
}

bool vmml_elf_imports(const struct vmml_elf *elf, const char *name)
{
    return symbol(elf, name, false) != NULL;
}

static bool is_slot(const struct vmml_elf *elf, const Elf64_Rela *relocation,
                    const Elf64_Sym *wanted)
{
    const Elf64_Ehdr *header = (const void *)elf->data;
    uint64_t type = ELF64_R_TYPE(relocation->r_info);
    uint64_t index = ELF64_R_SYM(relocation->r_info);

    if (index >= elf->symbol_count || &elf->symbols[index] != wanted)
        return false;
    if (header->e_machine == EM_AARCH64)
        return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
    return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
}

bool vmml_elf_slot(const struct vmml_elf *elf, const char *name,
                   uint64_t *address)
{
    const Elf64_Ehdr *header = (const void *)elf->data;
    const Elf64_Shdr *sections = (const void *)(elf->data + header->e_shoff);
    const Elf64_Sym *wanted = symbol(elf, name, false);
    const Elf64_Rela *relocations;
    unsigned i;
    size_t j;

    for (i = 0; wanted != NULL && i < header->e_shnum; i++) {
        const Elf64_Shdr *at = &sections[i];

        if (at->sh_type != SHT_RELA ||
            at->sh_offset % _Alignof(Elf64_Rela) != 0 ||
            !inside(elf, at->sh_offset, at->sh_size))
            continue;
        relocations = (const void *)(elf->data + at->sh_offset);
        for (j = 0; j < at->sh_size / sizeof(*relocations); j++) {
            if (!is_slot(elf, &relocations[j], wanted))
                continue;
            *address = relocations[j].r_offset;
            return true;
        }
    }
    return false;
}

const char *vmml_elf_find(const struct vmml_elf *elf, const char *text,
                          size_t *left)
{
    const char *at = memmem(elf->data, elf->size, text, strlen(text));

    if (at != NULL && left != NULL)
        *left = elf->size - (size_t)(at - (const char *)elf->data);
    return at;
}

/* ---- a function that returns a constant string ---- */

/* What lies at an address of the loaded image; *left: bytes of the file. */
static const uint8_t *at_address(const struct vmml_elf *elf, uint64_t address,
                                 size_t *left)
{
    const Elf64_Ehdr *header = (const void *)elf->data;
    const Elf64_Phdr *parts;
    unsigned i;

    if (header->e_phentsize != sizeof(*parts) ||
        header->e_phoff % _Alignof(Elf64_Phdr) != 0 ||
        !inside(elf, header->e_phoff,
                (uint64_t)header->e_phnum * sizeof(*parts)))
        return NULL;
    parts = (const void *)(elf->data + header->e_phoff);
    for (i = 0; i < header->e_phnum; i++) {
        if (parts[i].p_type != PT_LOAD ||
            !inside(elf, parts[i].p_offset, parts[i].p_filesz) ||
            address < parts[i].p_vaddr ||
            address - parts[i].p_vaddr >= parts[i].p_filesz)
            continue;
        *left = parts[i].p_filesz - (address - parts[i].p_vaddr);
        return elf->data + parts[i].p_offset + (address - parts[i].p_vaddr);
    }
    return NULL;
}

/* x86-64: [endbr64] lea rax, [rip + disp32]. 0: another form. */
static uint64_t x86_target(const uint8_t *code, size_t size, uint64_t address)
{
    static const uint8_t endbr[] = {0xf3, 0x0f, 0x1e, 0xfa};
    static const uint8_t lea[] = {0x48, 0x8d, 0x05};
    size_t at = size >= 4 && memcmp(code, endbr, 4) == 0 ? 4 : 0;
    int32_t offset;

    if (size < at + 7 || memcmp(code + at, lea, 3) != 0)
        return 0;
    memcpy(&offset, code + at + 3, 4);
    return address + at + 7 + (uint64_t)(int64_t)offset;
}

/* aarch64: [bti c] adrp x0, page; add x0, x0, #offset. */
static uint64_t arm_target(const uint8_t *code, size_t size, uint64_t address)
{
    uint32_t words[3] = {0};
    unsigned i = 0;
    int64_t page;

    if (size < sizeof(words))
        return 0;
    memcpy(words, code, sizeof(words));
    if (words[0] == 0xd503245f)
        i = 1;
    if ((words[i] & 0x9f00001f) != 0x90000000 ||
        (words[i + 1] & 0xffc003ff) != 0x91000000)
        return 0;
    page = (int64_t)(words[i] >> 5 & 0x7ffff) << 2 | (words[i] >> 29 & 3);
    page = (page ^ 1 << 20) - (1 << 20); /* 21 bits, signed */
    return ((address + 4ull * i) & ~0xfffull) + (uint64_t)(page * 4096) +
           (words[i + 1] >> 10 & 0xfff);
}

static bool is_version(const char *text, size_t left, size_t size)
{
    size_t length = strnlen(text, left < size ? left : size), i;
    unsigned dots = 0;

    if (length == left || length >= size || !isdigit((unsigned char)text[0]))
        return false;
    for (i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]) && text[i] != '.')
            return false;
        dots += text[i] == '.';
    }
    return dots == 2;
}

void vmml_elf_version_of(const struct vmml_elf *elf, const char *name,
                         char *version, size_t size)
{
    const Elf64_Ehdr *header = (const void *)elf->data;
    const Elf64_Sym *function = symbol(elf, name, true);
    const uint8_t *code = NULL, *text;
    uint64_t target = 0;
    size_t left = 0;

    version[0] = '\0';
    if (function != NULL)
        code = at_address(elf, function->st_value, &left);
    if (code == NULL)
        return;
    if (header->e_machine == EM_X86_64)
        target = x86_target(code, left, function->st_value);
    else if (header->e_machine == EM_AARCH64)
        target = arm_target(code, left, function->st_value);
    text = target == 0 ? NULL : at_address(elf, target, &left);
    if (text != NULL && is_version((const char *)text, left, size))
        snprintf(version, size, "%s", (const char *)text);
}
