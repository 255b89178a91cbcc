/* SPDX-License-Identifier: MIT */
#include "command/program.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* As execvp(3) looks for it; -1: not found. */
static int vmml_open_program(const char *name)
{
    const char *folders = getenv("PATH");
    char path[PATH_MAX];

    if (strchr(name, '/') != NULL)
        return open(name, O_RDONLY | O_CLOEXEC);
    if (folders == NULL)
        folders = "/bin:/usr/bin"; /* confstr(3), _CS_PATH */
    for (;;) {
        int length = (int)strcspn(folders, ":");
        int size = snprintf(path, sizeof(path), "%.*s%s%s", length, folders,
                            length > 0 ? "/" : "", name);

        if (size > 0 && (size_t)size < sizeof(path) && access(path, X_OK) == 0)
            return open(path, O_RDONLY | O_CLOEXEC);
        if (folders[length] == '\0')
            return -1;
        folders += length + 1;
    }
}

static bool vmml_read_at(int fd, void *data, size_t size, uint64_t offset)
{
    return offset <= INT64_MAX &&
           pread(fd, data, size, (off_t)offset) == (ssize_t)size;
}

/* The path of the program's loader; "" for none. False: no ELF file that this
 * kernel would run as a 64-bit program. */
static bool vmml_loader_of(int fd, char *loader, size_t size)
{
    Elf64_Ehdr header;
    Elf64_Phdr segment;

    loader[0] = '\0';
    if (!vmml_read_at(fd, &header, sizeof(header), 0) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_phentsize != sizeof(segment))
        return false;
    for (unsigned i = 0; i < header.e_phnum; i++) {
        if (!vmml_read_at(fd, &segment, sizeof(segment),
                          header.e_phoff + (uint64_t)i * sizeof(segment)))
            return false;
        if (segment.p_type != PT_INTERP)
            continue;
        if (segment.p_filesz == 0 || segment.p_filesz > size ||
            !vmml_read_at(fd, loader, segment.p_filesz, segment.p_offset))
            return false;
        loader[segment.p_filesz - 1] = '\0';
        return true;
    }
    return true;
}

static bool vmml_changes_id(const struct stat *status)
{
    return ((status->st_mode & S_ISUID) != 0 && status->st_uid != geteuid()) ||
           ((status->st_mode & S_ISGID) != 0 && status->st_gid != getegid());
}

enum vmml_program vmml_program_kind(const char *name)
{
    enum vmml_program kind = VMML_PROGRAM_USUAL;
    char loader[PATH_MAX];
    struct stat status;
    int fd = vmml_open_program(name);

    if (fd < 0)
        return kind;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        if (vmml_changes_id(&status))
            kind = VMML_PROGRAM_SET_ID;
        else if (!vmml_loader_of(fd, loader, sizeof(loader)))
            kind = VMML_PROGRAM_USUAL;
        else if (loader[0] == '\0')
            kind = VMML_PROGRAM_STATIC;
        else if (strstr(loader, "/ld-musl-") != NULL)
            kind = VMML_PROGRAM_MUSL;
    }
    close(fd);
    return kind;
}
