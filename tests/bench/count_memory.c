/*
 * Preloaded in front of the shim: counts what UCX registers, and the dmabufs
 * that it exports. Jumps on, so that the return address, by which the shim
 * knows its callers, stays UCX's own. For x86-64, as the wheels are.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Registrations and bytes of the memory domain with the most bytes, dmabuf
 * exports and their bytes. */
void memory_counts(unsigned long counts[4]);
void count_memory_registration(const void *md, const void *address,
                               size_t length);

__attribute__((visibility("hidden"))) void *count_memory_next_reg;

enum { DOMAINS = 64 };

static struct domain {
    const void *md;
    unsigned long registrations, bytes;
} domains[DOMAINS];
static unsigned long exports, exported_bytes;

/* UCX's clients here have one thread that registers. */
__attribute__((visibility("hidden"))) void
count_memory_registration(const void *md, const void *address, size_t length)
{
    size_t i = 0;

    (void)address;
    while (i < DOMAINS - 1 && domains[i].md != NULL && domains[i].md != md)
        i++;
    domains[i].md = md;
    domains[i].registrations++;
    domains[i].bytes += length;
}

/* md, address, length, params, memh: five arguments, and the stack aligned. */
__asm__(".text\n"
        ".globl uct_md_mem_reg_v2\n"
        ".type uct_md_mem_reg_v2, @function\n"
        "uct_md_mem_reg_v2:\n"
        "    push %rdi\n"
        "    push %rsi\n"
        "    push %rdx\n"
        "    push %rcx\n"
        "    push %r8\n"
        "    call count_memory_registration\n"
        "    pop %r8\n"
        "    pop %rcx\n"
        "    pop %rdx\n"
        "    pop %rsi\n"
        "    pop %rdi\n"
        "    jmp *count_memory_next_reg(%rip)\n"
        ".size uct_md_mem_reg_v2, . - uct_md_mem_reg_v2\n");

typedef CUresult get_handle(void *handle, CUdeviceptr address, size_t size,
                            CUmemRangeHandleType type,
                            unsigned long long flags);

static get_handle *next_get_handle;

static CUresult counted_get_handle(void *handle, CUdeviceptr address,
                                   size_t size, CUmemRangeHandleType type,
                                   unsigned long long flags)
{
    CUresult result = next_get_handle(handle, address, size, type, flags);

    if (result == CUDA_SUCCESS) {
        exports++;
        exported_bytes += size;
    }
    return result;
}

/* UCX asks for the export's address here. */
__attribute__((visibility("default"))) CUresult
cuGetProcAddress_v2(const char *symbol, void **function, int version,
                    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    static CUresult (*next)(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *);
    CUresult result;

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
    if (next == NULL)
        return CUDA_ERROR_NOT_FOUND;
    result = next(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && *function != NULL &&
        strcmp(symbol, "cuMemGetHandleForAddressRange") == 0) {
        *(void **)&next_get_handle = *function;
        *(get_handle **)function = counted_get_handle;
    }
    return result;
}

__attribute__((constructor)) static void resolve(void)
{
    count_memory_next_reg = dlsym(RTLD_NEXT, "uct_md_mem_reg_v2");
    if (count_memory_next_reg == NULL) {
        fputs("count_memory: no registrations to count\n", stderr);
        abort();
    }
}

__attribute__((visibility("default"))) void
memory_counts(unsigned long counts[4])
{
    const struct domain *most = domains;

    for (size_t i = 1; i < DOMAINS; i++)
        if (domains[i].bytes > most->bytes)
            most = &domains[i];
    counts[0] = most->registrations;
    counts[1] = most->bytes;
    counts[2] = exports;
    counts[3] = exported_bytes;
}
