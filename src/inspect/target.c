/* SPDX-License-Identifier: MIT */
#include "inspect/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/spelling.h"
#include "stats/names.h"

#define LEDGER_NAME "vmmlane-ledger"

/* So often an entry that is being written is read. */
#define TRIES 1000

/* ---- files of /proc ---- */

/* Text of up to size - 1 bytes, with a zero. Returns its length or -errno. */
static ssize_t read_file(pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];
    ssize_t length;
    size_t used = 0;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while (used + 1 < size &&
           (length = read(fd, text + used, size - 1 - used)) != 0) {
        if (length > 0) {
            used += (size_t)length;
        } else if (errno != EINTR) {
            int error = errno;

            close(fd);
            return -error;
        }
    }
    close(fd);
    text[used] = '\0';
    return (ssize_t)used;
}

static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

static void read_name(struct vmml_target *target)
{
    if (read_file(target->pid, "comm", target->name, sizeof(target->name)) < 0)
        target->name[0] = '\0';
    target->name[strcspn(target->name, "\n")] = '\0';
    make_printable(target->name);
}

/* The last number of "NSpid:" is the one in its own namespace (proc(5)). */
static uint32_t read_own_pid(pid_t pid)
{
    char text[8192];
    const char *at;
    uint32_t number = (uint32_t)pid;
    char *end;

    if (read_file(pid, "status", text, sizeof(text)) <= 0)
        return number;
    at = strstr(text, "\nNSpid:");
    if (at == NULL)
        return number;
    for (at += strlen("\nNSpid:");; at = end) {
        unsigned long value = strtoul(at, &end, 10);

        if (end == at)
            return number;
        number = (uint32_t)value;
        if (*end == '\n')
            return number;
    }
}

/* As it was when the program was started (proc(5)). */
static void read_settings(struct vmml_target *target)
{
    size_t size = 1 << 20, used = 0;
    char *text = malloc(size);
    ssize_t length;
    const char *at;

    target->settings[0] = '\0';
    if (text == NULL)
        return;
    length = read_file(target->pid, "environ", text, size);
    for (at = text; length > 0 && at < text + length; at += strlen(at) + 1) {
        size_t room = sizeof(target->settings) - used;
        char name[VMML_SETTING_NAME_MAX];
        const char *meant;
        bool wrong = vmml_misspelt(at, name, &meant);
        int written;

        if (!wrong && !vmml_is_setting(at))
            continue;
        written =
            snprintf(target->settings + used, room, "%s%s%s",
                     used > 0 ? " " : "", at, wrong ? " (no setting)" : "");
        if (written < 0 || (size_t)written >= room)
            break;
        used += (size_t)written;
    }
    free(text);
    make_printable(target->settings);
}

static unsigned long read_limit(pid_t pid)
{
    static const char line[] = "Max open files";
    char text[8192];
    const char *at;

    if (read_file(pid, "limits", text, sizeof(text)) <= 0)
        return 0;
    at = strstr(text, line);
    return at == NULL ? 0 : strtoul(at + sizeof(line) - 1, NULL, 10);
}

/* Calls `see` for each line of /proc/PID/maps until it returns false. Returns
 * 0 or an errno. */
static int each_mapping(pid_t pid, bool (*see)(const char *line, void *arg),
                        void *arg)
{
    char path[64], *line = NULL;
    size_t size = 0;
    FILE *maps;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    maps = fopen(path, "re");
    if (maps == NULL)
        return errno;
    while (getline(&line, &size, maps) > 0)
        if (!see(line, arg))
            break;
    free(line);
    fclose(maps);
    return 0;
}

static bool see_library(const char *line, void *arg)
{
    static const char name[] = "/libvmmlane.so";
    struct vmml_target *target = arg;
    const char *path = strchr(line, '/');
    const char *found = path == NULL ? NULL : strstr(path, name);

    if (found == NULL)
        return true;
    target->loaded = true;
    snprintf(target->library, sizeof(target->library), "%.*s",
             (int)(found - path + (ptrdiff_t)sizeof(name) - 1), path);
    make_printable(target->library);
    return false;
}

/* ---- descriptors ---- */

static bool has_seals(int fd)
{
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & needed) == needed;
}

