/* SPDX-License-Identifier: MIT */
/*
 * The table of mirrors: made, opened, closed and kept.
 */
#include "mirror/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/conf.h"
#include "base/driver.h"
#include "base/fork.h"
#include "base/log.h"
#include "fabric/import.h"
#include "fabric/node.h"
#include "lane/exporter.h"
#include "mirror/index.h"
#include "mirror/use.h"
#include "stats/count.h"
#include "stats/stats.h"

/* uct_rkey_ptr's keys, and own windows that were opened. */
struct held {
    uintptr_t key;
    struct vmml_mirror *mirror; /* NULL: an own window, `key` its base */
    unsigned count;
    struct held *next;
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct vmml_mirror *) mirrors;

/* By window: read without the lock, by users (mirror/use.h). */
#define BUCKETS 4096
static _Atomic(struct vmml_mirror *) buckets[BUCKETS];
static struct held *held_keys;
static atomic_uint held_count;

static size_t bucket_of(uint64_t base)
{
    return (size_t)((base * 0x9e3779b97f4a7c15ull) >> 32) % BUCKETS;
}

static bool is_of(const struct vmml_mirror *mirror,
                  const struct vmml_handle *handle)
{
    return mirror->base == handle->base && mirror->size == handle->size &&
           !vmml_mirror_is_condemned(mirror) &&
           memcmp(mirror->peer->nonce, handle->nonce, VMML_NONCE_SIZE) == 0;
}

static struct vmml_mirror *find(const struct vmml_handle *handle, int device)
{
    struct vmml_mirror *mirror = atomic_load_explicit(
        &buckets[bucket_of(handle->base)], memory_order_acquire);

    for (; mirror != NULL; mirror = atomic_load(&mirror->next_in_bucket))
        if (mirror->device == device && is_of(mirror, handle))
            return mirror;
    return NULL;
}

/* The mirror of a window on whichever device, where there is but one. */
static struct vmml_mirror *find_only(const struct vmml_handle *handle)
{
    struct vmml_mirror *mirror = atomic_load_explicit(
        &buckets[bucket_of(handle->base)], memory_order_acquire);
    struct vmml_mirror *found = NULL;

    for (; mirror != NULL; mirror = atomic_load(&mirror->next_in_bucket)) {
        if (!is_of(mirror, handle))
            continue;
        if (found != NULL)
            return NULL;
        found = mirror;
    }
    return found;
}

/* A reservation that does not begin where the memory begins in its exporter:
 * UCX 1.20 and 1.21 take equal addresses for the same process and then skip a
 * reference count (uct_cuda_ipc_unmap_memhandle). */
static CUresult reserve(const struct vmml_real *real, uint64_t origin,
                        size_t size, CUdeviceptr *address)
{
    struct vmml_relaxed relaxed;
    CUdeviceptr unwanted;
    CUresult result;

    vmml_relax(real, &relaxed);
    result = real->cuMemAddressReserve(address, size, 0, 0, 0);
    if (result == CUDA_SUCCESS && *address == origin) {
        unwanted = *address;
        result = real->cuMemAddressReserve(address, size, 0, 0, 0);
        if (real->cuMemAddressFree(unwanted, size) != CUDA_SUCCESS)
            vmml_warn_once("cuMemAddressFree of an unused reservation failed");
    }
    vmml_relax_end(real, &relaxed);
    return result;
}

static bool init_lock(struct vmml_mirror *mirror)
{
    pthread_condattr_t attr;
    bool done;

    if (pthread_condattr_init(&attr) != 0)
        return false;
    done = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(&mirror->idle, &attr) == 0 &&
           pthread_mutex_init(&mirror->lock, NULL) == 0;
    pthread_condattr_destroy(&attr);
    return done;
}

