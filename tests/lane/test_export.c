/* SPDX-License-Identifier: MIT */
/*
 * The exporter: what is taken, what is published, revoked and closed, and what
 * a key says.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "hooks.h"
#include "lane/state.h"
#include "mirror/mirror.h"
#include "stats/count.h"
#include "transport/client.h"
#include "ucx/scope.h"

#define MANY 64

static struct vmml_chunk_view chunks[MANY];

/* Chunks published in a window; each must hold what is mapped now. */
static size_t published(uint64_t base, size_t size)
{
    size_t count = lane_published(base, size, chunks, MANY);
    size_t i;

    for (i = 0; i < count && i < MANY; i++)
        CHECK(lane_is_present(&chunks[i]));
    return count;
}

static bool is_published(uint64_t base, size_t size, uint64_t address)
{
    size_t count = lane_published(base, size, chunks, MANY);
    size_t i;

    for (i = 0; i < count && i < MANY; i++)
        if (chunks[i].address <= address &&
            address - chunks[i].address < chunks[i].size)
            return true;
    return false;
}

static uint8_t key[KEY_SIZE];

/* Pack; the reason of the key. */
static int pack(vmml_uct_mem_h memh, uint64_t address, size_t length)
{
    CHECK(lane_pack(memh, address, length, key));
    return lane_reason(key);
}

/* A window of `count` chunks that are mapped, registered and packed. */
static uint64_t served_window(unsigned count, vmml_uct_mem_h *memh)
{
    uint64_t base = lane_reserve(MANY * CHUNK);

    lane_map_run(base, CHUNK, count, 1);
    *memh = lane_reg(base, count * CHUNK);
    CHECK_EQUAL(pack(*memh, base, count * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), count);
    return base;
}

/* --- packs ---------------------------------------------------------------- */

static void pack_publishes_what_it_names(void)
{
    struct vmml_handle handle;
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 8, 1);
    memh = lane_reg(base, 8 * CHUNK);
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, chunks, MANY), 0);
    /* One byte in the third chunk, then two around a border. */
    CHECK_EQUAL(pack(memh, base + 2 * CHUNK + 7, 1), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 1);
    CHECK_EQUAL(chunks[0].address, base + 2 * CHUNK);
    CHECK_EQUAL(pack(memh, base + 5 * CHUNK - 1, 2), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 3);
    CHECK_EQUAL(pack(memh, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 8);

    handle = lane_handle(key);
    CHECK_EQUAL(handle.base, base);
    CHECK_EQUAL(handle.size, MANY * CHUNK);
    CHECK_EQUAL(handle.pid, getpid());
    CHECK_EQUAL(handle.ledger_fd, vmml_ledger_fd(vmml_exporter.ledger));
}

static void one_key_for_every_part(void)
{
    uint8_t first[KEY_SIZE];
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = served_window(8, &memh);
    memcpy(first, key, sizeof(first));
    CHECK_EQUAL(pack(memh, base + 3 * CHUNK + 1, CHUNK), VMML_REASON_NONE);
    CHECK(memcmp(first, key, sizeof(first)) == 0);
    /* Another registration, and growth. */
    lane_map_run(base + 8 * CHUNK, CHUNK, 8, 1);
    memh = lane_reg(base + 7 * CHUNK, 9 * CHUNK);
    CHECK_EQUAL(pack(memh, base + 7 * CHUNK, 9 * CHUNK), VMML_REASON_NONE);
    CHECK(memcmp(first, key, sizeof(first)) == 0);
}

static long driver_calls(void)
{
    static const char *const names[] = {
        "cuMemGetAccess",
        "cuPointerGetAttribute",
        "cuPointerGetAttributes",
        "cuMemRetainAllocationHandle",
        "cuMemExportToShareableHandle",
        "cuMemRelease",
        "cuMemGetAllocationPropertiesFromHandle",
    };
    long sum = 0;
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        sum += sim_call_count(names[i]);
    return sum;
}

