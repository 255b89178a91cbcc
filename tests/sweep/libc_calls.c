/*
 * The shim's calls of the C library that can fail, each with the error that
 * the manual gives as the likeliest.
 */
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* What a failing call returns. */
#define GIVE_CODE(error) return error
#define GIVE_ERRNO(error)                                                      \
    do {                                                                       \
        errno = error;                                                         \
        return -1;                                                             \
    } while (0)
#define GIVE_NULL(error)                                                       \
    do {                                                                       \
        errno = error;                                                         \
        return NULL;                                                           \
    } while (0)
#define GIVE_MAP_FAILED(error)                                                 \
    do {                                                                       \
        errno = error;                                                         \
        return MAP_FAILED;                                                     \
    } while (0)

/* CALL(return type, name, default error, how it fails, parameters, arguments)
 */
#define CALLS                                                                  \
    CALL(int, memfd_create, EMFILE, GIVE_ERRNO,                                \
         (const char *n, unsigned flags), (n, flags))                          \
    CALL(int, ftruncate64, EINVAL, GIVE_ERRNO, (int fd, off_t n), (fd, n))     \
    CALL(int, fallocate64, ENOSPC, GIVE_ERRNO,                                 \
         (int fd, int mode, off_t from, off_t n), (fd, mode, from, n))         \
    CALL(int, posix_fallocate64, ENOSPC, GIVE_CODE,                            \
         (int fd, off_t from, off_t n), (fd, from, n))                         \
    CALL(int, fchmod, EPERM, GIVE_ERRNO, (int fd, mode_t mode), (fd, mode))    \
    CALL(int, rename, EACCES, GIVE_ERRNO, (const char *from, const char *to),  \
         (from, to))                                                           \
    CALL(int, unlink, EACCES, GIVE_ERRNO, (const char *p), (p))                \
    CALL(int, fstat64, EIO, GIVE_ERRNO, (int fd, struct stat64 *s), (fd, s))   \
    CALL(int, fstatfs64, EIO, GIVE_ERRNO, (int fd, struct statfs64 *s),        \
         (fd, s))                                                              \
    CALL(int, stat64, ENOENT, GIVE_ERRNO, (const char *p, struct stat64 *s),   \
         (p, s))                                                               \
    CALL(int, access, ENOENT, GIVE_ERRNO, (const char *p, int mode),           \
         (p, mode))                                                            \
    CALL(int, mprotect, ENOMEM, GIVE_ERRNO, (void *p, size_t n, int prot),     \
         (p, n, prot))                                                         \
    CALL(int, madvise, ENOMEM, GIVE_ERRNO, (void *p, size_t n, int advice),    \
         (p, n, advice))                                                       \
    CALL(int, pipe2, EMFILE, GIVE_ERRNO, (int *fds, int flags), (fds, flags))  \
    CALL(int, dup, EMFILE, GIVE_ERRNO, (int fd), (fd))                         \
    CALL(int, dup3, EMFILE, GIVE_ERRNO, (int fd, int to, int flags),           \
         (fd, to, flags))                                                      \
    CALL(ssize_t, read, EIO, GIVE_ERRNO, (int fd, void *p, size_t n),          \
         (fd, p, n))                                                           \
    CALL(ssize_t, pread64, EIO, GIVE_ERRNO,                                    \
         (int fd, void *p, size_t n, off_t at), (fd, p, n, at))                \
    CALL(ssize_t, write, EIO, GIVE_ERRNO, (int fd, const void *p, size_t n),   \
         (fd, p, n))                                                           \
    CALL(ssize_t, readlink, EIO, GIVE_ERRNO,                                   \
         (const char *path, char *p, size_t n), (path, p, n))                  \
    CALL(int, poll, EINTR, GIVE_ERRNO,                                         \
         (struct pollfd * fds, nfds_t n, int wait), (fds, n, wait))            \
    CALL(int, ppoll, EINTR, GIVE_ERRNO,                                        \
         (struct pollfd * fds, nfds_t n, const struct timespec *wait,          \
          const sigset_t *mask),                                               \
         (fds, n, wait, mask))                                                 \
    CALL(int, epoll_create1, EMFILE, GIVE_ERRNO, (int flags), (flags))         \
    CALL(int, epoll_ctl, ENOSPC, GIVE_ERRNO,                                   \
         (int e, int op, int fd, struct epoll_event *event),                   \
         (e, op, fd, event))                                                   \
    CALL(int, epoll_wait, EINTR, GIVE_ERRNO,                                   \
         (int e, struct epoll_event *events, int n, int wait),                 \
         (e, events, n, wait))                                                 \
    CALL(int, eventfd, EMFILE, GIVE_ERRNO, (unsigned value, int flags),        \
         (value, flags))                                                       \
    CALL(int, eventfd_read, EAGAIN, GIVE_ERRNO, (int fd, eventfd_t *value),    \
         (fd, value))                                                          \
    CALL(int, eventfd_write, EAGAIN, GIVE_ERRNO, (int fd, eventfd_t value),    \
         (fd, value))                                                          \
    CALL(int, timerfd_create, EMFILE, GIVE_ERRNO, (clockid_t c, int flags),    \
         (c, flags))                                                           \
    CALL(ssize_t, getrandom, ENOSYS, GIVE_ERRNO,                               \
         (void *p, size_t n, unsigned flags), (p, n, flags))                   \
    CALL(int, getrlimit64, EPERM, GIVE_ERRNO,                                  \
         (__rlimit_resource_t what, struct rlimit64 * limit), (what, limit))   \
    CALL(int, setrlimit64, EPERM, GIVE_ERRNO,                                  \
         (__rlimit_resource_t what, const struct rlimit64 *limit),             \
         (what, limit))                                                        \
    CALL(int, clock_gettime, EINVAL, GIVE_ERRNO,                               \
         (clockid_t c, struct timespec * t), (c, t))                           \
    CALL(int, clock_nanosleep, EINTR, GIVE_CODE,                               \
         (clockid_t c, int flags, const struct timespec *t,                    \
          struct timespec *rest),                                              \
         (c, flags, t, rest))                                                  \
    CALL(int, nanosleep, EINTR, GIVE_ERRNO,                                    \
         (const struct timespec *t, struct timespec *rest), (t, rest))         \
    CALL(int, uname, EFAULT, GIVE_ERRNO, (struct utsname * name), (name))      \
    CALL(DIR *, opendir, EMFILE, GIVE_NULL, (const char *path), (path))        \
    CALL(struct dirent64 *, readdir64, EIO, GIVE_NULL, (DIR * folder),         \
         (folder))                                                             \
    CALL(char *, getcwd, ENOENT, GIVE_NULL, (char *p, size_t n), (p, n))       \
    CALL(void *, dlopen, 0, GIVE_NULL, (const char *name, int mode),           \
         (name, mode))                                                         \
    CALL(int, pthread_attr_init, ENOMEM, GIVE_CODE, (pthread_attr_t * a), (a)) \
    CALL(int, pthread_attr_setdetachstate, EINVAL, GIVE_CODE,                  \
         (pthread_attr_t * a, int state), (a, state))                          \
    CALL(int, pthread_attr_setstacksize, EINVAL, GIVE_CODE,                    \
         (pthread_attr_t * a, size_t n), (a, n))                               \
    CALL(int, pthread_condattr_init, ENOMEM, GIVE_CODE,                        \
         (pthread_condattr_t * a), (a))                                        \
    CALL(int, pthread_condattr_setclock, EINVAL, GIVE_CODE,                    \
         (pthread_condattr_t * a, clockid_t c), (a, c))                        \
    CALL(int, pthread_cond_init, ENOMEM, GIVE_CODE,                            \
         (pthread_cond_t * c, const pthread_condattr_t *a), (c, a))            \
    CALL(int, pthread_mutex_init, ENOMEM, GIVE_CODE,                           \
         (pthread_mutex_t * m, const pthread_mutexattr_t *a), (m, a))          \
    CALL(int, pthread_cond_timedwait, ETIMEDOUT, GIVE_CODE,                    \
         (pthread_cond_t * c, pthread_mutex_t * m, const struct timespec *t),  \
         (c, m, t))                                                            \
    CALL(int, pthread_mutex_timedlock, ETIMEDOUT, GIVE_CODE,                   \
         (pthread_mutex_t * m, const struct timespec *t), (m, t))              \
    CALL(int, pthread_sigmask, EINVAL, GIVE_CODE,                              \
         (int how, const sigset_t *set, sigset_t *old), (how, set, old))       \
    CALL(int, socket, EMFILE, GIVE_ERRNO, (int d, int type, int p),            \
         (d, type, p))                                                         \
    CALL(int, bind, EADDRINUSE, GIVE_ERRNO,                                    \
         (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))          \
    CALL(int, listen, EADDRINUSE, GIVE_ERRNO, (int fd, int n), (fd, n))        \
    CALL(int, connect, ECONNREFUSED, GIVE_ERRNO,                               \
         (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))          \
    CALL(int, accept4, EMFILE, GIVE_ERRNO,                                     \
         (int fd, struct sockaddr *a, socklen_t *n, int flags),                \
         (fd, a, n, flags))                                                    \
    CALL(int, getsockopt, EINVAL, GIVE_ERRNO,                                  \
         (int fd, int level, int name, void *p, socklen_t *n),                 \
         (fd, level, name, p, n))                                              \
    CALL(int, setsockopt, EINVAL, GIVE_ERRNO,                                  \
         (int fd, int level, int name, const void *p, socklen_t n),            \
         (fd, level, name, p, n))                                              \
    CALL(ssize_t, sendmsg, EPIPE, GIVE_ERRNO,                                  \
         (int fd, const struct msghdr *m, int flags), (fd, m, flags))          \
    CALL(ssize_t, recvmsg, ECONNRESET, GIVE_ERRNO,                             \
         (int fd, struct msghdr *m, int flags), (fd, m, flags))                \
    CALL(ssize_t, send, EPIPE, GIVE_ERRNO,                                     \
         (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))      \
    CALL(ssize_t, recv, ECONNRESET, GIVE_ERRNO,                                \
         (int fd, void *p, size_t n, int flags), (fd, p, n, flags))            \
    CALL(int, shutdown, ENOTCONN, GIVE_ERRNO, (int fd, int how), (fd, how))

