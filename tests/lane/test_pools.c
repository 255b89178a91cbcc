/* SPDX-License-Identifier: MIT */
/*
 * Memory of stream-ordered pools: what UCX is told, one descriptor for a pool,
 * and revocation at the free.
 */
#include "exporter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "hooks.h"
#include "lane/state.h"
#include "mirror/index.h"
#include "mirror/mirror.h"
#include "mirror/state.h"
#include "pool/pool.h"
#include "ucx/scope.h"
#include "ucx/stubs.h"

#define FD_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static uint8_t key[KEY_SIZE];

static CUmemoryPool make_pool(int types)
{
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = (CUmemAllocationHandleType)types,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    CUmemoryPool pool;

    CHECK_CU(cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUdeviceptr alloc(CUmemoryPool pool, size_t size, unsigned seed)
{
    CUdeviceptr ptr;

    CHECK_CU(cuMemAllocFromPoolAsync(&ptr, size, pool, NULL));
    CHECK_CU(cuStreamSynchronize(NULL));
    lane_fill(sim_host_view(ptr, size), ptr, size, seed);
    return ptr;
}

static CUresult free_async(CUdeviceptr ptr)
{
    return vmml_cuMemFreeAsync(NULL, ptr, NULL);
}

static int pack(vmml_uct_mem_h memh, CUdeviceptr ptr, size_t length)
{
    CHECK(lane_pack(memh, ptr, length, key));
    return lane_reason(key);
}

/* Register and pack. */
static int serve(CUdeviceptr ptr, size_t length, vmml_uct_mem_h *memh)
{
    *memh = lane_reg(ptr, length);
    return pack(*memh, ptr, length);
}

/* Chunks of the window that `key` names: 0 or 1. */
static size_t published(void)
{
    struct vmml_handle handle = lane_handle(key);
    struct vmml_chunk_view chunk;

    return lane_published(handle.base, handle.size, &chunk, 1);
}

/* ---- what UCX is told ---------------------------------------------------- */

static CUcontext context_for(const void *caller, CUdeviceptr ptr)
{
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_CONTEXT};
    unsigned type = 0;
    CUcontext context = (CUcontext)1, single = (CUcontext)1;
    void *data[] = {&type, &context};

    CHECK_CU(vmml_cuPointerGetAttributes(caller, 2, names, data, ptr));
    CHECK_CU(vmml_cuPointerGetAttribute(caller, &single,
                                        CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
    CHECK_EQUAL(type, CU_MEMORYTYPE_DEVICE);
    CHECK(context == single);
    return context;
}

static void ucx_alone_is_told_a_context(void)
{
    CUdeviceptr ptr, malloced;
    CUcontext primary;
    uint64_t base;

    lane_cuda(0);
    lane_log_to_file();
    CHECK_CU(cuCtxGetCurrent(&primary));
    ptr = alloc(make_pool(FD_TYPE), 3 * MIB, 1);
    CHECK(context_for(lane_caller(), ptr) == primary);
    CHECK(context_for(lane_caller(), ptr + MIB + 5) == primary);
    CHECK(context_for(NULL, ptr) == NULL);
    CHECK_CU(cuMemAlloc_v2(&malloced, MIB));
    CHECK(context_for(lane_caller(), malloced) == primary);
    base = lane_reserve(CHUNK);
    lane_map(base, CHUNK, 1);
    CHECK(context_for(lane_caller(), base) == NULL);
    CHECK(!lane_log_has("not shareable by design"));
    /* With a context of another kind there is none that UCX could use. */
    CHECK_CU(cuMemFree_v2(malloced));
}

static void default_pool_is_named_once(void)
{
    CUdeviceptr ptr[2];
    CUmemoryPool usual;
    vmml_uct_mem_h memh;
    unsigned i;

    lane_cuda(0);
    lane_log_to_file();
    CHECK_CU(cuDeviceGetDefaultMemPool(&usual, 0));
    for (i = 0; i < 2; i++) {
        CHECK_CU(vmml_cuMemAllocAsync(NULL, &ptr[i], MIB, NULL));
        CHECK(context_for(lane_caller(), ptr[i]) == NULL);
        memh = lane_reg(ptr[i], MIB);
        CHECK(!lane_pack(memh, ptr[i], MIB, key));
    }
    CHECK_EQUAL(lane_log_count("not shareable by design"), 1);
    CHECK_EQUAL(lane_log_count("VMMLANE_POOLS=default"), 1);
    CHECK_EQUAL(sim_call_count("cuMemPoolExportToShareableHandle"), 0);
    CHECK_EQUAL(sim_call_count("cuMemPoolCreate"), 0);
    CHECK_EQUAL(sim_call_count("cuDeviceSetMemPool"), 0);
}

static void off_is_off(void)
{
    vmml_uct_mem_h memh;
    CUdeviceptr ptr;

    setenv("VMMLANE_POOLS", "off", 1);
    lane_cuda(0);
    lane_log_to_file();
    ptr = alloc(make_pool(FD_TYPE), MIB, 1);
    CHECK(context_for(lane_caller(), ptr) == NULL);
    memh = lane_reg(ptr, MIB);
    CHECK(!lane_pack(memh, ptr, MIB, key));
    CHECK(!lane_log_has("by design"));
}

/* What libuct_cuda is answered inside a pack. */
static void a_pack_answers_the_allocation(void)
{
    CUdeviceptr ptr, base = 0;
    struct vmml_pack answers;
    struct vmml_scope scope = {.kind = VMML_SCOPE_PACK, .pack = &answers};
    unsigned long long id = 0, first;
    CUipcMemHandle handle;
    vmml_uct_mem_h memh;
    size_t size = 0;

    lane_cuda(0);
    ptr = alloc(make_pool(FD_TYPE), 3000, 1);
    memh = lane_reg(ptr, 3000);
    CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)ptr, 3000, &answers));
    vmml_scope_enter(&scope);
    CHECK_CU(
        vmml_cuMemGetAddressRange_v2(lane_caller(), &base, &size, ptr + 100));
    CHECK(base == ptr && size == 3000);
    CHECK_CU(vmml_cuPointerGetAttribute(lane_caller(), &id,
                                        CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
    CHECK(id >> 63 == 1);
    CHECK_CU(vmml_cuIpcGetMemHandle(lane_caller(), &handle, ptr + 100));
    vmml_scope_leave(&scope);
    CHECK(memcmp(&handle, answers.handle, sizeof(handle)) == 0);
    /* The next allocation there is another one. */
    first = id;
    CHECK_CU(free_async(ptr));
    CHECK_CU(cuStreamSynchronize(NULL));
    lane_dereg(memh);
    ptr = alloc(make_pool(FD_TYPE), 3000, 1);
    memh = lane_reg(ptr, 3000);
    CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)ptr, 3000, &answers));
    CHECK(answers.identity != first);
    CHECK(memcmp(&handle, answers.handle, sizeof(handle)) != 0);
}

