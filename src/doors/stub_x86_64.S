/* SPDX-License-Identifier: MIT */
/*
 * Exports of functions whose parameters differ between versions of UCX: every
 * argument register is kept, and the real function is jumped to.
 */
#include "doors/asm_x86_64.h"

#define VMML_UCS_ERR_UNSUPPORTED -22

    .text
    .hidden vmml_stub_enter
    .set vmml_stub_number, 0

.macro vmml_stub name
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    VMML_ENDBR
    movl $vmml_stub_number, %r11d
    jmp .Lstub_common
    .cfi_endproc
    .size \name, . - \name
    .set vmml_stub_number, vmml_stub_number + 1
.endm

#define VMML_CU(name, params, args)
#define VMML_CU_REAL(name)
#define VMML_UCT(type, name, params, args, missing)
#define VMML_UCT_STUB(name) vmml_stub name
#include "hooks.def"

/* Frame, from %rsp: 128 bytes of vector registers, 6 argument registers, the
 * vector count of a variadic call, the static chain. */
    .type vmml_stub_common, @function
    .p2align 4
vmml_stub_common:
.Lstub_common:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $192, %rsp
    movaps %xmm0, (%rsp)
    movaps %xmm1, 16(%rsp)
    movaps %xmm2, 32(%rsp)
    movaps %xmm3, 48(%rsp)
    movaps %xmm4, 64(%rsp)
    movaps %xmm5, 80(%rsp)
    movaps %xmm6, 96(%rsp)
    movaps %xmm7, 112(%rsp)
    movq %rdi, 128(%rsp)
    movq %rsi, 136(%rsp)
    movq %rdx, 144(%rsp)
    movq %rcx, 152(%rsp)
    movq %r8, 160(%rsp)
    movq %r9, 168(%rsp)
    movq %rax, 176(%rsp)
    movq %r10, 184(%rsp)
    movl %r11d, %edi
    leaq 128(%rsp), %rsi
    movq 8(%rbp), %rdx
    call vmml_stub_enter
    movq %rax, %r11
    movaps (%rsp), %xmm0
    movaps 16(%rsp), %xmm1
    movaps 32(%rsp), %xmm2
    movaps 48(%rsp), %xmm3
    movaps 64(%rsp), %xmm4
    movaps 80(%rsp), %xmm5
    movaps 96(%rsp), %xmm6
    movaps 112(%rsp), %xmm7
    movq 128(%rsp), %rdi
    movq 136(%rsp), %rsi
    movq 144(%rsp), %rdx
    movq 152(%rsp), %rcx
    movq 160(%rsp), %r8
    movq 168(%rsp), %r9
    movq 176(%rsp), %rax
    movq 184(%rsp), %r10
    leave
    .cfi_def_cfa %rsp, 8
    .cfi_restore %rbp
    testq %r11, %r11
    jz 1f
    jmp *%r11
1:
    movl $VMML_UCS_ERR_UNSUPPORTED, %eax
    ret
    .cfi_endproc
    .size vmml_stub_common, . - vmml_stub_common

    .section .note.GNU-stack, "", @progbits
