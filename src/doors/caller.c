/* SPDX-License-Identifier: MIT */
#include "doors/caller.h"

enum vmml_caller vmml_caller_class(const void *address)
{
    return VMML_CALLER_OTHER;
}

bool vmml_module_has_native_fd(const void *address)
{
    return false;
}
