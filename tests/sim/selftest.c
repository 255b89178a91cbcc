/*
 * What the simulated driver offers to tests: settings, failures, counts,
 * re-entry, accounting. Each case runs in a process of its own, since settings
 * are read once and some cases end the process.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim.h"

#define GRANULE ((size_t)2 << 20)
#define FD_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* In a child, a failed check says where and ends it: cmocka's own would jump
 * into the parent's frames. */
#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#define GOOD(call) CHECK((call) == CUDA_SUCCESS)

/* ---- running a case ---- */

static pid_t launch(void (*body)(int sock), int sock, const char *settings)
{
    char copy[512], *setting, *rest = copy;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid != 0) {
        return pid;
    }
    alarm(60); /* a failed check elsewhere must not leave it waiting */
    snprintf(copy, sizeof(copy), "%s", settings);
    while ((setting = strsep(&rest, " ")) != NULL) {
        if (*setting != '\0') {
            putenv(strdup(setting));
        }
    }
    body(sock);
    exit(0);
}

static int status_of(pid_t pid)
{
    int status = -1;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void run(void (*body)(int sock), const char *settings)
{
    assert_int_equal(status_of(launch(body, -1, settings)), 0);
}

static void run_dies(void (*body)(int sock), const char *settings, int sig)
{
    int status = status_of(launch(body, -1, settings));

    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), sig);
}

static void quiet(void)
{
    int null = open("/dev/null", O_WRONLY);

    CHECK(null >= 0 && dup2(null, STDERR_FILENO) >= 0);
}

/* ---- what the bodies need ---- */

static void start(void)
{
    CUcontext ctx;

    GOOD(cuInit(0));
    GOOD(cuDevicePrimaryCtxRetain(&ctx, 0));
    GOOD(cuCtxSetCurrent(ctx));
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
                       int types)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)types;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return cuMemCreate(handle, size, &prop, 0);
}

static CUresult allow(CUdeviceptr ptr, size_t size, int device)
{
    CUmemAccessDesc desc;

    memset(&desc, 0, sizeof(desc));
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuMemSetAccess(ptr, size, &desc, 1);
}

static CUdeviceptr chunk(CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr ptr;

    GOOD(create(handle, GRANULE, FD_TYPE));
    GOOD(cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0));
    GOOD(cuMemMap(ptr, GRANULE, 0, *handle, 0));
    GOOD(allow(ptr, GRANULE, 0));
    return ptr;
}

/* ---- failures ---- */

