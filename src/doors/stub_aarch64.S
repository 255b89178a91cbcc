/* SPDX-License-Identifier: MIT */
/*
 * Exports of functions whose parameters differ between versions of UCX: every
 * argument register is kept, and the real function is jumped to.
 */
#define VMML_UCS_ERR_UNSUPPORTED -22

    .text
    .hidden vmml_stub_enter
    .set vmml_stub_number, 0

.macro vmml_stub name
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint #34 /* bti c */
    mov w16, #vmml_stub_number
    b vmml_stub_common
    .cfi_endproc
    .size \name, . - \name
    .set vmml_stub_number, vmml_stub_number + 1
.endm

#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name) vmml_stub name
#include "hooks.def"

/* Frame, from sp: frame record, 8 argument registers, x8 (the address of a
 * returned structure), 8 vector registers. */
    .type vmml_stub_common, %function
    .p2align 4
vmml_stub_common:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w16
    add x1, sp, #16
    mov x2, x30
    bl vmml_stub_enter
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    cbz x16, 1f
    br x16
1:
    mov w0, #VMML_UCS_ERR_UNSUPPORTED
    ret
    .cfi_endproc
    .size vmml_stub_common, . - vmml_stub_common

    .section .note.GNU-stack, "", %progbits
