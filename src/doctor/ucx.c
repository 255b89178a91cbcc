/* SPDX-License-Identifier: MIT */
/*
 * The copies of UCX: found as files, and read as files.
 */
#include <dirent.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/remedy.h"
#include "doctor/elf.h"
#include "doctor/gates.h"
#include "doctor/paths.h"

#define COPIES_MAX 64

enum answer { NO, YES, UNKNOWN };

/* One copy: a folder with libucp and libuct, its modules in ucx/ below. */
struct copy {
    char folder[PATH_MAX];
    char libucp[PATH_MAX]; /* "" where there is none */
    char libuct[PATH_MAX];
    char module[PATH_MAX]; /* libuct_cuda */
    char version[16];      /* "1.22.0", or what its functions tell: "1.22" */
    unsigned minor;        /* 0: not known */
    enum answer deepbind;
    enum answer native;
    enum answer fabric;
    bool short_ranges; /* registers the first chunk of a longer range */
};

struct copies {
    struct copy *entries[COPIES_MAX];
    size_t count;
};

/* ---- files ---- */

/* libucp.so.0, libucp-1a2b.so, libucp_nixl.so: as doors/caller.c. */
static bool is_library(const char *file, const char *name)
{
    size_t length = strlen(name);

    return strncmp(file, name, length) == 0 && file[length] != '\0' &&
           strchr(".-_", file[length]) != NULL && strstr(file, ".so") != NULL;
}

static bool is_module(const char *file)
{
    return is_library(file, "libuct_cuda") &&
           !is_library(file, "libuct_cuda_gdrcopy");
}

static bool is_libuct(const char *file)
{
    /* A suffix may begin with '_'; so do the modules' names. */
    return is_library(file, "libuct") && strncmp(file, "libuct_", 7) != 0;
}

static bool is_libucp(const char *file)
{
    return is_library(file, "libucp");
}

/* The file of that kind in a folder; "" where there is none. */
static void find_file(const char *folder, bool (*wanted)(const char *file),
                      char path[PATH_MAX])
{
    struct dirent *entry;
    DIR *dir = opendir(folder);

    path[0] = '\0';
    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL && path[0] == '\0')
        if (wanted(entry->d_name) && snprintf(path, PATH_MAX, "%s/%s", folder,
                                              entry->d_name) >= PATH_MAX)
            path[0] = '\0';
    closedir(dir);
}

static void find_module(struct copy *copy, const char *module_dir)
{
    char folder[PATH_MAX + 8];

    snprintf(folder, sizeof(folder), "%s/ucx", copy->folder);
    find_file(folder, is_module, copy->module);
    if (copy->module[0] == '\0')
        find_file(copy->folder, is_module, copy->module);
    if (copy->module[0] == '\0' && module_dir != NULL)
        find_file(module_dir, is_module, copy->module);
}

/* ---- what the files tell ---- */

/* The functions that came with each release (read from UCX's own tags). */
static unsigned minor_by_exports(const struct vmml_elf *libuct)
{
    if (vmml_elf_exports(libuct, "uct_md_mem_elem_release"))
        return 23;
    if (vmml_elf_exports(libuct, "uct_md_mem_query_v2"))
        return 22;
    if (vmml_elf_exports(libuct, "uct_md_mem_elem_pack"))
        return 21;
    if (vmml_elf_exports(libuct, "uct_iface_mem_element_pack"))
        return 20;
    if (vmml_elf_exports(libuct, "uct_rkey_unpack_v2"))
        return 19;
    return vmml_elf_exports(libuct, "uct_md_mkey_pack_v2") ? 18 : 0;
}

static bool has_text(const char *path, const char *text)
{
    struct vmml_elf elf;
    bool found;

    if (path[0] == '\0' || vmml_elf_open(&elf, path) != 0)
        return false;
    found = vmml_elf_find(&elf, text, NULL) != NULL;
    vmml_elf_close(&elf);
    return found;
}

/* From 1.22 on, by --enable-module-deepbind. The flags of configure are in
 * ucx_info, and in libucp of newer ones. */
static void read_deepbind(struct copy *copy)
{
    char info[PATH_MAX + 32];

    copy->deepbind = UNKNOWN;
    snprintf(info, sizeof(info), "%s/../bin/ucx_info", copy->folder);
    if (copy->minor != 0 && copy->minor < 22)
        copy->deepbind = NO;
    else if (has_text(copy->libucp, "--enable-module-deepbind") ||
             has_text(info, "--enable-module-deepbind"))
        copy->deepbind = YES;
    else if (has_text(copy->libucp, "--with-cuda") ||
             has_text(info, "--with-cuda"))
        copy->deepbind = NO;
}

