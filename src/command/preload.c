/* SPDX-License-Identifier: MIT */
#include "command/preload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VMML_SEPARATORS " :"

bool vmml_preload_has(const char *preload, const char *library)
{
    size_t length = strlen(library);

    while (*preload != '\0') {
        size_t entry = strcspn(preload, VMML_SEPARATORS);

        if (entry == length && strncmp(preload, library, length) == 0)
            return true;
        preload += entry;
        preload += strspn(preload, VMML_SEPARATORS);
    }
    return false;
}

char *vmml_preload_append(const char *preload, const char *library)
{
    char *value;

    if (preload == NULL || preload[0] == '\0')
        return strdup(library);
    if (vmml_preload_has(preload, library))
        return strdup(preload);
    return asprintf(&value, "%s:%s", preload, library) < 0 ? NULL : value;
}

bool vmml_preload_can(const char *library)
{
    return library[strcspn(library, VMML_SEPARATORS "$")] == '\0';
}
