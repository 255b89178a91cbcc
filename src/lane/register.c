/* SPDX-License-Identifier: MIT */
/*
 * Taken or native, once for a registration; and the packs of a taken one.
 */
#include "lane/state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/driver.h"
#include "base/fork.h"
#include "base/log.h"
#include "doors/caller.h"
#include "fabric/export.h"
#include "fabric/node.h"
#include "pool/pool.h"
#include "stats/count.h"

/* What decides about a registration. */
struct memory {
    uint64_t base; /* of the reservation */
    uint64_t size;
    CUdeviceptr chunk_base; /* of the first chunk */
    size_t chunk_size;
    unsigned long long handle_types;
    CUdevice device;
    CUuuid gpu;
};

CUresult vmml_reservation_at(const struct vmml_real *real, CUdeviceptr ptr,
                             uint64_t *base, uint64_t *size)
{
    CUdeviceptr start = 0;
    size_t length = 0;
    CUresult result;

    result = vmml_attribute(real, &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                            ptr);
    if (result == CUDA_SUCCESS)
        result =
            vmml_attribute(real, &length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr);
    if (result != CUDA_SUCCESS)
        return result;
    if (length == 0 || ptr < start || ptr - start >= length ||
        length > UINT64_MAX - start)
        return CUDA_ERROR_INVALID_VALUE;
    *base = start;
    *size = length;
    return CUDA_SUCCESS;
}

enum kind {
    KIND_VMM, /* pinned device memory of cuMemCreate */
    KIND_OTHER,
    KIND_UNKNOWN, /* the driver failed */
};

/* Of what kind is it? The attribute IS_LEGACY_CUDA_IPC_CAPABLE does not tell: a
 * driver may report cudaMalloc memory as not capable (comment in UCX's
 * cuda_ipc_md.c). */
static enum kind look_at_handle(const struct vmml_real *real, CUdeviceptr ptr,
                                struct memory *memory)
{
    CUmemAllocationProp prop;
    CUresult result = vmml_properties_at(real, ptr, &prop);

    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_INVALID_VALUE ? KIND_OTHER : KIND_UNKNOWN;
    if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return KIND_OTHER;
    memory->device = prop.location.id;
    memory->handle_types = prop.requestedHandleTypes;
    return KIND_VMM;
}

/* Where it lies: its chunk, and the reservation. */
static bool look_around(const struct vmml_real *real, CUdeviceptr ptr,
                        struct memory *memory)
{
    struct vmml_described described;
    uint64_t base, size;

    if (vmml_describe_all(real, ptr, &described) != CUDA_SUCCESS)
        return false;
    memory->chunk_base = described.base;
    memory->chunk_size = described.size;
    memory->base = base = described.reservation_base;
    memory->size = size = described.reservation_size;
    return size != 0 && ptr >= base && ptr - base < size &&
           size <= UINT64_MAX - base;
}

/* The GPU of a window that is known is known. */
static bool find_gpu(const struct vmml_real *real, struct memory *memory)
{
    const struct vmml_window *window;
    bool found;

    pthread_mutex_lock(&vmml_exporter.lock);
    window = vmml_windows_at(&vmml_exporter.windows, memory->base);
    found = window != NULL && window->device == memory->device;
    if (found)
        memory->gpu = window->gpu;
    pthread_mutex_unlock(&vmml_exporter.lock);
    return found ||
           vmml_device_uuid(real, memory->device, &memory->gpu) == CUDA_SUCCESS;
}

static enum kind look_at(const struct vmml_real *real, CUdeviceptr ptr,
                         struct memory *memory)
{
    struct vmml_relaxed relaxed;
    enum kind kind;

    vmml_relax(real, &relaxed);
    kind = look_at_handle(real, ptr, memory);
    vmml_relax_end(real, &relaxed);
    if (kind != KIND_VMM)
        return kind;
    return look_around(real, ptr, memory) && find_gpu(real, memory)
               ? KIND_VMM
               : KIND_UNKNOWN;
}

static bool is_one_chunk(const struct memory *memory, uint64_t address,
                         uint64_t length)
{
    return address + length <= memory->chunk_base + memory->chunk_size;
}