static int check_stats(const struct vmml_stats_file *stats)
{
    const struct vmml_stats_header *header = &stats->header;

    if (header->magic != VMML_STATS_MAGIC)
        return EPROTO;
    if (header->version != VMML_STATS_VERSION ||
        header->size != sizeof(*stats) || header->names != vmml_stats_names())
        return EPROTONOSUPPORT;
    return 0;
}

/* Of a memfd of tmpfs alone: no page of it can go while it is read. */
static int map_stats(int fd, const struct vmml_stats_file **stats)
{
    struct statfs fs;
    struct stat file;
    uint64_t magic;
    void *map;
    int error;

    if (fstat(fd, &file) != 0 || fstatfs(fd, &fs) != 0)
        return errno;
    if (!S_ISREG(file.st_mode) || fs.f_type != TMPFS_MAGIC || !has_seals(fd))
        return EPROTO;
    if (file.st_size != (off_t)sizeof(**stats))
        return pread(fd, &magic, sizeof(magic), 0) == sizeof(magic) &&
                       magic == VMML_STATS_MAGIC
                   ? EPROTONOSUPPORT
                   : EPROTO;
    map = mmap(NULL, sizeof(**stats), PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return errno;
    error = check_stats(map);
    if (error != 0) {
        munmap(map, sizeof(**stats));
        return error;
    }
    *stats = map;
    return 0;
}

/* A child of fork may have its parent's open for a moment. */
static void take_stats(struct vmml_target *target, int fd)
{
    const struct vmml_stats_file *stats = NULL;
    int error = map_stats(fd, &stats);

    if (error == 0 && stats->header.pid != target->own_pid) {
        munmap((void *)stats, sizeof(*stats));
        return;
    }
    target->stats = stats;
    target->stats_error = error;
}

static void take_ledger(struct vmml_target *target, int fd)
{
    struct vmml_ledger_reader *reader = NULL;
    uint8_t nonce[VMML_NONCE_SIZE];
    struct stat file;
    int status;

    status = vmml_ledger_read_nonce(fd, nonce);
    if (status == 0)
        status = vmml_ledger_open(fd, nonce, &reader);
    if (status == 0 && fstat(fd, &file) != 0)
        status = -errno;
    /* An importer has others' ledgers open for a moment. */
    if (status == 0 && vmml_ledger_reader_pid(reader) != target->own_pid) {
        vmml_ledger_close(reader);
        return;
    }
    target->ledger_error = -status;
    if (status != 0) {
        vmml_ledger_close(reader);
        return;
    }
    target->ledger = reader;
    target->ledger_dev = file.st_dev;
    target->ledger_ino = file.st_ino;
}

static bool is_memfd(const char *link, const char *name)
{
    static const char prefix[] = "/memfd:";
    size_t length = strlen(name);

    return strncmp(link, prefix, sizeof(prefix) - 1) == 0 &&
           strncmp(link + sizeof(prefix) - 1, name, length) == 0 &&
           strcmp(link + sizeof(prefix) - 1 + length, " (deleted)") == 0;
}

static void look_at_descriptor(struct vmml_target *target, int folder,
                               const char *number)
{
    char link[64];
    ssize_t length = readlinkat(folder, number, link, sizeof(link) - 1);
    bool stats, ledger;
    int fd;

    link[length > 0 ? length : 0] = '\0';
    stats = target->stats == NULL && is_memfd(link, VMML_STATS_NAME);
    ledger = target->ledger == NULL && is_memfd(link, LEDGER_NAME);
    if (!stats && !ledger)
        return;
    fd = openat(folder, number, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return;
    if (stats)
        take_stats(target, fd);
    else
        take_ledger(target, fd);
    close(fd);
}

static int look_at_descriptors(struct vmml_target *target)
{
    char path[64];
    struct dirent *entry;
    DIR *folder;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)target->pid);
    folder = opendir(path);
    if (folder == NULL)
        return errno == ENOENT ? ESRCH : errno;
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        target->descriptors++;
        look_at_descriptor(target, dirfd(folder), entry->d_name);
    }
    closedir(folder);
    return 0;
}

