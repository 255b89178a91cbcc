/* SPDX-License-Identifier: MIT */
/* What a hooked call costs those that vmmlane does not answer: by each door to
 * the driver, against the driver's own function. */
#include "bench.h"

#include <dlfcn.h>

#undef cuGetProcAddress

typedef CUresult range_fn(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);

struct call {
    range_fn *range;
    CUdeviceptr ptr;
};

static void call_pointer(void *arg, unsigned long times)
{
    const struct call *call = arg;
    CUdeviceptr base;
    size_t size;

    while (times-- > 0)
        CHECK_CU(call->range(&base, &size, call->ptr));
}

static void call_symbol(void *arg, unsigned long times)
{
    const struct call *call = arg;
    CUdeviceptr base;
    size_t size;

    while (times-- > 0)
        CHECK_CU(cuMemGetAddressRange(&base, &size, call->ptr));
}

static void call_attribute(void *arg, unsigned long times)
{
    const struct call *call = arg;
    unsigned long long id;

    while (times-- > 0)
        CHECK_CU(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                       call->ptr));
}

typedef CUresult attribute_fn(void *data, CUpointer_attribute attribute,
                              CUdeviceptr ptr);
static attribute_fn *attribute_real;

static void call_attribute_real(void *arg, unsigned long times)
{
    const struct call *call = arg;
    unsigned long long id;

    while (times-- > 0)
        CHECK_CU(
            attribute_real(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, call->ptr));
}

static void call_copy(void *arg, unsigned long times)
{
    const struct call *call = arg;

    while (times-- > 0)
        CHECK_CU(
            cuMemcpyDtoDAsync(call->ptr, call->ptr + CHUNK / 2, 4096, NULL));
}

typedef CUresult copy_fn(CUdeviceptr dst, CUdeviceptr src, size_t length,
                         CUstream stream);
static copy_fn *copy_real;

static void call_copy_real(void *arg, unsigned long times)
{
    const struct call *call = arg;

    while (times-- > 0)
        CHECK_CU(copy_real(call->ptr, call->ptr + CHUNK / 2, 4096, NULL));
}

struct door {
    const char *name;
    struct bench_side side;
    struct bench_side real;
};

static void once(void *arg)
{
    const struct bench_side *side = arg;

    side->run(side->arg, 1);
}

static void count(const struct door *door)
{
    struct bench_side side = door->side;
    struct steps steps;

    once(&side);
    steps_count(once, &side, &steps);
    bench_figure("pass-through of a hooked call, instructions", door->name,
                 (double)(steps.shim + steps.libc), "instructions", "-");
    bench_figure("pass-through of a hooked call, system calls", door->name,
                 (double)steps.system_calls, "calls", "= 0");
}

static void measure(const struct door *door)
{
    const struct bench_side sides[] = {door->side, door->real};
    double ns[2];

    bench_in_turn(sides, 2, 500, ns);
    bench_figure("pass-through of a hooked call, added", door->name,
                 ns[0] - ns[1], "ns", "<= 20");
}

static int run(void *arg)
{
    static struct call symbol, by_dlsym, by_address, real;
    size_t i;

    bench_start();
    symbol.ptr = bench_reserve(1);
    bench_map(symbol.ptr, 0, 1);
    by_dlsym = by_address = real = symbol;
    *(void **)&real.range = bench_ucm->symbol("cuMemGetAddressRange_v2");
    *(void **)&attribute_real = bench_ucm->symbol("cuPointerGetAttribute");
    *(void **)&copy_real = bench_ucm->symbol("cuMemcpyDtoDAsync_v2");
    *(void **)&by_dlsym.range = dlsym(RTLD_DEFAULT, "cuMemGetAddressRange_v2");
    CHECK_CU(cuGetProcAddress_v2("cuMemGetAddressRange",
                                 (void **)&by_address.range, 12000, 0, NULL));
    CHECK(real.range != NULL && by_dlsym.range != NULL &&
          by_address.range != NULL && real.range != by_dlsym.range &&
          by_address.range == by_dlsym.range);
    const struct door doors[] = {
        {"ELF symbol", {call_symbol, &symbol}, {call_pointer, &real}},
        {"dlsym", {call_pointer, &by_dlsym}, {call_pointer, &real}},
        {"cuGetProcAddress",
         {call_pointer, &by_address},
         {call_pointer, &real}},
        {"cuPointerGetAttribute",
         {call_attribute, &symbol},
         {call_attribute_real, &symbol}},
        {"cuMemcpyDtoDAsync", {call_copy, &symbol}, {call_copy_real, &symbol}},
    };
    for (i = 0; i < sizeof(doors) / sizeof(doors[0]); i++) {
        count(&doors[i]);
        if (!bench_counted_only)
            measure(&doors[i]);
    }
    return 0;
}

int bench_doors(int argc, char **argv)
{
    return steps_run(run, NULL);
}