/* Can a fabric handle of the first chunk be had? That it is allowed does not
 * say so (measured). */
static bool fabric_works(const struct memory *memory)
{
    const struct vmml_real *real = vmml_real();
    CUmemGenericAllocationHandle handle;
    struct vmml_relaxed relaxed;
    CUmemFabricHandle fabric;
    bool works;

    if ((memory->handle_types & CU_MEM_HANDLE_TYPE_FABRIC) == 0)
        return false;
    vmml_relax(real, &relaxed);
    works = real->cuMemRetainAllocationHandle(
                &handle, (void *)memory->chunk_base) == CUDA_SUCCESS;
    if (works) {
        works = real->cuMemExportToShareableHandle(&fabric, handle,
                                                   CU_MEM_HANDLE_TYPE_FABRIC,
                                                   0) == CUDA_SUCCESS;
        vmml_release(real, handle);
    }
    vmml_relax_end(real, &relaxed);
    return works;
}

/* UCX shares a handle that fills its reservation by itself, by a fabric handle
 * or where its binary has the arm by a descriptor; it cannot grow, and a peer
 * without vmmlane can use that key. The first chunk of a larger reservation is
 * taken: a key of UCX's own for it and one of the window would lie on each
 * other in the importer's cache, which destroys one when the other is used
 * (uct_cuda_ipc_cache_put_region). */
static bool is_native(vmml_uct_md_h md, const struct memory *memory,
                      uint64_t address, uint64_t length)
{
    if (!is_one_chunk(memory, address, length) ||
        memory->chunk_base != memory->base ||
        memory->chunk_size != memory->size)
        return false;
    if (fabric_works(memory)) {
        vmml_debug("native: one fabric handle fills its reservation");
        return true;
    }
    /* Where a fabric handle is allowed too and cannot be had, UCX logs an error
     * before it comes to the descriptor. */
    if (vmml_conf()->native == VMML_NATIVE_AUTO &&
        (memory->handle_types & (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                 CU_MEM_HANDLE_TYPE_FABRIC)) ==
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        vmml_module_has_native_fd(md->component)) {
        vmml_debug("native: one handle fills its reservation, and this UCX "
                   "shares it by itself");
        return true;
    }
    return false;
}

/* Reasons that hold for every request of the registration. */
static enum vmml_reason refuse(const struct memory *memory, uint64_t address,
                               uint64_t length)
{
    if (memory->base % VMML_GRANULE != 0 ||
        address + length > memory->base + memory->size)
        return VMML_REASON_WINDOW;
    return VMML_REASON_NONE;
}

/* With the lock. */
static bool take(const struct memory *memory,
                 struct vmml_registration *registration,
                 struct vmml_fd_list *fds)
{
    struct vmml_window *window;

    if (!vmml_exporter_ready())
        return false;
    window = vmml_exporter_window(memory->base, memory->size, memory->device,
                                  &memory->gpu, fds);
    if (window == NULL)
        return false;
    registration->window = window;
    if (window->device != memory->device)
        registration->refused = VMML_REASON_DEVICE;
    /* Nothing is verified yet: the first pack compares every BUFFER_ID. */
    registration->verified_from = 1;
    registration->verified_to = 0;
    if (!vmml_registration_add(registration))
        return false;
    window->refs++;
    window->registered++;
    vmml_window_cover(window, registration->address, registration->length, 1);
    vmml_count(registrations_taken);
    return true;
}

static bool may_take(void)
{
    const struct vmml_conf *conf = vmml_conf();

    return conf->on && conf->share && !vmml_in_child &&
           !atomic_load(&vmml_exporter.stood_down);
}

/* With the lock: a registration is the window's no more. */
static void end_of(struct vmml_window *window)
{
    if (--window->registered == 0)
        vmml_block_retire(window);
    vmml_window_release(window);
}

/* With the lock: the registration ends, if there is one. Chunks that no other
 * covers become idle. */
