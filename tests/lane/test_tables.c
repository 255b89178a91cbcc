/* SPDX-License-Identifier: MIT */
/*
 * The tables that need no driver: windows with their granules and chunks,
 * registrations, the index of mirrors, and descriptor numbers.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/fd.h"
#include "lane/state.h"
#include "mirror/index.h"

static const CUuuid gpu = {{1, 2, 3}};

/* --- windows -------------------------------------------------------------- */

#define BASE 0x7f0000000000ull

static struct vmml_window *add(struct vmml_windows *windows, uint64_t base,
                               uint64_t size)
{
    struct vmml_window *window = vmml_windows_add(windows, base, size, 0, &gpu);

    CHECK(window != NULL);
    return window;
}

static void windows_are_found_by_address(void)
{
    struct vmml_windows windows = {0};
    /* Added out of order; 2 and 3 are adjacent. */
    static const unsigned at[] = {30, 10, 20, 21, 0};
    struct vmml_window *made[5];
    unsigned i;

    for (i = 0; i < 5; i++)
        made[i] = add(&windows, BASE + at[i] * CHUNK, CHUNK);
    CHECK_EQUAL(windows.count, 5);
    for (i = 0; i < 5; i++) {
        uint64_t base = BASE + at[i] * CHUNK;

        CHECK(vmml_windows_at(&windows, base) == made[i]);
        CHECK(vmml_windows_at(&windows, base + CHUNK - 1) == made[i]);
    }
    CHECK(vmml_windows_at(&windows, BASE - 1) == NULL);
    CHECK(vmml_windows_at(&windows, BASE + CHUNK) == NULL);
    CHECK(vmml_windows_at(&windows, BASE + 22 * CHUNK) == NULL);
    CHECK(vmml_windows_at(&windows, BASE + 31 * CHUNK) == NULL);
    CHECK_EQUAL(vmml_windows_from(&windows, BASE + CHUNK), 1);
    CHECK_EQUAL(vmml_windows_from(&windows, BASE + 31 * CHUNK), 5);

    vmml_windows_remove(&windows, made[2]);
    CHECK_EQUAL(windows.count, 4);
    CHECK(vmml_windows_at(&windows, BASE + 20 * CHUNK) == NULL);
    CHECK(vmml_windows_at(&windows, BASE + 21 * CHUNK) == made[3]);
}

static void many_windows_stay_sorted(void)
{
    struct vmml_windows windows = {0};
    unsigned i;

    for (i = 0; i < 1000; i++) /* 7919 is prime: every number once */
        add(&windows, BASE + (uint64_t)(i * 7919 % 1000) * CHUNK, CHUNK);
    for (i = 0; i < 1000; i++)
        CHECK_EQUAL(windows.entries[i]->base, BASE + i * CHUNK);
}

static void terabytes_cost_nothing(void)
{
    struct vmml_windows windows = {0};
    uint64_t size = 64ull << 40;
    struct vmml_window *window = add(&windows, BASE, size);
    struct vmml_chunk *chunk;

    chunk = vmml_window_add_chunk(window, BASE + size - CHUNK, CHUNK);
    CHECK(chunk != NULL);
    CHECK(vmml_window_chunk_at(window, BASE + size - 1) == chunk);
    CHECK(vmml_window_chunk_at(window, BASE) == NULL);
}

static void chunks_lie_on_granules(void)
{
    struct vmml_windows windows = {0};
    struct vmml_window *window = add(&windows, BASE, 16 * CHUNK);
    struct vmml_chunk *wide, *chunk;
    uint64_t from = 0;

    wide = vmml_window_add_chunk(window, BASE + 2 * CHUNK, 4 * CHUNK);
    CHECK(wide != NULL);
    CHECK(vmml_window_chunk_at(window, BASE + 2 * CHUNK - 1) == NULL);
    CHECK(vmml_window_chunk_at(window, BASE + 2 * CHUNK) == wide);
    CHECK(vmml_window_chunk_at(window, BASE + 6 * CHUNK - 1) == wide);
    CHECK(vmml_window_chunk_at(window, BASE + 6 * CHUNK) == NULL);
    CHECK(vmml_window_chunk_at(window, BASE - 1) == NULL);
    CHECK(vmml_window_chunk_at(window, BASE + 16 * CHUNK) == NULL);
    CHECK(vmml_window_add_chunk(window, BASE + 15 * CHUNK, CHUNK) != NULL);
    CHECK_EQUAL(window->live, 2);

    /* From the middle of a chunk the whole chunk is found, once. */
    from = BASE + 4 * CHUNK + 5;
    chunk = vmml_window_next_chunk(window, &from, UINT64_MAX);
    CHECK(chunk != NULL && chunk->address == BASE + 2 * CHUNK);
    CHECK_EQUAL(from, BASE + 6 * CHUNK);
    chunk = vmml_window_next_chunk(window, &from, UINT64_MAX);
    CHECK(chunk != NULL && chunk->address == BASE + 15 * CHUNK);
    CHECK(vmml_window_next_chunk(window, &from, UINT64_MAX) == NULL);

    /* An end on a border excludes the chunk that begins there. */
    from = BASE;
    CHECK(vmml_window_next_chunk(window, &from, BASE + 2 * CHUNK) == NULL);
    CHECK_EQUAL(from, BASE + 2 * CHUNK);
    from = BASE;
    CHECK(vmml_window_next_chunk(window, &from, BASE + 2 * CHUNK + 1) != NULL);
}

