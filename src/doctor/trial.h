/* SPDX-License-Identifier: MIT */
/*
 * What the kernel allows here, by trying it between two processes of which
 * neither is the other's ancestor, as exporter and importer are.
 */
#ifndef VMML_DOCTOR_TRIAL_H
#define VMML_DOCTOR_TRIAL_H

#include <stdbool.h>

#define VMML_NOT_TRIED (-1)

/* Each: 0 it works, VMML_NOT_TRIED, or the errno. */
struct vmml_trial {
    int own_open;  /* pidfd_open(2) of the own process */
    int own_getfd; /* pidfd_getfd(2) of the own process: no rule of ptrace(2)
                    * is asked */
    int memfd;     /* memfd_create(2) with seals: a ledger */
    int open;      /* pidfd_open(2) of the other process */
    int getfd;     /* pidfd_getfd(2) of the other process */
    int ptracer;   /* the same after its PR_SET_PTRACER */
    int socket;    /* a descriptor by its abstract socket */
    bool killed;   /* a call ended the process that made it */
};

/* What is denied is then not a matter of who asks. */
#define VMML_DENIED(error)                                                     \
    ((error) == EPERM || (error) == EACCES || (error) == ENOSYS)

void vmml_trial_run(struct vmml_trial *trial);

/* "works", "not tried", or the errno's text. */
const char *vmml_trial_text(int result);

#endif
