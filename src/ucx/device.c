/* SPDX-License-Identifier: MIT */
#include "ucx/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/remedy.h"
#include "stats/count.h"

static bool attribute(const struct vmml_real *real, CUdevice_attribute name,
                      CUdevice device, unsigned *value)
{
    int answer = 0;

    if (real->cuDeviceGetAttribute(&answer, name, device) != CUDA_SUCCESS)
        return false;
    *value = (unsigned)answer;
    return true;
}

static bool is_at(const struct vmml_real *real, CUdevice device,
                  const struct vmml_ucs_bus_id *id)
{
    unsigned domain, bus, slot;

    return attribute(real, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device,
                     &domain) &&
           attribute(real, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device, &bus) &&
           attribute(real, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device, &slot) &&
           domain == id->domain && bus == id->bus && slot == id->slot;
}

static int find_device(const struct vmml_real *real, const struct vmml_uct *uct,
                       uint8_t sys_device)
{
    struct vmml_ucs_bus_id id;
    CUdevice device;
    int count = 0;
    int i;

    if (uct->ucs_topo_get_device_bus_id(sys_device, &id) != VMML_UCS_OK ||
        real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return -1;
    for (i = 0; i < count; i++)
        if (real->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
            is_at(real, device, &id))
            return device;
    return -1;
}

/*
 * Asked for with each key: found devices are remembered, since neither UCS's
 * index of one nor its place on the bus changes. An entry is the copy of UCX
 * that it is of, and then what was found plus 1 for each index of that.
 */
#define TOPOLOGIES 8

static struct {
    _Atomic(const struct vmml_uct *) uct;
    _Atomic uint16_t devices[VMML_UCS_SYS_DEVICE_UNKNOWN];
} topologies[TOPOLOGIES];

/* NULL: no place is left. */
static _Atomic uint16_t *known_devices(const struct vmml_uct *uct)
{
    size_t i;

    for (i = 0; i < TOPOLOGIES; i++) {
        const struct vmml_uct *none = NULL;

        if (atomic_load(&topologies[i].uct) == uct ||
            atomic_compare_exchange_strong(&topologies[i].uct, &none, uct) ||
            none == uct)
            return topologies[i].devices;
    }
    return NULL;
}

static int device_of(const struct vmml_real *real, const struct vmml_uct *uct,
                     uint8_t sys_device)
{
    _Atomic uint16_t *known;
    int device;

    if (sys_device == VMML_UCS_SYS_DEVICE_UNKNOWN ||
        uct->ucs_topo_get_device_bus_id == NULL)
        return -1;
    known = known_devices(uct);
    if (known != NULL && atomic_load(&known[sys_device]) != 0)
        return atomic_load(&known[sys_device]) - 1;
    device = find_device(real, uct, sys_device);
    if (known != NULL && device >= 0 && device < UINT16_MAX)
        atomic_store(&known[sys_device], (uint16_t)(device + 1));
    return device;
}

static int first_active(const struct vmml_real *real)
{
    CUdevice device;
    unsigned flags;
    int active;
    int count = 0;
    int i;

    if (real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return -1;
    for (i = 0; i < count; i++)
        if (real->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
            real->cuDevicePrimaryCtxGetState(device, &flags, &active) ==
                CUDA_SUCCESS &&
            active)
            return device;
    return -1;
}

static int current_or_active(const struct vmml_real *real)
{
    CUdevice device;

    return real->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device
                                                         : first_active(real);
}

int vmml_unpack_device(const struct vmml_uct *uct, uint8_t sys_device)
{
    const struct vmml_real *real = vmml_real();
    int found;

    if (real == NULL)
        return -1;
    found = device_of(real, uct, sys_device);
    return found >= 0 ? found : current_or_active(real);
}

/* The driver's count does not change once it is initialised. Returns -1 where
 * there are several, or none is known. */
static int only_device(const struct vmml_real *real)
{
    static _Atomic int known;
    int count = atomic_load(&known);

    if (count == 0) {
        if (real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
            return -1;
        atomic_store(&known, count);
    }
    return count == 1 ? 0 : -1;
}

int vmml_unpack_device_of_ours(const struct vmml_uct *uct, uint8_t sys_device)
{
    const struct vmml_real *real = vmml_real();
    CUdevice device;
    int found;

    if (real == NULL)
        return -1;
    found = device_of(real, uct, sys_device);
    if (found < 0)
        found = only_device(real);
    if (found < 0)
        found = current_or_active(real);
    if (found < 0 && real->cuDeviceGet(&device, 0) == CUDA_SUCCESS)
        found = device;
    return found;
}

void vmml_warn_no_context(void)
{
    if (VMML_LOST(NO_CONTEXT_YET))
        vmml_warn("no CUDA context when a key arrived: UCX cannot use cuda_ipc "
                  "for this endpoint, for any kind of memory that vmmlane does "
                  "not serve. Remedy: " VMML_REMEDY_CONTEXT);
}
