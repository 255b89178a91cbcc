/*
 * Exported symbols, generated from entries.def.
 *
 * UCM patches the first 12 bytes of some of them and its decoder knows few
 * instructions, none of which a compiler is bound to begin with; on x86-64
 * every symbol is therefore a thunk whose beginning it can decode (UCX
 * src/ucm/bistro/bistro_x86_64.c). Each has an address of its own: two names
 * on one address would be patched twice.
 */
#include "internal.h"

/* The header leaves this one out. */
CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version,
                                  cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status);

/* The type of every implementation is the header's. */
#define ENTRY(name, base, since, mode, need, params, args)                     \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name),              \
                                                __typeof__(sim_##name)),       \
                   #name);
#define ENTRY_WIDE ENTRY
#include "entries.def"
#undef ENTRY
#undef ENTRY_WIDE

#define SIM_DISPATCH(name, need, params, args)                                 \
    CUresult sim_do_##name params;                                             \
    __attribute__((used)) CUresult sim_do_##name params                        \
    {                                                                          \
        CUresult result = sim_enter(SIM_ID_##name, SIM_##need);                \
                                                                               \
        if (result == CUDA_SUCCESS) {                                          \
            result = sim_##name args;                                          \
        }                                                                      \
        if (__builtin_expect(sim_tracing, 0)) {                                \
            sim_trace(SIM_ID_##name, result);                                  \
        }                                                                      \
        return result;                                                         \
    }

#if defined(__x86_64__)

#define SIM_THUNK(name, body)                                                  \
    __asm__(".pushsection .text\n"                                             \
            ".p2align 6\n"                                                     \
            ".globl " #name "\n"                                               \
            ".type " #name ", @function\n"                                     \
            ".hidden sim_at_" #name "\n"                                       \
            ".globl sim_at_" #name "\n"                                        \
            ".type sim_at_" #name ", @function\n" #name ":\n"                  \
            "sim_at_" #name ":\n"                                              \
            ".cfi_startproc\n" body ".cfi_endproc\n"                           \
            ".size " #name ", .-" #name "\n"                                   \
            ".popsection\n")

/* .byte: the 32-bit form of sub, so that whole instructions fill 12 bytes. */
#define SIM_THUNK_FRAME(name)                                                  \
    SIM_THUNK(name, "push %rbp\n"                                              \
                    ".cfi_def_cfa_offset 16\n"                                 \
                    ".cfi_offset rbp, -16\n"                                   \
                    "mov %rsp, %rbp\n"                                         \
                    ".cfi_def_cfa_register rbp\n"                              \
                    ".byte 0x48, 0x81, 0xec, 0x28, 0, 0, 0\n"                  \
                    "push %rbx\n"                                              \
                    "call sim_do_" #name "\n"                                  \
                    "leave\n"                                                  \
                    ".cfi_def_cfa rsp, 8\n"                                    \
                    "ret\n")

#define SIM_THUNK_JUMP(name) SIM_THUNK(name, "jmp sim_do_" #name "\n")

#define ENTRY(name, base, since, mode, need, params, args)                     \
    SIM_DISPATCH(name, need, params, args)                                     \
    extern char sim_at_##name[];                                               \
    SIM_THUNK_FRAME(name);
#define ENTRY_WIDE(name, base, since, mode, need, params, args)                \
    SIM_DISPATCH(name, need, params, args)                                     \
    extern char sim_at_##name[];                                               \
    SIM_THUNK_JUMP(name);

#else

#define ENTRY(name, base, since, mode, need, params, args)                     \
    SIM_DISPATCH(name, need, params, args)                                     \
    extern char sim_at_##name[];                                               \
    __asm__(".pushsection .text\n"                                             \
            ".globl " #name "\n"                                               \
            ".type " #name ", %function\n"                                     \
            ".hidden sim_at_" #name "\n"                                       \
            ".globl sim_at_" #name "\n" #name ":\n"                            \
            "sim_at_" #name ":\n"                                              \
            "b sim_do_" #name "\n"                                             \
            ".size " #name ", .-" #name "\n"                                   \
            ".popsection\n");
#define ENTRY_WIDE ENTRY

#endif

#include "entries.def"
#undef ENTRY
#undef ENTRY_WIDE

const struct sim_entry sim_entries[SIM_ID_COUNT] = {
#define ENTRY(name, base, since, mode, need, params, args)                     \
    {#name, #base, since, SIM_##mode, sim_at_##name},
#define ENTRY_WIDE ENTRY
#include "entries.def"
#undef ENTRY
#undef ENTRY_WIDE
};
