/* SPDX-License-Identifier: MIT */
/*
 * cuGetProcAddress in its three forms. The driver answers first, so that
 * version, stream mode and names that are newer than the shim are its
 * business; only a pointer that is exactly a hooked function's is replaced,
 * the resolvers' own included.
 */
#include <errno.h>
#include <stddef.h>

#include "doors/doors.h"
#include "doors/real.h"
#include "hooks.h"

static CUresult vmml_procaddr(CUresult result, void **pfn, const void *caller)
{
    int saved_errno = errno;

    if (result == CUDA_SUCCESS && pfn != NULL && *pfn != NULL &&
        !vmml_door_exempt(caller))
        *pfn = vmml_door_replace(*pfn);
    errno = saved_errno;
    return result;
}

CUresult vmml_cuGetProcAddress(const void *caller, const char *symbol,
                               void **pfn, int version, cuuint64_t flags)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuGetProcAddress == NULL)
        return VMML_CU_MISSING;
    return vmml_procaddr(real->cuGetProcAddress(symbol, pfn, version, flags),
                         pfn, caller);
}

CUresult vmml_cuGetProcAddress_v2(const void *caller, const char *symbol,
                                  void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuGetProcAddress_v2 == NULL)
        return VMML_CU_MISSING;
    return vmml_procaddr(
        real->cuGetProcAddress_v2(symbol, pfn, version, flags, status), pfn,
        caller);
}

CUresult vmml_cuGetProcAddress_v2_ptsz(const void *caller, const char *symbol,
                                       void **pfn, int version,
                                       cuuint64_t flags,
                                       CUdriverProcAddressQueryResult *status)
{
    const struct vmml_real *real = vmml_real();

    if (real == NULL || real->cuGetProcAddress_v2_ptsz == NULL)
        return VMML_CU_MISSING;
    return vmml_procaddr(
        real->cuGetProcAddress_v2_ptsz(symbol, pfn, version, flags, status),
        pfn, caller);
}