/* ---- the exporter's table ------------------------------------------------ */

#define MANY 1000

static void one_descriptor_for_a_pool(void)
{
    static CUdeviceptr ptr[MANY];
    static vmml_uct_mem_h memh[MANY];
    CUmemoryPool pool;
    unsigned fds, i;

    lane_cuda(0);
    lane_ledger();
    pool = make_pool(FD_TYPE);
    for (i = 0; i < MANY; i++)
        CHECK_CU(cuMemAllocFromPoolAsync(&ptr[i], 4096 + i, pool, NULL));
    CHECK_CU(cuStreamSynchronize(NULL));
    fds = lane_fd_count();
    for (i = 0; i < MANY; i++)
        CHECK_EQUAL(serve(ptr[i], 4096 + i, &memh[i]), VMML_REASON_NONE);
    CHECK_EQUAL(lane_fd_count(), fds + 1);
    CHECK_EQUAL(sim_call_count("cuMemPoolExportToShareableHandle"), 1);
    CHECK_EQUAL(sim_call_count("cuMemPoolSetAccess"), 0);
    CHECK_EQUAL(sim_call_count("cuMemPoolSetAttribute"), 0);
    /* In both orders: freed first, deregistered first. */
    for (i = 0; i < MANY; i++) {
        CHECK_EQUAL(pack(memh[i], ptr[i], 4096 + i), VMML_REASON_NONE);
        if (i % 2)
            lane_dereg(memh[i]);
        CHECK_CU(i % 3 ? free_async(ptr[i]) : vmml_cuMemFree_v2(NULL, ptr[i]));
        CHECK_EQUAL(published(), 0);
        if (i % 2 == 0) {
            CHECK_EQUAL(pack(memh[i], ptr[i], 4096 + i), VMML_REASON_FREED);
            lane_dereg(memh[i]);
        }
    }
    /* 1,000 memfds of the simulated driver are gone too. */
    CHECK(lane_fds_become(fds - MANY));
}

static void a_child_has_no_pool(void)
{
    CUdeviceptr ptr;
    vmml_uct_mem_h memh;
    unsigned before;

    lane_cuda(0);
    ptr = alloc(make_pool(FD_TYPE), MIB, 1);
    lane_fds_note();
    lane_ledger();
    before = lane_fds_new();
    CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_NONE);
    CHECK_EQUAL(lane_fds_new(), before + 1);
    CHECK_EQUAL(lane_fds_inherited(), 0);
}

static void a_fork_while_a_pool_is_exported(void)
{
    vmml_uct_mem_h memh;
    CUdeviceptr ptr;

    lane_cuda(0);
    ptr = alloc(make_pool(FD_TYPE), MIB, 1);
    memh = lane_reg(ptr, MIB);
    lane_fork_after("cuMemPoolExportToShareableHandle");
    CHECK_EQUAL(pack(memh, ptr, MIB), VMML_REASON_NONE);
    CHECK_EQUAL(lane_fork_inherited(), 0);
    CHECK_EQUAL(published(), 1);
}

static void interior_and_beyond(void)
{
    vmml_uct_mem_h memh;
    CUdeviceptr ptr;

    lane_cuda(0);
    ptr = alloc(make_pool(FD_TYPE), 3 * MIB, 1);
    CHECK_EQUAL(serve(ptr + 12345, 100, &memh), VMML_REASON_NONE);
    CHECK_EQUAL(pack(memh, ptr, 3 * MIB), VMML_REASON_NONE);
    CHECK_EQUAL(pack(memh, ptr, 3 * MIB + 1), VMML_REASON_WINDOW);
    CHECK_EQUAL(pack(memh, ptr, SIZE_MAX), VMML_REASON_WINDOW);
    CHECK_EQUAL(serve(ptr + MIB, 3 * MIB, &memh), VMML_REASON_WINDOW);
    CHECK_EQUAL(sim_call_count("cuMemPoolExportPointer"), 1);
}

static void refused_free_is_undone(void)
{
    vmml_uct_mem_h memh;
    CUdeviceptr ptr;
    uint8_t before[KEY_SIZE];

    lane_cuda(0);
    ptr = alloc(make_pool(FD_TYPE), MIB, 1);
    CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_NONE);
    memcpy(before, key, sizeof(before));
    sim_fail("cuMemFreeAsync", 1, CUDA_ERROR_UNKNOWN, 0);
    CHECK_EQUAL(free_async(ptr), CUDA_ERROR_UNKNOWN);
    CHECK_EQUAL(published(), 1);
    CHECK_EQUAL(pack(memh, ptr, MIB), VMML_REASON_NONE);
    CHECK(memcmp(before, key, sizeof(before)) == 0);
    CHECK_EQUAL(vmml_cuMemFree_v2(NULL, ptr + 64), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(published(), 1);
    CHECK_CU(free_async(ptr));
    CHECK_EQUAL(published(), 0);
}

/* Freed past every hook, and another allocation at its address. */
static void unseen_free_is_found(void)
{
    CUmemoryPool pool;
    vmml_uct_mem_h old, memh;
    uint8_t before[KEY_SIZE];
    CUdeviceptr ptr;

    lane_cuda(0);
    pool = make_pool(FD_TYPE);
    ptr = alloc(pool, MIB, 1);
    CHECK_EQUAL(serve(ptr, MIB, &old), VMML_REASON_NONE);
    memcpy(before, key, sizeof(before));
    CHECK_CU(cuMemFree_v2(ptr));
    CHECK_EQUAL(alloc(pool, MIB, 2), ptr);
    CHECK_EQUAL(pack(old, ptr, MIB), VMML_REASON_FREED);
    CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_NONE);
    CHECK(memcmp(before, key, sizeof(before)) != 0);
    CHECK_EQUAL(published(), 1);
    memcpy(key, before, sizeof(key));
    CHECK_EQUAL(published(), 0);
    /* The registration that outlived its memory is not one of the new. */
    CHECK_EQUAL(pack(old, ptr, MIB), VMML_REASON_FREED);
    CHECK_EQUAL(pack(memh, ptr, MIB), VMML_REASON_NONE);
}

