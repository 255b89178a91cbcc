/*
 * The shim's calls of the driver. It finds each function once by dlsym; it
 * gets the address of a thunk here, which knows its number, and the caller.
 */
#include "faults.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CALLS = 128 };

typedef CUresult any_fn(long, long, long, long, long, long);

struct driver_call {
    struct call call;
    char name[64];
    any_fn *real;
    /* What a success takes and gives back. */
    long change;
    enum live what;
    bool done; /* a call that fails has done its work all the same */
};

static struct driver_call calls[MAX_CALLS];
static size_t call_count;
static struct driver_call *batch, *ipc_open;

static const struct {
    const char *name;
    enum live what;
    long change;
} effects[] = {
    {"cuMemAddressReserve", LIVE_RESERVATIONS, 1},
    {"cuMemAddressFree", LIVE_RESERVATIONS, -1},
    {"cuMemMap", LIVE_MAPPINGS, 1},
    {"cuMemUnmap", LIVE_MAPPINGS, -1},
    {"cuMemRetainAllocationHandle", LIVE_HANDLES, 1},
    {"cuMemImportFromShareableHandle", LIVE_HANDLES, 1},
    {"cuMemRelease", LIVE_HANDLES, -1},
    {"cuMemPoolImportFromShareableHandle", LIVE_HANDLES, 1},
    {"cuMemPoolDestroy", LIVE_HANDLES, -1},
    /* One import of an allocation at a time, in a round. */
    {"cuMemPoolImportPointer", LIVE_MAPPINGS, 1},
    {"cuMemFree_v2", LIVE_MAPPINGS, -1},
    {"cuEventCreate", LIVE_EVENTS, 1},
    {"cuStreamCreate", LIVE_EVENTS, 1}, /* counted with them */
    {"cuStreamDestroy_v2", LIVE_EVENTS, -1},
    {"cuEventDestroy_v2", LIVE_EVENTS, -1},
    {"cuCtxPushCurrent_v2", LIVE_CONTEXTS, 1},
    {"cuCtxPopCurrent_v2", LIVE_CONTEXTS, -1},
    {"cuDevicePrimaryCtxRetain", LIVE_CONTEXTS, 1},
    {"cuDevicePrimaryCtxRelease_v2", LIVE_CONTEXTS, -1},
};

/* Their error is that of an earlier launch (driver documentation), and what is
 * gone must not be named again: nobody can try them a second time. */
static bool is_done_all_the_same(const char *name)
{
    return strcmp(name, "cuStreamDestroy_v2") == 0 ||
           strcmp(name, "cuDevicePrimaryCtxRelease_v2") == 0;
}

struct call *sweep_driver_call_at(size_t index)
{
    return index < call_count ? &calls[index].call : NULL;
}

/* A hook that calls the function of its own name does so for its caller. */
static bool is_passed(const char *name, const void *caller)
{
    const char *function = sweep_function_at(caller);
    size_t length = strlen(name);

    if (strncmp(function, "vmml_", 5) == 0)
        function += 5;
    return strncmp(function, name, length) == 0 &&
           (function[length] == '\0' || function[length] == '.');
}

static int enter(struct driver_call *call, const void *caller, bool *passed)
{
    *passed = !sweep_in_shim(caller) || is_passed(call->name, caller);
    return sweep_hit(&call->call, *passed);
}

/* What a hook makes is its caller's, but for the memory of a block. */
static bool is_own_memory(const struct driver_call *call, const void *caller)
{
    return strcmp(call->name, "cuMemCreate") == 0 && sweep_in_shim(caller) &&
           strncmp(sweep_function_at(caller), "vmml_block_create", 17) == 0;
}

long sweep_driver_call(long a, long b, long c, long d, long e, long f,
                       size_t index, const void *caller);

long sweep_driver_call(long a, long b, long c, long d, long e, long f,
                       size_t index, const void *caller)
{
    struct driver_call *call = &calls[index];
    CUresult result;
    bool passed;
    int error = enter(call, caller, &passed);

    if (error != 0 && !call->done)
        return error;
    result = call->real(a, b, c, d, e, f);
    if (result == CUDA_SUCCESS && !passed && call->change != 0)
        sweep_live(call->what, call->change);
    if (result == CUDA_SUCCESS && is_own_memory(call, caller))
        sweep_live(LIVE_HANDLES, 1);
    return error != 0 ? error : (long)result;
}

/* The two functions with arguments on the stack. */
static CUresult ipc_open_call(CUdeviceptr *ptr, CUipcMemHandle handle,
                              unsigned flags)
{
    __typeof__(cuIpcOpenMemHandle_v2) *real = (void *)ipc_open->real;
    bool passed;
    int error = enter(ipc_open, __builtin_return_address(0), &passed);

    return error != 0 ? (CUresult)error : real(ptr, handle, flags);
}

