/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver API under its ELF names.
 *
 * cuda.h maps a bare name to the newest ABI (cuMemFree to cuMemFree_v2). A
 * library that stands in front of the ELF symbols needs every name as it is
 * exported, which cuda.h offers under __CUDA_API_VERSION_INTERNAL.
 */
#ifndef VMML_CUDA_ABI_H
#define VMML_CUDA_ABI_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

/* Exported by libcuda (cuGetProcAddress since CUDA 12.0), declared by cuda.h
 * for its per-thread-stream mode only. */
CUresult CUDAAPI cuGetProcAddress_v2_ptsz(
    const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
    CUdriverProcAddressQueryResult *symbolStatus);
CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream);
CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize,
                                      CUstream hStream);

#endif
