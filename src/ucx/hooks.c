/* SPDX-License-Identifier: MIT */
/*
 * Hooks of UCT: where registrations begin and end, where keys are packed and
 * unpacked, and where memory is asked for.
 */
#include <string.h>

#include "base/conf.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/remedy.h"
#include "doors/caller.h"
#include "doors/real.h"
#include "hooks.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"
#include "stats/count.h"
#include "stats/stats.h"
#include "ucx/component.h"
#include "ucx/device.h"
#include "ucx/refusal.h"
#include "ucx/scope.h"

/* 0.0.0: not known. */
static void version_of(const struct vmml_uct *uct, unsigned *major,
                       unsigned *minor, unsigned *release)
{
    *major = *minor = *release = 0;
    if (uct->ucp_get_version != NULL)
        uct->ucp_get_version(major, minor, release);
}

/* UCX 1.18 is the oldest whose libucm sees cuMemMap and cuMemUnmap. */
static bool is_supported(const struct vmml_uct *uct)
{
    unsigned major, minor, release;

    if (uct->ucp_get_version == NULL)
        return true;
    version_of(uct, &major, &minor, &release);
    if (major > 1 || (major == 1 && minor >= 18))
        return true;
    if (VMML_LOST(UCX_VERSION))
        vmml_warn("UCX %u.%u.%u is older than 1.18: vmmlane leaves it alone",
                  major, minor, release);
    return false;
}

/* How this UCX lays keys out: a part of VMML_HANDLE_LAYOUT. */
static uint8_t layout_of(const struct vmml_uct *uct,
                         vmml_uct_component_h component)
{
    unsigned major = 0, minor = 0, release = 0;
    uint8_t layout =
        vmml_module_has_fabric(component) ? 0 : VMML_HANDLE_NO_FABRIC;

    if (uct->ucp_get_version != NULL)
        uct->ucp_get_version(&major, &minor, &release);
    /* 1.18.1 put the buffer id before what follows it (struct
     * uct_cuda_ipc_md_handle). */
    if (major == 1 && minor == 18 && release == 0)
        layout |= VMML_HANDLE_FIRST_LAYOUT;
    return layout;
}

vmml_ucs_status_t vmml_uct_md_query_v2(const void *caller, vmml_uct_md_h md,
                                       struct vmml_uct_md_attr_v2 *attr)
{
    const struct vmml_uct *uct = vmml_uct(caller);
    vmml_ucs_status_t status;

    if (uct == NULL || uct->uct_md_query_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    status = uct->uct_md_query_v2(md, attr);
    if (status == VMML_UCS_OK && md != NULL && attr != NULL &&
        !vmml_is_cuda_ipc_md(md))
        vmml_domain_queried(md->component, attr);
    return status;
}

/* UCX tries, and says nothing itself. */
static bool hides_errors(const struct vmml_uct_md_mem_reg_params *params)
{
    return params != NULL &&
           (params->field_mask & VMML_UCT_MD_MEM_REG_FIELD_FLAGS) &&
           (params->flags & VMML_UCT_MD_MEM_FLAG_HIDE_ERRORS);
}

vmml_ucs_status_t vmml_uct_md_mem_reg_v2(const void *caller, vmml_uct_md_h md,
                                         void *address, size_t length,
                                         const void *params,
                                         vmml_uct_mem_h *memh)
{
    const struct vmml_uct *uct = vmml_uct(caller);
    vmml_ucs_status_t status;

    if (uct == NULL || uct->uct_md_mem_reg_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    status = uct->uct_md_mem_reg_v2(md, address, length, params, memh);
    if (!vmml_is_cuda_ipc_md(md)) {
        if (status != VMML_UCS_OK && md != NULL && !hides_errors(params))
            vmml_registration_refused(md->component, address, length);
        return status;
    }
    if (status != VMML_UCS_OK)
        return status;
    vmml_stats_start();
    if (is_supported(uct))
        vmml_lane_register(md, *memh, address, length);
    return status;
}

vmml_ucs_status_t vmml_uct_md_mem_dereg(const void *caller, vmml_uct_md_h md,
                                        vmml_uct_mem_h memh)
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_dereg == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    if (vmml_is_cuda_ipc_md(md))
        vmml_lane_deregister(md, memh);
    return uct->uct_md_mem_dereg(md, memh);
}

vmml_ucs_status_t
vmml_uct_md_mem_dereg_v2(const void *caller, vmml_uct_md_h md,
                         const struct vmml_uct_mem_dereg_params *params)
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_dereg_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    if (vmml_is_cuda_ipc_md(md) && params != NULL &&
        (params->field_mask & VMML_UCT_DEREG_FIELD_MEMH))
        vmml_lane_deregister(md, params->memh);
    return uct->uct_md_mem_dereg_v2(md, params);
}

