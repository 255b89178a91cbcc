/* SPDX-License-Identifier: MIT */
/*
 * Work that may hang or crash, in a child process.
 */
#ifndef VMML_DOCTOR_CHILD_H
#define VMML_DOCTOR_CHILD_H

#include <stddef.h>

/* Memory that a child shares with us, zeroed; NULL with errno. */
void *vmml_shared_new(size_t size);
void vmml_shared_free(void *shared, size_t size);

enum vmml_child_end {
    VMML_CHILD_DONE,        /* the work returned */
    VMML_CHILD_EXITED,      /* it called exit(3); value: the status */
    VMML_CHILD_KILLED,      /* value: the signal */
    VMML_CHILD_TIMED_OUT,   /* and was killed */
    VMML_CHILD_NOT_STARTED, /* value: errno */
};

struct vmml_child {
    enum vmml_child_end end;
    int value;
};

/* Its standard output and error go nowhere. `timeout` in milliseconds. A child
 * that cannot even be killed (in the driver) is left behind. */
struct vmml_child vmml_child_run(void (*work)(void *shared), void *shared,
                                 unsigned timeout);

/* "did not answer in 20 s", "died of signal 11 (Segmentation fault)", ...;
 * in a buffer that the next call uses again. */
const char *vmml_child_text(struct vmml_child child, unsigned timeout);

#endif
