/* SPDX-License-Identifier: MIT */
/*
 * For compute-sanitizer: kernels on memory of VMM calls and of cudaMalloc.
 * With an argument a kernel writes behind the end of its memory.
 */
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>

static const size_t chunk = 2 << 20;
static const int chunk_count = 3;

#define MUST(call)                                                             \
    do {                                                                       \
        int result = (int)(call);                                              \
                                                                               \
        if (result != 0) {                                                     \
            printf("%s: %d\n", #call, result);                                 \
            return 1;                                                          \
        }                                                                      \
    } while (0)

__global__ static void fill(unsigned *memory, size_t count)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

    if (i < count)
        memory[i] = (unsigned)i * 2654435761u;
}

__global__ static void add(const unsigned *memory, size_t count,
                           unsigned long long *sum)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

    if (i < count)
        atomicAdd(sum, (unsigned long long)memory[i]);
}

static bool is_preloaded(void)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        found = found || strstr(line, "libvmmlane") != NULL;
    if (maps != NULL)
        fclose(maps);
    return found;
}

static int vmm(CUmemAllocationHandleType type, unsigned long long *sum)
{
    CUmemGenericAllocationHandle handles[chunk_count];
    CUmemAllocationProp prop = {};
    CUmemAccessDesc access = {};
    CUdeviceptr base, begin;
    size_t size, words = chunk_count * chunk / sizeof(unsigned);
    unsigned long long total = 0;
    int i;

    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = type;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST(cuMemAddressReserve(&base, chunk_count * chunk, 0, 0, 0));
    for (i = 0; i < chunk_count; i++) {
        MUST(cuMemCreate(&handles[i], chunk, &prop, 0));
        MUST(cuMemMap(base + i * chunk, chunk, 0, handles[i], 0));
    }
    MUST(cuMemSetAccess(base, chunk_count * chunk, &access, 1));
    MUST(cuMemGetAddressRange(&begin, &size, base + chunk + 1));
    printf("result range %zu %zu\n", (size_t)(begin - base), size);
    MUST(cudaMemset(sum, 0, sizeof(*sum)));
    fill<<<(words + 255) / 256, 256>>>((unsigned *)base, words);
    add<<<(words + 255) / 256, 256>>>((const unsigned *)base, words, sum);
    MUST(cudaMemcpy(&total, sum, sizeof(total), cudaMemcpyDeviceToHost));
    printf("result sum %llu\n", total);
    MUST(cuMemUnmap(base, chunk_count * chunk));
    for (i = 0; i < chunk_count; i++)
        MUST(cuMemRelease(handles[i]));
    MUST(cuMemAddressFree(base, chunk_count * chunk));
    return 0;
}

int main(int argc, char **argv)
{
    const size_t count = 1000;
    unsigned long long *sum;
    unsigned *plain;

    (void)argv;
    printf("preloaded main %s\n", is_preloaded() ? "yes" : "no");
    MUST(cudaMalloc(&sum, sizeof(*sum)));
    MUST(cudaMalloc(&plain, count * sizeof(*plain)));
    if (vmm(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, sum) != 0 ||
        vmm(CU_MEM_HANDLE_TYPE_NONE, sum) != 0)
        return 1;
    fill<<<4, 256>>>(plain, argc > 1 ? count + 4 : count);
    printf("result plain %d\n", (int)cudaDeviceSynchronize());
    if (argc > 1)
        return 0;
    MUST(cudaFree(plain));
    MUST(cudaFree(sum));
    return 0;
}
