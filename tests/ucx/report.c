#include "client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void die(int code, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", opt.role != NULL ? opt.role : "client", text);
    /* Not exit(): UCX's destructors may wait for a peer that is gone. */
    _Exit(code);
}

const char *cu_name(CUresult result)
{
    static char buffer[32];
    const char *name = NULL;

    if (cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL)
        return name;
    snprintf(buffer, sizeof(buffer), "CUresult %d", (int)result);
    return buffer;
}

void cu_must(CUresult result, const char *call, const char *file, int line)
{
    if (result != CUDA_SUCCESS)
        die(EXIT_SETUP, "%s:%d: %s: %s", file, line, call, cu_name(result));
}

double now(void)
{
    struct timespec t;

    if (clock_gettime(CLOCK_MONOTONIC, &t) != 0)
        die(EXIT_SETUP, "clock_gettime: %s", strerror(errno));
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