static void packs_cost_by_new_chunks(void)
{
    vmml_uct_mem_h memh, other;
    uint64_t base;
    unsigned i;

    lane_cuda(0);
    base = served_window(8, &memh);
    CHECK_EQUAL(sim_call_count("cuMemExportToShareableHandle"), 8);
    sim_reset_counts();
    for (i = 0; i < 1000; i++)
        CHECK_EQUAL(pack(memh, base + i * 8192, 16384), VMML_REASON_NONE);
    CHECK_EQUAL(driver_calls(), 0);

    /* A second registration compares, and exports nothing. */
    other = lane_reg(base, 8 * CHUNK);
    sim_reset_counts();
    CHECK_EQUAL(pack(other, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(driver_calls(), 8);

    /* Growth by four: exports of the four alone. */
    lane_map_run(base + 8 * CHUNK, CHUNK, 4, 1);
    other = lane_reg(base, 12 * CHUNK);
    sim_reset_counts();
    CHECK_EQUAL(pack(other, base, 12 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(sim_call_count("cuMemExportToShareableHandle"), 4);
    /* Of a new one: retain, export, release; what it is, before and after; its
     * access. Of an old one: its BUFFER_ID. */
    CHECK_EQUAL(driver_calls(), 4 * 6 + 8);
    CHECK_EQUAL(sim_call_count("cuPointerGetAttribute"), 8);
    CHECK_EQUAL(published(base, MANY * CHUNK), 12);

    /* A further registration: retain, properties, release, where it lies. */
    sim_reset_counts();
    lane_reg(base, 4 * CHUNK);
    CHECK_EQUAL(driver_calls(), 4);
    CHECK_EQUAL(sim_call_count("cuDeviceGetUuid_v2"), 0);
}

/* A driver that has not, or does not answer, several attributes in one call. */
static void attributes_one_by_one(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned i;

    lane_cuda(0);
    for (i = 0; i < 2; i++) {
        if (i == 1)
            lane_real()->cuPointerGetAttributes = NULL;
        else
            CHECK_EQUAL(sim_fail("cuPointerGetAttributes", 1,
                                 CUDA_ERROR_NOT_SUPPORTED, 1),
                        0);
        base = lane_reserve(MANY * CHUNK);
        lane_map_run(base, CHUNK, 4, 1);
        lane_map_run(base + 5 * CHUNK, CHUNK, 2, 1);
        memh = lane_reg(base, 7 * CHUNK);
        CHECK_EQUAL(pack(memh, base, 7 * CHUNK), VMML_REASON_NONE);
        CHECK_EQUAL(published(base, MANY * CHUNK), 6);
    }
}

/* Several attributes in one call need not be of one moment. */
static CUresult (*attributes_real)(unsigned, CUpointer_attribute *, void **,
                                   CUdeviceptr);
static unsigned torn;

static CUresult CUDAAPI torn_attributes(unsigned count,
                                        CUpointer_attribute *names, void **data,
                                        CUdeviceptr ptr)
{
    CUresult result = attributes_real(count, names, data, ptr);
    unsigned i;

    for (i = 0; result == CUDA_SUCCESS && torn != 0 && i < count; i++) {
        if (torn == 1 && names[i] == CU_POINTER_ATTRIBUTE_MAPPING_SIZE)
            *(size_t *)data[i] *= 2;
        else if (torn == 2 &&
                 names[i] == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
            *(CUdeviceptr *)data[i] -= CHUNK;
        /* What it says where nothing is mapped. */
        else if (torn == 3 && names[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = CU_DEVICE_INVALID;
        else if (torn == 4 &&
                 names[i] == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
            *(CUdeviceptr *)data[i] = 0;
        else if (torn == 5 &&
                 names[i] == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
            *(unsigned long long *)data[i] = 0;
    }
    torn = 0;
    return result;
}

/* The first description is of the mapping before, or of nothing, and of this
 * one: what is published in the end is what is mapped. */
static void a_torn_description_is_not_published(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned i, how, count;

    lane_cuda(0);
    attributes_real = lane_real()->cuPointerGetAttributes;
    lane_real()->cuPointerGetAttributes = torn_attributes;
    for (how = 1; how <= 5; how++) {
        base = lane_reserve(MANY * CHUNK);
        lane_map_run(base, CHUNK, 4, 1);
        memh = lane_reg(base, 4 * CHUNK);
        torn = how;
        CHECK_EQUAL(pack(memh, base + CHUNK, 2 * CHUNK), VMML_REASON_NONE);
        CHECK_EQUAL(torn, 0);
        count = published(base, MANY * CHUNK);
        CHECK(count >= 2);
        for (i = 0; i < count; i++) {
            CHECK_EQUAL(chunks[i].size, CHUNK);
            CHECK_EQUAL((chunks[i].address - base) % CHUNK, 0);
        }
    }
}

/* UCX may give an earlier key's bytes for a later request. */
static void old_key_material_is_rewritten(void)
{
    uint8_t old[KEY_SIZE];
    struct vmml_pack now;
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned at;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 2, 1);
    lane_map_as(base + 2 * CHUNK, CHUNK, 1, &(struct lane_memory){0});
    memh = lane_reg(base, 3 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 2 * CHUNK), VMML_REASON_NONE);
    memcpy(old, key, sizeof(old));
    for (at = 0; at <= 8; at += 4) {
        CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)(uintptr_t)base,
                                   3 * CHUNK, &now));
        memset(key, 0x5a, sizeof(key));
        memcpy(key + at, old + 4, VMML_HANDLE_SIZE);
        vmml_lane_finish_pack(&now, key);
        CHECK_EQUAL(lane_reason(key), VMML_REASON_NOT_SHAREABLE);
        CHECK_EQUAL(vmml_handle_find(key, KEY_SIZE, &(struct vmml_handle){0}),
                    at + 4);
        /* Nothing beside the handle is touched. */
        CHECK(at == 0 || key[at - 1] == 0x5a);
        CHECK_EQUAL(key[at + VMML_HANDLE_SIZE], 0x5a);
    }
    /* And back: the first request again, with the tombstone's bytes. */
    CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)(uintptr_t)base,
                               2 * CHUNK, &now));
    vmml_lane_finish_pack(&now, key);
    CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
}

/* A key that is not ours is left as it is. */
static void foreign_key_is_left_alone(void)
{
    uint8_t foreign[KEY_SIZE], before[KEY_SIZE];
    struct vmml_handle handle;
    struct vmml_pack now;
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_log_to_file();
    lane_cuda(0);
    base = served_window(2, &memh);
    CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)(uintptr_t)base, CHUNK,
                               &now));
    memset(foreign, 0x11, sizeof(foreign));
    memcpy(before, foreign, sizeof(before));
    vmml_lane_finish_pack(&now, foreign);
    CHECK(memcmp(before, foreign, sizeof(before)) == 0);
    /* Another exporter's handle. */
    handle = lane_handle(key);
    handle.nonce[3] ^= 1;
    vmml_handle_encode(&handle, foreign + 4);
    memcpy(before, foreign, sizeof(before));
    vmml_lane_finish_pack(&now, foreign);
    CHECK(memcmp(before, foreign, sizeof(before)) == 0);
    CHECK_EQUAL(lane_log_count("does not carry"), 1);
}

/* --- what cannot be served in full ---------------------------------------- */

/* What others' keys give as their reason takes no warning from this process,
 * and counts as nothing that was seen here. */
static void tombstones_of_others_are_theirs(void)
{
    struct vmml_handle handle = {.flags = VMML_HANDLE_TOMBSTONE,
                                 .pid = 1,
                                 .base = 512 * CHUNK,
                                 .size = CHUNK};
    const struct vmml_stats_file *stats;
    vmml_uct_mem_h memh;
    unsigned reason;
    uint64_t base;

    lane_log_to_file();
    lane_cuda(0);
    for (reason = 1; reason <= UINT8_MAX; reason++) {
        handle.reason = (uint8_t)reason;
        CHECK(!vmml_mirror_prepare(&handle, 0));
    }
    stats = atomic_load(&vmml_stats);
    CHECK_EQUAL(stats->lost[VMML_REASON_NOT_SHAREABLE].count, 1);
    CHECK_EQUAL(stats->lost[VMML_CAUSE_YAMA].count, 0);
    CHECK_EQUAL(lane_log_count("no fast lane"), 0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_as(base, CHUNK, 1, &(struct lane_memory){0});
    memh = lane_reg(base, CHUNK);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_NOT_SHAREABLE);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_NOT_SHAREABLE);
    CHECK_EQUAL(lane_log_count("no fast lane"), 1);
}

static void unshareable_is_a_tombstone(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_log_to_file();
    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_as(base, CHUNK, 1, &(struct lane_memory){0});
    memh = lane_reg(base, CHUNK);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_NOT_SHAREABLE);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_NOT_SHAREABLE);
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, chunks, MANY), 0);
    CHECK_EQUAL(lane_log_count("no fast lane"), 1);
    CHECK(lane_log_has("VMMLANE_CREATE"));
}

static void imported_is_a_tombstone(void)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUmemGenericAllocationHandle handle;
    vmml_uct_mem_h memh;
    uint64_t base, other;

    lane_cuda(0);
    base = served_window(1, &memh);
    other = lane_reserve(MANY * CHUNK);
    CHECK_CU(cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)chunks[0].fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK_CU(cuMemMap(other, CHUNK, 0, handle, 0));
    CHECK_CU(cuMemSetAccess(other, CHUNK, &desc, 1));
    memh = lane_reg(other, CHUNK);
    CHECK(pack(memh, other, CHUNK) != VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 1);
}

