/* SPDX-License-Identifier: MIT */
/*
 * The export of prctl(2): passes everything through, and notes when the
 * application sets a tracer of its own.
 */
#include <errno.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/ptracer.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

__attribute__((visibility("default"))) int prctl(int option, ...)
{
    unsigned long args[4];
    va_list list;
    long result;
    int i;

    /* The kernel reads four more, whatever the option (prctl(2)). */
    va_start(list, option);
    for (i = 0; i < 4; i++)
        args[i] = va_arg(list, unsigned long);
    va_end(list);
    result = syscall(SYS_prctl, option, args[0], args[1], args[2], args[3]);
    if (option == PR_SET_PTRACER && result == 0)
        vmml_ptracer_seen();
    return (int)result;
}
