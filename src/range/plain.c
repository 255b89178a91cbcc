/* SPDX-License-Identifier: MIT */
/*
 * The plain driver's behaviour, for builds without range queries and upgrade.
 */
#include "create/create.h"
#include "doors/real.h"
#include "range/range.h"

#define WEAK __attribute__((weak))

WEAK CUresult vmml_range_answer(CUdeviceptr *base, size_t *size,
                                CUdeviceptr ptr,
                                const struct vmml_range_request *request)
{
    const struct vmml_real *real = vmml_real();

    (void)request;
    return real->cuMemGetAddressRange_v2(base, size, ptr);
}

WEAK void vmml_range_touched(CUdeviceptr ptr, size_t size)
{
    (void)ptr;
    (void)size;
}

WEAK void vmml_range_forget(void)
{
}

WEAK bool vmml_create_is_upgraded(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    return false;
}

WEAK bool vmml_create_is_upgraded_at(CUdeviceptr ptr)
{
    (void)ptr;
    return false;
}

WEAK void vmml_create_forget(void)
{
}
