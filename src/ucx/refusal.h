/* SPDX-License-Identifier: MIT */
/*
 * Memory domains of UCX that pin no range over several allocations: of a NIC
 * that reaches GPU memory through a peer-memory driver and not by dmabuf, and
 * gdr_copy (aws-ofi-nccl PR 1316, gdrcopy issue 199). What they refuse fails
 * the whole ucp_mem_map().
 *
 * For such a NIC UCX registers the range that it was told of, not the one that
 * was asked for (UCX's cache_mem_types; not so for gdr_copy). Where there is
 * one, a request inside one chunk is answered with that chunk, as without
 * vmmlane.
 */
#ifndef VMML_UCX_REFUSAL_H
#define VMML_UCX_REFUSAL_H

#include <stdbool.h>
#include <stddef.h>

#include "ucx/uct_abi.h"

/* UCX was told of a memory domain other than cuda_ipc. */
void vmml_domain_queried(vmml_uct_component_h component,
                         const struct vmml_uct_md_attr_v2 *attr);

/* Has there been a domain for which requests inside one chunk must be answered
 * with that chunk? */
bool vmml_ranges_are_narrow(void);

/* A memory domain other than cuda_ipc did not register memory. One warning
 * tells why, where the memory is the reason. */
void vmml_registration_refused(vmml_uct_component_h component,
                               const void *address, size_t length);

#endif
