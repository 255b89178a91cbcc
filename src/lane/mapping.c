/* SPDX-License-Identifier: MIT */
/*
 * Hooks of what changes a mapping: published chunks are revoked before they
 * are unmapped, and remembered ranges forgotten.
 */
#include "lane/state.h"

#include "base/driver.h"
#include "base/fork.h"
#include "base/log.h"
#include "doors/real.h"
#include "hooks.h"
#include "range/range.h"

static bool is_active(void)
{
    return atomic_load_explicit(&vmml_exporter.has_windows,
                                memory_order_relaxed) &&
           !vmml_in_child;
}

/* Count a change in every window that [ptr, ptr+size) touches. */
static void count_change(uint64_t ptr, uint64_t size)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    size_t i;

    for (i = vmml_windows_from(windows, ptr);
         i < windows->count && windows->entries[i]->base < ptr + size; i++)
        windows->entries[i]->changes++;
}

/* Chunks of [ptr, ptr+size) are no longer served; `token` names this unmap. */
static uint64_t begin_unmap(uint64_t ptr, uint64_t size)
{
    static uint64_t tokens;
    struct vmml_windows *windows = &vmml_exporter.windows;
    struct vmml_chunk *chunk;
    uint64_t token;
    size_t i;

    pthread_mutex_lock(&vmml_exporter.lock);
    token = ++tokens;
    count_change(ptr, size);
    for (i = vmml_windows_from(windows, ptr);
         i < windows->count && windows->entries[i]->base < ptr + size; i++) {
        uint64_t from = ptr;

        while ((chunk = vmml_window_next_chunk(windows->entries[i], &from,
                                               ptr + size)) != NULL) {
            if (chunk->state != VMML_EXPORT_LIVE)
                continue;
            chunk->state = VMML_EXPORT_UNMAPPING;
            chunk->token = token;
            vmml_ledger_begin_unmap(vmml_exporter.ledger, chunk->slot);
        }
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return token;
}

/* A chunk that a pack published while the driver unmapped it is stale, one
 * that was mapped anew since is not: its BUFFER_ID tells. */
struct suspect {
    uint64_t address;
    unsigned long long buffer_id;
};

static void settle(struct vmml_window *window, struct vmml_chunk *chunk,
                   uint64_t token, bool unmapped, struct vmml_fd_list *fds)
{
    if (chunk->state != VMML_EXPORT_UNMAPPING || chunk->token != token)
        return;
    if (unmapped) {
        vmml_chunk_kill(window, chunk, fds);
        return;
    }
    chunk->state = VMML_EXPORT_LIVE;
    vmml_ledger_restore(vmml_exporter.ledger, chunk->slot, &chunk->serial);
}

/* Returns whether live chunks are left in the range that must be compared. */
static bool end_unmap(uint64_t ptr, uint64_t size, uint64_t token,
                      bool unmapped)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    struct vmml_fd_list fds;
    struct vmml_chunk *chunk;
    bool suspects = false;
    size_t i;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    count_change(ptr, size);
    for (i = vmml_windows_from(windows, ptr);
         i < windows->count && windows->entries[i]->base < ptr + size; i++) {
        uint64_t from = ptr;

        while ((chunk = vmml_window_next_chunk(windows->entries[i], &from,
                                               ptr + size)) != NULL) {
            suspects |= unmapped && chunk->state == VMML_EXPORT_LIVE;
            settle(windows->entries[i], chunk, token, unmapped, &fds);
        }
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    return suspects;
}

static bool next_suspect(uint64_t *from, uint64_t end, struct suspect *suspect)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    struct vmml_chunk *chunk = NULL;
    size_t i;

    pthread_mutex_lock(&vmml_exporter.lock);
    for (i = vmml_windows_from(windows, *from);
         i < windows->count && windows->entries[i]->base < end; i++) {
        uint64_t at = *from;

        chunk = vmml_window_next_chunk(windows->entries[i], &at, end);
        if (chunk != NULL) {
            suspect->address = chunk->address;
            suspect->buffer_id = chunk->buffer_id;
            *from = at;
            break;
        }
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return chunk != NULL;
}

static void kill_suspect(const struct suspect *suspect)
{
    struct vmml_window *window;
    struct vmml_chunk *chunk;
    struct vmml_fd_list fds;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    window = vmml_windows_at(&vmml_exporter.windows, suspect->address);
    chunk =
        window == NULL ? NULL : vmml_window_chunk_at(window, suspect->address);
    if (chunk != NULL && chunk->buffer_id == suspect->buffer_id)
        vmml_chunk_kill(window, chunk, &fds);
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

/* Compare each published chunk of the range with what is mapped there. */
static void compare_range(const struct vmml_real *real, uint64_t ptr,
                          uint64_t size)
{
    struct suspect suspect;
    uint64_t from = ptr;

    while (next_suspect(&from, ptr + size, &suspect))
        if (vmml_buffer_id(real, suspect.address) != suspect.buffer_id)
            kill_suspect(&suspect);
}

CUresult vmml_cuMemUnmap(const void *caller, CUdeviceptr ptr, size_t size)
{
    const struct vmml_real *real = vmml_real();
    uint64_t token;
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemUnmap == NULL)
        return VMML_CU_MISSING;
    if (!is_active() || size > UINT64_MAX - ptr) {
        result = real->cuMemUnmap(ptr, size);
        vmml_range_touched(ptr, size);
        return result;
    }
    token = begin_unmap(ptr, size);
    result = real->cuMemUnmap(ptr, size);
    vmml_range_touched(ptr, size);
    if (end_unmap(ptr, size, token, result == CUDA_SUCCESS))
        compare_range(real, ptr, size);
    return result;
}

CUresult vmml_cuMemMap(const void *caller, CUdeviceptr ptr, size_t size,
                       size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags)
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemMap == NULL)
        return VMML_CU_MISSING;
    result = real->cuMemMap(ptr, size, offset, handle, flags);
    if (result != CUDA_SUCCESS)
        return result;
    vmml_range_touched(ptr, size);
    if (is_active()) {
        pthread_mutex_lock(&vmml_exporter.lock);
        count_change(ptr, size);
        pthread_mutex_unlock(&vmml_exporter.lock);
    }
    return result;
}

