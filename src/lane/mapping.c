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

/* With the lock: count a change in every window that [ptr, ptr+size) touches.
 * Returns whether chunks are published there. */
static bool count_change(uint64_t ptr, uint64_t size)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    bool any = false;
    size_t i;

    for (i = vmml_windows_from(windows, ptr);
         i < windows->count && windows->entries[i]->base < ptr + size; i++) {
        uint64_t from = ptr;

        windows->entries[i]->changes++;
        any |= vmml_window_next_chunk(windows->entries[i], &from, ptr + size) !=
               NULL;
    }
    return any;
}

static bool note_change(uint64_t ptr, uint64_t size)
{
    bool any;

    if (!is_active() || size > UINT64_MAX - ptr)
        return false;
    pthread_mutex_lock(&vmml_exporter.lock);
    any = count_change(ptr, size);
    pthread_mutex_unlock(&vmml_exporter.lock);
    return any;
}

/* Of two unmaps of one chunk at a time, the one that began last decides what
 * becomes of it. */
static void begin_unmap_chunk(struct vmml_window *window,
                              struct vmml_chunk *chunk, uint64_t token)
{
    if (chunk->state == VMML_EXPORT_LIVE)
        vmml_ledger_begin_unmap(vmml_exporter.ledger, chunk->slot);
    window->published++;
    chunk->state = VMML_EXPORT_UNMAPPING;
    chunk->token = token;
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
                                               ptr + size)) != NULL)
            begin_unmap_chunk(windows->entries[i], chunk, token);
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return token;
}

/* The driver has unmapped [ptr, ptr+size): what this unmap took out of service
 * is dead. Returns whether other chunks are left there, which a pack entered
 * meanwhile: those must be compared. */
static bool end_unmap(uint64_t ptr, uint64_t size, uint64_t token)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    struct vmml_fd_list fds;
    struct vmml_chunk *chunk;
    bool others = false;
    size_t i;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    count_change(ptr, size);
    for (i = vmml_windows_from(windows, ptr);
         i < windows->count && windows->entries[i]->base < ptr + size; i++) {
        uint64_t from = ptr;

        while ((chunk = vmml_window_next_chunk(windows->entries[i], &from,
                                               ptr + size)) != NULL) {
            if (chunk->state == VMML_EXPORT_UNMAPPING && chunk->token == token)
                vmml_chunk_kill(windows->entries[i], chunk, &fds);
            else
                others |= chunk->state != VMML_EXPORT_UNMAPPING;
        }
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    return others;
}

/* A chunk whose BUFFER_ID is to be compared with what is mapped: no lock is
 * held over that call. */
struct suspect {
    uint64_t address;
    unsigned long long buffer_id;
};

/* token: only chunks in that unmap; 0: all. */
static bool next_suspect(uint64_t *from, uint64_t end, uint64_t token,
                         struct suspect *suspect)
{
    struct vmml_windows *windows = &vmml_exporter.windows;
    struct vmml_chunk *chunk = NULL;
    size_t i;

    pthread_mutex_lock(&vmml_exporter.lock);
    for (i = vmml_windows_from(windows, *from);
         chunk == NULL && i < windows->count && windows->entries[i]->base < end;
         i++) {
        while ((chunk = vmml_window_next_chunk(windows->entries[i], from,
                                               end)) != NULL)
            if (token == 0 || (chunk->state == VMML_EXPORT_UNMAPPING &&
                               chunk->token == token))
                break;
        if (chunk == NULL)
            *from = windows->entries[i]->base + windows->entries[i]->size;
    }
    if (chunk != NULL) {
        suspect->address = chunk->address;
        suspect->buffer_id = chunk->buffer_id;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return chunk != NULL;
}

/* The suspect is still mapped, or not. In an unmap (token) that the driver
 * refused it goes back into service. */
static void settle(const struct suspect *suspect, uint64_t token, bool mapped)
{
    struct vmml_window *window;
    struct vmml_chunk *chunk = NULL;
    struct vmml_fd_list fds;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    window = vmml_windows_at(&vmml_exporter.windows, suspect->address);
    if (window != NULL)
        chunk = vmml_window_chunk_at(window, suspect->address);
    if (chunk == NULL || chunk->buffer_id != suspect->buffer_id ||
        (token != 0 &&
         (chunk->state != VMML_EXPORT_UNMAPPING || chunk->token != token))) {
        chunk = NULL;
    } else if (!mapped || (token != 0 && chunk->slot == VMML_NO_SLOT)) {
        /* One that never was published its own pack enters again. */
        vmml_chunk_kill(window, chunk, &fds);
        window->changes++;
    } else if (token != 0) {
        chunk->state = VMML_EXPORT_LIVE;
        vmml_ledger_restore(vmml_exporter.ledger, chunk->slot, &chunk->serial);
        window->published++;
        vmml_idle_add(window, chunk->address, chunk->address + chunk->size,
                      false);
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

void vmml_compare_range(const struct vmml_real *real, uint64_t ptr,
                        uint64_t size, uint64_t token)
{
    struct suspect suspect;
    uint64_t from = ptr;

    while (next_suspect(&from, ptr + size, token, &suspect))
        settle(&suspect, token,
               vmml_buffer_id(real, suspect.address) == suspect.buffer_id);
}

CUresult vmml_cuMemUnmap(const void *caller, CUdeviceptr ptr, size_t size)
{
    const struct vmml_real *real = vmml_real();
    uint64_t token = 0;
    CUresult result;

    (void)caller;
    if (real == NULL || real->cuMemUnmap == NULL)
        return VMML_CU_MISSING;
    if (is_active() && size <= UINT64_MAX - ptr)
        token = begin_unmap(ptr, size);
    result = real->cuMemUnmap(ptr, size);
    vmml_range_touched(ptr, size);
    /* The first window may have come meanwhile. */
    if (!is_active() || size > UINT64_MAX - ptr)
        return result;
    if (result != CUDA_SUCCESS && token != 0)
        vmml_compare_range(real, ptr, size, token);
    else if (result == CUDA_SUCCESS && end_unmap(ptr, size, token))
        vmml_compare_range(real, ptr, size, 0);
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
    /* Where something could be mapped, nothing was: what is still published
     * there went past every hook. */
    if (note_change(ptr, size))
        vmml_compare_range(real, ptr, size, 0);
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
    if (result != CUDA_SUCCESS)
        return result;
    vmml_range_touched(ptr, size);
    /* Memory that a pack took for a hole may be used from now on. */
    (void)note_change(ptr, size);
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
        vmml_compare_range(real, ptr, size, 0);
        retire_windows(ptr, size, true);
    }
    return result;
}
