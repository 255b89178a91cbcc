/* SPDX-License-Identifier: MIT */
#include "many.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hooks.h"
#include "tests/lane/exporter.h"

static CUmemGenericAllocationHandle handles[MANY_ALLOCATIONS];

static void allocate(void)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes =
            (CUmemAllocationHandleType)lane_plain.handle_types,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    uint64_t base = lane_reserve(MANY_ALLOCATIONS * CHUNK);
    unsigned i;

    for (i = 0; i < MANY_ALLOCATIONS; i++) {
        uint64_t at = base + i * CHUNK;

        CHECK_CU(cuMemCreate(&handles[i], CHUNK, &prop, 0));
        CHECK_CU(cuMemMap(at, CHUNK, 0, handles[i], 0));
        CHECK_CU(cuMemSetAccess(at, CHUNK, &desc, 1));
        lane_fill(sim_host_view(at, CHUNK), 0, CHUNK, i);
    }
    CHECK_CU(cuMemUnmap(base, MANY_ALLOCATIONS * CHUNK));
    CHECK_CU(cuMemAddressFree(base, MANY_ALLOCATIONS * CHUNK));
}

void many_map(uint64_t base, uint64_t first, uint64_t count)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    uint64_t i;

    if (handles[0] == 0)
        allocate();
    for (i = first; i < first + count; i++)
        CHECK_CU(vmml_cuMemMap(NULL, base + i * CHUNK, CHUNK, 0,
                               handles[many_allocation(i)], 0));
    CHECK_CU(vmml_cuMemSetAccess(NULL, base + first * CHUNK, count * CHUNK,
                                 &desc, 1));
}

void many_expect_border(CUdeviceptr mirror, uint64_t chunk, size_t part)
{
    uint8_t *bytes = sim_host_view(im_buffer(), 2 * part);

    memset(bytes, 0xee, 2 * part);
    CHECK_CU(
        im_post(im_buffer(), mirror + (chunk + 1) * CHUNK - part, 2 * part));
    CHECK_CU(cuStreamSynchronize(im_stream()));
    CHECK_EQUAL(lane_differs(bytes, CHUNK - part, part, many_allocation(chunk)),
                part);
    CHECK_EQUAL(lane_differs(bytes + part, 0, part, many_allocation(chunk + 1)),
                part);
}

void many_pair(void (*exporter)(int sock), void (*importer)(int sock))
{
    int sock[2];
    pid_t pid;

    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        exporter(sock[1]);
    close(sock[1]);
    importer(sock[0]);
}