static void body_fail_env(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    start();
    GOOD(create(&handle, GRANULE, 0));
    CHECK(create(&handle, GRANULE, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    GOOD(create(&handle, GRANULE, 0));
    GOOD(cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0));
    CHECK(cuMemMap(ptr, GRANULE, 0, handle, 0) == CUDA_ERROR_UNKNOWN);
    GOOD(cuMemMap(ptr, GRANULE, 0, handle, 0));
    GOOD(cuMemUnmap(ptr, GRANULE));
    CHECK(cuMemUnmap(ptr, GRANULE) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuMemUnmap(ptr, GRANULE) == CUDA_ERROR_INVALID_CONTEXT);
}

static void test_fail_env(void **state)
{
    run(body_fail_env, "VMMLANE_SIM_FAIL=cuMemCreate:2:2,cuMemMap:1 "
                       "VMMLANE_SIM_FAIL_FROM=cuMemUnmap:2:201");
}

static void body_bad_rule(int sock)
{
    quiet();
    cuInit(0);
}

static void test_bad_settings(void **state)
{
    run_dies(body_bad_rule, "VMMLANE_SIM_FAIL=cuNoSuchCall:1", SIGABRT);
    run_dies(body_bad_rule, "VMMLANE_SIM_FAIL=cuMemMap", SIGABRT);
    run_dies(body_bad_rule, "VMMLANE_SIM_DEVICES=many", SIGABRT);
    run_dies(body_bad_rule, "VMMLANE_SIM_FABRIC=perhaps", SIGABRT);
}

static void body_fail_call(int sock)
{
    int value;

    start();
    CHECK(sim_fail("cuNoSuchCall", 1, 1, 0) == -1);
    CHECK(sim_fail("cuDriverGetVersion", 2, CUDA_ERROR_UNKNOWN, 0) == 0);
    GOOD(cuDriverGetVersion(&value));
    CHECK(cuDriverGetVersion(&value) == CUDA_ERROR_UNKNOWN);
    GOOD(cuDriverGetVersion(&value));
    CHECK(sim_fail("cuDriverGetVersion", 1, CUDA_ERROR_UNKNOWN, 1) == 0);
    CHECK(cuDriverGetVersion(&value) == CUDA_ERROR_UNKNOWN);
    CHECK(cuDriverGetVersion(&value) == CUDA_ERROR_UNKNOWN);
    sim_clear_failures();
    GOOD(cuDriverGetVersion(&value));
}

static void test_fail_call(void **state)
{
    run(body_fail_call, "");
}

/* ---- counts ---- */

static void body_counts(int sock)
{
    int value;

    start();
    sim_reset_counts();
    GOOD(cuDriverGetVersion(&value));
    GOOD(cuDriverGetVersion(&value));
    CHECK(sim_call_count("cuDriverGetVersion") == 2);
    CHECK(sim_call_count("cuMemMap") == 0);
    CHECK(cuMemMap(0, 0, 0, 0, 0) != CUDA_SUCCESS);
    CHECK(sim_call_count("cuMemMap") == 1);
    CHECK(sim_call_count("cuNoSuchCall") == -1);
}

static void test_counts(void **state)
{
    char pattern[] = "/tmp/vmmlane-sim-counts-XXXXXX", path[64], text[256];
    char setting[128];
    int fd = mkstemp(pattern);
    pid_t pid;
    ssize_t len;

    assert_true(fd >= 0);
    close(fd);
    snprintf(setting, sizeof(setting), "VMMLANE_SIM_COUNT_FILE=%s.%%p",
             pattern);
    pid = launch(body_counts, -1, setting);
    assert_int_equal(status_of(pid), 0);
    snprintf(path, sizeof(path), "%s.%d", pattern, (int)pid);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    len = read(fd, text, sizeof(text) - 1);
    assert_true(len > 0);
    text[len] = '\0';
    close(fd);
    unlink(path);
    unlink(pattern);
    assert_string_equal(text, "cuDriverGetVersion 2\ncuMemMap 1\n");
}

/* ---- re-entry ---- */

struct seen {
    int map, unmap, free;
    CUdeviceptr ptr;
};

static void look(const char *name, uint64_t address, size_t size, void *arg)
{
    struct seen *seen = arg;
    CUdeviceptr base;
    size_t got;

    /* As UCM does, on the same thread. */
    cuMemGetAddressRange_v2(&base, &got, address);
    seen->map += strcmp(name, "cuMemMap") == 0;
    seen->unmap += strcmp(name, "cuMemUnmap") == 0;
    seen->free += strcmp(name, "cuMemFree_v2") == 0;
    seen->ptr = address;
}

static void body_reentry(int sock)
{
    CUmemGenericAllocationHandle handle;
    struct seen seen = {0, 0, 0, 0};
    CUdeviceptr ptr, memory;

    start();
    sim_set_reentry(look, &seen);
    ptr = chunk(&handle);
    CHECK(seen.map == 1 && seen.ptr == ptr);
    GOOD(cuMemUnmap(ptr, GRANULE));
    CHECK(seen.unmap == 1);
    GOOD(cuMemAlloc_v2(&memory, GRANULE));
    GOOD(cuMemFree_v2(memory));
    CHECK(seen.free == 1 && seen.ptr == memory);
    sim_set_reentry(NULL, NULL);
    GOOD(cuMemMap(ptr, GRANULE, 0, handle, 0));
    CHECK(seen.map == 1);
}

static void test_reentry(void **state)
{
    run(body_reentry, "");
}

/* ---- device memory is not the CPU's ---- */

static void body_touch(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    start();
    ptr = chunk(&handle);
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would turn it into a jump */
    *(volatile char *)(uintptr_t)ptr = 1;
}

static void body_view(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    char *view;

    start();
    ptr = chunk(&handle);
    GOOD(cuMemsetD8_v2(ptr, 0x5a, GRANULE));
    view = sim_host_view(ptr, GRANULE);
    CHECK(view != NULL && view[0] == 0x5a && view[GRANULE - 1] == 0x5a);
    CHECK(sim_host_view(ptr, GRANULE + 1) == NULL);
}

static void test_device_memory(void **state)
{
    run_dies(body_touch, "", SIGSEGV);
    run(body_view, "");
}

/* ---- accounting ---- */

static void body_hold(int sock)
{
    CUmemGenericAllocationHandle handle;
    char c = 'x';

    start();
    GOOD(create(&handle, 32 * GRANULE, 0));
    CHECK(write(sock, &c, 1) == 1);
    pause();
}

static void body_accounting(int sock)
{
    CUmemGenericAllocationHandle handle;
    char c;

    start();
    CHECK(read(sock, &c, 1) == 1); /* the other has its 64 MiB */
    CHECK(sim_memory_used(0) == 32 * GRANULE);
    CHECK(create(&handle, 97 * GRANULE, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    GOOD(create(&handle, 96 * GRANULE, 0));
    GOOD(cuMemRelease(handle));
    CHECK(write(sock, &c, 1) == 1); /* the parent kills the other */
    CHECK(read(sock, &c, 1) == 1);
    CHECK(sim_memory_used(0) == 0);
    GOOD(create(&handle, 128 * GRANULE, 0));
}

static void test_accounting(void **state)
{
    const char *settings = "VMMLANE_SIM_VRAM_MB=256 "
                           "VMMLANE_SIM_DOMAIN=selftest";
    int holder[2], watcher[2];
    pid_t holding, watching;
    char c = 'x';

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, holder), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, watcher), 0);
    watching = launch(body_accounting, watcher[1], settings);
    holding = launch(body_hold, holder[1], settings);
    assert_int_equal(read(holder[0], &c, 1), 1);
    assert_int_equal(write(watcher[0], &c, 1), 1);
    assert_int_equal(read(watcher[0], &c, 1), 1);
    kill(holding, SIGKILL);
    status_of(holding);
    assert_int_equal(write(watcher[0], &c, 1), 1);
    assert_int_equal(status_of(watching), 0);
}

