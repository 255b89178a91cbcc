/* SPDX-License-Identifier: MIT */
#include "doors/real.h"
#include "hooks.h"

CUresult vmml_cuGetProcAddress VMML_WITH_CALLER((const char *symbol, void **pfn, int version, cuuint64_t flags))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuGetProcAddress == NULL)
        return VMML_CU_MISSING;
    return real->cuGetProcAddress(symbol, pfn, version, flags);
}

CUresult vmml_cuGetProcAddress_v2 VMML_WITH_CALLER((const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuGetProcAddress_v2 == NULL)
        return VMML_CU_MISSING;
    return real->cuGetProcAddress_v2(symbol, pfn, version, flags, status);
}

CUresult vmml_cuGetProcAddress_v2_ptsz VMML_WITH_CALLER((const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status))
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuGetProcAddress_v2_ptsz == NULL)
        return VMML_CU_MISSING;
    return real->cuGetProcAddress_v2_ptsz(symbol, pfn, version, flags, status);
}
