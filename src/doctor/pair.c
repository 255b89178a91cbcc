/* SPDX-License-Identifier: MIT */
/*
 * Two running processes: can each take the other's descriptors?
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/remedy.h"
#include "doctor/child.h"
#include "doctor/elf.h"
#include "doctor/gates.h"
#include "mirror/pidfd.h"
#include "transport/ptracer.h"

#define OVERFLOW_UID 65534u /* kernel.overflowuid (proc(5)) */

/* ---- pidfd_getfd(2) of one, tried with the rights of the other ---- */

struct attempt {
    const struct vmml_subject *importer;
    int pidfd;          /* of the exporter */
    int user_namespace; /* the importer's, or -1 where it is ours */
    int result;         /* 0, an errno, or VMML_NOT_TRIED */
};

/* Only ever fewer capabilities: the importer's own. */
static int take_capabilities(const struct vmml_subject *importer)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &header, data) != 0)
        return errno;
    data[0].permitted &= (uint32_t)importer->permitted;
    data[1].permitted &= (uint32_t)(importer->permitted >> 32);
    data[0].effective &= (uint32_t)importer->capabilities & data[0].permitted;
    data[1].effective &=
        (uint32_t)(importer->capabilities >> 32) & data[1].permitted;
    data[0].inheritable = data[1].inheritable = 0;
    return syscall(SYS_capset, &header, data) == 0 ? 0 : errno;
}

/* Become as the importer is, as far as ptrace(2) looks: its user namespace,
 * user and capabilities. 0 or an errno. */
static int become(const struct attempt *attempt)
{
    const struct vmml_subject *importer = attempt->importer;

    if (attempt->user_namespace >= 0)
        return setns(attempt->user_namespace, CLONE_NEWUSER) == 0
                   ? take_capabilities(importer)
                   : errno;
    if (importer->uid == geteuid() && importer->gid == getegid())
        return take_capabilities(importer);
    if (setgroups(0, NULL) != 0 ||
        setresgid(importer->gid, importer->gid, importer->gid) != 0 ||
        setresuid(importer->uid, importer->uid, importer->uid) != 0)
        return errno;
    return importer->uid == 0 ? take_capabilities(importer) : 0;
}

static void try_it(void *argument)
{
    struct attempt *attempt = argument;
    int fd;

    if (become(attempt) != 0)
        return;
    /* See process.c: a number that is never open, so EBADF is a yes. */
    fd = vmml_pidfd_getfd(attempt->pidfd, INT_MAX);
    attempt->result = fd >= 0 || fd == -EBADF ? 0 : -fd;
}

