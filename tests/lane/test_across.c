/* SPDX-License-Identifier: MIT */
/*
 * Two nodes: what an exporter's keys tell of its block, and an importer that
 * has nothing else of it. The two processes share the fabric's folder; the
 * importer takes the exporter for another node's by the handle's node byte.
 */
#include "exporter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/block.h"
#include "fabric/export.h"
#include "fabric/memory.h"
#include "fabric/node.h"
#include "hooks.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"
#include "stats/count.h"

#define WINDOW (64 * CHUNK)
#define MANY   48

/* What the exporter tells: in memory that both have. */
struct told {
    struct vmml_pack pack;
    struct vmml_block_name block;
    uint64_t address;
    uint64_t length;
    uint64_t memh;
    bool packed;
    char call[64];
    unsigned nth;
};
static struct told *told;

static char folder[64];

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "/dev/shm/vmmlane-across-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    CHECK(setenv("VMMLANE_SIM_FABRIC_DIR", folder, 1) == 0);
    CHECK(setenv("VMMLANE_SIM_FABRIC", "on", 1) == 0);
    /* Memory is counted for this test alone. */
    CHECK(setenv("VMMLANE_SIM_DOMAIN", folder + strlen("/dev/shm/"), 1) == 0);
    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(told != MAP_FAILED);
}

static void remove_folder(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    CHECK(system(command) == 0);
}

static const struct lane_memory fabric_only = {.handle_types =
                                                   CU_MEM_HANDLE_TYPE_FABRIC};

/* ---- in the exporter ---- */

static uint64_t map_fabric(uint64_t seed)
{
    uint64_t at;

    for (at = 0; at < told->length; at += CHUNK)
        lane_map_as(told->address + at, CHUNK, (unsigned)seed, &fabric_only);
    return 0;
}

static uint64_t reg(uint64_t unused)
{
    return (uint64_t)(uintptr_t)lane_reg_in(lane_standin("standin_mnnvl_md"),
                                            told->address, told->length);
}

static uint64_t dereg(uint64_t memh)
{
    vmml_lane_deregister(lane_standin("standin_mnnvl_md"),
                         (vmml_uct_mem_h)(uintptr_t)memh);
    return 0;
}

static uint64_t pack(uint64_t memh)
{
    told->packed = vmml_lane_begin_pack(
        lane_standin("standin_mnnvl_md"), (vmml_uct_mem_h)(uintptr_t)memh,
        (void *)(uintptr_t)told->address, told->length, &told->pack);
    return told->packed;
}

static uint64_t count_blocks(uint64_t unused)
{
    return vmml_block_count();
}

static uint64_t use_few(uint64_t entries)
{
    vmml_block_use = (uint32_t)entries;
    return 0;
}

static uint64_t memory_used(uint64_t unused)
{
    return sim_memory_used(0);
}

static uint64_t fail_call(uint64_t unused)
{
    return (uint64_t)sim_fail(told->call, told->nth, CUDA_ERROR_UNKNOWN, 0);
}

static uint64_t clear_failures(uint64_t unused)
{
    sim_clear_failures();
    return 0;
}

/* 10,000 packs, each of some more bytes than the one before. */
static uint64_t pack_growing(uint64_t memh)
{
    uint64_t most = told->length;
    unsigned i;

    for (i = 1; i <= 10000; i++) {
        told->length = most * i / 10000;
        CHECK_EQUAL(pack(memh), 1);
        CHECK(told->pack.has_block);
    }
    return vmml_block_count();
}

/* Four threads pack, each with a registration of its own that comes and goes,
 * while a fifth backs the last chunk anew. */
static void *pack_for_long(void *arg)
{
    struct vmml_pack key;
    vmml_uct_mem_h memh;
    unsigned i;

    for (i = 0; i < 100; i++) {
        memh = lane_reg_in(lane_standin("standin_mnnvl_md"), told->address,
                           told->length);
        CHECK(vmml_lane_begin_pack(lane_standin("standin_mnnvl_md"), memh,
                                   (void *)(uintptr_t)told->address,
                                   told->length - i % 3 * CHUNK, &key));
        vmml_lane_deregister(lane_standin("standin_mnnvl_md"), memh);
    }
    return NULL;
}