vmml_ucs_status_t vmml_uct_md_mkey_pack_v2(const void *caller, vmml_uct_md_h md,
                                           vmml_uct_mem_h memh, void *address,
                                           size_t length, const void *params,
                                           void *buffer)
{
    const struct vmml_uct *uct = vmml_uct(caller);
    struct vmml_pack pack;
    struct vmml_scope scope = {.kind = VMML_SCOPE_PACK, .pack = &pack};
    vmml_ucs_status_t status;

    if (uct == NULL || uct->uct_md_mkey_pack_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    if (!vmml_is_cuda_ipc_md(md) ||
        !vmml_lane_begin_pack(md, memh, address, length, &pack))
        return uct->uct_md_mkey_pack_v2(md, memh, address, length, params,
                                        buffer);
    vmml_handle_set_layout(pack.handle, layout_of(uct, md->component));
    VMML_LOG_KEY(pack.nonce, pack.base, pack.size);
    vmml_scope_enter(&scope);
    status =
        uct->uct_md_mkey_pack_v2(md, memh, address, length, params, buffer);
    vmml_scope_leave(&scope);
    if (status == VMML_UCS_OK)
        vmml_lane_finish_pack(&pack, buffer);
    return status;
}

typedef vmml_ucs_status_t mem_query(vmml_uct_md_h md, const void *address,
                                    size_t length, void *attr);

static vmml_ucs_status_t query(const struct vmml_uct *uct, mem_query *real,
                               vmml_uct_md_h md, const void *address,
                               size_t length, void *attr)
{
    /* uct_md_mem_query_v2 came with 1.22, and with it the dmabuf export over
     * each answer (uct_cuda_copy_md_detect_mem_flags). */
    struct vmml_range_request request = {
        .address = (uintptr_t)address,
        .length = length,
        .per_chunk =
            uct->uct_md_mem_query_v2 != NULL || vmml_ranges_are_narrow(),
    };
    struct vmml_scope scope = {.kind = VMML_SCOPE_QUERY, .request = &request};
    vmml_ucs_status_t status;

    vmml_scope_enter(&scope);
    status = real(md, address, length, attr);
    vmml_scope_leave(&scope);
    return status;
}

vmml_ucs_status_t vmml_uct_md_mem_query(const void *caller, vmml_uct_md_h md,
                                        const void *address, size_t length,
                                        void *attr)
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_query == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return query(uct, uct->uct_md_mem_query, md, address, length, attr);
}

vmml_ucs_status_t vmml_uct_md_mem_query_v2(const void *caller, vmml_uct_md_h md,
                                           const void *address, size_t length,
                                           void *attr)
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_query_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return query(uct, uct->uct_md_mem_query_v2, md, address, length, attr);
}

/* VMMLANE_STRICT: what UCX takes for reachable it uses for copies between GPUs,
 * and for nothing else; those fail when they are posted, on a mirror in which
 * nothing is mapped. Host memory has its other lanes as before. */
static bool let_through(const struct vmml_uct *uct,
                        const struct vmml_handle *handle)
{
    unsigned major, minor, release;

    if (!vmml_conf()->strict || vmml_lane_is_own(handle->nonce))
        return false;
    version_of(uct, &major, &minor, &release);
    /* UCX 1.18's get_offload.c: its GET has no way to be given up. */
    vmml_warn_once("VMMLANE_STRICT: transfers between GPUs by a key of process "
                   "%u that lost the fast lane will fail%s",
                   handle->pid,
                   major == 1 && minor == 18
                       ? ", and UCX 1.18 ends this process at the first read "
                         "(GET). Remedy: UCX 1.19 or newer"
                       : "");
    return true;
}

/* The name of a block in the key, or NULL. A UCX that was built without fabric
 * support has shorter keys. */
static const uint8_t *block_of(vmml_uct_component_h component,
                               const uint8_t *key, int offset,
                               const struct vmml_handle *handle)
{
    return (handle->flags & VMML_HANDLE_BLOCK) &&
                   vmml_module_has_fabric(component)
               ? key + offset + VMML_KEY_BLOCK
               : NULL;
}

/* How a key is to be unpacked. In registers: a hook with addressed locals could
 * not jump to the real function, whose own callees are told apart by who called
 * it. */
struct prepared {
    vmml_ucs_status_t status; /* VMML_UCS_OK also for keys that are not ours */
    bool ours;                /* UCX opens it by a call that is answered here */
    int device;
};

