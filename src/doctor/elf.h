/* SPDX-License-Identifier: MIT */
/*
 * A shared object as a file: nothing of it is loaded or run, and nothing in it
 * is believed.
 */
#ifndef VMML_DOCTOR_ELF_H
#define VMML_DOCTOR_ELF_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vmml_elf {
    uint8_t *data;
    size_t size;
    const Elf64_Sym *symbols;
    size_t symbol_count;
    const char *names;
    size_t names_size;
};

/* 0, or -errno: ENOEXEC it is no 64-bit little-endian ELF file with dynamic
 * symbols. */
int vmml_elf_open(struct vmml_elf *elf, const char *path);
/* The same for what was read: `data` is malloc'ed and changes its owner. */
int vmml_elf_take(struct vmml_elf *elf, void *data, size_t size);
void vmml_elf_close(struct vmml_elf *elf);

bool vmml_elf_exports(const struct vmml_elf *elf, const char *name);
bool vmml_elf_imports(const struct vmml_elf *elf, const char *name);

/* The first place of `text` in the file, or NULL; *left: bytes from there. */
const char *vmml_elf_find(const struct vmml_elf *elf, const char *text,
                          size_t *left);

/* Where the loader puts the address of the imported function `name`: an
 * address of the loaded image, from its base. False where it is not called. */
bool vmml_elf_slot(const struct vmml_elf *elf, const char *name,
                   uint64_t *address);

/* The constant string "N.N.N" that the function `name` returns, from its
 * machine code; "" where that is not of the usual form. */
void vmml_elf_version_of(const struct vmml_elf *elf, const char *name,
                         char *version, size_t size);

#endif
