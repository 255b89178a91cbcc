/* SPDX-License-Identifier: MIT */
#include "fabric/import.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/driver.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/remedy.h"
#include "fabric/memory.h"
#include "ledger/writer.h"
#include "mirror/peer.h"
#include "stats/count.h"

/* The unit of chunks, as in lane/window.h. */
#define GRANULE (2ul << 20)

/* So often, with this pause, a block that is being written is read: as long as
 * its exporter's copy of a large one may take. */
#define READ_TRIES    50
#define READ_PAUSE_NS 2000000

/* A chunk of a window, as it stands in the own ledger. */
struct known {
    uint64_t offset;
    uint64_t size;
    uint64_t remote_serial; /* the exporter's */
    uint64_t serial;        /* ours */
    uint32_t slot;
};

struct remote_window {
    uint64_t base;
    uint64_t size;
    uint32_t index;                        /* in the own ledger */
    uint8_t named[VMML_BLOCK_HANDLE_SIZE]; /* by the newest key */
    unsigned order;                        /* of the block that is read */
    struct vmml_block_memory memory;       /* it */
    uint64_t generation;                   /* that was read last */
    bool current;                          /* the ledger shows it */
    struct known *known;                   /* sorted by offset */
    size_t known_count;
    struct remote_window *next;
};

struct remote {
    uint8_t nonce[VMML_NONCE_SIZE];
    struct vmml_ledger *ledger;
    struct remote_window *windows;
    bool told; /* a warning was given */
    struct remote *next;
};

/* So many exporters are warned of: one that has many peers loses them all with
 * one node. */
#define WARNED_MAX 16

/*
 * Protects all of it. Held over driver calls: it is taken in no event of UCM
 * and in no call of UCX but an unpack, which holds no lock that such an event
 * could need. A fork does not wait for it: of what it protects, a child looks
 * at the list alone.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct remote *) remotes;

/* ---- exporters and windows ---- */

static struct remote *find_remote(const uint8_t nonce[VMML_NONCE_SIZE])
{
    struct remote *remote;

    for (remote = atomic_load(&remotes); remote != NULL; remote = remote->next)
        if (memcmp(remote->nonce, nonce, VMML_NONCE_SIZE) == 0)
            break;
    return remote;
}

/* Its ledger's descriptors are in no table before it is in the list. */
static struct remote *make_held(const struct vmml_handle *handle)
{
    struct remote *remote = calloc(1, sizeof(*remote));
    struct vmml_ledger_reader *reader = NULL;

    if (remote == NULL)
        return NULL;
    memcpy(remote->nonce, handle->nonce, VMML_NONCE_SIZE);
    if (vmml_ledger_create(&remote->ledger) != 0) {
        free(remote);
        return NULL;
    }
    if (vmml_ledger_open(vmml_ledger_fd(remote->ledger),
                         vmml_ledger_nonce(remote->ledger), &reader) != 0 ||
        !vmml_peer_add_remote(handle, reader)) {
        vmml_ledger_close(reader);
        vmml_ledger_destroy(remote->ledger);
        free(remote);
        return NULL;
    }
    vmml_ledger_keep_private(remote->ledger);
    remote->next = atomic_load(&remotes);
    atomic_store(&remotes, remote);
    return remote;
}

static struct remote *make_remote(const struct vmml_handle *handle)
{
    struct remote *remote;

    if (vmml_fork_watch() != 0)
        return NULL;
    vmml_fork_hold();
    remote = make_held(handle);
    vmml_fork_release();
    return remote;
}

static struct remote_window *find_window(const struct remote *remote,
                                         uint64_t base, uint64_t size)
{
    struct remote_window *window;

    for (window = remote->windows; window != NULL; window = window->next)
        if (window->base == base && window->size == size)
            break;
    return window;
}

/* It enters the ledger with the first block that was read. */
static struct remote_window *make_window(struct remote *remote, uint64_t base,
                                         uint64_t size)
{
    struct remote_window *window = calloc(1, sizeof(*window));

    if (window == NULL)
        return NULL;
    window->base = base;
    window->size = size;
    window->index = VMML_LEDGER_NONE;
    window->next = remote->windows;
    remote->windows = window;
    return window;
}

/* ---- reading a block ---- */

struct reading {
    const struct vmml_real *real;
    struct vmml_block_expected expected;
    int device;
    struct vmml_block_front front;
    struct vmml_block_entry *entries;
    int count;
};

static int no_copy(CUresult result)
{
    vmml_debug("a metadata block cannot be read: error %d", (int)result);
    return -EIO;
}

