/* SPDX-License-Identifier: MIT */
/*
 * For an object that runs on glibc 2.28 and newer, whatever glibc it is built
 * with (the option oldest_glibc; included before everything else). glibc keeps
 * old versions of its symbols for ever; a linker takes the newest unless it is
 * told. Up to 2.33 these are in libpthread and libdl, which are linked by
 * name; later ones keep both as empty files.
 *
 * tests/package/ checks what versions are asked for in the end.
 */
#ifndef VMML_BASE_GLIBC_2_28_H
#define VMML_BASE_GLIBC_2_28_H

#ifndef __ASSEMBLER__ /* assembly files are given it too */

#include <features.h>

/* From 2.38 on strtol(3) and its like take binary numbers, by new names. */
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#if defined(__x86_64__)
#define VMML_OLD(name, version)                                                \
    __asm__(".symver " #name "," #name "@GLIBC_" version);
#else /* aarch64 came with glibc 2.17 */
#define VMML_OLD(name, version)                                                \
    __asm__(".symver " #name "," #name "@GLIBC_2.17");
#endif

VMML_OLD(dlclose, "2.2.5")
VMML_OLD(dladdr, "2.2.5")
VMML_OLD(dlerror, "2.2.5")
VMML_OLD(dlinfo, "2.3.3")
VMML_OLD(dlopen, "2.2.5")
VMML_OLD(dlsym, "2.2.5")
VMML_OLD(dlvsym, "2.2.5")
VMML_OLD(pthread_condattr_setclock, "2.3.3")
VMML_OLD(pthread_create, "2.2.5")
VMML_OLD(pthread_getattr_np, "2.2.5")
VMML_OLD(pthread_join, "2.2.5")
VMML_OLD(pthread_key_create, "2.2.5")
VMML_OLD(pthread_kill, "2.2.5")
VMML_OLD(pthread_mutex_timedlock, "2.2.5")
VMML_OLD(pthread_mutex_trylock, "2.2.5")
VMML_OLD(pthread_once, "2.2.5")
VMML_OLD(pthread_setspecific, "2.2.5")
VMML_OLD(pthread_sigmask, "2.2.5")
VMML_OLD(sem_init, "2.2.5")
VMML_OLD(sem_post, "2.2.5")
VMML_OLD(sem_wait, "2.2.5")

/* Before 2.33 these were inline functions around others. The kernel's struct
 * stat is glibc's on both CPUs. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline __attribute__((unused)) int
vmml_fstatat(int folder, const char *path, struct stat *status, int flags)
{
    return (int)syscall(SYS_newfstatat, folder, path, status, flags);
}

static inline __attribute__((unused)) int vmml_fstat(int fd,
                                                     struct stat *status)
{
    return (int)syscall(SYS_fstat, fd, status);
}

#define fstatat(folder, path, status, flags)                                   \
    vmml_fstatat(folder, path, status, flags)
#define fstat(fd, status)  vmml_fstat(fd, status)
#define stat(path, status) vmml_fstatat(AT_FDCWD, path, status, 0)
#define lstat(path, status)                                                    \
    vmml_fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW)

#endif /* __ASSEMBLER__ */

#endif /* VMML_BASE_GLIBC_2_28_H */
