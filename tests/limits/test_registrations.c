/* SPDX-License-Identifier: MIT */
/*
 * Many registrations over few chunks: descriptors and driver calls by the
 * number of chunks.
 */
#include "many.h"

#include <stdlib.h>

#include "lane/state.h"

#define MAX_CHUNKS 1024

static struct vmml_chunk_view published[MAX_CHUNKS];

/* All calls of the driver that a registration or a pack may make. */
static long driver_calls(void)
{
    static const char *const names[] = {
        "cuPointerGetAttribute",
        "cuPointerGetAttributes",
        "cuMemGetAddressRange_v2",
        "cuMemGetAccess",
        "cuMemRetainAllocationHandle",
        "cuMemRelease",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuMemExportToShareableHandle",
        "cuDeviceGetUuid",
        "cuDeviceGetUuid_v2",
    };
    long sum = 0;
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        sum += sim_call_count(names[i]);
    return sum;
}

struct window {
    uint64_t base;
    uint64_t size;
};

static bool is_empty(void *arg)
{
    const struct window *window = arg;

    return lane_published(window->base, window->size, published, MAX_CHUNKS) ==
           0;
}

/* `count` registrations of `length` bytes, `stride` apart, over `chunks`
 * chunks, ended in their order or the other way round. */
static void views(unsigned chunks, unsigned count, size_t length, size_t stride,
                  bool reverse)
{
    vmml_uct_mem_h *memh = calloc(count, sizeof(*memh));
    struct window window = {.size = (chunks + 2ul) * CHUNK};
    uint8_t key[KEY_SIZE];
    unsigned fds, i;
    long first = 0, last = 0, calls;

    CHECK(memh != NULL && chunks <= MAX_CHUNKS);
    CHECK((count - 1) * stride + length <= chunks * CHUNK);
    lane_cuda(0);
    lane_ledger();
    window.base = lane_reserve(window.size);
    many_map(window.base, 0, chunks);
    fds = lane_fd_count();
    sim_reset_counts();
    for (i = 0; i < count; i++) {
        uint64_t at = window.base + i * stride;

        calls = driver_calls();
        memh[i] = lane_reg(at, length);
        CHECK(lane_pack(memh[i], at, length, key));
        CHECK_EQUAL(lane_reason(key), VMML_REASON_NONE);
        calls = driver_calls() - calls;
        first = i < count / 2 && calls > first ? calls : first;
        last = i >= count / 2 && calls > last ? calls : last;
    }
    /* One export and one descriptor for each chunk that a view touches. */
    CHECK_EQUAL(sim_call_count("cuMemExportToShareableHandle"),
                lane_published(window.base, window.size, published, 0));
    CHECK(lane_fd_count() - fds <= chunks);
    /* A registration costs what one among few did. */
    CHECK(last <= first);
    printf("%u registrations over %u chunks: at most %ld driver calls for one, "
           "%ld exports\n",
           count, chunks, first,
           sim_call_count("cuMemExportToShareableHandle"));
    fflush(stdout);

    /* Packed again, nothing changed: not one call. */
    sim_reset_counts();
    for (i = 0; i < count; i++)
        CHECK(lane_pack(memh[i], window.base + i * stride, length, key));
    CHECK_EQUAL(driver_calls(), 0);

    for (i = 0; i < count; i++)
        lane_dereg(memh[reverse ? count - 1 - i : i]);
    CHECK_EQUAL(driver_calls(), 0);
    CHECK_EQUAL(vmml_exporter.registration_count, 0);
    CHECK(lane_wait(is_empty, &window));
    CHECK(lane_fds_become(fds));
    CHECK_EQUAL(vmml_exporter.chunk_count, 0);
    free(memh);
}

/* 1,265 tensors of a 405B model in one region (NIXL PR 1498). */
static void tensors(void)
{
    views(96, 1265, 158 * 1000, 158 * 1000, false);
}

static void tensors_reversed(void)
{
    views(96, 1265, 158 * 1000, 158 * 1000, true);
}

static void views_of_200_kb(void)
{
    views(954, 10000, 200000, 200000, false);
}

static void views_of_200_kb_reversed(void)
{
    views(954, 10000, 200000, 200000, true);
}

/* Each view over all chunks: the cover of a chunk counts them. */
static void views_of_everything(void)
{
    views(64, 500, 64 * CHUNK - 500 * 512, 512, false);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(tensors),
        LANE_TEST(tensors_reversed),
        LANE_TEST(views_of_200_kb),
        LANE_TEST(views_of_200_kb_reversed),
        LANE_TEST(views_of_everything),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
