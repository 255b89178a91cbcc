/* SPDX-License-Identifier: MIT */
/*
 * The real functions: libcuda's, and those of each UCX copy in the process.
 */
#ifndef VMML_DOORS_REAL_H
#define VMML_DOORS_REAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_abi.h"
#include "ucx/uct_abi.h"

/* Addresses in the libcuda that the process loaded. A member is NULL where
 * that libcuda has no such symbol: check the ones newer than CUDA 11.2. */
struct vmml_real {
#define VMML_CU(name, params, args) __typeof__(name) *name;
#define VMML_CU_REAL(name)          __typeof__(name) *name;
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name)
#include "hooks.def"
};

/* Addresses in the libuct and libucp that one caller is bound to. A member is
 * NULL where that copy has no such symbol. */
struct vmml_uct {
#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing) type(*name) params;
#define VMML_UCT_STUB(name)                         void (*name)(void);
#include "hooks.def"
    /* UCS's, for the device of an unpack; UCP's, for the version check. */
    vmml_ucs_status_t (*ucs_topo_get_device_bus_id)(
        uint8_t sys_device, struct vmml_ucs_bus_id *bus_id);
    void (*ucp_get_version)(unsigned *major, unsigned *minor,
                            unsigned *release);
};

extern _Atomic(const struct vmml_real *) vmml_real_found;
const struct vmml_real *vmml_real_search(void);

/*
 * The driver's own functions.
 *
 * Found on the first call, in a libcuda that is already loaded: none is ever
 * loaded by the shim. Retried at the next call when it fails. Needs neither
 * the shim's constructor nor malloc. Async-signal-unsafe; takes no lock that
 * is held across a driver call.
 *
 * Returns NULL when the process has no libcuda.
 */
static inline const struct vmml_real *vmml_real(void)
{
    const struct vmml_real *real =
        atomic_load_explicit(&vmml_real_found, memory_order_acquire);

    return __builtin_expect(real != NULL, 1) ? real : vmml_real_search();
}

/*
 * The UCX functions that the module containing `caller` is bound to: looked
 * up in that module and its own dependencies, so that several UCX copies in
 * one process each reach their own (RTLD_NEXT finds none of them when they
 * came with RTLD_LOCAL).
 *
 * Returns NULL when nothing can be found; remembers what it found.
 */
const struct vmml_uct *vmml_uct(const void *caller);

/* Error to return from a driver hook when vmml_real() or the member is NULL. */
#define VMML_CU_MISSING CUDA_ERROR_NOT_FOUND

#endif