static void chunk_entries_are_used_again(void)
{
    struct vmml_windows windows = {0};
    struct vmml_window *window = add(&windows, BASE, 64 * CHUNK);
    unsigned round, i;

    for (round = 0; round < 100; round++) {
        for (i = 0; i < 64; i++)
            CHECK(vmml_window_add_chunk(window, BASE + i * CHUNK, CHUNK) !=
                  NULL);
        CHECK_EQUAL(window->live, 64);
        for (i = 0; i < 64; i++)
            vmml_window_remove_chunk(
                window, vmml_window_chunk_at(window, BASE + i * CHUNK));
        CHECK_EQUAL(window->live, 0);
    }
    CHECK_EQUAL(window->chunk_count, 64);
}

static void cover_counts_registrations(void)
{
    struct vmml_windows windows = {0};
    struct vmml_window *window = add(&windows, BASE, 8 * CHUNK);
    struct vmml_chunk *low, *high;

    CHECK(vmml_window_add_chunk(window, BASE, 2 * CHUNK) != NULL);
    CHECK(vmml_window_add_chunk(window, BASE + 2 * CHUNK, 2 * CHUNK) != NULL);
    low = vmml_window_chunk_at(window, BASE);
    high = vmml_window_chunk_at(window, BASE + 2 * CHUNK);
    CHECK(!vmml_window_is_covered(window, low));

    vmml_window_cover(window, BASE + 2 * CHUNK - 1, 1, 1); /* its last byte */
    CHECK(vmml_window_is_covered(window, low));
    CHECK(!vmml_window_is_covered(window, high));
    vmml_window_cover(window, BASE + 2 * CHUNK - 1, 2, 1); /* over the border */
    CHECK(vmml_window_is_covered(window, high));
    vmml_window_cover(window, BASE + 2 * CHUNK - 1, 1, -1);
    CHECK(vmml_window_is_covered(window, low));
    vmml_window_cover(window, BASE + 2 * CHUNK - 1, 2, -1);
    CHECK(!vmml_window_is_covered(window, low));
    CHECK(!vmml_window_is_covered(window, high));

    vmml_window_cover(window, BASE, 0, 1);
    CHECK(!vmml_window_is_covered(window, low));
    /* Past the end of the window: cut, both ways. */
    vmml_window_cover(window, BASE + 3 * CHUNK, UINT64_MAX - BASE, 1);
    CHECK(vmml_window_is_covered(window, high));
    vmml_window_cover(window, BASE + 3 * CHUNK, UINT64_MAX - BASE, -1);
    CHECK(!vmml_window_is_covered(window, high));
}

/* --- registrations -------------------------------------------------------- */

static vmml_uct_md_h md_of(unsigned i)
{
    return (vmml_uct_md_h)(uintptr_t)(0x1000 + 64 * (i % 3));
}

static vmml_uct_mem_h memh_of(unsigned i)
{
    return (vmml_uct_mem_h)(uintptr_t)(0x100000 + 64 * (uintptr_t)(i / 3));
}