static void destroyed_pool_serves_what_lives(void)
{
    CUmemoryPool pool;
    vmml_uct_mem_h memh[3];
    CUdeviceptr ptr[3];
    unsigned fds, i;

    lane_cuda(0);
    lane_ledger();
    fds = lane_fd_count();
    pool = make_pool(FD_TYPE);
    for (i = 0; i < 3; i++) {
        ptr[i] = alloc(pool, MIB, 1);
        memh[i] = lane_reg(ptr[i], MIB);
    }
    CHECK_EQUAL(pack(memh[1], ptr[1], MIB), VMML_REASON_NONE);
    lane_dereg(memh[1]);
    CHECK_EQUAL(published(), 1);
    CHECK_EQUAL(pack(memh[0], ptr[0], MIB), VMML_REASON_NONE);
    CHECK_CU(vmml_cuMemPoolDestroy(NULL, pool));
    CHECK_EQUAL(published(), 1);
    CHECK_EQUAL(pack(memh[0], ptr[0], MIB), VMML_REASON_NONE);
    for (i = 0; i < 3; i++)
        CHECK_CU(free_async(ptr[i]));
    CHECK_CU(cuStreamSynchronize(NULL));
    CHECK_EQUAL(published(), 0);
    CHECK(lane_fds_become(fds));
}

/* Both went past every hook, and the driver gives the handle out again. */
static void pool_destroyed_unseen(void)
{
    CUmemoryPool first, second;
    CUdeviceptr ptr, other;
    vmml_uct_mem_h memh;

    lane_cuda(0);
    first = make_pool(FD_TYPE);
    ptr = alloc(first, MIB, 1);
    CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_NONE);
    CHECK_CU(cuMemFree_v2(ptr));
    CHECK_CU(cuMemPoolDestroy(first));
    second = make_pool(FD_TYPE);
    CHECK(second == first);
    CHECK_CU(cuMemAlloc_v2(&other, MIB)); /* its place is taken */
    ptr = alloc(second, 5 * MIB, 2);
    CHECK_EQUAL(serve(ptr, 5 * MIB, &memh), VMML_REASON_NONE);
    CHECK_EQUAL(sim_call_count("cuMemPoolExportToShareableHandle"), 2);
}

static void exports_that_fail(void)
{
    vmml_uct_mem_h memh;
    CUmemoryPool pool;
    CUdeviceptr ptr;
    unsigned fds;

    lane_cuda(0);
    lane_ledger();
    pool = make_pool(FD_TYPE);
    ptr = alloc(pool, MIB, 1);
    fds = lane_fd_count();
    sim_fail("cuMemPoolExportPointer", 1, CUDA_ERROR_UNKNOWN, 0);
    CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_DRIVER);
    sim_fail("cuMemPoolExportToShareableHandle", 1, CUDA_ERROR_OPERATING_SYSTEM,
             0);
    CHECK_EQUAL(pack(memh, ptr, MIB), VMML_REASON_NO_DESCRIPTOR);
    CHECK_EQUAL(lane_fd_count(), fds);
    CHECK_EQUAL(pack(memh, ptr, MIB), VMML_REASON_NONE);
}

/* Of many, those that no registration covers are not served any more. */
static void known_allocations_are_bounded(void)
{
    vmml_uct_mem_h memh, kept;
    uint8_t first[KEY_SIZE], second[KEY_SIZE];
    CUmemoryPool pool;
    CUdeviceptr ptr;
    unsigned i;

    lane_cuda(0);
    pool = make_pool(FD_TYPE);
    CHECK_CU(cuMemAllocFromPoolAsync(&ptr, 64, pool, NULL));
    CHECK_EQUAL(serve(ptr, 64, &kept), VMML_REASON_NONE);
    memcpy(first, key, sizeof(first));
    for (i = 0; i < 4096; i++) {
        CHECK_CU(cuMemAllocFromPoolAsync(&ptr, 64, pool, NULL));
        CHECK_EQUAL(serve(ptr, 64, &memh), VMML_REASON_NONE);
        lane_dereg(memh);
        if (i == 0)
            memcpy(second, key, sizeof(second));
    }
    CHECK_EQUAL(published(), 1);
    memcpy(key, first, sizeof(key));
    CHECK_EQUAL(published(), 1);
    memcpy(key, second, sizeof(key));
    CHECK_EQUAL(published(), 0);
}

/* Two allocations, `*low` right below `*high`. */
static void neighbours(CUmemoryPool pool, size_t size, CUdeviceptr *low,
                       CUdeviceptr *high)
{
    CUdeviceptr next;
    unsigned tries;

    *low = alloc(pool, size, 1);
    for (tries = 0; tries < 16; tries++) {
        next = alloc(pool, size, 1);
        *high = next > *low ? next : *low;
        *low = next > *low ? *low : next;
        if (*high - *low == size)
            return;
        *low = next;
    }
    CHECK(!"no two allocations are neighbours");
}

/* UCX joins what lies side by side, and registers it as one. */
static void neighbours_are_registered_as_one(void)
{
    struct vmml_pack answers;
    CUmemoryPool pool;
    CUdeviceptr low, high;
    vmml_uct_mem_h memh;
    uint64_t window;

    lane_cuda(0);
    pool = make_pool(FD_TYPE);
    neighbours(pool, CHUNK, &low, &high);
    memh = lane_reg(low, 2 * CHUNK);
    CHECK_EQUAL(pack(memh, high + 64, 100), VMML_REASON_NONE);
    window = lane_handle(key).base;
    CHECK_EQUAL(pack(memh, low, CHUNK), VMML_REASON_NONE);
    CHECK(lane_handle(key).base != window);
    /* What UCX keeps for its address is never of both. */
    CHECK_EQUAL(pack(memh, low, 2 * CHUNK), VMML_REASON_WINDOW);
    CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)low, 2 * CHUNK,
                               &answers));
    CHECK(answers.base == low && answers.size == CHUNK);
    CHECK_CU(free_async(high));
    CHECK_CU(cuStreamSynchronize(NULL));
    CHECK(vmml_lane_begin_pack(lane_md(), memh, (void *)high, CHUNK, &answers));
    CHECK(answers.base == high && answers.size == 1);
    CHECK_EQUAL(alloc(pool, CHUNK, 2), high);
    CHECK_EQUAL(pack(memh, high, CHUNK), VMML_REASON_FREED);
    CHECK_EQUAL(pack(memh, low, CHUNK), VMML_REASON_NONE);
    lane_dereg(memh);
    CHECK_EQUAL(serve(high, CHUNK, &memh), VMML_REASON_NONE);
}