static void hole_is_served_with_a_line(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_log_to_file();
    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 3, 1);
    lane_map_run(base + 4 * CHUNK, CHUNK, 2, 1);
    lane_map_as(base + 6 * CHUNK, CHUNK, 1,
                &(struct lane_memory){
                    .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                    .no_access = true});
    lane_map(base + 7 * CHUNK, CHUNK, 1);
    memh = lane_reg(base, 8 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 6);
    CHECK(!is_published(base, MANY * CHUNK, base + 3 * CHUNK));
    CHECK(!is_published(base, MANY * CHUNK, base + 6 * CHUNK));
    CHECK_EQUAL(pack(memh, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_log_count("nothing is mapped"), 1);

    /* Filled later: published by the next pack. */
    lane_map(base + 3 * CHUNK, CHUNK, 1);
    CHECK_EQUAL(pack(memh, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK(is_published(base, MANY * CHUNK, base + 3 * CHUNK));
}

static void border_of_a_reservation_is_a_tombstone(void)
{
    uint64_t both, base;
    vmml_uct_mem_h memh;

    lane_cuda(0);
    both = lane_reserve(16 * CHUNK);
    CHECK_CU(cuMemAddressFree(both, 16 * CHUNK));
    lane_reserve_at(both, 8 * CHUNK);
    base = both + 8 * CHUNK;
    lane_reserve_at(base, 8 * CHUNK);
    lane_map_run(both, CHUNK, 16, 1);
    memh = lane_reg(both + 7 * CHUNK, 2 * CHUNK);
    CHECK_EQUAL(pack(memh, both + 7 * CHUNK, 2 * CHUNK), VMML_REASON_WINDOW);
    /* Every key of that registration, also of the part that would do. */
    CHECK_EQUAL(pack(memh, both + 7 * CHUNK, CHUNK), VMML_REASON_WINDOW);
    /* Each side by itself. */
    memh = lane_reg(both + 7 * CHUNK, CHUNK);
    CHECK_EQUAL(pack(memh, both + 7 * CHUNK, CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_handle(key).base, both);
    CHECK_EQUAL(lane_handle(key).size, 8 * CHUNK);
    memh = lane_reg(base, CHUNK);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_handle(key).base, base);
    /* A request that leaves its registration's window. */
    CHECK_EQUAL(pack(memh, base, 9 * CHUNK), VMML_REASON_WINDOW);
    CHECK_EQUAL(pack(memh, base - 1, 2), VMML_REASON_WINDOW);
    CHECK_EQUAL(pack(memh, base, SIZE_MAX), VMML_REASON_WINDOW);
}

static void other_device_is_a_tombstone(void)
{
    static const struct lane_memory second = {
        .device = 1, .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    vmml_uct_mem_h memh;
    uint64_t base;

    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 2, 1);
    lane_map_as(base + 2 * CHUNK, CHUNK, 1, &second);
    memh = lane_reg(base, 3 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 3 * CHUNK), VMML_REASON_DEVICE);
    CHECK_EQUAL(pack(memh, base, 2 * CHUNK), VMML_REASON_NONE);
    /* A registration of the other device's part takes nothing away. */
    memh = lane_reg(base + 2 * CHUNK, CHUNK);
    CHECK_EQUAL(pack(memh, base + 2 * CHUNK, CHUNK), VMML_REASON_DEVICE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 2);
    /* When the first part is gone it is the window. */
    CHECK_CU(lane_unmap(base, 2 * CHUNK));
    memh = lane_reg(base + 2 * CHUNK, CHUNK);
    CHECK_EQUAL(pack(memh, base + 2 * CHUNK, CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, chunks, MANY), 1);
    CHECK_EQUAL(chunks[0].device, 1);
}

static uint64_t filled_reservation(const struct lane_memory *memory)
{
    uint64_t base = lane_reserve(4 * CHUNK);

    lane_map_as(base, 4 * CHUNK, 1, memory);
    return base;
}

static const struct lane_memory fabric_only = {.handle_types =
                                                   CU_MEM_HANDLE_TYPE_FABRIC};
static const struct lane_memory fabric_and_fd = {
    .handle_types =
        CU_MEM_HANDLE_TYPE_FABRIC | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

static void fabric_on(const char *imex)
{
    CHECK(setenv("VMMLANE_SIM_FABRIC", "on", 1) == 0);
    CHECK(setenv("VMMLANE_SIM_IMEX", imex, 1) == 0);
    lane_log_to_file();
    lane_cuda(0);
}

/* UCX's own key: no byte of it is the shim's. */
static void one_fabric_handle_is_native(void)
{
    static const struct lane_memory *const kinds[] = {&fabric_only,
                                                      &fabric_and_fd};
    uint8_t before[KEY_SIZE];
    vmml_uct_mem_h memh;
    uint64_t whole;
    size_t i;

    fabric_on("1");
    for (i = 0; i < 2; i++) {
        whole = filled_reservation(kinds[i]);
        memset(key, 0x5a, sizeof(key));
        memcpy(before, key, sizeof(key));
        memh = lane_reg(whole, 4 * CHUNK);
        CHECK(!lane_pack(memh, whole, 4 * CHUNK, key));
        memh = lane_reg(whole + CHUNK + 5, 100);
        CHECK(!lane_pack(memh, whole + CHUNK + 5, 100, key));
        CHECK(memcmp(before, key, sizeof(key)) == 0);
    }
    CHECK_EQUAL(lane_log_count(" WARN "), 0);
}

/* Shared by their fabric handles: no descriptor, not even for a moment. */
static void fabric_chunks_are_published(void)
{
    struct vmml_chunk_view found[3];
    vmml_uct_mem_h memh;
    unsigned fds, i;
    uint64_t base;

    fabric_on("1");
    base = lane_reserve(MANY * CHUNK);
    for (i = 0; i < 3; i++)
        lane_map_as(base + i * CHUNK, CHUNK, 1, &fabric_only);
    lane_ledger();
    fds = lane_fd_count();
    memh = lane_reg(base + CHUNK - 1, 2);
    CHECK_EQUAL(pack(memh, base + CHUNK - 1, 2), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 2);
    /* One chunk that can be joined by others is the window's as well. */
    memh = lane_reg(base + 2 * CHUNK, CHUNK);
    CHECK_EQUAL(pack(memh, base + 2 * CHUNK, CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, found, 3), 3);
    for (i = 0; i < 3; i++) {
        CHECK_EQUAL(found[i].kind, VMML_CHUNK_FABRIC);
        CHECK_EQUAL(found[i].fd, -1);
        CHECK(lane_is_present(&found[i]));
    }
    CHECK_EQUAL(lane_fd_count(), fds);
    CHECK_CU(lane_unmap(base + CHUNK, CHUNK));
    CHECK_EQUAL(published(base, MANY * CHUNK), 2);
    CHECK_EQUAL(lane_log_count(" WARN "), 0);
}

/* A window may hold both kinds: each chunk goes by what it has. */
static void fabric_beside_descriptors(void)
{
    struct vmml_chunk_view found[4];
    vmml_uct_mem_h memh;
    uint64_t base;
    size_t i;

    fabric_on("1");
    base = lane_reserve(MANY * CHUNK);
    lane_map(base, CHUNK, 1);
    lane_map_as(base + CHUNK, CHUNK, 1, &fabric_only);
    lane_map_as(base + 2 * CHUNK, CHUNK, 1, &fabric_and_fd);
    memh = lane_reg(base, 3 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 3 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, found, 4), 3);
    for (i = 0; i < 3; i++) {
        CHECK_EQUAL(found[i].kind, i == 1 ? VMML_CHUNK_FABRIC : VMML_CHUNK_FD);
        CHECK(lane_is_present(&found[i]));
    }
}

/* Both allowed, and no fabric on this host: the descriptor serves (A2). */
static void fabric_that_cannot_be_had(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned i;

    fabric_on("create");
    base = lane_reserve(MANY * CHUNK);
    for (i = 0; i < 3; i++)
        lane_map_as(base + i * CHUNK, CHUNK, 1, &fabric_and_fd);
    for (i = 1; i <= 3; i += 2) {
        memh = lane_reg(base, i * CHUNK);
        CHECK_EQUAL(pack(memh, base, i * CHUNK), VMML_REASON_NONE);
        CHECK_EQUAL(published(base, MANY * CHUNK), i);
        lane_dereg(memh);
    }
    /* Also where UCX would try the fabric handle first: one that fills its
     * reservation. */
    base = filled_reservation(&fabric_and_fd);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_log_count(" WARN "), 0);
}

