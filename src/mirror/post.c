/* SPDX-License-Identifier: MIT */
/*
 * Posting a copy: in, check, post, out.
 */
#include "mirror/state.h"

#include "base/log.h"
#include "mirror/index.h"

/* So often a mirror may change between its sync and the post. */
#define POST_TRIES 16

enum verdict {
    VERDICT_POST,   /* inside every mirror of the copies */
    VERDICT_SYNC,   /* out of all again; one must be brought up to date */
    VERDICT_REFUSE, /* out of all again */
};

/* Both ends of a copy; a mirror can be on either. */
static struct vmml_mirror *mirror_at(CUdeviceptr address, size_t length,
                                     bool *bounds)
{
    struct vmml_mirror *mirror = vmml_index_find(address);

    if (mirror != NULL) {
        uint64_t offset = address - mirror->address;

        *bounds = offset <= mirror->size && length <= mirror->size - offset;
    }
    return mirror;
}

static void leave(struct vmml_mirror *mirror)
{
    if (mirror != NULL)
        atomic_fetch_sub(&mirror->inside, 1);
}

static enum verdict enter(struct vmml_mirror *mirror, CUdeviceptr address,
                          size_t length, bool bounds)
{
    if (!bounds) {
        vmml_warn_once("a copy of 0x%lx bytes leaves its window: refused",
                       (unsigned long)length);
        return VERDICT_REFUSE;
    }
    /* Before going in: the look waits for a thread that may wait for us. */
    if (atomic_load(&mirror->has_stale) &&
        vmml_mirror_is_stale_at(mirror, address, address + length))
        return VERDICT_SYNC;
    atomic_fetch_add(&mirror->inside, 1);
    if (!atomic_load(&mirror->closing) && vmml_mirror_is_good(mirror))
        return VERDICT_POST;
    leave(mirror);
    return VERDICT_SYNC;
}

static void leave_all(const struct vmml_copy *copies, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++) {
        leave(vmml_index_find(copies[i].dst));
        leave(vmml_index_find(copies[i].src));
    }
}

/* Enter the mirror of one side of a copy, if there is one. `*mirror` is the
 * one that a verdict other than VERDICT_POST is about. */
static enum verdict enter_side(CUdeviceptr address, size_t length,
                               struct vmml_mirror **mirror)
{
    bool bounds = true;

    *mirror = mirror_at(address, length, &bounds);
    return *mirror == NULL ? VERDICT_POST
                           : enter(*mirror, address, length, bounds);
}

static enum verdict enter_all(const struct vmml_copy *copies, size_t count,
                              struct vmml_mirror **mirror, size_t *which)
{
    enum verdict verdict;
    size_t i;

    for (i = 0; i < count; i++) {
        *which = i;
        verdict = enter_side(copies[i].dst, copies[i].length, mirror);
        if (verdict != VERDICT_POST) {
            leave_all(copies, i);
            return verdict;
        }
        verdict = enter_side(copies[i].src, copies[i].length, mirror);
        if (verdict != VERDICT_POST) {
            leave(vmml_index_find(copies[i].dst));
            leave_all(copies, i);
            return verdict;
        }
    }
    return VERDICT_POST;
}

/* The streams of every mirror in the copies learn of this one. */
static CUresult order_all(const struct vmml_copy *copies, size_t count,
                          CUstream stream)
{
    struct vmml_mirror *last = NULL;
    CUresult result = CUDA_SUCCESS;
    bool ordered = false;
    size_t i;

    for (i = 0; i < 2 * count && result == CUDA_SUCCESS; i++) {
        const struct vmml_copy *copy = &copies[i / 2];
        struct vmml_mirror *mirror =
            vmml_index_find(i % 2 ? copy->src : copy->dst);

        if (mirror == NULL || mirror == last)
            continue;
        result = vmml_order_begin_copy(stream, &mirror->posted);
        last = mirror;
        ordered = true;
    }
    if (!ordered)
        result = vmml_order_begin_copy(stream, NULL);
    return result;
}

