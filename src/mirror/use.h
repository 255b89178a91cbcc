/* SPDX-License-Identifier: MIT */
/*
 * Who looks at mirrors and peers without a lock, so that what was taken out of
 * their tables is freed only when nobody can hold a pointer to it any more.
 */
#ifndef VMML_MIRROR_USE_H
#define VMML_MIRROR_USE_H

#include <stdbool.h>

/* From here on pointers that are found stay good until vmml_use_end() is
 * called with what this returned. May be nested, and may take long. */
unsigned vmml_use_begin(void);
void vmml_use_end(unsigned use);

/*
 * For the one thread that frees. After things were taken out of the tables:
 * vmml_use_seal(); they may be freed when vmml_use_is_over() has said so. Waits
 * for nobody.
 */
void vmml_use_seal(void);
bool vmml_use_is_over(void);

/* In a child of fork. */
void vmml_use_fork_child(void);

#endif