CUresult vmml_cuMemSetAccess(const void *caller, CUdeviceptr ptr, size_t size,
                             const CUmemAccessDesc *desc, size_t count)
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemSetAccess == NULL)
        return VMML_CU_MISSING;
    result = real->cuMemSetAccess(ptr, size, desc, count);
    if (result == CUDA_SUCCESS)
        vmml_range_touched(ptr, size);
    return result;
}

/* Windows of the reservation that hold nothing are retired before it goes, so
 * that one made anew at the same place is not taken for the old. */
static void retire_windows(uint64_t ptr, uint64_t size, bool empty_only)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    struct vmml_fd_list fds;
    size_t i;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    i = vmml_windows_from(windows, ptr);
    while (i < windows->count && windows->entries[i]->base < ptr + size) {
        if (empty_only && windows->entries[i]->live > 0)
            i++;
        else
            vmml_window_retire(windows->entries[i], &fds);
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

CUresult vmml_cuMemAddressFree(const void *caller, CUdeviceptr ptr, size_t size)
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemAddressFree == NULL)
        return VMML_CU_MISSING;
    if (!is_active() || size > UINT64_MAX - ptr) {
        result = real->cuMemAddressFree(ptr, size);
        vmml_range_touched(ptr, size);
        return result;
    }
    retire_windows(ptr, size, true);
    result = real->cuMemAddressFree(ptr, size);
    vmml_range_touched(ptr, size);
    if (result == CUDA_SUCCESS) {
        compare_range(real, ptr, size);
        retire_windows(ptr, size, true);
    }
    return result;
}
