/* SPDX-License-Identifier: MIT */
/*
 * The exporter while mappings change: at every moment of a pack, in two unmaps
 * at a time, past the hooks, and where a pack and its registration are of
 * different ranges.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "lane/state.h"

#define MANY 16u

static struct vmml_chunk_view chunks[MANY];
static uint8_t key[KEY_SIZE];

static int pack(vmml_uct_mem_h memh, uint64_t address, size_t length)
{
    CHECK(lane_pack(memh, address, length, key));
    return lane_reason(key);
}

static size_t published(uint64_t base)
{
    return lane_published(base, MANY * CHUNK, chunks, MANY);
}

static bool is_published(uint64_t base, uint64_t address)
{
    size_t count = published(base);
    size_t i;

    for (i = 0; i < count; i++)
        if (chunks[i].address == address)
            return true;
    return false;
}

/* Every chunk that is published is what is mapped there. */
static void check_published(uint64_t base)
{
    size_t count = published(base);
    size_t i;

    for (i = 0; i < count; i++)
        CHECK(lane_is_present(&chunks[i]));
}

/* --- at every moment of a pack -------------------------------------------- */

struct change {
    uint64_t base;
    unsigned step;
    bool after;
    bool back;    /* and map it anew */
    bool changed; /* has happened */
};

static void unmap_first(void *arg)
{
    const struct change *change = arg;

    CHECK_CU(lane_unmap(change->base, CHUNK));
}

static void map_first(void *arg)
{
    const struct change *change = arg;

    lane_map(change->base, CHUNK, 2);
}

/* Another thread has published what it mapped: no importer may lose it. */
static void back_and_published(void *arg)
{
    const struct change *change = arg;
    uint8_t other[KEY_SIZE];
    vmml_uct_mem_h memh;

    map_first(arg);
    memh = lane_reg(change->base, CHUNK);
    CHECK(lane_pack(memh, change->base, CHUNK, other));
    CHECK_EQUAL(lane_reason(other), VMML_REASON_NONE);
}

static void replace_at(const struct lane_call *call, void *arg)
{
    struct change *change = arg;

    if (!change->changed && call->after == change->after &&
        call->step >= change->step) {
        change->changed = true;
        lane_on_thread(unmap_first, change);
        lane_on_thread(back_and_published, change);
    }
    if (change->changed)
        CHECK(is_published(change->base, change->base));
}

static void replaced_at_every_moment(void)
{
    struct change change = {.step = 1};
    vmml_uct_mem_h memh;
    int after;

    lane_cuda(0);
    do {
        for (after = 0; after < 2; after++) {
            change.base = lane_reserve(MANY * CHUNK);
            lane_map_run(change.base, CHUNK, 2, 1);
            memh = lane_reg(change.base, 2 * CHUNK);
            change.after = after;
            change.changed = false;
            lane_watch(replace_at, &change);
            CHECK_EQUAL(pack(memh, change.base, 2 * CHUNK), VMML_REASON_NONE);
            lane_watch(NULL, NULL);
            CHECK_EQUAL(published(change.base), 2);
            check_published(change.base);
            lane_dereg(memh);
        }
        change.step++;
    } while (change.changed);
    CHECK(change.step > 10);
}

/* From the return of the unmap on no importer finds the chunk. */
static void change_at(const struct lane_call *call, void *arg)
{
    struct change *change = arg;

    if (!change->changed && call->after == change->after &&
        call->step >= change->step) {
        change->changed = true;
        lane_on_thread(unmap_first, change);
        CHECK(!is_published(change->base, change->base));
        if (change->back)
            lane_on_thread(map_first, change);
    }
    if (change->changed && !change->back)
        CHECK(!is_published(change->base, change->base));
}

