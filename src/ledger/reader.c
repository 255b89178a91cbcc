/* SPDX-License-Identifier: MIT */
#include "ledger/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* A writer holds a sequence lock for nanoseconds, unless it was preempted. So
 * try at once, then sleep: a few milliseconds in all. */
#define QUICK_TRIES 100
#define SLOW_TRIES  40
#define SLOW_NS     50000

/* Links followed in all tries of one call together. */
#define STEPS_MAX (4 * VMML_LEDGER_CHUNKS_MAX)

struct vmml_ledger_reader {
    const uint8_t *map;
    const struct vmml_ledger_header *header;
    const _Atomic uint32_t *buckets;
    const struct vmml_ledger_window *windows;
    const struct vmml_ledger_chunk *chunks;
    const struct vmml_ledger_pooled *pooled;
    const struct vmml_ledger_fabric *fabric;
    uint32_t pid;
    uint32_t pid_ns;
    int life_fd;
    uint64_t start_time;
};

/* Acquire loads: a value that the exporter stored inside a locked part makes
 * the sequence that it stored before visible too. See writer.c. */
#define GET(word) atomic_load_explicit(&(word), memory_order_acquire)

/* --- opening -------------------------------------------------------------- */

/* A ledger of another size is one of another version. */
static bool is_other_version(int fd)
{
    struct vmml_ledger_header header;

    return pread(fd, &header, sizeof(header), 0) == (ssize_t)sizeof(header) &&
           header.magic == VMML_LEDGER_MAGIC &&
           header.version != VMML_LEDGER_VERSION;
}

/* Only a memfd of tmpfs: a mapping of anything else (a file that its owner may
 * truncate, huge pages that may run out) could kill the reader by SIGBUS. */
static int check_file(int fd)
{
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct statfs fs;
    struct stat st;
    int seals;

    if (fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
        return -EIO;
    seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(st.st_mode) || fs.f_type != TMPFS_MAGIC || seals < 0 ||
        (seals & needed) != needed)
        return -EPROTO;
    if ((uint64_t)st.st_size != VMML_LEDGER_FILE_SIZE)
        return is_other_version(fd) ? -EPROTONOSUPPORT : -EPROTO;
    return 0;
}

static int check_header(const struct vmml_ledger_header *header,
                        const uint8_t nonce[VMML_NONCE_SIZE])
{
    if (header->magic != VMML_LEDGER_MAGIC)
        return -EPROTO;
    if (header->version != VMML_LEDGER_VERSION)
        return -EPROTONOSUPPORT;
    if (memcmp(header->nonce, nonce, VMML_NONCE_SIZE) != 0)
        return -ESTALE;
    if (header->header_size != VMML_LEDGER_HEADER_SIZE ||
        header->window_capacity != VMML_LEDGER_WINDOWS_MAX ||
        header->chunk_capacity != VMML_LEDGER_CHUNKS_MAX)
        return -EPROTO;
    return 0;
}

int vmml_ledger_read_nonce(int fd, uint8_t nonce[VMML_NONCE_SIZE])
{
    struct vmml_ledger_header header;
    int status = check_file(fd);

    if (status != 0)
        return status;
    if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
        return -EIO;
    memcpy(nonce, header.nonce, VMML_NONCE_SIZE);
    return 0;
}

int vmml_ledger_open(int fd, const uint8_t nonce[VMML_NONCE_SIZE],
                     struct vmml_ledger_reader **reader)
{
    struct vmml_ledger_reader *opened;
    const uint8_t *map;
    int status;

    status = check_file(fd);
    if (status != 0)
        return status;
    opened = calloc(1, sizeof(*opened));
    if (opened == NULL)
        return -ENOMEM;
    map = mmap(NULL, VMML_LEDGER_FILE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        status = errno == ENOMEM ? -ENOMEM : -EIO;
        free(opened);
        return status;
    }
    opened->map = map;
    opened->header = (const void *)map;
    opened->buckets = (const void *)(map + VMML_LEDGER_BUCKET_OFFSET);
    opened->windows = (const void *)(map + VMML_LEDGER_WINDOW_OFFSET);
    opened->chunks = (const void *)(map + VMML_LEDGER_CHUNK_OFFSET);
    opened->pooled = (const void *)(map + VMML_LEDGER_POOLED_OFFSET);
    opened->fabric = (const void *)(map + VMML_LEDGER_FABRIC_OFFSET);
    opened->pid = opened->header->pid;
    opened->pid_ns = opened->header->pid_ns;
    opened->life_fd = opened->header->life_fd;
    opened->start_time = opened->header->start_time;
    status = check_header(opened->header, nonce);
    if (status != 0) {
        vmml_ledger_close(opened);
        return status;
    }
    *reader = opened;
    return 0;
}