int vmml_target_open(pid_t pid, struct vmml_target *target)
{
    int error;

    memset(target, 0, sizeof(*target));
    target->pid = pid;
    target->stats_error = ENOENT;
    target->ledger_error = ENOENT;
    target->own_pid = read_own_pid(pid);
    read_name(target);
    error = each_mapping(pid, see_library, target);
    if (error == 0)
        error = look_at_descriptors(target);
    if (error != 0) {
        vmml_target_close(target);
        return error == ENOENT ? ESRCH : error;
    }
    read_settings(target);
    target->descriptor_limit = read_limit(pid);
    return 0;
}

void vmml_target_close(struct vmml_target *target)
{
    if (target->stats != NULL)
        munmap((void *)target->stats, sizeof(*target->stats));
    vmml_ledger_close(target->ledger);
    target->stats = NULL;
    target->ledger = NULL;
}

/* ---- importers ---- */

struct sought {
    dev_t dev;
    ino_t ino;
    bool found;
};

/* "from-to perms offset major:minor inode path" (proc(5)). */
static bool see_ledger(const char *line, void *arg)
{
    struct sought *sought = arg;
    unsigned major, minor;
    unsigned long inode;

    if (strstr(line, "/memfd:" LEDGER_NAME) == NULL ||
        sscanf(line, "%*s %*s %*s %x:%x %lu", &major, &minor, &inode) != 3)
        return true;
    sought->found =
        makedev(major, minor) == sought->dev && inode == sought->ino;
    return !sought->found;
}

size_t vmml_target_importers(const struct vmml_target *target, pid_t *pids,
                             size_t max)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    size_t count = 0;

    if (folder == NULL)
        return 0;
    while (target->ledger != NULL && (entry = readdir(folder)) != NULL) {
        struct sought sought = {target->ledger_dev, target->ledger_ino, false};
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

        if (pid <= 0 || pid == target->pid || pid == getpid() ||
            each_mapping(pid, see_ledger, &sought) != 0 || !sought.found)
            continue;
        if (count < max)
            pids[count] = pid;
        count++;
    }
    closedir(folder);
    return count;
}

/* ---- statistics ---- */

#define GET(word) atomic_load_explicit(&(word), memory_order_acquire)

uint64_t vmml_target_count(const struct vmml_target *target, unsigned slot)
{
    uint64_t sum = 0;
    unsigned i;

    for (i = 0; target->stats != NULL && i < VMML_STATS_SHARDS; i++)
        sum += GET(target->stats->shards[i].counts[slot]);
    return sum;
}

bool vmml_target_lost(const struct vmml_target *target, unsigned cause,
                      struct vmml_stats_lost *lost)
{
    const struct vmml_stats_lost *at;
    uint32_t sequence;
    int tries;

    if (target->stats == NULL || GET(target->stats->lost[cause].count) == 0)
        return false;
    at = &target->stats->lost[cause];
    for (tries = 0; tries < TRIES; tries++) {
        sequence = GET(at->sequence);
        lost->count = GET(at->count);
        lost->last = GET(at->last);
        lost->address = GET(at->address);
        lost->length = GET(at->length);
        lost->handle_types = GET(at->handle_types);
        lost->pid = GET(at->pid);
        lost->chunks = GET(at->chunks);
        lost->code = GET(at->code);
        if ((sequence & 1) == 0 && GET(at->sequence) == sequence)
            return true;
    }
    /* The count is right all the same. */
    memset(lost, 0, sizeof(*lost));
    lost->count = GET(at->count);
    return true;
}

bool vmml_target_mirror(const struct vmml_target *target, unsigned entry,
                        struct vmml_stats_mirror *mirror)
{
    const struct vmml_stats_mirror *at;
    uint32_t sequence;
    int tries;

    if (target->stats == NULL || entry >= VMML_STATS_MIRRORS)
        return false;
    at = &target->stats->mirrors[entry];
    for (tries = 0; tries < TRIES; tries++) {
        sequence = GET(at->sequence);
        if (GET(at->used) == 0)
            return false;
        mirror->base = GET(at->base);
        mirror->size = GET(at->size);
        mirror->address = GET(at->address);
        mirror->bytes = GET(at->bytes);
        mirror->pid = GET(at->pid);
        mirror->chunks = GET(at->chunks);
        mirror->device = GET(at->device);
        mirror->outcome = GET(at->outcome);
        if ((sequence & 1) == 0 && GET(at->sequence) == sequence)
            return true;
    }
    return false;
}
