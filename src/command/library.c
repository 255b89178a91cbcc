/* SPDX-License-Identifier: MIT */
/* Where libvmmlane.so is: beside this command, however that was installed. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command/command.h"

/* From the command's folder: as installed, and in a build folder. */
static const char *const vmml_places[] = {
    VMML_LIBRARY_FROM_COMMAND,
    "../libvmmlane.so",
};

static int vmml_own_folder(char *folder, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", folder, size - 1);
    char *slash;

    if (length < 0)
        return -errno;
    folder[length] = '\0';
    slash = strrchr(folder, '/');
    if (slash == NULL)
        return -ENOENT;
    *slash = '\0';
    return 0;
}

int vmml_library_path(char *path, size_t size)
{
    char folder[PATH_MAX], place[PATH_MAX], found[PATH_MAX];
    int status = vmml_own_folder(folder, sizeof(folder));

    if (status != 0)
        return status;
    for (size_t i = 0; i < sizeof(vmml_places) / sizeof(*vmml_places); i++) {
        int length =
            snprintf(place, sizeof(place), "%s/%s", folder, vmml_places[i]);

        if (length < 0 || (size_t)length >= sizeof(place))
            return -ENAMETOOLONG;
        if (realpath(place, found) == NULL || access(found, R_OK) != 0)
            continue;
        if (strlen(found) >= size)
            return -ENAMETOOLONG;
        strcpy(path, found);
        return 0;
    }
    return -ENOENT;
}
