/* SPDX-License-Identifier: MIT */
/*
 * Stands in for UCX in the measurements of what vmmlane adds to it: a module
 * under the name of libuct_cuda and a libuct that calls it, which do the driver
 * calls of UCX 1.22 (src/uct/cuda/cuda_ipc/cuda_ipc_md.c) and nothing else.
 */
#ifndef VMML_TESTS_BENCH_MODULE_H
#define VMML_TESTS_BENCH_MODULE_H

#include <cuda.h>
#include <stdint.h>

#include "ucx/uct_abi.h"

#define BENCH_KEY 256 /* bytes of a key that may be read */

struct bench_module {
    vmml_uct_md_h ipc_md;  /* of cuda_ipc */
    vmml_uct_md_h copy_md; /* of cuda_copy */
    CUresult (*range)(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
    CUresult (*copy)(CUdeviceptr dst, CUdeviceptr src, size_t length,
                     CUstream stream);
    /* The same past vmmlane, once *real is the driver's own function. */
    CUresult (*copy_real)(CUdeviceptr dst, CUdeviceptr src, size_t length,
                          CUstream stream);
    void **real;
    /* What a key is made of. */
    CUresult (*material)(uint8_t key[BENCH_KEY], CUdeviceptr ptr);
    CUresult (*open)(CUdeviceptr *ptr, const uint8_t key[BENCH_KEY]);
    /* dlsym of this module: the driver's own for one named libucm. */
    void *(*symbol)(const char *name);
};

/* Behind the memory domains of this module. */
struct bench_md {
    struct vmml_uct_cuda_ipc_md super;
    const struct bench_module *module;
};

struct bench_range {
    CUresult result;
    CUdeviceptr base;
    size_t size;
};

/* libuct's, as UCX declares them. */
vmml_ucs_status_t uct_md_mem_reg_v2(vmml_uct_md_h md, void *address,
                                    size_t length, const void *params,
                                    vmml_uct_mem_h *memh);
vmml_ucs_status_t
uct_md_mem_dereg_v2(vmml_uct_md_h md,
                    const struct vmml_uct_mem_dereg_params *params);
vmml_ucs_status_t uct_md_mkey_pack_v2(vmml_uct_md_h md, vmml_uct_mem_h memh,
                                      void *address, size_t length,
                                      const void *params, void *buffer);
vmml_ucs_status_t uct_md_mem_query(vmml_uct_md_h md, const void *address,
                                   size_t length, void *range);
vmml_ucs_status_t
uct_rkey_unpack_v2(vmml_uct_component_h component, const void *buffer,
                   const struct vmml_uct_rkey_unpack_params *params,
                   struct vmml_uct_rkey_bundle *bundle);
/* The same, past vmmlane. */
typedef vmml_ucs_status_t
bench_unpack_fn(vmml_uct_component_h component, const void *buffer,
                const struct vmml_uct_rkey_unpack_params *params,
                struct vmml_uct_rkey_bundle *bundle);
extern bench_unpack_fn *const bench_unpack;
vmml_ucs_status_t uct_rkey_release(vmml_uct_component_h component,
                                   const struct vmml_uct_rkey_bundle *bundle);

#endif
