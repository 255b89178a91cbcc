/* SPDX-License-Identifier: MIT */
/* Many registrations in one segment, against the same on memory that UCX
 * shares by itself: 1,265 tensors of 40 MB (NIXL PR 1498). */
#include "bench.h"

#include <string.h>

#define COUNT  1265ul
#define TENSOR ((size_t)40 * 1000 * 1000)

struct job {
    CUdeviceptr base;
    vmml_uct_mem_h memh[COUNT];
    double ns;
    struct null_calls calls;
};

static void register_all(struct job *job, unsigned long count)
{
    struct null_calls before = *bench_calls();
    uint8_t key[BENCH_KEY];
    double begin = bench_spent();
    unsigned long i;

    for (i = 0; i < count; i++) {
        job->memh[i] = bench_reg(job->base + i * TENSOR, TENSOR);
        bench_pack(job->memh[i], job->base + i * TENSOR, TENSOR, key);
    }
    job->ns = bench_spent() - begin;
    job->calls = *bench_calls();
    job->calls.all -= before.all;
    job->calls.export -= before.export;
}

static void end_all(struct job *job, unsigned long count)
{
    unsigned long i;

    for (i = 0; i < count; i++)
        bench_dereg(job->memh[i]);
}

static int run(void *arg)
{
    static struct job lane, again, plain;
    unsigned long count = bench_counted_only ? 100 : COUNT;
    unsigned long chunks = (count * TENSOR + CHUNK - 1) / CHUNK;
    const char *of = bench_text("%s, %s", bench_many(count, "of 40 MB"),
                                bench_many(chunks, "chunks"));
    bool *share;

    bench_start();
    share = bench_ucm->symbol("null_share_fds");
    CHECK(share != NULL);
    *share = true;
    CHECK_CU(cuMemAlloc(&plain.base, count * TENSOR));
    lane.base = bench_reserve(chunks + 1);
    bench_map(lane.base, 0, chunks);
    register_all(&plain, count);
    register_all(&lane, count);
    again.base = lane.base;
    register_all(&again, count);
    bench_figure("registrations in one segment: exports for each chunk", of,
                 (double)lane.calls.export / (double)chunks, "calls", "= 1");
    bench_figure("registrations in one segment: driver calls for each, beside "
                 "the exports",
                 of, (double)again.calls.all / (double)count, "calls", "-");
    bench_figure("the same on plain memory: driver calls for each", of,
                 (double)plain.calls.all / (double)count, "calls", "-");
    bench_figure("registrations again: exports", of, (double)again.calls.export,
                 "calls", "= 0");
    if (!bench_counted_only) {
        bench_figure("register and pack, added processor time for each", of,
                     (again.ns - plain.ns) / (double)count / 1000, "us", "-");
        bench_figure(
            "register and pack, the first ones, processor time for each chunk",
            of, lane.ns / (double)chunks / 1000, "us", "-");
    }
    end_all(&plain, count);
    end_all(&lane, count);
    end_all(&again, count);
    return 0;
}

int bench_registrations(int argc, char **argv)
{
    return steps_run(run, NULL);
}
