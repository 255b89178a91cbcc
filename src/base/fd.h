/* SPDX-License-Identifier: MIT */
/*
 * Descriptors of the shim: close-on-exec, with numbers out of the
 * application's way, and never the last ones.
 */
#ifndef VMML_BASE_FD_H
#define VMML_BASE_FD_H

#include <stddef.h>

/* Numbers below this are left to the application (select(2) ends at 1024). */
#define VMML_FD_LOWEST 1024
/* So many numbers below the limit stay free for the application. */
#define VMML_FD_SPARE 64

/*
 * Move a descriptor up. Takes `fd` over: on success and on failure it is
 * closed or is the result.
 *
 * The soft RLIMIT_NOFILE is raised as far as this needs and the hard limit
 * allows. Where the limit leaves no room above VMML_FD_LOWEST, the number is
 * kept as it is. At three quarters of the kernel's table of descriptors it is
 * raised to twice that table's size, and a thread makes the table that large.
 * Returns the descriptor, or -EMFILE when fewer than VMML_FD_SPARE numbers
 * would be left, or another -errno of fcntl(2).
 */
int vmml_fd_raise(int fd);

/* The hard RLIMIT_NOFILE, and how many numbers below it vmml_fd_raise() may
 * use in all. */
struct vmml_fd_limit {
    unsigned long hard;
    size_t numbers;
};
struct vmml_fd_limit vmml_fd_limit(void);

/* How many of those numbers are free now; reads /proc/self/fd. SIZE_MAX when it
 * cannot be told. */
size_t vmml_fd_room(void);

/* close(2), keeping errno; -1 is ignored. */
void vmml_fd_close(int fd);

#endif
