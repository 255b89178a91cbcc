/* SPDX-License-Identifier: MIT */
/*
 * Lists of folders, and where Python keeps its packages.
 */
#ifndef VMML_DOCTOR_PATHS_H
#define VMML_DOCTOR_PATHS_H

#include <stddef.h>

#include "doctor/gates.h"

#define VMML_PATHS_MAX 256

/* Folders, each once, by what they lead to; more than VMML_PATHS_MAX are left
 * out. */
struct vmml_paths {
    char *paths[VMML_PATHS_MAX];
    size_t count;
};

/* Adds `path` where it is a folder. */
void vmml_paths_add(struct vmml_paths *paths, const char *path);

/* Adds the folders that match: `base` as it is, then a pattern of glob(7). */
void vmml_paths_glob(struct vmml_paths *paths, const char *base,
                     const char *pattern);

/* Adds each of a list with ':' between; NULL: none. */
void vmml_paths_add_list(struct vmml_paths *paths, const char *list);

void vmml_paths_free(struct vmml_paths *paths);

/* Adds the folders that hold packages for the Python that the subject would
 * use (or a running one uses): the given virtual environment alone, else
 * VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH, the python3 in PATH, the user's and
 * the system's. */
void vmml_paths_python(struct vmml_paths *paths,
                       const struct vmml_subject *subject,
                       const struct vmml_doctor *doctor);

#endif