static struct vmml_mirror *make(const struct vmml_real *real,
                                struct vmml_peer *peer,
                                const struct vmml_handle *handle,
                                uint64_t origin, int device)
{
    size_t reserved = handle->size + VMML_MIRROR_GRANULE;
    struct vmml_mirror *mirror = calloc(1, sizeof(*mirror));
    CUresult result;

    if (mirror == NULL || !init_lock(mirror)) {
        free(mirror);
        return NULL;
    }
    if (!vmml_peer_hold(peer)) {
        free(mirror);
        return NULL;
    }
    mirror->peer = peer;
    mirror->base = handle->base;
    mirror->size = handle->size;
    mirror->device = device;
    result = reserve(real, origin, reserved, &mirror->address);
    if (result != CUDA_SUCCESS) {
        VMML_LOST(ADDRESS_SPACE, .address = handle->base,
                  .length = handle->size, .pid = handle->pid, .code = result);
        vmml_warn_once("no address space for a mirror of 0x%lx bytes "
                       "(cuMemAddressReserve gave %d): no fast lane to that "
                       "window. Remedy: smaller reservations",
                       (unsigned long)reserved, (int)result);
        vmml_peer_drop(peer);
        free(mirror);
        return NULL;
    }
    return mirror;
}

/* With the lock: the reservation is entered, guard included, so that a copy
 * that leaves the window is refused and not posted. */
static bool enter(struct vmml_mirror *mirror)
{
    _Atomic(struct vmml_mirror *) *bucket = &buckets[bucket_of(mirror->base)];

    if (!vmml_index_add(mirror->address,
                        mirror->address + mirror->size + VMML_MIRROR_GRANULE,
                        mirror))
        return false;
    atomic_store(&mirror->next, atomic_load(&mirrors));
    atomic_store(&mirrors, mirror);
    atomic_store(&mirror->next_in_bucket, atomic_load(bucket));
    atomic_store(bucket, mirror);
    return true;
}

/* A reader that is at a mirror goes on by its `next`. */
static void take_out(struct vmml_mirror *mirror)
{
    _Atomic(struct vmml_mirror *) *all = &mirrors;
    _Atomic(struct vmml_mirror *) *bucket = &buckets[bucket_of(mirror->base)];

    while (atomic_load(all) != mirror)
        all = &atomic_load(all)->next;
    atomic_store(all, atomic_load(&mirror->next));
    while (atomic_load(bucket) != mirror)
        bucket = &atomic_load(bucket)->next_in_bucket;
    atomic_store(bucket, atomic_load(&mirror->next_in_bucket));
}

void vmml_mirror_unlink(struct vmml_mirror *mirror)
{
    pthread_mutex_lock(&table_lock);
    vmml_index_remove(mirror->address);
    take_out(mirror);
    pthread_mutex_unlock(&table_lock);
}

void vmml_mirror_free(struct vmml_mirror *mirror)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_relaxed relaxed;
    CUresult result;

    vmml_relax(real, &relaxed);
    result = real->cuMemAddressFree(mirror->address,
                                    mirror->size + VMML_MIRROR_GRANULE);
    vmml_relax_end(real, &relaxed);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED)
        vmml_warn_once("cuMemAddressFree of an unused mirror failed (%d)",
                       (int)result);
    vmml_peer_drop(mirror->peer);
    vmml_stats_mirror_gone(mirror->stats);
    vmml_count(mirrors_freed);
    pthread_cond_destroy(&mirror->idle);
    pthread_mutex_destroy(&mirror->lock);
    free(mirror->mapped);
    free(mirror);
}

struct vmml_mirror *vmml_mirror_first(void)
{
    return atomic_load(&mirrors);
}

/* Where the memory begins in the exporter. A dead one's ledger may be gone. */
static uint64_t origin_of(const struct vmml_peer *peer,
                          const struct vmml_handle *handle)
{
    struct vmml_window_view view;

    if (!vmml_is_pooled(handle->base) || atomic_load(&peer->dead) ||
        vmml_ledger_find_window(peer->reader, handle->base, handle->size,
                                &view) != 0 ||
        view.origin == 0)
        return handle->base;
    return view.origin;
}

