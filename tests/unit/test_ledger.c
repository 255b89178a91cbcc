/* SPDX-License-Identifier: MIT */
/* The ledger with both sides in one process, and across a fork. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ledger/reader.h"
#include "ledger/writer.h"

#define MIB       (1ull << 20)
#define GRANULE   (2 * MIB)
#define BASE      0x7f0000000000ull
#define SIZE      (4096 * GRANULE)
#define AT(chunk) (BASE + (uint64_t)(chunk)*GRANULE)

static const uint8_t uuid[16] = {0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5,
                                 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab,
                                 0xac, 0xad, 0xae, 0xaf};

struct pair {
    struct vmml_ledger *ledger;
    struct vmml_ledger_reader *reader;
    int window;
};

static int set_up(void **state)
{
    struct pair *pair = calloc(1, sizeof(*pair));

    assert_non_null(pair);
    assert_int_equal(vmml_ledger_create(&pair->ledger), 0);
    assert_int_equal(vmml_ledger_open(vmml_ledger_fd(pair->ledger),
                                      vmml_ledger_nonce(pair->ledger),
                                      &pair->reader),
                     0);
    pair->window = vmml_ledger_add_window(pair->ledger, BASE, SIZE, 3, uuid);
    assert_true(pair->window >= 0);
    *state = pair;
    return 0;
}

static int tear_down(void **state)
{
    struct pair *pair = *state;

    vmml_ledger_close(pair->reader);
    vmml_ledger_destroy(pair->ledger);
    free(pair);
    return 0;
}

static uint64_t publish(struct pair *pair, unsigned chunk, int *slot)
{
    uint64_t serial = 0;

    *slot = vmml_ledger_publish(pair->ledger, (uint32_t)pair->window, AT(chunk),
                                GRANULE, 100 + (int)chunk, 3, &serial);
    assert_true(*slot >= 0);
    assert_true(serial != 0);
    return serial;
}

static struct vmml_window_view find(struct pair *pair)
{
    struct vmml_window_view view;

    memset(&view, 0xff, sizeof(view));
    assert_int_equal(vmml_ledger_find_window(pair->reader, BASE, SIZE, &view),
                     0);
    return view;
}

static size_t collect(struct pair *pair, struct vmml_window_view *view,
                      uint64_t since, struct vmml_chunk_view **chunks)
{
    size_t count = SIZE_MAX;

    assert_int_equal(
        vmml_ledger_collect(pair->reader, view, since, GRANULE, chunks, &count),
        0);
    return count;
}

static void assert_chunks(struct pair *pair, uint64_t since, unsigned expected)
{
    struct vmml_window_view view = find(pair);
    struct vmml_chunk_view *chunks;

    assert_int_equal(collect(pair, &view, since, &chunks), expected);
    free(chunks);
}

/* --- one process ---------------------------------------------------------- */

static void test_empty(void **state)
{
    struct pair *pair = *state;
    struct vmml_window_view view = find(pair);
    bool revoked;

    assert_true(view.base == BASE && view.size == SIZE);
    assert_int_equal(view.index, pair->window);
    assert_int_equal(view.device, 3);
    assert_memory_equal(view.device_uuid, uuid, 16);
    assert_chunks(pair, 0, 0);
    assert_false(vmml_ledger_window_changed(pair->reader, &view, &revoked));
    assert_false(revoked);
    assert_int_equal(vmml_ledger_reader_pid(pair->reader), getpid());
    assert_int_equal(vmml_ledger_reader_pid_ns(pair->reader),
                     vmml_ledger_pid_ns(pair->ledger));
    assert_true(vmml_ledger_reader_start_time(pair->reader) != 0);
}

