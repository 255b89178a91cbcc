/* SPDX-License-Identifier: MIT */
/* The importer's side against an exporter that writes anything. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ledger/reader.h"

#define GRANULE (2ull << 20)
#define BASE    0x7f0000000000ull
#define CHUNKS  8u
#define SIZE    (64 * GRANULE)

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static const uint8_t nonce[VMML_NONCE_SIZE] = {1, 2, 3, 4, 5, 6, 7, 8,
                                               9, 8, 7, 6, 5, 4, 3, 2};

/* A ledger written by hand: one window with CHUNKS chunks, slot CHUNKS - 1 the
 * newest. */
struct hostile {
    int fd;
    uint8_t *map;
    struct vmml_ledger_header *header;
    _Atomic uint32_t *buckets;
    struct vmml_ledger_window *window;
    struct vmml_ledger_chunk *chunks;
    struct vmml_ledger_reader *reader;
    uint8_t *guards[2];
};

static void fill_header(struct vmml_ledger_header *header)
{
    header->magic = VMML_LEDGER_MAGIC;
    header->version = VMML_LEDGER_VERSION;
    header->header_size = VMML_LEDGER_HEADER_SIZE;
    memcpy(header->nonce, nonce, sizeof(nonce));
    header->pid = 77;
    header->pid_ns = 88;
    header->start_time = 99;
    header->window_capacity = VMML_LEDGER_WINDOWS_MAX;
    header->chunk_capacity = VMML_LEDGER_CHUNKS_MAX;
    header->window_count = 1;
    header->chunk_count = CHUNKS;
    header->directory_sequence = 0;
}

static void fill(struct hostile *hostile)
{
    uint32_t i;

    fill_header(hostile->header);
    memset(hostile->window, 0, sizeof(*hostile->window));
    hostile->buckets[vmml_ledger_bucket(BASE, SIZE)] = 1;
    hostile->window->base = BASE;
    hostile->window->size = SIZE;
    hostile->window->state = VMML_WINDOW_SERVED;
    hostile->window->head = CHUNKS - 1;
    hostile->window->live = CHUNKS;
    hostile->window->newest = CHUNKS;
    for (i = 0; i < CHUNKS; i++) {
        struct vmml_ledger_chunk *chunk = &hostile->chunks[i];

        memset(chunk, 0, sizeof(*chunk));
        chunk->serial = i + 1;
        chunk->address = BASE + i * GRANULE;
        chunk->size = GRANULE;
        chunk->next = i == 0 ? VMML_LEDGER_NONE : i - 1;
        chunk->fd = (int)i + 3;
        chunk->state = VMML_CHUNK_LIVE;
        chunk->kind = VMML_CHUNK_FD;
    }
}

/* Where the reader's mapping lies: the second one of this file. */
static uint8_t *reader_mapping(const struct hostile *hostile)
{
    char line[512];
    uintptr_t start, end, found = 0;
    FILE *file = fopen("/proc/self/maps", "r");

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strstr(line, "memfd:hostile") != NULL &&
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR " r--s", &start, &end) == 2 &&
            start != (uintptr_t)hostile->map)
            found = start;
    }
    fclose(file);
    assert_true(found != 0);
    return (uint8_t *)found;
}

