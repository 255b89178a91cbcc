/* SPDX-License-Identifier: MIT */
/*
 * The importer where something went wrong: a sync that failed half-way, chunks
 * that a pin keeps after their revocation, an exporter whose descriptors are
 * another program's by now.
 *
 * A process is its own peer on a second device, so that most need one process
 * only.
 */
#include "harness.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "lane/state.h"
#include "mirror/index.h"
#include "mirror/mirror.h"
#include "mirror/peer.h"
#include "mirror/state.h"
#include "mirror/use.h"

#define WINDOW (16 * CHUNK)
#define RKEY   0x1234

static uint8_t key[KEY_SIZE];
static CUstream stream;

static void two_devices(void)
{
    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    lane_cuda(0);
}

/* A reservation with `count` chunks in it, registered and packed. */
static uint64_t publish(unsigned count, vmml_uct_mem_h *memh)
{
    uint64_t base = lane_reserve(WINDOW);

    lane_map_run(base, CHUNK, count, 1);
    *memh = lane_reg(base, count * CHUNK);
    CHECK(lane_pack(*memh, base, count * CHUNK, key));
    CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
    return base;
}

static CUdeviceptr open_mirror(void)
{
    struct vmml_handle handle = lane_handle(key);
    CUcontext context;
    CUdeviceptr mirror;

    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK_CU(cuCtxPushCurrent_v2(context));
    CHECK(vmml_mirror_prepare(&handle, 1));
    CHECK_CU(vmml_mirror_open(&handle, &mirror));
    CHECK_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return mirror;
}

struct batch {
    const struct vmml_copy *copies;
    size_t count;
    unsigned posts;
};

static CUresult post_all(void *arg)
{
    struct batch *batch = arg;
    CUresult result = CUDA_SUCCESS;
    size_t i;

    batch->posts++;
    for (i = 0; i < batch->count && result == CUDA_SUCCESS; i++)
        result =
            cuMemcpyDtoDAsync_v2(batch->copies[i].dst, batch->copies[i].src,
                                 batch->copies[i].length, stream);
    return result;
}

/* As the hook posts them. Returns how often the copies were handed to the
 * driver. */
static unsigned post(struct vmml_copy *copies, size_t count, CUresult expected)
{
    struct batch batch = {copies, count, 0};
    unsigned long before = sim_call_count("cuMemcpyDtoDAsync_v2");
    CUresult result;
    bool posted = count == 1 &&
                  vmml_mirror_post_short(vmml_real(), copies, stream, &result);

    batch.posts = (unsigned)(sim_call_count("cuMemcpyDtoDAsync_v2") - before);
    if (posted) {
        CHECK_EQUAL(result, expected);
        CHECK_CU(cuStreamSynchronize(stream));
        return batch.posts;
    }
    CHECK_EQUAL(
        vmml_mirror_post(copies, count, false, stream, post_all, &batch),
        expected);
    CHECK_CU(cuStreamSynchronize(stream));
    return batch.posts;
}

/* Whether a copy from the mirror gives the pattern of the exporter's. */
static void check_bytes(CUdeviceptr to, CUdeviceptr mirror, uint64_t base,
                        uint64_t offset, unsigned seed)
{
    struct vmml_copy copy = {to, mirror + offset, CHUNK};

    CHECK(post(&copy, 1, CUDA_SUCCESS) == 1);
    CHECK_EQUAL(
        lane_differs(sim_host_view(to, CHUNK), base + offset, CHUNK, seed),
        CHUNK);
}

/* A chunk is dead in the ledger a moment before its window's count of
 * revocations says so. Who unmaps it then has nothing but the door to keep a
 * short copy out. */
static void closed_door_keeps_short_copies_out(void)
{
    struct vmml_mirror *mirror;
    struct vmml_copy copy = {.length = 4096};
    CUresult result = CUDA_SUCCESS;
    vmml_uct_mem_h memh;
    unsigned long before;
    uint64_t base;

    two_devices();
    base = publish(1, &memh);
    copy.src = open_mirror();
    CHECK_CU(cuMemAlloc_v2(&copy.dst, CHUNK));
    check_bytes(copy.dst, copy.src, base, 0, 1);
    mirror = vmml_index_find(copy.src);
    CHECK(mirror != NULL);
    CHECK(vmml_mirror_post_short(vmml_real(), &copy, stream, &result));
    CHECK_CU(result);
    atomic_store(&mirror->closing, true);
    before = sim_call_count("cuMemcpyDtoDAsync_v2");
    CHECK(!vmml_mirror_post_short(vmml_real(), &copy, stream, &result));
    CHECK_EQUAL(sim_call_count("cuMemcpyDtoDAsync_v2"), before);
    CHECK(!vmml_posting_is_in(mirror));
    atomic_store(&mirror->closing, false);
    CHECK(vmml_mirror_post_short(vmml_real(), &copy, stream, &result));
    CHECK_CU(result);
    CHECK_CU(cuStreamSynchronize(stream));
}