static void unmap_at_every_moment(void)
{
    struct change change = {.step = 1};
    vmml_uct_mem_h memh;
    unsigned fds = 0;
    int round;

    lane_cuda(0);
    do {
        for (round = 0; round < 4; round++) {
            change.base = lane_reserve(MANY * CHUNK);
            lane_map_run(change.base, CHUNK, 2, 1);
            memh = lane_reg(change.base, 2 * CHUNK);
            change.after = round & 1;
            change.back = round & 2;
            change.changed = false;
            lane_watch(change_at, &change);
            pack(memh, change.base, 2 * CHUNK);
            lane_watch(NULL, NULL);
            check_published(change.base);
            CHECK_EQUAL(pack(memh, change.base, 2 * CHUNK), VMML_REASON_NONE);
            CHECK_EQUAL(published(change.base),
                        change.changed && !change.back ? 1 : 2);
            check_published(change.base);
            CHECK_CU(lane_unmap(change.base, 2 * CHUNK));
            lane_dereg(memh);
            lane_free_address(change.base, MANY * CHUNK);
            if (fds == 0)
                fds = lane_fd_count();
            CHECK_EQUAL(lane_fd_count(), fds);
        }
        change.step++;
    } while (change.changed);
    CHECK(change.step > 10);
}

/* --- two unmaps at a time ------------------------------------------------- */

static void unmap_during(const struct lane_call *call, void *arg)
{
    struct change *change = arg;

    if (strcmp(call->name, "cuMemUnmap") == 0 && !call->after) {
        lane_watch(NULL, NULL);
        lane_refuse_unmap(false);
        lane_on_thread(unmap_first, change);
        lane_refuse_unmap(true);
    }
}

/* The one that began first is refused, because the other has done it. */
static void refused_beside_another(void)
{
    struct change change;
    vmml_uct_mem_h memh;

    lane_cuda(0);
    change.base = lane_reserve(MANY * CHUNK);
    lane_map_run(change.base, CHUNK, 2, 1);
    memh = lane_reg(change.base, 2 * CHUNK);
    CHECK_EQUAL(pack(memh, change.base, 2 * CHUNK), VMML_REASON_NONE);
    lane_watch(unmap_during, &change);
    lane_refuse_unmap(true);
    CHECK(lane_unmap(change.base, 2 * CHUNK) != CUDA_SUCCESS);
    lane_watch(NULL, NULL);
    lane_refuse_unmap(false);
    CHECK_EQUAL(published(change.base), 1);
    CHECK_EQUAL(chunks[0].address, change.base + CHUNK);
    check_published(change.base);
}

static bool is_empty(void *arg)
{
    return published(*(uint64_t *)arg) == 0;
}

/* An idle chunk whose unmap is refused is closed all the same. */
static void refused_while_idle(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;
    unsigned fds;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map(base, 2 * CHUNK, 1);
    lane_ledger();
    fds = lane_fd_count();
    memh = lane_reg(base, CHUNK);
    CHECK_EQUAL(pack(memh, base, CHUNK), VMML_REASON_NONE);
    lane_dereg(memh);
    CHECK(lane_unmap(base, CHUNK) != CUDA_SUCCESS);
    CHECK_EQUAL(published(base), 1);
    CHECK(lane_wait(is_empty, &base));
    CHECK_EQUAL(lane_fd_count(), fds);
}

/* --- past the hooks ------------------------------------------------------- */

/* A registration with a hole that is filled later, by whichever way. */
static void hole_is_filled(void)
{
    static const struct lane_memory no_access = {
        .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .no_access = true};
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 2, 1);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    lane_map_as(base + 2 * CHUNK, CHUNK, 1, &no_access);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 2);
    CHECK_CU(vmml_cuMemSetAccess(NULL, base + 2 * CHUNK, CHUNK, &desc, 1));
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 3);
    lane_map_as(base + 3 * CHUNK, CHUNK, 1, &lane_unseen);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 4);
}

