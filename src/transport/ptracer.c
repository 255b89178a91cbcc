/* SPDX-License-Identifier: MIT */
#include "transport/ptracer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"

/* Absent from the headers of some C libraries. */
#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER     0x59616d61
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

static atomic_bool application_has_one;

int vmml_ptrace_scope(const char *path)
{
    char digit = '0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    if (read(fd, &digit, 1) != 1 || digit < '0' || digit > '9')
        digit = '0';
    vmml_fd_close(fd);
    return digit - '0';
}

void vmml_ptracer_seen(void)
{
    atomic_store(&application_has_one, true);
}

void vmml_ptracer_allow(int scope)
{
    if (scope != 1)
        return;
    if (atomic_load(&application_has_one)) {
        vmml_info("Yama's ptrace_scope is 1 and the application has set its "
                  "own tracer: it stays");
        return;
    }
    /* By system call: the C library's function is watched. */
    if (syscall(SYS_prctl, PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0)
        vmml_info("Yama's ptrace_scope is 1: processes of this user may now "
                  "take descriptors of this one (VMMLANE_TRANSPORT without "
                  "ptracer forbids it)");
    else
        vmml_debug("PR_SET_PTRACER failed (errno %d)", errno);
}