static void body_other_domain(int sock)
{
    start();
    CHECK(sim_memory_used(0) == 0);
}

static void body_same_domain(int sock)
{
    start();
    CHECK(sim_memory_used(0) == 32 * GRANULE);
    CHECK(sim_memory_used(1) == 0);
}

static void test_domain(void **state)
{
    int holder[2];
    pid_t holding;
    char c;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, holder), 0);
    holding = launch(body_hold, holder[1], "VMMLANE_SIM_DOMAIN=one");
    assert_int_equal(read(holder[0], &c, 1), 1);
    run(body_other_domain, "VMMLANE_SIM_DOMAIN=two");
    run(body_other_domain, "VMMLANE_SIM_DOMAIN=one VMMLANE_SIM_NODE=1");
    run(body_same_domain, "VMMLANE_SIM_DOMAIN=one VMMLANE_SIM_DEVICES=2");
    kill(holding, SIGKILL);
    status_of(holding);
}

/* ---- old drivers ---- */

static void *resolved(const char *name, int version)
{
    void *pointer = NULL;

    GOOD(cuGetProcAddress_v2(name, &pointer, version, 0, NULL));
    return pointer;
}

static void body_old_driver(int sock)
{
    void *pointer;
    int version;

    GOOD(cuDriverGetVersion(&version));
    CHECK(version == 12000);
    CHECK(resolved("cuMemCreate", 12000) != NULL);
    CHECK(resolved("cuCtxSetFlags", 12000) == NULL);
    CHECK(resolved("cuMemcpyBatchAsync", 12000) == NULL);
    CHECK(cuGetProcAddress_v2("cuMemCreate", &pointer, 13000, 0, NULL) ==
          CUDA_ERROR_INVALID_VALUE);
}

static void body_new_driver(int sock)
{
    CHECK(resolved("cuCtxSetFlags", 12010) != NULL);
    CHECK(resolved("cuMemcpyBatchAsync", 12080) != NULL);
    CHECK(resolved("cuMemcpyBatchAsync", 13000) != NULL);
    CHECK(resolved("cuMemcpyBatchAsync", 13000) !=
          resolved("cuMemcpyBatchAsync", 12080));
}

static void test_driver_version(void **state)
{
    run(body_old_driver, "VMMLANE_SIM_DRIVER_VERSION=12000");
    run(body_new_driver, "");
}

/* ---- several devices ---- */

static void body_no_peer(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    int can = 1;

    start();
    ptr = chunk(&handle);
    GOOD(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 0);
    CHECK(allow(ptr, GRANULE, 1) != CUDA_SUCCESS);
    GOOD(allow(ptr, GRANULE, 0));
}