/* Nothing else is allowed: its own reason and one line; and nothing of that
 * stays when the channel comes. */
static void fabric_not_permitted(void)
{
    vmml_uct_mem_h memh, other;
    uint64_t base;
    unsigned i;

    fabric_on("1");
    base = lane_reserve(MANY * CHUNK);
    for (i = 0; i < 3; i++)
        lane_map_as(base + i * CHUNK, CHUNK, 1, &fabric_only);
    memh = lane_reg(base, 3 * CHUNK);
    CHECK_EQUAL(sim_fail("cuMemExportToShareableHandle", 1,
                         CUDA_ERROR_NOT_PERMITTED, 1),
                0);
    /* A descriptor is refused for another reason: it was not asked for. */
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(pack(memh, base, 3 * CHUNK), VMML_REASON_NO_CHANNEL);
    other = lane_reg(base, 2 * CHUNK);
    CHECK_EQUAL(pack(other, base, 2 * CHUNK), VMML_REASON_NO_CHANNEL);
    CHECK_EQUAL(published(base, MANY * CHUNK), 0);
    CHECK_EQUAL(lane_log_count("no IMEX channel"), 1);
    CHECK_EQUAL(lane_log_count(" WARN "), 1);
    sim_clear_failures();
    CHECK_EQUAL(pack(memh, base, 3 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(pack(other, base, 2 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 3);
}

/* The attribute says that it can be made, and it cannot (measured): told, not
 * warned of, since no lane is lost yet. */
static void fabric_create_not_permitted(void)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    unsigned i;

    CHECK(setenv("VMMLANE_LOG", "info", 1) == 0);
    fabric_on("0");
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(vmml_cuMemCreate(lane_caller(), &handle, CHUNK, &prop, 0),
                    CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQUAL(lane_log_count("no IMEX channel"), 1);
    CHECK_EQUAL(lane_log_count(" WARN "), 0);
    /* The caller's next try is its own business. */
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CHECK_CU(vmml_cuMemCreate(lane_caller(), &handle, CHUNK, &prop, 0));
}

static void no_descriptor_left_is_a_tombstone(void)
{
    struct rlimit limit;
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned i, done = 0;
    int reason = 0;

    lane_log_to_file();
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    lane_cuda(0);
    base = lane_reserve(2 * MANY * CHUNK);
    lane_map_run(base, CHUNK, 100, 1);
    memh = lane_reg(base, 100 * CHUNK);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_NONE);
    CHECK(lane_published(base, 2 * MANY * CHUNK, chunks, MANY) == 1);
    /* The wall stands 20 numbers above the spare ones. */
    limit.rlim_cur = limit.rlim_max = (rlim_t)chunks[0].fd + 20 + VMML_FD_SPARE;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (i = 1; i < 100 && reason == 0; i++) {
        reason = pack(memh, base + i * CHUNK, CHUNK);
        done += reason == 0;
    }
    CHECK_EQUAL(reason, VMML_REASON_NO_DESCRIPTOR);
    CHECK(done >= 10 && done <= 20);
    CHECK_EQUAL(lane_log_count("ulimit -Hn"), 1);
    /* Nothing of it sticks. */
    CHECK_CU(lane_unmap(base, CHUNK));
    CHECK_EQUAL(pack(memh, base + i * CHUNK, CHUNK), VMML_REASON_NONE);
}

static void driver_failures_leave_nothing(void)
{
    static const char *const calls[] = {
        "cuMemGetAccess",
        "cuMemRetainAllocationHandle",
        "cuMemExportToShareableHandle",
        "cuPointerGetAttribute",
        "cuMemRelease",
    };
    vmml_uct_mem_h memh, again;
    unsigned i, n, fds;
    uint64_t base;

    lane_cuda(0);
    base = served_window(9, &memh);
    fds = lane_fd_count();
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (n = 1; n <= 12; n++) {
            CHECK_CU(lane_unmap(base + CHUNK, 8 * CHUNK));
            lane_map_run(base + CHUNK, CHUNK, 8, n);
            CHECK_EQUAL(sim_fail(calls[i], n, CUDA_ERROR_UNKNOWN, 0), 0);
            pack(memh, base, 9 * CHUNK);
            sim_clear_failures();
            published(base, MANY * CHUNK);
            /* What a failure cost is there with the next registration. */
            again = lane_reg(base, 9 * CHUNK);
            CHECK_EQUAL(pack(again, base, 9 * CHUNK), VMML_REASON_NONE);
            CHECK_EQUAL(published(base, MANY * CHUNK), 9);
            /* A handle that the driver does not release stays open in it. */
            if (strcmp(calls[i], "cuMemRelease") != 0)
                CHECK_EQUAL(lane_fd_count(), fds);
            lane_dereg(again);
        }
}

/* A query that fails, for as long as it does, costs the lane: were its chunk
 * taken for a hole, the rest would be served and reads of it would fail. */
static void a_failed_query_is_no_hole(void)
{
    static const char *const calls[] = {
        "cuPointerGetAttribute",
        "cuMemGetAccess",
        "cuMemRetainAllocationHandle",
    };
    vmml_uct_mem_h memh, known, new;
    unsigned i, n, fds;
    uint64_t base;

    lane_cuda(0);
    lane_log_to_file();
    base = served_window(9, &memh);
    fds = lane_fd_count();
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (n = 1; n <= 40; n++) {
            CHECK_CU(lane_unmap(base + CHUNK, 8 * CHUNK));
            lane_map_run(base + CHUNK, CHUNK, 8, n);
            new = lane_reg(base, 9 * CHUNK);
            sim_reset_counts();
            /* Singly: one that fails together is asked so. */
            if (i == 0)
                CHECK_EQUAL(sim_fail("cuPointerGetAttributes", 1,
                                     CUDA_ERROR_UNKNOWN, 1),
                            0);
            CHECK_EQUAL(sim_fail(calls[i], n, CUDA_ERROR_OUT_OF_MEMORY, 1), 0);
            if (pack(new, base, 9 * CHUNK) == VMML_REASON_NONE) {
                /* It did not come to the n-th call. */
                CHECK(sim_call_count(calls[i]) < n);
                n = 1000;
            } else {
                CHECK_EQUAL(lane_reason(key), VMML_REASON_DRIVER);
            }
            sim_clear_failures();
            CHECK_EQUAL(pack(new, base, 9 * CHUNK), VMML_REASON_NONE);
            CHECK_EQUAL(published(base, MANY * CHUNK), 9);
            CHECK_EQUAL(lane_fd_count(), fds);
            /* What is published stays so where it cannot be compared. */
            known = lane_reg(base, 9 * CHUNK);
            CHECK_EQUAL(sim_fail("cuPointerGetAttribute", 1 + n % 9,
                                 CUDA_ERROR_UNKNOWN, 1),
                        0);
            CHECK_EQUAL(pack(known, base, 9 * CHUNK), VMML_REASON_DRIVER);
            sim_clear_failures();
            CHECK_EQUAL(published(base, MANY * CHUNK), 9);
            lane_dereg(known);
            lane_dereg(new);
        }
    CHECK_EQUAL(lane_log_count("nothing is mapped"), 0);
}

/* One that fails once costs nothing. */
static void a_failed_query_is_tried_again(void)
{
    vmml_uct_mem_h memh, new;
    uint64_t base;
    unsigned n;

    lane_cuda(0);
    base = served_window(9, &memh);
    for (n = 1; n <= 40; n++) {
        CHECK_CU(lane_unmap(base + CHUNK, 8 * CHUNK));
        lane_map_run(base + CHUNK, CHUNK, 8, n);
        new = lane_reg(base, 9 * CHUNK);
        CHECK_EQUAL(
            sim_fail("cuPointerGetAttributes", 1, CUDA_ERROR_UNKNOWN, n % 2),
            0);
        CHECK_EQUAL(
            sim_fail("cuPointerGetAttribute", n, CUDA_ERROR_OUT_OF_MEMORY, 0),
            0);
        CHECK_EQUAL(pack(new, base, 9 * CHUNK), VMML_REASON_NONE);
        sim_clear_failures();
        CHECK_EQUAL(published(base, MANY * CHUNK), 9);
        lane_dereg(new);
    }
}

/* --- unmaps --------------------------------------------------------------- */

static void unmap_revokes_what_it_covers(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned fds, i;

    lane_cuda(0);
    base = served_window(8, &memh);
    fds = lane_fd_count();
    CHECK_CU(lane_unmap(base + 2 * CHUNK, 3 * CHUNK));
    CHECK_EQUAL(published(base, MANY * CHUNK), 5);
    CHECK_EQUAL(lane_fd_count() + 6, fds); /* the driver's are three, too */
    for (i = 0; i < 8; i++)
        CHECK_EQUAL(is_published(base, MANY * CHUNK, base + i * CHUNK),
                    i < 2 || i > 4);
    lane_map_run(base + 2 * CHUNK, CHUNK, 3, 2);
    CHECK_CU(lane_unmap(base, 8 * CHUNK));
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, chunks, MANY), 0);
    /* Windows outlive their chunks, and keep their identity. */
    lane_map_run(base, CHUNK, 8, 3);
    CHECK_EQUAL(pack(memh, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 8);
    CHECK_EQUAL(lane_fd_count(), fds);
}

static void unmap_over_two_reservations(void)
{
    vmml_uct_mem_h left, right;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(16 * CHUNK);
    CHECK_CU(cuMemAddressFree(base, 16 * CHUNK));
    lane_reserve_at(base, 8 * CHUNK);
    lane_reserve_at(base + 8 * CHUNK, 8 * CHUNK);
    lane_map_run(base, CHUNK, 16, 1);
    left = lane_reg(base, 8 * CHUNK);
    right = lane_reg(base + 8 * CHUNK, 8 * CHUNK);
    CHECK_EQUAL(pack(left, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(pack(right, base + 8 * CHUNK, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_CU(lane_unmap(base + 6 * CHUNK, 4 * CHUNK));
    CHECK_EQUAL(published(base, 8 * CHUNK), 6);
    CHECK_EQUAL(published(base + 8 * CHUNK, 8 * CHUNK), 6);
    CHECK(!is_published(base, 8 * CHUNK, base + 6 * CHUNK));
    CHECK(!is_published(base + 8 * CHUNK, 8 * CHUNK, base + 9 * CHUNK));
    CHECK(is_published(base + 8 * CHUNK, 8 * CHUNK, base + 10 * CHUNK));
}

/* Whatever the driver makes of it: what it unmapped is revoked, the rest is
 * served. */
static void unmap_over_holes(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned i;

    lane_cuda(0);
    base = served_window(8, &memh);
    CHECK_CU(lane_unmap(base + 2 * CHUNK, CHUNK));
    CHECK_CU(lane_unmap(base + 5 * CHUNK, 2 * CHUNK));
    (void)lane_unmap(base, 8 * CHUNK);
    (void)lane_unmap(base + CHUNK, CHUNK / 2);
    for (i = 0; i < 8; i++)
        CHECK_EQUAL(is_published(base, MANY * CHUNK, base + i * CHUNK),
                    sim_host_view(base + i * CHUNK, CHUNK) != NULL);
}

static uint64_t serial_at(uint64_t base, uint64_t address)
{
    size_t count = lane_published(base, MANY * CHUNK, chunks, MANY);
    size_t i;

    for (i = 0; i < count; i++)
        if (chunks[i].address == address)
            return chunks[i].serial;
    return 0;
}

/* The driver refuses an unmap of half a mapping. */
static void refused_unmap_is_served_anew(void)
{
    vmml_uct_mem_h memh;
    uint64_t base, before[8];
    unsigned fds, i;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map(base, 2 * CHUNK, 1);
    lane_map(base + 2 * CHUNK, 2 * CHUNK, 1);
    lane_map(base + 6 * CHUNK, 2 * CHUNK, 1);
    memh = lane_reg(base, 8 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 8 * CHUNK), VMML_REASON_NONE);
    for (i = 0; i < 8; i++)
        before[i] = serial_at(base, base + i * CHUNK);
    fds = lane_fd_count();

    CHECK_EQUAL(lane_unmap(base + CHUNK, CHUNK), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 3);
    CHECK(serial_at(base, base) > before[0]);
    CHECK_EQUAL(serial_at(base, base + 2 * CHUNK), before[2]);
    CHECK(lane_unmap(base + 2 * CHUNK, 5 * CHUNK) != CUDA_SUCCESS);
    CHECK_EQUAL(published(base, MANY * CHUNK), 3);
    CHECK(serial_at(base, base + 2 * CHUNK) > before[2]);
    CHECK(serial_at(base, base + 6 * CHUNK) > before[6]);
    CHECK_EQUAL(lane_fd_count(), fds);
    /* The same chunks can still go. */
    CHECK_CU(lane_unmap(base, 4 * CHUNK));
    CHECK_EQUAL(published(base, MANY * CHUNK), 1);
}

static void unseen_unmap_is_found_by_registration(void)
{
    vmml_uct_mem_h memh, again;
    uint64_t base;
    unsigned fds;

    lane_cuda(0);
    base = served_window(8, &memh);
    fds = lane_fd_count();
    CHECK_CU(lane_unmap_unseen(base + CHUNK, 2 * CHUNK));
    lane_map_as(base + CHUNK, CHUNK, 2, &lane_unseen);
    lane_map_as(base + 2 * CHUNK, CHUNK, 2, &lane_unseen);
    again = lane_reg(base, 8 * CHUNK);
    CHECK_EQUAL(pack(again, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 8);
    CHECK_EQUAL(lane_fd_count(), fds);

    /* Other sizes at the same place: 2 x 1 becomes 1 x 2. */
    CHECK_CU(lane_unmap_unseen(base + CHUNK, 2 * CHUNK));
    lane_map_as(base + CHUNK, 2 * CHUNK, 3, &lane_unseen);
    again = lane_reg(base, 8 * CHUNK);
    CHECK_EQUAL(pack(again, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 7);
    /* And nothing at all. */
    CHECK_CU(lane_unmap_unseen(base + CHUNK, 2 * CHUNK));
    again = lane_reg(base, 8 * CHUNK);
    CHECK_EQUAL(pack(again, base, 8 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 6);
}

/* --- reservations --------------------------------------------------------- */

static void freed_reservation_is_retired(void)
{
    struct vmml_handle handle;
    uint8_t old[KEY_SIZE];
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = served_window(4, &memh);
    memcpy(old, key, sizeof(old));
    /* Refused while something is mapped: nothing changes. */
    CHECK(vmml_cuMemAddressFree(NULL, base, MANY * CHUNK) != CUDA_SUCCESS);
    CHECK_EQUAL(published(base, MANY * CHUNK), 4);
    CHECK_CU(lane_unmap(base, 4 * CHUNK));
    lane_free_address(base, MANY * CHUNK);
    CHECK_EQUAL(vmml_lane_own_window(base, MANY * CHUNK), -1);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_WINDOW);

    /* Made again at the same place: the same identity serves again, for the
     * registration that outlived it too. */
    lane_reserve_at(base, MANY * CHUNK);
    lane_map_run(base, CHUNK, 4, 2);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK(memcmp(old, key, sizeof(old)) == 0);
    CHECK_EQUAL(published(base, MANY * CHUNK), 4);
    lane_dereg(memh);

    /* Another size at the same place is another window. */
    CHECK_CU(lane_unmap(base, 4 * CHUNK));
    lane_free_address(base, MANY * CHUNK);
    lane_reserve_at(base, 8 * CHUNK);
    lane_map_run(base, CHUNK, 4, 3);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    handle = lane_handle(key);
    CHECK_EQUAL(handle.size, 8 * CHUNK);
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, chunks, MANY), 0);
    CHECK_EQUAL(published(base, 8 * CHUNK), 4);
}

static void reservation_replaced_unseen(void)
{
    vmml_uct_mem_h memh, other;
    uint64_t base;
    unsigned fds;

    lane_cuda(0);
    lane_ledger();
    fds = lane_fd_count();
    base = served_window(4, &memh);
    CHECK_CU(lane_unmap_unseen(base, 4 * CHUNK));
    CHECK_CU(cuMemAddressFree(base, MANY * CHUNK));
    lane_reserve_at(base + 2 * CHUNK, 4 * CHUNK);
    lane_map_run(base + 2 * CHUNK, CHUNK, 2, 2);
    other = lane_reg(base + 2 * CHUNK, 2 * CHUNK);
    CHECK_EQUAL(pack(other, base + 2 * CHUNK, 2 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_published(base, MANY * CHUNK, chunks, MANY), 0);
    CHECK_EQUAL(published(base + 2 * CHUNK, 4 * CHUNK), 2);
    CHECK_EQUAL(pack(memh, base + 2 * CHUNK, CHUNK), VMML_REASON_WINDOW);
    lane_dereg(memh);
    lane_dereg(other);
    CHECK_CU(lane_unmap(base + 2 * CHUNK, 2 * CHUNK));
    lane_free_address(base + 2 * CHUNK, 4 * CHUNK);
    CHECK_EQUAL(lane_fd_count(), fds);
}

/* A descriptor that no table has yet, and a child that nobody could tell of. */
static void a_fork_while_a_chunk_is_exported(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = served_window(1, &memh);
    lane_map(base + CHUNK, CHUNK, 1);
    memh = lane_reg(base + CHUNK, CHUNK);
    lane_fork_after("cuMemExportToShareableHandle");
    CHECK_EQUAL(pack(memh, base + CHUNK, CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_fork_inherited(), 0);
    CHECK_EQUAL(published(base, MANY * CHUNK), 2);
}

/* --- registrations that end ----------------------------------------------- */

static bool is_empty(void *arg)
{
    return lane_published(*(uint64_t *)arg, MANY * CHUNK, chunks, MANY) == 0;
}

static void last_deregistration_makes_idle(void)
{
    vmml_uct_mem_h first, second;
    uint64_t base, start;
    unsigned fds;

    lane_cuda(0);
    base = served_window(4, &first);
    fds = lane_fd_count();
    second = lane_reg(base + 3 * CHUNK, CHUNK);
    start = lane_ms();
    lane_dereg(first);
    CHECK_EQUAL(published(base, MANY * CHUNK), 4);
    while (lane_published(base, MANY * CHUNK, chunks, MANY) == 4) {
        CHECK(lane_ms() < start + 20000);
        usleep(2000);
    }
    /* All three at once, the one that is covered stays. */
    CHECK(lane_ms() >= start + VMML_IDLE_SECONDS * 1000 - 10);
    CHECK_EQUAL(published(base, MANY * CHUNK), 1);
    CHECK_EQUAL(chunks[0].address, base + 3 * CHUNK);
    CHECK(lane_fds_become(fds - 3));
    lane_dereg(second);
    CHECK(lane_wait(is_empty, &base));
    CHECK(lane_fds_become(fds - 4));
}

static void registration_in_time_keeps_chunks(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = served_window(4, &memh);
    sim_reset_counts();
    lane_dereg(memh);
    usleep(300000);
    memh = lane_reg(base, 4 * CHUNK);
    usleep(VMML_IDLE_SECONDS * 1000000 + 300000);
    CHECK_EQUAL(published(base, MANY * CHUNK), 4);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(sim_call_count("cuMemExportToShareableHandle"), 0);
    lane_dereg(memh);
    CHECK(lane_wait(is_empty, &base));
}

/* The time counts from the last deregistration, not from the first. */
static void each_deregistration_begins_anew(void)
{
    vmml_uct_mem_h memh;
    uint64_t base, start;

    lane_cuda(0);
    base = served_window(4, &memh);
    lane_dereg(memh);
    usleep(VMML_IDLE_SECONDS * 1000000 / 2);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    start = lane_ms();
    lane_dereg(memh);
    while (lane_published(base, MANY * CHUNK, chunks, MANY) == 4) {
        CHECK(lane_ms() < start + 20000);
        usleep(2000);
    }
    CHECK(lane_ms() >= start + VMML_IDLE_SECONDS * 1000 - 10);
    CHECK(lane_wait(is_empty, &base));
}

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

static void a_registration_per_message_exports_once(void)
{
    vmml_uct_mem_h memh;
    unsigned round, fds;
    uint64_t base;
    size_t memory;

    lane_cuda(0);
    base = served_window(4, &memh);
    fds = lane_fd_count();
    lane_dereg(memh);
    memory = allocated();
    sim_reset_counts();
    for (round = 0; round < 10000; round++) {
        memh = lane_reg(base, 4 * CHUNK);
        CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
        lane_dereg(memh);
    }
    /* Once per chunk for each time that all were idle for the bound. */
    CHECK(sim_call_count("cuMemExportToShareableHandle") <= 40);
    /* Nothing of them is left but what the chunks need. (A sanitizer's malloc
     * counts nothing here.) */
    CHECK(allocated() < memory + (256 << 10));
    CHECK(lane_wait(is_empty, &base));
    CHECK(lane_fds_become(fds - 4));
}

static void many_registrations_over_few_chunks(void)
{
    static vmml_uct_mem_h memh[10000];
    uint64_t base;
    vmml_uct_mem_h whole;
    unsigned i, fds;

    lane_cuda(0);
    base = served_window(4, &whole);
    fds = lane_fd_count();
    for (i = 0; i < 10000; i++) {
        uint64_t at = base + i * 800;

        memh[i] = lane_reg(at, 200000);
        CHECK_EQUAL(pack(memh[i], at, 200000), VMML_REASON_NONE);
    }
    CHECK_EQUAL(sim_call_count("cuMemExportToShareableHandle"), 4);
    CHECK_EQUAL(lane_fd_count(), fds);
    lane_dereg(whole);
    for (i = 10000; i-- > 0;)
        lane_dereg(memh[i]);
    CHECK_EQUAL(vmml_exporter.registration_count, 0);
    CHECK(lane_wait(is_empty, &base));
    CHECK(lane_fds_become(fds - 4));
}

/* UCX may free a memory handle past the hooks and use its address again. */
static void reused_memory_handle(void)
{
    vmml_uct_mem_h memh;
    uint64_t base, other;
    CUdeviceptr plain;

    lane_cuda(0);
    base = served_window(2, &memh);
    other = lane_reserve(CHUNK);
    lane_map(other, CHUNK, 1);
    vmml_lane_register(lane_md(), memh, (void *)(uintptr_t)other, CHUNK);
    CHECK_EQUAL(pack(memh, other, CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(lane_handle(key).base, other);
    CHECK(lane_wait(is_empty, &base));
    lane_dereg(memh);
    CHECK_EQUAL(vmml_exporter.registration_count, 0);

    /* For memory that is not taken at all. */
    memh = lane_reg(other, CHUNK);
    CHECK_CU(cuMemAlloc_v2(&plain, CHUNK));
    vmml_lane_register(lane_md(), memh, (void *)(uintptr_t)plain, CHUNK);
    CHECK(!lane_pack(memh, plain, CHUNK, key));
}

/* --- taken or native ------------------------------------------------------ */

static bool is_taken(vmml_uct_md_h md, uint64_t address, size_t length)
{
    vmml_uct_mem_h memh = lane_reg_in(md, address, length);
    struct vmml_pack now;
    bool taken = vmml_lane_begin_pack(md, memh, (void *)(uintptr_t)address,
                                      length, &now);

    CHECK(!taken || memcmp(now.handle, "\0\0\0\0vmml", 8) == 0);
    vmml_lane_deregister(md, memh);
    return taken;
}

static void native_where_ucx_can(void)
{
    uint64_t whole, part;
    CUdeviceptr plain, managed;

    lane_cuda(0);
    whole = filled_reservation(&lane_plain);
    part = lane_reserve(8 * CHUNK);
    lane_map(part, 4 * CHUNK, 1);
    CHECK(!is_taken(lane_md_native(), whole, 4 * CHUNK));
    CHECK(!is_taken(lane_md_native(), whole + 5, 100));
    /* It may grow, so that UCX's own key would become wrong. */
    CHECK(is_taken(lane_md_native(), part, 4 * CHUNK));
    /* The same memory for a module without the arm. */
    CHECK(is_taken(lane_md(), whole, 4 * CHUNK));
    /* Without a handle type there is nothing that UCX could share. */
    CHECK(is_taken(lane_md_native(),
                   filled_reservation(&(struct lane_memory){0}), 4 * CHUNK));

    CHECK_CU(cuMemAlloc_v2(&plain, CHUNK));
    CHECK_CU(cuMemAllocManaged(&managed, CHUNK, CU_MEM_ATTACH_GLOBAL));
    CHECK(!is_taken(lane_md(), plain, CHUNK));
    CHECK(!is_taken(lane_md(), managed, CHUNK));
    CHECK(!is_taken(lane_md(), (uintptr_t)&plain, sizeof(plain)));
    CHECK(!is_taken(lane_md(), 0, 0));
    CHECK(!is_taken(lane_md(), part + 4 * CHUNK, CHUNK)); /* a hole */
    CHECK(!is_taken(lane_md(), part, SIZE_MAX));
}

/* Once for the life of a registration. */
static void native_stays_native(void)
{
    vmml_uct_mem_h memh;
    uint64_t whole;

    lane_cuda(0);
    whole = filled_reservation(&lane_plain);
    CHECK(is_taken(lane_md(), whole, CHUNK)); /* so that there is a window */
    memh = lane_reg_in(lane_md_native(), whole, 4 * CHUNK);
    CHECK_CU(lane_unmap(whole, 4 * CHUNK));
    lane_map_run(whole, CHUNK, 4, 2);
    CHECK(!lane_pack(memh, whole, 4 * CHUNK, key));
}

static void native_never(void)
{
    uint64_t whole;

    CHECK(setenv("VMMLANE_NATIVE", "never", 1) == 0);
    lane_cuda(0);
    whole = filled_reservation(&lane_plain);
    CHECK(is_taken(lane_md_native(), whole, 4 * CHUNK));
}

static void switched_off(void)
{
    uint64_t whole;

    CHECK(setenv("VMMLANE_SHARE", "off", 1) == 0);
    lane_cuda(0);
    whole = filled_reservation(&lane_plain);
    CHECK(!is_taken(lane_md(), whole, 4 * CHUNK));
    CHECK(vmml_exporter.ledger == NULL);
}

static void stands_down_when_ucx_walks(void)
{
    struct vmml_pack pack_state;
    struct vmml_scope scope = {.kind = VMML_SCOPE_PACK, .pack = &pack_state};
    vmml_uct_mem_h memh;
    CUdeviceptr start;
    uint64_t base;
    size_t size;

    lane_cuda(0);
    base = served_window(4, &memh);
    CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)(uintptr_t)base,
                               4 * CHUNK, &pack_state));
    vmml_scope_enter(&scope);
    CHECK_CU(vmml_cuMemGetAddressRange_v2(lane_caller(), &start, &size,
                                          base + 2 * CHUNK));
    CHECK_EQUAL(start, base);
    CHECK_EQUAL(size, MANY * CHUNK);
    CHECK(is_taken(lane_md(), base, 4 * CHUNK));
    /* Behind the answer: this UCX walks. It gets the driver's answer. */
    CHECK_EQUAL(vmml_cuMemGetAddressRange_v2(lane_caller(), &start, &size,
                                             base + MANY * CHUNK),
                cuMemGetAddressRange_v2(&start, &size, base + MANY * CHUNK));
    vmml_scope_leave(&scope);
    CHECK(!is_taken(lane_md(), base, 4 * CHUNK));
    /* A registration that was taken stays so. */
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
}

/* Each driver call of a registration fails once: UCX's own key of the first
 * chunk is never made for several. */
static void undecided_until_the_pack(void)
{
    static const char *const calls[] = {
        "cuDeviceGetUuid_v2", /* first: that of a known window is known */
        "cuMemRetainAllocationHandle",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuPointerGetAttribute",
    };
    vmml_uct_mem_h memh;
    uint64_t base;
    size_t i, failed = 0;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 4, 1);
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        sim_reset_counts();
        CHECK_EQUAL(
            sim_fail("cuPointerGetAttributes", 1, CUDA_ERROR_UNKNOWN, 0), 0);
        CHECK_EQUAL(sim_fail(calls[i], 1, CUDA_ERROR_UNKNOWN, 0), 0);
        memh = lane_reg(base, 4 * CHUNK);
        sim_clear_failures();
        failed += sim_call_count(calls[i]) > 0;
        CHECK_EQUAL(pack(memh, base + CHUNK, 2 * CHUNK), VMML_REASON_NONE);
        CHECK_EQUAL(published(base, MANY * CHUNK), 2);
        CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
        CHECK_EQUAL(published(base, MANY * CHUNK), 4);
        lane_dereg(memh);
        CHECK(lane_wait(is_empty, &base));
    }
    CHECK_EQUAL(failed, sizeof(calls) / sizeof(calls[0]));
}

/* And where the pack cannot decide either. */
static void never_decided_is_a_tombstone(void)
{
    vmml_uct_mem_h memh, plain_memh;
    CUdeviceptr plain;
    uint64_t base;

    lane_cuda(0);
    lane_log_to_file();
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 4, 1);
    CHECK_CU(cuMemAlloc_v2(&plain, CHUNK));
    CHECK_EQUAL(sim_fail("cuDeviceGetUuid_v2", 1, CUDA_ERROR_UNKNOWN, 1), 0);
    memh = lane_reg(base, 4 * CHUNK);
    plain_memh = lane_reg(plain, CHUNK);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_LEDGER);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_LEDGER);
    CHECK_EQUAL(lane_log_count(" WARN "), 1);
    CHECK(!lane_pack(plain_memh, plain, CHUNK, key));
    sim_clear_failures();
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 4);
    CHECK(!lane_pack(plain_memh, plain, CHUNK, key));
}

