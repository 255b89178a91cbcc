/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/remedy.h"
#include "create/upgrade.h"
#include "doctor/gates.h"
#include "ledger/layout.h"
#include "transport/ptracer.h"

/* Inodes of the initial namespaces (linux/proc_ns.h). */
#define FIRST_PID_NAMESPACE  0xeffffffcu
#define FIRST_USER_NAMESPACE 0xeffffffdu

#define OVERFLOW_UID 65534u /* kernel.overflowuid (proc(5)) */

/* Why pidfd_getfd(2) is denied. */
enum cause {
    CAUSE_NONE,
    CAUSE_SECCOMP,
    CAUSE_KERNEL,
    CAUSE_MODULE, /* a security module that is neither */
    CAUSE_YAMA,
    CAUSE_TRACE,
};

struct kernel {
    struct vmml_report *report;
    const struct vmml_subject *subject;
    const struct vmml_trial *trial;
    int scope;      /* Yama's */
    unsigned steps; /* allowed */
    unsigned open;  /* allowed, and they work */
    enum cause cause;
};

/* ---- what is denied, and by whom ---- */

/* As the shim tells them apart (mirror/denial.c): what a process may not do to
 * itself is denied whoever asks. */
static enum cause cause_of(const struct kernel *k)
{
    const struct vmml_trial *trial = k->trial;
    int own = trial->own_open != 0 ? trial->own_open : trial->own_getfd;

    if (trial->killed)
        return CAUSE_SECCOMP;
    if (VMML_DENIED(own) && k->subject->seccomp != 0)
        return CAUSE_SECCOMP;
    if (own == ENOSYS)
        return CAUSE_KERNEL;
    if (own != 0)
        return CAUSE_MODULE;
    if (trial->getfd == 0)
        return CAUSE_NONE;
    return k->scope > 0 ? CAUSE_YAMA : CAUSE_TRACE;
}

static unsigned open_steps(const struct kernel *k)
{
    const struct vmml_trial *trial = k->trial;
    unsigned open = 0;

    if (trial->getfd == 0)
        open |= VMML_WAY_GETFD;
    if (trial->ptracer == 0)
        open |= VMML_WAY_PTRACER;
    if (trial->socket == 0)
        open |= VMML_WAY_SOCKET;
    open &= k->steps;
    /* PR_SET_PTRACER is for pidfd_getfd(2). */
    return (k->steps & VMML_WAY_GETFD) != 0 ? open : open & ~VMML_WAY_PTRACER;
}

/* Of a gate that closes pidfd_getfd(2). */
static enum vmml_verdict closed(const struct kernel *k)
{
    return k->open != 0 ? VMML_WARN : VMML_FAIL;
}

/* ---- gates ---- */

static void release(const struct kernel *k)
{
    unsigned major = 0, minor = 0;
    struct utsname name;

    if (uname(&name) != 0 ||
        sscanf(name.release, "%u.%u", &major, &minor) != 2) {
        vmml_report_add(k->report, VMML_SKIP, "kernel.release", NULL, NULL,
                        "uname(2) tells no version");
        return;
    }
    if (major < 5 || (major == 5 && minor < 6))
        vmml_report_add(k->report, closed(k), "kernel.release", NULL,
                        VMML_REMEDY_KERNEL,
                        "Linux %s is older than 5.6, which brought "
                        "pidfd_getfd(2)",
                        name.release);
    else if (k->cause == CAUSE_KERNEL)
        vmml_report_add(
            k->report, closed(k), "kernel.release", NULL, VMML_REMEDY_KERNEL,
            "calls itself Linux %s and has no %s (a sandbox's "
            "kernel)",
            name.release,
            k->trial->own_open != 0 ? "pidfd_open(2)" : "pidfd_getfd(2)");
    else
        vmml_report_add(
            k->report,
            vmml_upgrade_is_wsl(name.release) ? VMML_NOTE : VMML_PASS,
            "kernel.release", NULL, NULL, "Linux %s, %s, glibc %s%s",
            name.release, name.machine, gnu_get_libc_version(),
            vmml_upgrade_is_wsl(name.release)
                ? "; on WSL2 memory of handle type NONE is left "
                  "as it is"
                : "");
}

