/* SPDX-License-Identifier: MIT */
/*
 * The exporter's blocks: one for each window whose keys go to other nodes.
 */
#ifndef VMML_FABRIC_EXPORT_H
#define VMML_FABRIC_EXPORT_H

#include "doors/real.h"
#include "fabric/block.h"
#include "lane/handle.h"
#include "lane/window.h"

/*
 * Bring the window's block up to date, and make it when there is none, so that
 * importers on other nodes can be served with [from, to), all of whose chunks
 * are published. Driver calls, but none when nothing has changed; without the
 * exporter's lock.
 *
 * Returns VMML_REASON_NONE and the block's name, or why nodes other than this
 * cannot be served:
 * VMML_REASON_LOCAL (no chunk of it has a fabric handle), VMML_REASON_MIXED
 * (not all have), VMML_REASON_BLOCK (no block can be had now).
 */
enum vmml_reason vmml_block_serve(const struct vmml_real *real,
                                  struct vmml_window *window, uint64_t from,
                                  uint64_t to, struct vmml_block_name *name);

/*
 * With the exporter's lock: the last registration of the window has ended. Its
 * blocks are freed soon, on a thread of their own: UCX ends registrations in
 * the midst of driver calls (UCM's events).
 */
void vmml_block_retire(struct vmml_window *window);

/* How many entries of the smallest block are used, and twice as many of each
 * larger one: all that it has room for, and fewer in tests. */
extern uint32_t vmml_block_use;

/* Blocks that this process has. */
unsigned vmml_block_count(void);

/* In a child of fork: they are the parent's. */
void vmml_block_forget(void);

#endif
