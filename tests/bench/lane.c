/* SPDX-License-Identifier: MIT */
/*
 * An exporter and an importer, each stepped by a process of its own: keys,
 * copies, growth, and memory for each chunk.
 */
#include "bench.h"

#include <malloc.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Added later, and a place behind all. */
#define GROWTH 100

enum what {
    PUBLISH, /* `chunks` of them */
    KNOWN,   /* register and pack the same again */
    GROW,    /* by GROWTH, and a key of all */
    TAIL,    /* by GROWTH, and a key of that alone, as UCX packs for a tensor */
    AGAIN,   /* pack again, nothing changed */
    SHRINK,  /* by GROWTH */
    END,
};

struct order {
    enum what what;
    unsigned long chunks;
};

struct answer {
    CUdeviceptr base;
    double ns;               /* of registering and packing */
    struct null_calls calls; /* meanwhile */
    size_t private, shared;  /* bytes more than before */
    size_t heap;             /* of them from malloc */
    struct steps steps;      /* AGAIN */
    double again_ns;         /* AGAIN: of one pack */
    uint8_t key[BENCH_KEY];
};

/* Parts of a request, so that each has descriptors to spare where all have
 * one number: vmmlane refuses what cannot be had in whole. */
#define PART 8000

static size_t heap_now(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

static void minus(struct null_calls *calls, const struct null_calls *before)
{
    unsigned long *at = (unsigned long *)calls;
    const unsigned long *from = (const unsigned long *)before;
    size_t i;

    for (i = 0; i < sizeof(*calls) / sizeof(*at); i++)
        at[i] -= from[i];
}

/* --- the exporter --------------------------------------------------------- */

struct exporter {
    int sock;
    CUdeviceptr base;
    unsigned long chunks;
    vmml_uct_mem_h memh;
    uint8_t key[BENCH_KEY];
};

static void pack_all(struct exporter *exporter)
{
    unsigned long at, part;

    for (at = 0; at < exporter->chunks; at += part) {
        part = exporter->chunks - at < PART ? exporter->chunks - at : PART;
        bench_pack(exporter->memh, exporter->base + at * CHUNK, part * CHUNK,
                   exporter->key);
    }
}

/* A key for one chunk, as NIXL packs one for each descriptor. */
static void pack_one(void *arg)
{
    struct exporter *exporter = arg;

    bench_pack(exporter->memh, exporter->base + exporter->chunks / 2 * CHUNK,
               CHUNK, exporter->key);
}

static void pack_many(void *arg, unsigned long times)
{
    while (times-- > 0)
        pack_one(arg);
}

static void time_again(struct exporter *exporter, struct answer *answer)
{
    const struct bench_side side = {pack_many, exporter};

    pack_one(exporter);
    steps_count(pack_one, exporter, &answer->steps);
    if (!bench_counted_only)
        bench_in_turn(&side, 1, 50, &answer->again_ns);
}

/* As UCX registers what its cache did not know. */
static void register_all(struct exporter *exporter)
{
    exporter->memh = bench_reg(exporter->base, exporter->chunks * CHUNK);
    pack_all(exporter);
}

static void register_tail(struct exporter *exporter)
{
    CUdeviceptr tail = exporter->base + (exporter->chunks - GROWTH) * CHUNK;

    bench_pack(bench_reg(tail, GROWTH * CHUNK), tail, GROWTH * CHUNK,
               exporter->key);
}

static void obey(struct exporter *exporter, const struct order *order,
                 struct answer *answer)
{
    struct null_calls before;
    size_t private, shared, heap;
    double begin;

    if (order->what == PUBLISH) {
        exporter->base = bench_reserve(order->chunks + 2 * GROWTH + 1);
        exporter->chunks = order->chunks;
        bench_map(exporter->base, 0, order->chunks);
    } else if (order->what == GROW || order->what == TAIL) {
        bench_map(exporter->base, exporter->chunks, GROWTH);
        exporter->chunks += GROWTH;
    }
    private = bench_private();
    shared = bench_shared();
    heap = heap_now();
    before = *bench_calls();
    begin = bench_spent();
    if (order->what == PUBLISH || order->what == KNOWN || order->what == GROW) {
        register_all(exporter);
    } else if (order->what == TAIL) {
        register_tail(exporter);
    } else if (order->what == SHRINK) {
        exporter->chunks -= GROWTH;
        bench_unmap(exporter->base, exporter->chunks, GROWTH);
    } else {
        pack_all(exporter);
    }
    answer->ns = bench_spent() - begin;
    answer->calls = *bench_calls();
    minus(&answer->calls, &before);
    answer->private = bench_private() - private;
    answer->shared = bench_shared() - shared;
    answer->heap = heap_now() - heap;
    if (order->what == AGAIN)
        time_again(exporter, answer);
    answer->base = exporter->base;
    memcpy(answer->key, exporter->key, sizeof(answer->key));
}

static int export_chunks(void *arg)
{
    struct exporter exporter = {.sock = *(int *)arg};
    struct answer answer = {0};
    struct order order;
    bool *share;

    bench_start();
    share = bench_ucm->symbol("null_share_fds");
    CHECK(share != NULL);
    *share = true;
    /* What is made once for a process is not a chunk's. */
    order = (struct order){PUBLISH, 1};
    obey(&exporter, &order, &answer);
    while (recv(exporter.sock, &order, sizeof(order), 0) == sizeof(order) &&
           order.what != END) {
        obey(&exporter, &order, &answer);
        CHECK(send(exporter.sock, &answer, sizeof(answer), 0) ==
              sizeof(answer));
    }
    return 0;
}

static struct answer ask(int sock, enum what what, unsigned long chunks)
{
    struct order order = {what, chunks};
    struct answer answer;

    CHECK(send(sock, &order, sizeof(order), 0) == sizeof(order));
    CHECK(recv(sock, &answer, sizeof(answer), 0) == sizeof(answer));
    return answer;
}

/* --- the importer --------------------------------------------------------- */

struct importer {
    int sock;
    uint8_t key[BENCH_KEY];
    CUdeviceptr mirror, buffer;
    CUstream stream;
    unsigned long chunks, next;
};

static void unpack(void *arg)
{
    const struct importer *importer = arg;
    const struct vmml_uct_component *component =
        bench_uct_cuda->ipc_md->component;
    struct vmml_uct_rkey_unpack_params params = {
        .field_mask = VMML_UCT_UNPACK_FIELD_SYS_DEVICE};
    struct vmml_uct_rkey_bundle bundle = {0};

    CHECK(uct_rkey_unpack_v2(component, importer->key, &params, &bundle) ==
          VMML_UCS_OK);
    CHECK(uct_rkey_release(component, &bundle) == VMML_UCS_OK);
}

static void unpack_many(void *arg, unsigned long times)
{
    while (times-- > 0)
        unpack(arg);
}

static void unpack_plain(void *arg, unsigned long times)
{
    const struct importer *importer = arg;
    const struct vmml_uct_component *component =
        bench_uct_cuda->ipc_md->component;
    struct vmml_uct_rkey_unpack_params params = {
        .field_mask = VMML_UCT_UNPACK_FIELD_SYS_DEVICE};
    struct vmml_uct_rkey_bundle bundle = {0};

    while (times-- > 0) {
        CHECK(bench_unpack(component, importer->key, &params, &bundle) ==
              VMML_UCS_OK);
        CHECK(uct_rkey_release(component, &bundle) == VMML_UCS_OK);
    }
}

/* 40 KB, as a KV cache's block; anywhere in the window. */
static CUdeviceptr next_source(struct importer *importer)
{
    importer->next = (importer->next + 7919) % (importer->chunks * 32);
    return importer->mirror + importer->next * (CHUNK / 32);
}

static void post(void *arg, unsigned long times)
{
    struct importer *importer = arg;

    while (times-- > 0)
        CHECK_CU(bench_uct_cuda->copy(importer->buffer, next_source(importer),
                                      40960, importer->stream));
}

/* The same past vmmlane. */
static void post_plain(void *arg, unsigned long times)
{
    struct importer *importer = arg;

    while (times-- > 0)
        CHECK_CU(bench_uct_cuda->copy_real(
            importer->buffer, next_source(importer), 40960, importer->stream));
}

/* By UCX too, but not of a mirror. */
static void post_own(void *arg, unsigned long times)
{
    struct importer *importer = arg;

    while (times-- > 0) {
        (void)next_source(importer);
        CHECK_CU(bench_uct_cuda->copy(importer->buffer,
                                      importer->buffer + CHUNK, 40960,
                                      importer->stream));
    }
}

static void post_once(void *arg)
{
    post(arg, 1);
}

static void post_own_once(void *arg)
{
    post_own(arg, 1);
}

static void count_posts(struct importer *importer, const char *of)
{
    const unsigned long descriptors = bench_counted_only ? 1000 : 100000;
    struct null_calls before;
    unsigned long calls, system_calls = 0, i;
    struct steps steps;

    post_once(importer);
    steps_count(post_once, importer, &steps);
    bench_figure("post of a copy on a mirror, instructions", of,
                 (double)(steps.shim + steps.libc), "instructions", "-");
    post_own_once(importer);
    steps_count(post_own_once, importer, &steps);
    bench_figure("post of UCX's copy elsewhere, instructions", of,
                 (double)(steps.shim + steps.libc), "instructions", "-");
    for (i = 0; i < 100; i++) {
        steps_count(post_once, importer, &steps);
        system_calls += steps.system_calls;
    }
    bench_figure("post of a copy on a mirror, system calls", of,
                 (double)system_calls / 100, "calls", "= 0");
    before = *bench_calls();
    post(importer, descriptors);
    calls = bench_calls()->all - before.all;
    bench_figure("descriptors of 40 KB: driver calls beside the copy, for each",
                 bench_text("%lu,000 descriptors, %s", descriptors / 1000, of),
                 (double)(calls - descriptors) / (double)descriptors, "calls",
                 "= 0");
}

static void time_posts(struct importer *importer, const char *of)
{
    const struct bench_side sides[] = {
        {post, importer}, {post_plain, importer}, {post_own, importer}};
    double ns[3];

    bench_in_turn(sides, 3, 500, ns);
    bench_figure("post of a copy on a mirror, added", of, ns[0] - ns[1], "ns",
                 "<= 20");
    bench_figure("post of UCX's copy elsewhere, added", of, ns[2] - ns[1], "ns",
                 "-");
}

static void count_unpacks(struct importer *importer, const char *of)
{
    struct null_calls before;
    struct steps steps;

    unpack(importer);
    steps_count(unpack, importer, &steps);
    bench_figure("unpack of a known key, instructions", of, (double)steps.shim,
                 "instructions", "-");
    bench_figure("unpack of a known key, system calls", of,
                 (double)steps.system_calls, "calls", "= 0");
    before = *bench_calls();
    unpack(importer);
    /* One asks whether a context is current: docs/performance.md. */
    bench_figure("unpack of a known key, driver calls", of,
                 (double)(bench_calls()->all - before.all), "calls",
                 bench_counted_only ? "<= 1" : "= 0");
}

static void time_unpacks(struct importer *importer, const char *of)
{
    const struct bench_side sides[] = {{unpack_many, importer},
                                       {unpack_plain, importer}};
    double ns[2];

    bench_in_turn(sides, 2, 50, ns);
    bench_figure("unpack of a known key, added", of, (ns[0] - ns[1]) / 1000,
                 "us", "<= 1");
}

/* Memory of chunks that were published at once: what is allocated in steps
 * cannot be told from few. */
static void print_memory(const char *side, const char *of, size_t chunks,
                         size_t private, size_t heap)
{
    bench_figure(bench_text("memory for each chunk, %s", side), of,
                 (double)private / (double)chunks, "bytes",
                 chunks < 8000 ? "-" : "<= 96");
    bench_figure(bench_text("memory for each chunk, %s: by malloc", side), of,
                 (double)heap / (double)chunks, "bytes", "-");
}

static void print_published(const struct answer *answer, const char *of,
                            unsigned long chunks)
{
    const struct null_calls *calls = &answer->calls;

    bench_figure("publish: exports for each chunk", of,
                 (double)calls->export / (double)chunks, "calls", "= 1");
    bench_figure("publish: driver calls for each chunk", of,
                 (double)calls->all / (double)chunks, "calls",
                 chunks < 20000 ? "<= 6.1" : "<= 8");
    if (!bench_counted_only)
        bench_figure("publish: processor time for each chunk", of,
                     answer->ns / (double)chunks, "ns", "-");
    print_memory("exporter", of, chunks, answer->private, answer->heap);
    bench_figure("memory for each chunk, ledger (shared)", of,
                 (double)answer->shared / (double)chunks, "bytes", "-");
}

static void print_again(const struct answer *answer, const char *of)
{
    bench_figure("pack again, nothing changed: driver calls", of,
                 (double)answer->calls.all, "calls", "= 0");
    bench_figure("pack again, nothing changed: system calls", of,
                 (double)answer->steps.system_calls, "calls", "-");
    bench_figure("pack again, nothing changed: instructions", of,
                 (double)(answer->steps.shim + answer->steps.libc),
                 "instructions", "-");
    if (!bench_counted_only)
        bench_figure("pack again, nothing changed: time", of,
                     answer->again_ns / 1000, "us", "-");
}

static void import_chunks(struct importer *importer, unsigned long chunks)
{
    const char *of = bench_many(chunks, "chunks");
    struct answer answer = ask(importer->sock, PUBLISH, chunks);
    size_t private = bench_private(), heap = heap_now();
    struct null_calls calls = *bench_calls();
    double begin;

    print_published(&answer, of, chunks);
    memcpy(importer->key, answer.key, sizeof(importer->key));
    importer->chunks = chunks;
    begin = bench_spent();
    unpack(importer);
    if (!bench_counted_only)
        bench_figure("first open: processor time for each chunk", of,
                     (bench_spent() - begin) / (double)chunks, "ns", "-");
    minus(&calls, bench_calls());
    bench_figure("first open: imports for each chunk", of,
                 -(double)(long)calls.import / (double)chunks, "calls", "= 1");
    bench_figure("first open: driver calls for each chunk", of,
                 -(double)(long)calls.all / (double)chunks, "calls", "-");
    CHECK_CU(bench_uct_cuda->open(&importer->mirror, answer.key));
    post_once(importer);
    print_memory("importer", of, chunks, bench_private() - private,
                 heap_now() - heap);
    count_unpacks(importer, of);
    count_posts(importer, of);
    if (!bench_counted_only) {
        time_unpacks(importer, of);
        time_posts(importer, of);
    }
}

/* GROWTH chunks more, twice: nothing of all the others. */
static void grow(struct importer *importer, unsigned long chunks)
{
    const char *of =
        bench_text("%d of %s", GROWTH, bench_many(chunks, "chunks"));
    struct answer known = ask(importer->sock, KNOWN, 0);
    struct answer answer = ask(importer->sock, GROW, 0);
    struct answer tail = ask(importer->sock, TAIL, 0);
    struct null_calls calls = *bench_calls();

    memcpy(importer->key, tail.key, sizeof(importer->key));
    bench_figure("growth, exporter: exports for each new chunk", of,
                 (double)answer.calls.export / GROWTH, "calls", "= 1");
    /* Near the limit of descriptors each is asked first whether it needs one.
     */
    bench_figure("growth, exporter: driver calls for each new chunk", of,
                 (double)(answer.calls.all - known.calls.all) / GROWTH, "calls",
                 chunks < 20000 ? "<= 6.1" : "<= 8");
    bench_figure("growth, exporter: driver calls for each new chunk, a key of "
                 "them alone",
                 of, (double)tail.calls.all / GROWTH, "calls",
                 chunks < 20000 ? "<= 6.2" : "<= 8");
    bench_figure("growth, exporter: driver calls for each old chunk, a key of "
                 "all",
                 of, (double)known.calls.all / (double)chunks, "calls",
                 bench_counted_only ? "<= 1.1" : "= 0");
    unpack(importer);
    minus(&calls, bench_calls());
    bench_figure("growth, importer: imports for each new chunk", of,
                 -(double)(long)calls.import / (2 * GROWTH), "calls", "= 1");
    bench_figure("growth, importer: driver calls for each new chunk", of,
                 -(double)(long)calls.all / (2 * GROWTH), "calls", "<= 4");
}

struct arguments {
    int argc;
    char **argv;
    int sock;
};

static int import(void *arg)
{
    const struct arguments *arguments = arg;
    struct importer importer = {.sock = arguments->sock};
    struct answer answer;
    int i;

    bench_start();
    *bench_uct_cuda->real = bench_ucm->symbol("cuMemcpyDtoDAsync_v2");
    CHECK(*bench_uct_cuda->real != NULL);
    importer.buffer = bench_reserve(3);
    bench_map(importer.buffer, 0, 2);
    CHECK_CU(cuStreamCreate(&importer.stream, CU_STREAM_NON_BLOCKING));
    for (i = 0; i < arguments->argc; i++) {
        unsigned long chunks = strtoul(arguments->argv[i], NULL, 10);

        import_chunks(&importer, chunks);
        answer = ask(importer.sock, AGAIN, 0);
        print_again(&answer, bench_many(chunks, "chunks"));
        grow(&importer, chunks);
    }
    return 0;
}

int bench_lane(int argc, char **argv)
{
    struct arguments arguments = {argc, argv, -1};
    int sock[2], status;
    pid_t exporter;

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) == 0);
    exporter = fork();
    CHECK(exporter >= 0);
    if (exporter == 0) {
        close(sock[0]);
        exit(steps_run(export_chunks, &sock[1]));
    }
    close(sock[1]);
    arguments.sock = sock[0];
    status = steps_run(import, &arguments);
    close(sock[0]);
    return status;
}
