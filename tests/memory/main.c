/* SPDX-License-Identifier: MIT */
#include "memory.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

const struct asker *uct_cuda;
const struct asker *ucm_cuda;
const struct asker *named;

const struct memory_sim *memory_sim;

void memory_need_sim(void)
{
    if (memory_sim == NULL)
        _Exit(77);
}

void memory_count_anew(void)
{
    if (memory_sim != NULL)
        memory_sim->reset_counts();
}

long memory_calls(const char *name, long otherwise)
{
    return memory_sim != NULL ? memory_sim->call_count(name) : otherwise;
}

/* By dlsym, since a real driver has none of it. */
static void find_sim(void)
{
    static struct memory_sim sim;

    sim.call_count = dlsym(RTLD_DEFAULT, "sim_call_count");
    if (sim.call_count == NULL)
        return;
    sim.reset_counts = preload_symbol(RTLD_DEFAULT, "sim_reset_counts");
    sim.fail = preload_symbol(RTLD_DEFAULT, "sim_fail");
    sim.clear_failures = preload_symbol(RTLD_DEFAULT, "sim_clear_failures");
    memory_sim = &sim;
}

void check_success(CUresult rc, const char *what)
{
    if (rc == CUDA_SUCCESS)
        return;
    printf("%s: error %d\n", what, (int)rc);
    fflush(stdout);
    _Exit(1);
}

CUmemAllocationProp memory_prop(CUmemAllocationHandleType types)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = types;
    return prop;
}

CUdeviceptr memory_reserve(unsigned chunks, CUdeviceptr hint)
{
    CUdeviceptr ptr = 0;

    CHECK_CU(cuMemAddressReserve(&ptr, chunks * CHUNK, 0, hint, 0));
    return ptr;
}

CUmemGenericAllocationHandle memory_create(unsigned chunks,
                                           const CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle = 0;

    CHECK_CU(cuMemCreate(&handle, chunks * CHUNK, prop, 0));
    return handle;
}

void memory_map(CUdeviceptr ptr, unsigned chunks,
                CUmemGenericAllocationHandle handle, int device)
{
    CUmemAccessDesc access;

    CHECK_CU(cuMemMap(ptr, chunks * CHUNK, 0, handle, 0));
    CHECK_CU(cuMemRelease(handle));
    if (device < 0)
        return;
    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK_CU(cuMemSetAccess(ptr, chunks * CHUNK, &access, 1));
}

void memory_fill(CUdeviceptr ptr, unsigned chunks)
{
    CUmemAllocationProp prop =
        memory_prop(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    unsigned i;

    for (i = 0; i < chunks; i++)
        memory_map(ptr + i * CHUNK, 1, memory_create(1, &prop), 0);
}

void memory_unmap(CUdeviceptr ptr, unsigned chunks)
{
    CHECK_CU(cuMemUnmap(ptr, chunks * CHUNK));
}

vmml_ucs_status_t uct_md_mem_query(vmml_uct_md_h md, const void *address,
                                   size_t length, void *attr);

struct asker_answer memory_query(CUdeviceptr address, size_t length)
{
    static const struct vmml_uct_component component = {"cuda_cpy"};
    struct asker_md md = {{NULL, &component}, uct_cuda};
    struct asker_answer answer = {CUDA_ERROR_UNKNOWN, 0, 0};

    CHECK_INT(uct_md_mem_query(&md.md, (const void *)(uintptr_t)address, length,
                               &answer),
              VMML_UCS_OK);
    return answer;
}

void check_range(struct asker_answer answer, CUdeviceptr base, size_t size)
{
    CHECK_INT(answer.rc, CUDA_SUCCESS);
    CHECK_INT((answer.base - base) / 4096, 0);
    CHECK_INT(answer.base, base);
    CHECK_INT(answer.size, size);
}

/* Beside the program. */
static const struct asker *open_asker(const char *file)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    size_t folder, room;

    CHECK(length > 0);
    path[length] = '\0';
    folder = (size_t)(strrchr(path, '/') + 1 - path);
    room = sizeof(path) - folder;
    CHECK(snprintf(path + folder, room, "%s", file) < (int)room);
    return preload_symbol(preload_open(path), "asker");
}

int main(int argc, char **argv)
{
    CUcontext context;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2)
        return 2;
    if (!preload_is_shim((const void *)cuMemMap))
        return 77;
    find_sim();
    uct_cuda = open_asker("libuct_cuda.so.0");
    ucm_cuda = open_asker("libucm_cuda.so.0");
    named = open_asker("libasker_named.so");
    CHECK_CU(cuInit(0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_CU(cuCtxSetCurrent(context));
#define MEMORY_RUN(name, function)                                             \
    if (strcmp(argv[1], name) == 0) {                                          \
        function();                                                            \
        return 0;                                                              \
    }
    MEMORY_CASES(MEMORY_RUN)
    return 2;
}