/* Revoked chunks that a pin keeps mapped are out of bounds. */
static bool touches_stale(const struct vmml_copy *copy,
                          struct vmml_mirror *mirror)
{
    CUdeviceptr address =
        vmml_index_find(copy->dst) == mirror ? copy->dst : copy->src;

    return atomic_load(&mirror->has_stale) &&
           vmml_mirror_is_stale_at(mirror, address, address + copy->length);
}

static CUresult refuse(const struct vmml_mirror *mirror)
{
    vmml_warn_once("a copy was refused: process %u has ended, or has unmapped "
                   "memory since its key was made",
                   mirror->peer->pid);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult post_inside(const struct vmml_copy *copies, size_t count,
                            CUstream stream, CUresult (*post)(void *arg),
                            void *arg)
{
    CUresult result = order_all(copies, count, stream);
    CUresult ended;

    if (result != CUDA_SUCCESS)
        return result;
    result = post(arg);
    /* Also when it failed: a part of a batch may be under way. */
    ended = vmml_order_end_copy(stream);
    return result != CUDA_SUCCESS ? result : ended;
}

/* Is there a mirror among the copies whose window has changed? A chunk that
 * was published after the last sync is a hole in the mirror until then. */
static bool sync_outdated(const struct vmml_copy *copies, size_t count)
{
    bool any = false;
    size_t i;

    for (i = 0; i < 2 * count; i++) {
        const struct vmml_copy *copy = &copies[i / 2];
        struct vmml_mirror *mirror =
            vmml_index_find(i % 2 ? copy->src : copy->dst);

        if (mirror != NULL && !vmml_mirror_is_current(mirror))
            any |= vmml_mirror_sync(mirror) == VMML_SYNC_OK;
    }
    return any;
}

CUresult vmml_mirror_post(const struct vmml_copy *copies, size_t count,
                          CUstream stream, CUresult (*post)(void *arg),
                          void *arg)
{
    struct vmml_mirror *mirror = NULL;
    enum verdict verdict;
    bool retried = false;
    CUresult result;
    size_t which;
    int tries;

    for (tries = 0; tries < POST_TRIES; tries++) {
        verdict = enter_all(copies, count, &mirror, &which);
        if (verdict == VERDICT_REFUSE)
            return CUDA_ERROR_INVALID_VALUE;
        if (verdict == VERDICT_SYNC) {
            enum vmml_sync outcome = vmml_mirror_sync(mirror);

            if (outcome == VMML_SYNC_GONE || outcome == VMML_SYNC_BUSY ||
                touches_stale(&copies[which], mirror))
                return refuse(mirror);
            continue;
        }
        result = post_inside(copies, count, stream, post, arg);
        leave_all(copies, count);
        if (result != CUDA_ERROR_INVALID_VALUE || retried ||
            !sync_outdated(copies, count))
            return result;
        retried = true;
    }
    return refuse(mirror);
}

/* Chunks of the first piece, and from how many on a copy is cut. */
#define PIECE_CHUNKS 32
#define CUT_CHUNKS   48

static size_t mean_chunk_at(CUdeviceptr address)
{
    struct vmml_mirror *mirror = vmml_index_find(address);

    return mirror == NULL ? 0
                          : atomic_load_explicit(&mirror->mean_chunk,
                                                 memory_order_relaxed);
}

size_t vmml_mirror_first_piece(const struct vmml_copy *copy)
{
    size_t mean;

    if (copy->length < CUT_CHUNKS * VMML_MIRROR_GRANULE)
        return copy->length;
    mean = mean_chunk_at(copy->src);
    if (mean == 0)
        mean = mean_chunk_at(copy->dst);
    if (mean == 0 || copy->length / mean < CUT_CHUNKS)
        return copy->length;
    return PIECE_CHUNKS * mean;
}
