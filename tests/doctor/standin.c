/* SPDX-License-Identifier: MIT */
/* Stand-ins for the files of a UCX: what the doctor reads of them. */
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define FUNCTION(name)                                                         \
    EXPORT void name(void);                                                    \
    EXPORT void name(void)                                                     \
    {                                                                          \
    }

#ifdef UCP
EXPORT const char *ucp_get_version_string(void);
EXPORT const char *ucp_get_version_string(void)
{
    return UCP;
}
#ifdef FLAGS
EXPORT const char *ucp_flags(void);
EXPORT const char *ucp_flags(void)
{
    return FLAGS;
}
#endif
#endif

#ifdef CALLS
/* As libucp calls libuct. */
void uct_md_mkey_pack_v2(void);
EXPORT void ucp_rkey_pack(void);
EXPORT void ucp_rkey_pack(void)
{
    uct_md_mkey_pack_v2();
}
#endif

#ifdef UCT
FUNCTION(uct_md_mem_query)
#if UCT >= 18
FUNCTION(uct_md_mkey_pack_v2)
#endif
#if UCT >= 22
FUNCTION(uct_md_mem_query_v2)
#endif
#if UCT >= 23
FUNCTION(uct_md_mem_elem_release)
#endif
#endif

#ifdef MODULE
EXPORT const char *uct_cuda_name(void);
EXPORT const char *uct_cuda_name(void)
{
    return "uct_cuda";
}
#ifdef FABRIC
int cuMemExportToShareableHandle(void *, unsigned long long, int, long long);
EXPORT int uct_cuda_export(void);
EXPORT int uct_cuda_export(void)
{
    return cuMemExportToShareableHandle(NULL, 0, 8, 0);
}
#endif
#ifdef NATIVE
/* Of UCX's POSIX_FD arm: the text, and the import of syscall(2). */
EXPORT long uct_cuda_getfd(int pidfd, int fd, const char **name);
EXPORT long uct_cuda_getfd(int pidfd, int fd, const char **name)
{
    *name = "pidfd_getfd";
    return syscall(438, pidfd, fd, 0); /* asm-generic/unistd.h */
}
#endif
#endif
