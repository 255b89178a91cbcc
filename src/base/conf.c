/* SPDX-License-Identifier: MIT */
#include "base/conf.h"

#include <stddef.h>

const struct vmml_conf *vmml_conf(void)
{
    static const struct vmml_conf conf = {
        .on = true,
        .range = VMML_RANGE_EXTENT,
        .share = true,
        .create = true,
        .native = VMML_NATIVE_AUTO,
    };

    return &conf;
}
