/* SPDX-License-Identifier: MIT */
/* Calls hooks before main, and before every constructor that is not a
 * dependency's. */
#include <dlfcn.h>
#include <stddef.h>

#include "cuda_abi.h"

FAKE_EXPORT int fake_constructor_result = -1;
FAKE_EXPORT void *fake_constructor_found;

__attribute__((constructor)) static void fake_constructor(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    size_t size = 0;

    if (driver != NULL)
        fake_constructor_found = dlsym(driver, "cuMemUnmap");
    fake_constructor_result = cuMemGetAddressRange_v2(NULL, &size, 0x5000);
    if (size != 0x1000)
        fake_constructor_result = -2;
}