/* A key without a handle of ours. */
static vmml_ucs_status_t look_at_other(const struct vmml_uct *uct,
                                       const void *buffer, uint8_t sys_device)
{
    if (vmml_handle_is_foreign(buffer, VMML_HANDLE_SCAN)) {
        if (VMML_LOST(VERSION))
            vmml_warn("no fast lane by a key that another version of "
                      "vmmlane made. Remedy: " VMML_REMEDY_VERSION);
        /* The driver could make nothing of such a handle. */
        return VMML_UCS_ERR_UNREACHABLE;
    }
    /* UCX's own key: without a context its lane is lost too. */
    if (vmml_conf()->on && vmml_real() != NULL &&
        vmml_unpack_device(uct, sys_device) < 0)
        vmml_warn_no_context();
    return VMML_UCS_OK;
}

/* UCX does not notice a key of another layout: it takes other fields of it for
 * addresses, and copies by those fail (measured: 1.18.0 with fabric support and
 * any other, cudaMalloc memory too). */
static bool is_readable(const struct vmml_uct *uct,
                        vmml_uct_component_h component,
                        const struct vmml_handle *handle)
{
    uint8_t differs =
        (handle->flags ^ layout_of(uct, component)) & VMML_HANDLE_LAYOUT;

    if (differs == 0)
        return true;
    if (VMML_LOST(KEY_LAYOUT, .address = handle->base, .length = handle->size,
                  .pid = handle->pid))
        vmml_warn("no fast lane to process %u: its UCX and this one do not "
                  "read each other's keys. Remedy: %s",
                  handle->pid,
                  differs & VMML_HANDLE_FIRST_LAYOUT ? VMML_REMEDY_UCX_FIRST
                                                     : VMML_REMEDY_UCX_FABRIC);
    return false;
}

/* Can this key be opened? */
static vmml_ucs_status_t look(const struct vmml_uct *uct,
                              vmml_uct_component_h component,
                              const void *buffer, uint8_t sys_device,
                              struct prepared *prepared)
{
    struct vmml_handle handle;
    const uint8_t *block;
    int offset;
    int device;

    if (vmml_in_child || !vmml_is_cuda_ipc(component))
        return VMML_UCS_OK;
    vmml_stats_start();
    offset = vmml_handle_find(buffer, VMML_HANDLE_SCAN, &handle);
    if (offset < 0 || (handle.flags & VMML_HANDLE_IPC))
        return look_at_other(uct, buffer, sys_device);
    VMML_LOG_KEY(handle.nonce, handle.base, handle.size);
    if (!vmml_conf()->on || !vmml_conf()->share) {
        VMML_LOST(OFF, .address = handle.base, .length = handle.size,
                  .pid = handle.pid);
        return VMML_UCS_ERR_UNREACHABLE;
    }
    if (!is_readable(uct, component, &handle))
        return VMML_UCS_ERR_UNREACHABLE;
    block = block_of(component, buffer, offset, &handle);
    /* UCX opens a fabric handle itself, and that needs a context. */
    device = block != NULL ? vmml_unpack_device(uct, sys_device)
                           : vmml_unpack_device_of_ours(uct, sys_device);
    prepared->ours = block == NULL && device >= 0;
    prepared->device = device;
    if (device < 0 && vmml_real() != NULL)
        vmml_warn_no_context();
    if (vmml_mirror_prepare_key(&handle, block, device)) {
        vmml_debug("key of process %u: served", handle.pid);
        return VMML_UCS_OK;
    }
    return let_through(uct, &handle) ? VMML_UCS_OK : VMML_UCS_ERR_UNREACHABLE;
}

__attribute__((noinline)) static struct prepared
prepare(const struct vmml_uct *uct, vmml_uct_component_h component,
        const void *buffer, uint8_t sys_device)
{
    struct prepared prepared = {.ours = false};

    prepared.status = look(uct, component, buffer, sys_device, &prepared);
    return prepared;
}

/* Without a context UCX is told of one while it unpacks a key of ours: to open
 * that takes none (ucx/context.c). */
__attribute__((noinline)) static vmml_ucs_status_t unpack_ours(
    const struct vmml_uct *uct, vmml_uct_component_h component,
    const void *buffer, const struct vmml_uct_rkey_unpack_params *params,
    struct vmml_uct_rkey_bundle *bundle, bool v2, struct prepared prepared)
{
    struct vmml_scope scope = {
        .kind = VMML_SCOPE_UNPACK,
        .uct = uct,
        .device = prepared.device,
    };
    vmml_ucs_status_t status;

    vmml_scope_enter(&scope);
    status = v2 ? uct->uct_rkey_unpack_v2(component, buffer, params, bundle)
                : uct->uct_rkey_unpack(component, buffer, bundle);
    vmml_scope_leave(&scope);
    return status;
}

/* From 1.19 on the one calls the other, and may jump to it: then unpack_ours()
 * is who called. */
static const struct vmml_uct *uct_of(const void *caller)
{
    const struct vmml_scope *scope = vmml_scope;

    if (scope != NULL && scope->kind == VMML_SCOPE_UNPACK &&
        vmml_hook_caller(caller) == VMML_CALLER_SHIM)
        return scope->uct;
    return vmml_uct(caller);
}