static int read_at(const struct reading *reading,
                   const struct vmml_block_memory *memory, size_t offset,
                   void *host, size_t length)
{
    const struct vmml_block_copy copy = {offset, host, length};
    CUresult result = vmml_block_read(reading->real, memory, &copy, 1);

    return result == CUDA_SUCCESS ? 0 : no_copy(result);
}

/* Does the block begin as it did when its entries were read? */
static int check_again(const struct reading *reading,
                       const struct vmml_block_memory *memory)
{
    struct vmml_block_head head = {.magic = 0};
    int status = read_at(reading, memory, 0, &head, sizeof(head));

    if (status != 0)
        return status;
    return memcmp(&head, &reading->front.head, sizeof(head)) == 0 ? 0 : -EAGAIN;
}

static int read_entries(struct reading *reading,
                        const struct vmml_block_memory *memory)
{
    const struct vmml_block_head *head = &reading->front.head;
    size_t length = head->count * sizeof(*reading->entries);
    int status = 0;

    free(reading->entries);
    reading->entries = malloc(length + sizeof(*reading->entries));
    if (reading->entries == NULL)
        return -ENOMEM;
    if (length > 0)
        status = read_at(reading, memory, sizeof(reading->front),
                         reading->entries, length);
    if (status == 0)
        status = check_again(reading, memory);
    if (status != 0)
        return status;
    reading->count = vmml_block_check_entries(head, &reading->expected, GRANULE,
                                              reading->entries);
    return reading->count < 0 ? reading->count : 0;
}

/* -EAGAIN: it was being written all the time. */
static int read_once(struct reading *reading,
                     const struct vmml_block_memory *memory)
{
    int status =
        read_at(reading, memory, 0, &reading->front, sizeof(reading->front));

    if (status == 0)
        status = vmml_block_check_front(&reading->front, &reading->expected);
    if (status == 0 && reading->front.head.flags == 0)
        status = read_entries(reading, memory);
    return status;
}

static int read_block(struct reading *reading,
                      const struct vmml_block_memory *memory)
{
    const struct timespec pause = {.tv_nsec = READ_PAUSE_NS};
    int status = -EAGAIN;
    int tries;

    for (tries = 0; tries < READ_TRIES && status == -EAGAIN; tries++) {
        if (tries > 0)
            nanosleep(&pause, NULL);
        status = read_once(reading, memory);
    }
    return status;
}

/* ---- which block ---- */

static int lost(const struct vmml_handle *handle, CUresult result)
{
    if (result == CUDA_ERROR_NOT_PERMITTED) {
        VMML_LOST(NO_CHANNEL_HERE, .address = handle->base,
                  .length = handle->size, .code = result, .pid = handle->pid);
        vmml_warn_once("memory of another node comes by fabric handles, and "
                       "the driver does not permit them here (%d): no fast "
                       "lane. Remedy: %s",
                       (int)result, VMML_REMEDY_IMEX);
        return -EPERM;
    }
    vmml_debug("the metadata block of window 0x%lx of process %u on another "
               "node cannot be had: error %d",
               (unsigned long)handle->base, handle->pid, (int)result);
    return -ENOENT;
}

static int open_block(const struct reading *reading,
                      const struct vmml_handle *handle,
                      const uint8_t fabric[VMML_BLOCK_HANDLE_SIZE],
                      unsigned order, struct vmml_block_memory *memory)
{
    CUmemFabricHandle name;
    CUresult result;

    memcpy(&name, fabric, sizeof(name));
    result = vmml_block_open(reading->real, reading->device, &name,
                             VMML_BLOCK_SIZE(order), memory);
    if (result == CUDA_SUCCESS)
        return 0;
    return lost(handle, result);
}

/* From the block that the key names on to the one that stands for it now: each
 * successor is larger. */
static int open_newest(struct reading *reading,
                       const struct vmml_handle *handle,
                       const uint8_t fabric[VMML_BLOCK_HANDLE_SIZE],
                       struct vmml_block_memory *memory)
{
    uint8_t name[VMML_BLOCK_HANDLE_SIZE];
    int status;

    memcpy(name, fabric, sizeof(name));
    for (;;) {
        status =
            open_block(reading, handle, name, reading->expected.order, memory);
        if (status != 0)
            return status;
        status = read_block(reading, memory);
        if (status == 0 && (reading->front.head.flags & VMML_BLOCK_CLOSED))
            status = -ENOENT;
        if (status == 0 && reading->front.head.flags == 0)
            return 0;
        vmml_block_close(reading->real, memory);
        if (status != 0)
            return status;
        memcpy(name, reading->front.window.successor, sizeof(name));
        reading->expected.order = reading->front.window.successor_order;
    }
}

