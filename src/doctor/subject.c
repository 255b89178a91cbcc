/* SPDX-License-Identifier: MIT */
#include "doctor/subject.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a file of /proc: more is not read. */
#define READ_MAX (16u << 20)

const char *const vmml_namespace_names[VMML_NS_COUNT] = {
    [VMML_NS_PID] = "pid",
    [VMML_NS_NET] = "net",
    [VMML_NS_USER] = "user",
    [VMML_NS_MNT] = "mnt",
};

/* ---- files of /proc ---- */

/* Its text, with a NUL behind it; the caller frees it. NULL with errno. */
static char *read_file(const struct vmml_subject *subject, const char *name,
                       size_t *length)
{
    size_t size = 4096, used = 0;
    char path[48];
    char *text = malloc(size);
    ssize_t got = 1;
    int fd;

    snprintf(path, sizeof(path), "%s/%s", subject->proc, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && text != NULL && got > 0 && used < READ_MAX) {
        got = read(fd, text + used, size - used - 1);
        used += got > 0 ? (size_t)got : 0;
        if (used + 1 == size) {
            char *larger = realloc(text, size *= 2);

            if (larger == NULL)
                got = -1;
            else
                text = larger;
        }
    }
    if (fd >= 0)
        close(fd);
    if (fd < 0 || text == NULL || got < 0) {
        free(text);
        return NULL;
    }
    text[used] = '\0';
    if (length != NULL)
        *length = used;
    return text;
}

/* What is behind `label` in a file of "label   value" lines, or NULL. */
static const char *value_of(const char *text, const char *label)
{
    size_t length = strlen(label);

    while (text != NULL) {
        if (strncmp(text, label, length) == 0)
            return text + length + strspn(text + length, " \t");
        text = strchr(text, '\n');
        if (text != NULL)
            text++;
    }
    return NULL;
}

static uint64_t number_of(const char *text, const char *label, int base)
{
    const char *value = value_of(text, label);

    return value == NULL ? 0 : strtoull(value, NULL, base);
}

/* The second word of "Uid:" and "Gid:" is the effective one. */
static unsigned effective_of(const char *text, const char *label)
{
    const char *value = value_of(text, label);
    char *end;

    if (value == NULL)
        return 0;
    strtoul(value, &end, 10);
    return (unsigned)strtoul(end, NULL, 10);
}

/* "NSpid:" has its number in each PID namespace, its own last. */
static pid_t innermost(const char *text)
{
    const char *value = value_of(text, "NSpid:");
    pid_t pid = 0;
    char *end;

    while (value != NULL && *value >= '0' && *value <= '9') {
        pid = (pid_t)strtoul(value, &end, 10);
        value = end + strspn(end, " \t");
    }
    return pid;
}

static void read_status(struct vmml_subject *subject)
{
    char *text = read_file(subject, "status", NULL);
    struct stat status;
    char path[32];

    if (text == NULL)
        return;
    subject->status_known = true;
    subject->uid = effective_of(text, "Uid:");
    subject->gid = effective_of(text, "Gid:");
    subject->own_pid = innermost(text);
    subject->seccomp = (int)number_of(text, "Seccomp:", 10);
    subject->capabilities = number_of(text, "CapEff:", 16);
    subject->permitted = number_of(text, "CapPrm:", 16);
    free(text);
    subject->owner = subject->uid;
    /* The folder itself is its user's even then. */
    snprintf(path, sizeof(path), "%s/status", subject->proc);
    if (stat(path, &status) == 0)
        subject->owner = status.st_uid;
}

static void read_user_map(struct vmml_subject *subject)
{
    char *text = read_file(subject, "uid_map", NULL);

    /* An empty one maps nobody: all are the overflow user there. */
    subject->uid_mapped = text == NULL || text[0] != '\0';
    free(text);
}

static uint64_t limit_word(const char **value)
{
    uint64_t number = UINT64_MAX;
    char *end;

    if (strncmp(*value, "unlimited", 9) == 0) {
        *value += 9;
    } else {
        number = strtoull(*value, &end, 10);
        *value = end;
    }
    *value += strspn(*value, " ");
    return number;
}

static void read_limits(struct vmml_subject *subject)
{
    char *text = read_file(subject, "limits", NULL);
    const char *files = value_of(text, "Max open files");
    const char *space = value_of(text, "Max address space");
    const char *size = value_of(text, "Max file size");

    if (files != NULL && space != NULL && size != NULL) {
        subject->limits_known = true;
        subject->descriptors_soft = limit_word(&files);
        subject->descriptors_hard = limit_word(&files);
        /* The soft ones are what mmap(2) and ftruncate(2) meet. */
        subject->address_space = limit_word(&space);
        subject->file_size = limit_word(&size);
    }
    free(text);
}

static void read_descriptors(struct vmml_subject *subject)
{
    struct dirent *entry;
    char path[32];
    DIR *dir;

    snprintf(path, sizeof(path), "%s/fd", subject->proc);
    dir = opendir(path);
    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL)
        subject->descriptors_used += entry->d_name[0] != '.';
    closedir(dir);
}

