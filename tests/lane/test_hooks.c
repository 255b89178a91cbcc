/* SPDX-License-Identifier: MIT */
/*
 * UCT's functions as the shim stands before them, in front of a stand-in for
 * UCX's CUDA module that asks the driver what UCX asks it.
 */
#include "exporter.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "hooks.h"
#include "lane/exporter.h"
#include "lane/state.h"
#include "mirror/mirror.h"
#include "standin.h"

#define WINDOW (16 * CHUNK)

static struct standin_uct *uct;
static vmml_ucs_status_t status; /* what the stand-in returns */
static unsigned calls;           /* of the function behind a hook */

/* --- what UCX does behind the hooks --------------------------------------- */

static vmml_ucs_status_t reg(vmml_uct_md_h md, void *address, size_t length,
                             const void *params, vmml_uct_mem_h *memh)
{
    static char memory[64];
    static unsigned used;

    calls++;
    *memh = &memory[used++];
    return status;
}

static vmml_ucs_status_t dereg(vmml_uct_md_h md,
                               const struct vmml_uct_mem_dereg_params *params)
{
    calls++;
    return status;
}

/* What a pack was told. */
static struct {
    CUdeviceptr base;
    size_t size;
    uint64_t identity;
    uint32_t legacy;
    uint64_t types;
    CUuuid uuid;
    CUdeviceptr plain_base; /* what another module is told meanwhile */
    uint64_t plain_id;
    CUuuid plain_uuid;
} told;

static void ask_legacy(CUdeviceptr ptr)
{
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
    };
    void *data[] = {&told.legacy, &told.types};

    CHECK_CU(
        vmml_cuPointerGetAttributes(lane_caller(), 2, attributes, data, ptr));
}

