/* SPDX-License-Identifier: MIT */
/*
 * The ways by which descriptors may travel, in the user's order.
 */
#ifndef VMML_TRANSPORT_STEPS_H
#define VMML_TRANSPORT_STEPS_H

#include <stdbool.h>

enum vmml_step {
    VMML_STEP_NONE,
    VMML_STEP_GETFD,   /* pidfd_getfd(2) */
    VMML_STEP_PTRACER, /* PR_SET_PTRACER in the exporter, for GETFD */
    VMML_STEP_SOCKET,  /* the exporter's socket */
};

#define VMML_STEPS 3

/* VMMLANE_TRANSPORT, parsed once: VMML_STEPS entries, VMML_STEP_NONE behind
 * the last. A word that is no step gives one warning and the default. */
const enum vmml_step *vmml_steps(void);

bool vmml_step_allowed(enum vmml_step step);

#endif
