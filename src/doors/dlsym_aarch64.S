/* SPDX-License-Identifier: MIT */
    .text
    .hidden vmml_dlsym_route

/* void *dlsym(void *handle, const char *name): jumps to what
 * vmml_dlsym_route(handle, name, return address) returns. */
    .globl dlsym
    .type dlsym, %function
    .p2align 4
dlsym:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    mov x29, sp
    stp x0, x1, [sp, #16]
    mov x2, x30
    bl vmml_dlsym_route
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc
    .size dlsym, . - dlsym

    .section .note.GNU-stack, "", %progbits
