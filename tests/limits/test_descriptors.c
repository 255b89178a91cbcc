/* SPDX-License-Identifier: MIT */
/*
 * The limit of descriptors: raised as far as needed, refused at the wall with
 * one line, with 64 left to the application and no low number used.
 */
#include "many.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/fd.h"
#include "lane/state.h"

#define MAX_CHUNKS 65536

static struct vmml_chunk_view *published;

static struct rlimit limit_now(void)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit;
}

static unsigned low_numbers(void)
{
    unsigned count = 0;
    int fd;

    for (fd = 0; fd < VMML_FD_LOWEST; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* As many files as the application can open, at most `most`. */
static unsigned can_open(unsigned most)
{
    static int fds[4096];
    unsigned count = 0, i;

    CHECK(most <= 4096);
    while (count < most &&
           (fds[count] = open("/dev/zero", O_RDONLY | O_CLOEXEC)) >= 0)
        count++;
    for (i = 0; i < count; i++)
        close(fds[i]);
    return count;
}

/* The soft and the hard limit that this test is about; 0: the machine's own.
 * Returns the hard limit. */
static rlim_t limit_to(rlim_t soft, rlim_t hard)
{
    struct rlimit limit = limit_now();

    if (hard > limit.rlim_max) {
        fprintf(stderr, "the hard limit is %lu\n",
                (unsigned long)limit.rlim_max);
        _exit(77);
    }
    limit.rlim_cur = soft;
    if (hard != 0)
        limit.rlim_max = hard;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit.rlim_max;
}

static void register_chunks(rlim_t soft, rlim_t wanted_hard, unsigned count)
{
    uint64_t size = (count + 1ul) * CHUNK, base;
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memh;
    unsigned low, fds;
    rlim_t needed, hard;
    bool fits, high;

    lane_log_to_file();
    published = calloc(MAX_CHUNKS, sizeof(*published));
    CHECK(published != NULL);
    lane_cuda(0);
    base = lane_reserve(size);
    many_map(base, 0, count);
    /* The simulated driver has raised it for itself. */
    hard = limit_to(soft, wanted_hard);
    high = hard > VMML_FD_LOWEST + VMML_FD_SPARE;
    lane_ledger();
    low = low_numbers();
    fds = lane_fd_count();
    fits = count <= vmml_fd_room();
    memh = lane_reg(base, count * CHUNK);
    CHECK(lane_pack(memh, base, count * CHUNK, key));

    printf("soft %lu, hard %lu: %u chunks %s; soft limit is %lu, %u "
           "descriptors\n",
           (unsigned long)soft, (unsigned long)hard, count,
           fits ? "served" : "refused", (unsigned long)limit_now().rlim_cur,
           lane_fd_count());
    fflush(stdout);
    CHECK_EQUAL(lane_reason(key),
                fits ? VMML_REASON_NONE : VMML_REASON_NO_DESCRIPTOR);
    CHECK_EQUAL(lane_published(base, size, published, MAX_CHUNKS),
                fits ? count : 0);
    CHECK_EQUAL(lane_fd_count(), fits ? fds + count : fds);
    /* One line that names the limit and the numbers. */
    CHECK_EQUAL(lane_log_count("RLIMIT_NOFILE"), !fits);
    if (!fits) {
        char text[64];

        snprintf(text, sizeof(text), "hard limit of %lu allows",
                 (unsigned long)hard);
        CHECK_EQUAL(lane_log_count(text), 1);
    }
    /* Not further than needed, but for doubling; never beyond the hard one. */
    CHECK(limit_now().rlim_max == hard);
    needed = (rlim_t)(high ? VMML_FD_LOWEST : 0) + lane_fd_count() +
             3 * VMML_FD_SPARE;
    CHECK(limit_now().rlim_cur <= soft || limit_now().rlim_cur <= 2 * needed);
    /* The application's own. */
    CHECK(can_open(VMML_FD_SPARE) == VMML_FD_SPARE);
    if (high) {
        CHECK_EQUAL(low_numbers(), low);
        CHECK_EQUAL(can_open(200), 200);
    }

    /* Refused again without a second line; a small request is served. */
    CHECK(lane_pack(memh, base, count * CHUNK, key));
    CHECK_EQUAL(lane_log_count("RLIMIT_NOFILE"), !fits);
    if (!fits) {
        CHECK(lane_pack(memh, base, 100 * CHUNK, key));
        CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
        CHECK_EQUAL(lane_published(base, size, published, MAX_CHUNKS), 100);
    }
    /* All of it is given back. */
    CHECK_CU(lane_unmap(base, count * CHUNK));
    CHECK_EQUAL(lane_fd_count(), fds);
    free(published);
}

/* As many chunks as fit, and one more. */
static void up_to_the_wall(void)
{
    uint64_t base;
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memh, more;
    unsigned low;
    size_t room;

    lane_log_to_file();
    published = calloc(MAX_CHUNKS, sizeof(*published));
    CHECK(published != NULL);
    lane_cuda(0);
    base = lane_reserve(4096 * CHUNK);
    many_map(base, 0, 4096);
    limit_to(256, 4096);
    lane_ledger();
    low = low_numbers();
    room = vmml_fd_room();
    CHECK(room > 2500 && room < 4096 - VMML_FD_LOWEST);
    memh = lane_reg(base, room * CHUNK);
    CHECK(lane_pack(memh, base, room * CHUNK, key));
    CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
    CHECK_EQUAL(vmml_fd_room(), 0);
    CHECK_EQUAL(limit_now().rlim_cur, 4096);
    more = lane_reg(base + room * CHUNK, CHUNK);
    CHECK(lane_pack(more, base + room * CHUNK, CHUNK, key));
    CHECK_EQUAL(lane_reason(key), VMML_REASON_NO_DESCRIPTOR);
    CHECK_EQUAL(lane_published(base, 4096 * CHUNK, published, MAX_CHUNKS),
                room);
    CHECK_EQUAL(low_numbers(), low);
    CHECK(can_open(4096) >= VMML_FD_LOWEST - low + VMML_FD_SPARE);
    /* One that ends makes room. */
    CHECK_CU(lane_unmap(base, CHUNK));
    CHECK(lane_pack(more, base + room * CHUNK, CHUNK, key));
    CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
    free(published);
}

#define LIMIT_TEST(soft, hard, count)                                          \
    static void soft_##soft##_hard_##hard##_chunks_##count(void)               \
    {                                                                          \
        register_chunks(soft, hard, count);                                    \
    }
#define LIMIT_TESTS(F)                                                         \
    F(256, 1024, 900)                                                          \
    F(256, 1024, 4096)                                                         \
    F(256, 4096, 900)                                                          \
    F(256, 4096, 4096)                                                         \
    F(256, 0, 900)                                                             \
    F(256, 0, 4096)                                                            \
    F(256, 0, 40960)                                                           \
    F(1024, 1024, 900)                                                         \
    F(1024, 4096, 900)                                                         \
    F(1024, 4096, 4096)                                                        \
    F(1024, 4096, 40960)                                                       \
    F(1024, 0, 900)                                                            \
    F(1024, 0, 4096)                                                           \
    F(1024, 0, 40960)
LIMIT_TESTS(LIMIT_TEST)

#define ENTRY(soft, hard, count)                                               \
    LANE_TEST(soft_##soft##_hard_##hard##_chunks_##count),

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LIMIT_TESTS(ENTRY) LANE_TEST(up_to_the_wall),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
