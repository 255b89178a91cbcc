/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's allocator and NIXL's wheel: settings and versions, without a
 * Python.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/remedy.h"
#include "doctor/gates.h"
#include "doctor/paths.h"

struct package {
    char name[64];
    char version[64];
};

/* A folder "NAME-VERSION.dist-info" whose name begins with `name` and goes on
 * with '-' or "_cu": torch-2.11.0, nixl_cu13-1.5.1. */
static bool is_package(const char *entry, const char *name,
                       struct package *package)
{
    size_t length = strlen(name);
    const char *dash = strchr(entry, '-');
    const char *end = strstr(entry, ".dist-info");

    if (strncasecmp(entry, name, length) != 0 || dash == NULL || end == NULL ||
        end <= dash ||
        (entry[length] != '-' && strncmp(entry + length, "_cu", 3) != 0))
        return false;
    snprintf(package->name, sizeof(package->name), "%.*s", (int)(dash - entry),
             entry);
    snprintf(package->version, sizeof(package->version), "%.*s",
             (int)(end - dash - 1), dash + 1);
    return true;
}

static bool find_in(const char *site, const char *name, struct package *package)
{
    struct dirent *entry;
    DIR *dir = opendir(site);
    bool found = false;

    if (dir == NULL)
        return false;
    while (!found && (entry = readdir(dir)) != NULL)
        found = is_package(entry->d_name, name, package);
    closedir(dir);
    return found;
}

static bool find_package(const struct vmml_subject *subject,
                         const struct vmml_doctor *doctor, const char *name,
                         struct package *package)
{
    struct vmml_paths sites = {.count = 0};
    bool found = false;
    size_t i;

    vmml_paths_python(&sites, subject, doctor);
    for (i = 0; doctor->places[i] != NULL; i++)
        vmml_paths_add(&sites, doctor->places[i]);
    for (i = 0; i < sites.count && !found; i++)
        found = find_in(sites.paths[i], name, package);
    vmml_paths_free(&sites);
    return found;
}

/* ---- PyTorch ---- */

/* PYTORCH_ALLOC_CONF is PyTorch's name from 2.9 on, and goes before the older
 * one there; older releases know the older one alone. */
#define NEW_NAME  "PYTORCH_ALLOC_CONF"
#define OLD_NAME  "PYTORCH_CUDA_ALLOC_CONF"
#define NEW_SINCE 9

/* "key:value,...": the value of a key begins with `value`; blanks between are
 * PyTorch's own to skip. */
static bool sets(const char *text, const char *key, const char *value)
{
    for (; text != NULL && (text = strstr(text, key)) != NULL; text++) {
        const char *at = text + strlen(key);

        at += strspn(at, " ");
        if (*at != ':')
            continue;
        at += 1 + strspn(at + 1, " ");
        if (strncmp(at, value, strlen(value)) == 0)
            return true;
    }
    return false;
}

static bool is_expandable(const char *text)
{
    return sets(text, "expandable_segments", "True");
}

struct torch {
    struct package package;
    bool found;
    unsigned minor; /* of 2.x; 0: not known */
    const char *with_new, *with_old;
};

/* What that PyTorch, or one of an unknown version, reads. */
static const char *effective(const struct torch *torch)
{
    if (torch->minor != 0 && torch->minor < NEW_SINCE)
        return torch->with_old;
    return torch->with_new != NULL ? torch->with_new : torch->with_old;
}

/* cudaMallocAsync takes from each device's current pool; the one that the
 * driver made can export nothing. */
static void pools(struct vmml_report *report,
                  const struct vmml_subject *subject, const char *text)
{
    const char *word = vmml_subject_env(subject, "VMMLANE_POOLS");
    bool changed = word != NULL && strcasecmp(word, "default") == 0;

    vmml_report_add(report, changed ? VMML_PASS : VMML_NOTE, "python.pytorch",
                    subject->about,
                    "VMMLANE_POOLS=default, or backend:native with "
                    "expandable_segments:True",
                    changed ? "%s: from pools that vmmlane makes shareable"
                            : "%s: the driver's own pool cannot be shared, and "
                              "its memory is left to UCX",
                    text);
}

