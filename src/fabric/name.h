/* SPDX-License-Identifier: MIT */
#ifndef VMML_FABRIC_NAME_H
#define VMML_FABRIC_NAME_H

#include <stdint.h>

#define VMML_BLOCK_HANDLE_SIZE 64 /* of a CUmemFabricHandle */

/* What a key says of a block. */
struct vmml_block_name {
    uint8_t handle[VMML_BLOCK_HANDLE_SIZE];
    uint8_t order;
};

#endif