static void read_libucp(struct copy *copy)
{
    struct vmml_elf elf;
    unsigned major = 0, minor = 0;

    if (copy->libucp[0] == '\0' || vmml_elf_open(&elf, copy->libucp) != 0)
        return;
    vmml_elf_version_of(&elf, "ucp_get_version_string", copy->version,
                        sizeof(copy->version));
    vmml_elf_close(&elf);
    if (sscanf(copy->version, "%u.%u", &major, &minor) == 2)
        copy->minor = major > 1 ? UINT_MAX : minor;
}

static void read_libuct(struct copy *copy)
{
    struct vmml_elf elf;
    unsigned minor;

    if (copy->libuct[0] == '\0' || vmml_elf_open(&elf, copy->libuct) != 0)
        return;
    minor = minor_by_exports(&elf);
    /* With it came the correction of the short ranges, for requests of more
     * than a chunk. */
    copy->short_ranges = !vmml_elf_exports(&elf, "uct_md_mem_elem_release");
    vmml_elf_close(&elf);
    if (copy->version[0] != '\0')
        return;
    copy->minor = minor;
    snprintf(copy->version, sizeof(copy->version),
             minor == 0 ? "below 1.18" : "1.%u", minor);
}

static void read_module(struct copy *copy)
{
    struct vmml_elf elf;

    copy->native = copy->fabric = UNKNOWN;
    if (copy->module[0] == '\0' || vmml_elf_open(&elf, copy->module) != 0)
        return;
    /* As doors/caller.c: the version number says nothing. */
    copy->native = vmml_elf_imports(&elf, "syscall") &&
                   vmml_elf_find(&elf, "pidfd_getfd", NULL) != NULL;
    copy->fabric = vmml_elf_imports(&elf, "cuMemExportToShareableHandle");
    vmml_elf_close(&elf);
}

/* ---- where they are looked for ---- */

static void look_in(struct copies *copies, const char *folder,
                    const char *module_dir)
{
    struct copy *copy = calloc(1, sizeof(*copy));

    if (copy == NULL || copies->count == COPIES_MAX) {
        free(copy);
        return;
    }
    snprintf(copy->folder, sizeof(copy->folder), "%s", folder);
    find_file(folder, is_libucp, copy->libucp);
    find_file(folder, is_libuct, copy->libuct);
    if (copy->libucp[0] == '\0' || copy->libuct[0] == '\0') {
        free(copy);
        return;
    }
    find_module(copy, module_dir);
    read_libucp(copy);
    read_libuct(copy);
    read_module(copy);
    read_deepbind(copy);
    copies->entries[copies->count++] = copy;
}

/* Folders of the loader: ld.so(8), and ldconfig(8)'s configuration. */
static void add_system(struct vmml_paths *paths)
{
    static const char *const patterns[] = {
        "/usr/local/lib",   "/usr/local/lib64", "/usr/lib/*-linux-gnu",
        "/usr/lib64",       "/usr/lib",         "/opt/ucx/lib",
        "/opt/hpcx/ucx/lib"};
    size_t i;

    for (i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        vmml_paths_glob(paths, "", patterns[i]);
}

static void add_loader_file(struct vmml_paths *paths, const char *path)
{
    char line[PATH_MAX];
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return;
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, " \t#\n")] = '\0';
        if (line[0] == '/')
            vmml_paths_add(paths, line);
    }
    fclose(file);
}

static void add_loader(struct vmml_paths *paths)
{
    static const char folder[] = "/etc/ld.so.conf.d";
    char path[PATH_MAX];
    struct dirent *entry;
    DIR *dir = opendir(folder);

    add_loader_file(paths, "/etc/ld.so.conf");
    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL)
        if (snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) <
            (int)sizeof(path))
            add_loader_file(paths, path);
    closedir(dir);
}

