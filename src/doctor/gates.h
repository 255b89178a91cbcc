/* SPDX-License-Identifier: MIT */
/*
 * The gates, by groups: each adds its verdicts to the report. docs/doctor.md
 * lists them, a line for each.
 */
#ifndef VMML_DOCTOR_GATES_H
#define VMML_DOCTOR_GATES_H

#include <stdbool.h>

#include "doctor/report.h"
#include "doctor/subject.h"
#include "doctor/trial.h"

/* What the user asked for. */
struct vmml_doctor {
    unsigned timeout;          /* of a child, in milliseconds */
    const char *const *places; /* more folders to look for UCX in; ends with
                                * NULL */
    const char *venv;          /* a virtual environment, or NULL */
};

/* Ways for descriptors: bits of vmml_gates_steps(). */
#define VMML_WAY_GETFD   1u
#define VMML_WAY_PTRACER 2u
#define VMML_WAY_SOCKET  4u
#define VMML_WAY_ALL     7u

/* What VMMLANE_TRANSPORT of a subject allows. *valid: false for a word that is
 * no step (the shim then uses the default). */
unsigned vmml_gates_steps(const struct vmml_subject *subject, bool *valid);

/* kernel.c: "kernel." and, from limits, "limits.". */
void vmml_gates_kernel(struct vmml_report *report,
                       const struct vmml_subject *subject,
                       const struct vmml_trial *trial);
void vmml_gates_limits(struct vmml_report *report,
                       const struct vmml_subject *subject);

/* process.c: "settings." of any subject, "process." of a running one. */
void vmml_gates_settings(struct vmml_report *report,
                         const struct vmml_subject *subject);
void vmml_gates_process(struct vmml_report *report,
                        const struct vmml_subject *subject,
                        const struct vmml_trial *trial);

/* bound.c: do its UCX's calls lead through the shim? */
void vmml_gates_bound(struct vmml_report *report,
                      const struct vmml_subject *subject);

/* pair.c: "pair.". */
void vmml_gates_pair(struct vmml_report *report, const struct vmml_subject *a,
                     const struct vmml_subject *b);

/* driver.c: "driver." Links of device 0 as NVML tells them: *links. */
void vmml_gates_driver(struct vmml_report *report,
                       const struct vmml_doctor *doctor);
/* NVLinks of GPU 0 as UCX counts them; -1: NVML cannot be used. */
int vmml_driver_nvlinks(const struct vmml_doctor *doctor);

/* ucx.c: "ucx.". nvlinks: as above, or -2: another container's. */
void vmml_gates_ucx(struct vmml_report *report,
                    const struct vmml_subject *subject,
                    const struct vmml_doctor *doctor, int nvlinks);

/* The UCX that a running process has loaded. */
struct vmml_ucx_loaded {
    char version[16];
    unsigned minor; /* of 1.x; 0: not known */
    bool fabric;    /* built with fabric: the larger of two kinds of keys */
};
/* False where none is loaded, or none with a CUDA module. Of several the
 * first. */
bool vmml_ucx_loaded(const struct vmml_subject *subject,
                     struct vmml_ucx_loaded *ucx);

/* python.c: "python.". */
void vmml_gates_python(struct vmml_report *report,
                       const struct vmml_subject *subject,
                       const struct vmml_doctor *doctor);

#endif