/* A map that is seen tells of an unmap that was not. */
static void map_tells_of_an_unmap(void)
{
    vmml_uct_mem_h memh;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 3, 1);
    memh = lane_reg(base, 3 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 3 * CHUNK), VMML_REASON_NONE);
    CHECK_CU(lane_unmap_unseen(base + CHUNK, CHUNK));
    lane_map(base + CHUNK, CHUNK, 2);
    CHECK(!is_published(base, base + CHUNK));
    CHECK_EQUAL(pack(memh, base, 3 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 3);
    check_published(base);
}

/* What one registration finds stale, others have not verified any more. */
static void stale_for_others_too(void)
{
    vmml_uct_mem_h whole, part;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map(base, 4 * CHUNK, 1);
    whole = lane_reg(base, 4 * CHUNK);
    CHECK_EQUAL(pack(whole, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_CU(lane_unmap_unseen(base, 4 * CHUNK));
    lane_map_as(base, CHUNK, 2, &lane_unseen);
    lane_map_as(base + CHUNK, 3 * CHUNK, 2, &lane_unseen);
    part = lane_reg(base, CHUNK);
    CHECK_EQUAL(pack(part, base, CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 1);
    CHECK_EQUAL(pack(whole, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 2);
    check_published(base);
}

/* --- requests that leave their registration ------------------------------- */

static void request_beyond_its_registration(void)
{
    vmml_uct_mem_h memh, other;
    uint64_t base;

    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 4, 1);
    memh = lane_reg(base, 2 * CHUNK);
    other = lane_reg(base + 2 * CHUNK, 2 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 4);
    lane_dereg(other);
    while (published(base) != 2)
        usleep(10000);
    /* Published again for the next such request, and closed again. */
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 4);
    while (published(base) != 2)
        usleep(10000);
}

/* The first chunk fills its reservation: UCX would give a key of that alone. */
static void native_only_where_it_covers(void)
{
    uint64_t both, other;
    vmml_uct_mem_h memh;

    lane_cuda(0);
    both = lane_reserve(4 * CHUNK);
    CHECK_CU(cuMemAddressFree(both, 4 * CHUNK));
    lane_reserve_at(both, 2 * CHUNK);
    other = both + 2 * CHUNK;
    lane_reserve_at(other, 2 * CHUNK);
    lane_map(both, 2 * CHUNK, 1);
    lane_map(other, 2 * CHUNK, 1);
    memh = lane_reg_in(lane_md_native(), both, 3 * CHUNK);
    {
        struct vmml_pack now;

        CHECK(vmml_lane_begin_pack(lane_md_native(), memh,
                                   (void *)(uintptr_t)both, 3 * CHUNK, &now));
        CHECK_EQUAL(now.handle[10], VMML_REASON_WINDOW);
    }
}

/* UCX's progress thread may have no context, or one of another device. */
static void no_context_is_needed(void)
{
    CUcontext context;
    vmml_uct_mem_h memh;
    uint64_t base;

    CHECK(setenv("VMMLANE_SIM_DEVICES", "2", 1) == 0);
    lane_cuda(0);
    base = lane_reserve(MANY * CHUNK);
    lane_map_run(base, CHUNK, 2, 1);
    CHECK_CU(cuCtxPopCurrent_v2(&context));
    memh = lane_reg(base, 2 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 2 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 2);
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK_CU(cuCtxPushCurrent_v2(context));
    lane_map_run(base + 2 * CHUNK, CHUNK, 2, 1);
    memh = lane_reg(base, 4 * CHUNK);
    CHECK_EQUAL(pack(memh, base, 4 * CHUNK), VMML_REASON_NONE);
    CHECK_EQUAL(published(base), 4);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(unmap_at_every_moment),
        LANE_TEST(replaced_at_every_moment),
        LANE_TEST(refused_beside_another),
        LANE_TEST(refused_while_idle),
        LANE_TEST(hole_is_filled),
        LANE_TEST(map_tells_of_an_unmap),
        LANE_TEST(stale_for_others_too),
        LANE_TEST(request_beyond_its_registration),
        LANE_TEST(native_only_where_it_covers),
        LANE_TEST(no_context_is_needed),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
