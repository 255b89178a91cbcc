/* SPDX-License-Identifier: MIT */
/*
 * Who called: a return address to the kind of module that holds it.
 */
#ifndef VMML_DOORS_CALLER_H
#define VMML_DOORS_CALLER_H

#include <stdbool.h>

enum vmml_caller {
    VMML_CALLER_OTHER,    /* the application, PyTorch, NCCL, ... */
    VMML_CALLER_UCT_CUDA, /* libuct_cuda*: sees changed answers */
    VMML_CALLER_UCM,      /* libucm*: gets raw answers, real pointers */
    VMML_CALLER_UCX,      /* libucs*, libuct*, libucp* but for the above */
    VMML_CALLER_DRIVER,   /* libcuda*, and profilers that inject themselves */
    VMML_CALLER_SHIM,     /* libvmmlane itself */
    VMML_CALLER_NAMED,    /* named by VMMLANE_RANGE_CALLERS */
};

/*
 * Class of the module that holds `address`; VMML_CALLER_OTHER when no module
 * does (JIT code). Cheap after the first call for a module (no lock, no
 * system call). libuct_cuda_gdrcopy* counts as UCX, not as UCT_CUDA.
 */
enum vmml_caller vmml_caller_class(const void *address);

/*
 * Does the module that holds `address` share POSIX descriptors by itself?
 * True when it imports `syscall` and contains the text "pidfd_getfd" (UCX
 * 1.22 and newer where the build had it); remembered for each module. The
 * version number says nothing: no published wheel has it.
 */
bool vmml_module_has_native_fd(const void *address);

/* Was the UCX module that holds `address` built with fabric support? Its keys
 * have a field for a pool's pointer then. By its imports; remembered too. */
bool vmml_module_has_fabric(const void *address);

#endif
