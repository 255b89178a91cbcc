/* SPDX-License-Identifier: MIT */
/* A module that asks the driver: built as libuct_cuda, and as others. */
#ifndef ASKER_H
#define ASKER_H

#include <stddef.h>

#include "cuda_abi.h"
#include "ucx/uct_abi.h"

/* Its calls of the driver, each through its own PLT. */
struct asker {
    CUresult (*range)(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
    CUresult (*properties)(CUmemAllocationProp *prop,
                           CUmemGenericAllocationHandle handle);
    CUresult (*export_handle)(int *fd, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type);
    CUresult (*retain)(CUmemGenericAllocationHandle *handle, CUdeviceptr ptr);
    /* ALLOWED_HANDLE_TYPES, by the two calls that tell it. */
    CUresult (*types)(unsigned long long *types, CUdeviceptr ptr);
    CUresult (*types_of_many)(unsigned long long *types, CUdeviceptr ptr);
};

/* What the fake libuct is handed as a memory domain and as attributes. */
struct asker_md {
    struct vmml_uct_md md;
    const struct asker *asker;
};

struct asker_answer {
    CUresult rc;
    CUdeviceptr base;
    size_t size;
};

#endif
