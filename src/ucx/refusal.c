/* SPDX-License-Identifier: MIT */
#include "ucx/refusal.h"

#include <stdatomic.h>
#include <string.h>

#include "base/conf.h"
#include "base/driver.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/remedy.h"
#include "doors/real.h"

static atomic_bool narrow;

bool vmml_ranges_are_narrow(void)
{
    return atomic_load_explicit(&narrow, memory_order_relaxed);
}

static void copy_name(char *name, vmml_uct_component_h component)
{
    memcpy(name, component->name, sizeof(component->name));
    name[sizeof(component->name)] = '\0';
}

void vmml_domain_queried(vmml_uct_component_h component,
                         const struct vmml_uct_md_attr_v2 *attr)
{
    char name[sizeof(component->name) + 1];

    if (component == NULL || attr->field_mask != UINT64_MAX ||
        (attr->flags & VMML_UCT_MD_FLAG_REG_DMABUF) ||
        !(attr->reg_mem_types & VMML_UCS_MEMORY_TYPES_CUDA) ||
        !(attr->cache_mem_types & VMML_UCS_MEMORY_TYPES_CUDA) ||
        atomic_exchange_explicit(&narrow, true, memory_order_relaxed))
        return;
    copy_name(name, component);
    vmml_info("UCX's %s registers GPU memory without dmabuf: a request inside "
              "one chunk is answered with that chunk",
              name);
}

/* Does [address, address + length) lie in one mapping? */
static bool is_in_one(const struct vmml_real *real, CUdeviceptr address,
                      size_t length)
{
    CUdeviceptr base;
    size_t size;

    return real->cuMemGetAddressRange_v2(&base, &size, address) ==
               CUDA_SUCCESS &&
           address >= base && length <= size && address - base <= size - length;
}

static bool could_be_pinned(const struct vmml_real *real, int ordinal)
{
    CUdevice device;
    int value = 0;

    return real->cuDeviceGet(&device, ordinal) == CUDA_SUCCESS &&
           real->cuDeviceGetAttribute(
               &value,
               CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
               device) == CUDA_SUCCESS &&
           value != 0;
}

static void explain(const struct vmml_real *real,
                    vmml_uct_component_h component, CUdeviceptr address,
                    size_t length)
{
    char name[sizeof(component->name) + 1];
    CUmemAllocationProp prop;

    if (vmml_properties_at(real, address, &prop) != CUDA_SUCCESS ||
        prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return;
    copy_name(name, component);
    if (!prop.allocFlags.gpuDirectRDMACapable &&
        could_be_pinned(real, prop.location.id))
        vmml_warn_once("UCX's %s did not register 0x%lx+0x%lx, which was "
                       "allocated without gpuDirectRDMACapable. "
                       "Remedy: " VMML_REMEDY_RDMA_FLAG,
                       name, (unsigned long)address, (unsigned long)length);
    else if (!is_in_one(real, address, length))
        vmml_warn_once("UCX's %s did not register 0x%lx+0x%lx, which lies in "
                       "several chunks. Remedy: " VMML_REMEDY_SEVERAL_CHUNKS,
                       name, (unsigned long)address, (unsigned long)length);
}

void vmml_registration_refused(vmml_uct_component_h component,
                               const void *address, size_t length)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_relaxed relaxed;

    if (component == NULL || real == NULL || vmml_in_child || !vmml_conf()->on)
        return;
    vmml_relax(real, &relaxed);
    explain(real, component, (uintptr_t)address, length);
    vmml_relax_end(real, &relaxed);
}
