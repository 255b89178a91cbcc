/* SPDX-License-Identifier: MIT */
#include "lane/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "fabric/export.h"
#include "base/remedy.h"
#include "pool/pool.h"
#include "stats/count.h"
#include "transport/ptracer.h"
#include "transport/server.h"
#include "transport/steps.h"

struct vmml_exporter vmml_exporter = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

const uint8_t *vmml_exporter_nonce(void)
{
    return vmml_exporter.ledger == NULL
               ? NULL
               : vmml_ledger_nonce(vmml_exporter.ledger);
}

void vmml_fd_list_init(struct vmml_fd_list *list)
{
    list->fds = list->inline_fds;
    list->count = 0;
    list->capacity = sizeof(list->inline_fds) / sizeof(list->inline_fds[0]);
}

static bool fd_list_grow(struct vmml_fd_list *list)
{
    size_t bytes = 2 * list->capacity * sizeof(*list->fds);
    int *fds = malloc(bytes);

    if (fds == NULL)
        return false;
    memcpy(fds, list->fds, list->count * sizeof(*fds));
    if (list->fds != list->inline_fds)
        free(list->fds);
    list->fds = fds;
    list->capacity *= 2;
    return true;
}

void vmml_fd_list_add(struct vmml_fd_list *list, int fd)
{
    if (fd < 0)
        return;
    if (list->count == list->capacity && !fd_list_grow(list)) {
        vmml_fd_close(fd);
        return;
    }
    if (list->count == 0)
        vmml_fork_note();
    list->fds[list->count++] = fd;
}

void vmml_fd_list_close(struct vmml_fd_list *list)
{
    size_t i;

    for (i = 0; i < list->count; i++)
        vmml_fd_close(list->fds[i]);
    if (list->count > 0)
        vmml_fork_release();
    if (list->fds != list->inline_fds)
        free(list->fds);
    vmml_fd_list_init(list);
}

void vmml_chunk_kill(struct vmml_window *window, struct vmml_chunk *chunk,
                     struct vmml_fd_list *fds)
{
    int fd = chunk->fd;
    VMML_LOG_KEY(vmml_exporter_nonce(), window->base, window->size);

    vmml_debug("chunk 0x%lx+0x%lx of window 0x%lx is revoked",
               (unsigned long)chunk->address, (unsigned long)chunk->size,
               (unsigned long)window->base);
    if (chunk->slot != VMML_NO_SLOT)
        vmml_ledger_kill(vmml_exporter.ledger, chunk->slot);
    if (chunk->slot != VMML_NO_SLOT) {
        vmml_count(chunks_revoked);
        vmml_count_by(revoked_bytes, chunk->size);
    }
    vmml_window_remove_chunk(window, chunk);
    window->published++;
    vmml_exporter.chunk_count -= fd >= 0;
    vmml_fd_list_add(fds, fd);
}

void vmml_window_retire(struct vmml_window *window, struct vmml_fd_list *fds)
{
    uint64_t from = window->base;
    struct vmml_chunk *chunk;
    VMML_LOG_KEY(vmml_exporter_nonce(), window->base, window->size);

    while ((chunk = vmml_window_next_chunk(window, &from, UINT64_MAX)) != NULL)
        vmml_chunk_kill(window, chunk, fds);
    window->retired = true;
    window->changes++;
    vmml_ledger_retire_window(vmml_exporter.ledger, window->index);
    vmml_debug("window 0x%lx+0x%lx is retired", (unsigned long)window->base,
               (unsigned long)window->size);
    vmml_windows_remove(&vmml_exporter.windows, window);
    vmml_count(windows_retired);
}

/* So often the importers' socket is tried. */
#define SOCKET_TRIES 16

/* For the socket: a copy of what an importer may have. */
static int get_shared(uint32_t what, uint32_t slot, uint64_t serial)
{
    int fd = -1;

    pthread_mutex_lock(&vmml_exporter.lock);
    if (what == VMML_WIRE_LEDGER)
        fd = vmml_ledger_fd(vmml_exporter.ledger);
    else if (what == VMML_WIRE_LIFE)
        fd = vmml_ledger_life_fd(vmml_exporter.ledger);
    else if (what == VMML_WIRE_CHUNK)
        fd = vmml_ledger_chunk_fd(vmml_exporter.ledger, slot, serial);
    if (fd >= 0)
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    else
        errno = ENOENT;
    pthread_mutex_unlock(&vmml_exporter.lock);
    return fd < 0 ? -errno : fd;
}

/* With the lock, at each registration until it was done: what is short may
 * pass. */
static void open_socket(void)
{
    static unsigned tries;
    static bool done;
    int status;

    if (done || tries == SOCKET_TRIES || !vmml_step_allowed(VMML_STEP_SOCKET))
        return;
    tries++;
    status =
        vmml_server_start(vmml_ledger_nonce(vmml_exporter.ledger), get_shared);
    done = status == 0;
    if (!done)
        vmml_info("no socket for importers (errno %d): they have "
                  "pidfd_getfd(2) alone",
                  -status);
}

