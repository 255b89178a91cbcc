/* SPDX-License-Identifier: MIT */
/* Linked with the driver, and with a library whose constructor called it. */
#include "preload.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"

extern int fake_constructor_result;
extern void *fake_constructor_found;

int main(int argc, char **argv)
{
    CUdeviceptr base = 0;
    Dl_info info;

    CHECK_INT(fake_constructor_result, CUDA_SUCCESS);
    CHECK(fake_constructor_found != NULL);
    CHECK(dladdr(fake_constructor_found, &info) != 0);
    CHECK(strstr(info.dli_fname, "libvmmlane") != NULL);
    CHECK_INT(cuMemGetAddressRange_v2(&base, NULL, 0x7123), CUDA_SUCCESS);
    CHECK_INT(base, 0x7000);
    environ = NULL;
    CHECK_INT(cuMemGetAddressRange_v2(&base, NULL, 0x8123), CUDA_SUCCESS);
    CHECK_INT(base, 0x8000);
    return 0;
}