static void read_namespaces(struct vmml_subject *subject)
{
    struct stat status;
    char path[48];
    int i;

    for (i = 0; i < VMML_NS_COUNT; i++) {
        snprintf(path, sizeof(path), "%s/ns/%s", subject->proc,
                 vmml_namespace_names[i]);
        if (stat(path, &status) == 0)
            subject->namespaces[i] = status.st_ino;
    }
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void drop_doubles(struct vmml_subject *subject)
{
    size_t i, kept = 0;

    if (subject->file_count == 0)
        return;
    qsort(subject->files, subject->file_count, sizeof(char *), compare_paths);
    for (i = 0; i < subject->file_count; i++) {
        if (kept > 0 &&
            strcmp(subject->files[kept - 1], subject->files[i]) == 0)
            free(subject->files[i]);
        else
            subject->files[kept++] = subject->files[i];
    }
    subject->file_count = kept;
}

static bool add_file(struct vmml_subject *subject, const char *path)
{
    char **files = subject->files;

    if (subject->file_count % 256 == 0) {
        files = realloc(files, (subject->file_count + 256) * sizeof(*files));
        if (files == NULL)
            return false;
        subject->files = files;
    }
    files[subject->file_count] = strdup(path);
    return files[subject->file_count] != NULL && ++subject->file_count > 0;
}

static void read_maps(struct vmml_subject *subject)
{
    char *text = read_file(subject, "maps", NULL), *line, *state = NULL, *path;

    if (text == NULL)
        return;
    subject->files_known = true;
    for (line = strtok_r(text, "\n", &state); line != NULL;
         line = strtok_r(NULL, "\n", &state)) {
        path = strchr(line, '/');
        if (path != NULL && !add_file(subject, path))
            subject->files_known = false;
    }
    free(text);
    drop_doubles(subject);
}

/* As getenv(3) would see it now, which the file does not tell. */
static void copy_environment(struct vmml_subject *subject)
{
    size_t size = 0;
    char **entry, *at;

    for (entry = environ; *entry != NULL; entry++)
        size += strlen(*entry) + 1;
    at = subject->environment = malloc(size + 1);
    if (at == NULL)
        return;
    for (entry = environ; *entry != NULL; entry++)
        at = stpcpy(at, *entry) + 1;
    subject->environment_size = size;
    subject->environment_known = true;
}

static void read_environment(struct vmml_subject *subject)
{
    if (subject->pid == 0) {
        copy_environment(subject);
        return;
    }
    subject->environment =
        read_file(subject, "environ", &subject->environment_size);
    subject->environment_known = subject->environment != NULL;
}

static void read_command(struct vmml_subject *subject)
{
    char *text = read_file(subject, "comm", NULL);

    if (text == NULL)
        return;
    text[strcspn(text, "\n")] = '\0';
    snprintf(subject->command, sizeof(subject->command), "%s", text);
    free(text);
}

int vmml_subject_read(struct vmml_subject *subject, pid_t pid)
{
    memset(subject, 0, sizeof(*subject));
    subject->pid = pid;
    if (pid == 0) {
        snprintf(subject->proc, sizeof(subject->proc), "/proc/self");
    } else {
        snprintf(subject->proc, sizeof(subject->proc), "/proc/%d", (int)pid);
        snprintf(subject->root, sizeof(subject->root), "/proc/%d/root",
                 (int)pid);
        snprintf(subject->about, sizeof(subject->about), "process %d",
                 (int)pid);
        if (access(subject->proc, F_OK) != 0)
            return -ESRCH;
    }
    read_command(subject);
    read_environment(subject);
    read_status(subject);
    read_user_map(subject);
    read_limits(subject);
    read_descriptors(subject);
    read_namespaces(subject);
    read_maps(subject);
    return 0;
}

void vmml_subject_free(struct vmml_subject *subject)
{
    size_t i;

    for (i = 0; i < subject->file_count; i++)
        free(subject->files[i]);
    free(subject->files);
    free(subject->environment);
    memset(subject, 0, sizeof(*subject));
}

/* ---- questions ---- */

const char *vmml_subject_env(const struct vmml_subject *subject,
                             const char *name)
{
    const char *at = subject->environment;
    const char *end = at + subject->environment_size;
    size_t length = strlen(name);

    for (; at != NULL && at < end; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at[length + 1] == '\0' ? NULL : at + length + 1;
    return NULL;
}

bool vmml_subject_is_on(const struct vmml_subject *subject, const char *name,
                        bool otherwise)
{
    static const char *const on[] = {"on", "1", "y", "yes", "true"};
    static const char *const off[] = {"off", "0", "n", "no", "false"};
    const char *word = vmml_subject_env(subject, name);
    size_t i;

    for (i = 0; word != NULL && i < sizeof(on) / sizeof(on[0]); i++) {
        if (strcasecmp(word, on[i]) == 0)
            return true;
        if (strcasecmp(word, off[i]) == 0)
            return false;
    }
    return otherwise;
}

bool vmml_subject_may_trace(const struct vmml_subject *subject)
{
    return (subject->capabilities >> VMML_CAP_SYS_PTRACE & 1) != 0;
}

const char *vmml_subject_file(const struct vmml_subject *subject,
                              const char *start)
{
    size_t i;

    for (i = 0; i < subject->file_count; i++) {
        const char *slash = strrchr(subject->files[i], '/');

        if (strncmp(slash + 1, start, strlen(start)) == 0)
            return subject->files[i];
    }
    return NULL;
}
