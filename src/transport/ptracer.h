/* SPDX-License-Identifier: MIT */
/*
 * Yama's gate (kernel documentation, Documentation/admin-guide/LSM/Yama.rst):
 * at ptrace_scope 1 a process may say who may trace it, and so take its
 * descriptors.
 */
#ifndef VMML_TRANSPORT_PTRACER_H
#define VMML_TRANSPORT_PTRACER_H

/*
 * kernel.yama.ptrace_scope from the file at `path`; 0 where the kernel has no
 * Yama or the file cannot be read.
 */
int vmml_ptrace_scope(const char *path);
#define VMML_PTRACE_SCOPE_FILE "/proc/sys/kernel/yama/ptrace_scope"

/* At scope 1, let every process of this user trace this one, unless the
 * application has set a tracer of its own. */
void vmml_ptracer_allow(int scope);

/* The application set its own tracer, or took it back (its prctl(2) calls are
 * watched: the kernel tells nobody). */
void vmml_ptracer_seen(void);

#endif
