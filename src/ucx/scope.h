/* SPDX-License-Identifier: MIT */
/*
 * What UCX is doing on this thread, for the driver hooks that it calls while
 * it does: inside a pack of a taken registration, inside a memory query, inside
 * the unpack of a key of ours that is served, or none of these.
 */
#ifndef VMML_UCX_SCOPE_H
#define VMML_UCX_SCOPE_H

#include "lane/exporter.h"
#include "range/range.h"

enum vmml_scope_kind {
    VMML_SCOPE_PACK,
    VMML_SCOPE_QUERY,
    VMML_SCOPE_UNPACK,
};

struct vmml_scope {
    enum vmml_scope_kind kind;
    struct vmml_pack *pack;             /* VMML_SCOPE_PACK */
    struct vmml_range_request *request; /* VMML_SCOPE_QUERY */
    const struct vmml_uct *uct;         /* VMML_SCOPE_UNPACK: in which */
    CUdevice device;                    /* VMML_SCOPE_UNPACK: for which */
    bool settled;                       /* UCX has asked for a context, */
    bool bare;                          /* and none is current, */
    bool no_primary;                    /* nor has the device a primary one */
    unsigned pushed;                    /* contexts that there are none of */
    struct vmml_scope *outer;
};

/* The innermost scope of this thread, or NULL. */
extern __thread struct vmml_scope *vmml_scope
    __attribute__((tls_model("initial-exec")));

static inline void vmml_scope_enter(struct vmml_scope *scope)
{
    scope->outer = vmml_scope;
    vmml_scope = scope;
}

static inline void vmml_scope_leave(const struct vmml_scope *scope)
{
    vmml_scope = scope->outer;
}

#endif
