/* SPDX-License-Identifier: MIT */
/* UCX's memory queries: what they are told, and nobody else. */
#include "memory.h"

#include <string.h>
#include <time.h>

/* A libuct of 1.22 or newer: a request inside one chunk gets that chunk. */
#ifdef UCT_V2
static const bool per_chunk = true;
#else
static const bool per_chunk = false;
#endif

/* A request that always gets the extent: `chunk` and the byte before it, or,
 * where it is the first one, the byte behind it. */
static struct asker_answer query_extent(CUdeviceptr base, unsigned chunk,
                                        unsigned count)
{
    CUdeviceptr address = base + chunk * CHUNK;

    if (!per_chunk || count == 1)
        return memory_query(address + 100, 1);
    if (chunk == 0)
        return memory_query(address, CHUNK + 1);
    return memory_query(address - 1, 2);
}

static void check_extent(CUdeviceptr base, unsigned count)
{
    CHECK_RANGE(query_extent(base, 0, count), base, count * CHUNK);
    CHECK_RANGE(query_extent(base, count / 2, count), base, count * CHUNK);
    CHECK_RANGE(query_extent(base, count - 1, count), base, count * CHUNK);
    CHECK_RANGE(memory_query(base, count * CHUNK), base, count * CHUNK);
    CHECK_RANGE(memory_query(base + count * CHUNK - 1, 1),
                per_chunk ? base + (count - 1) * CHUNK : base,
                per_chunk ? CHUNK : count * CHUNK);
}

void case_extents(void)
{
    static const unsigned counts[] = {1, 2, 3, 26, 92, 512};
    CUdeviceptr base;
    unsigned i;

    for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        base = memory_reserve(counts[i] + 8, 0) + 3 * CHUNK;
        memory_fill(base, counts[i]);
        check_extent(base, counts[i]);
    }
}

/* Good chunks at 0-2 and 4-6, what is to be tested at 3. */
static CUdeviceptr place(void)
{
    CUdeviceptr base = memory_reserve(16, 0) + CHUNK;

    memory_fill(base, 3);
    memory_fill(base + 4 * CHUNK, 3);
    return base;
}

static void check_ended(CUdeviceptr base)
{
    CHECK_RANGE(query_extent(base, 2, 3), base, 3 * CHUNK);
    CHECK_RANGE(query_extent(base + 4 * CHUNK, 0, 3), base + 4 * CHUNK,
                3 * CHUNK);
    CHECK_RANGE(memory_query(base + 2 * CHUNK, 3 * CHUNK), base, 3 * CHUNK);
    check_extent(base, 3);
    check_extent(base + 4 * CHUNK, 3);
}