/* A deed of another thread, at one driver call of this one. */
struct moment {
    void (*deed)(void *moment);
    CUcontext context;
    unsigned step;
    CUmemoryPool pool;
    CUdeviceptr ptr;
    bool done;
    bool served;
};

static void free_it(void *arg)
{
    const struct moment *moment = arg;

    CHECK_CU(cuCtxPushCurrent_v2(moment->context));
    CHECK_CU(free_async(moment->ptr));
}

static void do_at(const struct lane_call *call, void *arg)
{
    struct moment *moment = arg;

    if (call->step != moment->step)
        return;
    moment->done = true;
    lane_on_thread(moment->deed, moment);
}

/* A free at each moment of a registration and its pack. */
static void free_beside_a_pack(void)
{
    struct moment moment = {.deed = free_it, .done = true};
    vmml_uct_mem_h memh;
    int reason;

    lane_cuda(0);
    CHECK_CU(cuCtxGetCurrent(&moment.context));
    moment.pool = make_pool(FD_TYPE);
    for (moment.step = 1; moment.done; moment.step++) {
        moment.done = false;
        moment.ptr = alloc(moment.pool, MIB, 1);
        lane_watch(do_at, &moment);
        memh = lane_reg(moment.ptr, MIB);
        if (lane_pack(memh, moment.ptr, MIB, key)) {
            lane_watch(NULL, NULL);
            reason = lane_reason(key);
            CHECK(reason == VMML_REASON_NONE || moment.done);
            CHECK(!moment.done || published() == 0);
        }
        lane_watch(NULL, NULL);
        if (!moment.done)
            CHECK_CU(free_async(moment.ptr));
        lane_dereg(memh);
    }
    CHECK(moment.step > 10);
}

static void serve_successor(void *arg)
{
    struct moment *successor = arg;
    vmml_uct_mem_h memh;
    CUdeviceptr ptr;

    CHECK_CU(cuCtxPushCurrent_v2(successor->context));
    CHECK_CU(cuStreamSynchronize(NULL));
    ptr = alloc(successor->pool, MIB, 2);
    successor->served = ptr == successor->ptr;
    if (successor->served)
        CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_NONE);
}

/* At each moment of a free another thread is given the address and serves its
 * allocation. */
static void successor_is_served_on(void)
{
    struct moment successor = {.deed = serve_successor, .done = true};
    vmml_uct_mem_h memh;
    unsigned served = 0;

    lane_cuda(0);
    CHECK_CU(cuCtxGetCurrent(&successor.context));
    for (successor.step = 1; successor.done; successor.step++) {
        successor.done = successor.served = false;
        successor.pool = make_pool(FD_TYPE);
        successor.ptr = alloc(successor.pool, MIB, 1);
        CHECK_EQUAL(serve(successor.ptr, MIB, &memh), VMML_REASON_NONE);
        lane_watch(do_at, &successor);
        CHECK_CU(free_async(successor.ptr));
        lane_watch(NULL, NULL);
        served += successor.served;
        CHECK_EQUAL(published(), successor.served);
    }
    CHECK(served > 1);
}

/* ---- VMMLANE_POOLS=default ----------------------------------------------- */

static uint64_t types_of(CUdeviceptr ptr)
{
    uint64_t types = 99;

    CHECK_CU(cuPointerGetAttribute(
        &types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr));
    return types;
}

static void every_device_gets_a_pool(void)
{
    CUmemoryPool usual, current;
    vmml_uct_mem_h memh;
    uint64_t threshold = 12345678, value = 0;
    CUcontext context;
    CUstream stream;
    CUdeviceptr ptr;

    setenv("VMMLANE_POOLS", "default", 1);
    setenv("VMMLANE_SIM_DEVICES", "2", 1);
    lane_cuda(0);
    CHECK_CU(cuDeviceGetDefaultMemPool(&usual, 0));
    CHECK_CU(cuMemPoolSetAttribute(usual, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                   &threshold));
    CHECK_CU(vmml_cuMemAllocAsync(NULL, &ptr, MIB, NULL));
    CHECK_EQUAL(types_of(ptr), FD_TYPE);
    CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_NONE);
    CHECK_CU(vmml_cuDeviceGetMemPool(NULL, &current, 0));
    CHECK(current != usual);
    CHECK_CU(cuMemPoolGetAttribute(current, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                   &value));
    CHECK_EQUAL(value, threshold);
    /* The default pool itself is as it was. */
    CHECK_CU(cuMemAllocFromPoolAsync(&ptr, MIB, usual, NULL));
    CHECK_EQUAL(types_of(ptr), 0);
    /* A stream of the other device, while this one is current. */
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK_CU(cuCtxPushCurrent_v2(context));
    CHECK_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_CU(cuCtxPopCurrent_v2(&context));
    CHECK_CU(vmml_cuMemAllocAsync_ptsz(NULL, &ptr, MIB, stream));
    CHECK_CU(cuDeviceGetMemPool(&current, 1));
    CHECK_CU(cuDeviceGetDefaultMemPool(&usual, 1));
    CHECK(current != usual);
    CHECK_EQUAL(sim_call_count("cuMemPoolCreate"), 2);
}

static int access_of(CUmemoryPool pool, int device)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                              .id = device};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;

    CHECK_CU(cuMemPoolGetAccess(&flags, pool, &location));
    return (int)flags;
}

/* What the program asks of a device's default pool it asks for the memory that
 * it is going to have. */