static void end_registration(vmml_uct_md_h md, vmml_uct_mem_h memh)
{
    struct vmml_registration *registration = vmml_registration_take(md, memh);
    struct vmml_window *window;

    if (registration == NULL)
        return;
    vmml_count(registrations_ended);
    if (registration->pooled) {
        free(registration);
        return;
    }
    window = registration->window;
    vmml_window_cover(window, registration->address, registration->length, -1);
    if (!window->retired)
        vmml_idle_add(window, registration->address,
                      registration->address + registration->length, true);
    end_of(window);
    free(registration);
}

void vmml_lane_deregister(vmml_uct_md_h md, vmml_uct_mem_h memh)
{
    if (!atomic_load_explicit(&vmml_exporter.has_windows,
                              memory_order_relaxed) ||
        vmml_in_child)
        return;
    pthread_mutex_lock(&vmml_exporter.lock);
    end_registration(md, memh);
    pthread_mutex_unlock(&vmml_exporter.lock);
}

enum decision {
    DECISION_NATIVE,
    DECISION_TAKEN,
    DECISION_NONE, /* a driver call failed, or memory or the ledger is short */
};

/* Registrations were left without a decision. */
static atomic_bool some_undecided;

static enum decision take_memory(const struct memory *memory,
                                 struct vmml_registration *registration)
{
    struct vmml_fd_list fds;
    bool taken;

    registration->refused =
        refuse(memory, registration->address, registration->length);
    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    taken = take(memory, registration, &fds);
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    VMML_LOG_KEY(taken ? vmml_exporter_nonce() : NULL, memory->base,
                 memory->size);
    vmml_debug("registration 0x%lx+0x%lx of window 0x%lx+0x%lx: %s",
               (unsigned long)registration->address,
               (unsigned long)registration->length, (unsigned long)memory->base,
               (unsigned long)memory->size,
               !taken ? "no ledger entry can be had"
               : registration->refused == VMML_REASON_NONE
                   ? "taken"
                   : vmml_reason_string(registration->refused));
    return taken ? DECISION_TAKEN : DECISION_NONE;
}

/* late: at a pack, of which the range is a part only: then the reservation is
 * what counts as registered. */
static enum decision decide(vmml_uct_md_h md, vmml_uct_mem_h memh,
                            uint64_t address, uint64_t length, bool late)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_registration registration = {
        .md = md,
        .memh = memh,
        .address = address,
        .length = length,
    };
    struct memory memory;

    if (real == NULL || !may_take() || length > UINT64_MAX - address)
        return DECISION_NATIVE;
    switch (look_at(real, address, &memory)) {
    case KIND_VMM:
        break;
    case KIND_UNKNOWN:
        return DECISION_NONE;
    default:
        vmml_pool_register(md, memh, address, length);
        return DECISION_NATIVE;
    }
    if (is_native(md, &memory, address, length)) {
        vmml_count_by(registrations_native, late ? 0 : 1);
        return DECISION_NATIVE;
    }
    if (late) {
        registration.address = memory.base;
        registration.length = memory.size;
    }
    return take_memory(&memory, &registration);
}

void vmml_lane_register(vmml_uct_md_h md, vmml_uct_mem_h memh, void *address,
                        size_t length)
{
    /* A handle that UCX uses again without an end that was seen. */
    vmml_lane_deregister(md, memh);
    if (decide(md, memh, (uintptr_t)address, length, false) != DECISION_NONE)
        return;
    vmml_debug("registration %p+0x%lx: decided when it is packed", address,
               (unsigned long)length);
    atomic_store(&some_undecided, true);
}

void vmml_pack_fill(struct vmml_pack *pack, uint64_t base, uint64_t size,
                    enum vmml_reason reason)
{
    struct vmml_handle handle = {
        .flags = reason == VMML_REASON_NONE ? 0 : VMML_HANDLE_TOMBSTONE,
        .reason = (uint8_t)reason,
        .ledger_fd = -1,
        .node = vmml_node_byte(),
        .base = base,
        .size = size,
    };