static void map_guard(uint8_t **guard, uint8_t *at)
{
    const size_t size = 1 << 20;
    void *map = mmap(at, size, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    /* Where something else lies already, another test sees the overrun. */
    *guard = map == MAP_FAILED ? NULL : map;
}

static int make_file(uint64_t size, int seals)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int set_up(void **state)
{
    struct hostile *hostile = calloc(1, sizeof(*hostile));
    uint8_t *mapping;

    assert_non_null(hostile);
    hostile->fd = make_file(VMML_LEDGER_FILE_SIZE, SEALS);
    hostile->map = mmap(NULL, VMML_LEDGER_FILE_SIZE, PROT_READ | PROT_WRITE,
                        MAP_SHARED, hostile->fd, 0);
    assert_true(hostile->map != MAP_FAILED);
    hostile->header = (void *)hostile->map;
    hostile->buckets = (void *)(hostile->map + VMML_LEDGER_BUCKET_OFFSET);
    hostile->window = (void *)(hostile->map + VMML_LEDGER_WINDOW_OFFSET);
    hostile->chunks = (void *)(hostile->map + VMML_LEDGER_CHUNK_OFFSET);
    fill(hostile);
    assert_int_equal(vmml_ledger_open(hostile->fd, nonce, &hostile->reader), 0);
    mapping = reader_mapping(hostile);
    map_guard(&hostile->guards[0], mapping - (1 << 20));
    map_guard(&hostile->guards[1], mapping + VMML_LEDGER_FILE_SIZE);
    *state = hostile;
    return 0;
}

static int tear_down(void **state)
{
    struct hostile *hostile = *state;
    int i;

    vmml_ledger_close(hostile->reader);
    munmap(hostile->map, VMML_LEDGER_FILE_SIZE);
    for (i = 0; i < 2; i++) {
        if (hostile->guards[i] != NULL)
            munmap(hostile->guards[i], 1 << 20);
    }
    close(hostile->fd);
    free(hostile);
    return 0;
}

/* What an importer does; every result that is handed out is checked. */
static int use(struct hostile *hostile)
{
    struct vmml_window_view view;
    struct vmml_chunk_view *chunks = NULL;
    size_t count = 0, i, j;
    bool revoked;
    int status;

    status = vmml_ledger_find_window(hostile->reader, BASE, SIZE, &view);
    if (status != 0)
        return status;
    assert_true(view.base == BASE && view.size == SIZE);
    assert_true(view.index < VMML_LEDGER_WINDOWS_MAX);
    (void)vmml_ledger_window_changed(hostile->reader, &view, &revoked);
    (void)atomic_load(vmml_ledger_revoked_word(hostile->reader, view.index));
    status = vmml_ledger_collect(hostile->reader, &view, 0, GRANULE, &chunks,
                                 &count);
    if (status != 0) {
        assert_null(chunks);
        return status;
    }
    assert_true(count <= SIZE / GRANULE);
    for (i = 0; i < count; i++) {
        assert_true(chunks[i].address >= BASE && chunks[i].size != 0);
        assert_true(chunks[i].size <= BASE + SIZE - chunks[i].address);
        assert_true(chunks[i].address % GRANULE == 0);
        assert_true(chunks[i].size % GRANULE == 0);
        assert_true(chunks[i].slot < VMML_LEDGER_CHUNKS_MAX);
        assert_true(chunks[i].kind == VMML_CHUNK_FD
                        ? chunks[i].fd >= 0
                        : chunks[i].kind == VMML_CHUNK_FABRIC &&
                              chunks[i].fd == -1);
        for (j = 0; j < i; j++)
            assert_true(
                chunks[i].address + chunks[i].size <= chunks[j].address ||
                chunks[j].address + chunks[j].size <= chunks[i].address);
    }
    free(chunks);
    return (int)count;
}

static void test_honest(void **state)
{
    assert_int_equal(use(*state), CHUNKS);
}

/* --- the file ------------------------------------------------------------- */

static void assert_not_opened(int fd, int expected)
{
    struct vmml_ledger_reader *reader = NULL;

    assert_int_equal(vmml_ledger_open(fd, nonce, &reader), expected);
    assert_null(reader);
    close(fd);
}

static void write_header_of(int fd, uint32_t version)
{
    struct vmml_ledger_header header;

    memset(&header, 0, sizeof(header));
    fill_header(&header);
    header.version = version;
    assert_int_equal(pwrite(fd, &header, sizeof(header), 0), sizeof(header));
}

static void write_header(int fd)
{
    write_header_of(fd, VMML_LEDGER_VERSION);
}

static void test_wrong_files(void **state)
{
    static const int seals[] = {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW,
                                F_SEAL_SHRINK | F_SEAL_SEAL,
                                F_SEAL_GROW | F_SEAL_SEAL};
    static const uint64_t sizes[] = {0, 1, 4096, VMML_LEDGER_FILE_SIZE - 1,
                                     VMML_LEDGER_FILE_SIZE + 4096};
    char name[] = "/tmp/vmmlane-test-XXXXXX";
    int pair[2], fd;
    size_t i;

    for (i = 0; i < sizeof(seals) / sizeof(*seals); i++) {
        fd = make_file(VMML_LEDGER_FILE_SIZE, seals[i]);
        write_header(fd);
        assert_not_opened(fd, -EPROTO);
    }
    for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        assert_not_opened(make_file(sizes[i], SEALS), -EPROTO);
    for (i = 2; i < sizeof(sizes) / sizeof(*sizes); i++) {
        /* Of another version, and of ours, which has one size. */
        fd = make_file(sizes[i], SEALS);
        write_header_of(fd, VMML_LEDGER_VERSION + 1);
        assert_not_opened(fd, -EPROTONOSUPPORT);
        fd = make_file(sizes[i], SEALS);
        write_header(fd);
        assert_not_opened(fd, -EPROTO);
    }
    fd = mkstemp(name);
    assert_true(fd >= 0);
    unlink(name);
    assert_int_equal(ftruncate(fd, VMML_LEDGER_FILE_SIZE), 0);
    write_header(fd);
    assert_not_opened(fd, -EPROTO);
    assert_int_equal(pipe(pair), 0);
    assert_not_opened(pair[0], -EPROTO);
    close(pair[1]);
    assert_not_opened(open("/dev/zero", O_RDWR), -EPROTO);
    assert_not_opened(-1, -EIO);
    /* Nothing but zeros. */
    assert_not_opened(make_file(VMML_LEDGER_FILE_SIZE, SEALS), -EPROTO);
}

static void test_header(void **state)
{
    struct hostile *hostile = *state;
    struct vmml_ledger_header *header = hostile->header;
    struct vmml_ledger_reader *reader = NULL;

#define ASSERT_REFUSED(field, value, expected)                                 \
    do {                                                                       \
        header->field = value;                                                 \
        assert_int_equal(vmml_ledger_open(hostile->fd, nonce, &reader),        \
                         expected);                                            \
        assert_null(reader);                                                   \
        fill_header(header);                                                   \
    } while (0)

    ASSERT_REFUSED(magic, 0, -EPROTO);
    ASSERT_REFUSED(version, 0, -EPROTONOSUPPORT);
    ASSERT_REFUSED(version, VMML_LEDGER_VERSION + 1, -EPROTONOSUPPORT);
    ASSERT_REFUSED(header_size, VMML_LEDGER_HEADER_SIZE - 8, -EPROTO);
    ASSERT_REFUSED(nonce[0], 0, -ESTALE);
    ASSERT_REFUSED(window_capacity, 0, -EPROTO);
    ASSERT_REFUSED(window_capacity, UINT32_MAX, -EPROTO);
    ASSERT_REFUSED(chunk_capacity, 0, -EPROTO);
    ASSERT_REFUSED(chunk_capacity, UINT32_MAX, -EPROTO);
#undef ASSERT_REFUSED

    assert_int_equal(vmml_ledger_reader_pid(hostile->reader), 77);
    assert_int_equal(vmml_ledger_reader_pid_ns(hostile->reader), 88);
    assert_int_equal(vmml_ledger_reader_start_time(hostile->reader), 99);
    /* Read once: what is written later changes nothing. */
    header->pid = 1;
    assert_int_equal(vmml_ledger_reader_pid(hostile->reader), 77);
}

/* --- single fields, with the answer that each must give ------------------- */

static void test_counts_that_lie(void **state)
{
    struct hostile *hostile = *state;

    hostile->header->chunk_count = UINT32_MAX;
    hostile->window->head = UINT32_MAX - 1;
    assert_int_equal(use(hostile), -EPROTO);
    hostile->window->head = VMML_LEDGER_CHUNKS_MAX;
    assert_int_equal(use(hostile), -EPROTO);
    assert_false(
        vmml_ledger_is_live(hostile->reader, VMML_LEDGER_CHUNKS_MAX, 1));
    assert_false(vmml_ledger_is_live(hostile->reader, UINT32_MAX, 1));
    fill(hostile);
    hostile->header->chunk_count = CHUNKS - 1;
    assert_int_equal(use(hostile), -EPROTO);
    assert_false(vmml_ledger_is_live(hostile->reader, CHUNKS - 1, CHUNKS));
    fill(hostile);
    hostile->header->window_count = 0;
    assert_int_equal(use(hostile), -EPROTO);
    hostile->header->window_count = UINT32_MAX;
    hostile->buckets[vmml_ledger_bucket(BASE, SIZE)] =
        VMML_LEDGER_WINDOWS_MAX + 1;
    assert_int_equal(use(hostile), -EPROTO);
    hostile->buckets[vmml_ledger_bucket(BASE, SIZE)] = UINT32_MAX;
    assert_int_equal(use(hostile), -EPROTO);
}

static void test_directory_loop(void **state)
{
    struct hostile *hostile = *state;

    hostile->window->base = BASE + GRANULE;
    hostile->window->bucket_next = 1;
    assert_int_equal(use(hostile), -EPROTO);
    /* A loop through every window that can be. */
    hostile->header->window_count = UINT32_MAX;
    for (uint32_t i = 0; i < VMML_LEDGER_WINDOWS_MAX; i++)
        hostile->window[i].bucket_next = (i + 1) % VMML_LEDGER_WINDOWS_MAX + 1;
    assert_int_equal(use(hostile), -EPROTO);
}

static void test_chain_loops(void **state)
{
    struct hostile *hostile = *state;

    hostile->chunks[0].next = 0;
    assert_int_equal(use(hostile), -EPROTO);
    fill(hostile);
    hostile->chunks[0].next = CHUNKS - 1;
    assert_int_equal(use(hostile), -EPROTO);
    fill(hostile);
    hostile->chunks[3].serial = hostile->chunks[2].serial;
    assert_int_equal(use(hostile), -EPROTO);
    fill(hostile);
    /* Ahead of `newest`, where chunks are left out, too. */
    hostile->window->newest = 0;
    hostile->chunks[0].next = CHUNKS - 1;
    assert_int_equal(use(hostile), -EPROTO);
}

static void test_serials(void **state)
{
    struct hostile *hostile = *state;

    /* Published while it was read: not in this view. */
    hostile->window->newest = CHUNKS - 2;
    assert_int_equal(use(hostile), CHUNKS - 2);
    hostile->window->newest = UINT64_MAX;
    assert_int_equal(use(hostile), CHUNKS);
    hostile->chunks[CHUNKS - 1].serial = UINT64_MAX;
    assert_int_equal(use(hostile), -EPROTO);
    /* Serial 0 is never given out: the chain ends there. */
    fill(hostile);
    hostile->chunks[0].serial = 0;
    assert_int_equal(use(hostile), CHUNKS - 1);
}

static void test_chunk_places(void **state)
{
    static const struct {
        uint64_t address, size;
    } wrong[] = {
        {BASE - GRANULE, GRANULE},
        {BASE - GRANULE, 2 * GRANULE},
        {BASE + SIZE, GRANULE},
        {BASE + SIZE - GRANULE, 2 * GRANULE},
        {BASE + 9 * GRANULE, 0},
        {BASE + 9 * GRANULE, UINT64_MAX - GRANULE + 1},
        {BASE + 9 * GRANULE, UINT64_MAX},
        {BASE + 9 * GRANULE + 4096, GRANULE},
        {BASE + 9 * GRANULE, GRANULE + 4096},
        {0, UINT64_MAX - GRANULE + 1},
        {0, GRANULE},
        {UINT64_MAX - GRANULE + 1, GRANULE},
        {UINT64_MAX, 1},
        /* On another chunk: the same, from below, from above, around. */
        {BASE, GRANULE},
        {BASE + 6 * GRANULE, 2 * GRANULE},
        {BASE, 64 * GRANULE},
    };
    struct hostile *hostile = *state;
    size_t i;

    for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        /* The newest, the oldest and one in the middle. */
        static const unsigned at[] = {CHUNKS - 1, 4, 1};
        size_t j;

        for (j = 0; j < 3; j++) {
            fill(hostile);
            hostile->chunks[at[j]].address = wrong[i].address;
            hostile->chunks[at[j]].size = wrong[i].size;
            assert_int_equal(use(hostile), -EPROTO);
        }
    }
    fill(hostile);
    hostile->chunks[3].address = BASE + SIZE - 2 * GRANULE;
    hostile->chunks[3].size = 2 * GRANULE;
    assert_int_equal(use(hostile), CHUNKS);
}