static CUresult batch_call(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                           size_t count, CUmemcpyAttributes *attributes,
                           size_t *indices, size_t attribute_count,
                           CUstream stream)
{
    __typeof__(cuMemcpyBatchAsync_v2) *real = (void *)batch->real;
    bool passed;
    int error = enter(batch, __builtin_return_address(0), &passed);

    return error != 0 ? (CUresult)error
                      : real(dsts, srcs, sizes, count, attributes, indices,
                             attribute_count, stream);
}

/* ---- thunks ---- */

extern char sweep_thunks[];
enum { THUNK_SIZE = 16 };

/* Number and caller become the 7th and the 8th argument. */
__asm__(".text\n"
        ".p2align 4\n"
        "sweep_thunks:\n"
        ".set sweep_number, 0\n"
        ".rept 128\n"
        ".p2align 4\n"
        "mov $sweep_number, %eax\n"
        "jmp sweep_thunk_common\n"
        ".set sweep_number, sweep_number + 1\n"
        ".endr\n"
        ".p2align 4\n"
        "sweep_thunk_common:\n"
        "mov (%rsp), %r10\n"
        "sub $8, %rsp\n"
        "push %r10\n"
        "push %rax\n"
        "call sweep_driver_call\n"
        "add $24, %rsp\n"
        "ret\n");

static void *entry_for(struct driver_call *call)
{
    if (strcmp(call->name, "cuMemcpyBatchAsync_v2") == 0) {
        batch = call;
        return (void *)batch_call;
    }
    if (strcmp(call->name, "cuIpcOpenMemHandle_v2") == 0) {
        ipc_open = call;
        return (void *)ipc_open_call;
    }
    return sweep_thunks + (call - calls) * THUNK_SIZE;
}

static void *thunk_for(const char *name, void *real)
{
    struct driver_call *call;

    for (size_t i = 0; i < call_count; i++)
        if (strcmp(calls[i].name, name) == 0)
            return entry_for(&calls[i]);
    if (call_count == MAX_CALLS || strlen(name) >= sizeof(call->name)) {
        fprintf(stderr, "sweep: no room for %s\n", name);
        abort();
    }
    call = &calls[call_count];
    strcpy(call->name, name);
    call->call.name = call->name;
    call->call.error = CUDA_ERROR_OUT_OF_MEMORY;
    call->real = (any_fn *)real;
    call->done = is_done_all_the_same(name);
    for (size_t i = 0; i < sizeof(effects) / sizeof(effects[0]); i++)
        if (strcmp(effects[i].name, name) == 0) {
            call->what = effects[i].what;
            call->change = effects[i].change;
        }
    call_count++;
    return entry_for(call);
}

/* ---- the shim's dlsym ---- */

void *(*sweep_real_dlsym)(void *, const char *);
void *sweep_pick(void *handle, const char *name, const void *caller);

/* What the shim shall get in place of the real address, or NULL. It looks up
 * for itself in few functions, and for its callers in others. */
void *sweep_pick(void *handle, const char *name, const void *caller)
{
    const char *function;
    void *real;

    if (!sweep_in_shim(caller) || handle == RTLD_NEXT ||
        handle == RTLD_DEFAULT || strncmp(name, "cu", 2) != 0)
        return NULL;
    function = sweep_function_at(caller);
    if (strncmp(function, "vmml_real", 9) != 0 &&
        strncmp(function, "vmml_lookup", 11) != 0)
        return NULL;
    real = sweep_real_dlsym(handle, name);
    return real == NULL ? NULL : thunk_for(name, real);
}

/* Jumps: dlsym looks at its return address. */
void *sweep_dlsym(void *handle, const char *name);
__asm__(".text\n"
        "sweep_dlsym:\n"
        "mov (%rsp), %rdx\n"
        "push %rdi\n"
        "push %rsi\n"
        "sub $8, %rsp\n"
        "call sweep_pick\n"
        "add $8, %rsp\n"
        "pop %rsi\n"
        "pop %rdi\n"
        "test %rax, %rax\n"
        "jz 1f\n"
        "ret\n"
        "1: mov sweep_real_dlsym(%rip), %rax\n"
        "jmp *%rax\n");

void *sweep_dlvsym(void *handle, const char *name, const char *version)
{
    void *found = dlvsym(handle, name, version);

    if (found == NULL || strcmp(name, "dlsym") != 0)
        return found;
    sweep_real_dlsym = found;
    return (void *)sweep_dlsym;
}
