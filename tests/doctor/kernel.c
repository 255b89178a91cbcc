/* SPDX-License-Identifier: MIT */
/*
 * Preloaded: the kernels that cannot be had here.
 *
 * FAKE_KERNEL=old: Linux 5.4, without pidfd_open(2) and pidfd_getfd(2).
 * FAKE_KERNEL=yama0, yama1, yama2, yama3: with Yama at that scope, between
 * processes that are not each other's ancestors (its documentation,
 * Documentation/admin-guide/LSM/Yama.rst). At 0 ptrace(2)'s own rules deny.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#define SCOPE_FILE  "/proc/sys/kernel/yama/ptrace_scope"
#define PTRACER     0x59616d61
#define PIDFD_OPEN  434
#define PIDFD_GETFD 438

/* Processes that may be traced, shared with the children. */
#define ALLOWED_MAX 64
static pid_t *allowed;

__attribute__((constructor)) static void share(void)
{
    allowed = mmap(NULL, ALLOWED_MAX * sizeof(*allowed), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (allowed == MAP_FAILED)
        abort();
}

static int scope(void)
{
    const char *kernel = getenv("FAKE_KERNEL");

    return kernel != NULL && strncmp(kernel, "yama", 4) == 0 ? kernel[4] - '0'
                                                             : -1;
}

static int is_old(void)
{
    const char *kernel = getenv("FAKE_KERNEL");

    return kernel != NULL && strcmp(kernel, "old") == 0;
}

/* "Pid:" of the pidfd's entry in /proc/self/fdinfo. */
static pid_t pid_of(int pidfd)
{
    char path[64], line[128];
    pid_t pid = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "Pid:", 4) == 0)
            pid = (pid_t)strtol(line + 4, NULL, 10);
    if (file != NULL)
        fclose(file);
    return pid;
}

static int may_trace(pid_t pid)
{
    int i;

    if (pid == getpid())
        return 1;
    for (i = 0; scope() == 1 && i < ALLOWED_MAX; i++)
        if (__atomic_load_n(&allowed[i], __ATOMIC_ACQUIRE) == pid)
            return 1;
    return 0;
}

static int allow(void)
{
    long (*real)(long, ...);
    int i;

    /* Where this kernel has Yama, it is to agree. */
    *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    real(SYS_prctl, PTRACER, -1L, 0L, 0L, 0L);
    for (i = 0; i < ALLOWED_MAX; i++) {
        pid_t empty = 0;

        if (__atomic_compare_exchange_n(&allowed[i], &empty, getpid(), 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 0;
    }
    return -1;
}

EXPORT int prctl(int option, ...)
{
    static int (*real)(int, unsigned long, unsigned long, unsigned long,
                       unsigned long);
    unsigned long arguments[4];
    va_list list;
    int i;

    va_start(list, option);
    for (i = 0; i < 4; i++)
        arguments[i] = va_arg(list, unsigned long);
    va_end(list);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "prctl");
    if (option != PTRACER)
        return real(option, arguments[0], arguments[1], arguments[2],
                    arguments[3]);
    return allow();
}

EXPORT long syscall(long number, ...)
{
    static long (*real)(long, long, long, long, long, long, long);
    long arguments[6];
    va_list list;
    int i;

    va_start(list, number);
    for (i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    /* As the shim calls it, whose prctl(2) is in front of this one. */
    if (number == SYS_prctl && arguments[0] == PTRACER && scope() >= 0)
        return allow();
    if (is_old() && (number == PIDFD_OPEN || number == PIDFD_GETFD)) {
        errno = ENOSYS;
        return -1;
    }
    if (scope() >= 0 && number == PIDFD_GETFD &&
        !may_trace(pid_of((int)arguments[0]))) {
        errno = EPERM;
        return -1;
    }
    return real(number, arguments[0], arguments[1], arguments[2], arguments[3],
                arguments[4], arguments[5]);
}

EXPORT int uname(struct utsname *name)
{
    static int (*real)(struct utsname *);
    int result;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "uname");
    result = real(name);
    if (result == 0 && is_old())
        strcpy(name->release, "5.4.0-fake");
    return result;
}

static int scope_file(void)
{
    char digit[2] = {(char)('0' + scope()), '\n'};
    int fd = memfd_create("ptrace_scope", MFD_CLOEXEC);

    if (fd >= 0 && (write(fd, digit, 2) != 2 || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int open_it(const char *name, const char *path, int flags, unsigned mode)
{
    int (*real)(const char *, int, ...);

    if (scope() >= 0 && strcmp(path, SCOPE_FILE) == 0)
        return scope_file();
    *(void **)&real = dlsym(RTLD_NEXT, name);
    return real(path, flags, mode);
}

/* The C library's header would rename the first to the second. */
#define OPEN(symbol)                                                           \
    EXPORT int fake_##symbol(const char *path, int flags,                      \
                             ...) __asm__(#symbol);                            \
    EXPORT int fake_##symbol(const char *path, int flags, ...)                 \
    {                                                                          \
        unsigned mode;                                                         \
        va_list list;                                                          \
                                                                               \
        va_start(list, flags);                                                 \
        mode =                                                                 \
            (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, unsigned) : 0; \
        va_end(list);                                                          \
        return open_it(#symbol, path, flags, mode);                            \
    }
OPEN(open)
OPEN(open64)

EXPORT int access(const char *path, int mode)
{
    static int (*real)(const char *, int);

    if (scope() >= 0 && strcmp(path, SCOPE_FILE) == 0)
        return 0;
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "access");
    return real(path, mode);
}
