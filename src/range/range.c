/* SPDX-License-Identifier: MIT */
#include "range/range.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/conf.h"
#include "base/fork.h"
#include "base/log.h"
#include "doors/real.h"
#include "range/extents.h"
#include "range/probe.h"
#include "stats/count.h"

/* Answers dropped for a change that came meanwhile, within one query. */
#define TRIES_MAX 64

/* Chunks sampled by a query that crosses a border, besides those at the ends
 * of the extent and of the request. */
#define SAMPLES_MAX 8

/* The lock is never held over a driver call: UCM's handlers run inside some
 * of them and may come back here. */
static pthread_mutex_t range_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vmml_extents range_extents;
static atomic_bool range_ready;
/* An extent did not fit: walking it again for each query would take seconds. */
static atomic_bool range_given_up;

struct sample {
    uint64_t base;
    uint64_t end;
    uint64_t buffer_id;
};

/* An extent as it was under the lock, and the chunks to check before it is
 * believed. */
struct view {
    uint64_t base;
    uint64_t end;
    uint64_t window_end;
    unsigned count;
    struct sample samples[4 + SAMPLES_MAX];
};

/* One query. */
struct query {
    const struct vmml_real *real;
    uint64_t chunk_base; /* what the driver answered for the address asked */
    uint64_t chunk_end;
    uint64_t base; /* what is needed: the request, or the address asked */
    uint64_t end;
    bool exact; /* the answer is the request itself */
    unsigned tries;
    unsigned mismatches;
    unsigned steps;
};

static bool ensure_ready(void)
{
    bool ready;

    if (atomic_load(&range_ready))
        return true;
    if (vmml_fork_watch() != 0)
        return false;
    pthread_mutex_lock(&range_lock);
    ready = atomic_load(&range_ready) ||
            vmml_extents_init(&range_extents, VMML_CHUNKS_MAX) == 0;
    atomic_store(&range_ready, ready);
    pthread_mutex_unlock(&range_lock);
    if (!ready)
        vmml_warn_once("no memory for range queries: answers are the driver's");
    return ready;
}

/*
 * A remembered chunk is gone or was replaced, and no hook said so (yet). One
 * may be a change that another thread is just making; with the second, nothing
 * remembered of the extent is worth keeping.
 */
static void mismatch(struct query *query, const struct sample *sample)
{
    uint64_t base = sample->base, end = sample->end;
    struct vmml_extent *extent;
    struct vmml_chunk *chunk;

    query->mismatches++;
    pthread_mutex_lock(&range_lock);
    chunk = vmml_extents_chunk(&range_extents, base);
    extent = vmml_extents_find(&range_extents, base);
    if (chunk != NULL && extent != NULL &&
        chunk->buffer_id == sample->buffer_id) {
        if (query->mismatches > 1) {
            base = extent->node.base;
            end = extent->node.end;
        }
        vmml_extents_change(&range_extents, base, end);
    }
    pthread_mutex_unlock(&range_lock);
    vmml_debug("[0x%llx, 0x%llx) changed unseen", (unsigned long long)base,
               (unsigned long long)end);
}

static bool is_current(const struct query *query, const struct sample *sample)
{
    return vmml_probe_buffer_id(query->real, sample->base) == sample->buffer_id;
}

/* The chunk asked for becomes known. */
static bool seed(struct query *query, uint64_t since)
{
    enum vmml_probe_result result;
    struct vmml_probe probe;

    result = vmml_probe(query->real, query->chunk_base, &probe);
    if (result == VMML_PROBE_CHANGED)
        return true;
    if (result != VMML_PROBE_CHUNK || probe.base != query->chunk_base ||
        probe.end != query->chunk_end)
        return false;
    pthread_mutex_lock(&range_lock);
    if (!vmml_extents_changed(&range_extents, since, probe.base, probe.end))
        vmml_extents_add(&range_extents, probe.base, probe.end, probe.buffer_id,
                         &probe.traits);
    pthread_mutex_unlock(&range_lock);
    return true;
}

