/* SPDX-License-Identifier: MIT */
/*
 * As many chunks in a metadata block as in a ledger: 65,000 of one window, of
 * FABRIC memory, for an importer that has nothing else of the exporter. Each
 * border between two of them is copied.
 */
#include "tests/lane/exporter.h"
#include "many.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "fabric/export.h"
#include "fabric/node.h"
#include "lane/exporter.h"
#include "mirror/mirror.h"

#define COUNT 65000ul

/* --- the exporter --------------------------------------------------------- */

struct answer {
    struct vmml_pack pack;
    unsigned blocks;
};

static struct answer pack(uint64_t base, uint64_t count)
{
    vmml_uct_md_h md = lane_standin("standin_mnnvl_md");
    struct answer answer;

    CHECK(vmml_lane_begin_pack(md, lane_reg_in(md, base, count * CHUNK),
                               (void *)(uintptr_t)base, count * CHUNK,
                               &answer.pack));
    CHECK(answer.pack.has_block);
    answer.blocks = vmml_block_count();
    return answer;
}

/* Maps so many chunks as it is told, and packs all of them. */
static void run_exporter(int sock)
{
    uint64_t base, wanted, mapped = 0;
    struct answer answer;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    lane_cuda(0);
    base = lane_reserve((COUNT + 1) * CHUNK);
    while (read(sock, &wanted, sizeof(wanted)) == sizeof(wanted)) {
        many_map(base, mapped, wanted - mapped);
        mapped = wanted;
        answer = pack(base, mapped);
        CHECK_EQUAL(write(sock, &answer, sizeof(answer)), sizeof(answer));
    }
    _exit(0);
}

static struct answer ask(int sock, uint64_t count)
{
    struct answer answer;

    CHECK_EQUAL(write(sock, &count, sizeof(count)), sizeof(count));
    CHECK_EQUAL(read(sock, &answer, sizeof(answer)), sizeof(answer));
    return answer;
}

/* --- the importer --------------------------------------------------------- */

static CUresult (*import_real)(CUmemGenericAllocationHandle *, void *,
                               CUmemAllocationHandleType);
static unsigned long imports;

/* The simulated driver needs a descriptor and two mappings for each import: an
 * allocation that is known, and kept mapped, is retained by its address. */
static CUresult CUDAAPI import_again(CUmemGenericAllocationHandle *handle,
                                     void *name, CUmemAllocationHandleType type)
{
    static struct {
        CUmemFabricHandle name;
        CUdeviceptr at;
    } known[MANY_ALLOCATIONS];
    CUdeviceptr at;
    CUresult result;
    unsigned i = 0;

    imports++;
    while (i < MANY_ALLOCATIONS && known[i].at != 0 &&
           memcmp(&known[i].name, name, sizeof(known[i].name)) != 0)
        i++;
    if (i < MANY_ALLOCATIONS && known[i].at != 0)
        return cuMemRetainAllocationHandle(handle, (void *)known[i].at);
    result = import_real(handle, name, type);
    if (result != CUDA_SUCCESS)
        return result;
    at = lane_reserve(CHUNK);
    /* A block is of another size. */
    if (cuMemMap(at, CHUNK, 0, *handle, 0) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    CHECK(i < MANY_ALLOCATIONS);
    memcpy(&known[i].name, name, sizeof(known[i].name));
    known[i].at = at;
    return CUDA_SUCCESS;
}

/* As a key from another node says it. Returns where the window lies here. */
static CUdeviceptr attach(const struct vmml_pack *pack)
{
    struct vmml_handle handle;
    CUdeviceptr mirror;

    CHECK_EQUAL(vmml_handle_find(pack->handle, VMML_HANDLE_SIZE, &handle), 4);
    CHECK_EQUAL(handle.node, vmml_node_byte());
    handle.node = (uint8_t)(handle.node % 255 + 1);
    CHECK(handle.flags & VMML_HANDLE_BLOCK);
    CHECK(vmml_mirror_prepare_key(&handle, pack->block.handle, 0));
    CHECK_CU(vmml_mirror_open(&handle, &mirror));
    return mirror;
}

static void expect_border(CUdeviceptr mirror, uint64_t chunk)
{
    many_expect_border(mirror, chunk, 64);
}

static void import_all(int sock)
{
    struct answer answer = ask(sock, COUNT);
    CUdeviceptr mirror;
    uint64_t chunk;

    CHECK_EQUAL(answer.blocks, 1);
    lane_cuda(0);
    im_buffer();
    im_stream();
    import_real = lane_real()->cuMemImportFromShareableHandle;
    lane_real()->cuMemImportFromShareableHandle = import_again;
    mirror = attach(&answer.pack);
    CHECK_EQUAL(imports, COUNT + 1); /* the block */
    for (chunk = 0; chunk + 1 < COUNT; chunk++)
        expect_border(mirror, chunk);
    im_refused(mirror + COUNT * CHUNK, 64);

    /* One more: it alone is imported. */
    answer = ask(sock, COUNT + 1);
    imports = 0;
    CHECK_EQUAL(attach(&answer.pack), mirror);
    CHECK_EQUAL(imports, 1);
    expect_border(mirror, COUNT - 1);
    CHECK_EQUAL(answer.blocks, 1);
}

static void sixty_five_thousand_chunks(void)
{
    many_pair(run_exporter, import_all);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(sixty_five_thousand_chunks),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