    memset(pack->nonce, 0, sizeof(pack->nonce));
    if (vmml_exporter.ledger == NULL) {
        handle.pid = (uint32_t)getpid();
    } else {
        handle.pid = vmml_ledger_pid(vmml_exporter.ledger);
        handle.pid_ns = vmml_ledger_pid_ns(vmml_exporter.ledger);
        handle.ledger_fd = vmml_ledger_fd(vmml_exporter.ledger);
        memcpy(pack->nonce, vmml_ledger_nonce(vmml_exporter.ledger),
               VMML_NONCE_SIZE);
    }
    memcpy(handle.nonce, pack->nonce, VMML_NONCE_SIZE);
    vmml_handle_encode(&handle, pack->handle);
    pack->base = base;
    pack->size = size;
    pack->identity = vmml_identity(pack->nonce, base, size);
    pack->queries = 0;
    pack->has_block = false;
}

/* A copy of what a pack needs, so that no lock is held while it works. The
 * window's reference is the caller's to release. */
static bool begin(vmml_uct_md_h md, vmml_uct_mem_h memh,
                  struct vmml_registration *copy, bool *verified,
                  uint64_t address, uint64_t end)
{
    struct vmml_registration *found;

    pthread_mutex_lock(&vmml_exporter.lock);
    found = vmml_registration_find(md, memh);
    if (found != NULL && found->pooled)
        found = NULL; /* a pool's, and a thread ends what another packs */
    if (found != NULL) {
        *copy = *found;
        copy->changes = found->window->changes;
        *verified = found->changes == found->window->changes &&
                    found->verified_from <= address &&
                    end <= found->verified_to;
        found->window->refs++;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return found != NULL;
}

/* Everything in [from, to) was found published while the window's count of
 * changes was copy->changes. What lies outside the registration may be closed
 * as idle without a change. */
static void remember_verified(const struct vmml_registration *copy,
                              uint64_t from, uint64_t to)
{
    struct vmml_registration *found;

    found = vmml_registration_find(copy->md, copy->memh);
    if (found == NULL || found->window != copy->window ||
        copy->window->changes != copy->changes)
        return;
    from = from > found->address ? from : found->address;
    to = to < found->address + found->length ? to
                                             : found->address + found->length;
    if (from >= to)
        return;
    if (found->changes == copy->changes && found->verified_from <= to &&
        from <= found->verified_to) {
        from = from < found->verified_from ? from : found->verified_from;
        to = to > found->verified_to ? to : found->verified_to;
    }
    found->changes = copy->changes;
    found->verified_from = from;
    found->verified_to = to;
}

/* *hole: see vmml_publish(). */
static enum vmml_reason serve(const struct vmml_registration *copy,
                              uint64_t address, uint64_t end, uint64_t *hole)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_relaxed relaxed;
    enum vmml_reason reason;

    if (copy->refused != VMML_REASON_NONE)
        return copy->refused;
    if (copy->window->retired || address < copy->window->base ||
        end > copy->window->base + copy->window->size)
        return VMML_REASON_WINDOW;
    if (real == NULL)
        return VMML_REASON_DRIVER;
    vmml_relax(real, &relaxed);
    reason = vmml_publish(real, copy->window, address, end, hole);
    vmml_relax_end(real, &relaxed);
    if (*hole != 0)
        vmml_warn_once("nothing is mapped at 0x%lx of a key for 0x%lx+0x%lx: "
                       "the rest is served, a transfer that touches the hole "
                       "fails. Remedy: register only memory that is mapped "
                       "and has access set",
                       (unsigned long)*hole, (unsigned long)address,
                       (unsigned long)(end - address));
    return reason;
}

/* The registration outlived its reservation: is the same one there again? */
static void follow_reservation(const struct vmml_registration *copy)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_registration *found;
    struct vmml_window *window;
    struct vmml_fd_list fds;
    uint64_t base, size;

    if (real == NULL ||
        vmml_reservation_at(real, copy->address, &base, &size) !=
            CUDA_SUCCESS ||
        base != copy->window->base || size != copy->window->size)
        return;
    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    found = vmml_registration_find(copy->md, copy->memh);
    if (found != NULL && found->window == copy->window) {
        window = vmml_exporter_window(base, size, copy->window->device,
                                      &copy->window->gpu, &fds);
        if (window != NULL && window != found->window) {
            window->refs++;
            window->registered++;
            vmml_window_cover(window, found->address, found->length, 1);
            end_of(found->window);
            found->window = window;
            found->verified_from = 1;
            found->verified_to = 0;
        }
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
}

