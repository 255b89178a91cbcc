/* SPDX-License-Identifier: MIT */
/*
 * Driver calls that the shim makes on its own account.
 */
#ifndef VMML_BASE_DRIVER_H
#define VMML_BASE_DRIVER_H

#include <stdbool.h>

#include "doors/real.h"

/*
 * Around driver work: the thread's stream-capture mode is RELAXED, so that a
 * graph capture of another thread in global mode is not invalidated (driver
 * documentation, cuThreadExchangeStreamCaptureMode).
 */
struct vmml_relaxed {
    CUstreamCaptureMode mode;
    bool exchanged;
};

void vmml_relax(const struct vmml_real *real, struct vmml_relaxed *relaxed);
void vmml_relax_end(const struct vmml_real *real,
                    const struct vmml_relaxed *relaxed);

/*
 * Release a handle that the shim took. One that the driver does not release is
 * kept, and tried again with the next: it would hold its memory for ever.
 */
void vmml_release(const struct vmml_real *real,
                  CUmemGenericAllocationHandle handle);

/*
 * Make the primary context of `device` current, if it is active; none is made.
 * False when it is not: nothing was pushed. vmml_pop_primary() undoes it.
 */
bool vmml_push_primary(const struct vmml_real *real, CUdevice device);
void vmml_pop_primary(const struct vmml_real *real, CUdevice device);

/* The primary context of `device` where it is active, else NULL. It is not
 * retained: the application keeps it. */
CUcontext vmml_active_primary(const struct vmml_real *real, CUdevice device);

/* Make the context current that was so before the last push. */
void vmml_pop_context(const struct vmml_real *real);

/* One pointer attribute of the type of *value. */
#define vmml_attribute(real, value, attribute, ptr)                            \
    ((real)->cuPointerGetAttribute(value, attribute, ptr))

/* BUFFER_ID of the mapping at `ptr`; 0 when nothing is mapped there, or when
 * the driver failed twice to say so. */
unsigned long long vmml_buffer_id(const struct vmml_real *real,
                                  CUdeviceptr ptr);

/*
 * What cuMemCreate was asked for the memory at `ptr`. INVALID_VALUE where no
 * memory of it is mapped (measured), and only there.
 */
CUresult vmml_properties_at(const struct vmml_real *real, CUdeviceptr ptr,
                            CUmemAllocationProp *prop);

/* The mapping around `ptr`. Like all attributes it needs no current context;
 * cuMemGetAddressRange does, and one whose device has access. */
CUresult vmml_mapping_at(const struct vmml_real *real, CUdeviceptr ptr,
                         CUdeviceptr *base, size_t *size);

/* One mapping, and the memory behind it. */
struct vmml_described {
    unsigned long long buffer_id;
    CUdeviceptr base; /* of the mapping */
    size_t size;
    int device;
    unsigned long long handle_types; /* as requested; 0: none, or not known */
    /* Of vmml_describe_all() alone. */
    CUdeviceptr reservation_base;
    size_t reservation_size;
};

/*
 * What is mapped at `ptr`, by one call where the driver has
 * cuPointerGetAttributes. INVALID_VALUE where nothing is (measured).
 *
 * Nothing says that the answers are of one moment. Where a second call, made
 * after the first, gives the same BUFFER_ID, which is of one mapping for ever,
 * what it gives is true of that mapping, if it is still there.
 */
CUresult vmml_describe(const struct vmml_real *real, CUdeviceptr ptr,
                       struct vmml_described *described);
CUresult vmml_describe_all(const struct vmml_real *real, CUdeviceptr ptr,
                           struct vmml_described *described);

/* Has the device access to the memory at `ptr`? */
CUresult vmml_access_at(const struct vmml_real *real, CUdeviceptr ptr,
                        CUdevice device, bool *access);

/* The GPU's UUID. */
CUresult vmml_device_uuid(const struct vmml_real *real, CUdevice device,
                          CUuuid *uuid);

#endif
