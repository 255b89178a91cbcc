/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"
#include "order/order.h"

CUresult vmml_cuStreamCreate VMML_WITH_CALLER((CUstream * stream,
                                               unsigned flags))
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    if (real == NULL || real->cuStreamCreate == NULL)
        return VMML_CU_MISSING;
    result = real->cuStreamCreate(stream, flags);
    if (result == CUDA_SUCCESS)
        vmml_order_stream_begins(*stream);
    return result;
}

CUresult vmml_cuStreamCreateWithPriority VMML_WITH_CALLER((CUstream * stream,
                                                           unsigned flags,
                                                           int priority))
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    if (real == NULL || real->cuStreamCreateWithPriority == NULL)
        return VMML_CU_MISSING;
    result = real->cuStreamCreateWithPriority(stream, flags, priority);
    if (result == CUDA_SUCCESS)
        vmml_order_stream_begins(*stream);
    return result;
}

/* Whoever ends it: a stream that was never tracked costs one look-up. */
CUresult vmml_cuStreamDestroy_v2 VMML_WITH_CALLER((CUstream stream))
{
    const struct vmml_real *real = vmml_real();
    CUresult result;

    if (real == NULL || real->cuStreamDestroy_v2 == NULL)
        return VMML_CU_MISSING;
    result = vmml_order_stream_ends(stream);
    return result == CUDA_SUCCESS ? real->cuStreamDestroy_v2(stream) : result;
}

/* Counted after the real call: what UCX posts while it flushes lies before the
 * fence. */
vmml_ucs_status_t
    vmml_ucp_worker_fence VMML_WITH_CALLER((vmml_ucp_worker_h worker))
{
    const struct vmml_uct *uct = vmml_uct(caller);
    vmml_ucs_status_t status;

    if (uct == NULL || uct->ucp_worker_fence == NULL)
        return VMML_UCS_ERR_UNSUPPORTED;
    status = uct->ucp_worker_fence(worker);
    vmml_order_fence();
    return status;
}
