/* SPDX-License-Identifier: MIT */
#include "bench.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS      1001
#define SIDES_MAX   8
#define ALLOCATIONS 64

bool bench_counted_only;
const struct bench_module *bench_uct_cuda, *bench_ucm;

static struct null_calls *null;

void bench_figure(const char *figure, const char *of, double value,
                  const char *unit, const char *must)
{
    printf("figure\t%s\t%s\t%.6g\t%s\t%s\n", figure, of, value, unit, must);
    fflush(stdout);
}

const char *bench_text(const char *format, ...)
{
    static char texts[64][128];
    static unsigned next;
    char *text = texts[next++ % 64];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(texts[0]), format, arguments);
    va_end(arguments);
    return text;
}

const char *bench_many(unsigned long count, const char *what)
{
    if (count >= 1000)
        return bench_text("%lu,%03lu %s", count / 1000, count % 1000, what);
    return bench_text("%lu %s", count, what);
}

static double ns_of(clockid_t clock)
{
    struct timespec now = {0, 0};

    CHECK(clock_gettime(clock, &now) == 0);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

double bench_spent(void)
{
    return ns_of(CLOCK_PROCESS_CPUTIME_ID);
}

static int compare(const void *a, const void *b)
{
    const double *left = a, *right = b;

    return (*left > *right) - (*left < *right);
}

void bench_in_turn(const struct bench_side *sides, size_t count,
                   unsigned long times, double *ns)
{
    static double taken[SIDES_MAX][ROUNDS];
    unsigned round;
    double begin;
    size_t i;

    CHECK(count <= SIDES_MAX);
    for (i = 0; i < count; i++)
        sides[i].run(sides[i].arg, times); /* not counted: caches */
    for (round = 0; round < ROUNDS; round++)
        for (i = 0; i < count; i++) {
            begin = ns_of(CLOCK_MONOTONIC);
            sides[i].run(sides[i].arg, times);
            taken[i][round] = (ns_of(CLOCK_MONOTONIC) - begin) / (double)times;
        }
    for (i = 0; i < count; i++) {
        qsort(taken[i], ROUNDS, sizeof(taken[i][0]), compare);
        ns[i] = taken[i][ROUNDS / 2];
    }
}

/* Beside the program. */
static const struct bench_module *load(const char *file)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    size_t folder;
    void *handle;
    void *module;

    CHECK(length > 0);
    path[length] = '\0';
    folder = (size_t)(strrchr(path, '/') + 1 - path);
    CHECK(snprintf(path + folder, sizeof(path) - folder, "%s", file) <
          (int)(sizeof(path) - folder));
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(handle != NULL);
    module = dlsym(handle, "bench_module");
    CHECK(module != NULL);
    return module;
}

void bench_start(void)
{
    CUcontext context;

    bench_uct_cuda = load("libuct_cuda.so.0");
    bench_ucm = load("libucm_cuda.so.0");
    null = dlsym(RTLD_DEFAULT, "null_calls");
    CHECK_CU(cuInit(0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_CU(cuCtxSetCurrent(context));
}

const struct null_calls *bench_calls(void)
{
    return null;
}

unsigned long bench_all_calls(void)
{
    return null == NULL ? 0 : null->all;
}

CUdeviceptr bench_reserve(unsigned long chunks)
{
    CUdeviceptr base;

    CHECK_CU(cuMemAddressReserve(&base, chunks * CHUNK, 0, 0, 0));
    return base;
}

static CUmemGenericAllocationHandle allocation(unsigned long i)
{
    static CUmemGenericAllocationHandle handles[ALLOCATIONS];
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };

    i %= ALLOCATIONS;
    if (handles[i] == 0)
        CHECK_CU(cuMemCreate(&handles[i], CHUNK, &prop, 0));
    return handles[i];
}

void bench_map(CUdeviceptr base, unsigned long first, unsigned long count)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    unsigned long i;

    for (i = first; i < first + count; i++)
        CHECK_CU(cuMemMap(base + i * CHUNK, CHUNK, 0, allocation(i), 0));
    CHECK_CU(cuMemSetAccess(base + first * CHUNK, count * CHUNK, &desc, 1));
}

void bench_unmap(CUdeviceptr base, unsigned long first, unsigned long count)
{
    CHECK_CU(cuMemUnmap(base + first * CHUNK, count * CHUNK));
}

vmml_uct_mem_h bench_reg(CUdeviceptr ptr, size_t length)
{
    vmml_uct_mem_h memh;

    CHECK(uct_md_mem_reg_v2(bench_uct_cuda->ipc_md, (void *)ptr, length, NULL,
                            &memh) == VMML_UCS_OK);
    return memh;
}

void bench_dereg(vmml_uct_mem_h memh)
{
    struct vmml_uct_mem_dereg_params params = {
        .field_mask = VMML_UCT_DEREG_FIELD_MEMH,
        .memh = memh,
    };

    CHECK(uct_md_mem_dereg_v2(bench_uct_cuda->ipc_md, &params) == VMML_UCS_OK);
}

void bench_pack(vmml_uct_mem_h memh, CUdeviceptr ptr, size_t length,
                uint8_t key[BENCH_KEY])
{
    CHECK(uct_md_mkey_pack_v2(bench_uct_cuda->ipc_md, memh, (void *)ptr, length,
                              NULL, key) == VMML_UCS_OK);
}

struct bench_range bench_query(CUdeviceptr ptr, size_t length)
{
    struct bench_range range = {CUDA_ERROR_UNKNOWN, 0, 0};

    CHECK(uct_md_mem_query(bench_uct_cuda->copy_md, (void *)ptr, length,
                           &range) == VMML_UCS_OK);
    CHECK_CU(range.result);
    return range;
}

static size_t status_of(const char *name)
{
    FILE *status = fopen("/proc/self/status", "re");
    size_t kib = 0, length = strlen(name);
    char line[256];

    CHECK(status != NULL);
    while (fgets(line, sizeof(line), status) != NULL)
        if (strncmp(line, name, length) == 0)
            kib = strtoul(line + length, NULL, 10);
    fclose(status);
    return kib << 10;
}

size_t bench_private(void)
{
    return status_of("RssAnon:");
}

size_t bench_shared(void)
{
    return status_of("RssShmem:");
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} measurements[] = {
    {"doors", bench_doors},
    {"extents", bench_extents},
    {"lane", bench_lane},
    {"registrations", bench_registrations},
};

int main(int argc, char **argv)
{
    size_t i;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "--counted") == 0) {
        bench_counted_only = true;
        argc--;
        argv++;
    }
    for (i = 0; argc > 1 && i < sizeof(measurements) / sizeof(*measurements);
         i++)
        if (strcmp(argv[1], measurements[i].name) == 0)
            return measurements[i].run(argc - 2, argv + 2);
    fprintf(stderr, "usage: bench-cpu [--counted] doors | extents [CHUNKS ...] "
                    "| lane [CHUNKS ...] | registrations\n");
    return 2;
}
