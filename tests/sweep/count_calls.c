/*
 * In place of faults.c and libc_calls.c: counts all that the shim calls for one
 * thread, of the C library and of the driver. Nothing fails.
 *
 * The C library's functions are reached through thunks that are put into the
 * shim's GOT when counting begins for the first time.
 */
#include "faults.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IMPORTS = 192, THUNK_SIZE = 16 };

struct import {
    const char *name;
    void *real;
    unsigned long calls;
};

static struct import imports[MAX_IMPORTS];
static size_t import_count;

/* Does this thread count? */
static __thread bool counts __attribute__((tls_model("initial-exec")));

/* ---- imports of the C library ---- */

extern char count_thunks[];
void *count_import(size_t number);

/* Returns where the thunk goes on to. The vector registers hold arguments of
 * the call. */
__attribute__((target("general-regs-only"))) void *count_import(size_t number)
{
    if (counts)
        imports[number].calls++;
    return imports[number].real;
}

/* All registers of arguments are kept; the target takes the number's place. */
__asm__(".text\n"
        ".p2align 4\n"
        "count_thunks:\n"
        ".set count_number, 0\n"
        ".rept 192\n"
        ".p2align 4\n"
        "pushq $count_number\n"
        "jmp count_thunk_common\n"
        ".set count_number, count_number + 1\n"
        ".endr\n"
        ".p2align 4\n"
        "count_thunk_common:\n"
        "push %rax\n"
        "push %rdi\n"
        "push %rsi\n"
        "push %rdx\n"
        "push %rcx\n"
        "push %r8\n"
        "push %r9\n"
        "push %r10\n"
        "push %r11\n"
        "mov 72(%rsp), %rdi\n"
        "sub $8, %rsp\n"
        "call count_import\n"
        "add $8, %rsp\n"
        "mov %rax, 72(%rsp)\n"
        "pop %r11\n"
        "pop %r10\n"
        "pop %r9\n"
        "pop %r8\n"
        "pop %rcx\n"
        "pop %rdx\n"
        "pop %rsi\n"
        "pop %rdi\n"
        "pop %rax\n"
        "ret\n");

/* A name may have a slot in both tables. */
static struct import *import_of(const char *name, void *slot_value)
{
    struct import *import = imports;

    while (import < imports + import_count && strcmp(import->name, name) != 0)
        import++;
    if (import < imports + import_count)
        return import;
    if (import_count == MAX_IMPORTS) {
        fprintf(stderr, "count: no room for %s\n", name);
        abort();
    }
    import_count++;
    import->name = name;
    /* Not bound yet: the slot leads back into the shim. */
    import->real =
        sweep_in_shim(slot_value) ? dlsym(RTLD_DEFAULT, name) : slot_value;
    return import;
}

/* Left alone: the loader's and the compiler's own (they keep registers that
 * others do not), and what replaces the driver. */
static void count_import_of(const char *name, void **slot)
{
    const struct import *import;

    if (*name == '_' || *slot == NULL || strcmp(name, "dlvsym") == 0)
        return;
    import = import_of(name, *slot);
    if (import->real != NULL)
        sweep_write_slot(slot, count_thunks + (import - imports) * THUNK_SIZE);
}

void *sweep_replacement(const char *name)
{
    return strcmp(name, "dlvsym") == 0 ? (void *)sweep_dlvsym : NULL;
}

/* ---- calls of the driver: driver_calls.c ---- */

int sweep_hit(struct call *call, bool passed)
{
    if (counts)
        __atomic_add_fetch(passed ? &call->passed : &call->own, 1,
                           __ATOMIC_RELAXED);
    return 0;
}

void sweep_live(enum live what, long change)
{
    (void)what;
    (void)change;
}

/* ---- what the client calls ---- */

void sweep_arm_from(char **environment)
{
    (void)environment;
}

void sweep_disarm(void)
{
    counts = false;
}

void sweep_arm(const char *rule)
{
    struct call *call;

    (void)rule;
    counts = false;
    if (import_count == 0)
        sweep_each_import(count_import_of);
    for (size_t i = 0; i < import_count; i++)
        imports[i].calls = 0;
    for (size_t i = 0; (call = sweep_driver_call_at(i)) != NULL; i++)
        call->own = call->passed = 0;
    counts = true;
}

void sweep_report(char *text, size_t size)
{
    FILE *out = fmemopen(text, size, "w");
    struct call *call;

    if (out == NULL)
        return;
    fputs("calls", out);
    for (size_t i = 0; i < import_count; i++)
        if (imports[i].calls != 0)
            fprintf(out, " %s=%lu+0", imports[i].name, imports[i].calls);
    for (size_t i = 0; (call = sweep_driver_call_at(i)) != NULL; i++)
        if (call->own != 0 || call->passed != 0)
            fprintf(out, " %s=%lu+%lu", call->name, call->own, call->passed);
    fclose(out);
}