static void test_chunk_fields(void **state)
{
    struct hostile *hostile = *state;

    hostile->chunks[2].window = 1;
    assert_int_equal(use(hostile), -EPROTO);
    fill(hostile);
    hostile->chunks[2].fd = -1;
    assert_int_equal(use(hostile), -EPROTO);
    fill(hostile);
    hostile->chunks[2].kind = 0;
    assert_int_equal(use(hostile), -EPROTO);
    /* A pool's allocation is alone in its window and fills it. */
    hostile->chunks[2].kind = VMML_CHUNK_POOLED;
    assert_int_equal(use(hostile), -EPROTO);
    fill(hostile);
    hostile->chunks[2].state = VMML_CHUNK_FREE;
    assert_int_equal(use(hostile), -EPROTO);
    hostile->chunks[2].state = VMML_CHUNK_UNMAPPING;
    assert_int_equal(use(hostile), -EPROTO);
    hostile->chunks[2].state = 0xff;
    assert_int_equal(use(hostile), -EPROTO);
}

/* More chunks than a window has granules cannot be: memory stays bounded. */
static void test_more_chunks_than_fit(void **state)
{
    struct hostile *hostile = *state;
    uint32_t i, count = 100000;

    for (i = 0; i < count; i++) {
        hostile->chunks[i] = hostile->chunks[3];
        hostile->chunks[i].serial = i + 1;
        hostile->chunks[i].next = i == 0 ? VMML_LEDGER_NONE : i - 1;
    }
    hostile->header->chunk_count = count;
    hostile->window->head = count - 1;
    hostile->window->newest = count;
    assert_int_equal(use(hostile), -EPROTO);
}

