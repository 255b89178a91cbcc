/* SPDX-License-Identifier: MIT */
/*
 * Publishing a range: one chunk after the other, and where many are new, a
 * second thread from the other end.
 *
 * The driver makes descriptors twice as fast for two threads, and no faster for
 * more (measured). What the second thread cannot do it leaves: the first
 * one alone says how the whole ended.
 */
#include "lane/state.h"

#include <string.h>

#include "base/driver.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"

/* So many chunks were new, and so many more may be: a thread pays. */
#define NEW_CHUNKS  2
#define MANY_CHUNKS 16

struct span {
    const struct vmml_real *real;
    struct vmml_window *window;
    CUcontext context; /* of the thread that asked */
    pthread_mutex_t lock;
    uint64_t low;  /* the first thread is at the chunk here */
    uint64_t high; /* the second one has taken what lies from here on, */
    uint64_t done; /* and has published what lies from here on */
    bool ended;    /* nothing is left for the second one */
};

/* The granule behind `address`. */
static uint64_t next_granule(const struct vmml_window *window, uint64_t address)
{
    return window->base +
           ((address - window->base) / VMML_GRANULE + 1) * VMML_GRANULE;
}

/* Descriptors that others may open meanwhile. */
#define ROOM_SLACK 256

static bool needs_descriptor(const struct vmml_real *real, uint64_t address)
{
    unsigned long long types = 0;

    return vmml_attribute(real, &types,
                          CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                          address) != CUDA_SUCCESS ||
           types != CU_MEM_HANDLE_TYPE_FABRIC;
}

/* Chunks of [from, to) that are not published yet and need a descriptor; more
 * than `enough` are not counted. */
static size_t count_unpublished(const struct vmml_real *real,
                                const struct vmml_window *window, uint64_t from,
                                uint64_t to, size_t enough)
{
    struct vmml_mapping mapping;
    size_t count = 0;
    bool published;

    while (from < to && count <= enough) {
        if (!vmml_find_mapping(real, window, from, &mapping, &published)) {
            from = next_granule(window, from);
            continue;
        }
        count += !published && needs_descriptor(real, from);
        from = mapping.base + mapping.size;
    }
    return count;
}

/* Is there a descriptor for each chunk of [from, to)? A request that cannot be
 * served in full must not use up what others could be served with. */
static bool has_room(const struct vmml_real *real, struct vmml_window *window,
                     uint64_t from, uint64_t to)
{
    size_t numbers = vmml_fd_limit().numbers;
    size_t most = (to - from) / VMML_GRANULE + 2 + ROOM_SLACK;
    size_t room;

    pthread_mutex_lock(&vmml_exporter.lock);
    most += vmml_exporter.chunk_count;
    pthread_mutex_unlock(&vmml_exporter.lock);
    if (most <= numbers)
        return true;
    room = vmml_fd_room();
    return count_unpublished(real, window, from, to, room) <= room;
}

/* False: the second thread has it, or had it. */
static bool take_low(struct span *span, uint64_t address)
{
    bool mine;

    pthread_mutex_lock(&span->lock);
    mine = address < span->high;
    if (mine)
        span->low = address;
    pthread_mutex_unlock(&span->lock);
    return mine;
}

/* The chunk below what was taken, unless the first thread is there. */
static bool take_high(struct span *span, const struct vmml_mapping *mapping)
{
    bool mine;

    pthread_mutex_lock(&span->lock);
    mine = !span->ended && mapping->base > span->low;
    if (mine)
        span->high = mapping->base;
    pthread_mutex_unlock(&span->lock);
    return mine;
}

static void publish_down(struct span *span)
{
    struct vmml_mapping mapping;
    bool changed;

    while (vmml_find_mapping(span->real, span->window, span->done - 1, &mapping,
                             &changed) &&
           take_high(span, &mapping) &&
           vmml_publish_at(span->real, span->window, span->done - 1, &mapping,
                           &changed) == VMML_REASON_NONE)
        span->done = mapping.base;
}

