/* SPDX-License-Identifier: MIT */
/* For the assembly stubs: with -fcf-protection, the landing instruction and
 * the note that keeps the whole library marked. */
#ifndef VMML_DOORS_ASM_X86_64_H
#define VMML_DOORS_ASM_X86_64_H

#ifdef __CET__
#include <cet.h>
#define VMML_ENDBR _CET_ENDBR
#else
#define VMML_ENDBR
#endif

#endif
