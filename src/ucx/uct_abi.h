/* SPDX-License-Identifier: MIT */
/*
 * The few UCX declarations that the shim's hooks need, under names of our own.
 *
 * Source: UCX v1.18.0 to v1.22.0, src/uct/api/uct.h, src/uct/api/v2/uct_v2.h,
 * src/ucs/type/status.h, src/ucs/sys/topo/base/topo.h.
 */
#ifndef VMML_UCT_ABI_H
#define VMML_UCT_ABI_H

#include <stddef.h>
#include <stdint.h>

/* ucs_status_t is a packed enum of -100..2: one signed byte. */
typedef int8_t vmml_ucs_status_t;

#define VMML_UCS_OK              0
#define VMML_UCS_ERR_UNREACHABLE (-6)
#define VMML_UCS_ERR_UNSUPPORTED (-22)

/* First member of struct uct_component: its name, "cuda_ipc" for the lane. */
struct vmml_uct_component {
    char name[16];
};

/* struct uct_md: operations, then the component. */
struct vmml_uct_md {
    const void *ops;
    const struct vmml_uct_component *component;
};

/* struct uct_cuda_ipc_md (src/uct/cuda/cuda_ipc/cuda_ipc_md.h), the same from
 * 1.18.0 on: is multi-node NVLink on? 1 or 0. */
struct vmml_uct_cuda_ipc_md {
    struct vmml_uct_md super;
    int enable_mnnvl;
};

typedef const struct vmml_uct_component *vmml_uct_component_h;
typedef struct vmml_uct_md *vmml_uct_md_h;
typedef void *vmml_uct_mem_h;
typedef void *vmml_uct_iface_h;
typedef void *vmml_ucp_worker_h;

/* The beginning of uct_md_attr_v2_t, the same in UCX 1.18 to 1.22. A set of
 * memory types has bit 1 for CUDA (ucs_memory_type_t). */
#define VMML_UCT_MD_FLAG_REG_DMABUF (1ull << 10)
#define VMML_UCS_MEMORY_TYPES_CUDA  (1ull << 1)
struct vmml_uct_md_attr_v2 {
    uint64_t field_mask;
    uint64_t max_alloc;
    size_t max_reg;
    uint64_t flags;
    uint64_t reg_mem_types;
    uint64_t reg_nonblock_mem_types;
    uint64_t cache_mem_types;
};

/* The beginning of uct_md_mem_reg_params_t; flags are of uct_md_mem_flags. */
#define VMML_UCT_MD_MEM_REG_FIELD_FLAGS  (1ull << 0)
#define VMML_UCT_MD_MEM_FLAG_HIDE_ERRORS (1ull << 3)
struct vmml_uct_md_mem_reg_params {
    uint64_t field_mask;
    uint64_t flags;
};

/* uct_rkey_bundle_t */
struct vmml_uct_rkey_bundle {
    uintptr_t rkey;
    void *handle;
    void *type;
};

/* uct_md_mem_dereg_params_t */
#define VMML_UCT_DEREG_FIELD_MEMH (1ull << 0)
struct vmml_uct_mem_dereg_params {
    uint64_t field_mask;
    unsigned flags;
    vmml_uct_mem_h memh;
    void *comp;
};

/* uct_rkey_unpack_params_t; sys_device is an index into UCS's topology. */
#define VMML_UCT_UNPACK_FIELD_SYS_DEVICE (1ull << 0)
#define VMML_UCS_SYS_DEVICE_UNKNOWN      0xff
struct vmml_uct_rkey_unpack_params {
    uint64_t field_mask;
    uint8_t sys_device;
};

/* uct_iface_is_reachable_params_t; info_string: a text of UCX's why not. */
#define VMML_UCT_REACHABLE_FIELD_INFO_STRING (1ull << 2)
struct vmml_uct_is_reachable_params {
    uint64_t field_mask;
    const void *device_addr;
    const void *iface_addr;
    const char *info_string;
    size_t info_string_length;
};

/* ucs_sys_bus_id_t */
struct vmml_ucs_bus_id {
    uint16_t domain;
    uint8_t bus;
    uint8_t slot;
    uint8_t function;
};

#endif
