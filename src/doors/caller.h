/* SPDX-License-Identifier: MIT */
/*
 * Who called: a return address to the kind of module that holds it.
 */
#ifndef VMML_DOORS_CALLER_H
#define VMML_DOORS_CALLER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* An identity of the module that holds `address`, of its path and place:
 * another one that is loaded there later has another. 0 when no module holds
 * it. */
uint64_t vmml_caller_identity(const void *address);

/*
 * Return addresses in libuct_cuda, which is kept loaded from its first call
 * on: no module can lie there later, so that they are told without a look-up.
 * A copy is posted by one of few. An address that finds its place taken is
 * looked up each time.
 */
#define VMML_KEPT_CALLERS 256
extern _Atomic(const void *) vmml_kept_callers[VMML_KEPT_CALLERS];

static inline unsigned vmml_kept_place(const void *caller)
{
    return (unsigned)(((uintptr_t)caller * 0x9e3779b97f4a7c15ull) >> 56);
}

static inline bool vmml_caller_is_kept(const void *caller)
{
    return caller != NULL &&
           atomic_load_explicit(&vmml_kept_callers[vmml_kept_place(caller)],
                                memory_order_relaxed) == caller;
}

/* The same as vmml_caller_class() for who called a hook; an address in
 * libuct_cuda is kept. */
enum vmml_caller vmml_hook_caller_look(const void *caller);

static inline enum vmml_caller vmml_hook_caller(const void *caller)
{
    return vmml_caller_is_kept(caller) ? VMML_CALLER_UCT_CUDA
                                       : vmml_hook_caller_look(caller);
}

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