static void *back_for_long(void *arg)
{
    uint64_t last = told->address + told->length - CHUNK;
    unsigned i;

    for (i = 0; i < 100; i++) {
        CHECK_CU(lane_unmap(last, CHUNK));
        lane_map_as(last, CHUNK, 1, &fabric_only);
    }
    return NULL;
}

static uint64_t pack_beside_each_other(uint64_t unused)
{
    pthread_t threads[5];
    unsigned i;

    for (i = 0; i < 5; i++)
        CHECK(pthread_create(&threads[i], NULL,
                             i < 4 ? pack_for_long : back_for_long, NULL) == 0);
    for (i = 0; i < 5; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}

static uint64_t written(uint64_t unused)
{
    return vmml_count_get(VMML_COUNT_blocks_written);
}

/* ---- the pair ---- */

struct pair {
    struct exporter ex;
    uint64_t base;
    uint64_t memh;
    struct vmml_handle handle;
    uint8_t block[VMML_BLOCK_HANDLE_SIZE];
    bool has_block;
    CUdeviceptr mirror;
};

/* What the wire brings: the handle, of another node, and the block's name. */
static void take_key(struct pair *pair)
{
    CHECK(vmml_handle_find(told->pack.handle, VMML_HANDLE_SIZE,
                           &pair->handle) == 4);
    CHECK_EQUAL(pair->handle.node, vmml_node_byte());
    pair->handle.node = (uint8_t)(pair->handle.node % 255 + 1);
    pair->has_block = told->pack.has_block;
    CHECK_EQUAL(pair->has_block, (pair->handle.flags & VMML_HANDLE_BLOCK) != 0);
    memcpy(pair->block, told->pack.block.handle, sizeof(pair->block));
}

static void pack_range(struct pair *pair, uint64_t from, uint64_t length)
{
    told->address = pair->base + from;
    told->length = length;
    CHECK_EQUAL(ex_run(&pair->ex, pack, pair->memh), 1);
    take_key(pair);
}

static void map_range(struct pair *pair, uint64_t from, uint64_t length,
                      unsigned seed)
{
    told->address = pair->base + from;
    told->length = length;
    ex_run(&pair->ex, map_fabric, seed);
}

static void register_range(struct pair *pair, uint64_t from, uint64_t length)
{
    told->address = pair->base + from;
    told->length = length;
    pair->memh = ex_run(&pair->ex, reg, 0);
}

static bool prepare(struct pair *pair)
{
    return vmml_mirror_prepare_key(&pair->handle,
                                   pair->has_block ? pair->block : NULL, 0);
}

static CUdeviceptr open_mirror(struct pair *pair)
{
    CUdeviceptr ptr = 0;

    CHECK_CU(vmml_mirror_open(&pair->handle, &ptr));
    return ptr;
}

static void start(struct pair *pair, unsigned count)
{
    make_folder();
    ex_nursery();
    pair->ex = ex_start();
    pair->base = ex_reserve(&pair->ex, WINDOW);
    map_range(pair, 0, count * CHUNK, 1);
    register_range(pair, 0, count * CHUNK);
    pack_range(pair, 0, count * CHUNK);
    lane_log_to_file();
    lane_cuda(0);
    im_buffer();
    im_stream();
}

static void attach(struct pair *pair)
{
    CHECK(prepare(pair));
    pair->mirror = open_mirror(pair);
}

static void stop(struct pair *pair)
{
    ex_stop(&pair->ex);
    remove_folder();
}

static void expect(const struct pair *pair, uint64_t from, size_t length,
                   unsigned seed)
{
    im_expect(pair->mirror + from, pair->base + from, length, seed);
}

static unsigned blocks(struct pair *pair)
{
    return (unsigned)ex_run(&pair->ex, count_blocks, 0);
}

/* ---- tests ---- */

static void every_byte(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 8);
    CHECK(pair.has_block);
    attach(&pair);
    expect(&pair, 0, 8 * CHUNK, 1);
    expect(&pair, 2 * CHUNK - 3, CHUNK + 6, 1);
    im_put(pair.mirror + CHUNK - 16, pair.base + CHUNK - 16, CHUNK + 32, 2);
    CHECK(ex_holds(&pair.ex, pair.base + CHUNK, CHUNK, 2));
    CHECK(ex_holds(&pair.ex, pair.base + 2 * CHUNK, 16, 2));
    CHECK(ex_holds(&pair.ex, pair.base, CHUNK - 16, 1));
    CHECK_EQUAL(blocks(&pair), 1);
    CHECK_EQUAL(lane_log_count(" WARN "), 0);
    /* Beyond what is registered there is a hole. */
    im_refused(pair.mirror + 8 * CHUNK, 16);
    stop(&pair);
}