bool vmml_exporter_ready(void)
{
    int status;

    if (vmml_exporter.ledger != NULL) {
        open_socket();
        return true;
    }
    status = vmml_fork_watch();
    if (status == 0)
        status = -vmml_ledger_create(&vmml_exporter.ledger);
    if (status != 0) {
        vmml_warn_once("the ledger cannot be made (errno %d): memory of "
                       "cuMemCreate has no fast lane%s",
                       status,
                       status == EMFILE || status == ENFILE
                           ? ". Remedy: " VMML_REMEDY_DESCRIPTORS
                       : status == EFBIG ? ". Remedy: " VMML_REMEDY_FILE_SIZE
                                         : "");
        return false;
    }
    vmml_info("ledger made: descriptor %d",
              vmml_ledger_fd(vmml_exporter.ledger));
    if (vmml_step_allowed(VMML_STEP_PTRACER))
        vmml_ptracer_allow(vmml_ptrace_scope(VMML_PTRACE_SCOPE_FILE));
    open_socket();
    return true;
}

/* Windows that overlap a new reservation are of reservations that were freed
 * past every hook. */
static void retire_overlapping(uint64_t base, uint64_t size,
                               struct vmml_fd_list *fds)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    size_t i = vmml_windows_from(windows, base);

    while (i < windows->count && windows->entries[i]->base < base + size)
        vmml_window_retire(windows->entries[i], fds);
}

struct vmml_window *vmml_exporter_window(uint64_t base, uint64_t size,
                                         CUdevice device, const CUuuid *gpu,
                                         struct vmml_fd_list *fds)
{
    struct vmml_window *window = vmml_windows_at(&vmml_exporter.windows, base);
    int index;

    if (window != NULL && window->base == base && window->size == size &&
        (window->device == device || window->live > 0))
        return window;
    retire_overlapping(base, size, fds);
    index =
        vmml_ledger_add_window(vmml_exporter.ledger, base, size,
                               (uint32_t)device, (const uint8_t *)gpu->bytes);
    if (index < 0)
        return NULL;
    window = vmml_windows_add(&vmml_exporter.windows, base, size, device, gpu);
    if (window == NULL) {
        vmml_ledger_retire_window(vmml_exporter.ledger, (uint32_t)index);
        return NULL;
    }
    window->index = (uint32_t)index;
    atomic_store(&vmml_exporter.has_windows, true);
    vmml_count(windows_added);
    VMML_LOG_KEY(vmml_exporter_nonce(), base, size);
    vmml_debug("window 0x%lx+0x%lx of device %d", (unsigned long)base,
               (unsigned long)size, (int)device);
    return window;
}

bool vmml_lane_is_own(const uint8_t nonce[VMML_NONCE_SIZE])
{
    bool own = false;

    pthread_mutex_lock(&vmml_exporter.lock);
    if (vmml_exporter.ledger != NULL)
        own = memcmp(vmml_ledger_nonce(vmml_exporter.ledger), nonce,
                     VMML_NONCE_SIZE) == 0;
    pthread_mutex_unlock(&vmml_exporter.lock);
    return own;
}

static int own_window(uint64_t base, uint64_t size, uint64_t *address)
{
    struct vmml_window *window;
    int device = -1;

    *address = base;
    pthread_mutex_lock(&vmml_exporter.lock);
    window = vmml_windows_at(&vmml_exporter.windows, base);
    if (window != NULL && window->base == base && window->size == size)
        device = window->device;
    else if (vmml_is_pooled(base))
        device = vmml_pool_own_window(base, size, address);
    pthread_mutex_unlock(&vmml_exporter.lock);
    return device;
}

int vmml_lane_own_window(uint64_t base, uint64_t size)
{
    uint64_t address;

    return own_window(base, size, &address);
}

uint64_t vmml_lane_own_address(uint64_t base, uint64_t size)
{
    uint64_t address;

    return own_window(base, size, &address) < 0 ? 0 : address;
}

void vmml_lane_stand_down(void)
{
    if (!atomic_exchange(&vmml_exporter.stood_down, true))
        vmml_info("this UCX walks multi-handle ranges by itself: vmmlane "
                  "leaves new registrations to it");
}

void vmml_lane_fork_lock(void)
{
    /* The server asks for descriptors with its lock held. */
    vmml_server_fork_lock();
    pthread_mutex_lock(&vmml_exporter.lock);
}

void vmml_lane_fork_unlock(void)
{
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_server_fork_unlock();
}

void vmml_lane_fork_child(void)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    size_t i;

    for (i = 0; i < windows->count; i++) {
        uint64_t from = 0;
        struct vmml_chunk *chunk;

        while ((chunk = vmml_window_next_chunk(windows->entries[i], &from,
                                               UINT64_MAX)) != NULL) {
            vmml_fd_close(chunk->fd);
            chunk->fd = -1;
        }
    }
    if (vmml_exporter.ledger != NULL)
        vmml_ledger_close_descriptors(vmml_exporter.ledger);
    vmml_pool_fork_child();
    vmml_server_fork_child();
    vmml_idle_forget();
    vmml_block_forget();
    pthread_mutex_init(&vmml_exporter.lock, NULL);
}
