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
#include "base/remedy.h"
#include "mirror/pidfd.h"
#include "transport/ptracer.h"
#include "stats/count.h"
#include "transport/steps.h"

/* ---- what the kernel says of a process (proc(5)) ---- */

/* The word `index` of a line of /proc/PID/status, or NULL. `line`: with the
 * newline before it and the colon behind. */
static const char *status_word(const char *text, const char *line, int index)
{
    const char *at = strstr(text, line);

    if (at == NULL)
        return NULL;
    at += strlen(line);
    for (;;) {
        at += strspn(at, " \t");
        if (index-- == 0)
            return at;
        at += strcspn(at, " \t\n");
    }
}

static bool read_status(const char *path, char text[4096])
{
    ssize_t length;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    length = read(fd, text, 4095);
    vmml_fd_close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    return true;
}

/* "Seccomp:" of our own: 0 none, 1 strict, 2 a filter. */
static int seccomp_mode(void)
{
    char text[4096];
    const char *word;

    if (!read_status("/proc/self/status", text))
        return 0;
    word = status_word(text, "\nSeccomp:", 0);
    return word == NULL ? 0 : atoi(word);
}

/* Bit 19 of "CapEff:" (linux/capability.h). */
static bool may_trace_all(void)
{
    char text[4096];
    const char *word;

    if (!read_status("/proc/self/status", text))
        return false;
    word = status_word(text, "\nCapEff:", 0);
    return word != NULL && (strtoull(word, NULL, 16) >> 19 & 1) != 0;
}

enum whose {
    WHOSE_OURS,
    WHOSE_ANOTHERS,
    WHOSE_NOT_DUMPABLE, /* ours, and its files in /proc are not */
};

static enum whose whose(const struct vmml_denial *denial)
{
    struct stat status;
    const char *word;
    char text[4096];
    char path[32];

    snprintf(path, sizeof(path), "/proc/%u/status", denial->pid);
    if (!read_status(path, text))
        return WHOSE_OURS;
    word = status_word(text, "\nUid:", 1); /* real, effective, ... */
    if (word != NULL && strtoul(word, NULL, 10) != geteuid())
        return WHOSE_ANOTHERS;
    return stat(path, &status) == 0 && status.st_uid != geteuid()
               ? WHOSE_NOT_DUMPABLE
               : WHOSE_OURS;
}

/* The call that this process may not even make on itself, where no rule of
 * ptrace(2) is asked: it is filtered or missing. NULL: neither is. */
static const char *blocked_call(void)
{
    const char *name = NULL;
    int pidfd = vmml_pidfd_open((uint32_t)getpid());
    int fd = -1;

    if (pidfd >= 0)
        fd = vmml_pidfd_getfd(pidfd, pidfd);
    if (pidfd == -EPERM || pidfd == -EACCES || pidfd == -ENOSYS)
        name = "pidfd_open(2)";
    else if (pidfd >= 0 && (fd == -EPERM || fd == -EACCES || fd == -ENOSYS))
        name = "pidfd_getfd(2)";
    vmml_fd_close(fd);
    vmml_fd_close(pidfd);
    return name;
}

/* ---- lines ---- */

/* Of two errors the one that says more. */
static int decisive(const struct vmml_denial *denial)
{
    switch (-denial->socket) {
    case EPROTONOSUPPORT:
    case EPROTO:
    case EMFILE:
    case ENFILE:
        return -denial->socket;
    default:
        return denial->getfd != 0 ? -denial->getfd : -denial->socket;
    }
}

static bool is_first(const struct vmml_denial *denial, enum vmml_cause cause)
{
    return vmml_lost(cause, &(struct vmml_loss){
                                .address = denial->base,
                                .length = denial->size,
                                .pid = denial->pid,
                                .code = -decisive(denial),
                            });
}

