/* SPDX-License-Identifier: MIT */
/* Settings are read once a process: each test of them has its own. */
#ifndef UNIT_CHILD_H
#define UNIT_CHILD_H

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `body` in a child with `variable`=`value` (NULL: as it is) and stderr
 * in `output`. Returns what `body` returns. */
static inline int unit_child(const char *variable, const char *value,
                             int (*body)(void), char *output, size_t size)
{
    int pair[2], status = 0;
    size_t used = 0;
    ssize_t count;
    pid_t child;

    if (pipe(pair) != 0)
        return -1;
    child = fork();
    if (child == 0) {
        dup2(pair[1], STDERR_FILENO);
        close(pair[0]);
        close(pair[1]);
        if (variable != NULL)
            setenv(variable, value, 1);
        _exit(body());
    }
    close(pair[1]);
    while (used + 1 < size &&
           (count = read(pair[0], output + used, size - 1 - used)) > 0)
        used += (size_t)count;
    output[used] = '\0';
    close(pair[0]);
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

static inline unsigned unit_lines(const char *text)
{
    unsigned lines = 0;

    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

#endif