/* No process is asked for anything: no pidfd, no ledger of the exporter's. */
static void only_the_fabric(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 2);
    CHECK(setenv("VMMLANE_TRANSPORT", "getfd", 1) == 0);
    pair.handle.pid = 1;
    pair.handle.ledger_fd = 0;
    attach(&pair);
    expect(&pair, 0, 2 * CHUNK, 1);
    stop(&pair);
}

/* The importer's own ledger, and what wakes its watcher. */
static void the_importer_forks(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 2);
    lane_fds_note();
    attach(&pair);
    CHECK_EQUAL(lane_fds_new(), 2);
    CHECK_EQUAL(lane_fds_inherited(), 0);
    expect(&pair, 0, 2 * CHUNK, 1);
    stop(&pair);
}

static CUresult (*real_read)(void *host, CUdeviceptr from, size_t length,
                             CUstream stream);
static unsigned forks;

/* While the lock of the other nodes' exporters is held. */
static CUresult read_and_fork(void *host, CUdeviceptr from, size_t length,
                              CUstream stream)
{
    int status = 0;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0)
        _exit(lane_fds_new() == 0 ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    forks++;
    return real_read(host, from, length, stream);
}

static void a_fork_while_a_block_is_read(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 2);
    lane_fds_note();
    real_read = lane_real()->cuMemcpyDtoHAsync_v2;
    lane_real()->cuMemcpyDtoHAsync_v2 = read_and_fork;
    attach(&pair);
    CHECK(forks > 0);
    lane_real()->cuMemcpyDtoHAsync_v2 = real_read;
    expect(&pair, 0, 2 * CHUNK, 1);
    stop(&pair);
}

static void growth(void)
{
    struct pair pair = {.mirror = 0};
    CUdeviceptr first;
    unsigned at;

    start(&pair, 4);
    attach(&pair);
    first = pair.mirror;
    for (at = 4; at < 16; at += 3) {
        map_range(&pair, at * CHUNK, 3 * CHUNK, 1);
        register_range(&pair, 0, (at + 3) * CHUNK);
        pack_range(&pair, 0, (at + 3) * CHUNK);
        sim_reset_counts();
        CHECK(prepare(&pair));
        CHECK_EQUAL(sim_call_count("cuMemImportFromShareableHandle"), 3);
        CHECK_EQUAL(open_mirror(&pair), first);
        expect(&pair, 0, (at + 3) * CHUNK, 1);
    }
    CHECK_EQUAL(blocks(&pair), 1);
    /* Nothing new: one look, and no work on memory. */
    sim_reset_counts();
    CHECK(prepare(&pair));
    CHECK_EQUAL(sim_call_count("cuMemImportFromShareableHandle"), 0);
    CHECK_EQUAL(sim_call_count("cuMemMap"), 0);
    CHECK_EQUAL(sim_call_count("cuMemcpyDtoHAsync_v2"), 1);
    stop(&pair);
}

