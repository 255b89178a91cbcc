/* SPDX-License-Identifier: MIT */
#include "mirror/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "mirror/denial.h"
#include "mirror/pidfd.h"
#include "stats/count.h"
#include "transport/client.h"
#include "transport/steps.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct vmml_peer *) peers;

/* One thread at a time attaches. That may take as long as an exporter is
 * waited for, so no fork waits for it: a child closes what its parent had of
 * the new peer, which is in no list yet. */
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct vmml_peer *) new_one;

/* 0 where the number of its process is one of our PID namespace; -errno. */
static int check_namespace(const struct vmml_handle *handle)
{
    struct stat status;

    if (stat("/proc/self/ns/pid", &status) != 0)
        return -errno;
    return (uint32_t)status.st_ino == handle->pid_ns ? 0 : -EXDEV;
}

/* ---- life and death ---- */

size_t vmml_peer_signs(const struct vmml_peer *peer,
                       struct pollfd signs[VMML_PEER_SIGNS])
{
    const int fds[VMML_PEER_SIGNS] = {peer->pidfd, peer->life_fd, peer->socket};
    size_t count = 0;
    size_t i;

    for (i = 0; i < VMML_PEER_SIGNS; i++)
        if (fds[i] >= 0)
            /* The exporter sends nothing unasked: a socket shows its end by
             * POLLHUP alone, a pidfd by POLLIN, a pipe by POLLHUP. */
            signs[count++] = (struct pollfd){
                .fd = fds[i],
                .events = i == 0 ? POLLIN : 0,
            };
    return count;
}

/* A connection may end without its exporter: is the socket all that shows an
 * end, while something else shows life? Then the next question connects anew.
 */
static bool is_only_socket(struct vmml_peer *peer, const struct pollfd *signs,
                           size_t count)
{
    int ended = atomic_load(&peer->socket);
    bool alive = false;
    size_t i;

    for (i = 0; i < count; i++) {
        if (signs[i].fd == ended)
            continue;
        if (signs[i].revents != 0)
            return false;
        alive = true;
    }
    if (!alive)
        return false;
    if (pthread_mutex_trylock(&peer->asking) == 0) {
        if (atomic_load(&peer->socket) == ended) {
            vmml_fork_hold();
            atomic_store(&peer->socket, -1);
            vmml_fd_close(ended);
            vmml_fork_release();
        }
        pthread_mutex_unlock(&peer->asking);
    }
    return true;
}

bool vmml_peer_ended(struct vmml_peer *peer)
{
    struct pollfd signs[VMML_PEER_SIGNS];
    size_t count;

    if (atomic_load(&peer->dead))
        return true;
    count = vmml_peer_signs(peer, signs);
    if (poll(signs, count, 0) <= 0 || is_only_socket(peer, signs, count))
        return false;
    if (!atomic_exchange(&peer->dead, true))
        vmml_count(exporters_ended);
    return true;
}

bool vmml_peer_is_same(struct vmml_peer *peer)
{
    struct stat status;
    bool same;
    int fd;

    if (peer->pidfd < 0)
        return !vmml_peer_ended(peer);
    fd = vmml_pidfd_getfd(peer->pidfd, peer->ledger_fd);
    /* Denied since: then its pipe tells of an exec. */
    if (fd < 0 && fd != -EBADF)
        return peer->life_fd >= 0 && !vmml_peer_ended(peer);
    if (fd >= 0 && fstat(fd, &status) != 0) {
        vmml_fd_close(fd);
        return false; /* which says nothing of the exporter */
    }
    same = fd >= 0 && status.st_dev == peer->ledger_dev &&
           status.st_ino == peer->ledger_ino;
    vmml_fd_close(fd);
    if (!same && !atomic_exchange(&peer->dead, true)) {
        vmml_count(exporters_ended);
        vmml_info("process %u has no ledger any more (an exec, or it closed "
                  "all descriptors)",
                  peer->pid);
    }
    return same;
}

struct vmml_peer *vmml_peer_first(void)
{
    return atomic_load(&peers);
}

struct vmml_peer *vmml_peer_find(const uint8_t nonce[VMML_NONCE_SIZE])
{
    struct vmml_peer *peer = atomic_load(&peers);

    while (peer != NULL && (memcmp(peer->nonce, nonce, VMML_NONCE_SIZE) != 0 ||
                            atomic_load(&peer->mirrors) == VMML_CONDEMNED))
        peer = atomic_load(&peer->next);
    return peer;
}

/* ---- descriptors ---- */

/* With `asking`. */
static int connect_socket(struct vmml_peer *peer)
{
    if (peer->socket < 0)
        peer->socket = vmml_client_connect(peer->nonce, &peer->patience);
    return peer->socket;
}

