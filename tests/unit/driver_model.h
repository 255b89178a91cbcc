/* SPDX-License-Identifier: MIT */
/*
 * A small model of the driver's VMM calls for unit tests, in the place of
 * doors/real.c: what vmml_real(), vmml_conf() and vmml_hook_caller() answer is
 * defined here. Answers are those measured on a real driver; no memory is
 * behind them. Thread-safe.
 */
#ifndef VMML_TESTS_DRIVER_MODEL_H
#define VMML_TESTS_DRIVER_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/conf.h"
#include "cuda_abi.h"
#include "doors/caller.h"

#define MODEL_GRANULE  ((size_t)2 << 20)
#define MODEL_BASE     0x7f0000000000ull
#define MODEL_GRANULES 16384u
#define MODEL_DEVICES  2

/* Every function of the model. */
#define MODEL_FUNCTIONS(X)                                                     \
    X(cuMemGetAddressRange_v2)                                                 \
    X(cuPointerGetAttribute)                                                   \
    X(cuPointerGetAttributes)                                                  \
    X(cuMemRetainAllocationHandle)                                             \
    X(cuMemGetAllocationPropertiesFromHandle)                                  \
    X(cuMemGetAccess)                                                          \
    X(cuMemRelease)                                                            \
    X(cuMemCreate)                                                             \
    X(cuMemImportFromShareableHandle)                                          \
    X(cuMulticastCreate)                                                       \
    X(cuMemExportToShareableHandle)                                            \
    X(cuDriverGetVersion)                                                      \
    X(cuDeviceGet)                                                             \
    X(cuDeviceGetAttribute)

enum model_function {
#define MODEL_NUMBER(name) MODEL_##name,
    MODEL_FUNCTIONS(MODEL_NUMBER)
#undef MODEL_NUMBER
        MODEL_FUNCTION_COUNT
};

/* Everything as new: no memory, no calls counted, default settings. */
void model_reset(void);

/* Settings, and the class of every caller, from now on. */
extern struct vmml_conf model_conf;
extern enum vmml_caller model_caller;

/* Driver: version as cuDriverGetVersion tells it, POSIX_FD support. */
extern int model_version;
extern int model_posix_fd;
/* Error of cuMemCreate for requests with a handle type; CUDA_SUCCESS: none. */
extern CUresult model_refuse_types;

/* Handle types that imported memory and multicast objects show; 0: none, and no
 * properties of multicast objects, as measured. */
extern unsigned long long model_foreign_types;

/* Calls of one function, or of all, since model_reset(). */
unsigned model_calls(enum model_function function);
unsigned model_all_calls(void);

/* The next cuPointerGetAttributes gives the RANGE_SIZE of an earlier
 * reservation, of one granule: its answers are not of one moment. */
extern bool model_torn;

/* The n-th call (1: the next) of a function fails with `error`; all that
 * follow too, if `sticky`. */
void model_fail(enum model_function function, unsigned n, CUresult error,
                bool sticky);

/* Called after the driver's work and before its return, without a lock. */
extern void (*model_after)(enum model_function function, CUdeviceptr ptr);

/* Memory. Addresses and sizes in granules from MODEL_BASE. */
CUdeviceptr model_address(unsigned granule);
void model_reserve(unsigned granule, unsigned count);
void model_unreserve(unsigned granule);

CUmemAllocationProp model_prop(int device, unsigned long long handle_types);
CUmemGenericAllocationHandle model_make(unsigned granules,
                                        const CUmemAllocationProp *prop);
void model_release(CUmemGenericAllocationHandle handle);
/* cuMemMap without access, then cuMemSetAccess. */
void model_map(unsigned granule, CUmemGenericAllocationHandle handle);
void model_access(unsigned granule, unsigned count, int device,
                  CUmemAccess_flags flags);
void model_unmap(unsigned granule, unsigned count);
/* cuMemAlloc. */
void model_alloc(unsigned granule, unsigned count);

/* Handles that are alive, and the references held on one. */
unsigned model_live_handles(void);
unsigned model_references(CUmemGenericAllocationHandle handle);
/* The properties as the driver has them. */
CUmemAllocationProp model_real_prop(CUmemGenericAllocationHandle handle);
/* The properties of the last cuMemCreate that reached the driver. */
extern CUmemAllocationProp model_last_prop;
extern unsigned long long model_last_flags;
extern size_t model_last_size;

#endif
