/* SPDX-License-Identifier: MIT */
/*
 * Which of UCX's transports a component or a memory domain is of.
 */
#ifndef VMML_UCX_COMPONENT_H
#define VMML_UCX_COMPONENT_H

#include <stdbool.h>
#include <string.h>

#include "ucx/uct_abi.h"

/* struct uct_component begins with its name, and struct uct_md holds its
 * component second, in every UCX from 1.18 on (src/uct/base/uct_md.h). */
static inline bool vmml_is_cuda_ipc(vmml_uct_component_h component)
{
    return component != NULL &&
           strncmp(component->name, "cuda_ipc", sizeof(component->name)) == 0;
}

static inline bool vmml_is_cuda_ipc_md(vmml_uct_md_h md)
{
    return md != NULL && vmml_is_cuda_ipc(md->component);
}

#endif