/* --- a sync that failed --------------------------------------------------- */

static void failed_sync_is_not_taken_for_done(void)
{
    static const char *const calls[] = {"cuMemImportFromShareableHandle",
                                        "cuMemMap", "cuMemSetAccess"};
    struct vmml_handle handle;
    vmml_uct_mem_h memh;
    CUdeviceptr to, mirror;
    unsigned i, nth;
    uint64_t base;

    two_devices();
    base = publish(8, &memh);
    handle = lane_handle(key);
    for (i = 0; i < 3; i++)
        for (nth = 1; nth <= (i == 2 ? 1 : 4); nth += 3) {
            CHECK_EQUAL(sim_fail(calls[i], nth, CUDA_ERROR_UNKNOWN, 1), 0);
            CHECK(!vmml_mirror_prepare(&handle, 1));
            CHECK(!vmml_mirror_prepare(&handle, 1));
            sim_clear_failures();
        }
    CHECK(vmml_mirror_prepare(&handle, 1));
    mirror = open_mirror();
    CHECK_CU(cuMemAlloc_v2(&to, CHUNK));
    for (i = 0; i < 8; i++)
        check_bytes(to, mirror, base, i * CHUNK, 1);
}

/* A device that can have no access at all costs one import for each key. */
static void no_access_is_found_early(void)
{
    struct vmml_handle handle;
    vmml_uct_mem_h memh;

    CHECK(setenv("VMMLANE_SIM_PEER", "0", 1) == 0);
    two_devices();
    publish(8, &memh);
    handle = lane_handle(key);
    sim_reset_counts();
    CHECK(!vmml_mirror_prepare(&handle, 1));
    CHECK(!vmml_mirror_prepare(&handle, 1));
    CHECK(sim_call_count("cuMemSetAccess") >= 2);
    CHECK(sim_call_count("cuMemImportFromShareableHandle") <= 8 + 1);
}

/* Growth in any order keeps every chunk where it belongs. */
static void growth_out_of_order(void)
{
    static const unsigned order[] = {9, 3, 12, 1, 5, 4, 15, 0, 8};
    struct vmml_handle handle;
    CUdeviceptr to, mirror = 0;
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned i, j;

    two_devices();
    base = lane_reserve(WINDOW);
    for (i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        uint64_t at = base + order[i] * CHUNK;

        lane_map(at, CHUNK, 1);
        memh = lane_reg(at, CHUNK);
        CHECK(lane_pack(memh, at, CHUNK, key));
        if (i == 0) {
            mirror = open_mirror();
            CHECK_CU(cuMemAlloc_v2(&to, CHUNK));
        }
        handle = lane_handle(key);
        CHECK(vmml_mirror_prepare(&handle, 1));
        for (j = 0; j <= i; j++)
            check_bytes(to, mirror, base, order[j] * CHUNK, 1);
    }
}

/* A key may name anything: no address space for what the ledger has not. */
static void no_mirror_of_a_window_that_is_not(void)
{
    struct vmml_handle handle;
    vmml_uct_mem_h memh;
    unsigned i;

    two_devices();
    publish(2, &memh);
    sim_reset_counts();
    for (i = 1; i < 20; i++) {
        handle = lane_handle(key);
        handle.size += i * CHUNK;
        CHECK(!vmml_mirror_prepare(&handle, 1));
    }
    CHECK_EQUAL(sim_call_count("cuMemAddressReserve"), 0);
    handle = lane_handle(key);
    CHECK(vmml_mirror_prepare(&handle, 1));
    CHECK_EQUAL(sim_call_count("cuMemAddressReserve"), 1);
}

/* --- the exporter changes while a mirror is brought up to date ------------ */

struct change {
    uint64_t base;
    unsigned step;
    bool after;
    bool back; /* mapped anew and published, with other bytes */
    bool changed;
};