/* --- fork ----------------------------------------------------------------- */

static void wait_for(pid_t pid)
{
    int status;

    CHECK(pid > 0);
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 0);
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void child_publishes_nothing(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;
    pid_t pid;
    int ledger;
    size_t i;

    lane_cuda(0);
    base = served_window(8, &memh);
    ledger = vmml_ledger_fd(vmml_exporter.ledger);
    lane_published(base, MANY * CHUNK, chunks, MANY);
    pid = fork();
    if (pid == 0) {
        for (i = 0; i < 8; i++)
            CHECK(!is_open(chunks[i].fd));
        CHECK(!is_open(ledger));
        CHECK(!lane_pack(memh, base, 8 * CHUNK, key));
        lane_dereg(memh);
        /* What the child opens now may get those numbers; its own child must
         * not close them. */
        CHECK(dup2(STDERR_FILENO, ledger) == ledger);
        CHECK(dup2(STDERR_FILENO, chunks[0].fd) == chunks[0].fd);
        pid = fork();
        if (pid == 0) {
            CHECK(is_open(ledger));
            CHECK(is_open(chunks[0].fd));
            _exit(0);
        }
        wait_for(pid);
        _exit(0);
    }
    wait_for(pid);
    CHECK_EQUAL(published(base, MANY * CHUNK), 8);
    CHECK_EQUAL(pack(memh, base, 8 * CHUNK), VMML_REASON_NONE);
    lane_dereg(memh);
    CHECK(lane_wait(is_empty, &base));
}

