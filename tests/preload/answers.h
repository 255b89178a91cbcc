/* SPDX-License-Identifier: MIT */
/* The doors to the driver, and the functions that are called through them. */
#ifndef PRELOAD_ANSWERS_H
#define PRELOAD_ANSWERS_H

#include "cuda_abi.h"

/* Exported name, and the name that cuGetProcAddress is asked for. */
#define DOOR_FUNCTIONS(X)                                                      \
    X(cuMemGetAddressRange_v2, "cuMemGetAddressRange")                         \
    X(cuPointerGetAttribute, "cuPointerGetAttribute")                          \
    X(cuPointerGetAttributes, "cuPointerGetAttributes")                        \
    X(cuDeviceGetUuid, "cuDeviceGetUuid")                                      \
    X(cuDeviceGetUuid_v2, "cuDeviceGetUuid")                                   \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle")                                  \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle")                             \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle")                              \
    X(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync")                               \
    X(cuStreamCreate, "cuStreamCreate")                                        \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority")                \
    X(cuStreamDestroy_v2, "cuStreamDestroy")                                   \
    X(cuMemMap, "cuMemMap")                                                    \
    X(cuMemUnmap, "cuMemUnmap")                                                \
    X(cuMemSetAccess, "cuMemSetAccess")                                        \
    X(cuMemAddressFree, "cuMemAddressFree")                                    \
    X(cuMemCreate, "cuMemCreate")                                              \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")        \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle")            \
    X(cuMemGetAllocationPropertiesFromHandle,                                  \
      "cuMemGetAllocationPropertiesFromHandle")

#define DOOR_MEMBER(function, base) __typeof__(function) *function;

struct doors {
    const char *name;
    DOOR_FUNCTIONS(DOOR_MEMBER)
};

enum door {
    DOOR_ELF,
    DOOR_DLSYM,
    DOOR_PROCADDR,
    DOOR_PROCADDR_V2,
    DOOR_PROCADDR_V2_PTSZ,
    DOOR_COUNT
};

/* Fills in `doors`, or ends the program. */
void answers_open_door(struct doors *doors, enum door door);

#endif