static struct vmml_mirror *get(struct vmml_peer *peer,
                               const struct vmml_handle *handle, int device)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_mirror *mirror = find(handle, device);
    struct vmml_mirror *made;
    bool entered = false;

    if (mirror != NULL || real == NULL)
        return mirror;
    if (vmml_fork_watch() != 0)
        return NULL;
    made = make(real, peer, handle, origin_of(peer, handle), device);
    if (made == NULL)
        return NULL;
    pthread_mutex_lock(&table_lock);
    mirror = find(handle, device);
    if (mirror == NULL) {
        entered = enter(made);
        mirror = entered ? made : NULL;
    }
    pthread_mutex_unlock(&table_lock);
    if (!entered) {
        vmml_mirror_free(made);
        return mirror;
    }
    vmml_order_activate();
    vmml_count(mirrors_made);
    vmml_watch_start();
    vmml_debug("mirror of window 0x%lx+0x%lx of process %u on device %d at "
               "0x%lx",
               (unsigned long)mirror->base, (unsigned long)mirror->size,
               peer->pid, device, (unsigned long)mirror->address);
    return mirror;
}

static bool prepare_own(const struct vmml_handle *handle, int device)
{
    int own_device = vmml_lane_own_window(handle->base, handle->size);

    return own_device >= 0 && (device < 0 || device == own_device);
}

static bool is_tombstone(const struct vmml_handle *handle)
{
    if (!(handle->flags & VMML_HANDLE_TOMBSTONE))
        return false;
    if (handle->reason < VMML_CAUSE_IMPORTER)
        vmml_lost(handle->reason, &(struct vmml_loss){.pid = handle->pid,
                                                      .address = handle->base,
                                                      .length = handle->size});
    vmml_debug("key of process %u: not served: %s", handle->pid,
               vmml_reason_string(handle->reason));
    return true;
}

/* Does the exporter have it? Address space is reserved only then. */
static bool is_window(const struct vmml_peer *peer,
                      const struct vmml_handle *handle)
{
    struct vmml_window_view view;
    int status = vmml_ledger_find_window(peer->reader, handle->base,
                                         handle->size, &view);

    /* -EAGAIN: it cannot be told now, and the sync tries for longer. */
    return status == 0 || status == -EAGAIN;
}

/* So often a mirror may be given back between its look-up and its use. */
#define USE_TRIES 4

static bool prepare_on(struct vmml_peer *peer, const struct vmml_handle *handle,
                       int device)
{
    enum vmml_sync outcome = VMML_SYNC_GONE;
    struct vmml_mirror *mirror;
    int tries;

    for (tries = 0; tries < USE_TRIES; tries++) {
        mirror = find(handle, device);
        if (mirror == NULL && is_window(peer, handle))
            mirror = get(peer, handle, device);
        if (mirror == NULL)
            return false;
        if (vmml_mirror_is_current(mirror))
            return true;
        outcome = vmml_mirror_sync(mirror);
        if (outcome != VMML_SYNC_GONE || !vmml_mirror_is_condemned(mirror))
            break;
    }
    if (outcome != VMML_SYNC_OK)
        vmml_debug("key of process %u: not served: outcome %d", handle->pid,
                   (int)outcome);
    return outcome == VMML_SYNC_OK;
}

static bool prepare(const struct vmml_handle *handle, int device,
                    bool *may_pass)
{
    struct vmml_peer *peer = vmml_peer_attach(handle, may_pass);

    if (peer == NULL || atomic_load(&peer->dead))
        return false;
    if (device < 0)
        return !vmml_peer_ended(peer);
    return prepare_on(peer, handle, device);
}

/* By the window's block, over the fabric. */
static bool prepare_remote(const struct vmml_handle *handle,
                           const uint8_t *fabric, int device)
{
    struct vmml_peer *peer;

    if (fabric == NULL) {
        if (handle->reason != VMML_REASON_NONE &&
            handle->reason < VMML_CAUSE_IMPORTER)
            vmml_lost(handle->reason,
                      &(struct vmml_loss){.pid = handle->pid,
                                          .address = handle->base,
                                          .length = handle->size});
        else
            VMML_LOST(OTHER_NODE, .address = handle->base,
                      .length = handle->size, .pid = handle->pid);
        vmml_debug("key of process %u on another node: not served: %s",
                   handle->pid, vmml_reason_string(handle->reason));
        return false;
    }
    if (!vmml_remote_prepare(handle, fabric, device))
        return false;
    peer = vmml_peer_find(handle->nonce);
    return peer != NULL && prepare_on(peer, handle, device);
}

