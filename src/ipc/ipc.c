/* SPDX-License-Identifier: MIT */
#include "ipc/ipc.h"

#include <string.h>

#include "base/conf.h"
#include "base/driver.h"
#include "base/fork.h"
#include "base/log.h"
#include "doors/caller.h"
#include "lane/state.h"
#include "mirror/mirror.h"

/* Where the handle has what a key leaves empty. */
enum {
    AT_OFFSET = 0,
    AT_CHANGES = 60,
};

struct range {
    uint64_t base; /* of the reservation */
    uint64_t size;
    CUdevice device;
    CUuuid gpu;
};

bool vmml_ipc_is_for(const void *caller)
{
    const struct vmml_conf *conf = vmml_conf();
    enum vmml_caller class;

    if (conf->ipc != VMML_IPC_ALL || !conf->on || !conf->share || vmml_in_child)
        return false;
    class = vmml_hook_caller(caller);
    return class == VMML_CALLER_OTHER || class == VMML_CALLER_NAMED;
}

/* ---- the exporter -------------------------------------------------------- */

/* In the reservation's part that `ptr` is in nothing needs to be mapped: only
 * cuPointerGetAttributes tells of such an address (measured). */
static bool find_reservation(const struct vmml_real *real, CUdeviceptr ptr,
                             struct range *range)
{
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    CUdeviceptr base = 0;
    size_t size = 0;
    void *data[] = {&base, &size};

    if (real->cuPointerGetAttributes == NULL ||
        real->cuPointerGetAttributes(2, names, data, ptr) != CUDA_SUCCESS ||
        size == 0 || ptr < base || ptr - base >= size ||
        size > UINT64_MAX - base || base % VMML_GRANULE != 0)
        return false;
    range->base = base;
    range->size = size;
    return true;
}