/* Field 22 of our own stat, read another way. */
static void test_header_names_the_process(void **state)
{
    struct pair *pair = *state;
    unsigned long long start = 0;
    struct stat st;
    FILE *file = fopen("/proc/self/stat", "r");

    assert_non_null(file);
    assert_int_equal(fscanf(file,
                            "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u "
                            "%*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                            &start),
                     1);
    fclose(file);
    assert_true(vmml_ledger_reader_start_time(pair->reader) == start);
    assert_int_equal(stat("/proc/self/ns/pid", &st), 0);
    assert_int_equal(vmml_ledger_pid_ns(pair->ledger), (uint32_t)st.st_ino);
    assert_int_equal(vmml_ledger_pid(pair->ledger), getpid());
}

static void test_nonces_differ(void **state)
{
    struct pair *pair = *state;
    struct vmml_ledger *other;

    assert_int_equal(vmml_ledger_create(&other), 0);
    assert_memory_not_equal(vmml_ledger_nonce(other),
                            vmml_ledger_nonce(pair->ledger), VMML_NONCE_SIZE);
    vmml_ledger_destroy(other);
}

static void test_publish_and_kill(void **state)
{
    struct pair *pair = *state;
    struct vmml_window_view view = find(pair), before = view;
    struct vmml_chunk_view *chunks;
    uint64_t serials[3];
    int slots[3];
    bool revoked;
    unsigned i;

    for (i = 0; i < 3; i++)
        serials[i] = publish(pair, i, &slots[i]);
    assert_true(serials[0] < serials[1] && serials[1] < serials[2]);
    assert_true(vmml_ledger_window_changed(pair->reader, &view, &revoked));
    assert_false(revoked);
    assert_int_equal(collect(pair, &view, 0, &chunks), 3);
    for (i = 0; i < 3; i++) {
        const struct vmml_chunk_view *chunk = &chunks[2 - i];

        assert_true(chunk->serial == serials[i]);
        assert_true(chunk->address == AT(i) && chunk->size == GRANULE);
        assert_int_equal(chunk->slot, slots[i]);
        assert_int_equal(chunk->fd, 100 + i);
        assert_int_equal(chunk->device, 3);
        assert_int_equal(chunk->kind, VMML_CHUNK_FD);
        assert_true(vmml_ledger_is_live(pair->reader, chunk->slot, serials[i]));
    }
    free(chunks);
    assert_true(view.newest == serials[2]);
    assert_false(vmml_ledger_window_changed(pair->reader, &view, &revoked));
    assert_chunks(pair, serials[0], 2);
    assert_chunks(pair, serials[2], 0);

    vmml_ledger_kill(pair->ledger, (uint32_t)slots[1]);
    assert_true(vmml_ledger_window_changed(pair->reader, &view, &revoked));
    assert_true(revoked);
    assert_false(
        vmml_ledger_is_live(pair->reader, (uint32_t)slots[1], serials[1]));
    assert_int_equal(collect(pair, &view, 0, &chunks), 2);
    assert_true(chunks[0].serial == serials[2]);
    assert_true(chunks[1].serial == serials[0]);
    free(chunks);
    assert_true(view.revoked != before.revoked);
    /* The ends of the chain, and killing twice. */
    vmml_ledger_kill(pair->ledger, (uint32_t)slots[2]);
    vmml_ledger_kill(pair->ledger, (uint32_t)slots[2]);
    assert_chunks(pair, 0, 1);
    vmml_ledger_kill(pair->ledger, (uint32_t)slots[0]);
    assert_chunks(pair, 0, 0);
}

static void test_unmap_and_restore(void **state)
{
    struct pair *pair = *state;
    struct vmml_window_view view;
    const _Atomic uint64_t *word;
    uint64_t serial, restored = 0, revocations;
    int slot, other;
    bool revoked;

    serial = publish(pair, 0, &slot);
    publish(pair, 1, &other);
    view = find(pair);
    word = vmml_ledger_revoked_word(pair->reader, view.index);
    assert_true(atomic_load(word) == view.revoked);
    vmml_ledger_begin_unmap(pair->ledger, (uint32_t)slot);
    revocations = atomic_load(word);
    assert_true(revocations != view.revoked);
    assert_false(vmml_ledger_is_live(pair->reader, (uint32_t)slot, serial));
    assert_chunks(pair, 0, 1);
    vmml_ledger_begin_unmap(pair->ledger, (uint32_t)slot);
    assert_chunks(pair, 0, 1);

    view = find(pair);
    vmml_ledger_restore(pair->ledger, (uint32_t)slot, &restored);
    assert_true(restored > serial);
    assert_true(vmml_ledger_window_changed(pair->reader, &view, &revoked));
    assert_false(vmml_ledger_is_live(pair->reader, (uint32_t)slot, serial));
    assert_true(vmml_ledger_is_live(pair->reader, (uint32_t)slot, restored));
    assert_chunks(pair, 0, 2);
    assert_chunks(pair, view.newest, 1);

    vmml_ledger_begin_unmap(pair->ledger, (uint32_t)slot);
    vmml_ledger_kill(pair->ledger, (uint32_t)slot);
    assert_false(vmml_ledger_is_live(pair->reader, (uint32_t)slot, restored));
    /* A dead chunk does not come back. */
    vmml_ledger_restore(pair->ledger, (uint32_t)slot, &restored);
    assert_chunks(pair, 0, 1);
}

/* Rounds of re-backing: slots are used again, serials are not. */
static void test_slots_again(void **state)
{
    struct pair *pair = *state;
    uint64_t last = 0, first = 0;
    int slots[64];
    unsigned round, i;
    uint32_t highest = 0;

    for (round = 0; round < 1000; round++) {
        for (i = 0; i < 64; i++) {
            uint64_t serial = publish(pair, i, &slots[i]);

            assert_true(serial > last);
            last = serial;
            if (first == 0)
                first = serial;
            if ((uint32_t)slots[i] > highest)
                highest = (uint32_t)slots[i];
        }
        assert_chunks(pair, 0, 64);
        for (i = 0; i < 64; i++)
            vmml_ledger_kill(pair->ledger,
                             (uint32_t)slots[round % 2 != 0 ? i : 63 - i]);
        assert_chunks(pair, 0, 0);
    }
    assert_true(highest < 64);
    assert_false(vmml_ledger_is_live(pair->reader, (uint32_t)slots[0], first));
}

/* The handle read is of the publication asked for, or it is said that it is
 * not; also where a slot held a chunk of the other kind before. */
static void test_fabric_handles(void **state)
{
    uint8_t handle[VMML_FABRIC_HANDLE_SIZE], read[VMML_FABRIC_HANDLE_SIZE];
    struct pair *pair = *state;
    struct vmml_window_view view = find(pair);
    struct vmml_chunk_view *chunks;
    uint64_t serial = 0;
    int slot = -1, round;

    for (round = 0; round < 3; round++) {
        memset(handle, 'a' + round, sizeof(handle));
        slot = vmml_ledger_publish_fabric(pair->ledger, (uint32_t)pair->window,
                                          AT(1), GRANULE, handle, 3, &serial);
        assert_int_equal(slot, 0);
        assert_int_equal(collect(pair, &view, 0, &chunks), 1);
        assert_int_equal(chunks[0].kind, VMML_CHUNK_FABRIC);
        assert_int_equal(chunks[0].fd, -1);
        assert_true(chunks[0].serial == serial && chunks[0].address == AT(1));
        assert_int_equal(
            vmml_ledger_chunk_fd(pair->ledger, (uint32_t)slot, serial), -1);
        assert_true(vmml_ledger_fabric_handle(pair->reader, &chunks[0], read));
        assert_memory_equal(read, handle, sizeof(handle));
        vmml_ledger_kill(pair->ledger, (uint32_t)slot);
        assert_false(vmml_ledger_fabric_handle(pair->reader, &chunks[0], read));
        free(chunks);
        serial = publish(pair, 2, &slot);
        assert_int_equal(slot, 0);
        assert_int_equal(collect(pair, &view, 0, &chunks), 1);
        assert_int_equal(chunks[0].kind, VMML_CHUNK_FD);
        assert_int_equal(chunks[0].fd, 102);
        free(chunks);
        vmml_ledger_kill(pair->ledger, (uint32_t)slot);
    }
    assert_int_equal(vmml_ledger_publish_fabric(pair->ledger, 7, AT(1), GRANULE,
                                                handle, 3, &serial),
                     -EINVAL);
}

static void test_many_chunks(void **state)
{
    enum { count = 100000 };
    struct pair *pair = *state;
    const uint64_t size = count * GRANULE, base = 2 * BASE;
    struct vmml_window_view view;
    struct vmml_chunk_view *chunks;
    uint64_t serial = 0;
    size_t got = 0;
    struct stat st;
    int window, i;

    window = vmml_ledger_add_window(pair->ledger, base, size, 0, uuid);
    assert_true(window >= 0);
    for (i = 0; i < count; i++)
        assert_true(vmml_ledger_publish(pair->ledger, (uint32_t)window,
                                        base + (uint64_t)i * GRANULE, GRANULE,
                                        i, 0, &serial) >= 0);
    assert_int_equal(vmml_ledger_find_window(pair->reader, base, size, &view),
                     0);
    assert_int_equal(
        vmml_ledger_collect(pair->reader, &view, 0, GRANULE, &chunks, &got), 0);
    assert_int_equal(got, count);
    for (i = 0; i < count; i++)
        assert_int_equal(chunks[i].fd, count - 1 - i);
    free(chunks);
    /* Sparse: what is not used is not allocated (512-byte blocks). */
    assert_int_equal(fstat(vmml_ledger_fd(pair->ledger), &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 < count * 64ull + MIB);
    /* From the middle, outwards. */
    for (i = 0; i < count / 2; i++) {
        vmml_ledger_kill(pair->ledger, (uint32_t)(count / 2 + i));
        vmml_ledger_kill(pair->ledger, (uint32_t)(count / 2 - 1 - i));
    }
    assert_int_equal(
        vmml_ledger_collect(pair->reader, &view, 0, GRANULE, &chunks, &got), 0);
    assert_int_equal(got, 0);
    free(chunks);
}

static void test_ledger_full_of_chunks(void **state)
{
    struct pair *pair = *state;
    const uint64_t size = (1ull << 21) * GRANULE, base = 2 * BASE;
    uint64_t serial;
    int window, slot = 0, i;

    window = vmml_ledger_add_window(pair->ledger, base, size, 0, uuid);
    for (i = 0; i < VMML_LEDGER_CHUNKS_MAX; i++) {
        slot = vmml_ledger_publish(pair->ledger, (uint32_t)window,
                                   base + (uint64_t)i * GRANULE, GRANULE, i, 0,
                                   &serial);
        if (slot != i)
            fail_msg("chunk %d: %d", i, slot);
    }
    assert_int_equal(vmml_ledger_publish(pair->ledger, (uint32_t)window, base,
                                         GRANULE, 1, 0, &serial),
                     -ENOSPC);
    vmml_ledger_kill(pair->ledger, 77);
    assert_int_equal(vmml_ledger_publish(pair->ledger, (uint32_t)window, base,
                                         GRANULE, 1, 0, &serial),
                     77);
}

/* --- windows -------------------------------------------------------------- */

static void test_windows(void **state)
{
    enum { count = 5000 };
    struct pair *pair = *state;
    struct vmml_window_view view;
    unsigned i;

    for (i = 0; i < count; i++) {
        int index = vmml_ledger_add_window(pair->ledger, 2 * BASE + i * SIZE,
                                           SIZE, i, uuid);

        assert_int_equal(index, pair->window + 1 + (int)i);
    }
    for (i = 0; i < count; i++) {
        assert_int_equal(vmml_ledger_find_window(
                             pair->reader, 2 * BASE + i * SIZE, SIZE, &view),
                         0);
        assert_int_equal(view.device, i);
        assert_int_equal(vmml_ledger_add_window(
                             pair->ledger, 2 * BASE + i * SIZE, SIZE, i, uuid),
                         view.index);
    }
    /* Neither half of the name alone, and no range that overflows. */
    assert_int_equal(
        vmml_ledger_find_window(pair->reader, 2 * BASE, SIZE - 1, &view),
        -ENOENT);
    assert_int_equal(
        vmml_ledger_find_window(pair->reader, 2 * BASE + 1, SIZE, &view),
        -ENOENT);
    assert_int_equal(vmml_ledger_find_window(pair->reader, BASE, 0, &view),
                     -ENOENT);
    assert_int_equal(
        vmml_ledger_find_window(pair->reader, UINT64_MAX, SIZE, &view),
        -ENOENT);
}

static void test_retire(void **state)
{
    struct pair *pair = *state;
    struct vmml_window_view view, stale;
    struct vmml_chunk_view *chunks = NULL;
    const uint8_t other[16] = {5};
    uint64_t serial;
    size_t count = 0;
    int slot;
    bool revoked;

    publish(pair, 0, &slot);
    view = stale = find(pair);
    vmml_ledger_kill(pair->ledger, (uint32_t)slot);
    vmml_ledger_retire_window(pair->ledger, (uint32_t)pair->window);
    vmml_ledger_retire_window(pair->ledger, (uint32_t)pair->window);
    assert_int_equal(vmml_ledger_find_window(pair->reader, BASE, SIZE, &view),
                     -ENOENT);
    assert_true(vmml_ledger_window_changed(pair->reader, &stale, &revoked));
    assert_true(revoked);
    assert_int_equal(
        vmml_ledger_collect(pair->reader, &stale, 0, GRANULE, &chunks, &count),
        -ENOENT);
    assert_null(chunks);
    assert_int_equal(vmml_ledger_publish(pair->ledger, (uint32_t)pair->window,
                                         BASE, GRANULE, 1, 0, &serial),
                     -EINVAL);
    /* The same reservation again, now for another device. */
    assert_int_equal(vmml_ledger_add_window(pair->ledger, BASE, SIZE, 4, other),
                     pair->window);
    view = find(pair);
    assert_int_equal(view.device, 4);
    assert_memory_equal(view.device_uuid, other, 16);
    assert_true(vmml_ledger_window_changed(pair->reader, &stale, &revoked));
    assert_true(revoked);
    publish(pair, 0, &slot);
    assert_chunks(pair, 0, 1);
}

/* More reservations over a job's life than the table has entries. */
static void test_windows_evicted(void **state)
{
    struct pair *pair = *state;
    struct vmml_window_view first = find(pair), view;
    struct vmml_chunk_view *chunks = NULL;
    uint64_t serial, base = 2 * BASE;
    size_t count = 0;
    int index, slot, i;
    bool revoked;

    vmml_ledger_retire_window(pair->ledger, (uint32_t)pair->window);
    for (i = 1; i < VMML_LEDGER_WINDOWS_MAX; i++, base += GRANULE)
        assert_int_equal(
            vmml_ledger_add_window(pair->ledger, base, GRANULE, 0, uuid), i);
    /* The one retired window makes room, and nothing else does. */
    index = vmml_ledger_add_window(pair->ledger, base, GRANULE, 0, uuid);
    assert_int_equal(index, pair->window);
    assert_int_equal(vmml_ledger_add_window(pair->ledger, BASE, SIZE, 0, uuid),
                     -ENOSPC);
    assert_int_equal(
        vmml_ledger_find_window(pair->reader, base, GRANULE, &view), 0);
    assert_int_equal(view.index, pair->window);
    assert_int_equal(vmml_ledger_find_window(pair->reader, BASE, SIZE, &view),
                     -ENOENT);
    /* Who still knows the entry by its old name is told. */
    assert_true(vmml_ledger_window_changed(pair->reader, &first, &revoked));
    assert_true(revoked);
    assert_int_equal(
        vmml_ledger_collect(pair->reader, &first, 0, GRANULE, &chunks, &count),
        -ENOENT);
    /* A retired window that still holds a chunk waits for its end. */
    slot = vmml_ledger_publish(pair->ledger, 7, 0, GRANULE, 1, 0, &serial);
    assert_true(slot >= 0);
    vmml_ledger_retire_window(pair->ledger, 7);
    assert_int_equal(vmml_ledger_add_window(pair->ledger, BASE, SIZE, 0, uuid),
                     -ENOSPC);
    vmml_ledger_kill(pair->ledger, (uint32_t)slot);
    assert_int_equal(vmml_ledger_add_window(pair->ledger, BASE, SIZE, 0, uuid),
                     7);
    /* Oldest first; one that came back is not evicted. */
    vmml_ledger_retire_window(pair->ledger, 100);
    vmml_ledger_retire_window(pair->ledger, 101);
    vmml_ledger_retire_window(pair->ledger, 102);
    assert_int_equal(vmml_ledger_add_window(pair->ledger,
                                            2 * BASE + 99 * GRANULE, GRANULE, 0,
                                            uuid),
                     100);
    for (i = 101; i <= 102; i++, base += GRANULE)
        assert_int_equal(vmml_ledger_add_window(pair->ledger, base + GRANULE,
                                                GRANULE, 0, uuid),
                         i);
    assert_int_equal(
        vmml_ledger_add_window(pair->ledger, base + GRANULE, GRANULE, 0, uuid),
        -ENOSPC);
}

/* --- the descriptor ------------------------------------------------------- */

/* A process that may not have so large a file is not ended by that. */
static void test_file_size_limit(void **state)
{
    struct vmml_ledger *ledger = NULL;
    struct rlimit limit, small;
    int status;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    status = vmml_ledger_create(&ledger);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, -EFBIG);
    assert_int_equal(vmml_ledger_create(&ledger), 0);
    vmml_ledger_destroy(ledger);
}

static void test_descriptor(void **state)
{
    struct pair *pair = *state;
    int fd = vmml_ledger_fd(pair->ledger);
    struct stat st;

    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_int_equal(fstat(fd, &st), 0);
    assert_true((uint64_t)st.st_size == VMML_LEDGER_FILE_SIZE);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_true(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
    assert_true(fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL);
}

/* Nobody gets a writable mapping by way of the read-only descriptor. */
static void test_no_writer_through_proc(void **state)
{
    struct pair *pair = *state;
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/self/fd/%d",
             vmml_ledger_fd(pair->ledger));
    fd = open(path, O_RDWR);
    if (fd < 0)
        return;
    if ((fcntl(fd, F_GET_SEALS) & 0x10) == 0) {
        close(fd);
        skip();
    }
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    assert_int_equal(ftruncate(fd, 4096), -1);
    close(fd);
}

/* Make a ledger under a limit of so many descriptors; in a child, since the
 * hard limit does not rise again. Returns vmml_ledger_create()'s answer, or 1
 * where the descriptors are not where they should be. */
static int create_limited(rlim_t soft, rlim_t hard, int lowest)
{
    const struct rlimit limit = {soft, hard};
    struct vmml_ledger *ledger;
    int status, wait_status, before;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child != 0) {
        assert_int_equal(waitpid(child, &wait_status, 0), child);
        assert_true(WIFEXITED(wait_status));
        return -WEXITSTATUS(wait_status);
    }
    before = dup(0);
    close(before);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        _exit(77);
    status = vmml_ledger_create(&ledger);
    if (status == 0) {
        if (vmml_ledger_fd(ledger) < lowest ||
            (lowest >= 1024 && dup(0) != before))
            _exit(100);
        close(lowest >= 1024 ? before : -1);
        vmml_ledger_destroy(ledger);
    }
    /* Nothing is left open, after a failure neither. */
    if (dup(0) != before)
        _exit(101);
    _exit(-status);
}