static bool is_on_other_node(const struct vmml_handle *handle)
{
    uint8_t own = vmml_node_byte();

    return handle->node != 0 && own != 0 && handle->node != own;
}

/* Two nodes may look like one by that byte: then the ledger is not there, and
 * the block is tried too. Not where the ledger may be had by the next key: who
 * follows a block learns late of an unmap, and goes on with it. */
static bool prepare_any(const struct vmml_handle *handle, const uint8_t *fabric,
                        int device)
{
    const struct vmml_peer *peer = vmml_peer_find(handle->nonce);
    bool may_pass;

    if (peer != NULL ? peer->remote : is_on_other_node(handle))
        return prepare_remote(handle, fabric, device);
    return prepare(handle, device, &may_pass) ||
           (fabric != NULL && vmml_peer_find(handle->nonce) == NULL &&
            !may_pass && prepare_remote(handle, fabric, device));
}

bool vmml_mirror_prepare(const struct vmml_handle *handle, int device)
{
    return vmml_mirror_prepare_key(handle, NULL, device);
}

bool vmml_mirror_prepare_key(const struct vmml_handle *handle,
                             const uint8_t *fabric, int device)
{
    bool served;
    unsigned use;

    vmml_count(keys_unpacked);
    if (is_tombstone(handle)) {
        vmml_count(keys_unreachable);
        return false;
    }
    if (vmml_lane_is_own(handle->nonce)) {
        if (prepare_own(handle, device)) {
            vmml_count(keys_served);
            return true;
        }
        /* Whether a process may import its own pool is not documented. */
        if (vmml_is_pooled(handle->base)) {
            vmml_count(keys_unreachable);
            return false;
        }
    }
    use = vmml_use_begin();
    served = prepare_any(handle, fabric, device);
    vmml_use_end(use);
    vmml_count_slot(
        served ? VMML_COUNT_keys_served : VMML_COUNT_keys_unreachable, 1);
    return served;
}

static bool hold(uintptr_t key, struct vmml_mirror *mirror)
{
    struct held *held;

    pthread_mutex_lock(&table_lock);
    for (held = held_keys; held != NULL; held = held->next)
        if (held->key == key && held->mirror == mirror)
            break;
    if (held == NULL) {
        held = calloc(1, sizeof(*held));
        if (held != NULL) {
            held->key = key;
            held->mirror = mirror;
            held->next = held_keys;
            held_keys = held;
        }
    }
    if (held != NULL) {
        held->count++;
        atomic_fetch_add(&held_count, 1);
    }
    pthread_mutex_unlock(&table_lock);
    return held != NULL;
}

/* Take one hold on `key` back, or all of them. Returns how many. */
static unsigned unhold(uintptr_t key, bool own, bool all,
                       struct vmml_mirror **mirror)
{
    struct held **link;
    struct held *held;
    unsigned count = 0;

    if (atomic_load_explicit(&held_count, memory_order_relaxed) == 0)
        return 0;
    pthread_mutex_lock(&table_lock);
    for (link = &held_keys; (held = *link) != NULL; link = &held->next)
        if (held->key == key && (held->mirror == NULL) == own)
            break;
    if (held != NULL) {
        count = all ? held->count : 1;
        *mirror = held->mirror;
        held->count -= count;
        atomic_fetch_sub(&held_count, count);
        if (held->count == 0) {
            *link = held->next;
            free(held);
        }
    }
    pthread_mutex_unlock(&table_lock);
    return count;
}