static void segments(struct vmml_report *report,
                     const struct vmml_subject *subject,
                     const struct torch *torch)
{
    const char *text = effective(torch);
    bool untyped =
        vmml_subject_env(subject, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC") !=
            NULL &&
        !vmml_subject_is_on(subject, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC",
                            true);

    if (sets(text, "backend", "cudaMallocAsync"))
        pools(report, subject, text);
    else if (is_expandable(text) && untyped &&
             !vmml_subject_is_on(subject, "VMMLANE_CREATE", true))
        vmml_report_add(report, VMML_WARN, "python.pytorch", subject->about,
                        VMML_REMEDY_HANDLE_TYPE,
                        "expandable segments with "
                        "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC off have handle "
                        "type NONE, and VMMLANE_CREATE is off");
    else
        vmml_report_add(report, VMML_PASS, "python.pytorch", subject->about,
                        NULL, "%s%s%s%s", torch->found ? "PyTorch " : "",
                        torch->found ? torch->package.version : "",
                        torch->found ? ", " : "",
                        is_expandable(text)
                            ? "expandable segments: VMM memory, which vmmlane "
                              "serves"
                            : "no expandable segments: memory of cudaMalloc, "
                              "which needs no vmmlane");
}

/* Both spellings, and what the version makes of them. */
static void pytorch(struct vmml_report *report,
                    const struct vmml_subject *subject,
                    const struct vmml_doctor *doctor)
{
    struct torch torch = {.with_new = vmml_subject_env(subject, NEW_NAME),
                          .with_old = vmml_subject_env(subject, OLD_NAME)};

    torch.found = find_package(subject, doctor, "torch", &torch.package);
    if (torch.found)
        sscanf(torch.package.version, "2.%u", &torch.minor);
    if (torch.with_new != NULL && torch.with_old != NULL &&
        is_expandable(torch.with_new) != is_expandable(torch.with_old))
        vmml_report_add(report, VMML_WARN, "python.pytorch", subject->about,
                        "set both alike",
                        "%s=%s and %s=%s disagree: PyTorch reads the first "
                        "from 2.9 on, the second before",
                        NEW_NAME, torch.with_new, OLD_NAME, torch.with_old);
    else if (torch.with_new != NULL && torch.with_old == NULL &&
             torch.minor != 0 && torch.minor < NEW_SINCE)
        vmml_report_add(report, VMML_WARN, "python.pytorch", subject->about,
                        "set " OLD_NAME " as well",
                        "PyTorch %s does not read %s=%s (2.9 does)",
                        torch.package.version, NEW_NAME, torch.with_new);
    else
        segments(report, subject, &torch);
}

/* ---- NIXL ---- */

/* NIXL takes what is no known word for a yes. */
static bool is_no(const char *word)
{
    static const char *const words[] = {"0", "n", "no", "off", "false"};
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(word, words[i]) == 0)
            return true;
    return false;
}

static void nixl(struct vmml_report *report, const struct vmml_subject *subject,
                 const struct vmml_doctor *doctor)
{
    const char *deepbind = vmml_subject_env(subject, "NIXL_UCX_DEEPBIND");
    struct package package;
    bool found = find_package(subject, doctor, "nixl", &package);

    if (deepbind != NULL && !is_no(deepbind))
        vmml_report_add(report, VMML_NOTE, "python.nixl", subject->about,
                        "none, unless the log says that slots cannot be "
                        "changed: then " VMML_REMEDY_DEEPBIND,
                        "NIXL_UCX_DEEPBIND=%s binds NIXL's UCX plugin past "
                        "every preload: vmmlane leads its calls back",
                        deepbind);
    else if (found)
        vmml_report_add(report, VMML_PASS, "python.nixl", subject->about, NULL,
                        "%s %s, with a UCX of its own (group ucx)",
                        package.name, package.version);
    else
        vmml_report_add(report, VMML_PASS, "python.nixl", subject->about, NULL,
                        "no wheel of NIXL found");
}

void vmml_gates_python(struct vmml_report *report,
                       const struct vmml_subject *subject,
                       const struct vmml_doctor *doctor)
{
    pytorch(report, subject, doctor);
    nixl(report, subject, doctor);
}