static void body_devices(int sock)
{
    char id[2][16];
    CUuuid uuid[2];
    int count = 0, can = 0;

    GOOD(cuInit(0));
    GOOD(cuDeviceGetCount(&count));
    CHECK(count == 2);
    GOOD(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 1);
    GOOD(cuDeviceGetPCIBusId(id[0], sizeof(id[0]), 0));
    GOOD(cuDeviceGetPCIBusId(id[1], sizeof(id[1]), 1));
    CHECK(strcmp(id[0], id[1]) != 0);
    GOOD(cuDeviceGetUuid_v2(&uuid[0], 0));
    GOOD(cuDeviceGetUuid_v2(&uuid[1], 1));
    CHECK(memcmp(&uuid[0], &uuid[1], sizeof(uuid[0])) != 0);
}

static void body_visible(int sock)
{
    char id[16];
    int count = 0;

    GOOD(cuInit(0));
    GOOD(cuDeviceGetCount(&count));
    CHECK(count == 1);
    GOOD(cuDeviceGetPCIBusId(id, sizeof(id), 0));
    CHECK(strcmp(id, "0000:1C:00.0") == 0);
}

static void body_none(int sock)
{
    CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
}

static void test_devices(void **state)
{
    run(body_no_peer, "VMMLANE_SIM_DEVICES=2 VMMLANE_SIM_PEER=0");
    run(body_devices, "VMMLANE_SIM_DEVICES=2");
    run(body_visible, "VMMLANE_SIM_DEVICES=2 CUDA_VISIBLE_DEVICES=1");
    run(body_none, "VMMLANE_SIM_DEVICES=0");
}

/* ---- fabric ---- */

static void body_fabric_off(int sock)
{
    CUmemGenericAllocationHandle handle;
    int value = 1;

    start();
    GOOD(cuDeviceGetAttribute(
        &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0));
    CHECK(value == 0);
    CHECK(create(&handle, GRANULE, CU_MEM_HANDLE_TYPE_FABRIC) ==
          CUDA_ERROR_NOT_SUPPORTED);
}

/* What goes from one node to the other. */
struct parcel {
    CUmemFabricHandle fabric;
    CUipcMemHandle ipc;
    int pid, fd;
};

static void body_node_exporter(int sock)
{
    CUmemGenericAllocationHandle handle;
    struct parcel parcel;
    CUdeviceptr ptr, memory;
    char c;

    start();
    GOOD(create(&handle, GRANULE, CU_MEM_HANDLE_TYPE_FABRIC | FD_TYPE));
    GOOD(cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0));
    GOOD(cuMemMap(ptr, GRANULE, 0, handle, 0));
    GOOD(allow(ptr, GRANULE, 0));
    GOOD(cuMemsetD8_v2(ptr, 0x3c, GRANULE));
    GOOD(cuMemExportToShareableHandle(&parcel.fabric, handle,
                                      CU_MEM_HANDLE_TYPE_FABRIC, 0));
    GOOD(cuMemExportToShareableHandle(&parcel.fd, handle, FD_TYPE, 0));
    GOOD(cuMemAlloc_v2(&memory, GRANULE));
    GOOD(cuIpcGetMemHandle(&parcel.ipc, memory));
    parcel.pid = getpid();
    CHECK(write(sock, &parcel, sizeof(parcel)) == (ssize_t)sizeof(parcel));
    CHECK(read(sock, &c, 1) == 1);
}

/* What came over the fabric is the exporter's memory. */
static void use_parcel(struct parcel *parcel)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    char *view;

    GOOD(cuMemImportFromShareableHandle(&handle, &parcel->fabric,
                                        CU_MEM_HANDLE_TYPE_FABRIC));
    GOOD(cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0));
    GOOD(cuMemMap(ptr, GRANULE, 0, handle, 0));
    GOOD(allow(ptr, GRANULE, 0));
    view = sim_host_view(ptr, GRANULE);
    CHECK(view != NULL && view[0] == 0x3c && view[GRANULE - 1] == 0x3c);
    CHECK(sim_memory_used(0) == 0); /* it is the other node's */
}