static int foreign_user_namespace(const struct vmml_subject *subject)
{
    struct vmml_subject own;
    bool same;
    char path[48];

    if (vmml_subject_read(&own, 0) != 0)
        return -1;
    same = own.namespaces[VMML_NS_USER] == subject->namespaces[VMML_NS_USER];
    vmml_subject_free(&own);
    if (same)
        return -1;
    snprintf(path, sizeof(path), "%s/ns/user", subject->proc);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int attempt_getfd(const struct vmml_subject *importer,
                         const struct vmml_subject *exporter)
{
    struct attempt *attempt = vmml_shared_new(sizeof(*attempt));
    int result = VMML_NOT_TRIED;

    if (attempt == NULL)
        return result;
    attempt->importer = importer;
    attempt->result = VMML_NOT_TRIED;
    attempt->pidfd = vmml_pidfd_open((uint32_t)exporter->pid);
    attempt->user_namespace = foreign_user_namespace(importer);
    if (attempt->pidfd >= 0)
        vmml_child_run(try_it, attempt, 10000);
    if (attempt->pidfd >= 0)
        close(attempt->pidfd);
    if (attempt->user_namespace >= 0)
        close(attempt->user_namespace);
    result = attempt->result;
    vmml_shared_free(attempt, sizeof(*attempt));
    return result;
}

/* ---- gates of both ---- */

struct pair {
    struct vmml_report *report;
    const struct vmml_subject *a, *b;
    const char *about;
    bool same_user, same_pid, same_net;
};

static bool is_same(const struct pair *p, enum vmml_namespace which)
{
    return p->a->namespaces[which] != 0 &&
           p->a->namespaces[which] == p->b->namespaces[which];
}

static void user(struct pair *p)
{
    bool mapped = p->a->uid_mapped && p->b->uid_mapped &&
                  p->a->uid != OVERFLOW_UID && p->b->uid != OVERFLOW_UID;

    p->same_user = p->a->uid == p->b->uid && mapped;
    if (p->a->uid != p->b->uid)
        vmml_report_add(p->report, VMML_FAIL, "pair.user", p->about,
                        VMML_REMEDY_USER, "users %u and %u",
                        (unsigned)p->a->uid, (unsigned)p->b->uid);
    else
        vmml_report_add(p->report, mapped ? VMML_PASS : VMML_WARN, "pair.user",
                        p->about,
                        "map the user (newuidmap(1), --userns=keep-id)",
                        mapped ? "both user %u"
                               : "both user %u, who is not mapped in a user "
                                 "namespace: the socket speaks to nobody",
                        (unsigned)p->a->uid);
}

/* False: those of one may not be read (PTRACE_MODE_READ). */
static bool namespaces_known(const struct pair *p)
{
    const struct vmml_subject *hidden =
        p->a->namespaces[VMML_NS_PID] == 0 ? p->a : p->b;

    if (hidden->namespaces[VMML_NS_PID] != 0)
        return true;
    vmml_report_add(p->report, VMML_SKIP, "pair.pid_namespace", p->about,
                    "ask as root, or as its user",
                    "the namespaces of process %d may not be read: the ways "
                    "between the two cannot be judged",
                    (int)hidden->pid);
    return false;
}

static void namespaces(struct pair *p)
{
    bool same_user_namespace = is_same(p, VMML_NS_USER);

    p->same_pid = is_same(p, VMML_NS_PID);
    p->same_net = is_same(p, VMML_NS_NET);
    vmml_report_add(p->report, p->same_pid ? VMML_PASS : VMML_WARN,
                    "pair.pid_namespace", p->about, VMML_REMEDY_PID_NAMESPACE,
                    p->same_pid
                        ? "one PID namespace"
                        : "two PID namespaces: pidfd_getfd(2) is not used");
    vmml_report_add(p->report,
                    p->same_net   ? VMML_PASS
                    : p->same_pid ? VMML_NOTE
                                  : VMML_WARN,
                    "pair.net_namespace", p->about,
                    "share the network namespace (--network=host, or one pod)",
                    p->same_net
                        ? "one network namespace"
                        : "two network namespaces: the socket is not seen");
    vmml_report_add(p->report, same_user_namespace ? VMML_PASS : VMML_NOTE,
                    "pair.user_namespace", p->about, NULL,
                    same_user_namespace
                        ? "one user namespace"
                        : "two user namespaces: capabilities of one do not "
                          "count in the other");
}

/* "@(#)vmmlane ...": src/base/version.c. */
static bool read_version(const struct vmml_subject *subject, char text[128])
{
    const char *file = vmml_subject_file(subject, "libvmmlane");
    char path[PATH_MAX];
    struct vmml_elf elf;
    const char *found;
    size_t left = 0;

    text[0] = '\0';
    if (file == NULL ||
        snprintf(path, sizeof(path), "%s%s", subject->root, file) >=
            (int)sizeof(path) ||
        vmml_elf_open(&elf, path) != 0)
        return false;
    found = vmml_elf_find(&elf, "@(#)vmmlane ", &left);
    if (found != NULL && strnlen(found, left) < left)
        snprintf(text, 128, "%s", found + 4);
    vmml_elf_close(&elf);
    return text[0] != '\0';
}

static void version(const struct pair *p)
{
    char a[128], b[128];
    bool same;

    if (!read_version(p->a, a) || !read_version(p->b, b)) {
        vmml_report_add(p->report, VMML_SKIP, "pair.version", p->about, NULL,
                        "a libvmmlane.so cannot be read (not loaded, or "
                        "replaced since)");
        return;
    }
    same = strcmp(a, b) == 0;
    vmml_report_add(p->report, same ? VMML_PASS : VMML_FAIL, "pair.version",
                    p->about, VMML_REMEDY_VERSION, same ? "both %s" : "%s; %s",
                    a, b);
}

/* Does this UCX give cuda_ipc up between PID namespaces (measured)? From 1.23
 * on it does, but for fabric memory; to 1.20 it takes a peer of the same number
 * for itself. */
static const char *gives_up(const struct pair *p,
                            const struct vmml_ucx_loaded *ucx)
{
    if (p->same_pid || ucx->minor == 0)
        return NULL;
    if (ucx->minor >= 23)
        return "uses cuda_ipc between PID namespaces for fabric memory alone";
    return ucx->minor <= 20 && p->a->own_pid == p->b->own_pid
               ? "takes a process of the same number in another PID "
                 "namespace for its own"
               : NULL;
}

static void ucx(const struct pair *p)
{
    struct vmml_ucx_loaded a, b;
    const char *why;
    bool mixed;

    if (!vmml_ucx_loaded(p->a, &a) || !vmml_ucx_loaded(p->b, &b)) {
        vmml_report_add(p->report, VMML_SKIP, "pair.ucx", p->about, NULL,
                        "not both have a UCX loaded (yet)");
        return;
    }
    why = gives_up(p, &a);
    if (why == NULL)
        why = gives_up(p, &b);
    /* Keys of 1.22 and newer hold a handle 4 bytes further on. */
    mixed = (a.minor < 22) != (b.minor < 22);
    if (why != NULL)
        vmml_report_add(p->report, VMML_FAIL, "pair.ucx", p->about,
                        VMML_REMEDY_UCX_PID_NAMESPACE, "UCX %s and %s: it %s",
                        a.version, b.version, why);
    else if (a.fabric != b.fabric)
        vmml_report_add(p->report, VMML_FAIL, "pair.ucx", p->about,
                        "the same UCX in both processes",
                        "UCX %s and %s, one of them built without fabric: "
                        "neither understands the other's keys",
                        a.version, b.version);
    else
        vmml_report_add(p->report, mixed ? VMML_NOTE : VMML_PASS, "pair.ucx",
                        p->about, "the same UCX in both processes",
                        mixed ? "UCX %s and %s: VMM memory has the lane, "
                                "memory of cudaMalloc falls back"
                              : "UCX %s and %s",
                        a.version, b.version);
}

/* ---- gates of a direction ---- */

static const char *denied_remedy(const struct vmml_subject *exporter)
{
    if (exporter->owner != exporter->uid)
        return VMML_REMEDY_SOCKET;
    return vmml_ptrace_scope(VMML_PTRACE_SCOPE_FILE) > 0 ? VMML_REMEDY_YAMA
                                                         : VMML_REMEDY_PTRACE;
}

/* One reads the other's memory. `used`: is pidfd_getfd(2) used at all? */
static unsigned getfd(const struct pair *p, const char *about,
                      const struct vmml_subject *importer,
                      const struct vmml_subject *exporter, bool *used)
{
    unsigned steps = vmml_gates_steps(importer, &(bool){true});
    unsigned theirs = vmml_gates_steps(exporter, &(bool){true});
    int scope = vmml_ptrace_scope(VMML_PTRACE_SCOPE_FILE);
    int result;

    *used = p->same_pid && (steps & VMML_WAY_GETFD) != 0;
    if (!*used) {
        vmml_report_add(p->report, VMML_NOTE, "pair.pidfd_getfd", about, NULL,
                        p->same_pid ? "switched off by VMMLANE_TRANSPORT"
                                    : "not used between PID namespaces");
        return 0;
    }
    result = attempt_getfd(importer, exporter);
    if (result == 0) {
        vmml_report_add(p->report, VMML_PASS, "pair.pidfd_getfd", about, NULL,
                        "permitted with its user and capabilities%s",
                        importer->seccomp == 0
                            ? ""
                            : " (its seccomp filter cannot be tried)");
        return VMML_WAY_GETFD;
    }
    if (result == VMML_NOT_TRIED) {
        vmml_report_add(p->report, VMML_SKIP, "pair.pidfd_getfd", about,
                        "ask as root", "could not be tried in its name");
        return VMML_WAY_GETFD;
    }
    if (result == EPERM && scope == 1 && (theirs & VMML_WAY_PTRACER) != 0 &&
        exporter->owner == exporter->uid && p->same_user) {
        vmml_report_add(p->report, VMML_PASS, "pair.pidfd_getfd", about, NULL,
                        "denied by Yama (scope 1) until the exporter's first "
                        "key: then by its PR_SET_PTRACER");
        return VMML_WAY_PTRACER;
    }
    vmml_report_add(p->report, VMML_WARN, "pair.pidfd_getfd", about,
                    denied_remedy(exporter), "denied: %s%s", strerror(result),
                    exporter->owner != exporter->uid
                        ? " (the exporter is not dumpable)"
                    : scope > 0 ? " (Yama)"
                                : "");
    return 0;
}

static unsigned socket_way(const struct pair *p)
{
    unsigned both = vmml_gates_steps(p->a, &(bool){true}) &
                    vmml_gates_steps(p->b, &(bool){true});

    return p->same_net && p->same_user ? both & VMML_WAY_SOCKET : 0;
}

static void direction(const struct pair *p, const struct vmml_subject *importer,
                      const struct vmml_subject *exporter)
{
    char about[64];
    unsigned left;
    bool used;

    snprintf(about, sizeof(about), "process %d reads process %d",
             (int)importer->pid, (int)exporter->pid);
    left = getfd(p, about, importer, exporter, &used) | socket_way(p);
    if (left == 0 || !p->same_user)
        vmml_report_add(p->report, VMML_FAIL, "pair.transport", about,
                        p->same_user ? used ? denied_remedy(exporter)
                                            : VMML_REMEDY_PID_NAMESPACE
                                     : VMML_REMEDY_USER,
                        "no way for descriptors is left");
    else
        vmml_report_add(
            p->report, VMML_PASS, "pair.transport", about, NULL,
            "descriptors can travel by %s%s%s",
            (left & VMML_WAY_GETFD) != 0     ? "pidfd_getfd(2)"
            : (left & VMML_WAY_PTRACER) != 0 ? "pidfd_getfd(2) with "
                                               "PR_SET_PTRACER"
                                             : "",
            (left & VMML_WAY_SOCKET) != 0 && left != VMML_WAY_SOCKET ? " and "
                                                                     : "",
            (left & VMML_WAY_SOCKET) != 0 ? "the socket" : "");
}

void vmml_gates_pair(struct vmml_report *report, const struct vmml_subject *a,
                     const struct vmml_subject *b)
{
    struct pair p = {.report = report, .a = a, .b = b};
    char about[64];

    snprintf(about, sizeof(about), "processes %d and %d", (int)a->pid,
             (int)b->pid);
    p.about = about;
    user(&p);
    if (!namespaces_known(&p))
        return;
    namespaces(&p);
    version(&p);
    ucx(&p);
    direction(&p, a, b);
    direction(&p, b, a);
}