/* ---- into the own ledger ---- */

/* Chunks that the block does not name any more are dead. */
static void kill_gone(struct remote *remote, struct remote_window *window,
                      const struct reading *reading)
{
    size_t kept = 0, i;
    int at = 0;

    for (i = 0; i < window->known_count; i++) {
        const struct known *known = &window->known[i];

        while (at < reading->count &&
               reading->entries[at].offset < known->offset)
            at++;
        if (at < reading->count &&
            reading->entries[at].offset == known->offset &&
            reading->entries[at].size == known->size &&
            reading->entries[at].serial == known->remote_serial)
            window->known[kept++] = *known;
        else
            vmml_ledger_kill(remote->ledger, known->slot);
    }
    window->known_count = kept;
}

static bool publish_entry(struct remote *remote, struct remote_window *window,
                          const struct vmml_block_entry *entry,
                          struct known *known)
{
    int slot = vmml_ledger_publish_fabric(
        remote->ledger, window->index, window->base + entry->offset,
        entry->size, entry->handle, 0, &known->serial);

    if (slot < 0)
        return false;
    known->slot = (uint32_t)slot;
    known->offset = entry->offset;
    known->size = entry->size;
    known->remote_serial = entry->serial;
    return true;
}

/* What was known and what is new, in one sorted list. */
static bool publish_new(struct remote *remote, struct remote_window *window,
                        const struct reading *reading)
{
    struct known *merged =
        malloc(((size_t)reading->count + 1) * sizeof(*merged));
    size_t old = 0;
    bool all = true;
    int i, count = 0;

    if (merged == NULL)
        return false;
    for (i = 0; i < reading->count; i++) {
        const struct vmml_block_entry *entry = &reading->entries[i];

        if (old < window->known_count &&
            window->known[old].offset == entry->offset)
            merged[count++] = window->known[old++];
        else if (publish_entry(remote, window, entry, &merged[count]))
            count++;
        else
            all = false;
    }
    free(window->known);
    window->known = merged;
    window->known_count = (size_t)count;
    return all;
}

static bool enter(struct remote *remote, struct remote_window *window,
                  const struct reading *reading)
{
    int index;

    if (window->index == VMML_LEDGER_NONE) {
        index =
            vmml_ledger_add_window(remote->ledger, window->base, window->size,
                                   0, reading->front.window.device_uuid);
        if (index < 0)
            return false;
        window->index = (uint32_t)index;
    }
    kill_gone(remote, window, reading);
    if (!publish_new(remote, window, reading))
        return false;
    window->generation = reading->front.head.generation;
    window->current = true;
    vmml_count(blocks_read);
    vmml_debug("block of window 0x%lx on another node: generation %lu, %d "
               "chunks",
               (unsigned long)window->base, (unsigned long)window->generation,
               reading->count);
    return true;
}

/* ---- all together ---- */

/* Nothing was written since, and no larger block stands for it. */
static bool is_unchanged(struct reading *reading,
                         const struct remote_window *window)
{
    struct vmml_block_head head = {.magic = 0};

    reading->expected.order = window->order;
    return window->current && window->memory.address != 0 &&
           read_at(reading, &window->memory, 0, &head, sizeof(head)) == 0 &&
           vmml_block_check_head(&head, &reading->expected) == 0 &&
           head.flags == 0 && head.generation == window->generation;
}

/* The exporter has ended its last registration of the window: nothing of it
 * is served, and its memory is given back. */
static void close_window(struct remote *remote, struct remote_window *window,
                         struct reading *reading)
{
    reading->count = 0;
    kill_gone(remote, window, reading);
    window->current = false;
    vmml_block_close(reading->real, &window->memory);
}

/* The block that is mapped, for a key that names it or an older one which led
 * to it. */
static int read_mapped(struct reading *reading, struct remote *remote,
                       struct remote_window *window)
{
    int status;

    reading->expected.order = window->order;
    status = read_block(reading, &window->memory);
    if (status == 0 && (reading->front.head.flags & VMML_BLOCK_CLOSED) != 0)
        close_window(remote, window, reading);
    if (status == 0 && reading->front.head.flags != 0)
        status = -ENOENT;
    return status;
}