static CUresult open_own(const struct vmml_handle *handle, CUdeviceptr *ptr)
{
    uint64_t address = vmml_lane_own_address(handle->base, handle->size);

    if (address == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hold(address, NULL))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ptr = address;
    return CUDA_SUCCESS;
}

/* False: it is being given back. */
static bool count_open(struct vmml_mirror *mirror)
{
    unsigned opens = atomic_load(&mirror->opens);

    while (opens != VMML_CONDEMNED &&
           !atomic_compare_exchange_weak(&mirror->opens, &opens, opens + 1))
        continue;
    return opens != VMML_CONDEMNED;
}

/* A mirror whose count of opens was raised. Where the exporter has ended, an
 * empty one. device: -1 where it is not known. */
static CUresult open_mirror(const struct vmml_handle *handle, int device,
                            struct vmml_mirror **mirror)
{
    struct vmml_peer *peer;
    bool may_pass;
    int tries;

    for (tries = 0; tries < USE_TRIES; tries++) {
        peer = vmml_peer_attach(handle, &may_pass);
        if (peer == NULL)
            peer = vmml_peer_lost(handle);
        if (peer == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        *mirror = device < 0 ? find_only(handle) : get(peer, handle, device);
        if (*mirror != NULL && count_open(*mirror))
            return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult open_foreign(const struct vmml_handle *handle, int device,
                             CUdeviceptr *ptr)
{
    struct vmml_mirror *mirror;
    CUresult result = open_mirror(handle, device, &mirror);

    if (result != CUDA_SUCCESS)
        return result;
    /* uct_md_mem_elem_pack opens on a device of its own choice, and a kernel
     * reads what it gives: no copy that could be checked comes first. */
    if (atomic_load(&vmml_mirrors_pinned) && !vmml_mirror_is_current(mirror))
        vmml_mirror_sync(mirror);
    vmml_debug("window 0x%lx of process %u is opened at 0x%lx",
               (unsigned long)mirror->base, mirror->peer->pid,
               (unsigned long)mirror->address);
    *ptr = mirror->address;
    vmml_count(windows_opened);
    return CUDA_SUCCESS;
}

CUresult vmml_mirror_open(const struct vmml_handle *handle, CUdeviceptr *ptr)
{
    return vmml_mirror_open_on(handle, -1, ptr);
}

CUresult vmml_mirror_open_on(const struct vmml_handle *handle, int device,
                             CUdeviceptr *ptr)
{
    const struct vmml_real *real = vmml_real();
    CUdevice current;
    CUresult result;
    unsigned use;

    VMML_LOG_KEY(handle->nonce, handle->base, handle->size);
    if (real == NULL || (!vmml_conf()->strict && is_tombstone(handle)))
        return CUDA_ERROR_INVALID_VALUE;
    /* The unpack let this key through: UCX would remember a refusal here for
     * every key of the exporter. */
    if (real->cuCtxGetDevice(&current) == CUDA_SUCCESS)
        device = current;
    if (vmml_lane_is_own(handle->nonce) && prepare_own(handle, device))
        return open_own(handle, ptr);
    use = vmml_use_begin();
    result = open_foreign(handle, device, ptr);
    vmml_use_end(use);
    return result;
}

static bool close_mirror(struct vmml_mirror *mirror, CUdeviceptr ptr)
{
    unsigned opens = atomic_load(&mirror->opens);
    VMML_LOG_KEY(mirror->peer->nonce, mirror->base, mirror->size);

    if (ptr != mirror->address)
        return false;
    while (opens > 0 && opens != VMML_CONDEMNED &&
           !atomic_compare_exchange_weak(&mirror->opens, &opens, opens - 1))
        continue;
    if (opens == 0 || opens == VMML_CONDEMNED)
        return false;
    vmml_count(windows_closed);
    vmml_debug("window 0x%lx of process %u is closed at 0x%lx",
               (unsigned long)mirror->base, mirror->peer->pid,
               (unsigned long)mirror->address);
    if (opens == 1)
        vmml_watch_wake();
    return true;
}

bool vmml_mirror_close(CUdeviceptr ptr)
{
    unsigned use = vmml_use_begin();
    struct vmml_mirror *mirror = vmml_index_find(ptr);
    struct vmml_mirror *none;
    bool closed = mirror != NULL && close_mirror(mirror, ptr);

    vmml_use_end(use);
    return mirror != NULL ? closed : unhold(ptr, true, false, &none) != 0;
}

static bool hand_out(CUdeviceptr ptr, uintptr_t rkey)
{
    struct vmml_mirror *mirror = vmml_index_find(ptr);

    if (mirror == NULL)
        return true;
    atomic_fetch_add(&mirror->pins, 1);
    if (vmml_mirror_sync(mirror) == VMML_SYNC_OK && hold(rkey, mirror))
        return true;
    atomic_fetch_sub(&mirror->pins, 1);
    return false;
}

bool vmml_mirror_hand_out(CUdeviceptr ptr, uintptr_t rkey)
{
    unsigned use = vmml_use_begin();
    bool done = hand_out(ptr, rkey);

    vmml_use_end(use);
    return done;
}

CUdeviceptr vmml_mirror_memory_at(CUdeviceptr ptr)
{
    unsigned use = vmml_use_begin();
    struct vmml_mirror *mirror = vmml_index_find(ptr);
    uint64_t shift = mirror == NULL ? 0 : atomic_load(&mirror->shift);

    vmml_use_end(use);
    return ptr + shift;
}

void vmml_mirror_take_back(uintptr_t rkey)
{
    struct vmml_mirror *mirror = NULL;
    unsigned count = unhold(rkey, false, true, &mirror);

    if (count > 0)
        atomic_fetch_sub(&mirror->pins, count);
}

bool vmml_mirror_take_back_one(uintptr_t rkey, CUdeviceptr *base)
{
    struct vmml_mirror *mirror = NULL;

    if (unhold(rkey, false, false, &mirror) == 0)
        return false;
    *base = mirror->address;
    atomic_fetch_sub(&mirror->pins, 1);
    return true;
}

void vmml_mirror_pin_all(void)
{
    unsigned use = vmml_use_begin();
    struct vmml_mirror *mirror;

    if (!atomic_exchange(&vmml_mirrors_pinned, true))
        vmml_info("device-side elements are used: what is mapped now stays "
                  "mapped until the process ends");
    for (mirror = vmml_mirror_first(); mirror != NULL;
         mirror = atomic_load(&mirror->next))
        if (!vmml_mirror_is_current(mirror))
            vmml_mirror_sync(mirror);
    vmml_use_end(use);
}

/* Revoked chunks that no pin keeps any more. */
static bool has_loose_ends(const struct vmml_mirror *mirror)
{
    return atomic_load(&mirror->has_stale) && atomic_load(&mirror->pins) == 0 &&
           !atomic_load(&vmml_mirrors_pinned);
}

bool vmml_mirror_refresh(void)
{
    unsigned use = vmml_use_begin();
    struct vmml_mirror *mirror;
    bool holds = false;

    for (mirror = vmml_mirror_first(); mirror != NULL;
         mirror = atomic_load(&mirror->next)) {
        if (!atomic_load(&mirror->holds))
            continue;
        /* One exporter that is stuck must not keep what others gave back. */
        if (!vmml_mirror_is_checked(mirror) || has_loose_ends(mirror))
            vmml_mirror_try_sync(mirror);
        holds |= atomic_load(&mirror->holds);
    }
    vmml_use_end(use);
    return holds;
}

void vmml_mirror_fork_lock(void)
{
    vmml_peer_fork_lock();
    pthread_mutex_lock(&table_lock);
}

void vmml_mirror_fork_unlock(void)
{
    pthread_mutex_unlock(&table_lock);
    vmml_peer_fork_unlock();
}

void vmml_mirror_fork_child(void)
{
    pthread_mutex_init(&table_lock, NULL);
    vmml_use_fork_child();
    vmml_peer_fork_child();
    vmml_remote_fork_child();
    vmml_pool_import_fork_child();
    vmml_watch_fork_child();
}
