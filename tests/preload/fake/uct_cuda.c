/* SPDX-License-Identifier: MIT */
/* A transport module: the driver's functions by its PLT. */
#include <stddef.h>

#include "cuda_abi.h"

FAKE_EXPORT int ucs_module_global_init(void);
FAKE_EXPORT int ucs_module_global_init(void)
{
    return 0;
}

/* An export of the shim where the call went through it. */
FAKE_EXPORT void *fake_module_resolve(void);
FAKE_EXPORT void *fake_module_resolve(void)
{
    void *pfn = NULL;

    if (cuGetProcAddress_v2("cuMemMap", &pfn, 12000, 0, NULL) != CUDA_SUCCESS)
        return NULL;
    return pfn;
}
