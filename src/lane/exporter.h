/* SPDX-License-Identifier: MIT */
/*
 * The exporter: which registrations the shim takes, what it publishes for
 * them, and what UCX is told while it packs a key of one.
 */
#ifndef VMML_LANE_EXPORTER_H
#define VMML_LANE_EXPORTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "fabric/name.h"
#include "lane/handle.h"
#include "ucx/uct_abi.h"

/* What a pack of a taken registration answers. */
struct vmml_pack {
    CUdeviceptr base; /* of the window */
    size_t size;
    CUdevice device;
    uint64_t identity;
    uint8_t nonce[VMML_NONCE_SIZE];
    uint8_t handle[VMML_HANDLE_SIZE];
    bool has_block; /* the key carries it, behind the handle */
    struct vmml_block_name block;
    unsigned queries; /* range queries answered in this pack */
};

/*
 * A memory registration of the cuda_ipc domain succeeded. Decides, once for
 * its life, whether its keys are UCX's own (native) or the shim's (taken).
 */
void vmml_lane_register(vmml_uct_md_h md, vmml_uct_mem_h memh, void *address,
                        size_t length);

/* It is about to end. Its chunks become idle when no other covers them, and
 * their descriptors are closed within VMML_IDLE_SECONDS. */
void vmml_lane_deregister(vmml_uct_md_h md, vmml_uct_mem_h memh);

#define VMML_IDLE_SECONDS 2

/*
 * A key for [address, address+length) is about to be packed. For a taken
 * registration publishes every chunk behind it and fills `pack`; the handle is
 * a tombstone where the request cannot be served in full.
 * Returns false for a native registration.
 */
bool vmml_lane_begin_pack(vmml_uct_md_h md, vmml_uct_mem_h memh, void *address,
                          size_t length, struct vmml_pack *pack);

/*
 * UCX re-uses key material by address alone, so a packed key may carry the
 * answer of an earlier request: put this request's handle into it.
 * key: what UCX packed; at least VMML_HANDLE_SCAN bytes.
 */
void vmml_lane_finish_pack(const struct vmml_pack *pack, uint8_t *key);

/* UCX was seen walking a range by itself: all later keys are native. */
void vmml_lane_stand_down(void);

/* Is `nonce` this process's own? */
bool vmml_lane_is_own(const uint8_t nonce[VMML_NONCE_SIZE]);

/* Device of an own window, or -1 when it does not exist (any more). */
int vmml_lane_own_window(uint64_t base, uint64_t size);

/* Where its memory lies, or 0. */
uint64_t vmml_lane_own_address(uint64_t base, uint64_t size);

/* For base/fork.c: hold the lock over a fork; in the child close what it
 * inherited. */
void vmml_lane_fork_lock(void);
void vmml_lane_fork_unlock(void);
void vmml_lane_fork_child(void);

#endif
