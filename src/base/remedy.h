/* SPDX-License-Identifier: MIT */
/*
 * What to do, for each gate that both the shim's warnings and `vmmlane doctor`
 * speak of: one wording for both.
 */
#ifndef VMML_BASE_REMEDY_H
#define VMML_BASE_REMEDY_H

#define VMML_REMEDY_SECCOMP                                                    \
    "--cap-add=SYS_PTRACE, a seccomp profile that allows pidfd_open and "      \
    "pidfd_getfd, or the socket"
#define VMML_REMEDY_KERNEL "a newer kernel, or the socket"
#define VMML_REMEDY_USER   "run both as one user"
#define VMML_REMEDY_YAMA   "sysctl kernel.yama.ptrace_scope=0, or the socket"
/* Of a process that is not dumpable. */
#define VMML_REMEDY_SOCKET "the socket"
#define VMML_REMEDY_PTRACE "--cap-add=SYS_PTRACE, or the socket"
#define VMML_REMEDY_PID_NAMESPACE                                              \
    "share the PID namespace (--pid=host, hostPID), or the network namespace"
#define VMML_REMEDY_UCX_PID_NAMESPACE                                          \
    "share the PID namespace (--pid=host, hostPID), or UCX 1.22 or older"
#define VMML_REMEDY_DESCRIPTORS "raise the limit of open files (ulimit -n)"
#define VMML_REMEDY_DESCRIPTORS_HARD                                           \
    "raise the hard limit of open files (ulimit -Hn)"
#define VMML_REMEDY_FILE_SIZE "raise the limit of file sizes (ulimit -f)"
#define VMML_REMEDY_VERSION   "the same version in all processes"
#define VMML_REMEDY_UCX_FIRST                                                  \
    "UCX 1.18.1 or newer in both processes, or one and the same build"
#define VMML_REMEDY_UCX_FABRIC                                                 \
    "UCX built with fabric support (as its wheels from 1.18.1 on) in both "    \
    "processes"
#define VMML_REMEDY_HANDLE_TYPE                                                \
    "let the allocator ask cuMemCreate for "                                   \
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or leave VMMLANE_CREATE on"
#define VMML_REMEDY_IMEX                                                       \
    "give the process an IMEX channel (/dev/nvidia-caps-imex-channels), or "   \
    "let the allocator ask for CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as "   \
    "well"
/* Of a key from another node. */
#define VMML_REMEDY_KEY_GONE                                                   \
    "take a new key from the process that has the memory now; if that lives "  \
    "and still has it registered, see that both nodes are in one IMEX domain " \
    "(nvidia-imex-ctl -N)"
#define VMML_REMEDY_BLOCK_READ                                                 \
    "unpack the key again; if that does not help, see the log with "           \
    "VMMLANE_LOG=debug"
/* Of a registration that another of UCX's memory domains refuses. */
#define VMML_REMEDY_RDMA_FLAG                                                  \
    "let the allocator set allocFlags.gpuDirectRDMACapable"
#define VMML_REMEDY_SEVERAL_CHUNKS                                             \
    "a kernel and driver with dmabuf for NICs, UCX_TLS=^gdr_copy for gdr_copy"
#define VMML_REMEDY_CONTEXT                                                    \
    "use the GPU once (for example cudaFree(0)) before the remote keys are "   \
    "unpacked"
#define VMML_REMEDY_DEEPBIND                                                   \
    "open it without RTLD_DEEPBIND (NIXL_UCX_DEEPBIND=0)"

#endif