static void change_first(void *arg)
{
    const struct change *change = arg;
    vmml_uct_mem_h memh;

    CHECK_CU(lane_unmap(change->base, CHUNK));
    if (!change->back)
        return;
    lane_map(change->base, CHUNK, 2);
    memh = lane_reg(change->base, CHUNK);
    CHECK(lane_pack(memh, change->base, CHUNK, key));
}

static void change_at(const struct lane_call *call, void *arg)
{
    struct change *change = arg;

    if (change->changed || call->after != change->after ||
        call->step < change->step)
        return;
    change->changed = true;
    lane_on_thread(change_first, change);
}

/* What is copied after the exporter's call has returned is what it has now. */
static void check_changed(const struct change *change, CUdeviceptr to,
                          CUdeviceptr mirror)
{
    struct vmml_copy copy = {to, mirror, CHUNK};
    struct vmml_handle handle = lane_handle(key);

    if (change->changed && !change->back) {
        post(&copy, 1, CUDA_ERROR_INVALID_VALUE);
    } else {
        if (change->changed)
            CHECK(vmml_mirror_prepare(&handle, 1));
        check_bytes(to, mirror, change->base, 0, change->changed ? 2 : 1);
    }
    check_bytes(to, mirror, change->base, CHUNK, 1);
    check_bytes(to, mirror, change->base, 2 * CHUNK, 1);
}

/* again: the mirror exists, and another chunk of it was revoked. */
static bool change_during_sync(struct change *change, CUdeviceptr to,
                               bool again)
{
    struct vmml_handle handle;
    CUdeviceptr mirror;
    vmml_uct_mem_h memh;

    change->base = publish(4, &memh);
    handle = lane_handle(key);
    change->changed = false;
    if (again) {
        CHECK(vmml_mirror_prepare(&handle, 1));
        CHECK_CU(lane_unmap(change->base + 3 * CHUNK, CHUNK));
    }
    lane_watch(change_at, change);
    (void)vmml_mirror_prepare(&handle, 1);
    lane_watch(NULL, NULL);
    CHECK_CU(vmml_mirror_open(&handle, &mirror));
    check_changed(change, to, mirror);
    CHECK_CU(lane_unmap(change->base + CHUNK, 2 * CHUNK));
    return change->changed;
}

static void changes_at_every_moment_of_a_sync(void)
{
    struct change change = {.step = 1};
    vmml_uct_mem_h memh;
    CUdeviceptr to;
    bool any;
    int round;

    two_devices();
    publish(1, &memh);
    open_mirror(); /* makes the device's context current */
    CHECK_CU(cuMemAlloc_v2(&to, CHUNK));
    do {
        any = false;
        for (round = 0; round < 8; round++) {
            change.after = round & 1;
            change.back = round & 2;
            any |= change_during_sync(&change, to, round & 4);
        }
        change.step++;
    } while (any);
    CHECK(change.step > 10);
}

/* --- pins ----------------------------------------------------------------- */

/* Chunks 0 and 2 stay, 1 is revoked under a pin. */
static uint64_t revoke_under_pin(vmml_uct_mem_h *memh, CUdeviceptr *mirror)
{
    uint64_t base = publish(3, memh);

    *mirror = open_mirror();
    CHECK(vmml_mirror_hand_out(*mirror + CHUNK, RKEY));
    CHECK_CU(lane_unmap(base + CHUNK, CHUNK));
    return base;
}

static void pinned_mirror_checks_every_copy(void)
{
    vmml_uct_mem_h memh;
    CUdeviceptr to, mirror;
    uint64_t base;

    two_devices();
    base = revoke_under_pin(&memh, &mirror);
    CHECK_CU(cuMemAlloc_v2(&to, 2 * CHUNK));
    {
        struct vmml_copy good[] = {{to, mirror, CHUNK},
                                   {to, mirror + 2 * CHUNK, CHUNK}};
        struct vmml_copy bad[] = {{to, mirror, CHUNK}, {to, mirror + CHUNK, 8}};
        struct vmml_copy late[] = {{to, mirror + CHUNK, 8},
                                   {to, mirror, CHUNK}};
        struct vmml_copy both[] = {{mirror + CHUNK, mirror + 2 * CHUNK, CHUNK}};
        struct vmml_copy border[] = {{to, mirror + CHUNK - 8, 16}};
        struct vmml_copy none[] = {{to, mirror + CHUNK, 0}};

        CHECK(post(good, 2, CUDA_SUCCESS) == 1);
        CHECK(post(bad, 2, CUDA_ERROR_INVALID_VALUE) == 0);
        CHECK(post(late, 2, CUDA_ERROR_INVALID_VALUE) == 0);
        CHECK(post(both, 1, CUDA_ERROR_INVALID_VALUE) == 0);
        CHECK(post(border, 1, CUDA_ERROR_INVALID_VALUE) == 0);
        CHECK(post(none, 1, CUDA_SUCCESS) == 1);
    }
    check_bytes(to, mirror, base, 2 * CHUNK, 1);
}

