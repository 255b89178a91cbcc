/* SPDX-License-Identifier: MIT */
/*
 * Why an exporter cannot be reached: which gate, and what opens it.
 */
#ifndef VMML_MIRROR_DENIAL_H
#define VMML_MIRROR_DENIAL_H

#include <stdint.h>

/* What each step ended with: -errno, or 0 where it was not tried. EXDEV: the
 * exporter lives in another PID namespace. */
struct vmml_denial {
    uint32_t pid;
    uint64_t base; /* of the window */
    uint64_t size;
    int getfd;
    int socket;
};

/* One warning for each cause. A peer that is gone or is not the one that made
 * the key is no denial and is not warned of. */
void vmml_denial_warn(const struct vmml_denial *denial);

#endif