void vmml_ledger_close(struct vmml_ledger_reader *reader)
{
    if (reader == NULL)
        return;
    munmap((void *)reader->map, VMML_LEDGER_FILE_SIZE);
    free(reader);
}

uint32_t vmml_ledger_reader_pid(const struct vmml_ledger_reader *reader)
{
    return reader->pid;
}

int vmml_ledger_reader_life_fd(const struct vmml_ledger_reader *reader)
{
    return reader->life_fd;
}

uint32_t vmml_ledger_reader_pid_ns(const struct vmml_ledger_reader *reader)
{
    return reader->pid_ns;
}

uint64_t vmml_ledger_reader_start_time(const struct vmml_ledger_reader *reader)
{
    return reader->start_time;
}

/* --- sequence locks ------------------------------------------------------- */

struct attempt {
    unsigned tries;
    uint32_t sequence;
};

/* Begin a try: wait for an even sequence. False when all tries are used up. */
static bool begin(struct attempt *attempt, const _Atomic uint32_t *sequence)
{
    const struct timespec pause = {.tv_nsec = SLOW_NS};

    while (attempt->tries < QUICK_TRIES + SLOW_TRIES) {
        if (attempt->tries++ >= QUICK_TRIES)
            nanosleep(&pause, NULL);
        attempt->sequence = GET(*sequence);
        if ((attempt->sequence & 1) == 0)
            return true;
    }
    return false;
}

static bool unchanged(const struct attempt *attempt,
                      const _Atomic uint32_t *sequence)
{
    return atomic_load_explicit(sequence, memory_order_relaxed) ==
           attempt->sequence;
}

/* --- windows -------------------------------------------------------------- */

/* Counts of a hostile exporter lie: no index beyond the tables. */
static uint32_t window_count(const struct vmml_ledger_reader *reader)
{
    uint32_t count = GET(reader->header->window_count);

    return count < VMML_LEDGER_WINDOWS_MAX ? count : VMML_LEDGER_WINDOWS_MAX;
}

static uint32_t chunk_count(const struct vmml_ledger_reader *reader)
{
    uint32_t count = GET(reader->header->chunk_count);

    return count < VMML_LEDGER_CHUNKS_MAX ? count : VMML_LEDGER_CHUNKS_MAX;
}

/* Follow one chain. Returns an index, -ENOENT at its end, or -EPROTO. */
static int search_chain(const struct vmml_ledger_reader *reader, uint64_t base,
                        uint64_t size)
{
    uint32_t entry = GET(reader->buckets[vmml_ledger_bucket(base, size)]);
    uint32_t count = window_count(reader);
    uint32_t steps;

    for (steps = 0; steps <= count; steps++) {
        const struct vmml_ledger_window *window;

        if (entry == 0)
            return -ENOENT;
        /* An index that was inserted after `count` was read is no nonsense. */
        if (entry > count && entry > (count = window_count(reader)))
            return -EPROTO;
        window = &reader->windows[entry - 1];
        if (GET(window->base) == base && GET(window->size) == size)
            return (int)(entry - 1);
        entry = GET(window->bucket_next);
    }
    return -EPROTO;
}

static int search(const struct vmml_ledger_reader *reader, uint64_t base,
                  uint64_t size)
{
    const _Atomic uint32_t *sequence = &reader->header->directory_sequence;
    struct attempt attempt = {0};
    int index;

    while (begin(&attempt, sequence)) {
        index = search_chain(reader, base, size);
        if (index >= 0 || unchanged(&attempt, sequence))
            return index;
    }
    return -EAGAIN;
}

/* What can be read without the chain; `newest` first. */
static uint32_t load_window(const struct vmml_ledger_window *window,
                            struct vmml_window_view *view)
{
    uint64_t uuid[2];

    view->newest = GET(window->newest);
    view->revoked = GET(window->revoked);
    view->base = GET(window->base);
    view->size = GET(window->size);
    view->device = GET(window->device);
    uuid[0] = GET(window->device_uuid[0]);
    uuid[1] = GET(window->device_uuid[1]);
    memcpy(view->device_uuid, uuid, sizeof(uuid));
    view->origin = GET(window->origin);
    return GET(window->state);
}

static bool is_served(uint32_t state, const struct vmml_window_view *view,
                      uint64_t base, uint64_t size)
{
    return state == VMML_WINDOW_SERVED && view->base == base &&
           view->size == size;
}

int vmml_ledger_find_window(const struct vmml_ledger_reader *reader,
                            uint64_t base, uint64_t size,
                            struct vmml_window_view *view)
{
    const struct vmml_ledger_window *window;
    struct vmml_window_view read;
    struct attempt attempt = {0};
    uint32_t state;
    int index;

