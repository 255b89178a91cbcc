/* SPDX-License-Identifier: MIT */
/*
 * 65,000 chunks of one window, from registration to copies in another process:
 * calls by the number of what is new.
 *
 * Where the limit of descriptors does not allow one for each chunk, the
 * chunks of one allocation share one: the exporter's driver gives its number
 * again. The importer's driver maps an allocation that it has imported again,
 * since the simulated one needs a descriptor and two mappings for each import.
 */
#include "tests/lane/exporter.h"
#include "many.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "hooks.h"
#include "lane/state.h"

#define COUNT 65000ul
/* One more is added later. */
#define SIZE ((COUNT + 1) * CHUNK)

/* --- the exporter --------------------------------------------------------- */

static CUresult (*export_real)(void *, CUmemGenericAllocationHandle,
                               CUmemAllocationHandleType, unsigned long long);
static unsigned long exports;
static bool shared_numbers;

/* The number that this allocation was exported under before. */
static CUresult CUDAAPI export_again(void *out,
                                     CUmemGenericAllocationHandle handle,
                                     CUmemAllocationHandleType type,
                                     unsigned long long flags)
{
    static struct {
        CUmemGenericAllocationHandle handle;
        int fd;
    } known[MANY_ALLOCATIONS];
    unsigned i = 0;
    CUresult result = CUDA_SUCCESS;

    exports++;
    if (!shared_numbers)
        return export_real(out, handle, type, flags);
    while (i < MANY_ALLOCATIONS && known[i].handle != handle &&
           known[i].handle != 0)
        i++;
    CHECK(i < MANY_ALLOCATIONS);
    if (known[i].handle == 0) {
        result = export_real(&known[i].fd, handle, type, flags);
        known[i].fd = vmml_fd_raise(known[i].fd);
        known[i].handle = handle;
        CHECK(known[i].fd >= VMML_FD_LOWEST);
    }
    *(int *)out = known[i].fd;
    return result;
}

enum order { PACK_ALL, PACK_AGAIN, ADD_ONE, UNMAP_ONE, UNMAP_HALF, END };

struct answer {
    unsigned long exports;
    long attributes;
    uint64_t base;
    uint8_t key[KEY_SIZE];
};

static void pack(vmml_uct_mem_h memh, uint64_t base, uint64_t count,
                 struct answer *answer)
{
    CHECK(lane_pack(memh, base, count * CHUNK, answer->key));
    CHECK_EQUAL(lane_reason(answer->key), VMML_REASON_NONE);
}

/* In parts, of which each has room for descriptors of its own. */
static void pack_all(vmml_uct_mem_h memh, uint64_t base, struct answer *answer)
{
    const uint64_t part = 10000;
    uint64_t at;

    for (at = 0; at < COUNT; at += part)
        pack(memh, base + at * CHUNK, COUNT - at < part ? COUNT - at : part,
             answer);
    pack(memh, base, COUNT, answer);
}

static void obey(enum order order, uint64_t base, struct answer *answer)
{
    static vmml_uct_mem_h memh;

    switch (order) {
    case PACK_ALL:
        memh = lane_reg(base, COUNT * CHUNK);
        pack_all(memh, base, answer);
        break;
    case PACK_AGAIN:
        pack(memh, base, COUNT, answer);
        break;
    case ADD_ONE:
        many_map(base, COUNT, 1);
        pack(lane_reg(base + COUNT * CHUNK, CHUNK), base + COUNT * CHUNK, 1,
             answer);
        break;
    case UNMAP_ONE:
        CHECK_CU(lane_unmap(base + 1000 * CHUNK, CHUNK));
        break;
    case UNMAP_HALF:
        CHECK_CU(
            lane_unmap(base + COUNT / 2 * CHUNK, (COUNT - COUNT / 2) * CHUNK));
        break;
    case END:
        _exit(0);
    }
}

static void run_exporter(int sock)
{
    uint64_t base;
    enum order order;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    lane_cuda(0);
    base = lane_reserve(SIZE);
    many_map(base, 0, COUNT);
    lane_ledger();
    shared_numbers = vmml_fd_room() < COUNT + 1;
    fprintf(stderr, "hard limit of descriptors: %lu; %s\n",
            vmml_fd_limit().hard,
            shared_numbers ? "the chunks of an allocation share one"
                           : "one for each chunk");
    export_real = lane_real()->cuMemExportToShareableHandle;
    lane_real()->cuMemExportToShareableHandle = export_again;
    while (read(sock, &order, sizeof(order)) == sizeof(order)) {
        struct answer answer = {.base = base};

        exports = 0;
        sim_reset_counts();
        obey(order, base, &answer);
        answer.exports = exports;
        answer.attributes = sim_call_count("cuPointerGetAttribute");
        CHECK_EQUAL(write(sock, &answer, sizeof(answer)), sizeof(answer));
    }
    _exit(0);
}

static struct answer ask(int sock, enum order order)
{
    struct answer answer;

    CHECK_EQUAL(write(sock, &order, sizeof(order)), sizeof(order));
    CHECK_EQUAL(read(sock, &answer, sizeof(answer)), sizeof(answer));
    return answer;
}

