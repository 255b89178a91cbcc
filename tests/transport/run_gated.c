/* SPDX-License-Identifier: MIT */
/* run_gated ERRNO CALL[,CALL...] PROGRAM ARGUMENT...: under a seccomp filter
 * that answers EPERM or ENOSYS to these calls. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gate.h"

int main(int argc, char **argv)
{
    long calls[8];
    size_t count = 0;
    char *name;
    int error;

    if (argc < 4)
        return 2;
    error = strcmp(argv[1], "ENOSYS") == 0 ? ENOSYS : EPERM;
    for (name = strtok(argv[2], ","); name != NULL && count < 8;
         name = strtok(NULL, ",")) {
        calls[count] = gate_number(name);
        if (calls[count++] < 0)
            return 2;
    }
    gate_deny(calls, count, error);
    execv(argv[3], argv + 3);
    perror(argv[3]);
    return 2;
}