static void registrations_grow(void)
{
    struct vmml_registration *entry;
    unsigned i;

    CHECK(vmml_registration_find(md_of(0), memh_of(0)) == NULL);
    for (i = 0; i < 20000; i++) {
        struct vmml_registration one = {
            .md = md_of(i), .memh = memh_of(i), .address = i};

        CHECK(vmml_registration_add(&one));
    }
    CHECK_EQUAL(vmml_exporter.registration_count, 20000);
    CHECK(vmml_exporter.bucket_count >= 10000);
    for (i = 0; i < 20000; i++) {
        entry = vmml_registration_find(md_of(i), memh_of(i));
        CHECK(entry != NULL && entry->address == i);
    }
    for (i = 0; i < 20000; i += 2) {
        entry = vmml_registration_take(md_of(i), memh_of(i));
        CHECK(entry != NULL && entry->address == i);
        free(entry);
    }
    for (i = 0; i < 20000; i++)
        CHECK_EQUAL(vmml_registration_find(md_of(i), memh_of(i)) != NULL,
                    i % 2);
    CHECK_EQUAL(vmml_exporter.registration_count, 10000);
}

/* --- the index of mirrors ------------------------------------------------- */

#define SPANS 3000

/* The mirror of span i, never looked into. */
static struct vmml_mirror *mirror_of(unsigned i)
{
    return (struct vmml_mirror *)(uintptr_t)(0x10000 + 16 * (uintptr_t)i);
}

static uint64_t span_at(unsigned i)
{
    return BASE + 2 * CHUNK * i;
}

static atomic_uint added; /* spans order[0..added) are in */
static unsigned order_[SPANS];

static void shuffle(void)
{
    unsigned seed = 5, i;

    for (i = 0; i < SPANS; i++)
        order_[i] = i;
    for (i = SPANS - 1; i > 0; i--) {
        unsigned j = (unsigned)rand_r(&seed) % (i + 1);
        unsigned swap = order_[i];

        order_[i] = order_[j];
        order_[j] = swap;
    }
}

static void *look_up(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    unsigned known, i;

    do {
        known = atomic_load(&added);
        if (known == 0)
            continue;
        i = order_[(unsigned)rand_r(&seed) % known];
        CHECK(vmml_index_find(span_at(i)) == mirror_of(i));
        CHECK(vmml_index_find(span_at(i) + CHUNK - 1) == mirror_of(i));
        CHECK(vmml_index_find(span_at(i) + CHUNK) == NULL);
    } while (known < SPANS);
    return NULL;
}

static void index_is_read_while_it_grows(void)
{
    pthread_t threads[3];
    unsigned i;

    CHECK(vmml_index_find(BASE) == NULL);
    shuffle();
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, look_up,
                                   (void *)(uintptr_t)(i + 1)),
                    0);
    for (i = 0; i < SPANS; i++) {
        unsigned at = order_[i];

        CHECK(vmml_index_add(span_at(at), span_at(at) + CHUNK, mirror_of(at)));
        atomic_store(&added, i + 1);
    }
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK(vmml_index_find(BASE - 1) == NULL);
    CHECK(vmml_index_find(span_at(SPANS)) == NULL);
}

/* --- descriptor numbers --------------------------------------------------- */

static void limit_to(rlim_t soft, rlim_t hard)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_max < hard) {
        fprintf(stderr, "the hard limit of open files is below %lu\n",
                (unsigned long)hard);
        _exit(77);
    }
    limit = (struct rlimit){soft, hard};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static rlim_t soft_limit(void)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit.rlim_cur;
}

static int one_more(void)
{
    int fd = open("/dev/null", O_RDONLY);

    CHECK(fd >= 0);
    return vmml_fd_raise(fd);
}

/* Raise until the wall; how many were had. Checks what holds for each. */
static unsigned raise_to_the_wall(int lowest)
{
    unsigned count = 0;
    int fd;

    while ((fd = one_more()) >= 0) {
        CHECK(fd >= lowest);
        CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
        count++;
    }
    CHECK_EQUAL(fd, -EMFILE);
    return count;
}

/* Descriptors from `from` on that were inherited, or are a sanitizer's. */
static unsigned open_from(int from, int to)
{
    unsigned count = 0;

    for (; from < to; from++)
        count += fcntl(from, F_GETFD) >= 0;
    return count;
}

/* How many descriptors the application can still open. */
static unsigned left_over(void)
{
    unsigned count = 0;

    while (open("/dev/null", O_RDONLY) >= 0)
        count++;
    CHECK_EQUAL(errno, EMFILE);
    return count;
}

static void fd_numbers_are_high(void)
{
    limit_to(256, 4096);
    CHECK(raise_to_the_wall(VMML_FD_LOWEST) >=
          4096 - VMML_FD_LOWEST - VMML_FD_SPARE);
    CHECK_EQUAL(soft_limit(), 4096);
    /* All low numbers and the spare ones. */
    CHECK(left_over() >= VMML_FD_LOWEST - 64 + VMML_FD_SPARE);
}

