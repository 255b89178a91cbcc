/* SPDX-License-Identifier: MIT */
/*
 * What was found: one entry for each gate, with the evidence and the remedy.
 */
#ifndef VMML_DOCTOR_REPORT_H
#define VMML_DOCTOR_REPORT_H

#include <stdbool.h>
#include <stdio.h>

enum vmml_verdict {
    VMML_PASS,
    VMML_NOTE, /* worth knowing; costs nothing */
    VMML_SKIP, /* could not be judged here */
    VMML_WARN, /* the lane comes up, and something is lost or at risk */
    VMML_FAIL, /* the lane cannot come up */
};

struct vmml_report;

/* NULL without memory. */
struct vmml_report *vmml_report_new(void);
void vmml_report_free(struct vmml_report *report);

/*
 * Add a gate.
 *
 * gate: "group.name", a literal: a stable name, listed in docs/doctor.md.
 * about: what was judged where there may be several ("process 12", a folder);
 * NULL or "": this environment.
 * remedy: what to do; NULL: nothing. Not kept for VMML_PASS.
 * format: the evidence.
 */
void vmml_report_add(struct vmml_report *report, enum vmml_verdict verdict,
                     const char *gate, const char *about, const char *remedy,
                     const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* Has a gate of that name (of any subject) a verdict as bad as `verdict`? */
bool vmml_report_has(const struct vmml_report *report, const char *gate,
                     enum vmml_verdict verdict);

/* No gate failed, and memory never ran out. */
bool vmml_report_can_come_up(const struct vmml_report *report);

/* For people. colour: with ANSI sequences. */
void vmml_report_print(const struct vmml_report *report, FILE *stream,
                       bool colour);

/* One JSON object; docs/doctor.md describes it. */
void vmml_report_print_json(const struct vmml_report *report, FILE *stream);

#endif
