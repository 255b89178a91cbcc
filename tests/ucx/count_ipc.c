/*
 * Preloaded in front of the shim: counts UCX's opens and closes of IPC memory.
 * Tail jumps, so that the return address, by which the shim knows its callers,
 * stays UCX's own. The wheels log neither call. For x86-64, as the wheels are.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void ipc_counts(unsigned long counts[2]);

__attribute__((visibility("hidden"))) unsigned long count_ipc_calls[2];
__attribute__((visibility("hidden"))) void *count_ipc_next[2];

#define COUNTED(name, offset)                                                  \
    __asm__(".text\n"                                                          \
            ".globl " name "\n"                                                \
            ".type " name ", @function\n" name ":\n"                           \
            "    lock incq count_ipc_calls+" offset "(%rip)\n"                 \
            "    jmp *count_ipc_next+" offset "(%rip)\n"                       \
            ".size " name ", . - " name "\n")

COUNTED("cuIpcOpenMemHandle_v2", "0");
COUNTED("cuIpcCloseMemHandle", "8");

__attribute__((constructor)) static void resolve(void)
{
    count_ipc_next[0] = dlsym(RTLD_NEXT, "cuIpcOpenMemHandle_v2");
    count_ipc_next[1] = dlsym(RTLD_NEXT, "cuIpcCloseMemHandle");
    if (count_ipc_next[0] == NULL || count_ipc_next[1] == NULL) {
        fputs("count_ipc: no IPC functions to count\n", stderr);
        abort();
    }
}

__attribute__((visibility("default"))) void ipc_counts(unsigned long counts[2])
{
    counts[0] = __atomic_load_n(&count_ipc_calls[0], __ATOMIC_RELAXED);
    counts[1] = __atomic_load_n(&count_ipc_calls[1], __ATOMIC_RELAXED);
}