/* The extent at the border ends there. */
static void close_end(uint64_t border, bool high)
{
    struct vmml_extent *extent =
        vmml_extents_find(&range_extents, high ? border - 1 : border);

    if (extent == NULL)
        return;
    if (high && extent->node.end == border)
        extent->high_known = true;
    if (!high && extent->node.base == border)
        extent->low_known = true;
}

/* The neighbour is remembered. */
static void rejoin(struct query *query, uint64_t border, uint64_t since,
                   const struct sample *neighbour)
{
    if (!is_current(query, neighbour)) {
        mismatch(query, neighbour);
        return;
    }
    pthread_mutex_lock(&range_lock);
    if (!vmml_extents_changed(&range_extents, since, neighbour->base,
                              neighbour->end))
        vmml_extents_join(&range_extents, border);
    pthread_mutex_unlock(&range_lock);
}

/* Nothing is known beyond the border: ask. Where the driver does not tell,
 * the extent ends. */
static void explore(const struct query *query, uint64_t border, bool high,
                    uint64_t since)
{
    uint64_t beyond = high ? border : border - 1;
    enum vmml_probe_result result;
    struct vmml_probe probe;
    bool adjacent;

    result = vmml_probe(query->real, beyond, &probe);
    if (result == VMML_PROBE_CHANGED)
        return;
    adjacent = result == VMML_PROBE_CHUNK &&
               (high ? probe.base == border : probe.end == border);
    if (!adjacent) {
        probe.base = beyond;
        probe.end = beyond + 1;
    }
    pthread_mutex_lock(&range_lock);
    if (!vmml_extents_changed(&range_extents, since, probe.base, probe.end)) {
        if (adjacent) {
            vmml_extents_add(&range_extents, probe.base, probe.end,
                             probe.buffer_id, &probe.traits);
            vmml_extents_join(&range_extents, border);
        } else {
            close_end(border, high);
        }
    }
    pthread_mutex_unlock(&range_lock);
}

static void take_sample(struct view *view, uint64_t base, uint64_t end,
                        uint64_t buffer_id)
{
    unsigned i;

    for (i = 0; i < view->count; i++) {
        if (view->samples[i].base == base)
            return;
    }
    view->samples[view->count].base = base;
    view->samples[view->count].end = end;
    view->samples[view->count].buffer_id = buffer_id;
    view->count++;
}

static void take_chunk(struct view *view, const struct vmml_chunk *chunk)
{
    if (chunk != NULL)
        take_sample(view, chunk->node.base, chunk->node.end, chunk->buffer_id);
}

/*
 * What to check before the extent is believed: the chunk asked for, both ends,
 * where the request ends. A query that crosses a border is a registration, and
 * UCX exports a dmabuf over the answer, which a hole makes fail: a few of the
 * chunks between are looked at as well, others each time.
 */
static void look(const struct query *query, const struct vmml_chunk *asked,
                 struct vmml_extent *extent, struct view *view)
{
    uint64_t last =
        (query->end < extent->node.end ? query->end : extent->node.end) - 1;
    struct vmml_chunk *chunk;
    unsigned i;

    view->base = extent->node.base;
    view->end = extent->node.end;
    view->window_end = extent->traits.window_end;
    view->count = 0;
    take_chunk(view, asked);
    take_sample(view, view->base, extent->low_end, extent->low_id);
    take_sample(view, extent->high_base, view->end, extent->high_id);
    if (query->end <= query->chunk_end)
        return;
    take_chunk(view, vmml_extents_chunk(&range_extents, last));
    for (i = 0; i < SAMPLES_MAX; i++) {
        chunk = vmml_extents_chunk(&range_extents, extent->patrol);
        if (chunk == NULL || chunk->node.end >= view->end)
            extent->patrol = view->base;
        else
            extent->patrol = chunk->node.end;
        take_chunk(view, chunk);
    }
}

/* Everything was forgotten, to make room. That happens once in a long life of
 * unmaps that no hook saw; where this query alone filled the table, it would
 * happen at every query. */
static void overflowed(const struct query *query)
{
    if (query->steps < VMML_CHUNKS_MAX / 2)
        return;
    atomic_store(&range_given_up, true);
    vmml_warn_once("more than %u chunks in a row: range queries get the "
                   "driver's answers from now on",
                   query->steps);
}

