/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lane/handle.h"
#include "stats/count.h"
#include "stats/stats.h"

#define THREADS (VMML_STATS_SHARDS + 8)
#define COUNTS  20000

/* The file as another process finds it: by its name. */
static int find_file(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    char path[300], target[64];
    int found = -1;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        ssize_t length;

        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        length = readlink(path, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strstr(target, "memfd:" VMML_STATS_NAME) == NULL)
            continue;
        assert_int_equal(found, -1);
        found = atoi(entry->d_name);
    }
    closedir(dir);
    return found;
}

static const struct vmml_stats_file *map_read_only(int fd)
{
    char path[64];
    void *map;
    int own;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    own = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(own >= 0);
    map = mmap(NULL, sizeof(struct vmml_stats_file), PROT_READ, MAP_SHARED, own,
               0);
    close(own);
    assert_ptr_not_equal(map, MAP_FAILED);
    return map;
}

static uint64_t sum(const struct vmml_stats_file *stats, unsigned slot)
{
    uint64_t sum = 0;
    unsigned i;

    for (i = 0; i < VMML_STATS_SHARDS; i++)
        sum += atomic_load(&stats->shards[i].counts[slot]);
    return sum;
}

static void test_start(void **state)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const struct vmml_stats_file *stats;
    struct stat status;
    int fd;

    (void)state;
    vmml_count(copies);
    assert_int_equal(find_file(), -1);
    vmml_stats_start();
    vmml_stats_start();
    fd = find_file();
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GET_SEALS) & seals, seals);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal(status.st_size, sizeof(struct vmml_stats_file));
    assert_int_equal(status.st_mode & 0777, 0400);
    stats = map_read_only(fd);
    assert_int_equal(stats->header.magic, VMML_STATS_MAGIC);
    assert_int_equal(stats->header.version, VMML_STATS_VERSION);
    assert_int_equal(stats->header.names, vmml_stats_names());
    assert_int_equal(stats->header.pid, getpid());
    /* What was counted before is there, and what is counted now. */
    assert_int_equal(sum(stats, VMML_COUNT_copies), 1);
    vmml_count_by(copies, 41);
    assert_int_equal(sum(stats, VMML_COUNT_copies), 42);
    munmap((void *)stats, sizeof(*stats));
}

static pthread_barrier_t barrier;

static void *count_much(void *arg)
{
    unsigned i;

    (void)arg;
    /* All have their shards before one ends. */
    vmml_count(keys_packed);
    pthread_barrier_wait(&barrier);
    for (i = 1; i < COUNTS; i++) {
        vmml_count(keys_packed);
        vmml_count_hook(VMML_HOOK_cuMemMap);
    }
    return NULL;
}

/* More threads than there are shards: nothing is lost. */
static void test_threads(void **state)
{
    pthread_t threads[THREADS];
    unsigned i;

    (void)state;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_much, NULL),
                         0);
    for (i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(vmml_count_get(VMML_COUNT_keys_packed), THREADS * COUNTS);
    assert_int_equal(vmml_count_get(VMML_COUNTERS + VMML_HOOK_cuMemMap),
                     THREADS * (COUNTS - 1));
}

static pthread_key_t late;

static void count_late(void *arg)
{
    (void)arg;
    vmml_count(keys_packed);
    assert_int_equal(vmml_stats_shard, 0);
}

static void *count_once(void *arg)
{
    (void)arg;
    assert_int_equal(pthread_setspecific(late, &late), 0);
    vmml_count(keys_packed);
    return (void *)(uintptr_t)vmml_stats_shard;
}

/* Threads that come and go, one after the other and some at once, have a shard
 * each; that of a thread that has ended is no longer its own. */
static void test_threads_end(void **state)
{
    const uint64_t before = vmml_count_get(VMML_COUNT_keys_packed);
    pthread_t threads[4];
    unsigned round, i;
    void *shards[4];

    (void)state;
    /* Made later: its destructor runs after that of the shard. */
    assert_int_equal(pthread_key_create(&late, count_late), 0);
    for (round = 0; round < 4 * VMML_STATS_SHARDS; round++) {
        for (i = 0; i < 4; i++)
            assert_int_equal(
                pthread_create(&threads[i], NULL, count_once, NULL), 0);
        for (i = 0; i < 4; i++) {
            assert_int_equal(pthread_join(threads[i], &shards[i]), 0);
            assert_non_null(shards[i]);
        }
    }
    assert_int_equal(vmml_count_get(VMML_COUNT_keys_packed),
                     before + 2 * 4 * round);
    assert_int_equal(pthread_key_delete(late), 0);
}

static atomic_uint firsts;