/* What is published where a pinned chunk lies comes when the pin has gone. */
static void rebacked_under_pin(void)
{
    struct vmml_handle handle;
    vmml_uct_mem_h memh;
    CUdeviceptr to, mirror;
    uint64_t base;

    two_devices();
    base = revoke_under_pin(&memh, &mirror);
    CHECK_CU(cuMemAlloc_v2(&to, CHUNK));
    lane_map(base + CHUNK, CHUNK, 2);
    CHECK(lane_pack(memh, base, 3 * CHUNK, key));
    handle = lane_handle(key);
    CHECK(!vmml_mirror_prepare(&handle, 1));
    {
        struct vmml_copy copy = {to, mirror + CHUNK, CHUNK};

        CHECK(post(&copy, 1, CUDA_ERROR_INVALID_VALUE) == 0);
    }
    check_bytes(to, mirror, base, 0, 1);
    vmml_mirror_take_back(RKEY);
    CHECK(vmml_mirror_prepare(&handle, 1));
    check_bytes(to, mirror, base, CHUNK, 2);
    check_bytes(to, mirror, base, 2 * CHUNK, 1);
}

/* uct_md_mem_elem_pack opens on the device that is current: its mirror must
 * not be empty. */
static void element_on_another_device(void)
{
    struct vmml_handle handle;
    vmml_uct_mem_h memh;
    CUdeviceptr mirror, to;
    CUcontext context;
    uint64_t base;

    two_devices();
    base = publish(2, &memh);
    handle = lane_handle(key);
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK_CU(cuCtxPushCurrent_v2(context));
    vmml_mirror_pin_all();
    CHECK_CU(vmml_mirror_open(&handle, &mirror));
    CHECK_CU(cuMemAlloc_v2(&to, CHUNK));
    CHECK_CU(cuMemcpyDtoD_v2(to, mirror + CHUNK, CHUNK));
    CHECK_EQUAL(lane_differs(sim_host_view(to, CHUNK), base + CHUNK, CHUNK, 1),
                CHUNK);
}

/* --- an exporter that is another program by now --------------------------- */

#define IMPOSTOR "VMML_TEST_IMPOSTOR"