static void test_window_fields(void **state)
{
    struct hostile *hostile = *state;

    hostile->window->state = VMML_WINDOW_RETIRED;
    assert_int_equal(use(hostile), -ENOENT);
    hostile->window->state = 7;
    assert_int_equal(use(hostile), -ENOENT);
    fill(hostile);
    hostile->window->size = 0;
    assert_int_equal(use(hostile), -ENOENT);
    fill(hostile);
    hostile->window->live = UINT32_MAX;
    assert_int_equal(use(hostile), CHUNKS);
}

/* A name that overflows is no window, whatever the ledger holds. */
static void test_overflowing_window(void **state)
{
    struct hostile *hostile = *state;
    struct vmml_window_view view;

    hostile->window->base = UINT64_MAX - GRANULE;
    hostile->window->size = SIZE;
    hostile->buckets[vmml_ledger_bucket(UINT64_MAX - GRANULE, SIZE)] = 1;
    assert_int_equal(vmml_ledger_find_window(hostile->reader,
                                             UINT64_MAX - GRANULE, SIZE, &view),
                     -ENOENT);
}

/* Between two calls the window becomes another one. */
static void test_window_changes_its_name(void **state)
{
    struct hostile *hostile = *state;
    struct vmml_window_view view;
    struct vmml_chunk_view *chunks = NULL;
    size_t count;

    assert_int_equal(
        vmml_ledger_find_window(hostile->reader, BASE, SIZE, &view), 0);
    hostile->window->size = UINT64_MAX;
    assert_int_equal(vmml_ledger_collect(hostile->reader, &view, 0, GRANULE,
                                         &chunks, &count),
                     -ENOENT);
    fill(hostile);
    assert_int_equal(
        vmml_ledger_collect(hostile->reader, &view, 0, 0, &chunks, &count),
        -EINVAL);
}

