/* SPDX-License-Identifier: MIT */
#include "fabric/export.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/driver.h"
#include "base/log.h"
#include "base/thread.h"
#include "fabric/memory.h"
#include "fabric/node.h"
#include "lane/state.h"
#include "stats/count.h"

struct vmml_block {
    struct vmml_block_memory memory;
    CUmemFabricHandle handle;
    unsigned order;
    unsigned refs; /* the window's, and of threads that use it; with the
                    * exporter's lock */
    struct vmml_block *older; /* stands for it: keys may name it still */
    struct vmml_block *next_dead;

    /* What the block holds. Held over copies, which raise no event that could
     * need it, and before the exporter's lock. */
    pthread_mutex_t lock;
    struct vmml_block_front front;
    struct vmml_block_entry *entries;
    uint32_t *stamps; /* of the last snapshot that an entry was in */
    uint32_t room;    /* of `entries` and `stamps` */
    uint32_t stamp;
    uint32_t free_hint; /* no free entry below it */
    uint64_t seen;      /* of window->published */
    bool written;       /* it holds what `entries` say */
};

static atomic_uint block_count;

uint32_t vmml_block_use = UINT32_MAX;

/* Entries that a block of this order holds at most. */
static uint32_t most(unsigned order)
{
    uint64_t use = (uint64_t)vmml_block_use << order;
    uint32_t capacity = vmml_block_capacity(order);

    return use < capacity ? (uint32_t)use : capacity;
}

unsigned vmml_block_count(void)
{
    return atomic_load(&block_count);
}

/* ---- making and freeing ---- */

/* Who has it mapped learns that it is over; who has not finds nothing. */
static void say_closed(const struct vmml_real *real, struct vmml_block *block)
{
    const struct vmml_block_copy copy = {.host = &block->front,
                                         .length = sizeof(block->front)};
    CUresult result;

    block->front.head.flags = VMML_BLOCK_CLOSED;
    block->front.head.count = 0;
    block->front.head.sum = 0;
    block->front.head.generation++;
    vmml_block_seal_front(&block->front);
    result = vmml_block_write(real, &block->memory, &copy, 1);
    if (result != CUDA_SUCCESS)
        vmml_debug("a metadata block is freed unsaid: error %d", (int)result);
}

static void free_block(const struct vmml_real *real, struct vmml_block *block)
{
    say_closed(real, block);
    vmml_block_close(real, &block->memory);
    pthread_mutex_destroy(&block->lock);
    free(block->entries);
    free(block->stamps);
    free(block);
    atomic_fetch_sub(&block_count, 1);
    vmml_count(blocks_freed);
}

static void fill_front(struct vmml_block_front *front,
                       const struct vmml_window *window, unsigned order)
{
    front->head.magic = VMML_BLOCK_MAGIC;
    front->head.version = VMML_BLOCK_VERSION;
    front->head.capacity = vmml_block_capacity(order);
    memcpy(front->head.nonce, vmml_ledger_nonce(vmml_exporter.ledger),
           VMML_NONCE_SIZE);
    front->window.base = window->base;
    front->window.size = window->size;
    front->window.node = vmml_node_id();
    memcpy(front->window.device_uuid, window->gpu.bytes,
           sizeof(front->window.device_uuid));
}

static struct vmml_block *make_block(const struct vmml_real *real,
                                     const struct vmml_window *window,
                                     unsigned order)
{
    struct vmml_block *block = calloc(1, sizeof(*block));
    CUresult result;

    if (block == NULL || pthread_mutex_init(&block->lock, NULL) != 0) {
        free(block);
        return NULL;
    }
    block->order = order;
    block->refs = 1;
    result = vmml_block_create(real, window->device, VMML_BLOCK_SIZE(order),
                               &block->memory, &block->handle);
    if (result != CUDA_SUCCESS) {
        vmml_debug("no block of %lu bytes: error %d", VMML_BLOCK_SIZE(order),
                   (int)result);
        pthread_mutex_destroy(&block->lock);
        free(block);
        return NULL;
    }
    fill_front(&block->front, window, order);
    atomic_fetch_add(&block_count, 1);
    vmml_count(blocks_made);
    vmml_info("metadata block of %lu bytes for window 0x%lx+0x%lx: %u in all",
              VMML_BLOCK_SIZE(order), (unsigned long)window->base,
              (unsigned long)window->size, vmml_block_count());
    return block;
}

/* Blocks to be freed; with the exporter's lock. */
static struct {
    struct vmml_block *first;
    bool running;
} dead;