/* posix_fallocate64 and friends may be unused: the table is what counts. */
#define CALL(type, function, default_error, give, params, args)                \
    static struct call call_##function = {.name = #function,                   \
                                          .error = default_error};             \
    static type do_##function params                                           \
    {                                                                          \
        int error_ = sweep_hit(&call_##function, false);                       \
                                                                               \
        if (error_ != 0)                                                       \
            give(error_);                                                      \
        return function args;                                                  \
    }
CALLS
#undef CALL

/* ---- with an effect that is counted, or with a shape of their own ---- */

#define OWN_CALLS                                                              \
    OWN(malloc, ENOMEM)                                                        \
    OWN(calloc, ENOMEM)                                                        \
    OWN(realloc, ENOMEM)                                                       \
    OWN(mmap64, ENOMEM)                                                        \
    OWN(munmap, ENOMEM)                                                        \
    OWN(close, EIO)                                                            \
    OWN(closedir, EIO)                                                         \
    OWN(open64, EMFILE)                                                        \
    OWN(fcntl64, EMFILE)                                                       \
    OWN(prctl, EINVAL)                                                         \
    OWN(pthread_create, EAGAIN)                                                \
    OWN(pidfd_open, EMFILE)                                                    \
    OWN(pidfd_getfd, EPERM)                                                    \
    OWN(syscall, ENOSYS)                                                       \
    OWN(dlvsym, 0)

#define OWN(function, default_error)                                           \
    static struct call call_##function = {.name = #function,                   \
                                          .error = default_error};
