/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"

CUresult vmml_cuStreamDestroy_v2 VMML_WITH_CALLER((CUstream stream))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuStreamDestroy_v2 == NULL)
        return VMML_CU_MISSING;
    return real->cuStreamDestroy_v2(stream);
}

vmml_ucs_status_t vmml_ucp_worker_fence VMML_WITH_CALLER((vmml_ucp_worker_h worker))
{
    const struct vmml_uct *uct = vmml_uct(caller);

    if (uct == NULL || uct->ucp_worker_fence == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    return uct->ucp_worker_fence(worker);
}