/* The program that the exporter becomes: other memory under its numbers. */
static int impostor(void)
{
    const char *list = getenv(IMPOSTOR);
    CUmemGenericAllocationHandle handle;
    uint64_t base;
    int fd, number;

    lane_cuda(0);
    base = lane_reserve(CHUNK);
    lane_map(base, CHUNK, 7);
    CHECK_CU(cuMemRetainAllocationHandle(&handle, (void *)base));
    CHECK_CU(cuMemExportToShareableHandle(
        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    while (sscanf(list, "%d", &number) == 1) {
        CHECK(number == fd || dup2(fd, number) == number);
        list += strspn(list, "0123456789");
        list += strspn(list, " ");
    }
    CHECK(write(STDOUT_FILENO, "x", 1) == 1);
    pause();
    return 0;
}

static void export_and_exec(int to_importer, int from_importer)
{
    char *const argv[] = {"impostor", NULL};
    struct vmml_chunk *chunk;
    vmml_uct_mem_h memh;
    uint64_t base, from;
    char list[128];
    char byte;

    lane_cuda(0);
    base = publish(2, &memh);
    CHECK(write(to_importer, key, sizeof(key)) == sizeof(key));
    CHECK(read(from_importer, &byte, 1) == 1);
    /* One more, which the importer does not have yet. */
    lane_map(base + 2 * CHUNK, CHUNK, 1);
    memh = lane_reg(base + 2 * CHUNK, CHUNK);
    CHECK(lane_pack(memh, base + 2 * CHUNK, CHUNK, key));
    from = base + 2 * CHUNK;
    chunk = vmml_window_next_chunk(
        vmml_windows_at(&vmml_exporter.windows, base), &from, base + WINDOW);
    CHECK(chunk != NULL);
    snprintf(list, sizeof(list), "%d", chunk->fd);
    CHECK(setenv(IMPOSTOR, list, 1) == 0);
    CHECK(dup2(to_importer, STDOUT_FILENO) == STDOUT_FILENO);
    execv("/proc/self/exe", argv);
    _exit(1);
}

static bool is_gone(void *arg)
{
    return atomic_load(&((struct vmml_peer *)arg)->dead);
}

static void exec_is_an_end(void)
{
    int to[2], from[2];
    struct vmml_handle handle;
    CUdeviceptr mirror, buffer;
    pid_t pid;
    char byte;

    CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid = fork();
    if (pid == 0)
        export_and_exec(from[1], to[0]);
    two_devices();
    CHECK(read(from[0], key, sizeof(key)) == sizeof(key));
    mirror = open_mirror();
    CHECK_CU(cuMemAlloc_v2(&buffer, CHUNK));
    handle = lane_handle(key);
    check_bytes(buffer, mirror, handle.base, CHUNK, 1);
    CHECK(write(to[1], "x", 1) == 1);
    CHECK(read(from[0], &byte, 1) == 1); /* the other program runs */
    CHECK(!vmml_mirror_prepare(&handle, 1));
    CHECK(!vmml_mirror_prepare(&handle, 0));
    {
        struct vmml_copy copy = {buffer, mirror, CHUNK};

        CHECK(post(&copy, 1, CUDA_ERROR_INVALID_VALUE) == 0);
    }
    CHECK(lane_wait(is_gone, vmml_peer_find(handle.nonce)));
}

/* Noticed without the importer's help, so that its memory is given back. */
static bool holds_nothing(void *arg)
{
    (void)arg;
    return !vmml_mirror_refresh();
}

static void exec_is_noticed(void)
{
    int to[2], from[2];
    struct vmml_handle handle;
    pid_t pid;
    char byte;

    CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid = fork();
    if (pid == 0)
        export_and_exec(from[1], to[0]);
    two_devices();
    CHECK(read(from[0], key, sizeof(key)) == sizeof(key));
    open_mirror();
    handle = lane_handle(key);
    CHECK(write(to[1], "x", 1) == 1);
    CHECK(read(from[0], &byte, 1) == 1);
    CHECK(lane_wait(is_gone, vmml_peer_find(handle.nonce)));
    CHECK(lane_wait(holds_nothing, NULL));
}

struct child {
    pid_t pid;
    int to[2], from[2];
};

static void start_child(struct child *child)
{
    CHECK(pipe(child->to) == 0 && pipe(child->from) == 0);
    child->pid = fork();
    if (child->pid == 0)
        export_and_exec(child->from[1], child->to[0]);
}

static bool is_closed(void *arg)
{
    const struct vmml_peer *peer = arg;

    return atomic_load(&peer->pidfd) < 0 && atomic_load(&peer->life_fd) < 0;
}

/* Exporters come and go: nothing of them stays open. */
static void dead_exporters_cost_no_descriptor(void)
{
    struct child children[3];
    unsigned fds = 0;
    int i;

    for (i = 0; i < 3; i++)
        start_child(&children[i]);
    two_devices();
    for (i = 0; i < 3; i++) {
        CHECK(read(children[i].from[0], key, sizeof(key)) == sizeof(key));
        open_mirror();
        CHECK_CU(cuStreamDestroy_v2(stream));
        kill(children[i].pid, SIGKILL);
        CHECK(waitpid(children[i].pid, NULL, 0) == children[i].pid);
        CHECK(lane_wait(is_closed, vmml_peer_find(lane_handle(key).nonce)));
        CHECK(lane_wait(holds_nothing, NULL));
        if (i == 0)
            fds = lane_fd_count();
        CHECK_EQUAL(lane_fd_count(), fds);
    }
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_PAIR(closed_door_keeps_short_copies_out),
        LANE_PAIR(failed_sync_is_not_taken_for_done),
        LANE_PAIR(no_access_is_found_early),
        LANE_PAIR(growth_out_of_order),
        LANE_PAIR(no_mirror_of_a_window_that_is_not),
        LANE_PAIR(changes_at_every_moment_of_a_sync),
        LANE_PAIR(pinned_mirror_checks_every_copy),
        LANE_PAIR(rebacked_under_pin),
        LANE_PAIR(element_on_another_device),
        LANE_PAIR(exec_is_an_end),
        LANE_PAIR(exec_is_noticed),
        LANE_PAIR(dead_exporters_cost_no_descriptor),
    };

    if (getenv(IMPOSTOR) != NULL)
        return impostor();
    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