static bool has_new_fds(void *arg)
{
    return (unsigned)lane_fds_new() == *(unsigned *)arg;
}

/* Chunks, ledger, its pipe, the socket, its spare one and a connection. */
static void child_has_no_descriptor(void)
{
    unsigned patience = VMML_CLIENT_PATIENCE_MS;
    vmml_uct_mem_h memh;
    int client, chunk;

    lane_cuda(0);
    lane_fds_note();
    served_window(8, &memh);
    client = vmml_client_connect(lane_handle(key).nonce, &patience);
    CHECK(client >= 0);
    chunk = vmml_client_get(client, lane_handle(key).nonce, VMML_WIRE_LEDGER, 0,
                            0, &patience);
    CHECK(chunk >= 0 && close(chunk) == 0);
    /* The server closes what it has sent just after. */
    CHECK(lane_wait(has_new_fds, &(unsigned){8 + 4 + 3 + 1}));
    CHECK_EQUAL(lane_fds_inherited(), 1); /* `client` is this test's own */
    close(client);
}

static bool stop;

static void *churn(void *arg)
{
    uint64_t base = *(uint64_t *)arg;
    uint8_t bytes[KEY_SIZE];

    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        vmml_uct_mem_h memh = lane_reg(base, 4 * CHUNK);

        CHECK(lane_pack(memh, base, 4 * CHUNK, bytes));
        CHECK_CU(lane_unmap(base, CHUNK));
        lane_map(base, CHUNK, 1);
        CHECK(lane_pack(memh, base, 4 * CHUNK, bytes));
        lane_dereg(memh);
    }
    return NULL;
}

