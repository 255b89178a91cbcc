/* SPDX-License-Identifier: MIT */
#include "ledger/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/memfd.h"

/* Parts of the file are allocated in steps of this many bytes. */
#define GROWTH_STEP 65536ul

#define NONE VMML_LEDGER_NONE

#define POOLED_PER_STEP (GROWTH_STEP / sizeof(struct vmml_ledger_pooled))
#define POOLED_STEPS                                                           \
    ((VMML_LEDGER_WINDOWS_MAX + POOLED_PER_STEP - 1) / POOLED_PER_STEP)

struct window_private {
    uint32_t chunks; /* live and unmapping */
    uint32_t older;  /* retired windows that are not used, in a list */
    uint32_t newer;
};

struct vmml_ledger {
    uint8_t *map;
    struct vmml_ledger_header *header;
    _Atomic uint32_t *buckets;
    struct vmml_ledger_window *windows;
    struct vmml_ledger_chunk *chunks;
    struct vmml_ledger_pooled *pooled;
    bool pooled_room[POOLED_STEPS]; /* allocated in the file */
    struct vmml_ledger_fabric *fabric;
    int write_fd; /* to allocate with */
    int read_fd;
    int life_fd;       /* read end */
    int life_write_fd; /* never written: it closes with this process */
    uint64_t serial;   /* the last one given out */
    uint32_t window_count;
    uint32_t chunk_count;
    uint32_t window_room; /* allocated in the file and in `private` */
    uint32_t chunk_room;
    uint32_t fabric_room; /* chunks whose place for a fabric handle is
                           * allocated in the file */
    uint32_t free_chunk;  /* first of a list through `links` */
    uint32_t oldest_retired;
    uint32_t newest_retired;
    struct window_private *private;
    /* Of a chunk in a chain: the newer one. Of a free one: the next free. */
    uint32_t *links;
};

/*
 * The shared words. A release store orders all stores before it, so that a
 * reader who sees a new value inside a locked part also sees the odd sequence
 * that went before: no separate fences, which ThreadSanitizer cannot see.
 */
#define GET(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define PUT(word, value)                                                       \
    atomic_store_explicit(&(word), value, memory_order_release)

static void lock(_Atomic uint32_t *sequence)
{
    PUT(*sequence, GET(*sequence) + 1);
}

static void unlock(_Atomic uint32_t *sequence)
{
    PUT(*sequence, GET(*sequence) + 1);
}

static int read_start_time(uint64_t *start_time)
{
    char text[1024];
    char *at;
    ssize_t length;
    int fd, field;

    fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    do {
        length = read(fd, text, sizeof(text) - 1);
    } while (length < 0 && errno == EINTR);
    close(fd);
    if (length <= 0)
        return -EIO;
    text[length] = '\0';
    /* Field 2 is the program's name in brackets, with any bytes inside. */
    at = strrchr(text, ')');
    for (field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL)
        return -EIO;
    *start_time = strtoull(at, NULL, 10);
    return 0;
}

static int read_pid_ns(uint32_t *pid_ns)
{
    struct stat st;

    if (stat("/proc/self/ns/pid", &st) != 0)
        return -errno;
    *pid_ns = (uint32_t)st.st_ino;
    return 0;
}

static int make_nonce(uint8_t nonce[VMML_NONCE_SIZE])
{
    ssize_t length;

    do {
        length = getrandom(nonce, VMML_NONCE_SIZE, 0);
    } while (length < 0 && errno == EINTR);
    return length == VMML_NONCE_SIZE ? 0 : -EIO;
}

/* Allocate bytes [offset, offset + length) of the file. */
static int allocate(struct vmml_ledger *ledger, size_t offset, size_t length)
{
    return vmml_memfd_allocate(ledger->write_fd, offset, length);
}

static int open_read_only(int write_fd)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", write_fd);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : vmml_fd_raise(fd);
}