static void *free_dead(void *arg)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_relaxed relaxed;
    struct vmml_block *block;

    (void)arg;
    vmml_relax(real, &relaxed);
    for (;;) {
        pthread_mutex_lock(&vmml_exporter.lock);
        block = dead.first;
        if (block != NULL)
            dead.first = block->next_dead;
        else
            dead.running = false;
        pthread_mutex_unlock(&vmml_exporter.lock);
        if (block == NULL)
            break;
        free_block(real, block);
    }
    vmml_relax_end(real, &relaxed);
    return NULL;
}

/* With the exporter's lock. Where no thread can be had, the next one that is
 * started frees it too. */
static void free_later(struct vmml_block *block)
{
    block->next_dead = dead.first;
    dead.first = block;
    if (!dead.running)
        dead.running = vmml_thread_start(free_dead) == 0;
}

/* With the exporter's lock. */
static void drop(struct vmml_block *block)
{
    struct vmml_block *older;

    for (; block != NULL && --block->refs == 0; block = older) {
        older = block->older;
        free_later(block);
    }
}

void vmml_block_retire(struct vmml_window *window)
{
    drop(window->block);
    window->block = NULL;
}

void vmml_block_forget(void)
{
    dead.first = NULL;
    dead.running = false;
    atomic_store(&block_count, 0);
}

/* ---- what it says ---- */

/* With the exporter's lock: what kinds of chunks are published behind
 * [from, to). */
static enum vmml_reason look_at(const struct vmml_window *window, uint64_t from,
                                uint64_t to)
{
    const struct vmml_chunk *chunk;
    bool with = false, without = false;

    while ((chunk = vmml_window_next_chunk(window, &from, to)) != NULL) {
        if (chunk->state != VMML_EXPORT_LIVE)
            continue;
        with |= chunk->has_fabric;
        without |= !chunk->has_fabric;
    }
    if (!with)
        return VMML_REASON_LOCAL;
    return without ? VMML_REASON_MIXED : VMML_REASON_NONE;
}

/* Chunks that the block must name; with the exporter's lock. */
static bool is_named(const struct vmml_chunk *chunk)
{
    return chunk->state == VMML_EXPORT_LIVE && chunk->has_fabric;
}

static bool grow_entries(struct vmml_block *block)
{
    uint32_t capacity = block->front.head.capacity;
    uint32_t room = block->room == 0 ? 256 : 2 * block->room;
    struct vmml_block_entry *entries;
    uint32_t *stamps;

    if (block->front.head.count < block->room)
        return true;
    room = room < capacity ? room : capacity;
    entries = realloc(block->entries, room * sizeof(*entries));
    if (entries == NULL)
        return false;
    block->entries = entries;
    stamps = realloc(block->stamps, room * sizeof(*stamps));
    if (stamps == NULL)
        return false;
    block->stamps = stamps;
    block->room = room;
    return true;
}

enum snapshot {
    SNAPSHOT_TAKEN,
    SNAPSHOT_AGAIN, /* another block has taken its place */
    SNAPSHOT_FULL,
    SNAPSHOT_FAILED,
};

/* Which entries differ from what the block holds: [first, last). */
struct dirty {
    uint32_t first;
    uint32_t last;
};

static void touch(struct dirty *dirty, uint32_t index)
{
    if (index < dirty->first)
        dirty->first = index;
    if (index >= dirty->last)
        dirty->last = index + 1;
}

/* A free entry, or a new one. */
static enum snapshot take_entry(struct vmml_block *block, uint32_t *index)
{
    struct vmml_block_head *head = &block->front.head;

    for (; block->free_hint < head->count; block->free_hint++)
        if (block->entries[block->free_hint].size == 0) {
            *index = block->free_hint++;
            return SNAPSHOT_TAKEN;
        }
    if (head->count == most(block->order))
        return SNAPSHOT_FULL;
    if (!grow_entries(block))
        return SNAPSHOT_FAILED;
    *index = head->count++;
    block->free_hint = head->count;
    block->entries[*index].check = 0;
    return SNAPSHOT_TAKEN;
}

/* An entry changes: its check leaves the sum, and the new one comes in. */
static void put_entry(struct vmml_block *block, uint32_t index,
                      const struct vmml_block_entry *entry, struct dirty *dirty)
{
    struct vmml_block_head *head = &block->front.head;

    head->sum -= block->entries[index].check;
    block->entries[index] = *entry;
    vmml_block_seal_entry(&block->entries[index], index);
    head->sum += block->entries[index].check;
    touch(dirty, index);
}

