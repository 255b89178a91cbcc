/* SPDX-License-Identifier: MIT */
#include "mirror/peer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"

/* Numbers of asm-generic/unistd.h, the same on x86-64 and aarch64: older C
 * libraries do not name them. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct vmml_peer *) peers;

static int pidfd_open(uint32_t pid)
{
    long fd = syscall(SYS_pidfd_open, (pid_t)pid, 0);

    return fd < 0 ? -errno : (int)fd;
}

int vmml_peer_get_fd(const struct vmml_peer *peer, int fd)
{
    long copy = syscall(SYS_pidfd_getfd, peer->pidfd, fd, 0);

    return copy < 0 ? -errno : (int)copy;
}

/* Inode of our PID namespace, 0 when it cannot be told. */
static uint32_t own_pid_ns(void)
{
    struct stat status;

    if (stat("/proc/self/ns/pid", &status) != 0)
        return 0;
    return (uint32_t)status.st_ino;
}

bool vmml_peer_ended(struct vmml_peer *peer)
{
    struct pollfd pollfd = {.fd = peer->pidfd, .events = POLLIN};

    if (atomic_load(&peer->dead))
        return true;
    if (poll(&pollfd, 1, 0) != 1 || !(pollfd.revents & POLLIN))
        return false;
    atomic_store(&peer->dead, true);
    return true;
}

bool vmml_peer_is_same(struct vmml_peer *peer)
{
    int fd = vmml_peer_get_fd(peer, peer->ledger_fd);
    struct stat status;
    bool same;

    if (fd < 0 && fd != -EBADF)
        return false;
    same = fd >= 0 && fstat(fd, &status) == 0 &&
           status.st_dev == peer->ledger_dev &&
           status.st_ino == peer->ledger_ino;
    vmml_fd_close(fd);
    if (!same && !atomic_exchange(&peer->dead, true))
        vmml_info("process %u has no ledger any more (an exec, or it closed "
                  "all descriptors)",
                  peer->pid);
    return same;
}

struct vmml_peer *vmml_peer_first(void)
{
    return atomic_load(&peers);
}

struct vmml_peer *vmml_peer_find(const uint8_t nonce[VMML_NONCE_SIZE])
{
    struct vmml_peer *peer = atomic_load(&peers);

    while (peer != NULL && memcmp(peer->nonce, nonce, VMML_NONCE_SIZE) != 0)
        peer = peer->next;
    return peer;
}

static void warn_open(const struct vmml_handle *handle, int error)
{
    switch (error) {
    case ESRCH:
        vmml_debug("process %u of a key has ended", handle->pid);
        break;
    case ENOSYS:
        vmml_warn_once("no fast lane: this kernel has no pidfd_open(2) or "
                       "pidfd_getfd(2) (Linux 5.6), or a seccomp filter hides "
                       "them. Remedy: a newer kernel, or a seccomp profile "
                       "that allows both");
        break;
    case EPERM:
    case EACCES:
        vmml_warn_once("no fast lane to process %u: pidfd_getfd(2) is not "
                       "permitted. Remedy: run both processes as one user; in "
                       "a container add --cap-add=SYS_PTRACE; with Yama set "
                       "kernel.yama.ptrace_scope=0",
                       handle->pid);
        break;
    case EMFILE:
    case ENFILE:
        vmml_warn_once("no fast lane to process %u: no descriptor is left. "
                       "Remedy: raise the limit of open files (ulimit -n)",
                       handle->pid);
        break;
    default:
        vmml_warn_once("no fast lane to process %u: errno %d at its ledger",
                       handle->pid, error);
    }
}

static void warn_ledger(const struct vmml_handle *handle, int error)
{
    switch (error) {
    case ESTALE:
        vmml_debug("process %u is not the one that made the key", handle->pid);
        break;
    case EPROTONOSUPPORT:
        vmml_warn_once("no fast lane to process %u: it runs another version "
                       "of vmmlane. Remedy: the same version in all processes",
                       handle->pid);
        break;
    case EPROTO:
        vmml_warn_once("no fast lane to process %u: descriptor %d of it is no "
                       "ledger",
                       handle->pid, handle->ledger_fd);
        break;
    default:
        vmml_warn_once("no fast lane to process %u: errno %d at its ledger",
                       handle->pid, error);
    }
}

static int attach_ledger(struct vmml_peer *peer,
                         const struct vmml_handle *handle)
{
    int fd = vmml_peer_get_fd(peer, handle->ledger_fd);
    struct stat file;
    int status;

    if (fd < 0) {
        /* The number is gone: an exec, or another process with this pid. */
        if (fd == -EBADF)
            vmml_debug("process %u has no descriptor %d", handle->pid,
                       handle->ledger_fd);
        else
            warn_open(handle, -fd);
        return fd;
    }
    status = fstat(fd, &file) == 0
                 ? vmml_ledger_open(fd, handle->nonce, &peer->reader)
                 : -errno;
    vmml_fd_close(fd);
    if (status == 0 && vmml_ledger_reader_pid(peer->reader) != handle->pid) {
        vmml_ledger_close(peer->reader);
        status = -ESTALE;
    }
    if (status != 0) {
        warn_ledger(handle, -status);
        return status;
    }
    peer->ledger_fd = handle->ledger_fd;
    peer->ledger_dev = file.st_dev;
    peer->ledger_ino = file.st_ino;
    return 0;
}

static bool is_same_namespace(const struct vmml_handle *handle)
{
    if (handle->pid_ns == own_pid_ns())
        return true;
    vmml_warn_once("no fast lane to process %u: it lives in another PID "
                   "namespace. Remedy: share it (--pid=host, or hostPID)",
                   handle->pid);
    return false;
}

static struct vmml_peer *make_peer(const struct vmml_handle *handle)
{
    struct vmml_peer *peer;
    int pidfd;

    if (!is_same_namespace(handle))
        return NULL;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    memcpy(peer->nonce, handle->nonce, VMML_NONCE_SIZE);
    peer->pid = handle->pid;
    pidfd = pidfd_open(handle->pid);
    if (pidfd >= 0)
        pidfd = vmml_fd_raise(pidfd);
    if (pidfd < 0) {
        warn_open(handle, -pidfd);
        free(peer);
        return NULL;
    }
    peer->pidfd = pidfd;
    if (attach_ledger(peer, handle) != 0) {
        vmml_fd_close(pidfd);
        free(peer);
        return NULL;
    }
    return peer;
}

struct vmml_peer *vmml_peer_attach(const struct vmml_handle *handle)
{
    struct vmml_peer *peer = vmml_peer_find(handle->nonce);

    if (peer != NULL)
        return peer;
    pthread_mutex_lock(&lock);
    peer = vmml_peer_find(handle->nonce);
    if (peer == NULL) {
        peer = make_peer(handle);
        if (peer != NULL) {
            peer->next = atomic_load(&peers);
            atomic_store(&peers, peer);
            vmml_info("attached to the ledger of process %u", peer->pid);
        }
    }
    pthread_mutex_unlock(&lock);
    return peer;
}

void vmml_peer_fork_lock(void)
{
    pthread_mutex_lock(&lock);
}

void vmml_peer_fork_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void vmml_peer_fork_child(void)
{
    struct vmml_peer *peer;

    for (peer = vmml_peer_first(); peer != NULL; peer = peer->next) {
        vmml_fd_close(peer->pidfd);
        peer->pidfd = -1;
    }
    pthread_mutex_init(&lock, NULL);
}
