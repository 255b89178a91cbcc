/* A process that registers memory and packs keys, and whom nobody asks. */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void register_and_pack(const char *specification)
{
    struct segment segment;
    ucp_mem_h memh = NULL;
    void *packed = NULL;
    size_t length = 0;
    ucs_status_t status;

    segment_create(&segment, specification, 0);
    status = memory_register(segment.base + segment.data_offset,
                             segment.data_length, &memh);
    if (status == UCS_OK)
        status = memory_pack(memh, &packed, &length);
    if (status == UCS_OK)
        ucp_rkey_buffer_release(packed);
    expect(specification, status == UCS_OK && length > 0);
    if (memh != NULL && ucp_mem_unmap(ucx.context, memh) != UCS_OK)
        die(EXIT_SETUP, "%s: not deregistered", specification);
    segment_destroy(&segment);
}

/* opt.kind: specifications, ',' between. */
int alone_main(void)
{
    char *kinds = strdup(opt.kind), *rest = NULL, *kind;

    if (kinds == NULL)
        die(EXIT_SETUP, "out of memory");
    opt.scenario = "alone";
    device_open(true);
    transport_open();
    for (kind = strtok_r(kinds, ",", &rest); kind != NULL;
         kind = strtok_r(NULL, ",", &rest))
        register_and_pack(kind);
    transport_close();
    free(kinds);
    return 0;
}