static enum snapshot name_chunk(struct vmml_block *block,
                                const struct vmml_window *window,
                                struct vmml_chunk *chunk, struct dirty *dirty)
{
    struct vmml_block_entry entry;
    enum snapshot status;
    uint32_t index = chunk->entry;

    if (index >= block->front.head.count || block->entries[index].size == 0 ||
        block->entries[index].serial != chunk->serial) {
        status = take_entry(block, &index);
        if (status != SNAPSHOT_TAKEN)
            return status;
        memset(&entry, 0, sizeof(entry));
        entry.offset = chunk->address - window->base;
        entry.size = chunk->size;
        entry.serial = chunk->serial;
        memcpy(entry.handle, vmml_window_fabric(window, chunk),
               sizeof(entry.handle));
        put_entry(block, index, &entry, dirty);
        chunk->entry = index;
    }
    block->stamps[index] = block->stamp;
    return SNAPSHOT_TAKEN;
}

/* Entries of chunks that are not published any more name none. First those, so
 * that their places can be used. */
static void name_dead(struct vmml_block *block, struct dirty *dirty)
{
    struct vmml_block_entry none;
    uint32_t i;

    memset(&none, 0, sizeof(none));
    for (i = 0; i < block->front.head.count; i++) {
        if (block->entries[i].size == 0 || block->stamps[i] == block->stamp)
            continue;
        put_entry(block, i, &none, dirty);
        if (i < block->free_hint)
            block->free_hint = i;
    }
}

/* With the exporter's lock: entries that are right already are stamped. */
static void stamp_known(struct vmml_block *block,
                        const struct vmml_window *window)
{
    uint32_t i;

    for (i = 0; i < window->chunk_count; i++) {
        const struct vmml_chunk *chunk = &window->chunks[i];

        if (is_named(chunk) && chunk->entry < block->front.head.count &&
            block->entries[chunk->entry].size != 0 &&
            block->entries[chunk->entry].serial == chunk->serial)
            block->stamps[chunk->entry] = block->stamp;
    }
}

/* With the exporter's lock and the block's. */
static enum snapshot take_snapshot(struct vmml_block *block,
                                   struct vmml_window *window,
                                   struct dirty *dirty)
{
    enum snapshot status = SNAPSHOT_TAKEN;
    uint32_t i;

    block->stamp++;
    stamp_known(block, window);
    name_dead(block, dirty);
    for (i = 0; i < window->chunk_count && status == SNAPSHOT_TAKEN; i++)
        if (is_named(&window->chunks[i]))
            status = name_chunk(block, window, &window->chunks[i], dirty);
    return status;
}

/* With the block's lock. What stands there may be half of it afterwards: then
 * no check sum fits, and the next time everything is written. */
static bool write_block(const struct vmml_real *real, struct vmml_block *block,
                        const struct dirty *dirty)
{
    uint32_t first = block->written ? dirty->first : 0;
    uint32_t last = block->written ? dirty->last : block->front.head.count;
    struct vmml_block_copy copies[2];
    size_t count = 0;

    block->front.head.generation++;
    vmml_block_seal_front(&block->front);
    if (first < last)
        copies[count++] = (struct vmml_block_copy){
            .offset = sizeof(block->front) + first * sizeof(*block->entries),
            .host = &block->entries[first],
            .length = (last - first) * sizeof(*block->entries),
        };
    copies[count++] = (struct vmml_block_copy){.host = &block->front,
                                               .length = sizeof(block->front)};
    block->written =
        vmml_block_write(real, &block->memory, copies, count) == CUDA_SUCCESS;
    if (block->written)
        vmml_count(blocks_written);
    return block->written;
}

/* With the block's lock. */
static enum snapshot update(const struct vmml_real *real,
                            struct vmml_block *block,
                            struct vmml_window *window)
{
    struct dirty dirty = {UINT32_MAX, 0};
    enum snapshot status;
    uint64_t published;

    pthread_mutex_lock(&vmml_exporter.lock);
    published = window->published;
    if (block->written && block->seen == published) {
        pthread_mutex_unlock(&vmml_exporter.lock);
        return SNAPSHOT_TAKEN;
    }
    status = take_snapshot(block, window, &dirty);
    pthread_mutex_unlock(&vmml_exporter.lock);
    if (status != SNAPSHOT_TAKEN) {
        /* Some entries changed and are not there yet. */
        block->written = false;
        return status;
    }
    if (!write_block(real, block, &dirty))
        return SNAPSHOT_FAILED;
    block->seen = published;
    return SNAPSHOT_TAKEN;
}

/* ---- one for each window ---- */