static int ask(struct vmml_peer *peer, uint32_t what, uint32_t slot,
               uint64_t serial)
{
    int holds = vmml_fork_let_go();
    int fd;

    pthread_mutex_lock(&peer->asking);
    vmml_fork_hold_again(holds);
    if (atomic_load(&peer->dead))
        fd = -ESRCH;
    else
        fd = peer->patience > 0 ? connect_socket(peer) : -ETIMEDOUT;
    if (fd >= 0)
        fd = vmml_client_get(peer->socket, peer->nonce, what, slot, serial,
                             &peer->patience);
    pthread_mutex_unlock(&peer->asking);
    return fd;
}

/* Would another step have the same to say? */
static bool is_final(int error)
{
    return error == ENOENT || error == EBADF || error == ESRCH ||
           error == EMFILE || error == ENFILE;
}

int vmml_peer_get_chunk(struct vmml_peer *peer,
                        const struct vmml_chunk_view *chunk)
{
    const enum vmml_step *steps = vmml_steps();
    int fd = -EPERM;
    size_t i;

    for (i = 0; i < VMML_STEPS && fd < 0; i++) {
        if (steps[i] == VMML_STEP_GETFD && peer->pidfd >= 0)
            fd = vmml_pidfd_getfd(peer->pidfd, chunk->fd);
        else if (steps[i] == VMML_STEP_SOCKET)
            fd = ask(peer, VMML_WIRE_CHUNK, chunk->slot, chunk->serial);
        if (fd >= 0)
            vmml_count_slot(steps[i] == VMML_STEP_GETFD
                                ? VMML_COUNT_descriptors_getfd
                                : VMML_COUNT_descriptors_socket,
                            1);
        if (fd < 0 && is_final(-fd))
            break;
    }
    return fd;
}

/* ---- attaching ---- */

static int open_ledger(struct vmml_peer *peer, int fd, uint32_t pid)
{
    struct stat file;
    int status = fstat(fd, &file) == 0
                     ? vmml_ledger_open(fd, peer->nonce, &peer->reader)
                     : -errno;

    vmml_fd_close(fd);
    peer->ledger_dev = file.st_dev;
    peer->ledger_ino = file.st_ino;
    if (status == 0 && vmml_ledger_reader_pid(peer->reader) != pid) {
        vmml_ledger_close(peer->reader);
        peer->reader = NULL;
        status = -ESTALE;
    }
    return status;
}

