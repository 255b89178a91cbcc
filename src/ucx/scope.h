/* SPDX-License-Identifier: MIT */
/*
 * What UCX is doing on this thread, for the driver hooks that it calls while
 * it does: inside a pack of a taken registration, inside a memory query, or
 * neither.
 */
#ifndef VMML_UCX_SCOPE_H
#define VMML_UCX_SCOPE_H

#include "lane/exporter.h"
#include "range/range.h"

enum vmml_scope_kind {
    VMML_SCOPE_PACK,
    VMML_SCOPE_QUERY,
};

struct vmml_scope {
    enum vmml_scope_kind kind;
    struct vmml_pack *pack;             /* VMML_SCOPE_PACK */
    struct vmml_range_request *request; /* VMML_SCOPE_QUERY */
    struct vmml_scope *outer;
};

/* The innermost scope of this thread, or NULL. */
extern __thread struct vmml_scope *vmml_scope;

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