static int read_window(struct reading *reading, struct remote *remote,
                       struct remote_window *window,
                       const struct vmml_handle *handle,
                       const uint8_t fabric[VMML_BLOCK_HANDLE_SIZE])
{
    struct vmml_block_memory memory = {.address = 0};
    int status;

    if (window->memory.address != 0 &&
        memcmp(window->named, fabric, sizeof(window->named)) == 0 &&
        window->memory.device == reading->device &&
        read_mapped(reading, remote, window) == 0)
        return 0;
    reading->expected.order = handle->reason;
    status = open_newest(reading, handle, fabric, &memory);
    if (status != 0)
        return status;
    vmml_block_close(reading->real, &window->memory);
    window->memory = memory;
    window->order = reading->expected.order;
    memcpy(window->named, fabric, sizeof(window->named));
    return 0;
}

/* One line for each exporter. */
static void warn_of_exporter(struct remote *remote, int status,
                             const struct vmml_handle *handle)
{
    static unsigned warned;

    if (remote->told || warned >= WARNED_MAX)
        return;
    remote->told = true;
    warned++;
    vmml_warn(
        "no fast lane to process %u on another node for its 0x%lx+0x%lx: "
        "%s (errno %d). Remedy: %s%s",
        handle->pid, (unsigned long)handle->base, (unsigned long)handle->size,
        status == -ENOENT
            ? "what its key names is gone: the process has ended, or has "
              "freed that memory or ended its registration"
            : "the metadata block that its key names cannot be read now",
        -status,
        status == -ENOENT ? VMML_REMEDY_KEY_GONE : VMML_REMEDY_BLOCK_READ,
        warned == WARNED_MAX ? " (further exporters are only counted)" : "");
}

static void warn_of(int status, struct remote *remote,
                    const struct vmml_handle *handle)
{
    switch (status) {
    case -EPROTONOSUPPORT:
        if (VMML_LOST(VERSION, .pid = handle->pid))
            vmml_warn(
                "no fast lane to a process on another node that runs "
                "another version of vmmlane. Remedy: " VMML_REMEDY_VERSION);
        break;
    case -EPROTO:
        VMML_LOST(BLOCK_READ, .address = handle->base, .length = handle->size,
                  .code = status, .pid = handle->pid);
        vmml_warn_once("the metadata block of a window on another node makes "
                       "no sense: no fast lane");
        break;
    case -EPERM: /* a cause of its own, which was told */
        break;
    default:
        VMML_LOST(BLOCK_READ, .address = handle->base, .length = handle->size,
                  .code = status, .pid = handle->pid);
        warn_of_exporter(remote, status, handle);
    }
}

/* With the lock. */
static bool prepare(struct reading *reading, const struct vmml_handle *handle,
                    const uint8_t fabric[VMML_BLOCK_HANDLE_SIZE])
{
    struct remote *remote = find_remote(handle->nonce);
    struct remote_window *window;
    bool served;
    int status;

    if (remote == NULL)
        remote = make_remote(handle);
    if (remote == NULL)
        return false;
    window = find_window(remote, handle->base, handle->size);
    if (window == NULL)
        window = make_window(remote, handle->base, handle->size);
    if (window == NULL)
        return false;
    if (memcmp(window->named, fabric, sizeof(window->named)) == 0 &&
        is_unchanged(reading, window))
        return true;
    status = read_window(reading, remote, window, handle, fabric);
    if (status != 0) {
        warn_of(status, remote, handle);
        return false;
    }
    served = enter(remote, window, reading);
    window->current = served;
    return served;
}

bool vmml_remote_prepare(const struct vmml_handle *handle,
                         const uint8_t fabric[VMML_BLOCK_HANDLE_SIZE],
                         int device)
{
    struct reading reading = {
        .real = vmml_real(),
        .expected = {.nonce = handle->nonce,
                     .base = handle->base,
                     .size = handle->size},
        .device = device,
    };
    struct vmml_relaxed relaxed;
    bool served;

    if (reading.real == NULL || device < 0)
        return false;
    vmml_relax(reading.real, &relaxed);
    pthread_mutex_lock(&lock);
    served = prepare(&reading, handle, fabric);
    pthread_mutex_unlock(&lock);
    vmml_relax_end(reading.real, &relaxed);
    free(reading.entries);
    return served;
}

void vmml_remote_fork_child(void)
{
    struct remote *remote;

    for (remote = atomic_load(&remotes); remote != NULL; remote = remote->next)
        vmml_ledger_close_descriptors(remote->ledger);
    pthread_mutex_init(&lock, NULL);
}