#define WARN_LOST(denial, cause, format, ...)                                  \
    do {                                                                       \
        if (is_first(denial, VMML_CAUSE_##cause))                              \
            vmml_warn("no fast lane to process %u for its 0x%lx+0x%lx (errno " \
                      "%d): " format,                                          \
                      (denial)->pid, (unsigned long)(denial)->base,            \
                      (unsigned long)(denial)->size, decisive(denial),         \
                      ##__VA_ARGS__);                                          \
    } while (0)

/* What the socket step adds to each line. */
static const char *socket_text(const struct vmml_denial *denial)
{
    if (!vmml_step_allowed(VMML_STEP_SOCKET))
        return "the socket is switched off by VMMLANE_TRANSPORT";
    switch (-denial->socket) {
    case ECONNREFUSED:
        return "nobody answers at its socket (another network namespace, or "
               "VMMLANE_TRANSPORT there has no socket)";
    case EKEYREJECTED:
        return "its socket belongs to another user, or one that is not "
               "mapped into this user namespace";
    case EUSERS:
        return "its socket has no place left";
    case EPIPE:
        return "its socket turned us away";
    case ETIMEDOUT:
        return "its socket does not answer and is not asked again";
    case EPERM:
    case EACCES:
        return "its socket cannot be used (a seccomp filter or another "
               "security module)";
    default:
        return "its socket cannot be used";
    }
}

static void warn_blocked(const struct vmml_denial *denial, const char *call)
{
    int mode = seccomp_mode();

    if (mode != 0)
        WARN_LOST(denial, SECCOMP,
                  "%s is denied by a seccomp "
                  "filter (mode %d, %s CAP_SYS_PTRACE), and %s. "
                  "Remedy: " VMML_REMEDY_SECCOMP,
                  call, mode, may_trace_all() ? "with" : "without",
                  socket_text(denial));
    else
        WARN_LOST(denial, SECCOMP,
                  "this kernel has no %s "
                  "(Linux 5.6), and %s. Remedy: " VMML_REMEDY_KERNEL,
                  call, socket_text(denial));
}

static void warn_no_trace(const struct vmml_denial *denial)
{
    int scope = vmml_ptrace_scope(VMML_PTRACE_SCOPE_FILE);
    enum whose owner = whose(denial);

    if (owner == WHOSE_ANOTHERS)
        WARN_LOST(denial, USER,
                  "it is another user's. "
                  "Remedy: " VMML_REMEDY_USER);
    else if (scope > 0)
        WARN_LOST(denial, YAMA,
                  "Yama denies "
                  "pidfd_getfd(2) (kernel.yama.ptrace_scope is %d), and "
                  "%s. Remedy: " VMML_REMEDY_YAMA,
                  scope, socket_text(denial));
    else if (owner == WHOSE_NOT_DUMPABLE)
        WARN_LOST(denial, NOT_DUMPABLE,
                  "it is not dumpable "
                  "(PR_SET_DUMPABLE, or it changed its user), and %s. "
                  "Remedy: " VMML_REMEDY_SOCKET,
                  socket_text(denial));
    else
        WARN_LOST(denial, NOT_PERMITTED,
                  "pidfd_getfd(2) is not "
                  "permitted (ptrace access, %s CAP_SYS_PTRACE), and %s. "
                  "Remedy: " VMML_REMEDY_PTRACE,
                  may_trace_all() ? "with" : "without", socket_text(denial));
}

/* After pidfd_getfd(2) was tried: so the pid is one of our namespace. */
static void warn_denied(const struct vmml_denial *denial)
{
    const char *call = blocked_call();

    if (call != NULL)
        warn_blocked(denial, call);
    else
        warn_no_trace(denial);
}

void vmml_denial_warn(const struct vmml_denial *denial)
{
    int error = decisive(denial);

    switch (error) {
    case 0: /* no call was made */
        if (is_first(denial, VMML_CAUSE_TRANSPORT))
            vmml_warn("no fast lane to process %u for its 0x%lx+0x%lx: "
                      "VMMLANE_TRANSPORT has neither getfd nor socket. "
                      "Remedy: unset VMMLANE_TRANSPORT",
                      denial->pid, (unsigned long)denial->base,
                      (unsigned long)denial->size);
        break;
    case ESRCH:
    case EBADF:
    case ESTALE:
    case ENOENT:
        vmml_debug("process %u has ended, or is not the one that made the key",
                   denial->pid);
        VMML_LOST(GONE, .address = denial->base, .length = denial->size,
                  .pid = denial->pid, .code = -error);
        break;
    case EXDEV:
        WARN_LOST(denial, PID_NAMESPACE,
                  "it lives in another PID "
                  "namespace, and %s. "
                  "Remedy: " VMML_REMEDY_PID_NAMESPACE,
                  socket_text(denial));
        break;
    case EPERM:
    case EACCES:
    case ENOSYS:
        if (denial->getfd != 0) {
            warn_denied(denial);
            break;
        }
        /* fall through */
    case ECONNREFUSED:
    case EKEYREJECTED:
    case EPIPE:
    case ETIMEDOUT:
    case EUSERS:
        WARN_LOST(denial, SOCKET,
                  "%s, and pidfd_getfd(2) is "
                  "switched off by VMMLANE_TRANSPORT",
                  socket_text(denial));
        break;
    case EMFILE:
    case ENFILE:
        WARN_LOST(denial, NO_DESCRIPTOR_HERE,
                  "no descriptor is left. "
                  "Remedy: " VMML_REMEDY_DESCRIPTORS);
        break;
    case EPROTONOSUPPORT:
        WARN_LOST(denial, VERSION,
                  "it runs another version "
                  "of vmmlane. Remedy: " VMML_REMEDY_VERSION);
        break;
    case EPROTO:
        WARN_LOST(denial, NO_LEDGER,
                  "what it shares is no "
                  "ledger");
        break;
    default:
        WARN_LOST(denial, UNREACHABLE, "it cannot be reached");
    }
}