static void test_descriptors_lie_high(void **state)
{
    struct rlimit limit;
    int before = dup(0);

    assert_true(before >= 0);
    close(before);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max >= 2048)
        assert_int_equal(create_limited(256, limit.rlim_max, 1024), 0);
    /* Four descriptors, and 64 that stay free for the application. */
    assert_int_equal(
        create_limited((rlim_t)before + 68, (rlim_t)before + 68, before), 0);
    assert_int_equal(
        create_limited((rlim_t)before + 67, (rlim_t)before + 67, before),
        -EMFILE);
    assert_int_equal(
        create_limited((rlim_t)before + 64, (rlim_t)before + 64, before),
        -EMFILE);
}

static void test_descriptors_closed_in_child(void **state)
{
    struct pair *pair = *state;
    int before = vmml_ledger_fd(pair->ledger);

    vmml_ledger_close_descriptors(pair->ledger);
    assert_int_equal(vmml_ledger_fd(pair->ledger), -1);
    assert_int_equal(fcntl(before, F_GETFD), -1);
    assert_int_equal(errno, EBADF);
}

static void test_wrong_nonce(void **state)
{
    struct pair *pair = *state;
    struct vmml_ledger_reader *reader = NULL;
    uint8_t nonce[VMML_NONCE_SIZE];

    memcpy(nonce, vmml_ledger_nonce(pair->ledger), sizeof(nonce));
    nonce[15] ^= 1;
    assert_int_equal(
        vmml_ledger_open(vmml_ledger_fd(pair->ledger), nonce, &reader),
        -ESTALE);
    assert_null(reader);
}

