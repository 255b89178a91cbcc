/* SPDX-License-Identifier: MIT */
/*
 * Posting a copy: in, check, post, out.
 */
#include "mirror/state.h"

#include <stdlib.h>

#include "base/conf.h"
#include "base/log.h"
#include "mirror/index.h"
#include "mirror/use.h"
#include "stats/count.h"

/* So often a mirror may change between its sync and the post. */
#define POST_TRIES 16

enum verdict {
    VERDICT_POST,   /* inside every mirror of the copies */
    VERDICT_SYNC,   /* out of all again; one must be brought up to date */
    VERDICT_HOLE,   /* out of all again; nothing is mapped in a part of one */
    VERDICT_REFUSE, /* out of all again */
};

/* An end of a copy that lies on a mirror. */
struct end {
    struct vmml_mirror *mirror;
    CUdeviceptr address;
    size_t length;
    CUdeviceptr *posted; /* what the driver is given */
};

static size_t find_end(CUdeviceptr *address, size_t length, struct end *end)
{
    struct vmml_mirror *mirror = vmml_index_find(*address);

    if (mirror == NULL)
        return 0;
    *end = (struct end){mirror, *address, length, address};
    return 1;
}

/* ends: room for two of each copy. A mirror may be on either side. */
static size_t find_ends(struct vmml_copy *copies, size_t count,
                        struct end *ends)
{
    size_t found = 0;
    size_t i;

    for (i = 0; i < count; i++) {
        found += find_end(&copies[i].dst, copies[i].length, &ends[found]);
        found += find_end(&copies[i].src, copies[i].length, &ends[found]);
    }
    return found;
}

/* Mostly the copies are all of mirrors or none is. */
static bool may_have_ends(const struct vmml_copy *copies, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++)
        if (vmml_index_may_hold(copies[i].dst) ||
            vmml_index_may_hold(copies[i].src))
            return true;
    return false;
}

static bool is_inside(const struct end *end)
{
    uint64_t offset = end->address - end->mirror->address;

    return offset <= end->mirror->size &&
           end->length <= end->mirror->size - offset;
}

static CUresult refuse(const struct vmml_mirror *mirror)
{
    vmml_count(copies_refused);
    VMML_LOST(REVOKED, .address = mirror->base, .length = mirror->size,
              .pid = mirror->peer->pid);
    vmml_warn_once("a copy was refused: process %u has ended, or has unmapped "
                   "memory since its key was made%s",
                   mirror->peer->pid,
                   vmml_conf()->strict
                       ? ", or its key lost the fast lane (VMMLANE_STRICT)"
                       : "");
    return CUDA_ERROR_INVALID_VALUE;
}

static void leave(const struct end *end)
{
    atomic_fetch_sub(&end->mirror->inside, 1);
}

/* Inside. A mirror that a pin keeps as it is may hold revoked chunks: only
 * those are out of bounds. */
static enum verdict check(const struct end *end, bool no_holes)
{
    struct vmml_mirror *mirror = end->mirror;

    if (atomic_load(&mirror->closing) || !vmml_mirror_is_checked(mirror))
        return VERDICT_SYNC;
    if (!no_holes &&
        !atomic_load_explicit(&mirror->has_stale, memory_order_relaxed))
        return VERDICT_POST;
    switch (vmml_mirror_content(mirror, end->address, end->length)) {
    case VMML_CONTENT_MAPPED:
        return VERDICT_POST;
    case VMML_CONTENT_HOLE:
        return no_holes ? VERDICT_HOLE : VERDICT_POST;
    case VMML_CONTENT_STALE:
        refuse(mirror);
        return VERDICT_REFUSE;
    case VMML_CONTENT_BUSY:
        break;
    }
    return VERDICT_SYNC;
}

static enum verdict enter(const struct end *end, bool no_holes)
{
    enum verdict verdict;

    if (!is_inside(end)) {
        vmml_warn_once("a copy of 0x%lx bytes leaves its window: refused",
                       (unsigned long)end->length);
        return VERDICT_REFUSE;
    }
    atomic_fetch_add(&end->mirror->inside, 1);
    verdict = check(end, no_holes);
    if (verdict != VERDICT_POST)
        leave(end);
    return verdict;
}

