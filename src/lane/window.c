/* SPDX-License-Identifier: MIT */
#include "lane/window.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t granule_index(const struct vmml_window *window,
                              uint64_t address)
{
    return (address - window->base) / VMML_GRANULE;
}

static size_t granules_bytes(uint64_t size)
{
    return (size + VMML_GRANULE - 1) / VMML_GRANULE *
           sizeof(struct vmml_granule);
}

size_t vmml_windows_from(const struct vmml_windows *windows, uint64_t address)
{
    size_t low = 0, high = windows->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct vmml_window *window = windows->entries[middle];

        if (window->base + window->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct vmml_window *vmml_windows_at(const struct vmml_windows *windows,
                                    uint64_t address)
{
    size_t i = vmml_windows_from(windows, address);

    if (i == windows->count || windows->entries[i]->base > address)
        return NULL;
    return windows->entries[i];
}

static bool grow_table(struct vmml_windows *windows)
{
    size_t capacity = windows->capacity ? 2 * windows->capacity : 16;
    void *entries;

    if (windows->count < windows->capacity)
        return true;
    entries = realloc(windows->entries, capacity * sizeof(*windows->entries));
    if (entries == NULL)
        return false;
    windows->entries = entries;
    windows->capacity = capacity;
    return true;
}

/* Only the pages of granules that are used become memory: a window may be
 * terabytes. */
static struct vmml_granule *map_granules(uint64_t size)
{
    void *granules = mmap(NULL, granules_bytes(size), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return granules == MAP_FAILED ? NULL : granules;
}

static struct vmml_window *make_window(uint64_t base, uint64_t size,
                                       CUdevice device, const CUuuid *gpu)
{
    struct vmml_window *window = calloc(1, sizeof(*window));

    if (window == NULL)
        return NULL;
    window->granules = map_granules(size);
    if (window->granules == NULL) {
        free(window);
        return NULL;
    }
    window->base = base;
    window->size = size;
    window->device = device;
    window->gpu = *gpu;
    window->first_free = VMML_NO_CHUNK;
    window->refs = 1;
    return window;
}

struct vmml_window *vmml_windows_add(struct vmml_windows *windows,
                                     uint64_t base, uint64_t size,
                                     CUdevice device, const CUuuid *gpu)
{
    struct vmml_window *window;
    size_t i = vmml_windows_from(windows, base);

    if (!grow_table(windows))
        return NULL;
    window = make_window(base, size, device, gpu);
    if (window == NULL)
        return NULL;
    memmove(&windows->entries[i + 1], &windows->entries[i],
            (windows->count - i) * sizeof(*windows->entries));
    windows->entries[i] = window;
    windows->count++;
    return window;
}

void vmml_windows_remove(struct vmml_windows *windows,
                         struct vmml_window *window)
{
    size_t i = vmml_windows_from(windows, window->base);

    if (i == windows->count || windows->entries[i] != window)
        return;
    windows->count--;
    memmove(&windows->entries[i], &windows->entries[i + 1],
            (windows->count - i) * sizeof(*windows->entries));
    vmml_window_release(window);
}

void vmml_window_release(struct vmml_window *window)
{
    if (--window->refs > 0)
        return;
    munmap(window->granules, granules_bytes(window->size));
    free(window->chunks);
    free(window->fabrics);
    free(window);
}

struct vmml_chunk *vmml_window_chunk_at(const struct vmml_window *window,
                                        uint64_t address)
{
    uint32_t chunk;

    if (address < window->base || address - window->base >= window->size)
        return NULL;
    chunk = window->granules[granule_index(window, address)].chunk;
    return chunk == 0 ? NULL : &window->chunks[chunk - 1];
}

static bool grow_chunks(struct vmml_window *window)
{
    uint32_t capacity = window->chunk_capacity ? 2 * window->chunk_capacity : 8;
    void *chunks;

    if (window->first_free != VMML_NO_CHUNK ||
        window->chunk_count < window->chunk_capacity)
        return true;
    chunks = realloc(window->chunks, capacity * sizeof(*window->chunks));
    if (chunks == NULL)
        return false;
    window->chunks = chunks;
    window->chunk_capacity = capacity;
    return true;
}

static void mark_granules(struct vmml_window *window, uint64_t address,
                          uint64_t size, uint32_t value)
{
    uint64_t i = granule_index(window, address);
    uint64_t end = i + size / VMML_GRANULE;

    for (; i < end; i++)
        window->granules[i].chunk = value;
}

struct vmml_chunk *vmml_window_add_chunk(struct vmml_window *window,
                                         uint64_t address, uint64_t size)
{
    struct vmml_chunk *chunk;
    uint32_t index;

    if (!grow_chunks(window))
        return NULL;
    index = window->first_free;
    if (index != VMML_NO_CHUNK)
        window->first_free = window->chunks[index].next_free;
    else
        index = window->chunk_count++;
    chunk = &window->chunks[index];
    memset(chunk, 0, sizeof(*chunk));
    chunk->address = address;
    chunk->size = size;
    chunk->fd = -1;
    chunk->slot = VMML_NO_SLOT;
    chunk->state = VMML_EXPORT_PENDING;
    mark_granules(window, address, size, index + 1);
    window->live++;
    return chunk;
}

bool vmml_window_set_fabric(struct vmml_window *window,
                            struct vmml_chunk *chunk, const void *handle)
{
    size_t index = (size_t)(chunk - window->chunks);
    void *fabrics;

    if (index >= window->fabric_capacity) {
        fabrics = realloc(window->fabrics,
                          window->chunk_capacity * sizeof(*window->fabrics));
        if (fabrics == NULL)
            return false;
        window->fabrics = fabrics;
        window->fabric_capacity = window->chunk_capacity;
    }
    memcpy(window->fabrics[index], handle, VMML_FABRIC_SIZE);
    chunk->has_fabric = true;
    return true;
}

const uint8_t *vmml_window_fabric(const struct vmml_window *window,
                                  const struct vmml_chunk *chunk)
{
    return window->fabrics[chunk - window->chunks];
}

void vmml_window_remove_chunk(struct vmml_window *window,
                              struct vmml_chunk *chunk)
{
    mark_granules(window, chunk->address, chunk->size, 0);
    chunk->state = VMML_EXPORT_FREE;
    chunk->fd = -1;
    chunk->next_free = window->first_free;
    window->first_free = (uint32_t)(chunk - window->chunks);
    window->live--;
}

struct vmml_chunk *vmml_window_next_chunk(const struct vmml_window *window,
                                          uint64_t *from, uint64_t end)
{
    uint64_t address = *from > window->base ? *from : window->base;

    if (end > window->base + window->size)
        end = window->base + window->size;
    for (; window->live > 0 && address < end;
         address = window->base +
                   (granule_index(window, address) + 1) * VMML_GRANULE) {
        struct vmml_chunk *chunk = vmml_window_chunk_at(window, address);

        if (chunk != NULL) {
            *from = chunk->address + chunk->size;
            return chunk;
        }
    }
    *from = end;
    return NULL;
}

void vmml_window_cover(struct vmml_window *window, uint64_t address,
                       uint64_t length, int change)
{
    uint64_t end = window->base + window->size;
    uint64_t last = length < end - address ? address + length : end;
    uint64_t i;

    if (address >= last)
        return;
    for (i = granule_index(window, address);
         i <= granule_index(window, last - 1); i++)
        window->granules[i].cover += (uint32_t)change;
}

bool vmml_window_is_covered(const struct vmml_window *window,
                            const struct vmml_chunk *chunk)
{
    uint64_t i = granule_index(window, chunk->address);
    uint64_t end = i + chunk->size / VMML_GRANULE;

    for (; i < end; i++)
        if (window->granules[i].cover != 0)
            return true;
    return false;
}