/* --- two processes -------------------------------------------------------- */

static void send_fd(int socket, int fd, const uint8_t *nonce)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {.iov_base = (void *)nonce, .iov_len = VMML_NONCE_SIZE};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    if (sendmsg(socket, &message, 0) != VMML_NONCE_SIZE)
        _exit(10);
}

static int receive_fd(int socket, uint8_t *nonce)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {.iov_base = nonce, .iov_len = VMML_NONCE_SIZE};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header;
    int fd = -1;

    assert_int_equal(recvmsg(socket, &message, 0), VMML_NONCE_SIZE);
    header = CMSG_FIRSTHDR(&message);
    assert_non_null(header);
    memcpy(&fd, CMSG_DATA(header), sizeof(int));
    return fd;
}

static void step(int socket, char expected)
{
    char got = 0;

    if (read(socket, &got, 1) != 1 || got != expected)
        _exit(11);
}

/* The exporter: publishes, waits to be told, kills one chunk, and dies with
 * the others live. */
static void export_and_die(int socket)
{
    struct vmml_ledger *ledger;
    uint64_t serial;
    int window, slots[3], i;

    if (vmml_ledger_create(&ledger) != 0)
        _exit(1);
    window = vmml_ledger_add_window(ledger, BASE, SIZE, 1, uuid);
    for (i = 0; i < 3; i++)
        slots[i] = vmml_ledger_publish(ledger, (uint32_t)window, AT(i), GRANULE,
                                       i, 1, &serial);
    send_fd(socket, vmml_ledger_fd(ledger), vmml_ledger_nonce(ledger));
    step(socket, 'k');
    vmml_ledger_kill(ledger, (uint32_t)slots[1]);
    if (write(socket, "d", 1) != 1)
        _exit(2);
    step(socket, 'x');
    _exit(0);
}