/* `*which`: the end that a verdict other than VERDICT_POST is about. */
static enum verdict enter_all(const struct end *ends, size_t count,
                              bool no_holes, size_t *which)
{
    enum verdict verdict = VERDICT_POST;
    size_t i;

    for (i = 0; i < count && verdict == VERDICT_POST; i++) {
        *which = i;
        verdict = enter(&ends[i], no_holes);
    }
    if (verdict == VERDICT_POST)
        return verdict;
    for (i = 0; i < *which; i++)
        leave(&ends[i]);
    return verdict;
}

/* The streams of every mirror in the copies learn of this one. */
static CUresult order_all(const struct end *ends, size_t count, CUstream stream)
{
    struct vmml_mirror *last = NULL;
    CUresult result = CUDA_SUCCESS;
    size_t i;

    if (count == 0)
        return vmml_order_begin_copy(stream, NULL);
    for (i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (ends[i].mirror == last)
            continue;
        last = ends[i].mirror;
        result = vmml_order_begin_copy(stream, &last->posted);
    }
    return result;
}

/* Inside. Memory of a pool lies elsewhere than its mirror, and may end before
 * the mirror does. */
static bool find_memory(const struct end *end)
{
    const struct vmml_mirror *mirror = end->mirror;
    uint64_t shift = atomic_load(&mirror->shift);
    uint64_t offset = end->address - mirror->address;

    *end->posted = end->address + shift;
    if (shift == 0)
        return true;
    return offset <= mirror->import.size &&
           end->length <= mirror->import.size - offset &&
           vmml_pool_is_there(vmml_real(), &mirror->import);
}

static bool find_all_memory(const struct end *ends, size_t count)
{
    bool all = true;
    size_t i;

    for (i = 0; i < count && all; i++)
        all = find_memory(&ends[i]);
    return all;
}

/* What failed may have queued a part all the same: some of a batch. */
static CUresult end_copy(CUstream stream, CUresult result)
{
    CUresult ended = vmml_order_end_copy(stream);

    return result != CUDA_SUCCESS ? result : ended;
}

static CUresult post_ordered(const struct end *ends, size_t count,
                             CUstream stream, CUresult (*post)(void *arg),
                             void *arg)
{
    CUresult result;

    if (!find_all_memory(ends, count))
        return CUDA_ERROR_INVALID_VALUE;
    result = order_all(ends, count, stream);
    if (result != CUDA_SUCCESS)
        return result;
    return end_copy(stream, post(arg));
}

/* Is there a mirror among the ends whose window has changed? A chunk that was
 * published after the last sync is a hole in the mirror until then. */
static bool sync_outdated(const struct end *ends, size_t count)
{
    bool any = false;
    size_t i;

    for (i = 0; i < count; i++)
        if (!vmml_mirror_is_current(ends[i].mirror))
            any |= vmml_mirror_sync(ends[i].mirror) == VMML_SYNC_OK;
    return any;
}

/* False: no copy can be posted on it now. */
static bool sync_one(struct vmml_mirror *mirror)
{
    switch (vmml_mirror_sync(mirror)) {
    case VMML_SYNC_OK:
        return true;
    case VMML_SYNC_FAILED:
        /* What is mapped may be used where the rest is known to be valid. */
        return vmml_mirror_is_checked(mirror);
    default:
        return false;
    }
}

static void count_copies(const struct end *ends, size_t count)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < count; i++)
        bytes += ends[i].length;
    vmml_count_copies(count, bytes);
}

static CUresult post_checked(const struct end *ends, size_t count,
                             bool no_holes, CUstream stream,
                             CUresult (*post)(void *arg), void *arg)
{
    const struct vmml_mirror *first = ends[0].mirror;
    bool retried = false;
    CUresult result;
    size_t which = 0;
    int tries;
    VMML_LOG_KEY(first->peer->nonce, first->base, first->size);

    for (tries = 0; tries < POST_TRIES; tries++) {
        switch (enter_all(ends, count, no_holes, &which)) {
        case VERDICT_REFUSE:
            return CUDA_ERROR_INVALID_VALUE;
        case VERDICT_SYNC:
            if (!sync_one(ends[which].mirror))
                return refuse(ends[which].mirror);
            continue;
        case VERDICT_HOLE:
            if (retried || !sync_outdated(ends, count))
                return CUDA_ERROR_INVALID_VALUE;
            retried = true;
            continue;
        case VERDICT_POST:
            break;
        }
        result = post_ordered(ends, count, stream, post, arg);
        for (which = 0; which < count; which++)
            leave(&ends[which]);
        if (result == CUDA_SUCCESS)
            count_copies(ends, count);
        vmml_trace("a copy of 0x%lx bytes at 0x%lx of the window%s: result %d",
                   (unsigned long)ends[0].length,
                   (unsigned long)(ends[0].address - first->address),
                   count > 1 ? ", and others" : "", (int)result);
        if (result != CUDA_ERROR_INVALID_VALUE || retried ||
            !sync_outdated(ends, count))
            return result;
        retried = true;
    }
    return refuse(ends[which < count ? which : 0].mirror);
}

