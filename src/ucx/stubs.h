/* SPDX-License-Identifier: MIT */
#ifndef VMML_UCX_STUBS_H
#define VMML_UCX_STUBS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Called before the real function of a VMML_UCT_STUB export.
 * index: of the stub in hooks.def; args: its leading integer arguments.
 * Returns false where the export is to return UCS_ERR_UNSUPPORTED instead.
 */
bool vmml_uct_stub_hook(unsigned index, uintptr_t args[], const void *caller);

#endif