/* A pack has looked at [address, end) and published what is mapped there. */
static void note_served(const struct vmml_registration *copy, uint64_t address,
                        uint64_t end, bool complete)
{
    if (complete)
        remember_verified(copy, address, end);
    /* What no registration covers (any more): nobody else would close it. */
    if (!copy->window->retired)
        vmml_idle_add(copy->window, address, end, false);
}

/* across: what other nodes find: `block`, or why there is none. */
static void end_begin(const struct vmml_registration *copy,
                      enum vmml_reason reason, enum vmml_reason across,
                      const struct vmml_block_name *block,
                      struct vmml_pack *pack)
{
    pthread_mutex_lock(&vmml_exporter.lock);
    vmml_pack_fill(pack, copy->window->base, copy->window->size, reason);
    if (reason == VMML_REASON_NONE && across != VMML_REASON_NONE) {
        vmml_handle_set_across(pack->handle, 0, (uint8_t)across);
    } else if (reason == VMML_REASON_NONE && block != NULL) {
        pack->has_block = true;
        pack->block = *block;
        vmml_handle_set_across(pack->handle, VMML_HANDLE_BLOCK, block->order);
    }
    pack->device = copy->window->device;
    vmml_window_release(copy->window);
    pthread_mutex_unlock(&vmml_exporter.lock);
}

static enum vmml_reason serve_and_note(const struct vmml_registration *copy,
                                       uint64_t address, uint64_t end)
{
    uint64_t hole = 0;
    enum vmml_reason reason = serve(copy, address, end, &hole);

    pthread_mutex_lock(&vmml_exporter.lock);
    /* A hole may be filled by a map that no hook sees. */
    note_served(copy, address, end, reason == VMML_REASON_NONE && hole == 0);
    pthread_mutex_unlock(&vmml_exporter.lock);
    return reason;
}

static void drop(const struct vmml_registration *copy)
{
    pthread_mutex_lock(&vmml_exporter.lock);
    vmml_window_release(copy->window);
    pthread_mutex_unlock(&vmml_exporter.lock);
}

/* Do keys of this memory domain go to other nodes, in a layout that has room
 * for a block's name? */
static bool goes_across(vmml_uct_md_h md)
{
    const struct vmml_uct_cuda_ipc_md *ipc =
        (const struct vmml_uct_cuda_ipc_md *)md;

    return ipc->enable_mnnvl == 1 && vmml_module_has_fabric(md->component);
}

/* Importers on other nodes find the window's block, or are told why not. */
static enum vmml_reason serve_across(const struct vmml_registration *copy,
                                     uint64_t address, uint64_t end,
                                     struct vmml_block_name *block)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_relaxed relaxed;
    enum vmml_reason across = VMML_REASON_BLOCK;

    if (real == NULL)
        return across;
    vmml_relax(real, &relaxed);
    across = vmml_block_serve(real, copy->window, address, end, block);
    vmml_relax_end(real, &relaxed);
    if (across != VMML_REASON_NONE)
        vmml_lane_warn_across(across, address, end - address);
    return across;
}

/* Could UCX's own key name the first chunk of several? cudaMalloc memory has
 * no handle type. */
static bool may_be_short(const struct vmml_real *real, uint64_t address)
{
    unsigned long long types = 0;

    return vmml_attribute(real, &types,
                          CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                          address) != CUDA_SUCCESS ||
           types != 0;
}

/* The decision that the registration was left without, with the pack. */
static enum decision decide_late(vmml_uct_md_h md, vmml_uct_mem_h memh,
                                 uint64_t from, uint64_t end,
                                 struct vmml_pack *pack)
{
    const struct vmml_real *real = vmml_real();
    enum decision decision;

    if (real == NULL || !atomic_load(&some_undecided))
        return DECISION_NATIVE;
    decision = decide(md, memh, from, end - from, true);
    if (decision != DECISION_NONE)
        return decision;
    if (!may_be_short(real, from))
        return DECISION_NATIVE;
    pthread_mutex_lock(&vmml_exporter.lock);
    vmml_pack_fill(pack, from, end - from, VMML_REASON_LEDGER);
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_count(keys_packed);
    vmml_lane_warn(VMML_REASON_LEDGER, from, end - from);
    return DECISION_NONE;
}