static void forks_while_others_register(void)
{
    vmml_uct_mem_h memh;
    pthread_t thread;
    uint64_t base;
    unsigned i;

    lane_cuda(0);
    base = served_window(4, &memh);
    CHECK_EQUAL(pthread_create(&thread, NULL, churn, &base), 0);
    for (i = 0; i < 200; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            /* None of these may wait for the other thread's locks. */
            CHECK(!lane_pack(memh, base, CHUNK, key));
            lane_dereg(memh);
            CHECK_EQUAL(vmml_lane_own_window(0, 0), -1);
            _exit(0);
        }
        wait_for(pid);
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base, MANY * CHUNK), 4);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(pack_publishes_what_it_names),
        LANE_TEST(one_key_for_every_part),
        LANE_TEST(packs_cost_by_new_chunks),
        LANE_TEST(attributes_one_by_one),
        LANE_TEST(a_torn_description_is_not_published),
        LANE_TEST(old_key_material_is_rewritten),
        LANE_TEST(foreign_key_is_left_alone),
        LANE_TEST(tombstones_of_others_are_theirs),
        LANE_TEST(unshareable_is_a_tombstone),
        LANE_TEST(imported_is_a_tombstone),
        LANE_TEST(hole_is_served_with_a_line),
        LANE_TEST(border_of_a_reservation_is_a_tombstone),
        LANE_TEST(other_device_is_a_tombstone),
        LANE_TEST(one_fabric_handle_is_native),
        LANE_TEST(fabric_chunks_are_published),
        LANE_TEST(fabric_beside_descriptors),
        LANE_TEST(fabric_that_cannot_be_had),
        LANE_TEST(fabric_not_permitted),
        LANE_TEST(fabric_create_not_permitted),
        LANE_TEST(no_descriptor_left_is_a_tombstone),
        LANE_TEST(driver_failures_leave_nothing),
        LANE_TEST(a_failed_query_is_no_hole),
        LANE_TEST(a_failed_query_is_tried_again),
        LANE_TEST(unmap_revokes_what_it_covers),
        LANE_TEST(unmap_over_two_reservations),
        LANE_TEST(unmap_over_holes),
        LANE_TEST(refused_unmap_is_served_anew),
        LANE_TEST(unseen_unmap_is_found_by_registration),
        LANE_TEST(freed_reservation_is_retired),
        LANE_TEST(reservation_replaced_unseen),
        LANE_TEST(a_fork_while_a_chunk_is_exported),
        LANE_TEST(last_deregistration_makes_idle),
        LANE_TEST(each_deregistration_begins_anew),
        LANE_TEST(registration_in_time_keeps_chunks),
        LANE_TEST(a_registration_per_message_exports_once),
        LANE_TEST(many_registrations_over_few_chunks),
        LANE_TEST(reused_memory_handle),
        LANE_TEST(native_where_ucx_can),
        LANE_TEST(native_stays_native),
        LANE_TEST(native_never),
        LANE_TEST(switched_off),
        LANE_TEST(stands_down_when_ucx_walks),
        LANE_TEST(child_publishes_nothing),
        LANE_TEST(undecided_until_the_pack),
        LANE_TEST(never_decided_is_a_tombstone),
        LANE_TEST(child_has_no_descriptor),
        LANE_TEST(forks_while_others_register),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