CUresult vmml_mirror_post(struct vmml_copy *copies, size_t count, bool no_holes,
                          CUstream stream, CUresult (*post)(void *arg),
                          void *arg)
{
    struct end few[2];
    struct end *ends = few;
    CUresult result = CUDA_SUCCESS;
    size_t found;
    unsigned use;

    if (!may_have_ends(copies, count))
        return post_ordered(NULL, 0, stream, post, arg);
    if (count > sizeof(few) / sizeof(few[0]) / 2) {
        ends = malloc(2 * count * sizeof(*ends));
        if (ends == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    use = vmml_use_begin();
    found = find_ends(copies, count, ends);
    if (found > 0)
        result = post_checked(ends, found, no_holes, stream, post, arg);
    vmml_use_end(use);
    if (found == 0)
        result = post_ordered(NULL, 0, stream, post, arg);
    if (ends != few)
        free(ends);
    return result;
}

/* --- one short copy --------------------------------------------------------
 */

/* Inside. */
static bool is_good_for(struct vmml_mirror *mirror, CUdeviceptr address,
                        size_t length)
{
    uint64_t offset = address - mirror->address;

    return offset <= mirror->size && length <= mirror->size - offset &&
           !atomic_load(&mirror->closing) && vmml_mirror_is_good(mirror) &&
           atomic_load(&mirror->shift) == 0;
}

/* Where this thread's last short copy had its end. */
static __thread struct vmml_index_entry last
    __attribute__((tls_model("initial-exec")));

/* Inside last.mirror, or NULL where something is to be found out first. */
static struct vmml_posting *enter_short(CUdeviceptr address, size_t length)
{
    struct vmml_posting *posting;

    if (address - last.from >= last.size && !vmml_index_look(address, &last))
        return NULL;
    posting = vmml_posting_begin(last.mirror);
    if (posting == NULL)
        return NULL;
    if (!vmml_index_has(&last))
        last.size = 0;
    else if (is_good_for(last.mirror, address, length))
        return posting;
    vmml_posting_end(posting);
    return NULL;
}

static CUresult post_one(const struct vmml_real *real,
                         const struct vmml_copy *copy, CUstream stream,
                         struct vmml_stream_set *set)
{
    CUresult result = vmml_order_begin_copy(stream, set);

    if (result != CUDA_SUCCESS)
        return result;
    result =
        real->cuMemcpyDtoDAsync_v2(copy->dst, copy->src, copy->length, stream);
    return end_copy(stream, result);
}

/* False: to be posted once more. A copy that the driver refused may be over a
 * chunk that was published after the last sync. */
static bool post_on(struct vmml_mirror *mirror, const struct vmml_real *real,
                    const struct vmml_copy *copy, CUstream stream,
                    CUresult *result)
{
    *result = post_one(real, copy, stream, &mirror->posted);
    if (*result != CUDA_SUCCESS)
        return *result != CUDA_ERROR_INVALID_VALUE ||
               vmml_mirror_is_current(mirror);
    vmml_count_copies(1, copy->length);
    return true;
}

bool vmml_mirror_post_short(const struct vmml_real *real,
                            const struct vmml_copy *copy, CUstream stream,
                            CUresult *result)
{
    bool src = vmml_index_may_hold(copy->src);
    bool dst = vmml_index_may_hold(copy->dst);
    struct vmml_posting *posting;
    bool posted;

    if (copy->length >= VMML_CUT_LENGTH || (src && dst) ||
        __atomic_load_n(&vmml_log_level, __ATOMIC_RELAXED) >= VMML_LOG_TRACE)
        return false;
    if (!src && !dst) {
        *result = post_one(real, copy, stream, NULL);
        return true;
    }
    posting = enter_short(src ? copy->src : copy->dst, copy->length);
    if (posting == NULL)
        return false;
    posted = post_on(last.mirror, real, copy, stream, result);
    vmml_posting_end(posting);
    return posted;
}