static void memfd(const struct kernel *k)
{
    int error = k->trial->memfd;

    if (error == 0)
        vmml_report_add(k->report, VMML_PASS, "kernel.memfd", NULL, NULL,
                        "a sealed memfd can be made");
    else if (error == VMML_NOT_TRIED)
        vmml_report_add(k->report, VMML_SKIP, "kernel.memfd", NULL, NULL,
                        "not tried");
    else if (error == EMFILE || error == ENFILE)
        vmml_report_add(k->report, VMML_FAIL, "kernel.memfd", NULL,
                        VMML_REMEDY_DESCRIPTORS,
                        "no ledger can be made: no descriptor is left");
    else
        vmml_report_add(k->report, VMML_FAIL, "kernel.memfd", NULL,
                        "a seccomp profile that allows memfd_create",
                        "no ledger can be made: memfd_create(2): %s",
                        strerror(error));
}

static const char *remedy_of(enum cause cause)
{
    switch (cause) {
    case CAUSE_KERNEL:
        return VMML_REMEDY_KERNEL;
    case CAUSE_YAMA:
        return VMML_REMEDY_YAMA;
    case CAUSE_TRACE:
        return VMML_REMEDY_PTRACE;
    default:
        return VMML_REMEDY_SECCOMP;
    }
}

static const char *name_of(enum cause cause)
{
    switch (cause) {
    case CAUSE_SECCOMP:
        return "a seccomp filter";
    case CAUSE_KERNEL:
        return "this kernel, which has no such call";
    case CAUSE_YAMA:
        return "Yama";
    case CAUSE_TRACE:
        return "the rules of ptrace(2)";
    default:
        return "a security module";
    }
}

static void getfd(const struct kernel *k)
{
    const struct vmml_trial *trial = k->trial;

    if (trial->killed)
        vmml_report_add(k->report, VMML_FAIL, "kernel.pidfd_getfd", NULL,
                        VMML_REMEDY_SECCOMP,
                        "a seccomp filter ends the process that calls it: a "
                        "job would end there too");
    else if (trial->getfd == 0)
        vmml_report_add(k->report, VMML_PASS, "kernel.pidfd_getfd", NULL, NULL,
                        "works between two processes");
    else if ((k->open & VMML_WAY_PTRACER) != 0)
        vmml_report_add(k->report, VMML_PASS, "kernel.pidfd_getfd", NULL, NULL,
                        "works between two processes after the exporter's "
                        "PR_SET_PTRACER");
    else if (trial->own_open == VMML_NOT_TRIED)
        vmml_report_add(k->report, VMML_SKIP, "kernel.pidfd_getfd", NULL, NULL,
                        "could not be tried");
    else
        vmml_report_add(
            k->report, closed(k), "kernel.pidfd_getfd", NULL,
            remedy_of(k->cause), "denied by %s: own process: %s, another: %s",
            name_of(k->cause),
            vmml_trial_text(trial->own_open != 0 ? trial->own_open
                                                 : trial->own_getfd),
            vmml_trial_text(trial->open > 0 ? trial->open : trial->getfd));
}

static void yama(const struct kernel *k)
{
    if (k->cause == CAUSE_YAMA && (k->open & VMML_WAY_PTRACER) != 0)
        vmml_report_add(k->report, VMML_NOTE, "kernel.yama", NULL, NULL,
                        "kernel.yama.ptrace_scope is %d: the exporter lets "
                        "its user's processes trace it (PR_SET_PTRACER)",
                        k->scope);
    else if (k->cause == CAUSE_YAMA)
        vmml_report_add(k->report, closed(k), "kernel.yama", NULL,
                        VMML_REMEDY_YAMA,
                        "kernel.yama.ptrace_scope is %d and denies "
                        "pidfd_getfd(2)%s",
                        k->scope,
                        (k->steps & VMML_WAY_PTRACER) == 0 && k->scope == 1
                            ? "; VMMLANE_TRANSPORT has no ptracer"
                            : "");
    else
        vmml_report_add(k->report, VMML_PASS, "kernel.yama", NULL, NULL,
                        access(VMML_PTRACE_SCOPE_FILE, F_OK) == 0
                            ? "kernel.yama.ptrace_scope is %d and denies "
                              "nothing here"
                            : "this kernel has no Yama (scope %d)",
                        k->scope);
}

static void seccomp(const struct kernel *k)
{
    if (!k->subject->status_known)
        vmml_report_add(k->report, VMML_SKIP, "kernel.seccomp", NULL, NULL,
                        "/proc/self/status cannot be read");
    else if (k->cause == CAUSE_SECCOMP)
        vmml_report_add(k->report, k->trial->killed ? VMML_FAIL : closed(k),
                        "kernel.seccomp", NULL, VMML_REMEDY_SECCOMP,
                        "a filter (mode %d) denies %s", k->subject->seccomp,
                        k->trial->own_open != 0 ? "pidfd_open(2)"
                                                : "pidfd_getfd(2)");
    else
        vmml_report_add(k->report, VMML_PASS, "kernel.seccomp", NULL, NULL,
                        k->subject->seccomp == 0
                            ? "no filter (mode %d)"
                            : "a filter (mode %d) that lets the calls through",
                        k->subject->seccomp);
}

