/* SPDX-License-Identifier: MIT */
/* Extent queries: unchanged, and after a map or an unmap. */
#include "bench.h"

struct place {
    CUdeviceptr base;
    size_t length; /* of the request */
    unsigned long chunks;
    unsigned long next;
};

static CUdeviceptr next_address(struct place *place)
{
    place->next = (place->next + 7919) % (place->chunks * 256);
    return place->base + place->next * (CHUNK / 256);
}

static void ask(void *arg, unsigned long times)
{
    struct place *place = arg;

    while (times-- > 0)
        (void)bench_query(next_address(place), place->length);
}

static void ask_all(void *arg, unsigned long times)
{
    struct place *place = arg;

    while (times-- > 0)
        (void)bench_query(place->base, place->length);
}

/* What UCX would have asked, by the driver's own function. */
typedef CUresult range_fn(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
static range_fn *range_real;

static void ask_driver(void *arg, unsigned long times)
{
    struct place *place = arg;
    CUdeviceptr base;
    size_t size;

    while (times-- > 0)
        CHECK_CU(range_real(&base, &size, next_address(place)));
}

static void ask_once(void *arg)
{
    ask(arg, 1);
}

static void ask_all_once(void *arg)
{
    ask_all(arg, 1);
}

static unsigned long calls_of(void (*run)(void *), void *arg)
{
    unsigned long before = bench_all_calls();

    run(arg);
    return bench_all_calls() - before;
}

static void count_unchanged(struct place *place, struct place *all,
                            const char *of)
{
    struct steps steps;

    ask_once(place);
    steps_count(ask_once, place, &steps);
    bench_figure("extent query, unchanged: instructions", of,
                 (double)(steps.shim + steps.libc), "instructions", "-");
    bench_figure("extent query, unchanged: system calls", of,
                 (double)steps.system_calls, "calls", "= 0");
    if (bench_calls() == NULL)
        return;
    bench_figure("extent query, unchanged: driver calls", of,
                 (double)calls_of(ask_once, place), "calls", "<= 3");
    bench_figure("extent query of all, unchanged: driver calls", of,
                 (double)calls_of(ask_all_once, all), "calls", "<= 12");
}

static void time_unchanged(struct place *place, struct place *all,
                           const char *of)
{
    const struct bench_side sides[] = {
        {ask, place}, {ask_driver, place}, {ask_all, all}};
    double ns[3];

    bench_in_turn(sides, 3, 100, ns);
    if (bench_calls() == NULL) {
        bench_figure("extent query, unchanged, over cuMemGetAddressRange", of,
                     ns[0] / ns[1], "ratio", "<= 2.0");
        bench_figure("extent query of all, unchanged, over "
                     "cuMemGetAddressRange",
                     of, ns[2] / ns[1], "ratio", "-");
    }
    bench_figure("extent query, unchanged, added", of, ns[0] - ns[1], "ns",
                 "-");
}

/* k chunks less and more in the middle of n, and at the end. */
static void count_changes(CUdeviceptr base, unsigned long chunks,
                          unsigned long changed, const char *of)
{
    struct place all = {base, chunks * CHUNK, chunks, 0};
    unsigned long at = chunks / 2, unmapped, mapped;

    if (bench_calls() == NULL || chunks < 2 * changed)
        return;
    bench_unmap(base, at, changed);
    unmapped = calls_of(ask_all_once, &all);
    bench_map(base, at, changed);
    mapped = calls_of(ask_all_once, &all);
    /* A probe is some ten calls; nothing may depend on all. */
    bench_figure("extent query after an unmap: driver calls",
                 bench_text("%lu of %s", changed, of), (double)unmapped,
                 "calls", bench_text("<= %d", 40));
    bench_figure("extent query after a map: driver calls for each chunk mapped",
                 bench_text("%lu of %s", changed, of),
                 (double)mapped / (double)changed, "calls",
                 bench_text("<= %d", changed == 1 ? 40 : 16));
}

static void measure(unsigned long chunks)
{
    const char *of = bench_many(chunks, chunks == 1 ? "chunk" : "chunks");
    struct place place = {.length = 4096, .chunks = chunks};
    struct place all = {.length = chunks * CHUNK, .chunks = chunks};
    size_t private;
    double begin;

    place.base = all.base = bench_reserve(chunks + 1);
    bench_map(place.base, 0, chunks);
    private = bench_private();
    begin = bench_spent();
    CHECK(bench_query(place.base, all.length).size == all.length);
    if (!bench_counted_only)
        bench_figure("extent query, the first, processor time for each chunk",
                     of, (bench_spent() - begin) / (double)chunks, "ns", "-");
    if (chunks >= 1000)
        bench_figure("memory for each chunk, extents", of,
                     (double)(bench_private() - private) / (double)chunks,
                     "bytes", chunks < 7000 ? "-" : "<= 96");
    count_unchanged(&place, &all, of);
    if (!bench_counted_only)
        time_unchanged(&place, &all, of);
    count_changes(place.base, chunks, 1, of);
    count_changes(place.base, chunks, 100, of);
}

struct arguments {
    int argc;
    char **argv;
};

static int run(void *arg)
{
    const struct arguments *arguments = arg;
    int i;

    bench_start();
    *(void **)&range_real = bench_ucm->symbol("cuMemGetAddressRange_v2");
    CHECK(range_real != NULL);
    for (i = 0; i < arguments->argc; i++)
        measure(strtoul(arguments->argv[i], NULL, 10));
    return 0;
}

int bench_extents(int argc, char **argv)
{
    struct arguments arguments = {argc, argv};

    return steps_run(run, &arguments);
}