OWN_CALLS
#undef OWN

static void *do_malloc(size_t size)
{
    int error = sweep_hit(&call_malloc, false);

    if (error != 0)
        GIVE_NULL(error);
    sweep_live(LIVE_ALLOCATIONS, 1);
    return malloc(size);
}

static void *do_calloc(size_t count, size_t size)
{
    int error = sweep_hit(&call_calloc, false);

    if (error != 0)
        GIVE_NULL(error);
    sweep_live(LIVE_ALLOCATIONS, 1);
    return calloc(count, size);
}

static void *do_realloc(void *old, size_t size)
{
    int error = sweep_hit(&call_realloc, false);

    if (error != 0)
        GIVE_NULL(error);
    if (old == NULL)
        sweep_live(LIVE_ALLOCATIONS, 1);
    return realloc(old, size);
}

static void do_free(void *memory)
{
    if (memory != NULL)
        sweep_live(LIVE_ALLOCATIONS, -1);
    free(memory);
}

static void *do_mmap64(void *address, size_t size, int protection, int flags,
                       int fd, off_t offset)
{
    int error = sweep_hit(&call_mmap64, false);
    void *map;

    if (error != 0)
        GIVE_MAP_FAILED(error);
    map = mmap(address, size, protection, flags, fd, offset);
    if (map != MAP_FAILED)
        sweep_live(LIVE_MAPS, 1);
    return map;
}

/* The kernel unmaps, then says that it did not: who believes it may not use
 * the memory any more all the same, and nothing is left to count as lost. */
static int do_munmap(void *address, size_t size)
{
    int error = sweep_hit(&call_munmap, false);

    if (munmap(address, size) != 0)
        return -1;
    sweep_live(LIVE_MAPS, -1);
    if (error != 0)
        GIVE_ERRNO(error);
    return 0;
}

/* Linux gives the number back whatever close(2) says (its manual, "Dealing
 * with error returns"). */
