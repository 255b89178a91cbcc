/* SPDX-License-Identifier: MIT */
/*
 * A process that is judged:
 *     idle [--user UID] [--not-dumpable] [--deepbind] LIBRARY...
 * Loads the libraries, those behind --deepbind past all preloads, writes "ready
 * PID", and ends with its standard input.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void become(unsigned uid)
{
    if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) {
        perror("idle: setresuid(2)");
        _exit(77);
    }
    /* Changing the user took it away (prctl(2)). */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

int main(int argc, char **argv)
{
    int i, flags = RTLD_NOW;
    char byte;

    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--user") == 0 && i + 1 < argc) {
            become((unsigned)strtoul(argv[++i], NULL, 10));
        } else if (strcmp(argv[i], "--not-dumpable") == 0) {
            prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        } else if (strcmp(argv[i], "--deepbind") == 0) {
            flags |= RTLD_DEEPBIND;
        } else if (dlopen(argv[i], flags) == NULL) {
            fprintf(stderr, "idle: %s\n", dlerror());
            return 1;
        }
    }
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) < 0;
}
