/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stddef.h>

FAKE_EXPORT int cuMemUnmap(unsigned long ptr, size_t size);
FAKE_EXPORT int cuMemUnmap(unsigned long ptr, size_t size)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    int (*real)(unsigned long, size_t);

    if (driver == NULL)
        return -1;
    real = (int (*)(unsigned long, size_t))dlsym(driver, "cuMemUnmap");
    return real != NULL ? real(ptr, size) : -2;
}

FAKE_EXPORT int fake_call_unmap(void);
FAKE_EXPORT int fake_call_unmap(void)
{
    int result = cuMemUnmap(0x1000, 0x1000);

    __asm__ volatile("" : "+r"(result)); /* no tail call */
    return result;
}
