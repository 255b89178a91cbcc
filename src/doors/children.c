/* SPDX-License-Identifier: MIT */
/*
 * VMMLANE_CHILDREN=off: what this process starts does not inherit the shim. It
 * takes itself out of LD_PRELOAD before main, in place: shells and
 * interpreters copy the environment later, and no memory is needed. What else
 * is preloaded stays.
 */
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "doors/module.h"

#define VMML_PRELOAD    "LD_PRELOAD="
#define VMML_SEPARATORS " :" /* ld.so(8) */

static const char *vmml_file_of(const char *path, size_t length)
{
    const char *slash = memrchr(path, '/', length);

    return slash != NULL ? slash + 1 : path;
}

/* By path, or by file name: the loader may have found it through a folder. */
static bool vmml_entry_is_own(const char *entry, size_t length, const char *own)
{
    const char *file = vmml_file_of(entry, length);
    const char *own_file = vmml_file_of(own, strlen(own));
    size_t file_length = length - (size_t)(file - entry);

    return strlen(own_file) == file_length &&
           strncmp(file, own_file, file_length) == 0;
}

/* Returns whether an entry is left. */
static bool vmml_take_out(char *value, const char *own)
{
    const char *entry = value;
    char *end = value;

    while (*entry != '\0') {
        size_t length = strcspn(entry, VMML_SEPARATORS);
        const char *next = entry + length;

        if (length > 0 && !vmml_entry_is_own(entry, length, own)) {
            if (end != value)
                *end++ = ':';
            memmove(end, entry, length);
            end += length;
        }
        entry = next + (*next != '\0' ? 1 : 0);
    }
    *end = '\0';
    return end != value;
}

static void vmml_leave_environment(char **variables, const char *own)
{
    const size_t prefix = strlen(VMML_PRELOAD);
    char **kept = variables;

    for (; *variables != NULL; variables++) {
        if (strncmp(*variables, VMML_PRELOAD, prefix) == 0 &&
            !vmml_take_out(*variables + prefix, own))
            continue;
        *kept++ = *variables;
    }
    *kept = NULL;
}

/*
 * Is it set at all? Asked in every program that is started, so without a call
 * of libc, which the loader would have to find, and with a name that lies in
 * .data, in a page that the loader has written: one less is read from the file.
 */
static bool vmml_is_mentioned(char **variables)
{
    static char name[] __attribute__((section(".data"))) = "VMMLANE_CHILDREN=";
    size_t i;

    for (; *variables != NULL; variables++) {
        for (i = 0; name[i] != '\0' && (*variables)[i] == name[i]; i++)
            ;
        if (name[i] == '\0')
            return true;
    }
    return false;
}

__attribute__((constructor)) static void vmml_children_first(void)
{
    struct vmml_module own;

    if (environ == NULL || !vmml_is_mentioned(environ) || vmml_conf_children())
        return;
    if (vmml_module_walk((const void *)&vmml_children_first, &own))
        vmml_leave_environment(environ, own.name);
}