    if (size == 0 || base > UINT64_MAX - size)
        return -ENOENT;
    index = search(reader, base, size);
    if (index < 0)
        return index;
    window = &reader->windows[index];
    while (begin(&attempt, &window->sequence)) {
        state = load_window(window, &read);
        if (!unchanged(&attempt, &window->sequence))
            continue;
        if (!is_served(state, &read, base, size))
            return -ENOENT;
        read.index = (uint32_t)index;
        *view = read;
        return 0;
    }
    return -EAGAIN;
}

uint32_t vmml_ledger_windows(const struct vmml_ledger_reader *reader)
{
    return window_count(reader);
}

int vmml_ledger_window_at(const struct vmml_ledger_reader *reader,
                          uint32_t index, struct vmml_window_view *view)
{
    const struct vmml_ledger_window *window;
    struct vmml_window_view read;
    struct attempt attempt = {0};
    uint32_t state;

    if (index >= window_count(reader))
        return -ENOENT;
    window = &reader->windows[index];
    while (begin(&attempt, &window->sequence)) {
        state = load_window(window, &read);
        if (!unchanged(&attempt, &window->sequence))
            continue;
        if (!is_served(state, &read, read.base, read.size) || read.size == 0 ||
            read.base > UINT64_MAX - read.size)
            return -ENOENT;
        read.index = index;
        *view = read;
        return 0;
    }
    return -EAGAIN;
}

bool vmml_ledger_window_changed(const struct vmml_ledger_reader *reader,
                                const struct vmml_window_view *view,
                                bool *revoked)
{
    const struct vmml_ledger_window *window = &reader->windows[view->index];

    *revoked = GET(window->revoked) != view->revoked;
    return *revoked || GET(window->newest) != view->newest;
}

const _Atomic uint64_t *
vmml_ledger_revoked_word(const struct vmml_ledger_reader *reader,
                         uint32_t window)
{
    return &reader->windows[window].revoked;
}

/* --- chunks --------------------------------------------------------------- */

struct collection {
    struct vmml_chunk_view *chunks;
    size_t count;
    size_t room;
    uint64_t granule;
    unsigned steps;
};

static int append(struct collection *into, const struct vmml_chunk_view *chunk)
{
    if (into->count == into->room) {
        size_t room = into->room != 0 ? 2 * into->room : 64;
        struct vmml_chunk_view *grown =
            realloc(into->chunks, room * sizeof(*grown));

        if (grown == NULL)
            return -ENOMEM;
        into->chunks = grown;
        into->room = room;
    }
    into->chunks[into->count++] = *chunk;
    return 0;
}

static uint32_t load_chunk(const struct vmml_ledger_reader *reader,
                           uint32_t slot, struct vmml_chunk_view *view,
                           uint8_t *state, uint32_t *next)
{
    const struct vmml_ledger_chunk *chunk = &reader->chunks[slot];

    *state = GET(chunk->state);
    view->slot = slot;
    view->serial = GET(chunk->serial);
    view->address = GET(chunk->address);
    view->size = GET(chunk->size);
    view->device = GET(chunk->device);
    view->fd = GET(chunk->fd);
    view->kind = GET(chunk->kind);
    *next = GET(chunk->next);
    return GET(chunk->window);
}

static bool is_sound(const struct vmml_chunk_view *chunk,
                     const struct vmml_window_view *window, uint64_t granule)
{
    uint64_t offset = chunk->address - window->base;
    bool is_kind = (chunk->kind == VMML_CHUNK_FD && chunk->fd >= 0) ||
                   (chunk->kind == VMML_CHUNK_FABRIC && chunk->fd == -1) ||
                   (chunk->kind == VMML_CHUNK_POOLED && chunk->fd >= 0 &&
                    offset == 0 && chunk->size == window->size);

    return is_kind && chunk->size != 0 && chunk->address >= window->base &&
           offset < window->size && chunk->size <= window->size - offset &&
           chunk->address % granule == 0 && chunk->size % granule == 0;
}

/* Serials fall along a chain, so that a loop in it is found at once. */
static int walk(const struct vmml_ledger_reader *reader,
                const struct vmml_window_view *window, uint64_t since,
                struct collection *into)
{
    uint32_t slot = GET(reader->windows[window->index].head);
    uint32_t count = chunk_count(reader);
    uint64_t last = UINT64_MAX;

    while (slot != VMML_LEDGER_NONE) {
        struct vmml_chunk_view chunk;
        uint32_t owner, next;
        uint8_t state;
        int status;

        if (slot >= count)
            return -EPROTO;
        if (into->steps++ == STEPS_MAX)
            return -EAGAIN;
        owner = load_chunk(reader, slot, &chunk, &state, &next);
        if (chunk.serial >= last || owner != window->index)
            return -EPROTO;
        if (chunk.serial <= since)
            break;
        last = chunk.serial;
        slot = next;
        if (chunk.serial > window->newest)
            continue;
        if (state != VMML_CHUNK_LIVE ||
            !is_sound(&chunk, window, into->granule) ||
            into->count == window->size / into->granule)
            return -EPROTO;
        status = append(into, &chunk);
        if (status != 0)
            return status;
    }
    return 0;
}