static int make_file(struct vmml_ledger *ledger)
{
    int fd, status;
    void *map;

    fd = memfd_create("vmmlane-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    ledger->write_fd = vmml_fd_raise(fd);
    if (ledger->write_fd < 0)
        return ledger->write_fd;
    if (fchmod(ledger->write_fd, 0400) != 0)
        return -errno;
    status = vmml_memfd_resize(ledger->write_fd, VMML_LEDGER_FILE_SIZE);
    if (status == 0)
        status = allocate(ledger, 0, VMML_LEDGER_WINDOW_OFFSET);
    if (status != 0)
        return status;
    map = mmap(NULL, VMML_LEDGER_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
               ledger->write_fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    ledger->map = map;
    status = vmml_memfd_seal(ledger->write_fd);
    if (status != 0)
        return status;
    ledger->read_fd = open_read_only(ledger->write_fd);
    return ledger->read_fd < 0 ? ledger->read_fd : 0;
}

static int make_life(struct vmml_ledger *ledger)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return -errno;
    ledger->life_fd = vmml_fd_raise(ends[0]);
    ledger->life_write_fd = vmml_fd_raise(ends[1]);
    if (ledger->life_fd < 0 || ledger->life_write_fd < 0)
        return -EMFILE;
    ledger->header->life_fd = ledger->life_fd;
    return 0;
}

static int fill_header(struct vmml_ledger_header *header)
{
    int status;

    status = make_nonce(header->nonce);
    if (status == 0)
        status = read_start_time(&header->start_time);
    if (status == 0)
        status = read_pid_ns(&header->pid_ns);
    if (status != 0)
        return status;
    header->pid = (uint32_t)getpid();
    header->magic = VMML_LEDGER_MAGIC;
    header->version = VMML_LEDGER_VERSION;
    header->header_size = VMML_LEDGER_HEADER_SIZE;
    header->window_capacity = VMML_LEDGER_WINDOWS_MAX;
    header->chunk_capacity = VMML_LEDGER_CHUNKS_MAX;
    return 0;
}

int vmml_ledger_create(struct vmml_ledger **ledger)
{
    struct vmml_ledger *made = calloc(1, sizeof(*made));
    int status;

    if (made == NULL)
        return -ENOMEM;
    made->write_fd = made->read_fd = -1;
    made->life_fd = made->life_write_fd = -1;
    made->free_chunk = NONE;
    made->oldest_retired = made->newest_retired = NONE;
    status = make_file(made);
    if (status == 0) {
        made->header = (void *)made->map;
        made->buckets = (void *)(made->map + VMML_LEDGER_BUCKET_OFFSET);
        made->windows = (void *)(made->map + VMML_LEDGER_WINDOW_OFFSET);
        made->chunks = (void *)(made->map + VMML_LEDGER_CHUNK_OFFSET);
        made->pooled = (void *)(made->map + VMML_LEDGER_POOLED_OFFSET);
        made->fabric = (void *)(made->map + VMML_LEDGER_FABRIC_OFFSET);
        status = fill_header(made->header);
        if (status == 0)
            status = make_life(made);
    }
    if (status != 0) {
        vmml_ledger_destroy(made);
        return status;
    }
    *ledger = made;
    return 0;
}

void vmml_ledger_close_descriptors(struct vmml_ledger *ledger)
{
    vmml_fd_close(ledger->write_fd);
    vmml_fd_close(ledger->read_fd);
    vmml_fd_close(ledger->life_fd);
    vmml_fd_close(ledger->life_write_fd);
    ledger->write_fd = ledger->read_fd = -1;
    ledger->life_fd = ledger->life_write_fd = -1;
}

void vmml_ledger_keep_private(struct vmml_ledger *ledger)
{
    vmml_fd_close(ledger->read_fd);
    vmml_fd_close(ledger->life_fd);
    vmml_fd_close(ledger->life_write_fd);
    ledger->read_fd = ledger->life_fd = ledger->life_write_fd = -1;
}

void vmml_ledger_destroy(struct vmml_ledger *ledger)
{
    if (ledger->map != NULL)
        munmap(ledger->map, VMML_LEDGER_FILE_SIZE);
    vmml_ledger_close_descriptors(ledger);
    free(ledger->private);
    free(ledger->links);
    free(ledger);
}

const uint8_t *vmml_ledger_nonce(const struct vmml_ledger *ledger)
{
    return ledger->header->nonce;
}

int vmml_ledger_fd(const struct vmml_ledger *ledger)
{
    return ledger->read_fd;
}

int vmml_ledger_life_fd(const struct vmml_ledger *ledger)
{
    return ledger->life_fd;
}

int vmml_ledger_chunk_fd(const struct vmml_ledger *ledger, uint32_t slot,
                         uint64_t serial)
{
    const struct vmml_ledger_chunk *chunk;

    if (slot >= ledger->chunk_count)
        return -1;
    chunk = &ledger->chunks[slot];
    if (GET(chunk->serial) != serial || GET(chunk->state) != VMML_CHUNK_LIVE)
        return -1;
    return GET(chunk->fd);
}

uint32_t vmml_ledger_pid_ns(const struct vmml_ledger *ledger)
{
    return ledger->header->pid_ns;
}

uint32_t vmml_ledger_pid(const struct vmml_ledger *ledger)
{
    return ledger->header->pid;
}

/* --- windows -------------------------------------------------------------- */

static uint32_t find(const struct vmml_ledger *ledger, uint64_t base,
                     uint64_t size)
{
    uint32_t entry = GET(ledger->buckets[vmml_ledger_bucket(base, size)]);

    while (entry != 0) {
        const struct vmml_ledger_window *window = &ledger->windows[entry - 1];

        if (GET(window->base) == base && GET(window->size) == size)
            break;
        entry = GET(window->bucket_next);
    }
    return entry - 1; /* NONE at the end of the chain */
}

static void retired_append(struct vmml_ledger *ledger, uint32_t index)
{
    struct window_private *entry = &ledger->private[index];

    entry->older = ledger->newest_retired;
    entry->newer = NONE;
    if (entry->older != NONE)
        ledger->private[entry->older].newer = index;
    else
        ledger->oldest_retired = index;
    ledger->newest_retired = index;
}

static void retired_remove(struct vmml_ledger *ledger, uint32_t index)
{
    const struct window_private *entry = &ledger->private[index];

    if (entry->older != NONE)
        ledger->private[entry->older].newer = entry->newer;
    else
        ledger->oldest_retired = entry->newer;
    if (entry->newer != NONE)
        ledger->private[entry->newer].older = entry->older;
    else
        ledger->newest_retired = entry->older;
}

static int grow_windows(struct vmml_ledger *ledger)
{
    const size_t step = GROWTH_STEP / sizeof(struct vmml_ledger_window);
    size_t room = ledger->window_room + step;
    struct window_private *private;
    int status;

    private = realloc(ledger->private, room * sizeof(*private));
    if (private == NULL)
        return -ENOMEM;
    ledger->private = private;
    status =
        allocate(ledger,
                 VMML_LEDGER_WINDOW_OFFSET +
                     ledger->window_room * sizeof(struct vmml_ledger_window),
                 GROWTH_STEP);
    if (status == 0)
        ledger->window_room = (uint32_t)room;
    return status;
}

/* Take the window that was retired longest ago out of the directory. */
static uint32_t evict(struct vmml_ledger *ledger)
{
    uint32_t index = ledger->oldest_retired;
    const struct vmml_ledger_window *window;
    _Atomic uint32_t *link;

    if (index == NONE)
        return NONE;
    retired_remove(ledger, index);
    window = &ledger->windows[index];
    link = &ledger->buckets[vmml_ledger_bucket(GET(window->base),
                                               GET(window->size))];
    while (GET(*link) != index + 1)
        link = &ledger->windows[GET(*link) - 1].bucket_next;
    lock(&ledger->header->directory_sequence);
    PUT(*link, GET(window->bucket_next));
    unlock(&ledger->header->directory_sequence);
    return index;
}

/* An entry for a new window: a fresh one as long as there is room. */
static int take_window(struct vmml_ledger *ledger, uint32_t *index)
{
    int status;

    if (ledger->window_count == VMML_LEDGER_WINDOWS_MAX) {
        *index = evict(ledger);
        return *index == NONE ? -ENOSPC : 0;
    }
    if (ledger->window_count == ledger->window_room) {
        status = grow_windows(ledger);
        if (status != 0)
            return status;
    }
    *index = ledger->window_count++;
    ledger->private[*index].chunks = 0;
    return 0;
}

static void put_device(struct vmml_ledger_window *window, uint32_t device,
                       const uint8_t device_uuid[16])
{
    uint64_t uuid[2];

    memcpy(uuid, device_uuid, sizeof(uuid));
    PUT(window->device, device);
    PUT(window->device_uuid[0], uuid[0]);
    PUT(window->device_uuid[1], uuid[1]);
}

/* Every change of what a window is counts as a revocation: whoever knew it
 * reads it anew. */
static void mark_revoked(struct vmml_ledger_window *window)
{
    PUT(window->revoked, GET(window->revoked) + 1);
}

static int insert_window(struct vmml_ledger *ledger, uint64_t base,
                         uint64_t size, uint32_t device,
                         const uint8_t device_uuid[16])
{
    struct vmml_ledger_window *window;
    _Atomic uint32_t *bucket;
    uint32_t index;
    int status;

    status = take_window(ledger, &index);
    if (status != 0)
        return status;
    window = &ledger->windows[index];
    bucket = &ledger->buckets[vmml_ledger_bucket(base, size)];
    lock(&window->sequence);
    PUT(window->base, base);
    PUT(window->size, size);
    put_device(window, device, device_uuid);
    PUT(window->origin, 0);
    PUT(window->head, NONE);
    PUT(window->live, 0);
    PUT(window->newest, 0);
    PUT(window->state, VMML_WINDOW_SERVED);
    PUT(window->bucket_next, GET(*bucket));
    mark_revoked(window);
    unlock(&window->sequence);
    PUT(ledger->header->window_count, ledger->window_count);
    PUT(*bucket, index + 1);
    return (int)index;
}

int vmml_ledger_add_window(struct vmml_ledger *ledger, uint64_t base,
                           uint64_t size, uint32_t device,
                           const uint8_t device_uuid[16])
{
    uint32_t index = find(ledger, base, size);
    struct vmml_ledger_window *window;
    bool retired;

    if (index == NONE)
        return insert_window(ledger, base, size, device, device_uuid);
    window = &ledger->windows[index];
    retired = GET(window->state) == VMML_WINDOW_RETIRED;
    if (!retired && GET(window->device) == device)
        return (int)index;
    if (retired && ledger->private[index].chunks == 0)
        retired_remove(ledger, index);
    lock(&window->sequence);
    put_device(window, device, device_uuid);
    PUT(window->state, VMML_WINDOW_SERVED);
    mark_revoked(window);
    unlock(&window->sequence);
    return (int)index;
}

void vmml_ledger_retire_window(struct vmml_ledger *ledger, uint32_t index)
{
    struct vmml_ledger_window *window;

    if (index >= ledger->window_count)
        return;
    window = &ledger->windows[index];
    if (GET(window->state) == VMML_WINDOW_RETIRED)
        return;
    lock(&window->sequence);
    PUT(window->state, VMML_WINDOW_RETIRED);
    mark_revoked(window);
    unlock(&window->sequence);
    /* One that still has chunks joins the list with the last of them. */
    if (ledger->private[index].chunks == 0)
        retired_append(ledger, index);
}

/* --- chunks --------------------------------------------------------------- */

static int grow_chunks(struct vmml_ledger *ledger)
{
    const size_t step = GROWTH_STEP / sizeof(struct vmml_ledger_chunk);
    size_t room = ledger->chunk_room + step;
    uint32_t *links;
    int status;

    links = realloc(ledger->links, room * sizeof(*links));
    if (links == NULL)
        return -ENOMEM;
    ledger->links = links;
    status = allocate(ledger,
                      VMML_LEDGER_CHUNK_OFFSET +
                          ledger->chunk_room * sizeof(struct vmml_ledger_chunk),
                      GROWTH_STEP);
    if (status == 0)
        ledger->chunk_room = (uint32_t)room;
    return status;
}

static int take_chunk(struct vmml_ledger *ledger, uint32_t *slot)
{
    int status;

    if (ledger->free_chunk != NONE) {
        *slot = ledger->free_chunk;
        ledger->free_chunk = ledger->links[*slot];
        return 0;
    }
    if (ledger->chunk_count == VMML_LEDGER_CHUNKS_MAX)
        return -ENOSPC;
    if (ledger->chunk_count == ledger->chunk_room) {
        status = grow_chunks(ledger);
        if (status != 0)
            return status;
    }
    *slot = ledger->chunk_count++;
    PUT(ledger->header->chunk_count, ledger->chunk_count);
    return 0;
}

/* Put a chunk in front of its window's chain and make it live under a new
 * serial. `newest` comes last: see struct vmml_ledger_window. */
static void link_chunk(struct vmml_ledger *ledger, uint32_t slot)
{
    struct vmml_ledger_chunk *chunk = &ledger->chunks[slot];
    struct vmml_ledger_window *window = &ledger->windows[GET(chunk->window)];
    uint32_t head = GET(window->head);

    PUT(chunk->next, head);
    PUT(chunk->serial, ++ledger->serial);
    PUT(chunk->state, VMML_CHUNK_LIVE);
    ledger->links[slot] = NONE;
    if (head != NONE)
        ledger->links[head] = slot;
    PUT(window->head, slot);
    PUT(window->live, GET(window->live) + 1);
    PUT(window->newest, ledger->serial);
}

/* The state changes before the count of revocations: who sees the new count
 * sees which chunk it was. */
static void unlink_chunk(struct vmml_ledger *ledger, uint32_t slot,
                         enum vmml_chunk_state state)
{
    struct vmml_ledger_chunk *chunk = &ledger->chunks[slot];
    struct vmml_ledger_window *window = &ledger->windows[GET(chunk->window)];
    uint32_t newer = ledger->links[slot], older = GET(chunk->next);

    lock(&window->sequence);
    PUT(chunk->state, (uint8_t)state);
    if (newer != NONE)
        PUT(ledger->chunks[newer].next, older);
    else
        PUT(window->head, older);
    if (older != NONE)
        ledger->links[older] = newer;
    PUT(window->live, GET(window->live) - 1);
    mark_revoked(window);
    unlock(&window->sequence);
}

static void give_chunk_back(struct vmml_ledger *ledger, uint32_t slot)
{
    ledger->links[slot] = ledger->free_chunk;
    ledger->free_chunk = slot;
}

/* Places for fabric handles, up to that of `slot`. */
static int grow_fabric(struct vmml_ledger *ledger, uint32_t slot)
{
    const size_t step = GROWTH_STEP / sizeof(struct vmml_ledger_fabric);
    int status = 0;

    while (status == 0 && slot >= ledger->fabric_room) {
        status = allocate(ledger,
                          VMML_LEDGER_FABRIC_OFFSET +
                              ledger->fabric_room *
                                  sizeof(struct vmml_ledger_fabric),
                          GROWTH_STEP);
        if (status == 0)
            ledger->fabric_room += (uint32_t)step;
    }
    return status;
}

/* What an importer uses to get at a chunk. */
struct means {
    enum vmml_chunk_kind kind;
    int fd;                /* VMML_CHUNK_FD */
    const uint8_t *fabric; /* VMML_CHUNK_FABRIC */
};

static int put_fabric(struct vmml_ledger *ledger, uint32_t slot,
                      const uint8_t handle[VMML_FABRIC_HANDLE_SIZE])
{
    int status = grow_fabric(ledger, slot);
    uint64_t words[VMML_FABRIC_WORDS];
    size_t i;

    if (status != 0)
        return status;
    memcpy(words, handle, sizeof(words));
    for (i = 0; i < VMML_FABRIC_WORDS; i++)
        PUT(ledger->fabric[slot].words[i], words[i]);
    return 0;
}

static int publish(struct vmml_ledger *ledger, uint32_t window,
                   uint64_t address, uint64_t size, const struct means *means,
                   uint32_t device, uint64_t *serial)
{
    struct vmml_ledger_chunk *chunk;
    uint32_t slot;
    int status;

    if (window >= ledger->window_count ||
        GET(ledger->windows[window].state) != VMML_WINDOW_SERVED)
        return -EINVAL;
    status = take_chunk(ledger, &slot);
    if (status != 0)
        return status;
    if (means->kind == VMML_CHUNK_FABRIC)
        status = put_fabric(ledger, slot, means->fabric);
    if (status != 0) {
        give_chunk_back(ledger, slot);
        return status;
    }
    chunk = &ledger->chunks[slot];
    PUT(chunk->address, address);
    PUT(chunk->size, size);
    PUT(chunk->window, window);
    PUT(chunk->fd, means->fd);
    PUT(chunk->device, device);
    PUT(chunk->kind, (uint8_t)means->kind);
    ledger->private[window].chunks++;
    link_chunk(ledger, slot);
    *serial = ledger->serial;
    return (int)slot;
}

int vmml_ledger_publish(struct vmml_ledger *ledger, uint32_t window,
                        uint64_t address, uint64_t size, int fd,
                        uint32_t device, uint64_t *serial)
{
    const struct means means = {.kind = VMML_CHUNK_FD, .fd = fd};

    if (fd < 0)
        return -EINVAL;
    return publish(ledger, window, address, size, &means, device, serial);
}

int vmml_ledger_publish_fabric(struct vmml_ledger *ledger, uint32_t window,
                               uint64_t address, uint64_t size,
                               const uint8_t handle[VMML_FABRIC_HANDLE_SIZE],
                               uint32_t device, uint64_t *serial)
{
    const struct means means = {
        .kind = VMML_CHUNK_FABRIC, .fd = -1, .fabric = handle};

    return publish(ledger, window, address, size, &means, device, serial);
}

static int grow_pooled(struct vmml_ledger *ledger, uint32_t window)
{
    size_t step = window / POOLED_PER_STEP;
    int status;

    if (ledger->pooled_room[step])
        return 0;
    status = allocate(ledger, VMML_LEDGER_POOLED_OFFSET + step * GROWTH_STEP,
                      GROWTH_STEP);
    ledger->pooled_room[step] = status == 0;
    return status;
}

static void put_pooled(struct vmml_ledger *ledger, uint32_t window,
                       const struct vmml_pooled_record *record)
{
    struct vmml_ledger_pooled *pooled = &ledger->pooled[window];
    size_t i;

    PUT(pooled->size, record->size);
    PUT(pooled->pool, record->pool);
    for (i = 0; i < VMML_POINTER_WORDS; i++)
        PUT(pooled->data[i], record->data[i]);
    PUT(ledger->windows[window].origin, record->address);
}

int vmml_ledger_publish_pooled(struct vmml_ledger *ledger, uint32_t window,
                               const struct vmml_pooled_record *record, int fd,
                               uint32_t device, uint64_t *serial)
{
    const struct means means = {.kind = VMML_CHUNK_POOLED, .fd = fd};
    int status;

    if (window >= ledger->window_count || fd < 0 ||
        ledger->private[window].chunks != 0)
        return -EINVAL;
    status = grow_pooled(ledger, window);
    if (status != 0)
        return status;
    put_pooled(ledger, window, record);
    return publish(ledger, window, GET(ledger->windows[window].base),
                   GET(ledger->windows[window].size), &means, device, serial);
}

static uint8_t chunk_state(const struct vmml_ledger *ledger, uint32_t slot)
{
    if (slot >= ledger->chunk_count)
        return VMML_CHUNK_FREE;
    return GET(ledger->chunks[slot].state);
}

void vmml_ledger_begin_unmap(struct vmml_ledger *ledger, uint32_t slot)
{
    if (chunk_state(ledger, slot) == VMML_CHUNK_LIVE)
        unlink_chunk(ledger, slot, VMML_CHUNK_UNMAPPING);
}

void vmml_ledger_restore(struct vmml_ledger *ledger, uint32_t slot,
                         uint64_t *serial)
{
    if (chunk_state(ledger, slot) == VMML_CHUNK_UNMAPPING) {
        link_chunk(ledger, slot);
        *serial = ledger->serial;
    }
}

void vmml_ledger_kill(struct vmml_ledger *ledger, uint32_t slot)
{
    uint8_t state = chunk_state(ledger, slot);
    struct vmml_ledger_chunk *chunk = &ledger->chunks[slot];
    uint32_t window;

    if (state == VMML_CHUNK_FREE)
        return;
    if (state == VMML_CHUNK_LIVE)
        unlink_chunk(ledger, slot, VMML_CHUNK_FREE);
    else
        PUT(chunk->state, VMML_CHUNK_FREE);
    give_chunk_back(ledger, slot);
    window = GET(chunk->window);
    if (--ledger->private[window].chunks == 0 &&
        GET(ledger->windows[window].state) == VMML_WINDOW_RETIRED)
        retired_append(ledger, window);
}