static void test_odd_for_ever(void **state)
{
    struct hostile *hostile = *state;
    struct vmml_window_view view;
    struct vmml_chunk_view *chunks = NULL;
    size_t count;

    assert_int_equal(
        vmml_ledger_find_window(hostile->reader, BASE, SIZE, &view), 0);
    hostile->window->sequence = 1;
    assert_int_equal(use(hostile), -EAGAIN);
    assert_int_equal(vmml_ledger_collect(hostile->reader, &view, 0, GRANULE,
                                         &chunks, &count),
                     -EAGAIN);
    hostile->window->sequence = UINT32_MAX;
    assert_int_equal(use(hostile), -EAGAIN);
    hostile->window->sequence = UINT32_MAX - 1;
    assert_int_equal(use(hostile), CHUNKS);
    hostile->header->directory_sequence = 1;
    assert_int_equal(
        vmml_ledger_find_window(hostile->reader, BASE, SIZE, &view), -EAGAIN);
}

/* --- every field, every extreme ------------------------------------------- */

static unsigned sweep(struct hostile *hostile, void *at, size_t size)
{
    static const uint64_t extremes[] = {
        0,
        1,
        2,
        3,
        CHUNKS - 1,
        CHUNKS,
        0x7f,
        0x80,
        0xff,
        0x7fffffff,
        0x80000000,
        0xffffffff,
        0xfffffffe,
        0x7fffffffffffffff,
        0x8000000000000000,
        0xffffffffffffffff,
        0xfffffffffffffffe,
        BASE,
        BASE - GRANULE,
        BASE + SIZE,
        BASE + SIZE - GRANULE,
        SIZE,
        VMML_LEDGER_CHUNKS_MAX,
        VMML_LEDGER_WINDOWS_MAX,
        VMML_LEDGER_WINDOWS_MAX + 1,
    };
    unsigned refused = 0;
    size_t i, offset, width;

    for (width = 1; width <= 8; width *= 2) {
        for (offset = 0; offset + width <= size; offset += width) {
            for (i = 0; i < sizeof(extremes) / sizeof(*extremes); i++) {
                memcpy((uint8_t *)at + offset, &extremes[i], width);
                /* One that is odd for ever only costs time here. */
                if ((hostile->window->sequence & 1) == 0 &&
                    (hostile->header->directory_sequence & 1) == 0)
                    refused += use(hostile) < 0;
                (void)vmml_ledger_is_live(hostile->reader, 0, 1);
                fill(hostile);
            }
        }
    }
    return refused;
}

static void test_extremes(void **state)
{
    struct hostile *hostile = *state;

    assert_true(sweep(hostile, hostile->header, sizeof(*hostile->header)) > 0);
    assert_true(sweep(hostile, hostile->window, sizeof(*hostile->window)) > 0);
    assert_true(sweep(hostile, &hostile->chunks[3], sizeof(*hostile->chunks)) >
                0);
    assert_true(sweep(hostile, &hostile->chunks[CHUNKS - 1],
                      sizeof(*hostile->chunks)) > 0);
    assert_int_equal(use(hostile), CHUNKS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_honest),
        cmocka_unit_test(test_wrong_files),
        TEST(test_header),
        TEST(test_counts_that_lie),
        TEST(test_directory_loop),
        TEST(test_chain_loops),
        TEST(test_serials),
        TEST(test_chunk_places),
        TEST(test_chunk_fields),
        TEST(test_more_chunks_than_fit),
        TEST(test_window_fields),
        TEST(test_overflowing_window),
        TEST(test_window_changes_its_name),
        TEST(test_odd_for_ever),
        TEST(test_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
