/* SPDX-License-Identifier: MIT */
/* What the stand-in for UCX's CUDA module lets a test decide. */
#ifndef VMML_TESTS_LANE_STANDIN_H
#define VMML_TESTS_LANE_STANDIN_H

#include "ucx/uct_abi.h"

/* Behind its uct_* functions; exported as `standin_uct`. */
struct standin_uct {
    vmml_ucs_status_t (*reg)(vmml_uct_md_h md, void *address, size_t length,
                             const void *params, vmml_uct_mem_h *memh);
    vmml_ucs_status_t (*dereg)(vmml_uct_md_h md,
                               const struct vmml_uct_mem_dereg_params *params);
    vmml_ucs_status_t (*pack)(vmml_uct_md_h md, vmml_uct_mem_h memh,
                              void *address, size_t length, const void *params,
                              void *buffer);
    vmml_ucs_status_t (*unpack)(vmml_uct_component_h of, const void *buffer,
                                struct vmml_uct_rkey_bundle *bundle);
    vmml_ucs_status_t (*ptr)(vmml_uct_component_h of,
                             struct vmml_uct_rkey_bundle *bundle,
                             uint64_t remote, void **local);
    vmml_ucs_status_t (*release)(vmml_uct_component_h of,
                                 const struct vmml_uct_rkey_bundle *bundle);
};

#endif