static void capabilities(const struct kernel *k)
{
    const char *with = vmml_subject_may_trace(k->subject) ? "with" : "without";

    if (k->cause == CAUSE_TRACE)
        vmml_report_add(k->report, closed(k), "kernel.capabilities", NULL,
                        VMML_REMEDY_PTRACE,
                        "pidfd_getfd(2) is not permitted (ptrace access, %s "
                        "CAP_SYS_PTRACE)",
                        with);
    else
        vmml_report_add(k->report, VMML_PASS, "kernel.capabilities", NULL, NULL,
                        "%s CAP_SYS_PTRACE, effective user %u", with,
                        (unsigned)k->subject->uid);
}

static void namespaces(const struct kernel *k)
{
    const uint64_t *ids = k->subject->namespaces;
    bool first = ids[VMML_NS_PID] == FIRST_PID_NAMESPACE;

    if (ids[VMML_NS_PID] == 0 || ids[VMML_NS_USER] == 0) {
        vmml_report_add(k->report, VMML_SKIP, "kernel.pid_namespace", NULL,
                        "mount /proc", "/proc/self/ns cannot be read");
        return;
    }
    vmml_report_add(k->report, first ? VMML_PASS : VMML_NOTE,
                    "kernel.pid_namespace", NULL, VMML_REMEDY_PID_NAMESPACE,
                    first ? "the host's (%lu)"
                          : "a container's (%lu): a process of another one is "
                            "reached by the socket alone",
                    (unsigned long)ids[VMML_NS_PID]);
    vmml_report_add(k->report, VMML_PASS, "kernel.net_namespace", NULL, NULL,
                    "%lu: the socket reaches processes in it alone",
                    (unsigned long)ids[VMML_NS_NET]);
    if (k->subject->uid == OVERFLOW_UID && !k->subject->uid_mapped)
        vmml_report_add(k->report, VMML_WARN, "kernel.user_namespace", NULL,
                        "map the user (newuidmap(1), --userns=keep-id)",
                        "the user is not mapped into this user namespace "
                        "(%lu): the socket speaks to nobody",
                        (unsigned long)ids[VMML_NS_USER]);
    else
        vmml_report_add(
            k->report, VMML_PASS, "kernel.user_namespace", NULL, NULL,
            "%s (%lu), user %u",
            ids[VMML_NS_USER] == FIRST_USER_NAMESPACE ? "the host's"
                                                      : "a container's",
            (unsigned long)ids[VMML_NS_USER], (unsigned)k->subject->uid);
}

static void socket_way(const struct kernel *k)
{
    int error = k->trial->socket;

    if (error == 0)
        vmml_report_add(k->report, VMML_PASS, "kernel.socket", NULL, NULL,
                        "a descriptor came through an abstract socket");
    else if (error == VMML_NOT_TRIED)
        vmml_report_add(k->report, VMML_SKIP, "kernel.socket", NULL, NULL,
                        "could not be tried");
    else
        vmml_report_add(k->report, closed(k), "kernel.socket", NULL,
                        "a profile of seccomp and of other security modules "
                        "that allows AF_UNIX sockets",
                        "no descriptor comes through an abstract AF_UNIX "
                        "socket: %s",
                        strerror(error));
}

static void transport(const struct kernel *k)
{
    unsigned left = k->open;

    if (left != 0)
        vmml_report_add(k->report, VMML_PASS, "kernel.transport", NULL, NULL,
                        "descriptors can travel by %s%s%s",
                        (left & VMML_WAY_GETFD) != 0 ? "pidfd_getfd(2)"
                        : (left & VMML_WAY_PTRACER) != 0
                            ? "pidfd_getfd(2) with PR_SET_PTRACER"
                            : "",
                        (left & VMML_WAY_SOCKET) != 0 && left != VMML_WAY_SOCKET
                            ? " and "
                            : "",
                        (left & VMML_WAY_SOCKET) != 0 ? "the socket" : "");
    else
        vmml_report_add(k->report, VMML_FAIL, "kernel.transport", NULL,
                        k->steps != VMML_WAY_ALL
                            ? "unset VMMLANE_TRANSPORT, or open what it allows"
                            : remedy_of(k->cause),
                        "no way for descriptors is left: pidfd_getfd(2) %s, "
                        "the socket %s",
                        (k->steps & VMML_WAY_GETFD) != 0
                            ? "is denied"
                            : "is switched off by VMMLANE_TRANSPORT",
                        (k->steps & VMML_WAY_SOCKET) != 0
                            ? "is denied"
                            : "is switched off by VMMLANE_TRANSPORT");
}

