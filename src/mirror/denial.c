/* SPDX-License-Identifier: MIT */
#include "mirror/denial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "transport/ptracer.h"
#include "transport/steps.h"

/* "Seccomp:" of /proc/self/status (proc(5)): 0 none, 1 strict, 2 a filter. */
static int seccomp_mode(void)
{
    char text[4096];
    const char *at;
    ssize_t length;
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    length = read(fd, text, sizeof(text) - 1);
    vmml_fd_close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    at = strstr(text, "\nSeccomp:");
    return at == NULL ? 0 : atoi(at + strlen("\nSeccomp:"));
}

static bool is_other_user(uint32_t pid)
{
    struct stat status;
    char path[32];

    snprintf(path, sizeof(path), "/proc/%u", pid);
    return stat(path, &status) == 0 && status.st_uid != geteuid();
}

/* What the socket step adds to each line. */
static const char *socket_text(const struct vmml_denial *denial)
{
    if (!vmml_step_allowed(VMML_STEP_SOCKET))
        return "the socket is switched off by VMMLANE_TRANSPORT";
    switch (-denial->socket) {
    case ECONNREFUSED:
        return "nobody answers at its socket (another network namespace, or "
               "VMMLANE_TRANSPORT there has no socket)";
    case EPERM:
        return "its socket belongs to another user";
    case ETIMEDOUT:
        return "its socket does not answer";
    default:
        return "its socket cannot be used";
    }
}

static void warn_denied(const struct vmml_denial *denial)
{
    int scope = vmml_ptrace_scope(VMML_PTRACE_SCOPE_FILE);

    if (is_other_user(denial->pid))
        vmml_warn_once("no fast lane to process %u: it is another user's. "
                       "Remedy: run both as one user",
                       denial->pid);
    else if (seccomp_mode() != 0)
        vmml_warn_once("no fast lane to process %u: a seccomp filter denies "
                       "pidfd_open(2) or pidfd_getfd(2), and %s. Remedy: "
                       "--cap-add=SYS_PTRACE, or a seccomp profile that "
                       "allows both",
                       denial->pid, socket_text(denial));
    else if (scope > 0)
        vmml_warn_once("no fast lane to process %u: Yama denies "
                       "pidfd_getfd(2) (kernel.yama.ptrace_scope is %d), and "
                       "%s. Remedy: sysctl kernel.yama.ptrace_scope=0",
                       denial->pid, scope, socket_text(denial));
    else
        vmml_warn_once("no fast lane to process %u: pidfd_getfd(2) is not "
                       "permitted, and %s. Remedy: capability SYS_PTRACE, or "
                       "the socket",
                       denial->pid, socket_text(denial));
}

static void warn_missing(const struct vmml_denial *denial)
{
    if (seccomp_mode() != 0)
        warn_denied(denial);
    else
        vmml_warn_once("no fast lane to process %u: this kernel has no "
                       "pidfd_getfd(2) (Linux 5.6), and %s. Remedy: a newer "
                       "kernel",
                       denial->pid, socket_text(denial));
}

void vmml_denial_warn(const struct vmml_denial *denial)
{
    /* Where getfd was not tried, or not told more, the socket's end counts. */
    int error = denial->getfd != 0 ? -denial->getfd : -denial->socket;

    switch (error) {
    case ESRCH:
    case EBADF:
    case ESTALE:
    case EPIPE:
    case ENOENT:
        vmml_debug("process %u has ended, or is not the one that made the key",
                   denial->pid);
        break;
    case EXDEV:
        vmml_warn_once("no fast lane to process %u: it lives in another PID "
                       "namespace, and %s. Remedy: share the PID namespace "
                       "(--pid=host, hostPID), or the network namespace",
                       denial->pid, socket_text(denial));
        break;
    case EPERM:
    case EACCES:
        warn_denied(denial);
        break;
    case ENOSYS:
        warn_missing(denial);
        break;
    case EMFILE:
    case ENFILE:
        vmml_warn_once("no fast lane to process %u: no descriptor is left. "
                       "Remedy: raise the limit of open files (ulimit -n)",
                       denial->pid);
        break;
    case EPROTONOSUPPORT:
        vmml_warn_once("no fast lane to process %u: it runs another version "
                       "of vmmlane. Remedy: the same version in all processes",
                       denial->pid);
        break;
    case EPROTO:
        vmml_warn_once("no fast lane to process %u: what it shares is no "
                       "ledger",
                       denial->pid);
        break;
    case ECONNREFUSED:
    case ETIMEDOUT:
        vmml_warn_once("no fast lane to process %u: %s", denial->pid,
                       socket_text(denial));
        break;
    default:
        vmml_warn_once("no fast lane to process %u: errno %d", denial->pid,
                       error);
    }
}
