/* SPDX-License-Identifier: MIT */
/*
 * The file of the statistics.
 */
#include "stats/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/memfd.h"
#include "stats/count.h"
#include "stats/metrics.h"

atomic_bool vmml_stats_started;

static atomic_flag starting = ATOMIC_FLAG_INIT;
static int file_fd = -1;
static struct stat file_status; /* of file_fd */

/* Allocated as a whole, so that no store can be answered by SIGBUS. Who opens
 * it by /proc/PID/fd gets no more than the mode allows. */
static int make_file(int fd)
{
    int status;

    if (fchmod(fd, 0400) != 0)
        return -errno;
    status = vmml_memfd_resize(fd, sizeof(struct vmml_stats_file));
    if (status != 0)
        return status;
    return vmml_memfd_allocate(fd, 0, sizeof(struct vmml_stats_file));
}

static int map_file(int fd, struct vmml_stats_file **file)
{
    int status = make_file(fd);
    void *map;

    if (status != 0)
        return status;
    map = mmap(NULL, sizeof(struct vmml_stats_file), PROT_READ | PROT_WRITE,
               MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    status = vmml_memfd_seal(fd);
    if (status != 0) {
        munmap(map, sizeof(struct vmml_stats_file));
        return status;
    }
    *file = map;
    return 0;
}

static int open_file(struct vmml_stats_file **file)
{
    int fd = memfd_create(VMML_STATS_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int status;

    if (fd < 0)
        return -errno;
    fd = vmml_fd_raise(fd);
    if (fd < 0)
        return fd;
    status = fstat(fd, &file_status) == 0 ? map_file(fd, file) : -errno;
    if (status != 0) {
        vmml_fd_close(fd);
        return status;
    }
    return fd;
}

static void fill_header(struct vmml_stats_header *header)
{
    struct timespec time = {0, 0};

    clock_gettime(CLOCK_REALTIME, &time);
    header->version = VMML_STATS_VERSION;
    header->size = sizeof(struct vmml_stats_file);
    header->names = vmml_stats_names();
    header->pid = (uint32_t)getpid();
    header->since = (uint64_t)time.tv_sec;
    strcpy(header->release, VMML_RELEASE);
    header->magic = VMML_STATS_MAGIC;
}

/* Counts of other threads that fall between the copy and the change are lost:
 * a few of the first. */
static void change_over(struct vmml_stats_file *file)
{
    const size_t counts = offsetof(struct vmml_stats_file, shards);
    const struct vmml_stats_file *before = atomic_load(&vmml_stats);

    memcpy((char *)file + counts, (const char *)before + counts,
           sizeof(*file) - counts);
    fill_header(&file->header);
    atomic_store(&vmml_stats, file);
}

static bool is_wanted(void)
{
    const struct vmml_conf *conf = vmml_conf();

    return !vmml_in_child && conf->on && conf->stats != VMML_STATS_OFF &&
           vmml_fork_watch() == 0;
}

void vmml_stats_start_now(void)
{
    struct vmml_stats_file *file = NULL;
    int saved = errno;

    if (atomic_flag_test_and_set(&starting))
        return;
    if (is_wanted()) {
        file_fd = open_file(&file);
        if (file != NULL)
            change_over(file);
        else
            vmml_info("no statistics that others can read (errno %d)",
                      -file_fd);
        vmml_metrics_start();
    }
    atomic_store(&vmml_stats_started, true);
    errno = saved;
}

/* The application may have closed the descriptor, and have got its number for
 * a file of its own. */
void vmml_stats_fork_child(void)
{
    struct stat status;

    atomic_store(&vmml_stats, &vmml_stats_private);
    if (file_fd >= 0 && fstat(file_fd, &status) == 0 &&
        status.st_dev == file_status.st_dev &&
        status.st_ino == file_status.st_ino)
        vmml_fd_close(file_fd);
    file_fd = -1;
}

/* ---- mirrors ---- */

static struct vmml_stats_mirror *place(unsigned *entry)
{
    struct vmml_stats_mirror *mirrors = atomic_load(&vmml_stats)->mirrors;
    uint32_t unused;
    unsigned i;

    if (*entry != 0)
        return &mirrors[*entry - 1];
    for (i = 0; i < VMML_STATS_MIRRORS; i++) {
        unused = 0;
        if (atomic_compare_exchange_strong(&mirrors[i].used, &unused, 1)) {
            *entry = i + 1;
            return &mirrors[i];
        }
    }
    return NULL;
}

#define PUT(word, value)                                                       \
    atomic_store_explicit(&(word), value, memory_order_release)

static void step(_Atomic uint32_t *sequence)
{
    PUT(*sequence, atomic_load_explicit(sequence, memory_order_relaxed) + 1);
}

void vmml_stats_mirror(unsigned *entry, const struct vmml_mirror_stats *mirror)
{
    struct vmml_stats_mirror *at = place(entry);

    if (at == NULL)
        return;
    step(&at->sequence);
    PUT(at->base, mirror->base);
    PUT(at->size, mirror->size);
    PUT(at->address, mirror->address);
    PUT(at->bytes, mirror->bytes);
    PUT(at->pid, mirror->pid);
    PUT(at->chunks, mirror->chunks);
    PUT(at->device, mirror->device);
    PUT(at->outcome, mirror->outcome);
    step(&at->sequence);
}

void vmml_stats_mirror_gone(unsigned entry)
{
    if (entry != 0)
        atomic_store(&atomic_load(&vmml_stats)->mirrors[entry - 1].used, 0);
}