static void *lose_much(void *arg)
{
    unsigned i;

    (void)arg;
    for (i = 0; i < COUNTS; i++)
        if (VMML_LOST(YAMA, .address = 4096, .length = 8192, .pid = 7,
                      .chunks = 3, .code = -EPERM))
            atomic_fetch_add(&firsts, 1);
    return NULL;
}

static void test_lost(void **state)
{
    const struct vmml_stats_lost *lost =
        &atomic_load(&vmml_stats)->lost[VMML_CAUSE_YAMA];
    pthread_t threads[4];
    unsigned i;

    (void)state;
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, lose_much, NULL), 0);
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(firsts, 1);
    assert_int_equal(lost->count, 4 * COUNTS);
    assert_int_equal(lost->sequence % 2, 0);
    assert_int_equal(lost->address, 4096);
    assert_int_equal(lost->length, 8192);
    assert_int_equal(lost->pid, 7);
    assert_int_equal(lost->chunks, 3);
    assert_int_equal(lost->code, -EPERM);
    assert_true(lost->last > 1000000000ull * 1000000000ull);
    /* Another cause is another first one; what is no cause is nothing. */
    assert_true(VMML_LOST(SECCOMP));
    assert_false(vmml_lost(VMML_STATS_CAUSES, &(struct vmml_loss){0}));
}

/* The exporter's reasons are causes of the same number. */
static void test_reasons(void **state)
{
    unsigned i;

    (void)state;
    for (i = VMML_REASON_NONE + 1; i < VMML_CAUSE_IMPORTER; i++)
        if (strcmp(vmml_reason_string(i), vmml_reason_string(200)) != 0)
            assert_non_null(vmml_cause_label(i));
    assert_string_equal(vmml_cause_label(VMML_REASON_NOT_SHAREABLE),
                        "not-shareable");
    assert_string_equal(vmml_cause_label(VMML_REASON_DEVICE), "device");
    assert_null(vmml_cause_label(VMML_STATS_CAUSES));
}

static void test_mirrors(void **state)
{
    const struct vmml_stats_mirror *mirrors = atomic_load(&vmml_stats)->mirrors;
    struct vmml_mirror_stats mirror = {.base = 1, .size = 2, .pid = 3};
    unsigned entries[VMML_STATS_MIRRORS + 1] = {0};
    unsigned i;

    (void)state;
    for (i = 0; i < VMML_STATS_MIRRORS + 1; i++) {
        mirror.chunks = i;
        vmml_stats_mirror(&entries[i], &mirror);
    }
    /* For the last one there is no place: nothing else is changed by it. */
    assert_int_equal(entries[VMML_STATS_MIRRORS], 0);
    for (i = 0; i < VMML_STATS_MIRRORS; i++) {
        assert_int_equal(mirrors[entries[i] - 1].chunks, i);
        assert_int_equal(mirrors[entries[i] - 1].sequence % 2, 0);
    }
    vmml_stats_mirror_gone(entries[5]);
    vmml_stats_mirror_gone(0);
    assert_int_equal(mirrors[entries[5] - 1].used, 0);
    vmml_stats_mirror(&entries[VMML_STATS_MIRRORS], &mirror);
    assert_int_equal(entries[VMML_STATS_MIRRORS], entries[5]);
    mirror.chunks = 77;
    vmml_stats_mirror(&entries[0], &mirror);
    assert_int_equal(mirrors[entries[0] - 1].chunks, 77);
    for (i = 0; i < VMML_STATS_MIRRORS; i++)
        vmml_stats_mirror_gone(i + 1);
}

/* A child counts for nobody, and closes the descriptor. */
static void test_fork(void **state)
{
    uint64_t before = vmml_count_get(VMML_COUNT_copies);
    int status = 0;
    pid_t child;

    (void)state;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        vmml_count_by(copies, 1000);
        vmml_lost(VMML_CAUSE_MAP, &(struct vmml_loss){0});
        _exit(find_file() == -1 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(vmml_count_get(VMML_COUNT_copies), before);
    assert_int_equal(atomic_load(&vmml_stats)->lost[VMML_CAUSE_MAP].count, 0);
    assert_true(find_file() >= 0);
}

/* The application closed it, and has another file under its number. */
static void test_foreign_descriptor(void **state)
{
    int fd = find_file(), status = 0;
    int null = open("/dev/null", O_RDONLY);
    pid_t child;

    (void)state;
    assert_true(fd >= 0 && null >= 0);
    assert_int_equal(dup2(null, fd), fd);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(fcntl(fd, F_GETFD) < 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_threads_end),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_mirrors),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_foreign_descriptor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