/* Is it pinned memory of a device, made by cuMemCreate? */
static bool is_vmm(const struct vmml_real *real, CUdeviceptr ptr,
                   CUdevice *device)
{
    CUmemAllocationProp prop;

    if (vmml_properties_at(real, ptr, &prop) != CUDA_SUCCESS ||
        prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return false;
    *device = prop.location.id;
    return true;
}

/* The device of the first chunk from `ptr` on. */
static bool find_device(const struct vmml_real *real, CUdeviceptr ptr,
                        struct range *range)
{
    CUdeviceptr base;
    size_t size;

    for (; ptr - range->base < range->size; ptr += VMML_GRANULE) {
        if (is_vmm(real, ptr, &range->device))
            return vmml_device_uuid(real, range->device, &range->gpu) ==
                   CUDA_SUCCESS;
        /* Other memory is none of ours. */
        if (vmml_mapping_at(real, ptr, &base, &size) == CUDA_SUCCESS)
            return false;
    }
    return false;
}

/* Is it where the reservation begins, or one of its chunks? */
static bool is_base(const struct vmml_real *real, CUdeviceptr ptr,
                    const struct range *range)
{
    CUdeviceptr base;
    size_t size;

    return ptr == range->base ||
           (vmml_mapping_at(real, ptr, &base, &size) == CUDA_SUCCESS &&
            base == ptr);
}

/* The window, with a reference that is the caller's to release; its chunks stay
 * published until they are unmapped. *published: all of them are. */
static struct vmml_window *hold_window(const struct range *range,
                                       bool *published)
{
    struct vmml_window *window = NULL;
    struct vmml_fd_list fds;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    if (vmml_exporter_ready())
        window = vmml_exporter_window(range->base, range->size, range->device,
                                      &range->gpu, &fds);
    if (window != NULL && window->device != range->device)
        window = NULL;
    if (window != NULL) {
        window->refs++;
        if (!window->ipc) {
            vmml_window_cover(window, window->base, window->size, 1);
            window->ipc = true;
            window->ipc_changes = UINT64_MAX;
        }
        *published = window->ipc_changes == window->changes;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    return window;
}

static void release_window(struct vmml_window *window)
{
    pthread_mutex_lock(&vmml_exporter.lock);
    vmml_window_release(window);
    pthread_mutex_unlock(&vmml_exporter.lock);
}

/* Everything in the window, once for each change of it; a hole is none of a
 * reservation's memory. */
static enum vmml_reason publish_all(const struct vmml_real *real,
                                    struct vmml_window *window)
{
    static uint32_t made;
    enum vmml_reason reason;
    uint64_t changes, hole;

    pthread_mutex_lock(&vmml_exporter.lock);
    changes = window->changes;
    pthread_mutex_unlock(&vmml_exporter.lock);
    reason = vmml_publish(real, window, window->base,
                          window->base + window->size, &hole);
    pthread_mutex_lock(&vmml_exporter.lock);
    if (window->retired)
        reason = VMML_REASON_WINDOW;
    if (reason == VMML_REASON_NONE) {
        window->ipc_changes = changes;
        window->ipc_made = ++made;
    }
    pthread_mutex_unlock(&vmml_exporter.lock);
    return reason;
}

/* The chunk at `ptr` alone: an unmap that no hook saw shows at least here.
 * *changed: it did. */
static enum vmml_reason publish_one(const struct vmml_real *real,
                                    struct vmml_window *window, uint64_t ptr,
                                    bool *changed)
{
    enum vmml_reason reason;
    uint64_t hole;

    reason = vmml_publish(real, window, ptr, ptr + 1, &hole);
    pthread_mutex_lock(&vmml_exporter.lock);
    *changed = window->ipc_changes != window->changes;
    pthread_mutex_unlock(&vmml_exporter.lock);
    return reason;
}

static void put32(char *at, uint64_t value)
{
    uint32_t word = (uint32_t)value;

    memcpy(at, &word, sizeof(word));
}

static uint32_t get32(const char *at)
{
    uint32_t word;

    memcpy(&word, at, sizeof(word));
    return word;
}

static void encode(const struct vmml_window *window, CUdeviceptr ptr,
                   CUipcMemHandle *handle)
{
    struct vmml_pack pack;

    pthread_mutex_lock(&vmml_exporter.lock);
    vmml_pack_fill(&pack, window->base, window->size, VMML_REASON_NONE);
    vmml_handle_set_ipc(pack.handle);
    memcpy(handle->reserved, pack.handle, sizeof(pack.handle));
    put32(handle->reserved + AT_OFFSET, (ptr - window->base) / VMML_GRANULE);
    put32(handle->reserved + AT_CHANGES, window->ipc_made);
    pthread_mutex_unlock(&vmml_exporter.lock);
}

static bool get(const struct vmml_real *real, CUipcMemHandle *handle,
                CUdeviceptr ptr)
{
    struct vmml_window *window;
    enum vmml_reason reason = VMML_REASON_NONE;
    struct range range;
    bool published, changed;

    if (!find_reservation(real, ptr, &range) || !is_base(real, ptr, &range) ||
        !find_device(real, ptr, &range))
        return false;
    window = hold_window(&range, &published);
    if (window == NULL)
        return false;
    changed = !published;
    if (published)
        reason = publish_one(real, window, ptr, &changed);
    if (reason == VMML_REASON_NONE && changed)
        reason = publish_all(real, window);
    if (reason == VMML_REASON_NONE)
        encode(window, ptr, handle);
    else
        vmml_warn_once("no IPC handle of 0x%lx: %s", (unsigned long)ptr,
                       vmml_reason_string(reason));
    release_window(window);
    return reason == VMML_REASON_NONE;
}

bool vmml_ipc_get(const struct vmml_real *real, CUipcMemHandle *handle,
                  CUdeviceptr ptr)
{
    struct vmml_relaxed relaxed;
    bool got;

    vmml_relax(real, &relaxed);
    got = get(real, handle, ptr);
    vmml_relax_end(real, &relaxed);
    vmml_debug("IPC handle for 0x%lx: %s", (unsigned long)ptr,
               got ? "given" : "none can be had");
    return got;
}

/* ---- the importer -------------------------------------------------------- */

static CUresult open_mirror(const struct vmml_handle *ours, uint64_t offset,
                            CUdevice device, CUdeviceptr *ptr)
{
    CUdeviceptr base;
    CUresult result;

    if (!vmml_mirror_prepare(ours, device))
        return CUDA_ERROR_MAP_FAILED;
    result = vmml_mirror_open(ours, &base);
    if (result != CUDA_SUCCESS)
        return result;
    /* A kernel may read it: nothing that is mapped is unmapped until it is
     * closed. */
    if (vmml_mirror_hand_out(base + offset, base + offset)) {
        *ptr = base + offset;
        return CUDA_SUCCESS;
    }
    vmml_mirror_close(base);
    return CUDA_ERROR_MAP_FAILED;
}

bool vmml_ipc_open(const struct vmml_real *real, CUdeviceptr *ptr,
                   const CUipcMemHandle *handle, CUresult *result)
{
    uint64_t offset =
        (uint64_t)get32(handle->reserved + AT_OFFSET) * VMML_GRANULE;
    struct vmml_handle ours;
    CUdevice device;

    if (ptr == NULL ||
        vmml_handle_find((const uint8_t *)handle->reserved,
                         sizeof(handle->reserved), &ours) != 4 ||
        !(ours.flags & VMML_HANDLE_IPC) || vmml_lane_is_own(ours.nonce))
        return false;
    *result = CUDA_ERROR_INVALID_VALUE;
    if (offset < ours.size) {
        *result = real->cuCtxGetDevice(&device);
        if (*result == CUDA_SUCCESS)
            *result = open_mirror(&ours, offset, device, ptr);
    }
    vmml_debug("IPC handle of process %u: opened with %d", ours.pid,
               (int)*result);
    return true;
}

bool vmml_ipc_close(CUdeviceptr ptr)
{
    CUdeviceptr base;

    if (!vmml_mirror_take_back_one(ptr, &base))
        return false;
    vmml_mirror_close(base);
    return true;
}