void vmml_gates_kernel(struct vmml_report *report,
                       const struct vmml_subject *subject,
                       const struct vmml_trial *trial)
{
    struct kernel k = {.report = report,
                       .subject = subject,
                       .trial = trial,
                       .scope = vmml_ptrace_scope(VMML_PTRACE_SCOPE_FILE)};

    k.steps = vmml_gates_steps(subject, &(bool){true});
    k.open = open_steps(&k);
    k.cause = cause_of(&k);
    release(&k);
    memfd(&k);
    getfd(&k);
    yama(&k);
    seccomp(&k);
    capabilities(&k);
    namespaces(&k);
    socket_way(&k);
    transport(&k);
}

/* ---- limits ---- */

/* A GPU of 80 GiB in PyTorch's chunks of 20 MiB: each needs a descriptor. */
#define CHUNKS_WANTED 4096u

static void descriptors(struct vmml_report *report,
                        const struct vmml_subject *subject)
{
    uint64_t hard = subject->descriptors_hard, usable = 0;
    uint64_t low = hard > VMML_FD_LOWEST + VMML_FD_SPARE ? VMML_FD_LOWEST : 0;

    /* As base/fd.h shares the numbers out. */
    if (hard > low + VMML_FD_SPARE)
        usable = hard - low - VMML_FD_SPARE;
    if (hard == UINT64_MAX)
        vmml_report_add(report, VMML_PASS, "limits.descriptors", subject->about,
                        NULL, "unlimited");
    else
        vmml_report_add(
            report,
            usable == 0              ? VMML_FAIL
            : usable < CHUNKS_WANTED ? VMML_WARN
                                     : VMML_PASS,
            "limits.descriptors", subject->about, VMML_REMEDY_DESCRIPTORS_HARD,
            "RLIMIT_NOFILE %lu, hard %lu: room for %lu chunks, "
            "one descriptor each (80 GiB in chunks of 20 MiB are "
            "%u)",
            (unsigned long)subject->descriptors_soft, (unsigned long)hard,
            (unsigned long)usable, CHUNKS_WANTED);
}

/* PyTorch reserves 9/8 of a GPU's memory for each stream and pool. */
#define WINDOW_SIZE (1ull << 40)

static void address_space(struct vmml_report *report,
                          const struct vmml_subject *subject)
{
    bool fits = subject->address_space == UINT64_MAX ||
                subject->address_space > 2 * WINDOW_SIZE;
    void *window = MAP_FAILED;

    if (fits && subject->pid == 0) {
        window = mmap(NULL, WINDOW_SIZE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        fits = window != MAP_FAILED;
        if (fits)
            munmap(window, WINDOW_SIZE);
    }
    if (fits)
        vmml_report_add(report, VMML_PASS, "limits.address_space",
                        subject->about, NULL, "room for windows of 1 TiB");
    else
        vmml_report_add(report, VMML_WARN, "limits.address_space",
                        subject->about,
                        "lift the limit of address space (ulimit -v unlimited)",
                        "RLIMIT_AS is %lu MiB: an importer reserves as much "
                        "address space as the exporter's window, 9/8 of a "
                        "GPU's memory with PyTorch",
                        (unsigned long)(subject->address_space >> 20));
}

/* A memfd is a file too. */
static void file_size(struct vmml_report *report,
                      const struct vmml_subject *subject)
{
    if (subject->file_size >= VMML_LEDGER_FILE_SIZE)
        vmml_report_add(report, VMML_PASS, "limits.file_size", subject->about,
                        NULL, "room for the ledger");
    else
        vmml_report_add(report, VMML_FAIL, "limits.file_size", subject->about,
                        VMML_REMEDY_FILE_SIZE,
                        "RLIMIT_FSIZE is %lu KiB: the ledger is a file of %lu "
                        "in memory, and a process that owns memory cannot make "
                        "it",
                        (unsigned long)(subject->file_size >> 10),
                        VMML_LEDGER_FILE_SIZE >> 10);
}

void vmml_gates_limits(struct vmml_report *report,
                       const struct vmml_subject *subject)
{
    if (!subject->limits_known) {
        vmml_report_add(report, VMML_SKIP, "limits.descriptors", subject->about,
                        NULL, "%s/limits cannot be read", subject->proc);
        return;
    }
    descriptors(report, subject);
    address_space(report, subject);
    file_size(report, subject);
}
