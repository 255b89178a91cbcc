/* SPDX-License-Identifier: MIT */
#ifndef VMML_FABRIC_NODE_H
#define VMML_FABRIC_NODE_H

#include <stdint.h>

/* A number of this node, from the kernel's boot id; 0 where that cannot be
 * read. Equal in all containers of a node. */
uint64_t vmml_node_id(void);

/* One byte of it, for handles: 0 where it is not known. Two nodes have the
 * same one in 1 of 255 cases. */
uint8_t vmml_node_byte(void);

#endif