static void test_two_processes(void **state)
{
    uint8_t nonce[VMML_NONCE_SIZE];
    struct pair pair = {0};
    struct vmml_window_view view;
    struct vmml_chunk_view *chunks;
    int sockets[2], fd, status;
    bool revoked;
    char answer;
    pid_t child;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        export_and_die(sockets[1]);
    fd = receive_fd(sockets[0], nonce);
    assert_int_equal(vmml_ledger_open(fd, nonce, &pair.reader), 0);
    close(fd);
    assert_int_equal(vmml_ledger_reader_pid(pair.reader), child);
    view = find(&pair);
    assert_int_equal(collect(&pair, &view, 0, &chunks), 3);
    assert_int_equal(write(sockets[0], "k", 1), 1);
    assert_int_equal(read(sockets[0], &answer, 1), 1);
    assert_true(vmml_ledger_window_changed(pair.reader, &view, &revoked));
    assert_true(revoked);
    assert_false(
        vmml_ledger_is_live(pair.reader, chunks[1].slot, chunks[1].serial));
    assert_true(
        vmml_ledger_is_live(pair.reader, chunks[2].slot, chunks[2].serial));
    free(chunks);
    assert_int_equal(write(sockets[0], "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    /* The memory outlives its owner; nobody is killed by reading it. */
    assert_int_equal(collect(&pair, &view, 0, &chunks), 2);
    free(chunks);
    vmml_ledger_close(pair.reader);
    close(sockets[0]);
    close(sockets[1]);
}

/* --- allocations of pools --------------------------------------------------
 */

#define POOLED_BASE (VMML_POOLED_BASE + 5 * GRANULE)

static int publish_pooled(struct pair *pair, int window, uint64_t number,
                          uint64_t *serial)
{
    struct vmml_pooled_record record = {
        .address = 0x7f1234567200,
        .size = GRANULE + 1000,
        .pool = number,
        .data = {number, 2, 3, 4, 5, 6, 7, 8},
    };

    return vmml_ledger_publish_pooled(pair->ledger, (uint32_t)window, &record,
                                      77, 3, serial);
}

static void test_pooled(void **state)
{
    struct pair *pair = *state;
    struct vmml_window_view view;
    struct vmml_pooled_view pooled;
    struct vmml_chunk_view *chunks;
    uint64_t serial, next;
    size_t count;
    int window, slot;

    window = vmml_ledger_add_window(pair->ledger, POOLED_BASE, 2 * GRANULE, 3,
                                    (const uint8_t *)"0123456789abcdef");
    assert_true(window >= 0);
    slot = publish_pooled(pair, window, 9, &serial);
    assert_true(slot >= 0);
    assert_int_equal(publish_pooled(pair, window, 9, &next), -EINVAL);
    assert_int_equal(
        vmml_ledger_find_window(pair->reader, POOLED_BASE, 2 * GRANULE, &view),
        0);
    assert_true(view.origin == 0x7f1234567200);
    assert_int_equal(
        vmml_ledger_collect(pair->reader, &view, 0, GRANULE, &chunks, &count),
        0);
    assert_int_equal(count, 1);
    assert_int_equal(chunks->kind, VMML_CHUNK_POOLED);
    assert_int_equal(chunks->fd, 77);
    assert_true(chunks->address == POOLED_BASE && chunks->size == 2 * GRANULE);
    assert_true(vmml_ledger_pooled(pair->reader, &view, chunks, &pooled));
    assert_true(pooled.size == GRANULE + 1000 && pooled.pool == 9);
    assert_true(pooled.data[0] == 9 && pooled.data[7] == 8);
    /* Not of another publication in its place. */
    vmml_ledger_kill(pair->ledger, (uint32_t)slot);
    assert_false(vmml_ledger_pooled(pair->reader, &view, chunks, &pooled));
    assert_int_equal(publish_pooled(pair, window, 10, &next), slot);
    assert_false(vmml_ledger_pooled(pair->reader, &view, chunks, &pooled));
    free(chunks);
    /* Another window has no other place of memory than its base. */
    view = find(pair);
    assert_true(view.origin == 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_empty),
        TEST(test_header_names_the_process),
        TEST(test_nonces_differ),
        TEST(test_publish_and_kill),
        TEST(test_unmap_and_restore),
        TEST(test_slots_again),
        TEST(test_fabric_handles),
        TEST(test_many_chunks),
        TEST(test_ledger_full_of_chunks),
        TEST(test_windows),
        TEST(test_retire),
        TEST(test_windows_evicted),
        TEST(test_descriptor),
        TEST(test_no_writer_through_proc),
        TEST(test_descriptors_lie_high),
        TEST(test_descriptors_closed_in_child),
        TEST(test_wrong_nonce),
        TEST(test_pooled),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_two_processes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