static void backed_anew(void)
{
    struct pair pair = {.mirror = 0};
    unsigned round;

    start(&pair, 8);
    attach(&pair);
    for (round = 2; round < 6; round++) {
        CHECK_CU(ex_unmap(&pair.ex, pair.base + CHUNK, 4 * CHUNK));
        map_range(&pair, CHUNK, 4 * CHUNK, round);
        register_range(&pair, 0, 8 * CHUNK);
        pack_range(&pair, 0, 8 * CHUNK);
        CHECK(prepare(&pair));
        expect(&pair, CHUNK, 4 * CHUNK, round);
        expect(&pair, 0, CHUNK, 1);
        expect(&pair, 5 * CHUNK, 3 * CHUNK, 1);
    }
    CHECK_EQUAL(blocks(&pair), 1);
    stop(&pair);
}

/* Past every hook. */
static void unseen_unmap(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 4);
    attach(&pair);
    CHECK_CU(ex_unmap_unseen(&pair.ex, pair.base, 2 * CHUNK));
    map_range(&pair, 0, 2 * CHUNK, 5);
    register_range(&pair, 0, 4 * CHUNK);
    pack_range(&pair, 0, 4 * CHUNK);
    CHECK(prepare(&pair));
    expect(&pair, 0, 2 * CHUNK, 5);
    expect(&pair, 2 * CHUNK, 2 * CHUNK, 1);
    stop(&pair);
}

/* A smaller block leads to the larger one that stands for it. */
static void larger_blocks(void)
{
    struct pair pair = {.mirror = 0}, old;

    start(&pair, 3);
    ex_run(&pair.ex, use_few, 4);
    pack_range(&pair, 0, 3 * CHUNK);
    attach(&pair);
    old = pair;
    map_range(&pair, 3 * CHUNK, 20 * CHUNK, 1);
    register_range(&pair, 0, 23 * CHUNK);
    pack_range(&pair, 0, 23 * CHUNK);
    CHECK(memcmp(old.block, pair.block, sizeof(old.block)) != 0);
    CHECK_EQUAL(pair.handle.reason, 3); /* 4 << 3 entries are enough */
    CHECK_EQUAL(blocks(&pair), 2);
    /* By the old key first: it knows of the new block by itself. */
    CHECK(prepare(&old));
    expect(&old, 0, 23 * CHUNK, 1);
    CHECK(prepare(&pair));
    CHECK_EQUAL(open_mirror(&pair), old.mirror);
    map_range(&pair, 23 * CHUNK, CHUNK, 1);
    register_range(&pair, 0, 24 * CHUNK);
    pack_range(&pair, 0, 24 * CHUNK);
    CHECK_EQUAL(blocks(&pair), 2);
    CHECK(prepare(&old));
    expect(&old, 0, 24 * CHUNK, 1);
    stop(&pair);
}

static bool is_freed(void *arg)
{
    return blocks(arg) == 0;
}

static void last_registration_frees(void)
{
    struct pair pair = {.mirror = 0};
    uint64_t first, before;

    start(&pair, 4);
    before = ex_run(&pair.ex, memory_used, 0);
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    first = pair.memh;
    register_range(&pair, 0, 2 * CHUNK);
    ex_run(&pair.ex, dereg, first);
    CHECK_EQUAL(blocks(&pair), 1);
    CHECK(prepare(&pair));
    ex_run(&pair.ex, dereg, pair.memh);
    CHECK(lane_wait(is_freed, &pair));
    /* No key of it is served any more, and nothing is kept of it. */
    CHECK(!prepare(&pair));
    CHECK_EQUAL(ex_run(&pair.ex, memory_used, 0), before - 2 * MIB);
    im_refused(pair.mirror, 16);
    /* Registered again: another block. */
    register_range(&pair, 0, 4 * CHUNK);
    pack_range(&pair, 0, 4 * CHUNK);
    CHECK(prepare(&pair));
    expect(&pair, 0, 4 * CHUNK, 1);
    stop(&pair);
}

/* Nothing tells of an exporter's end on another node. What is mapped stays the
 * memory that it was, whoever comes after it; a key that is unpacked afterwards
 * has no block, unless that is mapped here too. */