static void *help(void *arg)
{
    struct span *span = arg;
    const struct vmml_real *real = span->real;
    struct vmml_relaxed relaxed;
    VMML_LOG_KEY(vmml_exporter_nonce(), span->window->base, span->window->size);

    if (span->context != NULL &&
        real->cuCtxPushCurrent_v2(span->context) != CUDA_SUCCESS)
        return NULL;
    vmml_relax(real, &relaxed);
    publish_down(span);
    vmml_relax_end(real, &relaxed);
    if (span->context != NULL)
        vmml_pop_context(real);
    return NULL;
}

/* Where the first one is when the second one begins: [from, to) is left. */
static bool start_help(struct span *span, uint64_t from, uint64_t to,
                       pthread_t *helper)
{
    span->low = from;
    span->high = span->done = to;
    if (span->real->cuCtxGetCurrent(&span->context) != CUDA_SUCCESS)
        return false;
    return vmml_thread_start_joinable(help, span, helper) == 0;
}

/* What is left after this is [*, the end): the second thread's part is done. */
static uint64_t end_help(struct span *span, pthread_t helper)
{
    pthread_mutex_lock(&span->lock);
    span->ended = true;
    pthread_mutex_unlock(&span->lock);
    vmml_thread_join(helper);
    return span->done;
}

/* Of one thread: how it publishes a range upwards. */
struct climb {
    uint64_t at;
    uint64_t to;
    uint64_t hole;
    unsigned new_chunks;
    size_t chunk; /* the last one's size */
};

static enum vmml_reason step(struct span *span, struct climb *climb)
{
    struct vmml_mapping mapping;
    bool exported = false;
    enum vmml_reason reason = vmml_publish_at(span->real, span->window,
                                              climb->at, &mapping, &exported);

    if (reason == VMML_REASON_HOLE) {
        climb->hole = climb->at;
        climb->at = next_granule(span->window, climb->at);
        return VMML_REASON_NONE;
    }
    if (reason == VMML_REASON_NONE) {
        climb->at = mapping.base + mapping.size;
        climb->new_chunks += exported;
        climb->chunk = mapping.size;
    }
    return reason;
}

static bool wants_help(const struct climb *climb)
{
    return climb->new_chunks >= NEW_CHUNKS && climb->at < climb->to &&
           (climb->to - climb->at) / climb->chunk >= MANY_CHUNKS;
}

static enum vmml_reason climb_alone(struct span *span, struct climb *climb,
                                    bool until_many)
{
    enum vmml_reason reason = VMML_REASON_NONE;

    while (reason == VMML_REASON_NONE && climb->at < climb->to &&
           !(until_many && wants_help(climb)))
        reason = step(span, climb);
    return reason;
}

static enum vmml_reason climb_helped(struct span *span, struct climb *climb)
{
    enum vmml_reason reason = VMML_REASON_NONE;
    uint64_t to = climb->to;
    pthread_t helper;

    if (!start_help(span, climb->at, to, &helper))
        return climb_alone(span, climb, false);
    while (reason == VMML_REASON_NONE && climb->at < to &&
           take_low(span, climb->at))
        reason = step(span, climb);
    climb->to = end_help(span, helper);
    return reason != VMML_REASON_NONE ? reason
                                      : climb_alone(span, climb, false);
}

enum vmml_reason vmml_publish(const struct vmml_real *real,
                              struct vmml_window *window, uint64_t from,
                              uint64_t to, uint64_t *hole)
{
    struct span span = {
        .real = real,
        .window = window,
        .lock = PTHREAD_MUTEX_INITIALIZER,
    };
    struct climb climb = {.at = from, .to = to};
    enum vmml_reason reason;

    *hole = 0;
    if (!has_room(real, window, from, to))
        return VMML_REASON_NO_DESCRIPTOR;
    reason = climb_alone(&span, &climb, true);
    if (reason == VMML_REASON_NONE && climb.at < climb.to)
        reason = climb_helped(&span, &climb);
    *hole = climb.hole;
    return reason;
}
