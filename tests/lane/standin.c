/* SPDX-License-Identifier: MIT */
/*
 * Stands in for UCX's CUDA module: the shim tells modules apart by their file
 * names, and by what is in them.
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "ucx/uct_abi.h"

#define EXPORT __attribute__((visibility("default")))

static const struct vmml_uct_component component = {"cuda_ipc"};

EXPORT extern struct vmml_uct_md standin_md;
EXPORT struct vmml_uct_md standin_md = {NULL, &component};

#ifdef STANDIN_NATIVE
/* As the POSIX_FD arm of UCX 1.22 looks from outside. */
EXPORT long standin_get_fd(int pidfd, int fd, const char **error);
long standin_get_fd(int pidfd, int fd, const char **error)
{
    *error = "pidfd_getfd(%d) failed";
    return syscall(SYS_pidfd_getfd, pidfd, fd, 0);
}
#endif
