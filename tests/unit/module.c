/* SPDX-License-Identifier: MIT */
/* Stands in for a libuct_cuda, with or without UCX's use of pidfd_getfd(2). */
#include <stddef.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int module_data = 1;

EXPORT const char *module_text(void);
EXPORT long module_call(long number);

#ifdef NATIVE_FD
const char *module_text(void)
{
    return "pidfd_getfd failed";
}

long module_call(long number)
{
    return syscall(number);
}
#else
const char *module_text(void)
{
    return "cuIpcGetMemHandle failed";
}

long module_call(long number)
{
    return number + getpid();
}
#endif
