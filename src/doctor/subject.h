/* SPDX-License-Identifier: MIT */
/*
 * Whom the doctor judges: what would be started from here, or a process that
 * runs. Read from /proc (proc(5)) alone; the process is not stopped.
 */
#ifndef VMML_DOCTOR_SUBJECT_H
#define VMML_DOCTOR_SUBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum vmml_namespace {
    VMML_NS_PID,
    VMML_NS_NET,
    VMML_NS_USER,
    VMML_NS_MNT,
    VMML_NS_COUNT,
};

extern const char *const vmml_namespace_names[VMML_NS_COUNT];

struct vmml_subject {
    pid_t pid;      /* 0: what would be started from here */
    char proc[24];  /* "/proc/self" or "/proc/PID" */
    char root[32];  /* before its paths: "" or "/proc/PID/root" */
    char about[32]; /* "" or "process PID" */
    char command[64];

    char *environment; /* "NAME=value" strings, each with its NUL */
    size_t environment_size;
    bool environment_known;

    bool status_known;
    uid_t uid; /* effective, as seen from our user namespace */
    gid_t gid;
    uid_t owner;   /* of its files in /proc; not uid where not dumpable */
    pid_t own_pid; /* its number in its own PID namespace */
    int seccomp;   /* 0 none, 1 strict, 2 filter */
    uint64_t capabilities; /* effective */
    uint64_t permitted;
    bool uid_mapped; /* its user is mapped in its user namespace */

    bool limits_known;
    uint64_t descriptors_soft, descriptors_hard; /* UINT64_MAX: unlimited */
    uint64_t address_space;                      /* soft, bytes */
    uint64_t file_size;                          /* soft, bytes */
    uint64_t descriptors_used;                   /* 0: not known */

    uint64_t namespaces[VMML_NS_COUNT]; /* inode; 0: not known */

    char **files; /* that it has mapped: each path once, in its own root */
    size_t file_count;
    bool files_known;
};

#define VMML_CAP_SYS_PTRACE 19 /* linux/capability.h */

/* pid 0: this process. 0, or -errno: ESRCH no such process, ENOMEM. What may
 * not be read is marked as not known. */
int vmml_subject_read(struct vmml_subject *subject, pid_t pid);
void vmml_subject_free(struct vmml_subject *subject);

/* A variable of its environment, as it was at its start; NULL: not set, or
 * set to nothing, as the shim takes it. */
const char *vmml_subject_env(const struct vmml_subject *subject,
                             const char *name);

/* The words of VMMLANE_* switches: `otherwise` when not set. */
bool vmml_subject_is_on(const struct vmml_subject *subject, const char *name,
                        bool otherwise);

bool vmml_subject_may_trace(const struct vmml_subject *subject);

/* The mapped file whose name without folders begins so; NULL: none. */
const char *vmml_subject_file(const struct vmml_subject *subject,
                              const char *start);

#endif