static void default_pool_is_followed(void)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    uint64_t threshold = 12345678, value = 0;
    CUmemoryPool usual, current;
    CUdeviceptr ptr;
    int i;

    setenv("VMMLANE_POOLS", "default", 1);
    setenv("VMMLANE_SIM_DEVICES", "3", 1);
    lane_cuda(0);
    CHECK_CU(cuDeviceGetDefaultMemPool(&usual, 0));
    CHECK_CU(vmml_cuMemPoolSetAccess(NULL, usual, &desc, 1));
    CHECK_CU(vmml_cuMemAllocAsync(NULL, &ptr, MIB, NULL));
    CHECK_CU(vmml_cuDeviceGetMemPool(NULL, &current, 0));
    CHECK(current != usual);
    CHECK_EQUAL(access_of(current, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_EQUAL(access_of(current, 2), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    desc.location.id = 2;
    CHECK_CU(vmml_cuMemPoolSetAccess(NULL, usual, &desc, 1));
    CHECK_EQUAL(access_of(current, 2), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_CU(vmml_cuMemPoolSetAttribute(
        NULL, usual, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    CHECK_CU(cuMemPoolGetAttribute(current, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                   &value));
    CHECK_EQUAL(value, threshold);
    CHECK_CU(vmml_cuMemPoolTrimTo(NULL, usual, 0));
    CHECK_EQUAL(sim_call_count("cuMemPoolTrimTo"), 2);
    /* A pool of the program's own is nobody's twin. */
    for (i = 0; i < 2; i++) {
        CHECK_CU(vmml_cuMemPoolTrimTo(NULL, i ? current : make_pool(0), 0));
        CHECK_EQUAL(sim_call_count("cuMemPoolTrimTo"), 3 + i);
    }
}

static void chosen_pool_is_kept(void)
{
    CUmemoryPool chosen, current;
    CUdeviceptr ptr;

    setenv("VMMLANE_POOLS", "default", 1);
    lane_cuda(0);
    chosen = make_pool(0);
    CHECK_CU(cuDeviceSetMemPool(0, chosen));
    CHECK_CU(vmml_cuMemAllocAsync(NULL, &ptr, MIB, NULL));
    CHECK_EQUAL(types_of(ptr), 0);
    CHECK_CU(vmml_cuDeviceGetMemPool(NULL, &current, 0));
    CHECK(current == chosen);
    CHECK_EQUAL(sim_call_count("cuMemPoolCreate"), 1);
}

/* A device that cannot be asked now is not given up. */
static void pool_is_tried_again(void)
{
    CUdeviceptr ptr;

    setenv("VMMLANE_POOLS", "default", 1);
    lane_cuda(0);
    sim_fail("cuDeviceGetMemPool", 1, CUDA_ERROR_UNKNOWN, 0);
    CHECK_CU(vmml_cuMemAllocAsync(NULL, &ptr, MIB, NULL));
    CHECK_EQUAL(types_of(ptr), 0);
    CHECK_CU(vmml_cuMemAllocAsync(NULL, &ptr, MIB, NULL));
    CHECK_EQUAL(types_of(ptr), FD_TYPE);
}

static void pool_that_cannot_be_had(void)
{
    CUdeviceptr ptr;

    setenv("VMMLANE_POOLS", "default", 1);
    lane_cuda(0);
    lane_log_to_file();
    sim_fail("cuMemPoolCreate", 1, CUDA_ERROR_NOT_SUPPORTED, 0);
    CHECK_CU(vmml_cuMemAllocAsync(NULL, &ptr, MIB, NULL));
    CHECK_EQUAL(types_of(ptr), 0);
    CHECK(lane_log_has("keeps its default pool"));
}

/* ---- two processes ------------------------------------------------------- */

/* Of the exporter. */
static CUmemoryPool ex_pool;

static uint64_t ex_alloc_seeded(uint64_t size, unsigned seed)
{
    if (ex_pool == NULL)
        ex_pool = make_pool(FD_TYPE);
    return alloc(ex_pool, size, seed);
}

static uint64_t ex_alloc_1(uint64_t size)
{
    return ex_alloc_seeded(size, 1);
}

static uint64_t ex_alloc_2(uint64_t size)
{
    return ex_alloc_seeded(size, 2);
}

static uint64_t ex_free(uint64_t ptr)
{
    return free_async(ptr);
}

static uint64_t ex_synchronize(uint64_t unused)
{
    (void)unused;
    return cuStreamSynchronize(NULL);
}

struct pair {
    struct exporter ex;
    uint64_t base;
    uint64_t memh;
    size_t size;
    CUdeviceptr mirror;
};

static void start(struct pair *pair, size_t size)
{
    pair->ex = ex_start();
    pair->size = size;
    pair->base = ex_run(&pair->ex, ex_alloc_1, size);
    pair->memh = ex_reg(&pair->ex, pair->base, size);
    CHECK(ex_pack(&pair->ex, pair->memh, pair->base, size, key));
    CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
    lane_cuda(0);
    im_buffer();
    im_stream();
    pair->mirror = im_attach(key);
}

static void expect(const struct pair *pair, size_t from, size_t length,
                   unsigned seed)
{
    im_expect(pair->mirror + from, pair->base + from, length, seed);
}

static void bytes_of_a_pool(void)
{
    static const size_t sizes[] = {64,    1000,      4096 + 8,
                                   CHUNK, CHUNK + 8, 11 * MIB};
    struct vmml_mirror *mirror;
    struct pair pair;
    size_t i;

    start(&pair, 3 * CHUNK + 64);
    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        pair.size = sizes[i];
        pair.base = ex_run(&pair.ex, ex_alloc_1, sizes[i]);
        ex_key(&pair.ex, pair.base, sizes[i], key);
        pair.mirror = im_attach(key);
        expect(&pair, 0, sizes[i], 1);
        expect(&pair, 24, sizes[i] - 24 - 8, 1);
        expect(&pair, sizes[i] - 8, 8, 1);
        im_put(pair.mirror + 8, pair.base + 8, sizes[i] - 16, 2);
        CHECK(ex_holds(&pair.ex, pair.base + 8, sizes[i] - 16, 2));
        CHECK(ex_holds(&pair.ex, pair.base, 8, 1));
        CHECK(ex_holds(&pair.ex, pair.base + sizes[i] - 8, 8, 1));
        /* Nothing beyond the allocation, though its window is larger. */
        im_refused(pair.mirror + sizes[i] - 8, 16);
        im_refused(pair.mirror + sizes[i], 8);
    }
    CHECK_EQUAL(sim_call_count("cuMemPoolImportFromShareableHandle"), 1);
    CHECK_EQUAL(sim_call_count("cuMemPoolSetAccess"), 1);
    /* A real driver cuts allocations out of larger blocks: it would not refuse
     * what lies behind one. */
    mirror = vmml_index_find(pair.mirror);
    CHECK(mirror != NULL && mirror->import.size == pair.size);
    mirror->import.size = 4096;
    expect(&pair, 8, 4088, 2);
    im_refused(pair.mirror + 4088, 16);
    im_refused(pair.mirror + 8192, 8);
    ex_stop(&pair.ex);
}

/* Memory of this device that the exporter holds is more than `used`. */
static bool is_given_back(void *arg)
{
    return sim_memory_used(0) <= *(uint64_t *)arg;
}

static void freed_memory_is_revoked(void)
{
    struct pair pair;
    uint64_t before;
    uint8_t old[KEY_SIZE];

    start(&pair, 8 * MIB);
    before = sim_memory_used(0) - 8 * MIB;
    expect(&pair, 0, 8 * MIB, 1);
    memcpy(old, key, sizeof(old));
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    im_refused(pair.mirror, 64);
    im_refused(pair.mirror + MIB, 7 * MIB);
    CHECK(!im_prepare(old));
    CHECK(lane_wait(is_given_back, &before));
    CHECK_EQUAL(sim_call_count("cuMemFree_v2"), 1);
    CHECK_EQUAL(sim_call_count("cuMemPoolDestroy"), 1);
    /* Closed after it was freed. */
    CHECK(im_close(pair.mirror));
    ex_stop(&pair.ex);
}

static void another_at_the_same_address(void)
{
    struct pair pair;
    CUdeviceptr first;
    uint8_t old[KEY_SIZE];

    start(&pair, 8 * MIB);
    memcpy(old, key, sizeof(old));
    first = pair.mirror;
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    CHECK_CU(ex_run(&pair.ex, ex_synchronize, 0));
    CHECK_EQUAL(ex_run(&pair.ex, ex_alloc_2, pair.size), pair.base);
    im_refused(first, 64);
    ex_key(&pair.ex, pair.base, pair.size, key);
    CHECK(memcmp(old, key, sizeof(key)) != 0);
    pair.mirror = im_attach(key);
    CHECK(pair.mirror != first);
    expect(&pair, 0, pair.size, 2);
    im_refused(first, pair.size);
    CHECK(!im_prepare(old));
    expect(&pair, 5, 100, 2);
    ex_stop(&pair.ex);
}

static void closed_before_it_is_freed(void)
{
    struct pair pair;

    start(&pair, 8 * MIB);
    expect(&pair, 0, 8 * MIB, 1);
    CHECK(im_close(pair.mirror));
    ex_dereg(&pair.ex, pair.memh);
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    CHECK(!im_prepare(key));
    ex_stop(&pair.ex);
}

static uint64_t ex_free_held(uint64_t ptr)
{
    CUresult result;

    sim_fail("cuMemFreeAsync", 1, CUDA_ERROR_UNKNOWN, 0);
    result = free_async(ptr);
    return result == CUDA_ERROR_UNKNOWN ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* A free that the driver refuses: out of service, and in again. */
static void refused_free_serves_on(void)
{
    struct pair pair;

    start(&pair, 4 * MIB);
    expect(&pair, 0, 4 * MIB, 1);
    CHECK_CU(ex_run(&pair.ex, ex_free_held, pair.base));
    expect(&pair, 0, 4 * MIB, 1);
    im_put(pair.mirror, pair.base, MIB, 3);
    CHECK(ex_holds(&pair.ex, pair.base, MIB, 3));
    ex_stop(&pair.ex);
}

static void copies_under_way_end_first(void)
{
    struct pair pair;
    uint8_t *here;

    start(&pair, 16 * MIB);
    sim_set_copy_slice(64 << 10);
    sim_hold_copies(1);
    CHECK_CU(im_post(im_buffer(), pair.mirror, 16 * MIB));
    CHECK_EQUAL(sim_wait_held(1, LANE_WAIT_MS), 0);
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    usleep(500000); /* the watcher waits for the copy */
    CHECK_EQUAL(sim_call_count("cuMemFree_v2"), 0);
    sim_hold_copies(0);
    CHECK_CU(cuStreamSynchronize(im_stream()));
    here = sim_host_view(im_buffer(), 16 * MIB);
    CHECK_EQUAL(lane_differs(here, pair.base, 16 * MIB, 1), 16 * MIB);
    im_refused(pair.mirror, 64);
    ex_stop(&pair.ex);
}

static void handed_out_address_is_the_memory(void)
{
    struct pair pair;
    CUdeviceptr ptr;

    start(&pair, 4 * MIB);
    CHECK(vmml_mirror_hand_out(pair.mirror + MIB, 77));
    ptr = vmml_mirror_memory_at(pair.mirror + MIB);
    CHECK(ptr != pair.mirror + MIB);
    CHECK_EQUAL(lane_differs(sim_host_view(ptr, MIB), pair.base + MIB, MIB, 1),
                MIB);
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    usleep(500000);
    CHECK_EQUAL(lane_differs(sim_host_view(ptr, MIB), pair.base + MIB, MIB, 1),
                MIB);
    im_refused(pair.mirror, 64);
    vmml_mirror_take_back(77);
    im_refused(pair.mirror, 64);
    ex_stop(&pair.ex);
}

static bool is_unmapped(void *arg)
{
    return sim_host_view(*(CUdeviceptr *)arg, 64) == NULL;
}

/* The application ends the import, with one of its own or by mistake; what
 * comes to lie there is not taken for it. */
static void import_that_is_ended_by_others(void)
{
    struct pair pair;
    CUdeviceptr ptr;

    start(&pair, 4 * MIB);
    expect(&pair, 0, MIB, 1);
    ptr = vmml_mirror_memory_at(pair.mirror);
    CHECK_CU(cuMemFree_v2(ptr));
    CHECK(is_unmapped(&ptr));
    im_refused(pair.mirror, 64);
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    im_refused(pair.mirror, 64);
    ex_stop(&pair.ex);
}

static void a_fork_while_a_pool_is_imported(void)
{
    struct pair pair;

    pair.ex = ex_start();
    pair.size = MIB;
    pair.base = ex_run(&pair.ex, ex_alloc_1, MIB);
    ex_key(&pair.ex, pair.base, MIB, key);
    lane_cuda(0);
    im_buffer();
    im_stream();
    lane_fork_after("cuMemPoolImportFromShareableHandle");
    pair.mirror = im_attach(key);
    CHECK_EQUAL(lane_fork_inherited(), 0);
    expect(&pair, 0, MIB, 1);
    ex_stop(&pair.ex);
}

/* Of an exporter that lies: another window of the same allocation, which says
 * that there is more. */
#define LIE (VMML_POOLED_END - 1024 * CHUNK)

static struct vmml_pack lie;

static uint64_t ex_lie(uint64_t ptr)
{
    static const uint8_t gpu[16];
    struct vmml_pooled_record record = {
        .address = ptr, .size = 64 * CHUNK, .pool = 1};
    CUmemPoolPtrExportData data;
    uint64_t serial;
    int index, fd;

    CHECK_CU(cuMemPoolExportPointer(&data, ptr));
    memcpy(record.data, &data, sizeof(record.data));
    CHECK_CU(cuMemPoolExportToShareableHandle(&fd, ex_pool, FD_TYPE, 0));
    index =
        vmml_ledger_add_window(vmml_exporter.ledger, LIE, 64 * CHUNK, 0, gpu);
    CHECK(index >= 0);
    CHECK(vmml_ledger_publish_pooled(vmml_exporter.ledger, (uint32_t)index,
                                     &record, fd, 0, &serial) >= 0);
    vmml_pack_fill(&lie, LIE, 64 * CHUNK, VMML_REASON_NONE);
    return 0;
}

static uint64_t ex_lie_word(uint64_t index)
{
    uint64_t word;

    memcpy(&word, lie.handle + 8 * index, sizeof(word));
    return word;
}

static void import_is_as_large_as_it_is(void)
{
    uint8_t other[KEY_SIZE] = {0};
    struct pair pair;
    uint64_t word, i;

    start(&pair, MIB);
    expect(&pair, 0, MIB, 1);
    CHECK_EQUAL(ex_run(&pair.ex, ex_lie, pair.base), 0);
    for (i = 0; i < sizeof(lie.handle) / 8; i++) {
        word = ex_run(&pair.ex, ex_lie_word, i);
        memcpy(other + 4 + 8 * i, &word, sizeof(word));
    }
    CHECK_EQUAL(lane_handle(other).base, LIE);
    CHECK(!im_prepare(other));
    expect(&pair, 0, MIB, 1);
    ex_stop(&pair.ex);
}

/* The clock of the day as it was before it was set forward. */
static atomic_bool clock_lags;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    long result = syscall(SYS_clock_gettime, clock, time);

    if (clock == CLOCK_REALTIME && clock_lags)
        time->tv_sec -= 3600;
    return (int)result;
}

static uint8_t second_key[KEY_SIZE];

static void *prepare_second(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)im_prepare(second_key);
}

static void prepare_beside(const struct lane_call *call, void *arg)
{
    if (strcmp(call->name, "cuMemPoolImportFromShareableHandle") != 0 ||
        call->after)
        return;
    clock_lags = true;
    CHECK_EQUAL(pthread_create(arg, NULL, prepare_second, NULL), 0);
    usleep(100000); /* so long as a wait that does not last has time */
    clock_lags = false;
}

static void clock_is_set_while_others_import(void)
{
    struct pair pair;
    pthread_t thread;
    void *served;
    uint64_t ptr;

    pair.ex = ex_start();
    pair.base = ex_run(&pair.ex, ex_alloc_1, MIB);
    ex_key(&pair.ex, pair.base, MIB, key);
    ptr = ex_run(&pair.ex, ex_alloc_1, MIB);
    ex_key(&pair.ex, ptr, MIB, second_key);
    lane_cuda(0);
    lane_watch(prepare_beside, &thread);
    CHECK(im_prepare(key));
    lane_watch(NULL, NULL);
    CHECK_EQUAL(pthread_join(thread, &served), 0);
    CHECK(served != NULL);
    ex_stop(&pair.ex);
}

static void exporter_dies(void)
{
    struct pair pair;
    uint64_t end;

    start(&pair, 4 * MIB);
    ex_kill(&pair.ex);
    end = lane_ms() + LANE_WAIT_MS;
    while (im_post(im_buffer(), pair.mirror, 64) == CUDA_SUCCESS)
        CHECK(lane_ms() < end);
    CHECK(!im_prepare(key));
}

static void imports_that_fail(void)
{
    static const char *const calls[] = {"cuMemPoolImportFromShareableHandle",
                                        "cuMemPoolSetAccess",
                                        "cuMemPoolImportPointer"};
    struct pair pair;
    size_t i;

    pair.ex = ex_start();
    pair.size = MIB;
    pair.base = ex_run(&pair.ex, ex_alloc_1, MIB);
    ex_key(&pair.ex, pair.base, MIB, key);
    lane_cuda(0);
    im_buffer();
    im_stream();
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        sim_fail(calls[i], 1, CUDA_ERROR_UNKNOWN, 0);
        CHECK(!im_prepare(key));
    }
    CHECK_EQUAL(sim_call_count("cuMemPoolDestroy"), 2);
    pair.mirror = im_attach(key);
    expect(&pair, 0, MIB, 1);
    ex_stop(&pair.ex);
}

/* Where the driver does not tell what was imported, it is given back; a query
 * that fails once is made again. */
static void import_that_cannot_be_told(void)
{
    struct pair pair;
    unsigned failures, i;
    uint64_t before;
    bool served;

    pair.ex = ex_start();
    pair.size = MIB;
    pair.base = ex_run(&pair.ex, ex_alloc_1, MIB);
    ex_key(&pair.ex, pair.base, MIB, key);
    lane_cuda(0);
    im_buffer();
    im_stream();
    before = sim_memory_used(0);
    for (failures = 2; failures > 0; failures--) {
        for (i = 1; i <= failures; i++)
            sim_fail("cuPointerGetAttribute", i, CUDA_ERROR_UNKNOWN, 0);
        served = im_prepare(key);
        CHECK_EQUAL(served, failures == 1);
        CHECK_EQUAL(sim_call_count("cuMemFree_v2"), 1);
    }
    pair.mirror = im_open(key);
    expect(&pair, 0, MIB, 1);
    /* Nor is a copy refused, or the import kept, for one. */
    sim_fail("cuPointerGetAttribute", 1, CUDA_ERROR_UNKNOWN, 0);
    expect(&pair, 0, MIB, 1);
    sim_fail("cuPointerGetAttribute", 1, CUDA_ERROR_UNKNOWN, 0);
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    before -= MIB;
    CHECK(lane_wait(is_given_back, &before));
    ex_stop(&pair.ex);
}

static void two_devices_share_an_import(void)
{
    struct vmml_handle handle;
    CUcontext context;
    struct pair pair;
    CUdeviceptr other;
    void *here;

    setenv("VMMLANE_SIM_DEVICES", "2", 1);
    start(&pair, 4 * MIB);
    expect(&pair, 0, MIB, 1);
    handle = lane_handle(key);
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK_CU(cuCtxPushCurrent_v2(context));
    CHECK(vmml_mirror_prepare(&handle, 1));
    CHECK_CU(vmml_mirror_open(&handle, &other));
    CHECK_CU(cuCtxPopCurrent_v2(&context));
    CHECK(other != pair.mirror);
    CHECK_EQUAL(vmml_mirror_memory_at(other),
                vmml_mirror_memory_at(pair.mirror));
    CHECK_EQUAL(sim_call_count("cuMemPoolImportFromShareableHandle"), 1);
    CHECK_EQUAL(sim_call_count("cuMemPoolSetAccess"), 2);
    im_expect(other, pair.base, MIB, 1);
    /* One of the two goes: what the other holds stays. */
    CHECK(vmml_mirror_hand_out(other, 77));
    CHECK_CU(ex_run(&pair.ex, ex_free, pair.base));
    im_refused(pair.mirror, 64);
    im_refused(other, 64);
    usleep(500000); /* the watcher's turn */
    CHECK_EQUAL(sim_call_count("cuMemFree_v2"), 0);
    here = sim_host_view(vmml_mirror_memory_at(other), MIB);
    CHECK(here != NULL && lane_differs(here, pair.base, MIB, 1) == MIB);
    vmml_mirror_take_back(77);
    im_refused(other, 64);
    CHECK_EQUAL(sim_call_count("cuMemFree_v2"), 1);
    ex_stop(&pair.ex);
}

static void batches_are_moved_too(void)
{
    CUdeviceptr dsts[2], srcs[2], given[2];
    size_t sizes[2] = {MIB, 64}, index = 0;
    CUmemcpyAttributes attributes = {
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
    };
    struct pair pair;

    start(&pair, 4 * MIB);
    dsts[0] = im_buffer();
    dsts[1] = im_buffer() + MIB;
    srcs[0] = pair.mirror + MIB;
    srcs[1] = pair.mirror + 128;
    memcpy(given, srcs, sizeof(given));
    CHECK_CU(vmml_cuMemcpyBatchAsync_v2(lane_caller(), dsts, srcs, sizes, 2,
                                        &attributes, &index, 1, im_stream()));
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK(memcmp(given, srcs, sizeof(given)) == 0);
    CHECK_EQUAL(
        lane_differs(sim_host_view(im_buffer(), MIB), pair.base + MIB, MIB, 1),
        MIB);
    CHECK_EQUAL(lane_differs(sim_host_view(im_buffer() + MIB, 64),
                             pair.base + 128, 64, 1),
                64);
    ex_stop(&pair.ex);
}

static void own_key_opens_as_the_memory(void)
{
    struct vmml_handle handle;
    vmml_uct_mem_h memh;
    CUdeviceptr ptr, opened;

    setenv("VMMLANE_SIM_DEVICES", "2", 1);
    lane_cuda(0);
    ptr = alloc(make_pool(FD_TYPE), MIB, 1);
    CHECK_EQUAL(serve(ptr, MIB, &memh), VMML_REASON_NONE);
    handle = lane_handle(key);
    CHECK(vmml_mirror_prepare(&handle, 0));
    CHECK(!vmml_mirror_prepare(&handle, 1));
    CHECK_CU(vmml_mirror_open(&handle, &opened));
    CHECK_EQUAL(opened, ptr);
    CHECK(vmml_mirror_close(opened));
    CHECK_CU(free_async(ptr));
    CHECK(!vmml_mirror_prepare(&handle, 0));
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(ucx_alone_is_told_a_context),
        LANE_TEST(default_pool_is_named_once),
        LANE_TEST(off_is_off),
        LANE_TEST(a_pack_answers_the_allocation),
        LANE_TEST(one_descriptor_for_a_pool),
        LANE_TEST(a_child_has_no_pool),
        LANE_TEST(a_fork_while_a_pool_is_exported),
        LANE_TEST(interior_and_beyond),
        LANE_TEST(refused_free_is_undone),
        LANE_TEST(unseen_free_is_found),
        LANE_TEST(destroyed_pool_serves_what_lives),
        LANE_TEST(pool_destroyed_unseen),
        LANE_TEST(exports_that_fail),
        LANE_TEST(known_allocations_are_bounded),
        LANE_TEST(neighbours_are_registered_as_one),
        LANE_TEST(free_beside_a_pack),
        LANE_TEST(successor_is_served_on),
        LANE_TEST(every_device_gets_a_pool),
        LANE_TEST(default_pool_is_followed),
        LANE_TEST(pool_is_tried_again),
        LANE_TEST(chosen_pool_is_kept),
        LANE_TEST(pool_that_cannot_be_had),
        LANE_PAIR(bytes_of_a_pool),
        LANE_PAIR(freed_memory_is_revoked),
        LANE_PAIR(another_at_the_same_address),
        LANE_PAIR(closed_before_it_is_freed),
        LANE_PAIR(refused_free_serves_on),
        LANE_PAIR(copies_under_way_end_first),
        LANE_PAIR(handed_out_address_is_the_memory),
        LANE_PAIR(import_that_is_ended_by_others),
        LANE_PAIR(a_fork_while_a_pool_is_imported),
        LANE_PAIR(import_is_as_large_as_it_is),
        LANE_PAIR(clock_is_set_while_others_import),
        LANE_PAIR(exporter_dies),
        LANE_PAIR(imports_that_fail),
        LANE_PAIR(import_that_cannot_be_told),
        LANE_PAIR(two_devices_share_an_import),
        LANE_PAIR(batches_are_moved_too),
        LANE_TEST(own_key_opens_as_the_memory),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