static int by_address(const void *a, const void *b)
{
    uint64_t left = ((const struct vmml_chunk_view *)a)->address;
    uint64_t right = ((const struct vmml_chunk_view *)b)->address;

    return left < right ? -1 : left > right;
}

static bool falls(const struct collection *collection)
{
    size_t i;

    for (i = 1; i < collection->count; i++) {
        const struct vmml_chunk_view *lower = &collection->chunks[i];

        if (lower->address + lower->size > lower[-1].address)
            return false;
    }
    return true;
}

/* 0, -EPROTO where two chunks overlap, -ENOMEM. Ends do not overflow: every
 * chunk lies inside the window. */
static int check_overlaps(const struct collection *collection)
{
    struct vmml_chunk_view *sorted;
    int status = 0;
    size_t i;

    /* The usual case: published upwards, so collected downwards. */
    if (falls(collection))
        return 0;
    sorted = malloc(collection->count * sizeof(*sorted));
    if (sorted == NULL)
        return -ENOMEM;
    memcpy(sorted, collection->chunks, collection->count * sizeof(*sorted));
    qsort(sorted, collection->count, sizeof(*sorted), by_address);
    for (i = 1; i < collection->count && status == 0; i++) {
        if (sorted[i].address - sorted[i - 1].address < sorted[i - 1].size)
            status = -EPROTO;
    }
    free(sorted);
    return status;
}

/* One try. -EAGAIN: the exporter wrote meanwhile. */
static int collect_once(const struct vmml_ledger_reader *reader,
                        const struct vmml_window_view *old, uint64_t since,
                        const struct attempt *attempt,
                        struct vmml_window_view *view, struct collection *into)
{
    const struct vmml_ledger_window *window = &reader->windows[old->index];
    uint32_t state;
    int status;

    into->count = 0;
    state = load_window(window, view);
    view->index = old->index;
    if (is_served(state, view, old->base, old->size))
        status = walk(reader, view, since, into);
    else
        status = -ENOENT;
    return unchanged(attempt, &window->sequence) ? status : -EAGAIN;
}

int vmml_ledger_collect(const struct vmml_ledger_reader *reader,
                        struct vmml_window_view *view, uint64_t since,
                        uint64_t granule, struct vmml_chunk_view **chunks,
                        size_t *count)
{
    const _Atomic uint32_t *sequence = &reader->windows[view->index].sequence;
    struct collection into = {.granule = granule};
    struct attempt attempt = {0};
    struct vmml_window_view read;
    int status = -EAGAIN;

    if (granule == 0)
        return -EINVAL;
    while (status == -EAGAIN && into.steps <= STEPS_MAX &&
           begin(&attempt, sequence))
        status = collect_once(reader, view, since, &attempt, &read, &into);
    if (status == 0)
        status = check_overlaps(&into);
    if (status != 0) {
        free(into.chunks);
        return status;
    }
    *view = read;
    *chunks = into.chunks;
    *count = into.count;
    return 0;
}

/* The state is read first: live, and after that still this serial, means live
 * in between. */
bool vmml_ledger_is_live(const struct vmml_ledger_reader *reader, uint32_t slot,
                         uint64_t serial)
{
    const struct vmml_ledger_chunk *chunk;

    if (slot >= chunk_count(reader))
        return false;
    chunk = &reader->chunks[slot];
    return GET(chunk->state) == VMML_CHUNK_LIVE && GET(chunk->serial) == serial;
}

bool vmml_ledger_pooled(const struct vmml_ledger_reader *reader,
                        const struct vmml_window_view *window,
                        const struct vmml_chunk_view *chunk,
                        struct vmml_pooled_view *view)
{
    const struct vmml_ledger_pooled *pooled = &reader->pooled[window->index];
    size_t i;

    view->size = GET(pooled->size);
    view->pool = GET(pooled->pool);
    for (i = 0; i < VMML_POINTER_WORDS; i++)
        view->data[i] = GET(pooled->data[i]);
    return view->size != 0 && view->size <= window->size &&
           vmml_ledger_is_live(reader, chunk->slot, chunk->serial);
}

bool vmml_ledger_fabric_handle(const struct vmml_ledger_reader *reader,
                               const struct vmml_chunk_view *chunk,
                               uint8_t handle[64])
{
    uint64_t words[VMML_FABRIC_WORDS];
    size_t i;

    for (i = 0; i < VMML_FABRIC_WORDS; i++)
        words[i] = GET(reader->fabric[chunk->slot].words[i]);
    memcpy(handle, words, sizeof(words));
    return vmml_ledger_is_live(reader, chunk->slot, chunk->serial);
}
