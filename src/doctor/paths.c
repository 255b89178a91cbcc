/* SPDX-License-Identifier: MIT */
#include "doctor/paths.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void vmml_paths_add(struct vmml_paths *paths, const char *path)
{
    char *real = realpath(path, NULL);
    struct stat status;
    size_t i;

    if (real == NULL || stat(real, &status) != 0 || !S_ISDIR(status.st_mode) ||
        paths->count == VMML_PATHS_MAX) {
        free(real);
        return;
    }
    for (i = 0; i < paths->count; i++) {
        if (strcmp(paths->paths[i], real) == 0) {
            free(real);
            return;
        }
    }
    paths->paths[paths->count++] = real;
}

/* `base` may hold characters that glob(7) would take for its own. */
static void escape(const char *base, char *text, size_t size)
{
    size_t used = 0;

    for (; *base != '\0' && used + 2 < size; base++) {
        if (strchr("*?[\\", *base) != NULL)
            text[used++] = '\\';
        text[used++] = *base;
    }
    text[used] = '\0';
}

void vmml_paths_glob(struct vmml_paths *paths, const char *base,
                     const char *pattern)
{
    char text[2 * PATH_MAX];
    glob_t found;
    size_t i, length;

    escape(base, text, PATH_MAX);
    length = strlen(text);
    snprintf(text + length, sizeof(text) - length, "%s", pattern);
    if (glob(text, GLOB_ONLYDIR, NULL, &found) == 0) {
        for (i = 0; i < found.gl_pathc; i++)
            vmml_paths_add(paths, found.gl_pathv[i]);
        globfree(&found);
    }
}

void vmml_paths_add_list(struct vmml_paths *paths, const char *list)
{
    char path[PATH_MAX];

    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ":");

        if (length > 0 && length < sizeof(path)) {
            memcpy(path, list, length);
            path[length] = '\0';
            vmml_paths_add(paths, path);
        }
        list += length + (list[length] == ':');
    }
}

void vmml_paths_free(struct vmml_paths *paths)
{
    while (paths->count > 0)
        free(paths->paths[--paths->count]);
}

/* ---- Python ---- */

static void add_prefix(struct vmml_paths *paths, const char *prefix)
{
    if (prefix != NULL)
        vmml_paths_glob(paths, prefix, "/lib*/python3*/site-packages");
}

/* The python3 that PATH finds, as it is called: a virtual environment's is a
 * link to another. */
static void add_interpreter(struct vmml_paths *paths, const char *list)
{
    char path[PATH_MAX], program[PATH_MAX + 16];

    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ":");

        if (length > 0 && length < sizeof(path)) {
            memcpy(path, list, length);
            path[length] = '\0';
            snprintf(program, sizeof(program), "%s/python3", path);
            if (access(program, X_OK) == 0) {
                snprintf(program, sizeof(program), "%s/..", path);
                add_prefix(paths, program);
                return;
            }
        }
        list += length + (list[length] == ':');
    }
}

/* Where a process has loaded modules from. */
static void add_loaded(struct vmml_paths *paths,
                       const struct vmml_subject *subject)
{
    static const char *const folders[] = {"/site-packages/", "/dist-packages/"};
    char path[PATH_MAX];
    size_t i, j;

    for (i = 0; i < subject->file_count; i++) {
        for (j = 0; j < 2; j++) {
            const char *file = subject->files[i];
            const char *at = strstr(file, folders[j]);

            if (at != NULL &&
                snprintf(path, sizeof(path), "%s%.*s", subject->root,
                         (int)(at - file + (long)strlen(folders[j])),
                         file) < (int)sizeof(path))
                vmml_paths_add(paths, path);
        }
    }
}

void vmml_paths_python(struct vmml_paths *paths,
                       const struct vmml_subject *subject,
                       const struct vmml_doctor *doctor)
{
    const char *home = vmml_subject_env(subject, "HOME");

    if (subject->pid == 0 && doctor->venv != NULL) {
        add_prefix(paths, doctor->venv);
        return;
    }
    /* Of ourselves: where the command was installed as a package. */
    add_loaded(paths, subject);
    if (subject->pid != 0)
        return;
    add_prefix(paths, vmml_subject_env(subject, "VIRTUAL_ENV"));
    add_prefix(paths, vmml_subject_env(subject, "CONDA_PREFIX"));
    vmml_paths_add_list(paths, vmml_subject_env(subject, "PYTHONPATH"));
    add_interpreter(paths, vmml_subject_env(subject, "PATH"));
    if (home != NULL)
        vmml_paths_glob(paths, home, "/.local/lib/python3*/site-packages");
    vmml_paths_glob(paths, "", "/usr/local/lib/python3*/dist-packages");
    vmml_paths_glob(paths, "", "/usr/lib/python3*/dist-packages");
}