/*
 * Make the extent of the chunk asked for known: one step, about one chunk, at
 * a time, so that changes made meanwhile by others cost only the step that
 * they touch. With `grow`, up to where it ends on both sides.
 *
 * Returns false where the driver's own answer has to do.
 */
static bool settle(struct query *query, bool grow, struct view *view)
{
    uint64_t since, border, overflow, progress = 0;
    struct vmml_extent *extent;
    struct vmml_chunk *chunk;
    struct sample neighbour;
    bool high, known;

    pthread_mutex_lock(&range_lock);
    overflow = range_extents.overflow_count;
    for (; query->tries < TRIES_MAX; pthread_mutex_lock(&range_lock)) {
        since = range_extents.change_count;
        chunk = vmml_extents_chunk(&range_extents, query->chunk_base);
        extent = vmml_extents_find(&range_extents, query->chunk_base);
        if (range_extents.overflow_count != overflow) {
            overflowed(query);
            break;
        }
        if (chunk == NULL || extent == NULL ||
            chunk->node.base != query->chunk_base ||
            chunk->node.end != query->chunk_end) {
            query->tries++;
            pthread_mutex_unlock(&range_lock);
            if (!seed(query, since))
                return false;
            continue;
        }
        if (!grow || (extent->low_known && extent->high_known)) {
            look(query, chunk, extent, view);
            pthread_mutex_unlock(&range_lock);
            return true;
        }
        /* A step that changed nothing was in vain. */
        if (progress == extent->node.end - extent->node.base)
            query->tries++;
        progress = extent->node.end - extent->node.base;
        high = !extent->high_known;
        border = high ? extent->node.end : extent->node.base;
        chunk = vmml_extents_chunk(&range_extents, high ? border : border - 1);
        known = chunk != NULL;
        if (known) {
            neighbour.base = chunk->node.base;
            neighbour.end = chunk->node.end;
            neighbour.buffer_id = chunk->buffer_id;
        }
        pthread_mutex_unlock(&range_lock);
        query->steps++;
        if (known)
            rejoin(query, border, since, &neighbour);
        else
            explore(query, border, high, since);
    }
    pthread_mutex_unlock(&range_lock);
    return false;
}

static bool is_valid(struct query *query, const struct view *view)
{
    unsigned i;

    for (i = 0; i < view->count; i++) {
        if (!is_current(query, &view->samples[i])) {
            mismatch(query, &view->samples[i]);
            return false;
        }
    }
    return true;
}

/* The end is probed again: a map beyond it that no hook saw. */
static void reopen(uint64_t end)
{
    pthread_mutex_lock(&range_lock);
    vmml_extents_change(&range_extents, end, end + 1);
    pthread_mutex_unlock(&range_lock);
}

/* Returns false where the driver's own answer has to do. */
static bool find_extent(struct query *query, bool grow, struct view *view)
{
    bool reopened = false;

    while (query->tries++ < TRIES_MAX) {
        if (!settle(query, grow, view))
            return false;
        if (!is_valid(query, view))
            continue;
        if (!grow || query->end <= view->end || reopened ||
            view->end >= view->window_end)
            return true;
        reopen(view->end);
        reopened = true;
    }
    return false;
}

/*
 * The answer of a query whose extent is remembered, without asking for the
 * range: where the buffer ids are the same, so are the mappings.
 */
static bool recall(struct query *query, CUdeviceptr ptr, struct view *view)
{
    struct vmml_extent *extent;
    struct vmml_chunk *chunk;
    bool complete;

    pthread_mutex_lock(&range_lock);
    chunk = vmml_extents_chunk(&range_extents, ptr);
    extent = vmml_extents_find(&range_extents, ptr);
    complete = chunk != NULL && extent != NULL && extent->low_known &&
               extent->high_known &&
               (query->end <= extent->node.end ||
                extent->node.end >= extent->traits.window_end);
    if (complete) {
        query->chunk_base = chunk->node.base;
        query->chunk_end = chunk->node.end;
        look(query, chunk, extent, view);
    }
    pthread_mutex_unlock(&range_lock);
    return complete && is_valid(query, view);
}