static bool is_pipe(int fd)
{
    struct stat status;

    return fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode) &&
           (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

/* The number is the exporter's only if it has not called exec since: then its
 * ledger's number is what it was. */
static int get_life(struct vmml_peer *peer)
{
    int life =
        vmml_pidfd_getfd(peer->pidfd, vmml_ledger_reader_life_fd(peer->reader));

    if (life >= 0 && is_pipe(life) && vmml_peer_is_same(peer))
        return vmml_fd_raise(life);
    vmml_fd_close(life);
    return -1;
}

static int attach_getfd(struct vmml_peer *peer,
                        const struct vmml_handle *handle)
{
    int status = check_namespace(handle);
    int fd;

    if (status != 0)
        return status;
    peer->pidfd = vmml_pidfd_open(handle->pid);
    if (peer->pidfd >= 0)
        peer->pidfd = vmml_fd_raise(peer->pidfd);
    if (peer->pidfd < 0)
        return peer->pidfd;
    peer->ledger_fd = handle->ledger_fd;
    fd = vmml_pidfd_getfd(peer->pidfd, handle->ledger_fd);
    status = fd < 0 ? fd : open_ledger(peer, fd, handle->pid);
    if (status == 0) {
        peer->life_fd = get_life(peer);
        return 0;
    }
    vmml_fd_close(peer->pidfd);
    peer->pidfd = -1;
    return status;
}

static int attach_socket(struct vmml_peer *peer,
                         const struct vmml_handle *handle)
{
    int status;
    int fd = ask(peer, VMML_WIRE_LEDGER, 0, 0);

    if (fd < 0)
        return fd;
    status = open_ledger(peer, fd, handle->pid);
    if (status != 0)
        return status;
    fd = ask(peer, VMML_WIRE_LIFE, 0, 0);
    if (fd >= 0 && is_pipe(fd))
        peer->life_fd = vmml_fd_raise(fd);
    else
        vmml_fd_close(fd);
    /* Without an answer there is no connection either, so no sign of life. */
    if (fd == -EPIPE || fd == -ETIMEDOUT || fd == -EPROTO) {
        vmml_ledger_close(peer->reader);
        peer->reader = NULL;
        return fd;
    }
    return 0;
}

void vmml_peer_strip(struct vmml_peer *peer)
{
    vmml_fork_hold();
    vmml_fd_close(atomic_exchange(&peer->pidfd, -1));
    vmml_fd_close(atomic_exchange(&peer->socket, -1));
    vmml_fd_close(atomic_exchange(&peer->life_fd, -1));
    vmml_fork_release();
    if (peer->reader != NULL)
        vmml_ledger_close(peer->reader);
    peer->reader = NULL;
}

void vmml_peer_free(struct vmml_peer *peer)
{
    vmml_peer_strip(peer);
    pthread_mutex_destroy(&peer->asking);
    free(peer);
}

/* What the machine lacked, or a connection that was there and ended; and not
 * what the exporter is or a policy says. */
static bool is_passing(int error)
{
    return error == ENOMEM || error == EMFILE || error == ENFILE ||
           error == EIO || error == EINTR || error == EAGAIN ||
           error == ENOBUFS || error == EPIPE || error == ECONNRESET;
}

static bool try_steps(struct vmml_peer *peer, const struct vmml_handle *handle,
                      bool *may_pass)
{
    const enum vmml_step *steps = vmml_steps();
    struct vmml_denial denial = {
        .pid = handle->pid, .base = handle->base, .size = handle->size};
    size_t i;

    for (i = 0; i < VMML_STEPS; i++) {
        int status = 0;

        if (steps[i] == VMML_STEP_GETFD)
            status = denial.getfd = attach_getfd(peer, handle);
        else if (steps[i] == VMML_STEP_SOCKET)
            status = denial.socket = attach_socket(peer, handle);
        else
            continue;
        if (status == 0)
            return true;
        *may_pass |= is_passing(-status);
    }
    vmml_denial_warn(&denial);
    return false;
}

/* Exporters that were waited for in vain: not a second time. With
 * `attaching`. */
static struct {
    uint8_t nonce[64][VMML_NONCE_SIZE];
    unsigned count;
} silent;

#define SILENT_MAX (sizeof(silent.nonce) / sizeof(silent.nonce[0]))

static unsigned patience_left(const uint8_t nonce[VMML_NONCE_SIZE])
{
    unsigned i;

    for (i = 0; i < silent.count && i < SILENT_MAX; i++)
        if (memcmp(silent.nonce[i], nonce, VMML_NONCE_SIZE) == 0)
            return 0;
    return VMML_CLIENT_PATIENCE_MS;
}

static void note_silent(const uint8_t nonce[VMML_NONCE_SIZE])
{
    if (patience_left(nonce) > 0)
        memcpy(silent.nonce[silent.count++ % SILENT_MAX], nonce,
               VMML_NONCE_SIZE);
}

static struct vmml_peer *new_peer(const struct vmml_handle *handle)
{
    struct vmml_peer *peer = calloc(1, sizeof(*peer));

    if (peer == NULL)
        return NULL;
    if (pthread_mutex_init(&peer->asking, NULL) != 0) {
        free(peer);
        return NULL;
    }
    memcpy(peer->nonce, handle->nonce, VMML_NONCE_SIZE);
    peer->pid = handle->pid;
    atomic_init(&peer->pidfd, -1);
    atomic_init(&peer->life_fd, -1);
    atomic_init(&peer->socket, -1);
    return peer;
}

/* With `lock`. */
static void enter(struct vmml_peer *peer)
{
    atomic_store(&peer->next, atomic_load(&peers));
    atomic_store(&peers, peer);
}

static void enter_new(struct vmml_peer *peer)
{
    pthread_mutex_lock(&lock);
    enter(peer);
    atomic_store(&new_one, NULL);
    pthread_mutex_unlock(&lock);
    vmml_count(exporters_attached);
    vmml_info("attached to the ledger of process %u by %s", peer->pid,
              peer->pidfd >= 0 ? "pidfd_getfd" : "its socket");
}

static void give_up_new(struct vmml_peer *peer)
{
    if (peer->patience == 0)
        note_silent(peer->nonce);
    /* Stripped first: a child may look at it. */
    vmml_peer_strip(peer);
    atomic_store(&new_one, NULL);
    vmml_peer_free(peer);
}

/* With `attaching`. *may_pass: what keeps it from being made may pass. */
static struct vmml_peer *make_peer(const struct vmml_handle *handle,
                                   bool *may_pass)
{
    struct vmml_peer *peer;
    bool done;

    *may_pass = vmml_fork_watch() != 0;
    if (*may_pass)
        return NULL;
    peer = new_peer(handle);
    *may_pass = peer == NULL;
    if (peer == NULL)
        return NULL;
    peer->patience = patience_left(handle->nonce);
    atomic_store(&new_one, peer);
    vmml_fork_hold();
    done = try_steps(peer, handle, may_pass);
    vmml_fork_release();
    if (done) {
        enter_new(peer);
        return peer;
    }
    give_up_new(peer);
    return NULL;
}

struct vmml_peer *vmml_peer_attach(const struct vmml_handle *handle,
                                   bool *may_pass)
{
    struct vmml_peer *peer = vmml_peer_find(handle->nonce);

    *may_pass = false;
    if (peer != NULL)
        return peer;
    pthread_mutex_lock(&attaching);
    peer = vmml_peer_find(handle->nonce);
    if (peer == NULL)
        peer = make_peer(handle, may_pass);
    pthread_mutex_unlock(&attaching);
    return peer;
}

bool vmml_peer_add_remote(const struct vmml_handle *handle,
                          struct vmml_ledger_reader *reader)
{
    struct vmml_peer *peer = new_peer(handle);

    if (peer == NULL)
        return false;
    peer->reader = reader;
    peer->remote = true;
    pthread_mutex_lock(&lock);
    enter(peer);
    pthread_mutex_unlock(&lock);
    vmml_count(exporters_attached);
    vmml_info("attached to process %u on another node", peer->pid);
    return true;
}

/* Exporters that were attached to and have been freed since, the last ones:
 * UCX may still open a key of theirs. With `lock`. */
static struct {
    uint8_t nonce[4096][VMML_NONCE_SIZE];
    size_t count;
} freed;

#define FREED_MAX (sizeof(freed.nonce) / sizeof(freed.nonce[0]))

static bool was_freed(const uint8_t nonce[VMML_NONCE_SIZE])
{
    size_t i;

    for (i = 0; i < freed.count && i < FREED_MAX; i++)
        if (memcmp(freed.nonce[i], nonce, VMML_NONCE_SIZE) == 0)
            return true;
    return false;
}

static void note_freed(const uint8_t nonce[VMML_NONCE_SIZE])
{
    if (!was_freed(nonce))
        memcpy(freed.nonce[freed.count++ % FREED_MAX], nonce, VMML_NONCE_SIZE);
}

struct vmml_peer *vmml_peer_lost(const struct vmml_handle *handle)
{
    struct vmml_peer *peer = NULL;

    pthread_mutex_lock(&lock);
    if (was_freed(handle->nonce) || vmml_conf()->strict)
        peer = new_peer(handle);
    if (peer != NULL) {
        atomic_store(&peer->dead, true);
        peer->stripped = true;
        enter(peer);
    }
    pthread_mutex_unlock(&lock);
    return peer;
}

bool vmml_peer_hold(struct vmml_peer *peer)
{
    unsigned count = atomic_load(&peer->mirrors);

    while (count != VMML_CONDEMNED &&
           !atomic_compare_exchange_weak(&peer->mirrors, &count, count + 1))
        continue;
    return count != VMML_CONDEMNED;
}

void vmml_peer_drop(struct vmml_peer *peer)
{
    atomic_fetch_sub(&peer->mirrors, 1);
}

/* A reader that is at it goes on by its `next`. */
static void take_out(struct vmml_peer *peer)
{
    struct vmml_peer *at = atomic_load(&peers);

    if (at == peer) {
        atomic_store(&peers, atomic_load(&peer->next));
        return;
    }
    while (atomic_load(&at->next) != peer)
        at = atomic_load(&at->next);
    atomic_store(&at->next, atomic_load(&peer->next));
}

bool vmml_peer_unlink(struct vmml_peer *peer)
{
    unsigned none = 0;
    bool done;

    if (pthread_mutex_trylock(&lock) != 0)
        return false;
    done =
        atomic_compare_exchange_strong(&peer->mirrors, &none, VMML_CONDEMNED);
    if (done) {
        note_freed(peer->nonce);
        take_out(peer);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

void vmml_peer_fork_lock(void)
{
    pthread_mutex_lock(&lock);
}

void vmml_peer_fork_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static void close_inherited(struct vmml_peer *peer)
{
    vmml_fd_close(peer->pidfd);
    vmml_fd_close(peer->socket);
    vmml_fd_close(peer->life_fd);
    atomic_store(&peer->pidfd, -1);
    atomic_store(&peer->life_fd, -1);
    atomic_store(&peer->socket, -1);
}

void vmml_peer_fork_child(void)
{
    struct vmml_peer *peer;

    for (peer = vmml_peer_first(); peer != NULL;
         peer = atomic_load(&peer->next))
        close_inherited(peer);
    peer = atomic_load(&new_one);
    if (peer != NULL)
        close_inherited(peer);
    atomic_store(&new_one, NULL);
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&attaching, NULL);
}