static void exporter_dies(void)
{
    struct pair dead = {.mirror = 0}, next = {.mirror = 0};

    start(&dead, 4);
    attach(&dead);
    expect(&dead, 0, 4 * CHUNK, 1);
    ex_kill(&dead.ex);
    next.ex = ex_start();
    next.base = dead.base;
    ex_reserve_at(&next.ex, next.base, WINDOW);
    map_range(&next, 0, 4 * CHUNK, 7);
    register_range(&next, 0, 4 * CHUNK);
    pack_range(&next, 0, 4 * CHUNK);
    attach(&next);
    CHECK(next.mirror != dead.mirror);
    expect(&next, 0, 4 * CHUNK, 7);
    /* By the old key: what it named, and no more than that. */
    expect(&dead, 0, 4 * CHUNK, 1);
    im_put(dead.mirror, dead.base, CHUNK, 9);
    expect(&next, 0, 4 * CHUNK, 7);
    im_refused(dead.mirror + 4 * CHUNK, 16);
    CHECK(prepare(&dead));
    CHECK_EQUAL(open_mirror(&dead), dead.mirror);
    expect(&dead, CHUNK, 3 * CHUNK, 1);
    stop(&next);
}

/* Its key comes too late. */
static void key_of_a_dead_exporter(void)
{
    struct pair pair = {.mirror = 0};
    unsigned fds;

    start(&pair, 4);
    ex_kill(&pair.ex);
    remove_folder(); /* the fabric ends what was exported */
    CHECK(!prepare(&pair));
    fds = lane_fd_count();
    CHECK(!prepare(&pair));
    CHECK_EQUAL(lane_fd_count(), fds);
}

/* One line for each, with what to do, however many keys come. */
static void dead_exporters_are_told(void)
{
    struct pair first = {.mirror = 0}, second = {.mirror = 0};
    unsigned i;

    start(&first, 4);
    second.ex = ex_start();
    second.base = ex_reserve(&second.ex, WINDOW);
    map_range(&second, 0, 4 * CHUNK, 1);
    register_range(&second, 0, 4 * CHUNK);
    pack_range(&second, 0, 4 * CHUNK);
    ex_kill(&first.ex);
    ex_kill(&second.ex);
    remove_folder(); /* the fabric ends what was exported */
    for (i = 0; i < 3; i++)
        CHECK(!prepare(&first));
    CHECK_EQUAL(lane_log_count("is gone: the process has ended"), 1);
    for (i = 0; i < 3; i++)
        CHECK(!prepare(&second));
    CHECK_EQUAL(lane_log_count("is gone: the process has ended"), 2);
    CHECK_EQUAL(lane_log_count("Remedy: take a new key"), 2);
    CHECK_EQUAL(lane_log_count(" WARN "), 2);
}

static void growing_packs_leave_one_block(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, MANY);
    CHECK_EQUAL(ex_run(&pair.ex, pack_growing, pair.memh), 1);
    /* One writing, for all were published by the first pack. */
    CHECK_EQUAL(ex_run(&pair.ex, written, 0), 1);
    stop(&pair);
}

static bool is_one(void *arg)
{
    return blocks(arg) == 1;
}

static void packs_beside_each_other(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 6);
    ex_run(&pair.ex, pack_beside_each_other, 0);
    /* The first registration is still there. */
    CHECK(lane_wait(is_one, &pair));
    register_range(&pair, 0, 6 * CHUNK);
    pack_range(&pair, 0, 6 * CHUNK);
    CHECK(pair.has_block);
    attach(&pair);
    expect(&pair, 0, 6 * CHUNK, 1);
    stop(&pair);
}

