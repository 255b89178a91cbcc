/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"

vmml_ucs_status_t vmml_uct_md_mem_reg_v2 VMML_WITH_CALLER((vmml_uct_md_h md, void *address, size_t length, const void *params, vmml_uct_mem_h *memh))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_reg_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_md_mem_reg_v2(md, address, length, params, memh);
}

vmml_ucs_status_t vmml_uct_md_mem_dereg VMML_WITH_CALLER((vmml_uct_md_h md, vmml_uct_mem_h memh))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_dereg == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_md_mem_dereg(md, memh);
}

vmml_ucs_status_t vmml_uct_md_mem_dereg_v2 VMML_WITH_CALLER((vmml_uct_md_h md, const struct vmml_uct_mem_dereg_params *params))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_dereg_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_md_mem_dereg_v2(md, params);
}

vmml_ucs_status_t vmml_uct_md_mkey_pack_v2 VMML_WITH_CALLER((vmml_uct_md_h md, vmml_uct_mem_h memh, void *address, size_t length, const void *params, void *buffer))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mkey_pack_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_md_mkey_pack_v2(md, memh, address, length, params, buffer);
}

vmml_ucs_status_t vmml_uct_md_mem_query VMML_WITH_CALLER((vmml_uct_md_h md, const void *address, size_t length, void *attr))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_query == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_md_mem_query(md, address, length, attr);
}

vmml_ucs_status_t vmml_uct_md_mem_query_v2 VMML_WITH_CALLER((vmml_uct_md_h md, const void *address, size_t length, void *attr))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_md_mem_query_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_md_mem_query_v2(md, address, length, attr);
}

vmml_ucs_status_t vmml_uct_rkey_unpack VMML_WITH_CALLER((vmml_uct_component_h component, const void *buffer, struct vmml_uct_rkey_bundle *bundle))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_rkey_unpack == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_rkey_unpack(component, buffer, bundle);
}

vmml_ucs_status_t vmml_uct_rkey_unpack_v2 VMML_WITH_CALLER((vmml_uct_component_h component, const void *buffer, const struct vmml_uct_rkey_unpack_params *params, struct vmml_uct_rkey_bundle *bundle))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_rkey_unpack_v2 == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_rkey_unpack_v2(component, buffer, params, bundle);
}

vmml_ucs_status_t vmml_uct_rkey_ptr VMML_WITH_CALLER((vmml_uct_component_h component, struct vmml_uct_rkey_bundle *bundle, uint64_t remote_address, void **local_address))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_rkey_ptr == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_rkey_ptr(component, bundle, remote_address, local_address);
}

vmml_ucs_status_t vmml_uct_rkey_release VMML_WITH_CALLER((vmml_uct_component_h component, const struct vmml_uct_rkey_bundle *bundle))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->uct_rkey_release == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->uct_rkey_release(component, bundle);
}