/* A reference to the window's block, or NULL. */
static struct vmml_block *use(struct vmml_window *window)
{
    struct vmml_block *block;

    pthread_mutex_lock(&vmml_exporter.lock);
    block = window->block;
    if (block != NULL)
        block->refs++;
    pthread_mutex_unlock(&vmml_exporter.lock);
    return block;
}

static void unuse(struct vmml_block *block)
{
    pthread_mutex_lock(&vmml_exporter.lock);
    drop(block);
    pthread_mutex_unlock(&vmml_exporter.lock);
}

/* With the exporter's lock: the order that has room for its chunks. */
static unsigned order_for(const struct vmml_window *window, unsigned least)
{
    unsigned order = least;

    while (order < VMML_BLOCK_ORDER_MAX && most(order) < window->live)
        order++;
    return order;
}

/* `made` becomes the window's block in the place of `old`, unless another
 * thread was faster or nobody needs one any more. */
static bool install(struct vmml_window *window, struct vmml_block *made,
                    struct vmml_block *old)
{
    bool installed;

    pthread_mutex_lock(&vmml_exporter.lock);
    installed = window->block == old && window->registered > 0;
    if (installed) {
        made->older = old; /* the window's reference goes over */
        window->block = made;
    } else {
        drop(made);
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return installed;
}

/* The old one leads to the new one. Old keys that find it unwritten are not
 * served, which is right too. */
static void forward(const struct vmml_real *real, struct vmml_block *old,
                    const struct vmml_block *made)
{
    const struct dirty none = {UINT32_MAX, 0};

    pthread_mutex_lock(&old->lock);
    memset(&old->front.window.successor, 0,
           sizeof(old->front.window.successor));
    memcpy(old->front.window.successor, &made->handle,
           sizeof(old->front.window.successor));
    old->front.window.successor_order = made->order;
    old->front.head.flags |= VMML_BLOCK_FORWARD;
    (void)write_block(real, old, &none);
    pthread_mutex_unlock(&old->lock);
}

/* A block for the window, or one that is larger than `old`. */
static bool replace(const struct vmml_real *real, struct vmml_window *window,
                    struct vmml_block *old)
{
    struct vmml_block *made;
    unsigned order;

    pthread_mutex_lock(&vmml_exporter.lock);
    order = order_for(window, old == NULL ? 0 : old->order + 1);
    pthread_mutex_unlock(&vmml_exporter.lock);
    if (order > VMML_BLOCK_ORDER_MAX)
        return false;
    made = make_block(real, window, order);
    if (made == NULL)
        return false;
    if (install(window, made, old) && old != NULL)
        forward(real, old, made);
    return true;
}

static enum snapshot try_serve(const struct vmml_real *real,
                               struct vmml_window *window,
                               struct vmml_block *block,
                               struct vmml_block_name *name)
{
    enum snapshot status;

    pthread_mutex_lock(&block->lock);
    status = block->front.head.flags & VMML_BLOCK_FORWARD
                 ? SNAPSHOT_AGAIN
                 : update(real, block, window);
    pthread_mutex_unlock(&block->lock);
    memcpy(name->handle, &block->handle, sizeof(name->handle));
    name->order = (uint8_t)block->order;
    return status;
}

/* So often another thread may replace the block meanwhile. */
#define SERVE_TRIES 8

static enum vmml_reason serve(const struct vmml_real *real,
                              struct vmml_window *window,
                              struct vmml_block_name *name)
{
    struct vmml_block *block;
    enum snapshot status;
    int tries;

    for (tries = 0; tries < SERVE_TRIES; tries++) {
        block = use(window);
        status = block == NULL ? SNAPSHOT_FULL
                               : try_serve(real, window, block, name);
        if (status == SNAPSHOT_FULL && !replace(real, window, block))
            status = SNAPSHOT_FAILED;
        if (block != NULL)
            unuse(block);
        if (status == SNAPSHOT_TAKEN)
            return VMML_REASON_NONE;
        if (status == SNAPSHOT_FAILED)
            break;
    }
    return VMML_REASON_BLOCK;
}

enum vmml_reason vmml_block_serve(const struct vmml_real *real,
                                  struct vmml_window *window, uint64_t from,
                                  uint64_t to, struct vmml_block_name *name)
{
    enum vmml_reason reason;

    pthread_mutex_lock(&vmml_exporter.lock);
    reason = look_at(window, from, to);
    pthread_mutex_unlock(&vmml_exporter.lock);
    return reason == VMML_REASON_NONE ? serve(real, window, name) : reason;
}