static void fd_limit_rises_as_needed(void)
{
    limit_to(1024, 4096);
    CHECK(one_more() >= VMML_FD_LOWEST);
    CHECK(soft_limit() >= VMML_FD_LOWEST + VMML_FD_SPARE);
    CHECK(soft_limit() < 4096);
}

/* The application sets it back below what is in use. */
static void fd_limit_is_set_back(void)
{
    unsigned i;

    limit_to(1024, 16384);
    for (i = 0; i < 5000; i++)
        CHECK(one_more() >= VMML_FD_LOWEST);
    limit_to(1024, 16384);
    for (i = 0; i < 100; i++)
        CHECK(one_more() >= VMML_FD_LOWEST);
    CHECK(soft_limit() < 16384);
}

static void fd_low_where_there_is_no_room(void)
{
    unsigned high = open_from(1024 - VMML_FD_SPARE, 1024);
    unsigned had;

    limit_to(256, 1024);
    had = raise_to_the_wall(0);
    CHECK_EQUAL(soft_limit(), 1024);
    CHECK(had >= 900);
    CHECK(left_over() + high >= VMML_FD_SPARE);
}

static void fd_hard_limit_is_kept(void)
{
    unsigned high = open_from(256 - VMML_FD_SPARE, 256);

    limit_to(256, 256);
    CHECK(raise_to_the_wall(0) >= 256 - VMML_FD_SPARE - 32);
    CHECK_EQUAL(soft_limit(), 256);
    CHECK(left_over() + high >= VMML_FD_SPARE);
}

/* Numbers above 1024 that somebody else holds do not push ours down. */
static void fd_high_numbers_taken(void)
{
    unsigned i;
    int fd;

    limit_to(4096, 4096);
    for (i = VMML_FD_LOWEST; i < 4096; i++)
        CHECK(dup2(STDERR_FILENO, (int)i) == (int)i);
    fd = one_more();
    CHECK_EQUAL(fd, -EMFILE);
}

/* Size of the kernel's table of descriptors (proc_pid_status(5)). */
static unsigned table_size(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    unsigned size = 0;
    char line[256];

    CHECK(status != NULL);
    while (size == 0 && fgets(line, sizeof(line), status) != NULL)
        if (sscanf(line, "FDSize: %u", &size) != 1)
            size = 0;
    fclose(status);
    CHECK(size != 0);
    return size;
}

static bool table_is_larger(void *arg)
{
    return table_size() > *(const unsigned *)arg;
}

/* Nobody waits for the kernel to enlarge it. */
static void fd_table_grows_ahead(void)
{
    unsigned count = lane_fd_count(), size;
    int fd;

    limit_to(1024, 8192);
    while ((fd = one_more()) < 1535)
        count++;
    CHECK_EQUAL(fd, 1535);
    size = table_size();
    CHECK_EQUAL(size, 2048);
    CHECK_EQUAL(one_more(), 1536);
    CHECK(lane_wait(table_is_larger, &size));
    CHECK_EQUAL(table_size(), 4096);
    CHECK_EQUAL(lane_fd_count(), count + 2);
}

static void fd_failure_closes(void)
{
    unsigned before = lane_fd_count();

    limit_to(before + 10, before + 10);
    CHECK_EQUAL(one_more(), -EMFILE);
    CHECK_EQUAL(lane_fd_count(), before);
    CHECK_EQUAL(vmml_fd_raise(1000), -EBADF);
    errno = 7;
    vmml_fd_close(-1);
    vmml_fd_close(1000);
    CHECK_EQUAL(errno, 7);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(windows_are_found_by_address),
        LANE_TEST(many_windows_stay_sorted),
        LANE_TEST(terabytes_cost_nothing),
        LANE_TEST(chunks_lie_on_granules),
        LANE_TEST(chunk_entries_are_used_again),
        LANE_TEST(cover_counts_registrations),
        LANE_TEST(registrations_grow),
        LANE_TEST(index_is_read_while_it_grows),
        LANE_TEST(fd_numbers_are_high),
        LANE_TEST(fd_limit_rises_as_needed),
        LANE_TEST(fd_limit_is_set_back),
        LANE_TEST(fd_low_where_there_is_no_room),
        LANE_TEST(fd_hard_limit_is_kept),
        LANE_TEST(fd_high_numbers_taken),
        LANE_TEST(fd_table_grows_ahead),
        LANE_TEST(fd_failure_closes),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
