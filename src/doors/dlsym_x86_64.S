/* SPDX-License-Identifier: MIT */
#include "doors/asm_x86_64.h"

    .text
    .hidden vmml_dlsym_route

/* void *dlsym(void *handle, const char *name): jumps to what
 * vmml_dlsym_route(handle, name, return address) returns. */
    .globl dlsym
    .type dlsym, @function
    .p2align 4
dlsym:
    .cfi_startproc
    VMML_ENDBR
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp /* calls are made with 16-byte alignment */
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rdx
    call vmml_dlsym_route
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%rax
    .cfi_endproc
    .size dlsym, . - dlsym

    .section .note.GNU-stack, "", @progbits