static void body_node_importer(int sock)
{
    CUmemGenericAllocationHandle handle;
    struct parcel parcel;
    CUdeviceptr other;
    char path[64];
    int fd;

    start();
    CHECK(read(sock, &parcel, sizeof(parcel)) == (ssize_t)sizeof(parcel));
    use_parcel(&parcel);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", parcel.pid, parcel.fd);
    fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    CHECK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                         FD_TYPE) != CUDA_SUCCESS);
    CHECK(cuIpcOpenMemHandle_v2(&other, parcel.ipc,
                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) !=
          CUDA_SUCCESS);
    CHECK(write(sock, "x", 1) == 1);
}

/* In namespaces of its own, where the kernel gives them: what it has of the
 * exporter is the fabric alone. */
static void body_apart(int sock)
{
    struct parcel parcel;
    int status = 0;
    pid_t pid;

    if (unshare(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC) != 0) {
        perror("unshare(2), goes on without");
    }
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        start();
        CHECK(read(sock, &parcel, sizeof(parcel)) == (ssize_t)sizeof(parcel));
        use_parcel(&parcel);
        CHECK(write(sock, "x", 1) == 1);
        /* Its exporter frees it: nobody can import it any more. */
        CHECK(read(sock, &status, 1) == 1);
        CHECK(cuMemImportFromShareableHandle(
                  (CUmemGenericAllocationHandle[1]){0}, &parcel.fabric,
                  CU_MEM_HANDLE_TYPE_FABRIC) == CUDA_ERROR_INVALID_VALUE);
        exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void body_apart_exporter(int sock)
{
    CUmemGenericAllocationHandle handle;
    struct parcel parcel;
    CUdeviceptr ptr;
    char c;

    start();
    memset(&parcel, 0, sizeof(parcel));
    GOOD(create(&handle, GRANULE, CU_MEM_HANDLE_TYPE_FABRIC));
    GOOD(cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0));
    GOOD(cuMemMap(ptr, GRANULE, 0, handle, 0));
    GOOD(allow(ptr, GRANULE, 0));
    GOOD(cuMemsetD8_v2(ptr, 0x3c, GRANULE));
    CHECK(sim_memory_used(0) == GRANULE);
    GOOD(cuMemExportToShareableHandle(&parcel.fabric, handle,
                                      CU_MEM_HANDLE_TYPE_FABRIC, 0));
    CHECK(write(sock, &parcel, sizeof(parcel)) == (ssize_t)sizeof(parcel));
    CHECK(read(sock, &c, 1) == 1);
    GOOD(cuMemUnmap(ptr, GRANULE));
    GOOD(cuMemRelease(handle));
    CHECK(write(sock, "x", 1) == 1);
}

static void test_fabric_folder(void **state)
{
    char folder[] = "/dev/shm/vmmlane-selftest-XXXXXX";
    char settings[256];
    pid_t exporter, importer;
    int pair[2];

    assert_non_null(mkdtemp(folder));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    snprintf(settings, sizeof(settings),
             "VMMLANE_SIM_FABRIC=on VMMLANE_SIM_NODE=1 "
             "VMMLANE_SIM_FABRIC_DIR=%s",
             folder);
    exporter = launch(body_apart_exporter, pair[0], settings);
    settings[strlen("VMMLANE_SIM_FABRIC=on VMMLANE_SIM_NODE=")] = '2';
    importer = launch(body_apart, pair[1], settings);
    assert_int_equal(status_of(importer), 0);
    assert_int_equal(status_of(exporter), 0);
    /* Nothing is left behind by processes that ended in order. */
    assert_int_equal(rmdir(folder), 0);
}

static void body_no_channel(int sock)
{
    CUmemGenericAllocationHandle handle;
    int value = 0;

    start();
    GOOD(cuDeviceGetAttribute(
        &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0));
    CHECK(value == 1);
    CHECK(create(&handle, GRANULE, CU_MEM_HANDLE_TYPE_FABRIC) ==
          CUDA_ERROR_NOT_PERMITTED);
    CHECK(create(&handle, GRANULE, CU_MEM_HANDLE_TYPE_FABRIC | FD_TYPE) ==
          CUDA_ERROR_NOT_PERMITTED);
    GOOD(create(&handle, GRANULE, FD_TYPE));
}

