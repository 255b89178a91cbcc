/* SPDX-License-Identifier: MIT */
/* A libuct that does no more than it must. UCT_V2: one of 1.22 or newer. */
#include "module.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define OK        VMML_UCS_OK
#define NO_MEMORY (-4)
#define IO_ERROR  (-3)

struct memory {
    bool has_key;
    uint8_t key[BENCH_KEY];
};

static const struct bench_module *module_of(vmml_uct_md_h md)
{
    return ((const struct bench_md *)md)->module;
}

EXPORT vmml_ucs_status_t uct_md_mem_reg_v2(vmml_uct_md_h md, void *address,
                                           size_t length, const void *params,
                                           vmml_uct_mem_h *memh)
{
    struct memory *memory = malloc(sizeof(*memory));

    if (memory == NULL)
        return NO_MEMORY;
    memory->has_key = false;
    *memh = memory;
    return OK;
}

EXPORT vmml_ucs_status_t uct_md_mem_dereg_v2(
    vmml_uct_md_h md, const struct vmml_uct_mem_dereg_params *params)
{
    free(params->memh);
    return OK;
}

/* As the devices of the driver that does nothing are. */
EXPORT vmml_ucs_status_t ucs_topo_get_device_bus_id(uint8_t sys_device,
                                                    struct vmml_ucs_bus_id *id);
EXPORT vmml_ucs_status_t ucs_topo_get_device_bus_id(uint8_t sys_device,
                                                    struct vmml_ucs_bus_id *id)
{
    *id = (struct vmml_ucs_bus_id){.domain = 1, .bus = 1, .slot = 1};
    return OK;
}

/* Key material is made at the first pack. */
EXPORT vmml_ucs_status_t uct_md_mkey_pack_v2(vmml_uct_md_h md,
                                             vmml_uct_mem_h memh, void *address,
                                             size_t length, const void *params,
                                             void *buffer)
{
    struct memory *memory = memh;

    if (!memory->has_key &&
        module_of(md)->material(memory->key, (CUdeviceptr)address) !=
            CUDA_SUCCESS)
        return IO_ERROR;
    memory->has_key = true;
    memcpy(buffer, memory->key, sizeof(memory->key));
    return OK;
}

static vmml_ucs_status_t query(vmml_uct_md_h md, const void *address,
                               void *range)
{
    struct bench_range *answer = range;

    answer->result = module_of(md)->range(&answer->base, &answer->size,
                                          (CUdeviceptr)address);
    return OK;
}

EXPORT vmml_ucs_status_t uct_md_mem_query(vmml_uct_md_h md, const void *address,
                                          size_t length, void *range)
{
    return query(md, address, range);
}

#ifdef UCT_V2
EXPORT vmml_ucs_status_t uct_md_mem_query_v2(vmml_uct_md_h md,
                                             const void *address, size_t length,
                                             void *range);
EXPORT vmml_ucs_status_t uct_md_mem_query_v2(vmml_uct_md_h md,
                                             const void *address, size_t length,
                                             void *range)
{
    return query(md, address, range);
}
#endif

static vmml_ucs_status_t
unpack(vmml_uct_component_h component, const void *buffer,
       const struct vmml_uct_rkey_unpack_params *params,
       struct vmml_uct_rkey_bundle *bundle)
{
    void *key = malloc(BENCH_KEY);

    if (key == NULL)
        return NO_MEMORY;
    memcpy(key, buffer, BENCH_KEY);
    bundle->rkey = (uintptr_t)key;
    return OK;
}

EXPORT bench_unpack_fn *const bench_unpack = unpack;

EXPORT vmml_ucs_status_t
uct_rkey_unpack_v2(vmml_uct_component_h component, const void *buffer,
                   const struct vmml_uct_rkey_unpack_params *params,
                   struct vmml_uct_rkey_bundle *bundle)
{
    return unpack(component, buffer, params, bundle);
}

EXPORT vmml_ucs_status_t uct_rkey_release(
    vmml_uct_component_h component, const struct vmml_uct_rkey_bundle *bundle)
{
    free((void *)bundle->rkey);
    return OK;
}
