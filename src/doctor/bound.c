/* SPDX-License-Identifier: MIT */
/*
 * Where the calls of a running process's UCX lead: read in its memory. A module
 * that was opened with RTLD_DEEPBIND calls past every preload, until the shim
 * leads its calls back (doors/rebind.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/remedy.h"
#include "doctor/elf.h"
#include "doctor/gates.h"

/* The calls that the lane cannot do without, of libucp and of libuct_cuda. */
static const char *const calls[] = {
    "uct_md_mem_reg_v2",       "uct_md_mkey_pack_v2", "uct_rkey_unpack",
    "uct_rkey_unpack_v2",      "cuIpcGetMemHandle",   "cuIpcOpenMemHandle_v2",
    "cuMemGetAddressRange_v2",
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

struct mapping {
    uint64_t start, end;
    const char *path; /* "" for none */
};

struct bound {
    const struct vmml_subject *subject;
    int memory; /* /proc/PID/mem */
    char *text; /* of its maps */
    struct mapping *maps;
    size_t count;
    unsigned through, not_yet, past;
    char first_past[128]; /* "a call of FILE leads to FILE" */
};

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

/* ---- its maps, with addresses ---- */

static bool read_maps(struct bound *b)
{
    char path[32], *line = NULL;
    size_t size = 0, length = 0;
    FILE *file, *copy;

    snprintf(path, sizeof(path), "%s/maps", b->subject->proc);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    copy = open_memstream(&b->text, &length);
    while (copy != NULL && getline(&line, &size, file) > 0)
        fputs(line, copy);
    free(line);
    fclose(file);
    return copy != NULL && fclose(copy) == 0 && b->text != NULL;
}

static bool parse_maps(struct bound *b)
{
    char *line, *state = NULL;
    size_t lines = 0;
    const char *at;

    for (at = b->text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    b->maps = calloc(lines + 1, sizeof(*b->maps));
    b->count = 0;
    if (b->maps == NULL)
        return false;
    for (line = strtok_r(b->text, "\n", &state);
         line != NULL && b->count < lines;
         line = strtok_r(NULL, "\n", &state)) {
        struct mapping *map = &b->maps[b->count++];
        char *end;

        map->start = strtoull(line, &end, 16);
        map->end = *end == '-' ? strtoull(end + 1, NULL, 16) : 0;
        map->path = strchr(line, '/') == NULL ? "" : strchr(line, '/');
    }
    return true;
}

static const char *path_at(const struct bound *b, uint64_t address)
{
    size_t i;

    for (i = 0; i < b->count; i++)
        if (address >= b->maps[i].start && address < b->maps[i].end)
            return b->maps[i].path;
    return "";
}

/* ---- a module ---- */

static void look_at(struct bound *b, const char *path, uint64_t slot)
{
    uint64_t target = 0;
    const char *file;

    if (pread(b->memory, &target, sizeof(target), (off_t)slot) !=
        (ssize_t)sizeof(target))
        return;
    file = path_at(b, target);
    if (strncmp(file_name(file), "libvmmlane", 10) == 0) {
        b->through++;
    } else if (strcmp(file, path) == 0 || file[0] == '\0') {
        /* Its own stub: resolved at the first call. */
        b->not_yet++;
    } else {
        if (b->past++ == 0)
            snprintf(b->first_past, sizeof(b->first_past),
                     "a call of %.50s leads to %.50s", file_name(path),
                     file_name(file));
    }
}

/* The image of a shared object begins at address 0, with its first byte. */
static void look_in(struct bound *b, const struct mapping *map)
{
    char path[PATH_MAX];
    struct vmml_elf elf;
    uint64_t slot;
    size_t i;

    if (snprintf(path, sizeof(path), "%s%s", b->subject->root, map->path) >=
            (int)sizeof(path) ||
        vmml_elf_open(&elf, path) != 0)
        return;
    for (i = 0; i < CALLS; i++)
        if (vmml_elf_slot(&elf, calls[i], &slot))
            look_at(b, map->path, map->start + slot);
    vmml_elf_close(&elf);
}

static bool is_ucx(const char *file)
{
    return (strncmp(file, "libucp", 6) == 0 ||
            strncmp(file, "libuct_cuda", 11) == 0) &&
           strncmp(file, "libuct_cuda_gdrcopy", 19) != 0;
}

static void look(struct bound *b)
{
    size_t i;

    /* A file's mappings follow each other; the first has its beginning. */
    for (i = 0; i < b->count; i++)
        if (is_ucx(file_name(b->maps[i].path)) &&
            (i == 0 || strcmp(b->maps[i - 1].path, b->maps[i].path) != 0))
            look_in(b, &b->maps[i]);
}

/* ---- the gate ---- */

static void judge(struct vmml_report *report, const struct bound *b)
{
    const char *about = b->subject->about;

    if (b->past > 0)
        vmml_report_add(report, VMML_WARN, "process.bound", about,
                        VMML_REMEDY_DEEPBIND,
                        "%u calls of UCX lead past vmmlane (%s), %u through "
                        "it: RTLD_DEEPBIND, or libraries that were loaded "
                        "before it",
                        b->past, b->first_past, b->through);
    else if (b->through == 0)
        vmml_report_add(report, VMML_SKIP, "process.bound", about, NULL,
                        b->not_yet == 0
                            ? "no UCX is loaded (yet)"
                            : "its UCX has made none of the calls (yet)");
    else
        vmml_report_add(report, VMML_PASS, "process.bound", about, NULL,
                        "%u calls of UCX lead through vmmlane, %u were not "
                        "made yet",
                        b->through, b->not_yet);
}

void vmml_gates_bound(struct vmml_report *report,
                      const struct vmml_subject *subject)
{
    struct bound b = {.subject = subject};
    char path[32];

    if (vmml_subject_file(subject, "libvmmlane") == NULL)
        return;
    snprintf(path, sizeof(path), "%s/mem", subject->proc);
    b.memory = open(path, O_RDONLY | O_CLOEXEC);
    if (b.memory < 0) {
        vmml_report_add(report, VMML_SKIP, "process.bound", subject->about,
                        NULL, "its memory cannot be read: %s", strerror(errno));
        return;
    }
    if (read_maps(&b) && parse_maps(&b))
        look(&b);
    judge(report, &b);
    free(b.maps);
    free(b.text);
    close(b.memory);
}