static void body_channel_for_create(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUmemFabricHandle fabric;
    int fd = -1;

    start();
    GOOD(create(&handle, GRANULE, CU_MEM_HANDLE_TYPE_FABRIC | FD_TYPE));
    CHECK(cuMemExportToShareableHandle(&fabric, handle,
                                       CU_MEM_HANDLE_TYPE_FABRIC,
                                       0) == CUDA_ERROR_NOT_PERMITTED);
    GOOD(cuMemExportToShareableHandle(&fd, handle, FD_TYPE, 0));
    memset(&fabric, 0, sizeof(fabric));
    CHECK(cuMemImportFromShareableHandle(&handle, &fabric,
                                         CU_MEM_HANDLE_TYPE_FABRIC) ==
          CUDA_ERROR_NOT_PERMITTED);
}

static void test_imex(void **state)
{
    run(body_no_channel, "VMMLANE_SIM_FABRIC=on VMMLANE_SIM_IMEX=0");
    run(body_channel_for_create, "VMMLANE_SIM_FABRIC=on "
                                 "VMMLANE_SIM_IMEX=create");
    run_dies(body_bad_rule, "VMMLANE_SIM_IMEX=perhaps", SIGABRT);
}

/* As UCX asks it (nvmlGpuFabricInfoV_t, version 2). */
struct fabric_info {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};

static struct fabric_info ask_nvml(void)
{
    struct fabric_info info = {.version = sizeof(info) | 2u << 24};
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*get)(void *device, struct fabric_info *info);
    int (*by_index)(unsigned index, void **device);
    int (*init)(void);
    void *device;

    CHECK(nvml != NULL);
    *(void **)&init = dlsym(nvml, "nvmlInit_v2");
    *(void **)&by_index = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&get = dlsym(nvml, "nvmlDeviceGetGpuFabricInfoV");
    CHECK(init != NULL && by_index != NULL && get != NULL);
    CHECK(init() == 0 && by_index(0, &device) == 0 && get(device, &info) == 0);
    info.version = 0;
    CHECK(get(device, &info) != 0);
    return info;
}

static void body_nvml_joined(int sock)
{
    static const unsigned char none[16];
    struct fabric_info info = ask_nvml();

    CHECK(info.state == 3 && info.status == 0);
    CHECK(memcmp(info.cluster, none, sizeof(none)) != 0);
}

static void body_nvml_alone(int sock)
{
    CHECK(ask_nvml().state == 0);
}

static void test_nvml_fabric(void **state)
{
    run(body_nvml_joined, "VMMLANE_SIM_FABRIC=on");
    run(body_nvml_joined, "VMMLANE_SIM_FABRIC=on VMMLANE_SIM_IMEX=0");
    run(body_nvml_alone, "");
    run(body_nvml_alone, "VMMLANE_SIM_FABRIC=off");
}

static void test_fabric(void **state)
{
    int pair[2];
    pid_t exporter, importer;

    run(body_fabric_off, "VMMLANE_SIM_FABRIC=off");
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    exporter = launch(body_node_exporter, pair[0],
                      "VMMLANE_SIM_FABRIC=on VMMLANE_SIM_NODE=1");
    importer = launch(body_node_importer, pair[1],
                      "VMMLANE_SIM_FABRIC=on VMMLANE_SIM_NODE=2");
    assert_int_equal(status_of(importer), 0);
    assert_int_equal(status_of(exporter), 0);
}

/* ---- slow copies ---- */