static vmml_ucs_status_t pack(vmml_uct_md_h md, vmml_uct_mem_h memh,
                              void *address, size_t length, const void *params,
                              void *buffer)
{
    CUdeviceptr ptr = (uintptr_t)address;
    CUipcMemHandle handle;

    calls++;
    CHECK_CU(vmml_cuMemGetAddressRange_v2(lane_caller(), &told.base, &told.size,
                                          ptr));
    CHECK_CU(vmml_cuPointerGetAttribute(lane_caller(), &told.identity,
                                        CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
    ask_legacy(ptr);
    CHECK_CU(vmml_cuDeviceGetUuid(lane_caller(), &told.uuid, 0));
    CHECK_CU(vmml_cuMemGetAddressRange_v2(NULL, &told.plain_base, NULL, ptr));
    CHECK_CU(vmml_cuPointerGetAttribute(NULL, &told.plain_id,
                                        CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
    CHECK_CU(vmml_cuDeviceGetUuid_v2(NULL, &told.plain_uuid, 0));
    memset(buffer, 0, KEY_SIZE);
    if (vmml_cuIpcGetMemHandle(lane_caller(), &handle, ptr) == CUDA_SUCCESS)
        memcpy((uint8_t *)buffer + 4, &handle, sizeof(handle));
    return status;
}

static vmml_ucs_status_t unpack(vmml_uct_component_h of, const void *buffer,
                                struct vmml_uct_rkey_bundle *bundle)
{
    calls++;
    bundle->rkey = 77;
    return status;
}

static void *pointer; /* that uct_rkey_ptr gives */

static vmml_ucs_status_t give_ptr(vmml_uct_component_h of,
                                  struct vmml_uct_rkey_bundle *bundle,
                                  uint64_t remote, void **local)
{
    calls++;
    *local = pointer;
    return status;
}

static vmml_ucs_status_t release(vmml_uct_component_h of,
                                 const struct vmml_uct_rkey_bundle *bundle)
{
    calls++;
    return status;
}

static void stand_in(void)
{
    uct = lane_standin("standin_uct");
    *uct = (struct standin_uct){reg, dereg, pack, unpack, give_ptr, release};
}

/* --- as libucp calls them ------------------------------------------------- */

static vmml_uct_mem_h mem_reg(vmml_uct_md_h md, uint64_t address, size_t length)
{
    vmml_uct_mem_h memh = NULL;

    CHECK_EQUAL(vmml_uct_md_mem_reg_v2(lane_caller(), md,
                                       (void *)(uintptr_t)address, length, NULL,
                                       &memh),
                status);
    return memh;
}

static vmml_ucs_status_t mkey_pack(vmml_uct_md_h md, vmml_uct_mem_h memh,
                                   uint64_t address, size_t length,
                                   uint8_t *key)
{
    return vmml_uct_md_mkey_pack_v2(
        lane_caller(), md, memh, (void *)(uintptr_t)address, length, NULL, key);
}

static bool is_ours(const uint8_t *key)
{
    struct vmml_handle handle;

    return vmml_handle_find(key, KEY_SIZE, &handle) >= 0;
}

static uint64_t window(unsigned count)
{
    uint64_t base = lane_reserve(WINDOW);

    lane_map_run(base, CHUNK, count, 1);
    return base;
}

/* --- tests ---------------------------------------------------------------- */

static void a_pack_is_told_of_the_window(void)
{
    struct vmml_handle handle;
    uint8_t key[KEY_SIZE];
    uint64_t base, id = 0;
    vmml_uct_mem_h memh;
    CUuuid gpu, first;
    size_t size;

    stand_in();
    lane_cuda(0);
    base = window(3);
    memh = mem_reg(lane_md(), base + CHUNK, CHUNK);
    CHECK_EQUAL(mkey_pack(lane_md(), memh, base + CHUNK, CHUNK, key), 0);
    handle = lane_handle(key);
    CHECK_EQUAL(handle.base, base);
    CHECK_EQUAL(told.base, base);
    CHECK_EQUAL(told.size, WINDOW);
    CHECK_EQUAL(told.identity, vmml_identity(handle.nonce, base, WINDOW));
    CHECK((told.identity & 1ull << 63) != 0);
    CHECK_EQUAL(told.legacy, 1);
    CHECK_EQUAL(told.types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    /* Everyone else is told what the driver says, meanwhile too. */
    CHECK_CU(cuDeviceGetUuid_v2(&gpu, 0));
    CHECK(memcmp(&told.uuid, &gpu, sizeof(gpu)) != 0);
    CHECK(memcmp(&told.plain_uuid, &gpu, sizeof(gpu)) == 0);
    CHECK_EQUAL(told.plain_base, base + CHUNK);
    CHECK(told.plain_id != told.identity);

    /* The UUID is one for the exporter's life; the scope ends. */
    first = told.uuid;
    memh = mem_reg(lane_md(), base, 3 * CHUNK);
    CHECK_EQUAL(mkey_pack(lane_md(), memh, base, 3 * CHUNK, key), 0);
    CHECK(memcmp(&told.uuid, &first, sizeof(first)) == 0);
    CHECK_CU(
        vmml_cuMemGetAddressRange_v2(lane_caller(), &told.base, &size, base));
    CHECK_EQUAL(size, CHUNK);
    CHECK_CU(vmml_cuPointerGetAttribute(lane_caller(), &id,
                                        CU_POINTER_ATTRIBUTE_BUFFER_ID, base));
    CHECK((id & 1ull << 63) == 0);
}

static void what_is_not_taken_is_passed_through(void)
{
    vmml_uct_md_h copy_md = lane_standin("standin_copy_md");
    uint8_t key[KEY_SIZE];
    CUdeviceptr plain;
    vmml_uct_mem_h memh;
    uint64_t base;

    stand_in();
    lane_cuda(0);
    base = window(2);
    /* Another transport's domain. */
    memh = mem_reg(copy_md, base, 2 * CHUNK);
    CHECK_EQUAL(mkey_pack(copy_md, memh, base, 2 * CHUNK, key), 0);
    CHECK(!is_ours(key));
    CHECK_EQUAL(told.size, CHUNK);
    /* cudaMalloc memory. */
    CHECK_CU(cuMemAlloc_v2(&plain, CHUNK));
    memh = mem_reg(lane_md(), plain, CHUNK);
    CHECK_EQUAL(mkey_pack(lane_md(), memh, plain, CHUNK, key), 0);
    CHECK(!is_ours(key));
    /* A registration that failed. */
    status = -1;
    memh = mem_reg(lane_md(), base, 2 * CHUNK);
    status = 0;
    CHECK_EQUAL(mkey_pack(lane_md(), memh, base, 2 * CHUNK, key), 0);
    CHECK(!is_ours(key));
    CHECK_EQUAL(calls, 6);
}

static void errors_of_ucx_are_its_own(void)
{
    struct vmml_uct_mem_dereg_params params = {.field_mask =
                                                   VMML_UCT_DEREG_FIELD_MEMH};
    uint8_t key[KEY_SIZE];
    uint64_t base;

    stand_in();
    lane_cuda(0);
    base = window(2);
    params.memh = mem_reg(lane_md(), base, 2 * CHUNK);
    status = -3;
    CHECK_EQUAL(mkey_pack(lane_md(), params.memh, base, 2 * CHUNK, key), -3);
    CHECK_EQUAL(vmml_uct_md_mem_dereg_v2(lane_caller(), lane_md(), &params),
                -3);
    /* It is over all the same: UCX frees the handle. */
    status = 0;
    CHECK_EQUAL(mkey_pack(lane_md(), params.memh, base, 2 * CHUNK, key), 0);
    CHECK(!is_ours(key));
}

/* A caller whose module has no UCX. */
static void functions_that_are_missing(void)
{
    struct vmml_uct_rkey_bundle bundle = {0};
    vmml_uct_mem_h memh;

    CHECK_EQUAL(vmml_uct_md_mem_reg_v2(NULL, NULL, NULL, 0, NULL, &memh),
                VMML_UCS_ERR_UNSUPPORTED);
    CHECK_EQUAL(vmml_uct_rkey_unpack(NULL, NULL, NULL, &bundle),
                VMML_UCS_ERR_UNSUPPORTED);
    stand_in();
    CHECK_EQUAL(vmml_uct_md_mem_dereg(lane_caller(), lane_md(), NULL),
                VMML_UCS_ERR_UNSUPPORTED);
    CHECK_EQUAL(vmml_uct_rkey_unpack_v2(lane_caller(), lane_md()->component,
                                        NULL, NULL, &bundle),
                VMML_UCS_ERR_UNSUPPORTED);
}

static void a_key_is_decided_before_ucx_sees_it(void)
{
    struct exporter ex = ex_start();
    struct vmml_uct_rkey_bundle bundle;
    vmml_uct_component_h component;
    struct vmml_handle handle;
    uint8_t key[KEY_SIZE], other[KEY_SIZE];
    uint64_t base;

    base = ex_reserve(&ex, WINDOW);
    ex_map(&ex, base, CHUNK, 2, 1);
    ex_key(&ex, base, 2 * CHUNK, key);
    stand_in();
    lane_cuda(0);
    im_buffer();
    im_stream();
    component = lane_md()->component;
    CHECK_EQUAL(vmml_uct_rkey_unpack(lane_caller(), component, key, &bundle),
                0);
    CHECK_EQUAL(calls, 1);
    /* The driver's work is done by then. */
    CHECK_EQUAL(sim_call_count("cuMemMap"), 2);
    sim_reset_counts();
    im_expect(im_open(key), base, 2 * CHUNK, 1);
    CHECK_EQUAL(sim_call_count("cuMemMap"), 0);

    /* A tombstone, and an exporter that is no more. */
    memcpy(other, key, sizeof(other));
    handle = lane_handle(key);
    handle.flags = VMML_HANDLE_TOMBSTONE;
    handle.reason = VMML_REASON_NOT_SHAREABLE;
    vmml_handle_encode(&handle, other + 4);
    CHECK_EQUAL(vmml_uct_rkey_unpack(lane_caller(), component, other, &bundle),
                VMML_UCS_ERR_UNREACHABLE);
    /* Of a UCX whose keys this one reads wrongly: 1.18.0's, or of a build
     * without fabric support (or with it). */
    handle.reason = 0;
    for (uint8_t flag = VMML_HANDLE_FIRST_LAYOUT; flag <= VMML_HANDLE_NO_FABRIC;
         flag *= 2) {
        handle.flags = lane_handle(key).flags ^ flag;
        vmml_handle_encode(&handle, other + 4);
        CHECK_EQUAL(
            vmml_uct_rkey_unpack(lane_caller(), component, other, &bundle),
            VMML_UCS_ERR_UNREACHABLE);
    }
    handle.flags = 0;
    handle.nonce[5] ^= 1;
    vmml_handle_encode(&handle, other + 4);
    CHECK_EQUAL(vmml_uct_rkey_unpack(lane_caller(), component, other, &bundle),
                VMML_UCS_ERR_UNREACHABLE);
    CHECK_EQUAL(calls, 1);
    /* Bytes that are not ours are UCX's business. */
    memset(other, 0x33, sizeof(other));
    status = -5;
    CHECK_EQUAL(vmml_uct_rkey_unpack(lane_caller(), component, other, &bundle),
                -5);
    CHECK_EQUAL(calls, 2);
    ex_stop(&ex);
}

static void a_switched_off_importer_refuses(void)
{
    struct exporter ex = ex_start();
    struct vmml_uct_rkey_bundle bundle;
    uint8_t key[KEY_SIZE];
    uint64_t base;

    base = ex_reserve(&ex, WINDOW);
    ex_map(&ex, base, CHUNK, 2, 1);
    ex_key(&ex, base, 2 * CHUNK, key);
    CHECK(setenv("VMMLANE_SHARE", "off", 1) == 0);
    stand_in();
    lane_cuda(0);
    CHECK_EQUAL(
        vmml_uct_rkey_unpack(lane_caller(), lane_md()->component, key, &bundle),
        VMML_UCS_ERR_UNREACHABLE);
    CHECK_EQUAL(calls, 0);
    ex_stop(&ex);
}

/* --- a key that comes before its process has a context (A9) ----------------
 */

/* What UCX asks, from 1.20.1 on. */
static vmml_ucs_status_t
unpack_with_context(vmml_uct_component_h of, const void *buffer,
                    struct vmml_uct_rkey_bundle *bundle)
{
    CUipcMemHandle handle;
    CUcontext context;
    unsigned flags;
    CUdevice device = -1;
    CUdeviceptr mirror;
    int active = 0;

    calls++;
    memcpy(&handle, (const uint8_t *)buffer + 4, sizeof(handle));
    CHECK(vmml_cuCtxGetDevice(NULL, &device) != CUDA_SUCCESS);
    CHECK_CU(vmml_cuCtxGetDevice(lane_caller(), &device));
    CHECK_EQUAL(device, 0);
    CHECK_CU(vmml_cuDevicePrimaryCtxGetState(NULL, 0, &flags, &active));
    CHECK_EQUAL(active, 0);
    CHECK_CU(
        vmml_cuDevicePrimaryCtxGetState(lane_caller(), 0, &flags, &active));
    CHECK_EQUAL(active, 1);
    CHECK_CU(vmml_cuDevicePrimaryCtxRetain(lane_caller(), &context, 0));
    CHECK(vmml_cuCtxPushCurrent_v2(NULL, context) != CUDA_SUCCESS);
    CHECK_CU(vmml_cuCtxPushCurrent_v2(lane_caller(), context));
    CHECK_CU(vmml_cuIpcOpenMemHandle_v2(lane_caller(), &mirror, handle, 0));
    CHECK(sim_host_view(mirror, CHUNK) != NULL);
    CHECK(vmml_cuCtxPopCurrent_v2(NULL, NULL) != CUDA_SUCCESS);
    CHECK_CU(vmml_cuCtxPopCurrent_v2(lane_caller(), NULL));
    CHECK(vmml_cuCtxPopCurrent_v2(lane_caller(), NULL) != CUDA_SUCCESS);
    CHECK_CU(vmml_cuDevicePrimaryCtxRelease_v2(lane_caller(), 0));
    bundle->rkey = 77;
    return status;
}

static void a_key_before_any_context(void)
{
    struct exporter ex = ex_start();
    struct vmml_uct_rkey_bundle bundle;
    uint8_t key[KEY_SIZE];
    CUcontext context;
    unsigned flags;
    CUdevice device;
    uint64_t base;
    int active = 1;

    base = ex_reserve(&ex, WINDOW);
    ex_map(&ex, base, CHUNK, 2, 1);
    ex_key(&ex, base, 2 * CHUNK, key);
    stand_in();
    uct->unpack = unpack_with_context;
    CHECK_CU(cuInit(0));
    lane_log_to_file();
    CHECK_EQUAL(
        vmml_uct_rkey_unpack(lane_caller(), lane_md()->component, key, &bundle),
        0);
    CHECK_EQUAL(calls, 1);
    /* Nothing is left of it, and no context was made. */
    CHECK(vmml_cuCtxGetDevice(lane_caller(), &device) != CUDA_SUCCESS);
    CHECK_CU(
        vmml_cuDevicePrimaryCtxGetState(lane_caller(), 0, &flags, &active));
    CHECK_EQUAL(active, 0);
    CHECK_EQUAL(sim_call_count("cuDevicePrimaryCtxRetain"), 0);
    CHECK_EQUAL(sim_call_count("cuDevicePrimaryCtxRelease_v2"), 0);
    CHECK(!lane_log_has("no CUDA context"));
    /* UCX's own key cannot be opened without one. */
    memset(key, 0x33, sizeof(key));
    uct->unpack = unpack;
    CHECK_EQUAL(
        vmml_uct_rkey_unpack(lane_caller(), lane_md()->component, key, &bundle),
        0);
    CHECK_EQUAL(lane_log_count("no CUDA context when a key arrived"), 1);
    /* With a context everything is the driver's. */
    CHECK_CU(vmml_cuDevicePrimaryCtxRetain(lane_caller(), &context, 0));
    CHECK_CU(vmml_cuCtxPushCurrent_v2(lane_caller(), context));
    CHECK_CU(vmml_cuCtxGetDevice(lane_caller(), &device));
    CHECK_CU(vmml_cuCtxPopCurrent_v2(lane_caller(), &context));
    CHECK_CU(vmml_cuDevicePrimaryCtxRelease_v2(lane_caller(), 0));
    CHECK_EQUAL(sim_call_count("cuDevicePrimaryCtxRelease_v2"), 1);
    ex_stop(&ex);
}

static bool is_unmapped(void *arg)
{
    return sim_host_view(*(CUdeviceptr *)arg, CHUNK) == NULL;
}

static void a_pointer_keeps_its_mirror(void)
{
    struct exporter ex = ex_start();
    struct vmml_uct_rkey_bundle bundle = {.rkey = 0};
    vmml_uct_component_h component;
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;
    void *local = NULL;
    uint64_t base;

    base = ex_reserve(&ex, WINDOW);
    ex_map(&ex, base, CHUNK, 2, 1);
    ex_key(&ex, base, 2 * CHUNK, key);
    stand_in();
    lane_cuda(0);
    component = lane_md()->component;
    CHECK_EQUAL(vmml_uct_rkey_unpack(lane_caller(), component, key, &bundle),
                0);
    mirror = im_open(key);
    pointer = (void *)(uintptr_t)(mirror + 64);
    CHECK_EQUAL(
        vmml_uct_rkey_ptr(lane_caller(), component, &bundle, base + 64, &local),
        0);
    CHECK(local == pointer);
    CHECK_CU(ex_unmap(&ex, base, 2 * CHUNK));
    usleep(500000); /* the watcher's turn */
    CHECK(sim_host_view(mirror, CHUNK) != NULL);
    CHECK_EQUAL(vmml_uct_rkey_release(lane_caller(), component, &bundle), 0);
    CHECK(lane_wait(is_unmapped, &mirror));
    /* Nothing can be handed out of a dead exporter's window. */
    ex_kill(&ex);
    CHECK_EQUAL(
        vmml_uct_rkey_ptr(lane_caller(), component, &bundle, base + 64, &local),
        VMML_UCS_ERR_UNREACHABLE);
}

/* --- a UCX that shares descriptors by itself (A4) --------------------------
 *
 * No published wheel does. The stand-in asks what uct_cuda_ipc_mem_add_reg()
 * of UCX 1.22 with its POSIX_FD arm asks, in that order.
 */

struct arm_key {
    enum { ARM_NO_IPC, ARM_LEGACY, ARM_POSIX_FD } type;
    pid_t pid;
    CUipcMemHandle legacy; /* at byte 8, as there */
    int fd;
    CUdeviceptr base;
    size_t length;
    uint64_t buffer_id;
};

/* The driver as that module sees it, past the shim or through it. */
static bool past_the_shim;
#define ASK(function, ...)                                                     \
    (past_the_shim ? function(__VA_ARGS__)                                     \
                   : vmml_##function(lane_md_native(), __VA_ARGS__))

static void ask_how(CUdeviceptr ptr, uint32_t *legacy, uint64_t *types)
{
    CUmemoryPool pool = NULL;
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    };
    void *data[] = {legacy, types, &pool};

    CHECK_CU(ASK(cuPointerGetAttributes, 3, attributes, data, ptr));
}

static vmml_ucs_status_t pack_by_arm(vmml_uct_md_h md, vmml_uct_mem_h memh,
                                     void *address, size_t length,
                                     const void *params, void *buffer)
{
    struct arm_key *key = buffer;
    CUdeviceptr ptr = (uintptr_t)address;
    CUmemGenericAllocationHandle handle;
    uint32_t legacy = 0;
    uint64_t types = 0;

    memset(key, 0, sizeof(*key));
    key->pid = getpid();
    CHECK_CU(ASK(cuMemGetAddressRange_v2, &key->base, &key->length, ptr));
    CHECK_CU(ASK(cuPointerGetAttribute, &key->buffer_id,
                 CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
    ask_how(ptr, &legacy, &types);
    if (legacy != 0) {
        key->type = ARM_LEGACY;
        CHECK_CU(ASK(cuIpcGetMemHandle, &key->legacy, ptr));
    } else if (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        CHECK_CU(cuMemRetainAllocationHandle(&handle, (void *)ptr));
        CHECK_CU(ASK(cuMemExportToShareableHandle, &key->fd, handle,
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CHECK_CU(cuMemRelease(handle));
        key->type = ARM_POSIX_FD;
    }
    return status;
}

static uint64_t memory_of(size_t reserved, CUmemAllocationHandleType types)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = types,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemAccessDesc desc = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    uint64_t base = lane_reserve(reserved);

    CHECK_CU(vmml_cuMemCreate(NULL, &handle, 4 * CHUNK, &prop, 0));
    CHECK_CU(vmml_cuMemMap(NULL, base, 4 * CHUNK, 0, handle, 0));
    CHECK_CU(vmml_cuMemSetAccess(NULL, base, 4 * CHUNK, &desc, 1));
    CHECK_CU(cuMemRelease(handle));
    lane_fill(sim_host_view(base, 4 * CHUNK), base, 4 * CHUNK, 1);
    return base;
}

static struct arm_key *shared_key; /* both processes see it */

/* As the importer of such a key does it. */
static uint64_t import_by_arm(uint64_t seed)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    int pidfd = (int)syscall(SYS_pidfd_open, shared_key->pid, 0);
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, shared_key->fd, 0);
    CUmemGenericAllocationHandle handle;
    uint64_t mapped;

    CHECK(fd >= 0);
    lane_cuda(0);
    CHECK_CU(cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    mapped = lane_reserve(shared_key->length);
    CHECK_CU(cuMemMap(mapped, shared_key->length, 0, handle, 0));
    CHECK_CU(cuMemSetAccess(mapped, shared_key->length, &desc, 1));
    close(fd);
    close(pidfd);
    return lane_differs(sim_host_view(mapped, shared_key->length),
                        shared_key->base, shared_key->length,
                        (unsigned)seed) == shared_key->length;
}

/* Its key through the shim, and how many descriptors that cost. */
static unsigned arm_pack(uint64_t base, size_t length)
{
    unsigned fds = lane_fd_count();
    vmml_uct_mem_h memh = mem_reg(lane_md_native(), base, length);

    CHECK_EQUAL(
        mkey_pack(lane_md_native(), memh, base, length, (uint8_t *)shared_key),
        0);
    return lane_fd_count() - fds;
}

static void arm_set_up(struct exporter *importer)
{
    shared_key = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared_key != MAP_FAILED);
    *importer = ex_start();
    stand_in();
    /* The real function is looked up in the caller's scope. */
    uct->pack = pack_by_arm;
    lane_cuda(0);
}

static void a_ucx_that_can_shares_by_itself(void)
{
    static const CUmemAllocationHandleType types[] = {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        CU_MEM_HANDLE_TYPE_NONE, /* upgraded */
    };
    struct exporter importer;
    struct arm_key without;
    unsigned i, fds;
    uint64_t base;

    arm_set_up(&importer);
    /* The shim's counters come with the first one. */
    arm_pack(memory_of(4 * CHUNK, types[0]), 4 * CHUNK);
    for (i = 0; i < 2; i++) {
        base = memory_of(4 * CHUNK, types[i]);
        fds = lane_fd_count();
        past_the_shim = true;
        CHECK_EQUAL(
            pack_by_arm(NULL, NULL, (void *)base, 4 * CHUNK, NULL, &without),
            0);
        past_the_shim = false;
        CHECK_EQUAL(lane_fd_count(), fds + 1);
        CHECK_EQUAL(arm_pack(base, 4 * CHUNK), 1);
        CHECK_EQUAL(shared_key->type, ARM_POSIX_FD);
        CHECK_EQUAL(ex_run(&importer, import_by_arm, 1), 1);
        CHECK_EQUAL(shared_key->type, without.type);
        CHECK_EQUAL(shared_key->pid, without.pid);
        CHECK_EQUAL(shared_key->base, without.base);
        CHECK_EQUAL(shared_key->length, without.length);
        CHECK_EQUAL(shared_key->buffer_id, without.buffer_id);
    }
    /* Nothing was shared twice. */
    CHECK(vmml_exporter.ledger == NULL);
    ex_stop(&importer);
}

/* A handle that may get neighbours. */
static void a_ucx_that_can_is_served(void)
{
    struct exporter importer;

    arm_set_up(&importer);
    arm_pack(memory_of(8 * CHUNK, CU_MEM_HANDLE_TYPE_NONE), 4 * CHUNK);
    CHECK_EQUAL(shared_key->type, ARM_LEGACY);
    CHECK_EQUAL(lane_reason((const uint8_t *)shared_key), VMML_REASON_NONE);
    ex_stop(&importer);
}

static void a_ucx_that_can_is_served_if_told(void)
{
    static const CUmemAllocationHandleType types[] = {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        CU_MEM_HANDLE_TYPE_NONE,
    };
    struct exporter importer;
    unsigned i;

    CHECK(setenv("VMMLANE_NATIVE", "never", 1) == 0);
    arm_set_up(&importer);
    for (i = 0; i < 2; i++) {
        /* One descriptor and, with the first, those of the ledger. */
        CHECK(arm_pack(memory_of(4 * CHUNK, types[i]), 4 * CHUNK) >= 1);
        CHECK_EQUAL(shared_key->type, ARM_LEGACY);
        CHECK_EQUAL(lane_reason((const uint8_t *)shared_key), VMML_REASON_NONE);
    }
    ex_stop(&importer);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(a_pack_is_told_of_the_window),
        LANE_TEST(what_is_not_taken_is_passed_through),
        LANE_TEST(errors_of_ucx_are_its_own),
        LANE_TEST(functions_that_are_missing),
        LANE_PAIR(a_key_is_decided_before_ucx_sees_it),
        LANE_PAIR(a_switched_off_importer_refuses),
        LANE_PAIR(a_key_before_any_context),
        LANE_PAIR(a_pointer_keeps_its_mirror),
        LANE_PAIR(a_ucx_that_can_shares_by_itself),
        LANE_PAIR(a_ucx_that_can_is_served),
        LANE_PAIR(a_ucx_that_can_is_served_if_told),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
