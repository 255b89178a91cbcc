/* SPDX-License-Identifier: MIT */
/*
 * The cuMemCreate upgrade: a request without a handle type, for pinned,
 * uncompressed device memory, is made with POSIX_FD instead, so that it can be
 * shared. Only libuct_cuda and the shim can tell: properties, the
 * ALLOWED_HANDLE_TYPES attribute and export attempts of everyone else answer
 * as if the request had been left alone.
 */
#ifndef VMML_CREATE_CREATE_H
#define VMML_CREATE_CREATE_H

#include <stdbool.h>

#include "cuda_abi.h"

/* What is known of where a handle came from. Handle values are used again by
 * the driver; every call that makes one says so here. */
enum vmml_handle_origin {
    VMML_HANDLE_UNKNOWN,   /* made with a handle type, or not seen */
    VMML_HANDLE_PLAIN,     /* made here, without a handle type */
    VMML_HANDLE_UPGRADED,  /* asked for without a handle type, made with one */
    VMML_HANDLE_IMPORTED,  /* memory of another process */
    VMML_HANDLE_MULTICAST, /* no memory at all */
};

/* Cheap: no driver call, no system call. */
enum vmml_handle_origin vmml_create_origin(CUmemGenericAllocationHandle handle);

/* The shim itself imported this handle. */
void vmml_create_imported(CUmemGenericAllocationHandle handle);

/* Was this allocation upgraded? */
bool vmml_create_is_upgraded(CUmemGenericAllocationHandle handle);

/* Was the allocation mapped at `ptr` upgraded? Asks the driver for its
 * handle (retain, release); false when there is none. Costs nothing while no
 * allocation was upgraded. */
bool vmml_create_is_upgraded_at(CUdeviceptr ptr);

/* In a child of fork: locks made anew. */
void vmml_create_forget(void);

#endif