static void body_slow(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    CUstream stream;

    start();
    ptr = chunk(&handle);
    GOOD(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    GOOD(cuMemsetD8Async(ptr, 1, GRANULE, stream));
    /* 8 slices of a second: whatever the machine, it is not done yet. */
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    _exit(0);
}

static void test_slow(void **state)
{
    run(body_slow, "VMMLANE_SIM_SLICE_DELAY_US=1000000");
}

/* ---- streams without a current context ---- */

static void no_call(void *arg)
{
}

static void body_no_context(int sock)
{
    CUstream stream;
    CUevent event;

    start();
    GOOD(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    GOOD(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    GOOD(cuCtxSetCurrent(NULL));
    GOOD(cuEventRecord(event, stream));
    CHECK(cuStreamQuery(NULL) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuStreamSynchronize(CU_STREAM_LEGACY) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuEventRecord(event, CU_STREAM_PER_THREAD) ==
          CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuStreamWaitEvent(NULL, event, 0) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuLaunchHostFunc(NULL, no_call, NULL) == CUDA_ERROR_INVALID_CONTEXT);
}

static void test_no_context(void **state)
{
    run(body_no_context, "");
}

/* ---- what UCM's patcher needs ---- */

#if defined(__x86_64__)
static const char *const patched[] = {
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemMap",
    "cuModuleGetGlobal_v2",
    "cuMemAllocAsync",
    "cuLibraryGetGlobal",
    "cuMemAllocFromPoolAsync",
    "cuMemFree",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemUnmap",
    "cuMemFreeAsync",
};

#define PATCHED (sizeof(patched) / sizeof(patched[0]))
#endif

static void test_prologues(void **state)
{
#if defined(__x86_64__)
    static const unsigned char whole[12] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x81,
                                            0xec, 0x28, 0,    0,    0,    0x53};
    void *at[PATCHED];
    size_t i, k;

    for (i = 0; i < PATCHED; i++) {
        at[i] = dlsym(RTLD_DEFAULT, patched[i]);
        assert_non_null(at[i]);
        assert_memory_equal(at[i], whole, sizeof(whole));
        for (k = 0; k < i; k++) {
            assert_ptr_not_equal(at[i], at[k]);
        }
    }
#endif
    /* The real library has none, and UCM counts what it finds. */
    assert_null(dlsym(RTLD_DEFAULT, "cuMemFreeHost_v2"));
}

/* ---- NVML ---- */

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, result;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

static void *nvml(const char *name)
{
    static void *library;
    void *symbol;

    if (library == NULL) {
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        CHECK(library != NULL);
    }
    symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    return symbol;
}

static unsigned links(void)
{
    int (*init)(void), (*by_index)(unsigned, void **);
    int (*fields)(void *, int, struct field *);
    struct field field = {.id = 91};
    void *device = NULL, *symbol;

    symbol = nvml("nvmlInit_v2");
    memcpy(&init, &symbol, sizeof(init));
    symbol = nvml("nvmlDeviceGetHandleByIndex_v2");
    memcpy(&by_index, &symbol, sizeof(by_index));
    symbol = nvml("nvmlDeviceGetFieldValues");
    memcpy(&fields, &symbol, sizeof(fields));
    CHECK(init() == 0 && by_index(0, &device) == 0);
    CHECK(fields(device, 1, &field) == 0);
    return field.result == 0 ? field.value.u : 0;
}

static void body_nvlink(int sock)
{
    CHECK(links() == 18);
}

static void body_no_nvlink(int sock)
{
    CHECK(links() == 0);
}

static void test_nvml(void **state)
{
    run(body_nvlink, "VMMLANE_SIM_NVLINK=1");
    run(body_no_nvlink, "");
}

/* ---- many chunks ---- */

static void body_many(int sock)
{
    const int count = 4000;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr, base;
    size_t size;
    int i;

    start();
    GOOD(cuMemAddressReserve(&ptr, (size_t)count * GRANULE, 0, 0, 0));
    for (i = 0; i < count; i++) {
        GOOD(create(&handle, GRANULE, FD_TYPE));
        GOOD(cuMemMap(ptr + (size_t)i * GRANULE, GRANULE, 0, handle, 0));
        GOOD(cuMemRelease(handle));
    }
    GOOD(allow(ptr, (size_t)count * GRANULE, 0));
    for (i = 0; i < count; i++) {
        GOOD(cuMemGetAddressRange_v2(&base, &size,
                                     ptr + (size_t)i * GRANULE + 7));
        CHECK(base == ptr + (size_t)i * GRANULE && size == GRANULE);
    }
    CHECK(sim_memory_used(0) == (uint64_t)count * GRANULE);
    GOOD(cuMemUnmap(ptr, (size_t)count * GRANULE));
    CHECK(sim_memory_used(0) == 0);
}

static void test_many(void **state)
{
    run(body_many, "VMMLANE_SIM_DOMAIN=many");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_env),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_fail_call),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_reentry),
        cmocka_unit_test(test_device_memory),
        cmocka_unit_test(test_accounting),
        cmocka_unit_test(test_domain),
        cmocka_unit_test(test_driver_version),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_fabric),
        cmocka_unit_test(test_fabric_folder),
        cmocka_unit_test(test_imex),
        cmocka_unit_test(test_nvml_fabric),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_no_context),
        cmocka_unit_test(test_prologues),
        cmocka_unit_test(test_nvml),
        cmocka_unit_test(test_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