static void mixed_is_local(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 3);
    ex_map(&pair.ex, pair.base + 3 * CHUNK, CHUNK, 2, 1); /* POSIX_FD */
    register_range(&pair, 0, 5 * CHUNK);
    pack_range(&pair, 0, 5 * CHUNK);
    CHECK(!pair.has_block);
    CHECK_EQUAL(pair.handle.reason, VMML_REASON_MIXED);
    CHECK(!prepare(&pair));
    /* What has none at all. */
    pack_range(&pair, 3 * CHUNK, 2 * CHUNK);
    CHECK_EQUAL(pair.handle.reason, VMML_REASON_LOCAL);
    CHECK(!prepare(&pair));
    /* A part that has them all, in the same window. */
    pack_range(&pair, 0, 3 * CHUNK);
    CHECK(pair.has_block);
    attach(&pair);
    expect(&pair, 0, 3 * CHUNK, 1);
    im_refused(pair.mirror + 3 * CHUNK, 16);
    stop(&pair);
}

/* The same key on the exporter's own node. */
static void local_importers_use_the_ledger(void)
{
    struct pair pair = {.mirror = 0};

    start(&pair, 4);
    pair.handle.node = vmml_node_byte();
    attach(&pair);
    expect(&pair, 0, 4 * CHUNK, 1);
    CHECK_EQUAL(sim_call_count("cuMemcpyDtoHAsync_v2"), 0);
    /* So a chunk that is unmapped is refused at once. */
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNK));
    im_refused(pair.mirror, 16);
    stop(&pair);
}

/* The exporter's driver fails at each call of a block's making and writing:
 * its own node is served, nothing is left, and the next pack makes it good. */
static void exporter_failures(void)
{
    static const char *const calls[] = {
        "cuMemCreate",          "cuMemExportToShareableHandle",
        "cuMemAddressReserve",  "cuMemMap",
        "cuMemSetAccess",       "cuStreamCreate",
        "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize",
    };
    struct pair pair = {.mirror = 0};
    uint64_t before;
    size_t i;

    start(&pair, 3);
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        ex_run(&pair.ex, dereg, pair.memh);
        CHECK(lane_wait(is_freed, &pair));
        before = ex_run(&pair.ex, memory_used, 0);
        register_range(&pair, 0, 3 * CHUNK);
        snprintf(told->call, sizeof(told->call), "%s", calls[i]);
        told->nth = 1;
        CHECK_EQUAL(ex_run(&pair.ex, fail_call, 0), 0);
        pack_range(&pair, 0, 3 * CHUNK);
        ex_run(&pair.ex, clear_failures, 0);
        CHECK(!pair.has_block);
        CHECK_EQUAL(pair.handle.flags, 0);
        CHECK_EQUAL(pair.handle.reason, VMML_REASON_BLOCK);
        CHECK(!prepare(&pair));
        CHECK(blocks(&pair) <= 1);
        CHECK_EQUAL(ex_run(&pair.ex, memory_used, 0),
                    before + blocks(&pair) * 2 * MIB);
        pack_range(&pair, 0, 3 * CHUNK);
        CHECK(pair.has_block);
        CHECK_EQUAL(blocks(&pair), 1);
    }
    attach(&pair);
    expect(&pair, 0, 3 * CHUNK, 1);
    stop(&pair);
}

/* The importer's driver fails, at each call and each of its uses. */
static void importer_failures(void)
{
    static const char *const calls[] = {
        "cuMemImportFromShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuStreamCreate",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize",
    };
    struct pair pair = {.mirror = 0};
    unsigned nth;
    size_t i;

    start(&pair, 3);
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (nth = 1; nth <= 5; nth++) {
            sim_reset_counts();
            CHECK_EQUAL(sim_fail(calls[i], nth, CUDA_ERROR_UNKNOWN, 0), 0);
            if (prepare(&pair))
                pair.mirror = open_mirror(&pair);
            sim_clear_failures();
            CHECK(prepare(&pair));
            pair.mirror = open_mirror(&pair);
            expect(&pair, 0, 3 * CHUNK, 1);
            /* Anew each time: other memory, which must be mapped. */
            CHECK_CU(ex_unmap(&pair.ex, pair.base, 3 * CHUNK));
            map_range(&pair, 0, 3 * CHUNK, 1);
            register_range(&pair, 0, 3 * CHUNK);
            pack_range(&pair, 0, 3 * CHUNK);
        }
    CHECK(prepare(&pair));
    stop(&pair);
}

