/* SPDX-License-Identifier: MIT */
/* A libuct whose memory query asks its module for the range, as UCX's does.
 * UCT_V2: one of 1.22 or newer. */
#include "asker.h"

#define EXPORT __attribute__((visibility("default")))

static vmml_ucs_status_t query(vmml_uct_md_h md, const void *address,
                               void *attr)
{
    const struct asker_md *asker_md = (const struct asker_md *)md;
    struct asker_answer *answer = attr;

    answer->rc = asker_md->asker->range(&answer->base, &answer->size,
                                        (CUdeviceptr)(uintptr_t)address);
    return VMML_UCS_OK;
}

EXPORT vmml_ucs_status_t uct_md_mem_query(vmml_uct_md_h md, const void *address,
                                          size_t length, void *attr);
EXPORT vmml_ucs_status_t uct_md_mem_query(vmml_uct_md_h md, const void *address,
                                          size_t length, void *attr)
{
    return query(md, address, attr);
}

#ifdef UCT_V2
EXPORT vmml_ucs_status_t uct_md_mem_query_v2(vmml_uct_md_h md,
                                             const void *address, size_t length,
                                             void *attr);
EXPORT vmml_ucs_status_t uct_md_mem_query_v2(vmml_uct_md_h md,
                                             const void *address, size_t length,
                                             void *attr)
{
    return query(md, address, attr);
}
#endif