static CUmemGenericAllocationHandle import_one(void)
{
    CUmemAllocationProp prop =
        memory_prop(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle = memory_create(1, &prop), imported;
    int fd = -1;

    CHECK_CU(cuMemExportToShareableHandle(
        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK_CU(cuMemImportFromShareableHandle(
        &imported, (void *)(uintptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK_CU(cuMemRelease(handle));
    return imported;
}

void case_ends(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUdeviceptr base;

    base = place();
    check_ended(base); /* a hole */
    CHECK_INT(memory_query(base + 3 * CHUNK, 1).rc, CUDA_ERROR_NOT_FOUND);

    prop = memory_prop(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    memory_map(base + 3 * CHUNK, 1, memory_create(1, &prop), -1);
    check_ended(base); /* no access */

    base = place();
    prop = memory_prop(CU_MEM_HANDLE_TYPE_NONE);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    memory_map(base + 3 * CHUNK, 1, memory_create(1, &prop), 0);
    check_ended(base); /* host memory */

    base = place();
    prop = memory_prop(CU_MEM_HANDLE_TYPE_NONE);
    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    if (cuMemCreate(&handle, CHUNK, &prop, 0) == CUDA_SUCCESS) {
        memory_map(base + 3 * CHUNK, 1, handle, 0);
        check_ended(base); /* not shareable */
    }

    base = place();
    memory_map(base + 3 * CHUNK, 1, import_one(), 0);
    check_ended(base); /* imported */
    CHECK_RANGE(memory_query(base + 3 * CHUNK, 1), base + 3 * CHUNK, CHUNK);

    base = place();
    memory_fill(base + 3 * CHUNK, 1);
    check_extent(base, 7);
}

void case_two_devices(void)
{
    CUmemAllocationProp prop =
        memory_prop(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr base;
    int devices = 0;

    CHECK_CU(cuDeviceGetCount(&devices));
    if (devices < 2)
        _Exit(77);
    base = place();
    prop.location.id = 1;
    memory_map(base + 3 * CHUNK, 1, memory_create(1, &prop), 1);
    check_ended(base);
}

/* Two reservations back to back, both full. */
void case_neighbours(void)
{
    CUdeviceptr first = memory_reserve(8, 0), second;

    CHECK_CU(cuMemAddressFree(first, 8 * CHUNK));
    first = memory_reserve(4, first);
    second = memory_reserve(4, first + 4 * CHUNK);
    CHECK(second == first + 4 * CHUNK);
    memory_fill(first, 4);
    memory_fill(second, 4);
    check_extent(first, 4);
    check_extent(second, 4);
    CHECK_RANGE(memory_query(first + 2 * CHUNK, 4 * CHUNK), first, 4 * CHUNK);
}

void case_changes(void)
{
    CUdeviceptr base = memory_reserve(200, 0) + CHUNK;
    unsigned size = 10, i;

    memory_fill(base, size);
    check_extent(base, size);
    for (i = 1; i <= 64; i *= 8) {
        memory_fill(base + size * CHUNK, i);
        size += i;
        check_extent(base, size);
    }
    memory_unmap(base + 40 * CHUNK, 3);
    check_extent(base, 40);
    check_extent(base + 43 * CHUNK, size - 43);
    for (i = 0; i < 4; i++) {
        memory_fill(base + 40 * CHUNK, 3);
        check_extent(base, size);
        memory_unmap(base + 40 * CHUNK, 3);
        check_extent(base, 40);
    }
    memory_unmap(base, 40);
    memory_unmap(base + 43 * CHUNK, size - 43);
    CHECK_INT(memory_query(base, 1).rc, CUDA_ERROR_NOT_FOUND);
}

/* Every byte of an answer is mapped, by the driver's own word. */
void case_readable(void)
{
    CUdeviceptr base = memory_reserve(2000, 0), at, chunk = 0;
    struct asker_answer answer;
    size_t size = 0;

    memory_fill(base, 300);
    memory_fill(base + 310 * CHUNK, 200);
    answer = memory_query(base + 300 * CHUNK - 1024, 2048);
    CHECK_RANGE(answer, base, 300 * CHUNK);
    for (at = answer.base; at < answer.base + answer.size; at += CHUNK) {
        CHECK_CU(cuMemGetAddressRange_v2(&chunk, &size, at));
        CHECK_INT(chunk, at);
        CHECK_INT(size, CHUNK);
    }
}

static long calls(void)
{
    static const char *names[] = {"cuMemGetAddressRange_v2",
                                  "cuPointerGetAttribute",
                                  "cuPointerGetAttributes",
                                  "cuMemRetainAllocationHandle",
                                  "cuMemRelease",
                                  "cuMemGetAccess",
                                  "cuMemGetAllocationPropertiesFromHandle",
                                  "cuMemGetHandleForAddressRange"};
    long sum = 0;
    unsigned i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        sum += memory_calls(names[i], 0);
    return sum;
}

static double microseconds(void)
{
    struct timespec now;

    CHECK_INT(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* For the reader: no limit is tested. */
static void print_times(CUdeviceptr base, unsigned chunks)
{
    const unsigned count = 20000;
    const size_t size = chunks * CHUNK;
    double begin, plain, inside, crossing;
    struct asker_answer answer;
    unsigned i;

    begin = microseconds();
    for (i = 0; i < count; i++)
        CHECK_CU(uct_cuda->range(&answer.base, &answer.size,
                                 base + (i * 8192ull) % size));
    plain = microseconds() - begin;
    begin = microseconds();
    for (i = 0; i < count; i++)
        CHECK_INT(memory_query(base + (i * 8192ull) % size, 8192).rc,
                  CUDA_SUCCESS);
    inside = microseconds() - begin;
    begin = microseconds();
    for (i = 0; i < count; i++)
        CHECK_INT(memory_query(base, size).rc, CUDA_SUCCESS);
    crossing = microseconds() - begin;
    printf("%u chunks: driver %.3f us, query %.3f us, of all %.3f us\n", chunks,
           plain / count, inside / count, crossing / count);
}

/* UCX's emulation asks once for each 8 KiB. */
void case_cost(void)
{
    static const unsigned counts[] = {1, 8, 26, 256};
    struct asker_answer answer;
    const size_t stride = (size_t)8192 * 37 - 100;
    CUdeviceptr base, at;
    unsigned i;
    long before;

    for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        base = memory_reserve(counts[i], 0);
        memory_fill(base, counts[i]);
        (void)memory_query(base, counts[i] * CHUNK);
        for (at = base; at < base + counts[i] * CHUNK; at += stride) {
            before = calls();
            answer = memory_query(at, 8192);
            CHECK_INT(answer.rc, CUDA_SUCCESS);
            /* One that crosses a border is a registration, and looks at a few
             * chunks more. */
            if ((at - base) / CHUNK == (at - base + 8191) / CHUNK)
                CHECK(calls() - before <= (per_chunk ? 1 : 4));
            else
                CHECK(calls() - before <= 16);
        }
        print_times(base, counts[i]);
    }
}

void case_range_off(void)
{
    CUdeviceptr base = memory_reserve(4, 0);

    memory_fill(base, 4);
    CHECK_RANGE(memory_query(base + CHUNK, 2 * CHUNK), base + CHUNK, CHUNK);
}

void case_range_request(void)
{
    CUdeviceptr base = memory_reserve(8, 0), plain = 0;

    memory_fill(base, 4);
    CHECK_RANGE(memory_query(base + CHUNK - 512, 1024), base + CHUNK - 512,
                1024);
    CHECK_RANGE(memory_query(base + CHUNK + 512, 10), base + CHUNK + 512, 10);
    CHECK_RANGE(memory_query(base, 4 * CHUNK), base, 4 * CHUNK);
    CHECK_RANGE(memory_query(base + 3 * CHUNK, 2 * CHUNK), base + 3 * CHUNK,
                CHUNK);
    CHECK_CU(cuMemAlloc_v2(&plain, 3 * CHUNK));
    CHECK_RANGE(memory_query(plain + 100, 10), plain, 3 * CHUNK);
}

static struct asker_answer ask(const struct asker *who, CUdeviceptr ptr)
{
    struct asker_answer answer = {CUDA_ERROR_UNKNOWN, 0, 0};

    answer.rc = who->range(&answer.base, &answer.size, ptr);
    return answer;
}

/* Who is not UCX, or is not in a query, gets the driver's answer. */
void case_others(void)
{
    CUdeviceptr base = memory_reserve(4, 0), plain = 0, chunk = 0;
    size_t size = 0;

    memory_fill(base, 4);
    CHECK_RANGE(memory_query(base, 4 * CHUNK), base, 4 * CHUNK);
    CHECK_CU(cuMemGetAddressRange_v2(&chunk, &size, base + CHUNK + 5));
    CHECK_INT(chunk, base + CHUNK);
    CHECK_INT(size, CHUNK);
    size = 0;
    CHECK_CU(cuMemGetAddressRange_v2(NULL, &size, base + CHUNK + 5));
    CHECK_INT(size, CHUNK);
    CHECK_RANGE(ask(named, base + CHUNK + 5), base + CHUNK, CHUNK);
    CHECK_RANGE(ask(ucm_cuda, base + CHUNK + 5), base + CHUNK, CHUNK);
    CHECK_RANGE(ask(uct_cuda, base + CHUNK + 5), base + CHUNK, CHUNK);
    CHECK_CU(cuMemAlloc_v2(&plain, 3 * CHUNK));
    CHECK_RANGE(memory_query(plain + 5, 1), plain, 3 * CHUNK);
}

/* VMMLANE_RANGE_CALLERS. */
void case_named(void)
{
    CUdeviceptr base = memory_reserve(4, 0);
    size_t size = 0;

    memory_fill(base, 4);
    CHECK_RANGE(ask(named, base + CHUNK + 5), base, 4 * CHUNK);
    CHECK_CU(named->range(NULL, &size, base + CHUNK));
    CHECK_INT(size, 4 * CHUNK);
    CHECK_RANGE(ask(uct_cuda, base + CHUNK + 5), base + CHUNK, CHUNK);
    CHECK_CU(cuMemGetAddressRange_v2(NULL, &size, base + CHUNK + 5));
    CHECK_INT(size, CHUNK);
    CHECK_INT(ask(named, base - CHUNK).rc,
              cuMemGetAddressRange_v2(NULL, &size, base - CHUNK));
}
