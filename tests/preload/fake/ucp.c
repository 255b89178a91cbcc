/* SPDX-License-Identifier: MIT */
#include <stddef.h>

#include "fake_ucx.h"
#include "ucx/uct_abi.h"

#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing) extern type name params;
#define VMML_UCT_STUB(name)                         extern fake_ucx_elem_pack_fn name;
#include "hooks.def"

FAKE_EXPORT vmml_ucs_status_t ucp_worker_fence(vmml_ucp_worker_h worker)
{
    return FAKE_UCX_RESULT(FAKE_COPY, FAKE_UCX_FENCE);
}

FAKE_EXPORT void ucp_get_version(unsigned *major, unsigned *minor,
                                 unsigned *release);
FAKE_EXPORT void ucp_get_version(unsigned *major, unsigned *minor,
                                 unsigned *release)
{
    *major = 1;
    *minor = FAKE_COPY == 1 ? 22 : 18;
    *release = 0;
}

/* Of no kind that the lane serves. */
static const struct vmml_uct_component fake_component = {"fake"};
static struct vmml_uct_md fake_md = {NULL, &fake_component};

FAKE_EXPORT fake_ucx_ask_fn fake_ucx_ask;
FAKE_EXPORT int fake_ucx_ask(enum fake_ucx_function function)
{
    struct vmml_uct_rkey_unpack_params params = {0, 0};
    struct vmml_uct_rkey_bundle bundle = {0, NULL, NULL};
    static char buffer[256];
    vmml_uct_mem_h memh;

    switch (function) {
    case FAKE_UCX_REG:
        return uct_md_mem_reg_v2(&fake_md, buffer, 1, NULL, &memh);
    case FAKE_UCX_QUERY:
        return uct_md_mem_query(&fake_md, buffer, 1, NULL);
    case FAKE_UCX_PACK:
        return uct_md_mkey_pack_v2(&fake_md, NULL, buffer, 1, NULL, buffer);
    case FAKE_UCX_UNPACK:
        return uct_rkey_unpack(&fake_component, buffer, &bundle);
    case FAKE_UCX_UNPACK_V2:
        return uct_rkey_unpack_v2(&fake_component, buffer, &params, &bundle);
    case FAKE_UCX_QUERY_V2:
        return uct_md_mem_query_v2(&fake_md, buffer, 1, NULL);
    case FAKE_UCX_RELEASE:
        return uct_rkey_release(&fake_component, &bundle);
    case FAKE_UCX_FENCE:
        return ucp_worker_fence(NULL);
    }
    return -1;
}

FAKE_EXPORT fake_ucx_elem_fn fake_ucx_elem;
FAKE_EXPORT long fake_ucx_elem(void)
{
    /* The shim looks at the memory domain, so that it has to be one; it counts
     * as 1 in the sum. Errors are small. */
    long md = (long)&fake_md;
    long sum = uct_md_mem_elem_pack(md, 2, 3, 4, 5, 6, 7, 8, 9, 10., 11., 12.,
                                    13., 14., 15., 16., 17., 18.);

    return sum < md ? sum : sum - md + 1;
}