static bool is_sound(const struct vmml_range_request *request, CUdeviceptr ptr)
{
    return ptr >= request->address &&
           ptr - request->address < request->length &&
           request->address + request->length > request->address;
}

/* Is the driver's answer itself what the request wants? */
static bool is_enough(const struct query *query,
                      const struct vmml_range_request *request)
{
    return request != NULL && request->per_chunk && !query->exact &&
           query->base >= query->chunk_base && query->end <= query->chunk_end;
}

/* Replace the driver's answer [*base, *base + *size). */
static void widen(struct query *query, CUdeviceptr *base, size_t *size,
                  const struct vmml_range_request *request)
{
    struct view view;
    bool inside;

    query->chunk_base = *base;
    query->chunk_end = *base + *size;
    if (query->chunk_end <= query->chunk_base || is_enough(query, request) ||
        atomic_load(&range_given_up) || !ensure_ready())
        return;
    inside = query->base >= query->chunk_base && query->end <= query->chunk_end;
    if (!find_extent(query, !(inside && query->exact), &view))
        return;
    if (!query->exact) {
        *base = view.base;
        *size = view.end - view.base;
    } else if (query->base >= view.base && query->end <= view.end) {
        *base = query->base;
        *size = query->end - query->base;
    }
}

/* As vmml_range_answer(), with both outputs. */
static CUresult answer(const struct vmml_real *real, CUdeviceptr *base,
                       size_t *size, CUdeviceptr ptr,
                       const struct vmml_range_request *request)
{
    struct query query = {.real = real, .base = ptr, .end = ptr + 1};
    struct view view;
    CUresult rc;

    if (request != NULL) {
        query.base = request->address;
        query.end = request->address + request->length;
        query.exact = vmml_conf()->range == VMML_RANGE_REQUEST;
    }
    if (!query.exact && (request == NULL || !request->per_chunk) &&
        recall(&query, ptr, &view)) {
        *base = view.base;
        *size = view.end - view.base;
        return CUDA_SUCCESS;
    }
    rc = real->cuMemGetAddressRange_v2(base, size, ptr);
    if (rc == CUDA_SUCCESS && ptr >= *base && ptr - *base < *size)
        widen(&query, base, size, request);
    return rc;
}

CUresult vmml_range_answer(CUdeviceptr *base, size_t *size, CUdeviceptr ptr,
                           const struct vmml_range_request *request)
{
    const struct vmml_real *real = vmml_real();
    const struct vmml_conf *conf = vmml_conf();
    CUdeviceptr unused_base = 0;
    size_t unused_size = 0;
    CUresult rc;

    if (real == NULL || real->cuMemGetAddressRange_v2 == NULL)
        return VMML_CU_MISSING;
    if (!conf->on || conf->range == VMML_RANGE_OFF ||
        (base == NULL && size == NULL) ||
        (request != NULL && !is_sound(request, ptr)))
        return real->cuMemGetAddressRange_v2(base, size, ptr);
    if (base == NULL)
        base = &unused_base;
    if (size == NULL)
        size = &unused_size;
    rc = answer(real, base, size, ptr, request);
    vmml_count(ranges_answered);
    if (rc == CUDA_SUCCESS)
        vmml_debug("0x%llx is in [0x%llx, 0x%llx)", (unsigned long long)ptr,
                   (unsigned long long)*base,
                   (unsigned long long)(*base + *size));
    return rc;
}

void vmml_range_touched(CUdeviceptr ptr, size_t size)
{
    /* Before the first query nothing is remembered, and no probe runs. */
    if (!atomic_load(&range_ready) || size == 0 || ptr + size < ptr)
        return;
    pthread_mutex_lock(&range_lock);
    vmml_extents_change(&range_extents, ptr, ptr + size);
    pthread_mutex_unlock(&range_lock);
}

void vmml_range_forget(void)
{
    pthread_mutex_init(&range_lock, NULL);
    vmml_extents_fini(&range_extents);
    atomic_store(&range_ready, false);
    atomic_store(&range_given_up, false);
}
