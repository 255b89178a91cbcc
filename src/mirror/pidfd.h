/* SPDX-License-Identifier: MIT */
/*
 * pidfd_open(2) and pidfd_getfd(2), which older C libraries do not have.
 * Both return a descriptor, close-on-exec, or -errno.
 */
#ifndef VMML_MIRROR_PIDFD_H
#define VMML_MIRROR_PIDFD_H

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Numbers of asm-generic/unistd.h, the same on x86-64 and aarch64. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

static inline int vmml_pidfd_open(uint32_t pid)
{
    long fd = syscall(SYS_pidfd_open, (pid_t)pid, 0);

    return fd < 0 ? -errno : (int)fd;
}

static inline int vmml_pidfd_getfd(int pidfd, int fd)
{
    long copy = syscall(SYS_pidfd_getfd, pidfd, fd, 0);

    return copy < 0 ? -errno : (int)copy;
}

#endif