/* --- the importer --------------------------------------------------------- */

static CUresult (*import_real)(CUmemGenericAllocationHandle *, void *,
                               CUmemAllocationHandleType);
static unsigned long imports;

/* Imported once and kept mapped, then retained by its address. */
static CUresult CUDAAPI import_again(CUmemGenericAllocationHandle *handle,
                                     void *os_handle,
                                     CUmemAllocationHandleType type)
{
    static struct {
        ino_t inode;
        CUdeviceptr at;
    } known[MANY_ALLOCATIONS];
    CUmemGenericAllocationHandle made;
    struct stat status;
    unsigned i = 0;

    imports++;
    CHECK(fstat((int)(uintptr_t)os_handle, &status) == 0);
    while (i < MANY_ALLOCATIONS && known[i].inode != status.st_ino &&
           known[i].at != 0)
        i++;
    CHECK(i < MANY_ALLOCATIONS);
    if (known[i].at == 0) {
        CHECK_CU(import_real(&made, os_handle, type));
        known[i].at = lane_reserve(CHUNK);
        CHECK_CU(cuMemMap(known[i].at, CHUNK, 0, made, 0));
        CHECK_CU(cuMemRelease(made));
        known[i].inode = status.st_ino;
    }
    return cuMemRetainAllocationHandle(handle, (void *)known[i].at);
}

struct calls {
    unsigned long imports;
    long maps, accesses, unmaps;
};

/* Calls of a prepared key beyond those for allocations that are new. */
static struct calls prepare(const uint8_t key[KEY_SIZE])
{
    imports = 0;
    sim_reset_counts();
    CHECK(im_prepare(key));
    return (struct calls){
        imports,
        sim_call_count("cuMemMap"),
        sim_call_count("cuMemSetAccess"),
        sim_call_count("cuMemUnmap"),
    };
}

static void expect_border(CUdeviceptr mirror, uint64_t chunk)
{
    many_expect_border(mirror, chunk, 4096);
}

static void expect_all(CUdeviceptr mirror, uint64_t from, uint64_t to)
{
    uint64_t chunk;

    for (chunk = from; chunk + 1 < to; chunk += 97)
        expect_border(mirror, chunk);
    expect_border(mirror, to - 2);
}

static bool is_unmapped(void *arg)
{
    return sim_host_view(*(CUdeviceptr *)arg, CHUNK) == NULL;
}

static void import_all(int sock)
{
    struct answer answer = ask(sock, PACK_ALL);
    CUdeviceptr mirror, gone;
    struct calls calls;

    /* Each chunk once, in however many packs. */
    CHECK_EQUAL(answer.exports, COUNT);
    lane_cuda(0);
    im_buffer();
    im_stream();
    import_real = lane_real()->cuMemImportFromShareableHandle;
    lane_real()->cuMemImportFromShareableHandle = import_again;
    calls = prepare(answer.key);
    CHECK_EQUAL(calls.imports, COUNT);
    CHECK_EQUAL(calls.maps, COUNT + MANY_ALLOCATIONS);
    /* The first chunk alone, then the rest as one run. */
    CHECK(calls.accesses <= 2);
    mirror = im_open(answer.key);
    expect_all(mirror, 0, COUNT);

    /* Nothing new: no call. */
    answer = ask(sock, PACK_AGAIN);
    CHECK_EQUAL(answer.exports, 0);
    CHECK_EQUAL(answer.attributes, 0);
    calls = prepare(answer.key);
    CHECK_EQUAL(calls.imports + (unsigned long)calls.maps, 0);

    /* One new chunk. */
    answer = ask(sock, ADD_ONE);
    CHECK_EQUAL(answer.exports, 1);
    calls = prepare(answer.key);
    CHECK_EQUAL(calls.imports, 1);
    CHECK_EQUAL(calls.maps, 1);
    CHECK_EQUAL(calls.accesses, 1);
    CHECK_EQUAL(calls.unmaps, 0);
    expect_border(mirror, COUNT - 1);

    /* One that goes, and half of them, without a call of this process. */
    gone = mirror + 1000 * CHUNK;
    sim_reset_counts();
    ask(sock, UNMAP_ONE);
    CHECK(lane_wait(is_unmapped, &gone));
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 1);
    im_refused(gone, 64);
    expect_border(mirror, 1001);
    expect_all(mirror, 1001, COUNT / 2);
    gone = mirror + (COUNT - 1) * CHUNK;
    ask(sock, UNMAP_HALF);
    CHECK(lane_wait(is_unmapped, &gone));
    CHECK_EQUAL(sim_call_count("cuMemUnmap"), 1 + COUNT - COUNT / 2);
    im_refused(mirror + COUNT / 2 * CHUNK, 64);
    expect_all(mirror, 0, 1000);
    expect_all(mirror, 1001, COUNT / 2);
}

static void sixty_five_thousand_chunks(void)
{
    many_pair(run_exporter, import_all);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(sixty_five_thousand_chunks),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