/* libucx's and NIXL's wheels: libucx/lib, nixl_cu13.libs. */
static void add_packages(struct vmml_paths *paths, const char *site)
{
    static const char *const patterns[] = {"/*ucx*/lib",    "/*ucx*/lib64",
                                           "/*ucx*.libs",   "/*nixl*.libs",
                                           "/.*nixl*.libs", "/*nixl*/lib"};
    size_t i;

    for (i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        vmml_paths_glob(paths, site, patterns[i]);
}

static void add_from_here(struct vmml_paths *paths,
                          const struct vmml_subject *subject,
                          const struct vmml_doctor *doctor)
{
    struct vmml_paths sites = {.count = 0};
    size_t i;

    for (i = 0; doctor->places[i] != NULL; i++) {
        vmml_paths_add(paths, doctor->places[i]);
        vmml_paths_glob(paths, doctor->places[i], "/lib");
        add_packages(paths, doctor->places[i]);
    }
    if (i > 0)
        return;
    vmml_paths_add_list(paths, vmml_subject_env(subject, "LD_LIBRARY_PATH"));
    vmml_paths_python(&sites, subject, doctor);
    for (i = 0; i < sites.count; i++)
        add_packages(paths, sites.paths[i]);
    vmml_paths_free(&sites);
    if (doctor->venv == NULL) {
        add_loader(paths);
        add_system(paths);
    }
}

static void add_mapped(struct vmml_paths *paths,
                       const struct vmml_subject *subject)
{
    char path[PATH_MAX];
    size_t i;

    for (i = 0; i < subject->file_count; i++) {
        const char *slash = strrchr(subject->files[i], '/');

        if (is_libucp(slash + 1) &&
            snprintf(path, sizeof(path), "%s%.*s", subject->root,
                     (int)(slash - subject->files[i]),
                     subject->files[i]) < (int)sizeof(path))
            vmml_paths_add(paths, path);
    }
}

static void find_copies(struct copies *copies,
                        const struct vmml_subject *subject,
                        const struct vmml_doctor *doctor)
{
    struct vmml_paths paths = {.count = 0};
    const char *modules = vmml_subject_env(subject, "UCX_MODULE_DIR");
    size_t i;

    if (subject->pid != 0)
        add_mapped(&paths, subject);
    else
        add_from_here(&paths, subject, doctor);
    for (i = 0; i < paths.count; i++)
        look_in(copies, paths.paths[i], subject->pid == 0 ? modules : NULL);
    vmml_paths_free(&paths);
}

static void free_copies(struct copies *copies)
{
    while (copies->count > 0)
        free(copies->entries[--copies->count]);
}

bool vmml_ucx_loaded(const struct vmml_subject *subject,
                     struct vmml_ucx_loaded *ucx)
{
    static const char *const none[] = {NULL};
    const struct vmml_doctor doctor = {.places = none};
    struct copies copies = {.count = 0};
    bool found = false;
    size_t i;

    find_copies(&copies, subject, &doctor);
    for (i = 0; i < copies.count && !found; i++) {
        const struct copy *copy = copies.entries[i];

        found = copy->module[0] != '\0';
        snprintf(ucx->version, sizeof(ucx->version), "%s", copy->version);
        ucx->minor = copy->minor;
        ucx->fabric = copy->fabric == YES;
    }
    free_copies(&copies);
    return found;
}

/* ---- gates of a copy ---- */

static bool is_served(const struct copy *copy)
{
    return copy->minor >= 18 && copy->module[0] != '\0';
}

static void version(struct vmml_report *report, const struct copy *copy,
                    enum vmml_verdict bad)
{
    if (copy->minor < 18)
        vmml_report_add(
            report, bad, "ucx.version", copy->folder, "UCX 1.18 or newer",
            "UCX %s: vmmlane leaves what is older than 1.18 alone",
            copy->version[0] == '\0' ? "of an unknown version" : copy->version);
    else if (copy->module[0] == '\0')
        vmml_report_add(report, bad, "ucx.version", copy->folder,
                        "a UCX with its CUDA module (libucx-cu13, or "
                        "configure --with-cuda); UCX_MODULE_DIR where it lies "
                        "elsewhere",
                        "UCX %s without libuct_cuda: it knows no GPU memory",
                        copy->version);
    else
        vmml_report_add(report, VMML_PASS, "ucx.version", copy->folder, NULL,
                        "UCX %s%s", copy->version,
                        copy->fabric == NO
                            ? ", built without fabric: its keys are "
                              "understood by its own kind alone"
                            : "");
}

/* Asked for an error, and got an end: UCX 1.18's get_offload.c (measured). */
static void strict(struct vmml_report *report,
                   const struct vmml_subject *subject, const struct copy *copy)
{
    if (copy->minor == 18 &&
        vmml_subject_is_on(subject, "VMMLANE_STRICT", false))
        vmml_report_add(report, VMML_WARN, "ucx.strict", copy->folder,
                        "UCX 1.19 or newer, or unset VMMLANE_STRICT",
                        "UCX 1.18 ends the process at a read (GET) that "
                        "VMMLANE_STRICT refuses");
}

static void deepbind(struct vmml_report *report, const struct copy *copy)
{
    if (copy->deepbind == YES)
        vmml_report_add(report, VMML_NOTE, "ucx.deepbind", copy->folder,
                        "none, unless the log says that slots cannot be "
                        "changed: then " VMML_REMEDY_DEEPBIND,
                        "its modules are opened with RTLD_DEEPBIND, past every "
                        "preload: vmmlane leads their calls back");
    else
        vmml_report_add(report, copy->deepbind == NO ? VMML_PASS : VMML_SKIP,
                        "ucx.deepbind", copy->folder, NULL, "%s",
                        copy->deepbind == NO
                            ? "its modules are not opened with RTLD_DEEPBIND"
                            : "its files do not tell how it was configured");
}

static void native(struct vmml_report *report, const struct copy *copy)
{
    if (copy->native == UNKNOWN)
        vmml_report_add(report, VMML_SKIP, "ucx.native", copy->folder, NULL,
                        "%s cannot be read", copy->module);
    else
        vmml_report_add(report, VMML_PASS, "ucx.native", copy->folder, NULL,
                        "%s",
                        copy->native == YES
                            ? "shares descriptors by itself: a handle that "
                              "fills its reservation is left to it "
                              "(VMMLANE_NATIVE)"
                            : "has no POSIX_FD arm: vmmlane serves all such "
                              "memory");
}

static void extent(struct vmml_report *report, const struct copy *copy)
{
    if (copy->short_ranges)
        vmml_report_add(report, VMML_NOTE, "ucx.extent", copy->folder,
                        "none with vmmlane (VMMLANE_RANGE=extent); without it "
                        "UCX_CUDA_COPY_REG_WHOLE_ALLOC=off",
                        "registers the first chunk of a longer range: vmmlane "
                        "answers the whole extent");
    else
        vmml_report_add(report, VMML_PASS, "ucx.extent", copy->folder, NULL,
                        "keeps what was asked for where the driver's answer is "
                        "shorter");
}

static void one_copy(struct vmml_report *report,
                     const struct vmml_subject *subject,
                     const struct copy *copy, enum vmml_verdict bad)
{
    version(report, copy, bad);
    if (!is_served(copy))
        return;
    strict(report, subject, copy);
    deepbind(report, copy);
    native(report, copy);
    extent(report, copy);
}

static void judge_copies(struct vmml_report *report,
                         const struct vmml_subject *subject,
                         const struct copies *copies)
{
    size_t served = 0, i;

    for (i = 0; i < copies->count; i++)
        served += is_served(copies->entries[i]);
    if (copies->count == 0)
        vmml_report_add(
            report, subject->pid == 0 ? VMML_WARN : VMML_NOTE, "ucx.copies",
            subject->about,
            subject->pid == 0 ? "name its folder with --ucx, or the virtual "
                                "environment with --venv"
                              : NULL,
            subject->pid == 0 ? "no UCX was found from here: nothing to judge"
                              : "no UCX is loaded (yet)");
    else
        vmml_report_add(report, VMML_PASS, "ucx.copies", subject->about, NULL,
                        "%zu found, %zu can be served", copies->count, served);
    for (i = 0; i < copies->count; i++)
        one_copy(report, subject, copies->entries[i],
                 served > 0 ? VMML_WARN : VMML_FAIL);
}

/* ---- UCX's settings ---- */

/* `word` among those of a list, alone or as "\word" (UCX_TLS's strict form). */
static bool names(const char *list, const char *word)
{
    size_t wanted = strlen(word);

    list += *list == '^';
    while (*list != '\0') {
        size_t length = strcspn(list, ",");
        size_t skip = *list == '\\';

        if (length == wanted + skip &&
            strncasecmp(list + skip, word, wanted) == 0)
            return true;
        list += length + (list[length] == ',');
    }
    return false;
}

/* "cuda" stands for cuda_copy, cuda_ipc and gdr_copy (ucp_context.c). */
static bool allows(const char *list, const char *transport)
{
    bool named = names(list, transport) || names(list, "cuda");

    return list[0] == '^' ? !named : named || names(list, "all");
}

static void transports(struct vmml_report *report,
                       const struct vmml_subject *subject)
{
    const char *list = vmml_subject_env(subject, "UCX_TLS");

    if (list == NULL)
        list = "all";
    if (!allows(list, "cuda_ipc"))
        vmml_report_add(report, VMML_FAIL, "ucx.tls", subject->about,
                        "add cuda_copy,cuda_ipc to UCX_TLS, or unset it",
                        "UCX_TLS=%s leaves out cuda_ipc: no lane of that kind, "
                        "for any memory",
                        list);
    else if (!allows(list, "cuda_copy"))
        vmml_report_add(report, VMML_FAIL, "ucx.tls", subject->about,
                        "add cuda_copy to UCX_TLS, or unset it",
                        "UCX_TLS=%s leaves out cuda_copy, by which UCX knows "
                        "GPU memory",
                        list);
    else
        vmml_report_add(report, VMML_PASS, "ucx.tls", subject->about, NULL,
                        "UCX_TLS=%s allows cuda_ipc", list);
}

/* A list of patterns of glob(7), all to be loaded or, behind '^', none
 * (ucs/config/global_opts.c); libuct_cuda and libucm_cuda are both "cuda". */
static bool loads_cuda(const char *list)
{
    bool negated = *list == '^', found = false;
    char pattern[64];

    list += negated;
    while (*list != '\0') {
        size_t length = strcspn(list, ",");

        if (length < sizeof(pattern)) {
            memcpy(pattern, list, length);
            pattern[length] = '\0';
            found = found || strcmp(pattern, "all") == 0 ||
                    fnmatch(pattern, "cuda", 0) == 0;
        }
        list += length + (list[length] == ',');
    }
    return found != negated;
}

static void modules(struct vmml_report *report,
                    const struct vmml_subject *subject)
{
    const char *list = vmml_subject_env(subject, "UCX_MODULES");
    bool good = list == NULL || loads_cuda(list);

    vmml_report_add(report, good ? VMML_PASS : VMML_FAIL, "ucx.modules",
                    subject->about, "add cuda to UCX_MODULES, or unset it",
                    good ? "UCX_MODULES=%s"
                         : "UCX_MODULES=%s leaves out cuda: UCX knows no GPU "
                           "memory",
                    list == NULL ? "all" : list);
}

static bool is_yes(const char *word)
{
    return strcasecmp(word, "y") == 0 || strcasecmp(word, "yes") == 0 ||
           strcasecmp(word, "on") == 0 || strcmp(word, "1") == 0;
}

static void get_zcopy(struct vmml_report *report,
                      const struct vmml_subject *subject, int nvlinks)
{
    static const char variable[] = "UCX_CUDA_IPC_ENABLE_GET_ZCOPY";
    const char *word = vmml_subject_env(subject, variable);

    if (word != NULL && is_yes(word))
        vmml_report_add(report, VMML_PASS, "ucx.get", subject->about, NULL,
                        "%s=%s", variable, word);
    else if (nvlinks > 0)
        vmml_report_add(report, VMML_PASS, "ucx.get", subject->about, NULL,
                        "%d NVLinks: UCX reads by cuda_ipc", nvlinks);
    else if (nvlinks == -2)
        vmml_report_add(report, VMML_SKIP, "ucx.get", subject->about, NULL,
                        "%s is not set: UCX reads by cuda_ipc where GPU 0 has "
                        "NVLinks",
                        variable);
    else
        vmml_report_add(report, VMML_WARN, "ucx.get", subject->about,
                        "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y",
                        "%s: UCX writes by cuda_ipc and does not read by it, "
                        "whatever the memory",
                        nvlinks < 0
                            ? "NVML cannot be used, so UCX sees no NVLink"
                            : "no NVLink at GPU 0");
}

void vmml_gates_ucx(struct vmml_report *report,
                    const struct vmml_subject *subject,
                    const struct vmml_doctor *doctor, int nvlinks)
{
    struct copies copies = {.count = 0};

    transports(report, subject);
    modules(report, subject);
    get_zcopy(report, subject, nvlinks);
    find_copies(&copies, subject, doctor);
    judge_copies(report, subject, &copies);
    free_copies(&copies);
}