bool vmml_lane_begin_pack(vmml_uct_md_h md, vmml_uct_mem_h memh, void *address,
                          size_t length, struct vmml_pack *pack)
{
    enum decision decision;
    struct vmml_registration copy;
    uint64_t from = (uintptr_t)address;
    uint64_t end = length > UINT64_MAX - from ? UINT64_MAX : from + length;
    enum vmml_reason reason = VMML_REASON_NONE;
    enum vmml_reason across = VMML_REASON_NONE;
    struct vmml_block_name block;
    bool verified, goes;

    if ((!atomic_load_explicit(&vmml_exporter.has_windows,
                               memory_order_relaxed) &&
         !atomic_load_explicit(&some_undecided, memory_order_relaxed)) ||
        vmml_in_child)
        return false;
    if (vmml_pool_begin_pack(md, memh, from, end - from, pack))
        return true;
    if (!begin(md, memh, &copy, &verified, from, end)) {
        decision = decide_late(md, memh, from, end, pack);
        if (decision != DECISION_TAKEN)
            return decision == DECISION_NONE;
        if (!begin(md, memh, &copy, &verified, from, end))
            return false;
    }
    if (copy.window->retired) {
        follow_reservation(&copy);
        drop(&copy);
        if (!begin(md, memh, &copy, &verified, from, end))
            return false;
    }
    VMML_LOG_KEY(vmml_exporter_nonce(), copy.window->base, copy.window->size);
    if (!verified)
        reason = serve_and_note(&copy, from, end);
    goes = reason == VMML_REASON_NONE && goes_across(md);
    if (goes)
        across = serve_across(&copy, from, end, &block);
    end_begin(&copy, reason, across, goes ? &block : NULL, pack);
    vmml_count(keys_packed);
    if (reason != VMML_REASON_NONE)
        vmml_lane_warn(reason, from, length);
    vmml_trace("pack 0x%lx+0x%lx of window 0x%lx: %s", (unsigned long)from,
               (unsigned long)length, (unsigned long)pack->base,
               vmml_reason_string(reason));
    return true;
}

/*
 * The name of the block goes where a key of UCX has the export data of a pool's
 * pointer (uct_cuda_ipc_md_handle_t), which UCX reads in keys of that type
 * alone. Is this the layout that has it? Then the window stands where it must
 * (UCX 1.18.1 to 1.23); else no other node is served.
 */
static void finish_block(const struct vmml_pack *pack, uint8_t *key, int offset)
{
    uint64_t identity, base, size;

    memcpy(&identity, key + VMML_KEY_IDENTITY, sizeof(identity));
    memcpy(&base, key + VMML_KEY_BASE, sizeof(base));
    memcpy(&size, key + VMML_KEY_SIZE, sizeof(size));
    if (identity == pack->identity && base == pack->base &&
        size == pack->size && offset >= 8) {
        memcpy(key + offset + VMML_KEY_BLOCK, pack->block.handle,
               sizeof(pack->block.handle));
        return;
    }
    vmml_warn_once("no fast lane to other nodes: this UCX has keys of an "
                   "unknown layout");
    vmml_handle_set_across(key + offset - 4, 0, VMML_REASON_BLOCK);
}

void vmml_lane_finish_pack(const struct vmml_pack *pack, uint8_t *key)
{
    struct vmml_handle handle;
    int offset = vmml_handle_find(key, VMML_HANDLE_SCAN, &handle);

    if (offset < 0 || memcmp(handle.nonce, pack->nonce, VMML_NONCE_SIZE) != 0) {
        vmml_warn_once("a key of a taken registration does not carry "
                       "vmmlane's handle: this UCX packs keys in an unknown "
                       "way");
        return;
    }
    /* Bytes 0-3 and 60-63 are zero in every handle. */
    memcpy(key + offset, pack->handle + 4, VMML_HANDLE_SIZE - 8);
    if (pack->has_block)
        finish_block(pack, key, offset);
}