static int do_close(int fd)
{
    int error = sweep_hit(&call_close, false);
    int result = close(fd);

    if (error != 0)
        GIVE_ERRNO(error);
    return result;
}

static int do_closedir(DIR *folder)
{
    int error = sweep_hit(&call_closedir, false);
    int result = closedir(folder);

    if (error != 0)
        GIVE_ERRNO(error);
    return result;
}

static int do_open64(const char *path, int flags, mode_t mode)
{
    int error = sweep_hit(&call_open64, false);

    if (error != 0)
        GIVE_ERRNO(error);
    return open64(path, flags, mode);
}

static int do_fcntl64(int fd, int command, long argument)
{
    int error = sweep_hit(&call_fcntl64, false);

    if (error != 0)
        GIVE_ERRNO(error);
    return fcntl64(fd, command, argument);
}

static int do_prctl(int option, unsigned long a, unsigned long b,
                    unsigned long c, unsigned long d)
{
    int error = sweep_hit(&call_prctl, false);

    if (error != 0)
        GIVE_ERRNO(error);
    return prctl(option, a, b, c, d);
}

struct start {
    void *(*function)(void *);
    void *arg;
};

static void *counted_thread(void *arg)
{
    struct start start = *(struct start *)arg;
    void *result;

    free(arg);
    result = start.function(start.arg);
    sweep_live(LIVE_THREADS, -1);
    return result;
}

static int do_pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                             void *(*start)(void *), void *arg)
{
    int error = sweep_hit(&call_pthread_create, false);

    struct start *copy;

    if (error != 0)
        return error;
    copy = malloc(sizeof(*copy));
    if (copy == NULL)
        return EAGAIN;
    *copy = (struct start){start, arg};
    sweep_live(LIVE_THREADS, 1);
    error = pthread_create(thread, attr, counted_thread, copy);
    if (error != 0) {
        sweep_live(LIVE_THREADS, -1);
        free(copy);
    }
    return error;
}

static long do_syscall(long number, long a, long b, long c, long d, long e,
                       long f)
{
    struct call *call = &call_syscall;
    int error;

    if (number == SYS_pidfd_open)
        call = &call_pidfd_open;
    else if (number == SYS_pidfd_getfd)
        call = &call_pidfd_getfd;
    error = sweep_hit(call, false);
    if (error != 0)
        GIVE_ERRNO(error);
    return syscall(number, a, b, c, d, e, f);
}

static void *do_dlvsym(void *handle, const char *name, const char *version)
{
    if (sweep_hit(&call_dlvsym, false) != 0)
        return NULL;
    return sweep_dlvsym(handle, name, version);
}

/* ---- the table ---- */

static const struct {
    const char *name;
    void *replacement;
    struct call *call;
} table[] = {
#define CALL(type, function, error, give, params, args)                        \
    {#function, (void *)do_##function, &call_##function},
    CALLS
#undef CALL
    {"malloc", (void *)do_malloc, &call_malloc},
    {"calloc", (void *)do_calloc, &call_calloc},
    {"realloc", (void *)do_realloc, &call_realloc},
    {"free", (void *)do_free, NULL},
    {"mmap64", (void *)do_mmap64, &call_mmap64},
    {"mmap", (void *)do_mmap64, NULL},
    {"munmap", (void *)do_munmap, &call_munmap},
    {"close", (void *)do_close, &call_close},
    {"closedir", (void *)do_closedir, &call_closedir},
    {"open64", (void *)do_open64, &call_open64},
    {"open", (void *)do_open64, NULL},
    {"fcntl64", (void *)do_fcntl64, &call_fcntl64},
    {"fcntl", (void *)do_fcntl64, NULL},
    {"prctl", (void *)do_prctl, &call_prctl},
    {"pthread_create", (void *)do_pthread_create, &call_pthread_create},
    {"syscall", (void *)do_syscall, &call_syscall},
    {NULL, NULL, &call_pidfd_open},
    {NULL, NULL, &call_pidfd_getfd},
    {"dlvsym", (void *)do_dlvsym, &call_dlvsym},
};

enum { TABLE_SIZE = sizeof(table) / sizeof(table[0]) };

void *sweep_replacement(const char *name)
{
    for (size_t i = 0; i < TABLE_SIZE; i++)
        if (table[i].name != NULL && strcmp(table[i].name, name) == 0)
            return table[i].replacement;
    return NULL;
}

struct call *sweep_libc_call(size_t index)
{
    size_t seen = 0;

    for (size_t i = 0; i < TABLE_SIZE; i++)
        if (table[i].call != NULL && seen++ == index)
            return table[i].call;
    return NULL;
}