/* A block that somebody else wrote into is no map of anything. */
static void hostile_block(void)
{
    static const size_t places[] = {0,  8,  12,  16,  32,  40,  44,  48,
                                    64, 72, 188, 192, 200, 208, 224, 250};
    struct vmml_block_memory memory;
    CUmemFabricHandle name;
    uint64_t changed;
    struct pair pair = {.mirror = 0};
    uint8_t *view;
    size_t i;

    start(&pair, 3);
    memcpy(&name, pair.block, sizeof(name));
    CHECK_CU(
        vmml_block_open(lane_real(), 0, &name, VMML_BLOCK_SIZE(0), &memory));
    view = sim_host_view(memory.address, memory.size);
    CHECK(view != NULL);
    for (i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        view[places[i]] ^= 0x40;
        CHECK(!prepare(&pair));
        view[places[i]] ^= 0x40;
    }
    CHECK(prepare(&pair));
    pair.mirror = open_mirror(&pair);
    expect(&pair, 0, 3 * CHUNK, 1);
    /* While it is mapped: a key is refused, what was read stays. */
    changed = 0x1234;
    memcpy(view + 32, &changed, sizeof(changed));
    CHECK(!prepare(&pair));
    expect(&pair, 0, 3 * CHUNK, 1);
    stop(&pair);
}

/* A name that leads nowhere, to memory that is no block, or to a part of it. */
static void hostile_names(void)
{
    struct pair pair = {.mirror = 0};
    unsigned i;

    start(&pair, 3);
    for (i = 0; i < sizeof(pair.block); i += 5) {
        pair.block[i] ^= 0x10;
        (void)prepare(&pair);
        pair.block[i] ^= 0x10;
    }
    pair.handle.reason = 1; /* of twice its size */
    CHECK(!prepare(&pair));
    pair.handle.reason = 0;
    pair.handle.base += CHUNK;
    CHECK(!prepare(&pair));
    pair.handle.base -= CHUNK;
    pair.handle.nonce[0] ^= 1;
    CHECK(!prepare(&pair));
    pair.handle.nonce[0] ^= 1;
    attach(&pair);
    expect(&pair, 0, 3 * CHUNK, 1);
    stop(&pair);
}

static void no_channel_at_the_importer(void)
{
    struct pair pair = {.mirror = 0};

    make_folder();
    pair.ex = ex_start();
    pair.base = ex_reserve(&pair.ex, WINDOW);
    map_range(&pair, 0, 3 * CHUNK, 1);
    register_range(&pair, 0, 3 * CHUNK);
    pack_range(&pair, 0, 3 * CHUNK);
    CHECK(setenv("VMMLANE_SIM_IMEX", "0", 1) == 0);
    lane_log_to_file();
    lane_cuda(0);
    CHECK(!prepare(&pair));
    CHECK(!prepare(&pair));
    CHECK_EQUAL(lane_log_count("IMEX channel"), 1);
    stop(&pair);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(every_byte),
        LANE_TEST(only_the_fabric),
        LANE_TEST(the_importer_forks),
        LANE_TEST(a_fork_while_a_block_is_read),
        LANE_TEST(growth),
        LANE_TEST(backed_anew),
        LANE_TEST(unseen_unmap),
        LANE_TEST(larger_blocks),
        LANE_TEST(last_registration_frees),
        LANE_TEST(exporter_dies),
        LANE_TEST(key_of_a_dead_exporter),
        LANE_TEST(dead_exporters_are_told),
        LANE_TEST(growing_packs_leave_one_block),
        LANE_TEST(packs_beside_each_other),
        LANE_TEST(mixed_is_local),
        LANE_PAIR(local_importers_use_the_ledger),
        LANE_TEST(exporter_failures),
        LANE_TEST(importer_failures),
        LANE_TEST(hostile_block),
        LANE_TEST(hostile_names),
        LANE_TEST(no_channel_at_the_importer),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
