/* SPDX-License-Identifier: MIT */
/*
 * Stands in for UCX's CUDA module: the shim tells modules apart by their file
 * names, and by what is in them.
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "standin.h"

#define EXPORT __attribute__((visibility("default")))

static const struct vmml_uct_component component = {"cuda_ipc"};

/* Of another transport. */
static const struct vmml_uct_component copy_component = {"cuda_copy"};
EXPORT extern struct vmml_uct_md standin_copy_md;
EXPORT struct vmml_uct_md standin_copy_md = {NULL, &copy_component};

EXPORT extern struct vmml_uct_cuda_ipc_md standin_md;
EXPORT struct vmml_uct_cuda_ipc_md standin_md = {{NULL, &component}, 0};
/* One whose keys go to other nodes. */
EXPORT extern struct vmml_uct_cuda_ipc_md standin_mnnvl_md;
EXPORT struct vmml_uct_cuda_ipc_md standin_mnnvl_md = {{NULL, &component}, 1};

/* The functions of libuct, as a test wants them. */
EXPORT extern struct standin_uct standin_uct;
EXPORT struct standin_uct standin_uct;

EXPORT vmml_ucs_status_t uct_md_mem_reg_v2(vmml_uct_md_h md, void *address,
                                           size_t length, const void *params,
                                           vmml_uct_mem_h *memh);
vmml_ucs_status_t uct_md_mem_reg_v2(vmml_uct_md_h md, void *address,
                                    size_t length, const void *params,
                                    vmml_uct_mem_h *memh)
{
    return standin_uct.reg(md, address, length, params, memh);
}

EXPORT vmml_ucs_status_t uct_md_mem_dereg_v2(
    vmml_uct_md_h md, const struct vmml_uct_mem_dereg_params *params);
vmml_ucs_status_t
uct_md_mem_dereg_v2(vmml_uct_md_h md,
                    const struct vmml_uct_mem_dereg_params *params)
{
    return standin_uct.dereg(md, params);
}

EXPORT vmml_ucs_status_t uct_md_mkey_pack_v2(vmml_uct_md_h md,
                                             vmml_uct_mem_h memh, void *address,
                                             size_t length, const void *params,
                                             void *buffer);
vmml_ucs_status_t uct_md_mkey_pack_v2(vmml_uct_md_h md, vmml_uct_mem_h memh,
                                      void *address, size_t length,
                                      const void *params, void *buffer)
{
    return standin_uct.pack(md, memh, address, length, params, buffer);
}

EXPORT vmml_ucs_status_t uct_rkey_unpack(vmml_uct_component_h of,
                                         const void *buffer,
                                         struct vmml_uct_rkey_bundle *bundle);
vmml_ucs_status_t uct_rkey_unpack(vmml_uct_component_h of, const void *buffer,
                                  struct vmml_uct_rkey_bundle *bundle)
{
    return standin_uct.unpack(of, buffer, bundle);
}

EXPORT vmml_ucs_status_t uct_rkey_ptr(vmml_uct_component_h of,
                                      struct vmml_uct_rkey_bundle *bundle,
                                      uint64_t remote, void **local);
vmml_ucs_status_t uct_rkey_ptr(vmml_uct_component_h of,
                               struct vmml_uct_rkey_bundle *bundle,
                               uint64_t remote, void **local)
{
    return standin_uct.ptr(of, bundle, remote, local);
}

EXPORT vmml_ucs_status_t uct_rkey_release(
    vmml_uct_component_h of, const struct vmml_uct_rkey_bundle *bundle);
vmml_ucs_status_t uct_rkey_release(vmml_uct_component_h of,
                                   const struct vmml_uct_rkey_bundle *bundle)
{
    return standin_uct.release(of, bundle);
}

/* As a UCX that was built with fabric support looks from outside. */
extern int cuMemPoolExportPointer(void *data, unsigned long long ptr)
    __attribute__((weak));
EXPORT int standin_export_pointer(void *data, unsigned long long ptr);
int standin_export_pointer(void *data, unsigned long long ptr)
{
    return cuMemPoolExportPointer == NULL ? -1
                                          : cuMemPoolExportPointer(data, ptr);
}

#ifdef STANDIN_NATIVE
/* As the POSIX_FD arm of UCX 1.22 looks from outside. */
EXPORT long standin_get_fd(int pidfd, int fd, const char **error);
long standin_get_fd(int pidfd, int fd, const char **error)
{
    *error = "pidfd_getfd(%d) failed";
    return syscall(SYS_pidfd_getfd, pidfd, fd, 0);
}
#endif
