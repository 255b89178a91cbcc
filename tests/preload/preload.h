/* SPDX-License-Identifier: MIT */
/* One process for each case: `preload CASE`. */
#ifndef PRELOAD_H
#define PRELOAD_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake/fake_cuda.h"

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);             \
            fflush(stdout);                                                    \
            _Exit(1);                                                          \
        }                                                                      \
    } while (0)

#define CHECK_INT(a, b)                                                        \
    do {                                                                       \
        long long a_ = (long long)(a), b_ = (long long)(b);                    \
                                                                               \
        if (a_ != b_) {                                                        \
            printf("%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a,  \
                   a_, #b, b_);                                                \
            fflush(stdout);                                                    \
            _Exit(1);                                                          \
        }                                                                      \
    } while (0)

/* dlopen, RTLD_LOCAL, or the end. */
void *preload_open(const char *file);
/* A symbol that must be there. */
void *preload_symbol(void *handle, const char *name);
/* Is `address` inside libvmmlane? */
bool preload_is_shim(const void *address);
/* False with VMMLANE=off: what the real functions are called by. */
bool preload_served(void);
/* Name of the symbol at `address`. */
const char *preload_name(const void *address);
/* The fake driver's table. */
const struct fake_function *preload_functions(void *driver);
/* The driver's own address of a function. */
void *preload_real(void *driver, const char *name);

/* dlsym as an old program is bound to it. */
void *preload_old_dlsym(void *handle, const char *name);

/* The cases return after success. */
#define PRELOAD_CASES(X)                                                       \
    X("dlsym-versions", case_dlsym_versions)                                   \
    X("dlsym-names", case_dlsym_names)                                         \
    X("dlsym-foreign", case_dlsym_foreign)                                     \
    X("dlsym-next", case_dlsym_next)                                           \
    X("dlsym-exempt", case_dlsym_exempt)                                       \
    X("dlsym-probe", case_dlsym_probe)                                         \
    X("dlsym-off", case_dlsym_off)                                             \
    X("dlerror", case_dlerror)                                                 \
    X("procaddr", case_procaddr)                                               \
    X("procaddr-itself", case_procaddr_itself)                                 \
    X("procaddr-exempt", case_procaddr_exempt)                                 \
    X("null-outputs", case_null_outputs)                                       \
    X("trampoline", case_trampoline)                                           \
    X("ucx-copies", case_ucx_copies)                                           \
    X("ucx-missing", case_ucx_missing)                                         \
    X("ucx-nested", case_ucx_nested)                                           \
    X("ucx-registers", case_ucx_registers)                                     \
    X("ucx-global", case_ucx_global)                                           \
    X("ucx-fence", case_ucx_fence)                                             \
    X("deepbind-plugin", case_deepbind_plugin)                                 \
    X("deepbind-module", case_deepbind_module)                                 \
    X("deepbind-again", case_deepbind_again)                                   \
    X("deepbind-all", case_deepbind_all)                                       \
    X("fork", case_fork)                                                       \
    X("closed-stderr", case_closed_stderr)

#define PRELOAD_DECLARE(name, function) void function(void);
PRELOAD_CASES(PRELOAD_DECLARE)

#endif
