/* SPDX-License-Identifier: MIT */
/* Names that begin as the driver's do, and one that is the same. */
#define FAKE(name, result)                                                     \
    FAKE_EXPORT int name(void);                                                \
    FAKE_EXPORT int name(void)                                                 \
    {                                                                          \
        return result;                                                         \
    }

FAKE(cudnnCreate, 41)
FAKE(cublasCreate_v2, 42)
FAKE(cufftPlan1d, 43)
FAKE(cuMemMap, 44)
FAKE(cuMemGetAddressRange_v2, 45)
