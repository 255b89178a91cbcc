/*
 * How much memory of a device is taken, over all processes of a domain.
 *
 * Nothing is kept: the memfds that live are found in /proc. So memory comes
 * back when a process dies, and a descriptor held open keeps it, by the
 * kernel's own rules.
 */
#include "internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct inode_set {
    uint64_t *slots;
    size_t room, count;
};

struct tally {
    struct inode_set seen;
    const char *domain;
    unsigned device, node;
    uint64_t bytes;
};

static bool set_grow(struct inode_set *set)
{
    struct inode_set bigger = {.room = set->room == 0 ? 1024 : set->room * 2};
    size_t i, at;

    bigger.slots = sim_zalloc(bigger.room * sizeof(uint64_t));
    if (bigger.slots == NULL) {
        return false;
    }
    for (i = 0; i < set->room; i++) {
        if (set->slots[i] == 0) {
            continue;
        }
        at = set->slots[i] % bigger.room;
        while (bigger.slots[at] != 0) {
            at = (at + 1) % bigger.room;
        }
        bigger.slots[at] = set->slots[i];
    }
    bigger.count = set->count;
    sim_free(set->slots, set->room * sizeof(uint64_t));
    *set = bigger;
    return true;
}

/* Whether the inode was not in the set yet. */
static bool set_add(struct inode_set *set, uint64_t inode)
{
    size_t at;

    if (set->count * 2 >= set->room && !set_grow(set)) {
        return false;
    }
    at = inode % set->room;
    while (set->slots[at] != 0) {
        if (set->slots[at] == inode) {
            return false;
        }
        at = (at + 1) % set->room;
    }
    set->slots[at] = inode;
    set->count++;
    return true;
}

/* The name that memory.c gave the memfd: domain, device, node, place, size. */
static bool name_matches(const struct tally *tally, const char *link,
                         uint64_t *size)
{
    static const char prefix[] = "/memfd:vmmlane-sim:";
    size_t len = strlen(tally->domain);
    unsigned device, node;
    unsigned long long bytes;
    int on_device;

    if (strncmp(link, prefix, sizeof(prefix) - 1) != 0) {
        return false;
    }
    link += sizeof(prefix) - 1;
    if (strncmp(link, tally->domain, len) != 0 || link[len] != ':' ||
        sscanf(link + len + 1, "%u:%u:%d:%llu", &device, &node, &on_device,
               &bytes) != 4) {
        return false;
    }
    *size = bytes;
    return on_device && device == tally->device && node == tally->node;
}

/* Memory on the fabric says in its label whose it is. */
static bool label_matches(const struct tally *tally, int dir, const char *name,
                          const char *link, uint64_t *size)
{
    size_t len = strlen(sim.config.fabric_dir);
    struct sim_label label;
    bool matches;
    int fd;

    if (len == 0 || strncmp(link, sim.config.fabric_dir, len) != 0 ||
        link[len] != '/') {
        return false;
    }
    fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    matches = sim_read_label(fd, &label) && label.device == tally->device &&
              label.node == tally->node;
    close(fd);
    *size = matches ? label.size : 0;
    return matches;
}

static void tally_fd(struct tally *tally, int dir, const char *name)
{
    char link[256];
    ssize_t len = readlinkat(dir, name, link, sizeof(link) - 1);
    struct stat st;
    uint64_t size = 0;

    if (len <= 0) {
        return;
    }
    link[len] = '\0';
    if ((name_matches(tally, link, &size) ||
         label_matches(tally, dir, name, link, &size)) &&
        fstatat(dir, name, &st, 0) == 0 && set_add(&tally->seen, st.st_ino)) {
        tally->bytes += size;
    }
}

static void tally_process(struct tally *tally, const char *pid)
{
    char path[64];
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
    dir = opendir(path);
    if (dir == NULL) {
        return; /* it ended, or is another user's */
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            tally_fd(tally, dirfd(dir), entry->d_name);
        }
    }
    closedir(dir);
}

uint64_t sim_vram_used(int physical)
{
    struct tally tally = {
        .domain = sim.config.domain,
        .device = (unsigned)physical,
        .node = sim.config.node,
    };
    struct dirent *entry;
    DIR *proc = opendir("/proc");

    if (proc == NULL) {
        return 0;
    }
    while ((entry = readdir(proc)) != NULL) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') {
            tally_process(&tally, entry->d_name);
        }
    }
    closedir(proc);
    sim_free(tally.seen.slots, tally.seen.room * sizeof(uint64_t));
    return tally.bytes;
}

/* Only a limit that was asked for is enforced: a look at /proc per allocation
 * is slow. */
bool sim_vram_has(int physical, size_t size)
{
    if (size > sim.config.vram) {
        return false;
    }
    return !sim.config.vram_limited ||
           sim_vram_used(physical) + size <= sim.config.vram;
}

SIM_EXPORT uint64_t sim_memory_used(int device)
{
    return sim_vram_used(device);
}
