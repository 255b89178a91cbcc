/* SPDX-License-Identifier: MIT */
/* Shaped as an OpenMP tool: the function that the runtime calls finds the next
 * one of its name. */
#include <dlfcn.h>
#include <stddef.h>

typedef int fake_tool_fn(int depth);

FAKE_EXPORT int ompt_start_tool(int depth);

#ifdef FAKE_SECOND
/* Makes the program need this library. */
FAKE_EXPORT int fake_second_needed;

FAKE_EXPORT int ompt_start_tool(int depth)
{
    return depth + 100;
}
#else
FAKE_EXPORT int ompt_start_tool(int depth)
{
    fake_tool_fn *next = (fake_tool_fn *)dlsym(RTLD_NEXT, "ompt_start_tool");

    if (depth > 3) /* found itself again and again */
        return -1;
    return next != NULL ? next(depth + 1) : -2;
}
#endif