vmml_ucs_status_t vmml_uct_rkey_unpack(const void *caller,
                                       vmml_uct_component_h component,
                                       const void *buffer,
                                       struct vmml_uct_rkey_bundle *bundle)
{
    const struct vmml_uct *uct = vmml_uct(caller);
    struct prepared prepared;

    if (uct == NULL || uct->uct_rkey_unpack == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    prepared = prepare(uct, component, buffer, VMML_UCS_SYS_DEVICE_UNKNOWN);
    if (prepared.status != VMML_UCS_OK)
        return prepared.status;
    if (prepared.ours)
        return unpack_ours(uct, component, buffer, NULL, bundle, false,
                           prepared);
    return uct->uct_rkey_unpack(component, buffer, bundle);
}

vmml_ucs_status_t
vmml_uct_rkey_unpack_v2(const void *caller, vmml_uct_component_h component,
                        const void *buffer,
                        const struct vmml_uct_rkey_unpack_params *params,
                        struct vmml_uct_rkey_bundle *bundle)
{
    const struct vmml_uct *uct = uct_of(caller);
    uint8_t sys_device = VMML_UCS_SYS_DEVICE_UNKNOWN;
    struct prepared prepared;

    if (uct == NULL || uct->uct_rkey_unpack_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    if (params != NULL &&
        (params->field_mask & VMML_UCT_UNPACK_FIELD_SYS_DEVICE))
        sys_device = params->sys_device;
    prepared = prepare(uct, component, buffer, sys_device);
    if (prepared.status != VMML_UCS_OK)
        return prepared.status;
    if (prepared.ours)
        return unpack_ours(uct, component, buffer, params, bundle, true,
                           prepared);
    return uct->uct_rkey_unpack_v2(component, buffer, params, bundle);
}

/* UCX 1.23 gives cuda_ipc up between PID namespaces before any key comes. */
int vmml_uct_iface_is_reachable_v2(
    const void *caller, vmml_uct_iface_h iface,
    const struct vmml_uct_is_reachable_params *params)
{
    static const char text[] = "different PID namespace";
    const struct vmml_uct *uct = vmml_uct(caller);
    int reachable;

    if (uct == NULL || uct->uct_iface_is_reachable_v2 == NULL)
        return 0;
    reachable = uct->uct_iface_is_reachable_v2(iface, params);
    if (!reachable && !vmml_in_child &&
        (params->field_mask & VMML_UCT_REACHABLE_FIELD_INFO_STRING) &&
        params->info_string != NULL &&
        params->info_string_length >= sizeof(text) &&
        strncmp(params->info_string, text, sizeof(text) - 1) == 0 &&
        VMML_LOST(UCX_NAMESPACE))
        vmml_warn("no fast lane to a process in another PID namespace: "
                  "this UCX does not use cuda_ipc there. "
                  "Remedy: " VMML_REMEDY_UCX_PID_NAMESPACE);
    return reachable;
}

vmml_ucs_status_t vmml_uct_rkey_ptr(const void *caller,
                                    vmml_uct_component_h component,
                                    struct vmml_uct_rkey_bundle *bundle,
                                    uint64_t remote_address,
                                    void **local_address)
{
    const struct vmml_uct *uct = vmml_uct(caller);
    vmml_ucs_status_t status;
    CUdeviceptr ptr;

    if (uct == NULL || uct->uct_rkey_ptr == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    status =
        uct->uct_rkey_ptr(component, bundle, remote_address, local_address);
    if (status != VMML_UCS_OK || local_address == NULL || vmml_in_child ||
        !vmml_is_cuda_ipc(component))
        return status;
    /* The caller may now read it without a copy that could be checked. */
    ptr = (CUdeviceptr)(uintptr_t)*local_address;
    if (!vmml_mirror_hand_out(ptr, bundle->rkey))
        return VMML_UCS_ERR_UNREACHABLE;
    *local_address = (void *)(uintptr_t)vmml_mirror_memory_at(ptr);
    return VMML_UCS_OK;
}

vmml_ucs_status_t
vmml_uct_rkey_release(const void *caller, vmml_uct_component_h component,
                      const struct vmml_uct_rkey_bundle *bundle)
{
    const struct vmml_uct *uct = vmml_uct(caller);
    uintptr_t rkey = 0;
    vmml_ucs_status_t status;

    if (uct == NULL || uct->uct_rkey_release == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    if (bundle != NULL && !vmml_in_child && vmml_is_cuda_ipc(component))
        rkey = bundle->rkey;
    status = uct->uct_rkey_release(component, bundle);
    if (rkey != 0)
        vmml_mirror_take_back(rkey);
    return status;
}
