/*
 * What the CUDA driver answers where vmmlane relies on it: one program, for a
 * real driver and for the simulated one.
 *
 *   gcc conformance.c -lcuda && ./a.out
 *
 * Needs a GPU with 8 GiB free and CUDA 13.0's header. It prints one line for
 * each check, "ok" or "FAIL", and exits with 0 when none failed. The answers
 * are those of an H200 with driver 580. What ends a context or needs a second
 * process runs in children, which are this program again.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB     ((size_t)1 << 20)
#define GRANULE (2 * MIB)
#define FD_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* A thread sanitizer leaves no room for 64 TiB. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LARGE ((size_t)1 << 40)
#endif
#elif defined(__SANITIZE_THREAD__)
#define LARGE ((size_t)1 << 40)
#endif
#ifndef LARGE
#define LARGE ((size_t)64 << 40)
#endif

/* Present on the simulated driver alone. */
extern void sim_hold_copies(int hold) __attribute__((weak));
extern int sim_wait_held(unsigned n, unsigned timeout_ms) __attribute__((weak));

static int checks, failures;
static const char *section = "";
static CUcontext primary;

/* ---- reporting ---- */

__attribute__((format(printf, 2, 3))) static void check(bool good,
                                                        const char *format, ...)
{
    va_list args;

    checks++;
    failures += !good;
    printf("%-5s %s: ", good ? "ok" : "FAIL", section);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

static void expect(CUresult want, CUresult got, const char *what)
{
    if (got == want) {
        check(true, "%s: %d", what, (int)got);
    } else {
        check(false, "%s: %d, not %d", what, (int)got, (int)want);
    }
}

/* For steps that everything after them needs. */
static void must(CUresult result, const char *what, int line)
{
    const char *name = NULL;

    if (result != CUDA_SUCCESS) {
        cuGetErrorName(result, &name);
        printf("FAIL  %s: line %d: %s: %d %s\n", section, line, what,
               (int)result, name == NULL ? "" : name);
        exit(2);
    }
}

#define MUST(call) must(call, #call, __LINE__)

static bool simulated(void)
{
    return sim_hold_copies != NULL;
}

/* ---- building blocks ---- */

static void start(int device)
{
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&primary, device));
    MUST(cuCtxSetCurrent(primary));
}

static CUmemAllocationProp property(int device, int types)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)types;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static CUmemGenericAllocationHandle create(size_t size, int types)
{
    CUmemAllocationProp prop = property(0, types);
    CUmemGenericAllocationHandle handle;

    MUST(cuMemCreate(&handle, size, &prop, 0));
    return handle;
}

static CUresult set_access(CUdeviceptr ptr, size_t size, int device,
                           CUmemAccess_flags flags)
{
    CUmemAccessDesc desc;

    memset(&desc, 0, sizeof(desc));
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = flags;
    return cuMemSetAccess(ptr, size, &desc, 1);
}

static void map_one(CUdeviceptr ptr, size_t size)
{
    CUmemGenericAllocationHandle handle = create(size, FD_TYPE);

    MUST(cuMemMap(ptr, size, 0, handle, 0));
    MUST(cuMemRelease(handle));
}

/* A reservation with count chunks at its beginning, readable and writable. */
static CUdeviceptr chunks(int count, size_t size, size_t reserve)
{
    CUdeviceptr ptr;
    int i;

    MUST(cuMemAddressReserve(&ptr, reserve, 0, 0, 0));
    for (i = 0; i < count; i++) {
        map_one(ptr + (size_t)i * size, size);
    }
    MUST(set_access(ptr, (size_t)count * size, 0,
                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    return ptr;
}

static void unreserve(CUdeviceptr ptr, size_t size)
{
    MUST(cuMemUnmap(ptr, size));
    MUST(cuMemAddressFree(ptr, size));
}

static uint64_t attribute(CUpointer_attribute which, CUdeviceptr ptr)
{
    uint64_t value = 0;
    CUresult result = cuPointerGetAttribute(&value, which, ptr);

    if (result != CUDA_SUCCESS) {
        check(false, "attribute %d answers (%d)", (int)which, (int)result);
    }
    return value;
}

static bool range_is(CUdeviceptr ptr, CUdeviceptr base, size_t size)
{
    CUdeviceptr got_base = 0;
    size_t got_size = 0;

    return cuMemGetAddressRange(&got_base, &got_size, ptr) == CUDA_SUCCESS &&
           got_base == base && got_size == size;
}

static bool bytes_are(CUdeviceptr ptr, unsigned char value, size_t size)
{
    unsigned char *host = malloc(size);
    size_t i;
    bool good;

    if (host == NULL) {
        return false;
    }
    good = cuMemcpyDtoH(host, ptr, size) == CUDA_SUCCESS;
    for (i = 0; i < size && good; i++) {
        good = host[i] == value;
    }
    free(host);
    return good;
}

/* ---- children ---- */

static void join(pid_t pid, const char *name, int want)
{
    int status = -1;

    fflush(stdout);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    check(WIFEXITED(status) && WEXITSTATUS(status) == want,
          "the process \"%s\" ended as it should (status %#x)", name,
          (unsigned)status);
}

/* Runs this program's part of that name, with a socket if there is one. */
static pid_t spawn(const char *name, int sock)
{
    char number[16];
    pid_t pid;

    fflush(stdout);
    snprintf(number, sizeof(number), "%d", sock);
    pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "conformance", name, number, (char *)NULL);
        _exit(99);
    }
    return pid;
}

static void run_part(const char *name)
{
    join(spawn(name, -1), name, 0);
}

static void send_bytes(int sock, const void *data, size_t size)
{
    if (write(sock, data, size) != (ssize_t)size) {
        exit(3);
    }
}

static void receive_bytes(int sock, void *data, size_t size)
{
    if (recv(sock, data, size, MSG_WAITALL) != (ssize_t)size) {
        exit(3);
    }
}

static void signal_peer(int sock)
{
    send_bytes(sock, "x", 1);
}

static void wait_peer(int sock)
{
    char c;

    receive_bytes(sock, &c, 1);
}

static void send_fd(int sock, int fd)
{
    char data = 'f', control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&data, 1};
    struct msghdr msg;
    struct cmsghdr *head;

    memset(control, 0, sizeof(control));
    memset(&msg, 0, sizeof(msg));
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof(int));
    if (sendmsg(sock, &msg, 0) != 1) {
        exit(3);
    }
}

static int receive_fd(int sock)
{
    char data, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&data, 1};
    struct msghdr msg;
    int fd;

    memset(&msg, 0, sizeof(msg));
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    if (recvmsg(sock, &msg, 0) != 1 || CMSG_FIRSTHDR(&msg) == NULL) {
        exit(3);
    }
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
    return fd;
}

static void *as_handle(int fd)
{
    return (void *)(intptr_t)fd;
}

/* ---- devices ---- */

static void device_is(CUdevice_attribute which, int want, const char *what)
{
    int got = -1;

    MUST(cuDeviceGetAttribute(&got, which, 0));
    check(got == want, "%s is %d (%d)", what, want, got);
}

/* Whether this machine has an IMEX channel. No real one that was asked had. */
static bool has_fabric(void)
{
    CUmemAllocationProp prop = property(0, CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle handle;

    if (cuMemCreate(&handle, GRANULE, &prop, 0) != CUDA_SUCCESS) {
        return false;
    }
    MUST(cuMemRelease(handle));
    return true;
}

static void part_device(void)
{
    CUmemAllocationProp prop = property(0, FD_TYPE);
    CUmemGenericAllocationHandle handle;
    size_t minimum = 0, recommended = 0;

    section = "device";
    device_is(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1,
              "VMM");
    device_is(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
              1, "POSIX_FD handles");
    device_is(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1, "DMA_BUF");
    device_is(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1,
              "GPUDirect RDMA");
    device_is(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1,
              "GPUDirect RDMA with VMM");
    device_is(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1, "pools");
    device_is(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
              1, "VMM on host memory");
    device_is(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1,
              "FABRIC handles, so or not");
    device_is(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 9,
              "handle types of pools");
    MUST(cuMemGetAllocationGranularity(&minimum, &prop,
                                       CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    MUST(cuMemGetAllocationGranularity(&recommended, &prop,
                                       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    check(minimum == GRANULE && recommended == GRANULE,
          "granularity is 2 MiB, minimum and recommended");
    if (has_fabric()) {
        return;
    }
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    expect(CUDA_ERROR_NOT_PERMITTED, cuMemCreate(&handle, GRANULE, &prop, 0),
           "create with FABRIC, no IMEX channel");
    prop.requestedHandleTypes =
        (CUmemAllocationHandleType)(CU_MEM_HANDLE_TYPE_FABRIC | FD_TYPE);
    expect(CUDA_ERROR_NOT_PERMITTED, cuMemCreate(&handle, GRANULE, &prop, 0),
           "create with FABRIC and POSIX_FD");
}

/* ---- queries ---- */

static void query_ranges(CUdeviceptr ptr)
{
    CUdeviceptr base;
    size_t size;
    int i;
    bool good = true;

    for (i = 0; i < 8; i++) {
        good = good && range_is(ptr + (size_t)i * GRANULE + 4097,
                                ptr + (size_t)i * GRANULE, GRANULE);
    }
    check(good, "GetAddressRange answers the chunk of the address, 8 times");
    base = size = 1;
    expect(CUDA_ERROR_NOT_FOUND,
           cuMemGetAddressRange(&base, &size, ptr + 9 * GRANULE),
           "GetAddressRange on a reserved, unmapped address");
    check(base == 0 && size == 0, "and it sets its outputs to zero");
    expect(CUDA_SUCCESS, cuMemGetAddressRange(NULL, NULL, ptr),
           "GetAddressRange without outputs");
    expect(CUDA_SUCCESS, cuMemGetAddressRange(NULL, NULL, ptr + 9 * GRANULE),
           "GetAddressRange without outputs of an unmapped address");
    check(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr + GRANULE) ==
                  ptr &&
              attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr + GRANULE) ==
                  64 * MIB,
          "RANGE_START_ADDR and RANGE_SIZE are the reservation");
    check(attribute(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                    ptr + GRANULE + 5) == ptr + GRANULE &&
              attribute(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ptr + GRANULE) ==
                  GRANULE,
          "MAPPING_BASE_ADDR and MAPPING_SIZE are the chunk");
}

static void query_without_access(CUdeviceptr ptr)
{
    uint64_t value = 1;
    CUdeviceptr base;
    size_t size;

    map_one(ptr + 8 * GRANULE, GRANULE);
    expect(CUDA_ERROR_NOT_FOUND,
           cuMemGetAddressRange(&base, &size, ptr + 8 * GRANULE),
           "GetAddressRange on a chunk without access");
    check(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr + 8 * GRANULE) ==
                  64 * MIB &&
              attribute(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                        ptr + 8 * GRANULE) == ptr + 8 * GRANULE &&
              attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr + 8 * GRANULE) != 0,
          "a chunk without access answers RANGE, MAPPING and BUFFER_ID");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                 ptr + 8 * GRANULE),
           "DEVICE_POINTER of a chunk without access");
    check(attribute(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, ptr + 8 * GRANULE) == 0,
          "ACCESS_FLAGS of a chunk without access is 0");
}

static void query_identities(CUdeviceptr ptr)
{
    CUmemGenericAllocationHandle handle = create(GRANULE, FD_TYPE);
    CUdeviceptr a = ptr + 10 * GRANULE, b = ptr + 12 * GRANULE;
    uint64_t before, first, second, again;

    before = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr + 7 * GRANULE);
    MUST(cuMemMap(a, GRANULE, 0, handle, 0));
    MUST(cuMemMap(b, GRANULE, 0, handle, 0));
    first = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, a);
    second = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, b);
    check(before < first && first < second,
          "BUFFER_ID: one for each mapping, increasing");
    check(attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, a) ==
              attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, b),
          "MEMORY_BLOCK_ID: two mappings of one handle agree");
    check(attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, a) !=
              attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, ptr),
          "MEMORY_BLOCK_ID: two handles differ");
    MUST(cuMemUnmap(a, GRANULE));
    MUST(cuMemMap(a, GRANULE, 0, handle, 0));
    again = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, a);
    check(again > second,
          "BUFFER_ID: a new one for the same memory mapped again");
    MUST(cuMemRelease(handle));
}

static void query_vmm_attributes(CUdeviceptr ptr)
{
    check(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr) == 0,
          "CONTEXT of VMM memory is NULL");
    check(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) ==
              CU_MEMORYTYPE_DEVICE,
          "MEMORY_TYPE is device");
    check(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 0,
          "DEVICE_ORDINAL answers");
    check(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) == 0,
          "IS_LEGACY_CUDA_IPC_CAPABLE of VMM memory is 0");
    check(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr) == FD_TYPE,
          "ALLOWED_HANDLE_TYPES is what was asked for");
    check(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) == 0,
          "MEMPOOL_HANDLE of VMM memory is NULL");
    check(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, ptr) == 0,
          "IS_GPU_DIRECT_RDMA_CAPABLE is 0 where it was not asked for");
    check(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr) == 0,
          "SYNC_MEMOPS is 0");
}

static void part_queries(void)
{
    CUdeviceptr ptr = chunks(8, GRANULE, 64 * MIB), none;
    CUmemGenericAllocationHandle handle;
    unsigned one = 1;

    section = "queries";
    query_ranges(ptr);
    query_without_access(ptr);
    query_identities(ptr);
    query_vmm_attributes(ptr);
    handle = create(GRANULE, CU_MEM_HANDLE_TYPE_NONE);
    none = ptr + 14 * GRANULE;
    MUST(cuMemMap(none, GRANULE, 0, handle, 0));
    MUST(cuMemRelease(handle));
    check(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, none) == 0,
          "ALLOWED_HANDLE_TYPES of memory made with NONE is 0");
    expect(CUDA_ERROR_NOT_SUPPORTED,
           cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr),
           "setting SYNC_MEMOPS of VMM memory");
    unreserve(ptr, 64 * MIB);
}

/* ---- pointer attributes: widths and defaults ---- */

static const struct {
    CUpointer_attribute which;
    size_t width;
} widths[] = {
    {CU_POINTER_ATTRIBUTE_CONTEXT, 8},
    {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4},
    {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 8},
    {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 4},
    {CU_POINTER_ATTRIBUTE_BUFFER_ID, 8},
    {CU_POINTER_ATTRIBUTE_IS_MANAGED, 4},
    {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4},
    {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 4},
    {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 8},
    {CU_POINTER_ATTRIBUTE_RANGE_SIZE, 8},
    {CU_POINTER_ATTRIBUTE_MAPPED, 4},
    {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 8},
    {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 4},
    {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 4},
    {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 8},
    {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 8},
    {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 8},
    {CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 8},
};

#define WIDTHS (sizeof(widths) / sizeof(widths[0]))

/* Bytes that were written over two different backgrounds. */
static size_t written(const unsigned char *a, const unsigned char *b)
{
    size_t n = 16;

    while (n > 0 && a[n - 1] == 0xee && b[n - 1] == 0x77) {
        n--;
    }
    return n;
}

static size_t width_single(CUpointer_attribute which, CUdeviceptr ptr)
{
    unsigned char a[16], b[16];

    memset(a, 0xee, sizeof(a));
    memset(b, 0x77, sizeof(b));
    cuPointerGetAttribute(a, which, ptr);
    cuPointerGetAttribute(b, which, ptr);
    return written(a, b);
}

static CUresult get_plural(void *data, CUpointer_attribute which,
                           CUdeviceptr ptr)
{
    return cuPointerGetAttributes(1, &which, &data, ptr);
}

static size_t width_plural(CUpointer_attribute which, CUdeviceptr ptr)
{
    unsigned char a[16], b[16];

    memset(a, 0xee, sizeof(a));
    memset(b, 0x77, sizeof(b));
    get_plural(a, which, ptr);
    get_plural(b, which, ptr);
    return written(a, b);
}

static void all_widths(CUdeviceptr ptr, const char *what)
{
    size_t i, single, plural;

    for (i = 0; i < WIDTHS; i++) {
        single = width_single(widths[i].which, ptr);
        plural = width_plural(widths[i].which, ptr);
        if (single != widths[i].width || plural != widths[i].width) {
            check(false, "attribute %d of %s writes %zu bytes (%zu, %zu)",
                  (int)widths[i].which, what, widths[i].width, single, plural);
            return;
        }
    }
    check(true, "%s: all %zu attributes write the bytes they should", what,
          WIDTHS);
}

static void unmapped_attributes(CUdeviceptr ptr)
{
    size_t i;
    bool refused = true, silent = true;
    uint64_t value;
    int ordinal = 7;

    for (i = 0; i < WIDTHS; i++) {
        refused =
            refused && cuPointerGetAttribute(&value, widths[i].which, ptr) ==
                           CUDA_ERROR_INVALID_VALUE;
        silent = silent && width_single(widths[i].which, ptr) == 0;
    }
    check(refused, "every attribute of an unmapped address: INVALID_VALUE");
    check(silent, "and nothing is written");
    value = 7;
    expect(CUDA_SUCCESS,
           get_plural(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr),
           "cuPointerGetAttributes on an unmapped address");
    check(value == 0, "its BUFFER_ID reads 0");
    get_plural(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr);
    check(ordinal == CU_DEVICE_INVALID, "its DEVICE_ORDINAL reads -2");
    get_plural(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr);
    check(value == 64 * MIB, "its RANGE_SIZE reads the reservation");
}

static void pageable_attributes(void)
{
    uint64_t value = 7;
    void *memory = malloc(64);

    expect(CUDA_ERROR_INVALID_VALUE,
           cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 (uintptr_t)memory),
           "an attribute of pageable memory");
    check(width_plural(CU_POINTER_ATTRIBUTE_RANGE_SIZE, (uintptr_t)memory) == 0,
          "cuPointerGetAttributes leaves RANGE_SIZE of pageable memory alone");
    get_plural(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, (uintptr_t)memory);
    check(value == (uintptr_t)memory, "and answers HOST_POINTER");
    free(memory);
}

static void part_attributes(void)
{
    CUdeviceptr ptr = chunks(1, GRANULE, 64 * MIB), memory, managed;
    void *host;

    section = "attributes";
    MUST(cuMemAlloc(&memory, 1000));
    MUST(cuMemAllocManaged(&managed, GRANULE, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemHostAlloc(&host, 8192, 0));
    all_widths(ptr, "VMM memory");
    all_widths(memory, "cuMemAlloc memory");
    all_widths((uintptr_t)host, "cuMemHostAlloc memory");
    unmapped_attributes(ptr + 8 * GRANULE);
    pageable_attributes();
    check(range_is(memory, memory, 1000),
          "GetAddressRange of cuMemAlloc memory is what was asked for");
    check(attribute(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, memory) == GRANULE,
          "its MAPPING_SIZE is 2 MiB");
    check(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, memory) == (uintptr_t)primary,
          "its CONTEXT is the one that made it");
    check(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory) ==
              1,
          "its IS_LEGACY_CUDA_IPC_CAPABLE is 1");
    check(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory) == 0,
          "its MEMPOOL_HANDLE is NULL");
    check(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed) == 1 &&
              attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, managed) ==
                  CU_MEMORYTYPE_DEVICE,
          "managed memory is managed, of type device");
    check(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host) ==
              CU_MEMORYTYPE_HOST,
          "cuMemHostAlloc memory is of type host");
    MUST(cuMemFree(memory));
    MUST(cuMemFree(managed));
    MUST(cuMemFreeHost(host));
    unreserve(ptr, 64 * MIB);
}

/* ---- handles ---- */

static void create_errors(void)
{
    CUmemAllocationProp prop = property(0, FD_TYPE);
    CUmemGenericAllocationHandle handle;

    expect(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0),
           "create of no bytes");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, MIB, &prop, 0),
           "create of half a granule");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRANULE, &prop, 1),
           "create with flags");
    expect(CUDA_ERROR_OUT_OF_MEMORY,
           cuMemCreate(&handle, (size_t)1 << 40, &prop, 0), "create of 1 TiB");
    prop.location.id = 64;
    expect(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, GRANULE, &prop, 0),
           "create on device 64");
    prop = property(0, CU_MEM_HANDLE_TYPE_WIN32);
    expect(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRANULE, &prop, 0),
           "create with a WIN32 handle");
    prop = property(0, FD_TYPE);
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    expect(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRANULE, &prop, 0),
           "create of no type");
}

static void retain(CUdeviceptr ptr, CUmemGenericAllocationHandle handle)
{
    CUmemGenericAllocationHandle got = 0;
    CUmemAllocationProp prop;
    CUdeviceptr memory;

    expect(CUDA_SUCCESS,
           cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(ptr + 12345)),
           "retain inside a chunk");
    check(got == handle, "it gives the handle that create gave");
    MUST(cuMemGetAllocationPropertiesFromHandle(&prop, got));
    check(prop.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
              prop.requestedHandleTypes == FD_TYPE &&
              prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
              prop.location.id == 0,
          "its properties are what was asked for");
    MUST(cuMemRelease(got));
    MUST(cuMemAlloc(&memory, GRANULE));
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)memory),
           "retain on cuMemAlloc memory");
    MUST(cuMemFree(memory));
    expect(
        CUDA_ERROR_INVALID_VALUE,
        cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(ptr + GRANULE)),
        "retain on an unmapped address");
}

static void export_errors(CUmemGenericAllocationHandle handle)
{
    CUmemGenericAllocationHandle none = create(GRANULE, 0), imported;
    CUmemFabricHandle fabric;
    CUmemAllocationProp prop;
    int fd = -1, again = -1;

    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemExportToShareableHandle(&fd, none, FD_TYPE, 0),
           "export of a handle made with NONE");
    MUST(cuMemRelease(none));
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemExportToShareableHandle(&fabric, handle,
                                        CU_MEM_HANDLE_TYPE_FABRIC, 0),
           "FABRIC export of a POSIX_FD handle");
    MUST(cuMemExportToShareableHandle(&fd, handle, FD_TYPE, 0));
    check((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0,
          "an exported descriptor is close-on-exec");
    expect(CUDA_SUCCESS,
           cuMemImportFromShareableHandle(&imported, as_handle(fd), FD_TYPE),
           "import in the same process");
    check(imported != handle, "it gives another handle");
    MUST(cuMemGetAllocationPropertiesFromHandle(&prop, imported));
    check(prop.requestedHandleTypes == 0,
          "the import's requestedHandleTypes is 0");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemExportToShareableHandle(&again, imported, FD_TYPE, 0),
           "export of an import");
    MUST(cuMemRelease(imported));
    close(fd);
    expect(CUDA_ERROR_UNKNOWN,
           cuMemImportFromShareableHandle(&imported, as_handle(fd), FD_TYPE),
           "import of a closed descriptor");
    fd = memfd_create("stranger", MFD_CLOEXEC);
    expect(CUDA_ERROR_UNKNOWN,
           cuMemImportFromShareableHandle(&imported, as_handle(fd), FD_TYPE),
           "import of a descriptor that is no memory");
    close(fd);
}

static void part_handles(void)
{
    CUmemGenericAllocationHandle handle = create(GRANULE, FD_TYPE), got;
    CUipcMemHandle ipc;
    CUdeviceptr ptr;

    section = "handles";
    create_errors();
    MUST(cuMemAddressReserve(&ptr, 8 * GRANULE, 0, 0, 0));
    MUST(cuMemMap(ptr, GRANULE, 0, handle, 0));
    MUST(set_access(ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    retain(ptr, handle);
    export_errors(handle);
    expect(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, ptr),
           "cuIpcGetMemHandle on VMM memory");
    MUST(cuMemRelease(handle));
    expect(CUDA_SUCCESS,
           cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)ptr),
           "retain of mapped memory whose handle was released");
    MUST(cuMemRelease(got));
    MUST(cuMemUnmap(ptr, GRANULE));
    expect(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle),
           "release of a handle that is gone");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemRelease(0), "release of 0");
    MUST(cuMemAddressFree(ptr, 8 * GRANULE));
}

/* ---- mapping ---- */

static void reserve_errors(void)
{
    CUdeviceptr ptr, other;

    expect(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&ptr, 0, 0, 0, 0),
           "reserve of nothing");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&ptr, MIB, 0, 0, 0),
           "reserve of half a granule");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemAddressReserve(&ptr, GRANULE, 3, 0, 0),
           "reserve with an alignment of 3");
    MUST(cuMemAddressReserve(&ptr, GRANULE, (size_t)1 << 30, 0, 0));
    check(ptr % ((size_t)1 << 30) == 0, "reserve keeps an alignment of 1 GiB");
    expect(CUDA_SUCCESS, cuMemAddressReserve(&other, GRANULE, 0, ptr, 0),
           "reserve at an address that is taken");
    check(other != ptr, "it gives another one");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(ptr, 2 * GRANULE),
           "free of a reservation with a wrong size");
    MUST(cuMemAddressFree(ptr, GRANULE));
    MUST(cuMemAddressFree(other, GRANULE));
    expect(CUDA_SUCCESS, cuMemAddressReserve(&ptr, LARGE, 0, 0, 0),
           "reserve of more than any GPU has");
    MUST(cuMemAddressFree(ptr, LARGE));
}

static void map_errors(CUdeviceptr ptr)
{
    CUmemGenericAllocationHandle one = create(GRANULE, FD_TYPE);
    CUmemGenericAllocationHandle two = create(2 * GRANULE, FD_TYPE);
    CUdeviceptr free_va = ptr + 8 * GRANULE;

    expect(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(free_va, GRANULE, 0, two, 0),
           "map of a part of a handle");
    expect(CUDA_ERROR_NOT_SUPPORTED,
           cuMemMap(free_va, GRANULE, GRANULE, two, 0), "map at an offset");
    expect(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(free_va, 2 * GRANULE, 0, one, 0),
           "map of more than the handle");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemMap(ptr, GRANULE, 0, one, 0),
           "map where something is mapped");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemMap(free_va + 4096, GRANULE, 0, one, 0),
           "map at an odd address");

    expect(CUDA_ERROR_INVALID_VALUE, cuMemMap(free_va, GRANULE, 0, one, 1),
           "map with flags");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemMap(free_va, 0, 0, one, 0),
           "map of nothing");
    MUST(cuMemRelease(one));
    MUST(cuMemRelease(two));
}

static void access_errors(CUdeviceptr ptr)
{
    unsigned long long flags = 7;
    CUmemAccessDesc host;
    CUdeviceptr memory;

    MUST(cuMemAlloc(&memory, GRANULE));
    expect(CUDA_ERROR_INVALID_VALUE,
           set_access(ptr + 7 * GRANULE, 2 * GRANULE, 0,
                      CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           "access over a range with a hole");
    expect(CUDA_ERROR_INVALID_VALUE,
           set_access(ptr, MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           "access for half a chunk");
    expect(CUDA_ERROR_INVALID_VALUE,
           set_access(ptr, GRANULE, 64, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           "access for device 64");
    expect(CUDA_ERROR_INVALID_VALUE,
           set_access(memory, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           "access for cuMemAlloc memory");
    memset(&host, 0, sizeof(host));
    host.location.type = CU_MEM_LOCATION_TYPE_HOST;
    host.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    expect(CUDA_ERROR_NOT_SUPPORTED, cuMemSetAccess(ptr, GRANULE, &host, 1),
           "access to a device's memory for the CPU");
    host.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cuMemGetAccess(&flags, &host.location, ptr));
    check(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
          "cuMemGetAccess says what was set");
    MUST(cuMemFree(memory));
}

static void unmap_rules(CUdeviceptr ptr)
{
    expect(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(ptr, MIB),
           "unmap of half a chunk");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(ptr, 0), "unmap of nothing");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemUnmap(ptr + 6 * GRANULE, GRANULE + MIB),
           "unmap of a chunk and a half");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(ptr, 32 * GRANULE),
           "free of a reservation with chunks");
    expect(CUDA_SUCCESS, cuMemUnmap(ptr + 20 * GRANULE, GRANULE),
           "unmap of a hole");
    expect(CUDA_SUCCESS, cuMemUnmap(ptr + 6 * GRANULE, 4 * GRANULE),
           "unmap of two chunks and the hole behind them");
    expect(CUDA_SUCCESS, cuMemUnmap(ptr, 6 * GRANULE),
           "one unmap of six chunks");
    MUST(cuMemAddressFree(ptr, 32 * GRANULE));
}

static void unmap_part(void)
{
    CUdeviceptr ptr = chunks(2, 2 * GRANULE, 4 * GRANULE);

    expect(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(ptr, GRANULE),
           "unmap of the first granule of a chunk of two");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(ptr + GRANULE, GRANULE),
           "unmap of the second");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(ptr, 3 * GRANULE),
           "unmap of a chunk and a half of the next");
    expect(CUDA_ERROR_INVALID_VALUE,
           set_access(ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ),
           "access for the first granule of a chunk of two");
    check(range_is(ptr + 3 * GRANULE, ptr + 2 * GRANULE, 2 * GRANULE),
          "both chunks are still there");
    unreserve(ptr, 4 * GRANULE);
}

static void adjacent_reservations(void)
{
    CUdeviceptr base, low, high, got = 0;
    int fd = -1;

    /* The address space of one that was freed has room for two. */
    MUST(cuMemAddressReserve(&base, 8 * GRANULE, 0, 0, 0));
    MUST(cuMemAddressFree(base, 8 * GRANULE));
    MUST(cuMemAddressReserve(&low, 4 * GRANULE, 0, base, 0));
    MUST(cuMemAddressReserve(&high, 4 * GRANULE, 0, low + 4 * GRANULE, 0));
    check(high == low + 4 * GRANULE, "two reservations adjoin on request");
    map_one(high - GRANULE, GRANULE);
    map_one(high, GRANULE);
    MUST(set_access(high - GRANULE, GRANULE, 0,
                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    MUST(set_access(high, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    got = attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, high - GRANULE);
    check(got == low &&
              attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, high) == high,
          "RANGE_START_ADDR tells them apart");
    expect(CUDA_SUCCESS,
           cuMemGetHandleForAddressRange(&fd, high - GRANULE, 2 * GRANULE,
                                         CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                         0),
           "dmabuf across two reservations");
    close(fd);
    expect(CUDA_SUCCESS, cuMemUnmap(high - GRANULE, 2 * GRANULE),
           "one unmap across two reservations");
    MUST(cuMemAddressFree(low, 4 * GRANULE));
    MUST(cuMemAddressFree(high, 4 * GRANULE));
}

static void part_mapping(void)
{
    CUdeviceptr ptr = chunks(8, GRANULE, 32 * GRANULE);
    CUdeviceptr base;
    size_t size;

    section = "mapping";
    reserve_errors();
    map_errors(ptr);
    access_errors(ptr);
    MUST(set_access(ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    expect(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, ptr),
           "GetAddressRange once access is taken away");
    MUST(set_access(ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    check(range_is(ptr, ptr, GRANULE), "GetAddressRange with read access");
    unmap_rules(ptr);
    unmap_part();
    adjacent_reservations();
}

/* ---- dmabuf ---- */

static CUresult dmabuf(CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    int fd = -1;
    CUresult result = cuMemGetHandleForAddressRange(
        &fd, ptr, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags);

    if (result == CUDA_SUCCESS) {
        close(fd);
    }
    return result;
}

static void part_dmabuf(void)
{
    CUdeviceptr ptr = chunks(8, GRANULE, 16 * GRANULE), memory;

    section = "dmabuf";
    MUST(cuMemAlloc(&memory, GRANULE));
    expect(CUDA_SUCCESS, dmabuf(ptr, 8 * GRANULE, 0), "over 8 chunks");
    expect(CUDA_SUCCESS, dmabuf(ptr + 4096, 4096, 0), "over a page");
    expect(CUDA_SUCCESS, dmabuf(memory, GRANULE, 0), "over cuMemAlloc memory");
    expect(CUDA_ERROR_INVALID_VALUE, dmabuf(ptr, 9 * GRANULE, 0),
           "past the mapped end");
    expect(CUDA_ERROR_INVALID_VALUE, dmabuf(ptr + 1, 4096, 0),
           "at an odd address");
    expect(CUDA_ERROR_INVALID_VALUE, dmabuf(ptr, 100, 0), "of an odd size");
    expect(CUDA_ERROR_INVALID_VALUE, dmabuf(ptr, 0, 0), "of nothing");
    expect(CUDA_ERROR_NOT_SUPPORTED,
           dmabuf(ptr, GRANULE, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE),
           "with the PCIe flag");
    MUST(cuMemFree(memory));
    unreserve(ptr, 16 * GRANULE);
}

/* ---- memory that an exported descriptor keeps ---- */

static size_t free_memory(void)
{
    size_t avail, total;

    MUST(cuMemGetInfo(&avail, &total));
    return avail;
}

static void part_held(void)
{
    const size_t size = 2048 * MIB, slack = 256 * MIB;
    CUmemGenericAllocationHandle handle;
    size_t before, taken, held, after;
    CUdeviceptr ptr;
    int fd;

    section = "held descriptor";
    before = free_memory();
    handle = create(size, FD_TYPE);
    MUST(cuMemAddressReserve(&ptr, size, 0, 0, 0));
    MUST(cuMemMap(ptr, size, 0, handle, 0));
    MUST(cuMemExportToShareableHandle(&fd, handle, FD_TYPE, 0));
    taken = free_memory();
    MUST(cuMemUnmap(ptr, size));
    MUST(cuMemRelease(handle));
    MUST(cuMemAddressFree(ptr, size));
    held = free_memory();
    close(fd);
    after = free_memory();
    check(before - taken >= size - slack, "2 GiB are taken");
    check(before - held >= size - slack,
          "an exported descriptor keeps them after unmap and release");
    check(before < after + slack, "they are back once it is closed");
}

/* ---- two processes: descriptors ---- */

static void import_without_context(int fd, CUdeviceptr *ptr)
{
    CUmemGenericAllocationHandle handle;
    unsigned flags;
    int active = 1;

    expect(CUDA_SUCCESS,
           cuMemImportFromShareableHandle(&handle, as_handle(fd), FD_TYPE),
           "import without a context");
    expect(CUDA_SUCCESS, cuMemAddressReserve(ptr, 4 * GRANULE, 0, 0, 0),
           "reserve without a context");
    expect(CUDA_SUCCESS, cuMemMap(*ptr, GRANULE, 0, handle, 0),
           "map without a context");
    expect(CUDA_SUCCESS,
           set_access(*ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           "access without a context");
    expect(CUDA_SUCCESS, cuMemUnmap(*ptr, GRANULE), "unmap without a context");
    MUST(cuMemMap(*ptr, GRANULE, 0, handle, 0));
    MUST(set_access(*ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    expect(CUDA_SUCCESS, cuMemRelease(handle), "release without a context");
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    check(active == 0, "the primary context stays inactive");
}

static void part_importer(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    int fd;

    section = "importer";
    MUST(cuInit(0));
    fd = receive_fd(sock);
    import_without_context(fd, &ptr);
    start(0);
    check(bytes_are(ptr, 0x5a, GRANULE),
          "a context made later reads the exporter's bytes");
    check(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr) == 0,
          "ALLOWED_HANDLE_TYPES of imported memory is 0");
    expect(CUDA_SUCCESS,
           cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr),
           "retain on imported memory");
    MUST(cuMemRelease(handle));
    MUST(cuMemsetD8(ptr, 0xa5, GRANULE));
    MUST(cuCtxSynchronize());
    signal_peer(sock);
    wait_peer(sock); /* the exporter has freed its side */
    check(bytes_are(ptr, 0xa5, GRANULE),
          "the import outlives the exporter's mapping and handle");
}

static void part_sharing(void)
{
    CUmemGenericAllocationHandle handle = create(GRANULE, FD_TYPE);
    CUdeviceptr ptr;
    int sock[2], fd;
    pid_t pid;

    section = "sharing";
    MUST(cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0));
    MUST(cuMemMap(ptr, GRANULE, 0, handle, 0));
    MUST(set_access(ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    MUST(cuMemsetD8(ptr, 0x5a, GRANULE));
    MUST(cuCtxSynchronize());
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock) != 0) {
        exit(3);
    }
    pid = spawn("importer", sock[1]);
    close(sock[1]);
    MUST(cuMemExportToShareableHandle(&fd, handle, FD_TYPE, 0));
    send_fd(sock[0], fd);
    close(fd);
    wait_peer(sock[0]);
    check(bytes_are(ptr, 0xa5, GRANULE), "the importer's writes arrive");
    MUST(cuMemUnmap(ptr, GRANULE));
    MUST(cuMemRelease(handle));
    MUST(cuMemAddressFree(ptr, GRANULE));
    signal_peer(sock[0]);
    join(pid, "importer", 0);
    close(sock[0]);
}

/* ---- two processes: legacy IPC ---- */

static void part_ipc_importer(int sock)
{
    CUipcMemHandle handle, garbage;
    CUdeviceptr ptr = 0, again = 0, other, base;
    size_t size;

    section = "ipc importer";
    start(0);
    receive_bytes(sock, &handle, sizeof(handle));
    expect(CUDA_SUCCESS,
           cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
           "open");
    expect(
        CUDA_SUCCESS,
        cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "open again");
    check(ptr == again, "it gives the same address");
    expect(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&other, handle, 0),
           "open without the flag");
    check(bytes_are(ptr, 0x3c, GRANULE), "it reads the exporter's bytes");
    check(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) == 0,
          "what was opened is not legacy-capable");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr), "cuMemFree of it");
    expect(CUDA_SUCCESS, cuIpcCloseMemHandle(ptr), "close");
    check(bytes_are(ptr, 0x3c, GRANULE), "the first close ends nothing yet");
    expect(CUDA_SUCCESS, cuIpcCloseMemHandle(ptr), "second close");
    expect(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, ptr),
           "GetAddressRange once both are closed");
    expect(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(ptr), "third close");
    memset(&garbage, 0x5a, sizeof(garbage));
    expect(
        CUDA_ERROR_INVALID_VALUE,
        cuIpcOpenMemHandle(&other, garbage, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "open of garbage");
    signal_peer(sock);
    wait_peer(sock);
    expect(
        CUDA_ERROR_INVALID_VALUE,
        cuIpcOpenMemHandle(&other, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "open once the exporter has freed it");
}

static void part_ipc(void)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr, other;
    int sock[2];
    pid_t pid;

    section = "ipc";
    MUST(cuMemAlloc(&ptr, GRANULE));
    MUST(cuMemsetD8(ptr, 0x3c, GRANULE));
    MUST(cuCtxSynchronize());
    MUST(cuIpcGetMemHandle(&handle, ptr));
    expect(
        CUDA_ERROR_INVALID_CONTEXT,
        cuIpcOpenMemHandle(&other, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "open in the process that owns the memory");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock) != 0) {
        exit(3);
    }
    pid = spawn("ipc_importer", sock[1]);
    close(sock[1]);
    send_bytes(sock[0], &handle, sizeof(handle));
    wait_peer(sock[0]);
    MUST(cuMemFree(ptr));
    signal_peer(sock[0]);
    join(pid, "ipc_importer", 0);
    close(sock[0]);
}

/* ---- copies ---- */

static void copies_over_holes(CUdeviceptr ptr, CUstream stream)
{
    CUdeviceptr hole = ptr + 7 * GRANULE; /* the last chunk and beyond */

    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoDAsync(hole, ptr, 2 * GRANULE, stream),
           "copy over a hole");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoDAsync(ptr, hole, 2 * GRANULE, stream),
           "copy from a hole");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoDAsync(ptr, ptr + 9 * GRANULE, 4096, stream),
           "copy from a hole alone");
    expect(CUDA_SUCCESS, cuStreamSynchronize(stream),
           "the stream stays usable");
    MUST(cuMemsetD8(ptr, 0x11, GRANULE));
    expect(CUDA_SUCCESS, cuMemcpyDtoDAsync(ptr + GRANULE, ptr, GRANULE, stream),
           "the context stays usable");
    MUST(cuStreamSynchronize(stream));
    check(bytes_are(ptr + GRANULE, 0x11, GRANULE), "the copy is right");
}

static void copies_without_access(CUdeviceptr ptr, CUstream stream)
{
    map_one(ptr + 10 * GRANULE, GRANULE);
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoDAsync(ptr + 10 * GRANULE, ptr, GRANULE, stream),
           "copy to a chunk without access");
    MUST(set_access(ptr + 10 * GRANULE, GRANULE, 0,
                    CU_MEM_ACCESS_FLAGS_PROT_READ));
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoDAsync(ptr + 10 * GRANULE, ptr, GRANULE, stream),
           "copy to a chunk that is read-only");
    expect(CUDA_SUCCESS,
           cuMemcpyDtoDAsync(ptr, ptr + 10 * GRANULE, GRANULE, stream),
           "copy from a chunk that is read-only");
    expect(CUDA_SUCCESS, cuStreamSynchronize(stream),
           "the context stays usable");
}

/* Calls that take host memory as well look at the first byte only. */
static void copies_of_any_kind(CUdeviceptr ptr, CUstream stream)
{
    map_one(ptr + 12 * GRANULE, GRANULE);
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyAsync(ptr + 12 * GRANULE, ptr, GRANULE, stream),
           "cuMemcpyAsync to a chunk without access");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyAsync(ptr + 7 * GRANULE, ptr, 2 * GRANULE, stream),
           "cuMemcpyAsync from a chunk on into a hole");
    expect(CUDA_SUCCESS, cuStreamSynchronize(stream),
           "the context stays usable");
}

static void batches(CUdeviceptr ptr, CUstream stream)
{
    CUmemcpyAttributes attrs;
    CUdeviceptr dst[2] = {ptr, ptr + GRANULE};
    CUdeviceptr src[2] = {ptr + 2 * GRANULE, ptr + 3 * GRANULE};
    size_t sizes[2] = {GRANULE, GRANULE}, index = 0;

    memset(&attrs, 0, sizeof(attrs));
    attrs.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    MUST(cuMemsetD8(ptr + 2 * GRANULE, 0x22, 2 * GRANULE));
    expect(CUDA_SUCCESS,
           cuMemcpyBatchAsync(dst, src, sizes, 2, &attrs, &index, 1, stream),
           "batch of two copies");
    MUST(cuStreamSynchronize(stream));
    check(bytes_are(ptr, 0x22, 2 * GRANULE), "the batch is right");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyBatchAsync(dst, src, sizes, 2, &attrs, &index, 1, NULL),
           "batch on the NULL stream");
    sizes[1] = 0;
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyBatchAsync(dst, src, sizes, 2, &attrs, &index, 1, stream),
           "batch with an empty copy");
}

static void part_copies(void)
{
    CUdeviceptr ptr = chunks(8, GRANULE, 16 * GRANULE), memory;
    CUstream stream;
    void *pageable = malloc(4096);

    section = "copies";
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    copies_over_holes(ptr, stream);
    copies_without_access(ptr, stream);
    copies_of_any_kind(ptr, stream);
    batches(ptr, stream);
    MUST(cuMemAlloc(&memory, GRANULE));
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoD(memory + GRANULE - 32, ptr, 64),
           "copy past the end of cuMemAlloc memory");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoD(memory, (uintptr_t)pageable, 64),
           "device copy from pageable memory");
    expect(CUDA_SUCCESS, cuMemFree(0), "cuMemFree of 0");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemFree(memory + 256),
           "cuMemFree inside an allocation");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr), "cuMemFree of a chunk");
    MUST(cuMemFree(memory));
    MUST(cuStreamDestroy(stream));
    free(pageable);
    unreserve(ptr, 16 * GRANULE);
}

/* ---- copies in flight ---- */

struct flight {
    CUdeviceptr ptr; /* two chunks that are copied to each other, one spare */
    size_t chunk;
    CUstream stream;
};

/* Work that is still running when the caller goes on: held copies on the
 * simulated driver, 300 GiB of them on a real one. */
static void take_off(struct flight *flight)
{
    int i, count = simulated() ? 1 : 300;

    flight->chunk = simulated() ? GRANULE : 1024 * MIB;
    flight->ptr = chunks(3, flight->chunk, 4 * flight->chunk);
    MUST(cuStreamCreate(&flight->stream, CU_STREAM_NON_BLOCKING));
    if (simulated()) {
        sim_hold_copies(1);
    }
    for (i = 0; i < count; i++) {
        MUST(cuMemcpyDtoDAsync(flight->ptr + flight->chunk, flight->ptr,
                               flight->chunk, flight->stream));
    }
    if (simulated() && sim_wait_held(1, 60000) != 0) {
        check(false, "a copy is held");
    }
}

static void land(void)
{
    if (simulated()) {
        sim_hold_copies(0);
    }
}

/* Memory that was freed behind work which still runs. */
static void freed_in_flight(const struct flight *flight, CUdeviceptr memory)
{
    CUdeviceptr base;
    size_t size;

    MUST(cuMemFreeAsync(memory, flight->stream));
    expect(CUDA_ERROR_NOT_READY, cuStreamQuery(flight->stream),
           "cuMemFreeAsync does not wait");
    expect(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, memory),
           "GetAddressRange once it was called");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory, flight->stream),
           "a second cuMemFreeAsync");
}

static void part_flight(void)
{
    struct flight flight;
    CUdeviceptr memory;
    CUevent event;

    section = "in flight";
    start(0);
    MUST(cuMemAllocAsync(&memory, GRANULE, NULL));
    MUST(cuCtxSynchronize());
    take_off(&flight);
    freed_in_flight(&flight, memory);
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(event, flight.stream));
    expect(CUDA_ERROR_NOT_READY, cuStreamQuery(flight.stream),
           "query of a busy stream");
    expect(CUDA_ERROR_NOT_READY, cuEventQuery(event),
           "query of an event behind it");
    expect(CUDA_SUCCESS,
           cuMemUnmap(flight.ptr + 2 * flight.chunk, flight.chunk),
           "unmap of a chunk that no copy touches");
    expect(CUDA_ERROR_NOT_READY, cuStreamQuery(flight.stream),
           "the unmap did not wait for the copies");
    expect(CUDA_SUCCESS, cuStreamDestroy(flight.stream),
           "destroy of a busy stream");
    expect(CUDA_ERROR_NOT_READY, cuEventQuery(event),
           "the work goes on without its stream");
    land();
    expect(CUDA_SUCCESS, cuEventSynchronize(event), "and ends well");
}

static void dead_context(CUstream stream, CUdeviceptr memory)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = property(0, FD_TYPE);
    CUdeviceptr ptr, base;
    CUcontext ctx;
    CUevent event;
    size_t size;
    int ordinal;

    expect(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(stream),
           "afterwards: cuStreamQuery");
    expect(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize(),
           "afterwards: cuCtxSynchronize");
    expect(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&ptr, GRANULE),
           "afterwards: cuMemAlloc");
    expect(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree(memory),
           "afterwards: cuMemFree");
    expect(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventCreate(&event, 0),
           "afterwards: cuEventCreate");
    expect(CUDA_ERROR_ILLEGAL_ADDRESS,
           cuMemGetAddressRange(&base, &size, memory),
           "afterwards: cuMemGetAddressRange");
    expect(CUDA_SUCCESS,
           cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 memory),
           "afterwards: cuPointerGetAttribute");
    expect(CUDA_SUCCESS, cuMemCreate(&handle, GRANULE, &prop, 0),
           "afterwards: cuMemCreate");
    expect(CUDA_SUCCESS, cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0),
           "afterwards: cuMemAddressReserve");
    expect(CUDA_SUCCESS, cuMemMap(ptr, GRANULE, 0, handle, 0),
           "afterwards: cuMemMap");
    expect(CUDA_SUCCESS, cuMemUnmap(ptr, GRANULE), "afterwards: cuMemUnmap");
    expect(CUDA_SUCCESS, cuMemRelease(handle), "afterwards: cuMemRelease");
    expect(CUDA_SUCCESS, cuCtxPushCurrent(primary),
           "afterwards: cuCtxPushCurrent");
    expect(CUDA_SUCCESS, cuCtxPopCurrent(&ctx), "afterwards: cuCtxPopCurrent");
    expect(CUDA_SUCCESS, cuDevicePrimaryCtxReset(0),
           "afterwards: cuDevicePrimaryCtxReset");
    expect(CUDA_ERROR_ILLEGAL_ADDRESS, cuDevicePrimaryCtxRetain(&ctx, 0),
           "no context can be made in this process any more");
}

static void part_fault(void)
{
    struct flight flight;
    CUdeviceptr memory;

    section = "fault";
    start(0);
    MUST(cuMemAlloc(&memory, GRANULE));
    take_off(&flight);
    expect(CUDA_SUCCESS, cuMemUnmap(flight.ptr, flight.chunk),
           "unmap of a chunk that a running copy uses");
    land();
    expect(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(flight.stream),
           "the stream fails");
    dead_context(flight.stream, memory);
}

/* ---- streams and events ---- */

static void count_call(void *arg)
{
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

static void CUDA_CB count_callback(CUstream stream, CUresult status, void *arg)
{
    (void)stream;
    if (status == CUDA_SUCCESS) {
        count_call(arg);
    }
}

/* As UCX's own progress threads use them. */
static void without_context(CUstream stream, CUevent event, int *calls)
{
    CUcontext ctx;
    int before = __atomic_load_n(calls, __ATOMIC_SEQ_CST);

    MUST(cuCtxPopCurrent(&ctx));
    expect(CUDA_SUCCESS, cuStreamQuery(stream),
           "cuStreamQuery without a current context");
    expect(CUDA_SUCCESS, cuEventQuery(event),
           "cuEventQuery without a current context");
    expect(CUDA_SUCCESS, cuStreamAddCallback(stream, count_callback, calls, 0),
           "cuStreamAddCallback without a current context");
    expect(CUDA_SUCCESS, cuLaunchHostFunc(stream, count_call, calls),
           "cuLaunchHostFunc without a current context");
    expect(CUDA_SUCCESS, cuEventRecord(event, stream),
           "cuEventRecord without a current context");
    expect(CUDA_SUCCESS, cuStreamWaitEvent(stream, event, 0),
           "cuStreamWaitEvent without a current context");
    expect(CUDA_SUCCESS, cuStreamSynchronize(stream),
           "cuStreamSynchronize without a current context");
    check(__atomic_load_n(calls, __ATOMIC_SEQ_CST) == before + 2,
          "what was queued without a current context has run");
    MUST(cuCtxPushCurrent(ctx));
}

static void part_streams(void)
{
    CUdeviceptr ptr = chunks(3, GRANULE, 4 * GRANULE);
    CUstream a, b;
    CUevent event;
    CUcontext ctx = NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int calls = 0, i;

    section = "streams";
    MUST(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    expect(CUDA_SUCCESS, cuEventQuery(event), "event that was never recorded");
    for (i = 1; i <= 8; i++) {
        MUST(cuMemsetD8Async(ptr, (unsigned char)i, GRANULE, a));
    }
    MUST(cuEventRecord(event, a));
    MUST(cuStreamWaitEvent(b, event, 0));
    MUST(cuMemcpyDtoDAsync(ptr + GRANULE, ptr, GRANULE, b));
    MUST(cuStreamSynchronize(b));
    check(bytes_are(ptr + GRANULE, 8, GRANULE),
          "a stream keeps its order, another waits for an event");
    MUST(cuLaunchHostFunc(a, count_call, &calls));
    MUST(cuStreamAddCallback(a, count_callback, &calls, 0));
    MUST(cuStreamSynchronize(a));
    check(__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 2,
          "host functions and callbacks run before a synchronise ends");
    without_context(a, event, &calls);
    MUST(cuStreamGetCtx(a, &ctx));
    check(ctx == primary, "cuStreamGetCtx gives the context");
    expect(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(NULL),
           "destroy of the NULL stream");
    expect(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode),
           "exchange of the capture mode");
    check(mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "it was GLOBAL");
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    check(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "and RELAXED after that");
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(a));
    MUST(cuStreamDestroy(b));
    unreserve(ptr, 4 * GRANULE);
}

/* ---- entry points ---- */

static void *exported(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

static void *resolved(const char *name, int version, cuuint64_t flags)
{
    void *pointer = NULL;

    return cuGetProcAddress(name, &pointer, version, flags, NULL) ==
                   CUDA_SUCCESS
               ? pointer
               : NULL;
}

static const struct {
    const char *base, *symbol;
    bool per_stream; /* another function with the per-thread-stream flag */
} identities[] = {
    {"cuMemGetAddressRange", "cuMemGetAddressRange_v2", false},
    {"cuMemCreate", "cuMemCreate", false},
    {"cuMemMap", "cuMemMap", false},
    {"cuMemUnmap", "cuMemUnmap", false},
    {"cuMemRelease", "cuMemRelease", false},
    {"cuMemAddressFree", "cuMemAddressFree", false},
    {"cuMemExportToShareableHandle", "cuMemExportToShareableHandle", false},
    {"cuMemGetAllocationPropertiesFromHandle",
     "cuMemGetAllocationPropertiesFromHandle", false},
    {"cuPointerGetAttribute", "cuPointerGetAttribute", false},
    {"cuPointerGetAttributes", "cuPointerGetAttributes", false},
    {"cuIpcGetMemHandle", "cuIpcGetMemHandle", false},
    {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", false},
    {"cuGetProcAddress", "cuGetProcAddress_v2", false},
    {"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", true},
    {"cuMemFreeAsync", "cuMemFreeAsync", true},
};

static void identity(size_t i)
{
    const char *base = identities[i].base;
    void *symbol = exported(identities[i].symbol);
    void *legacy = resolved(base, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    void *thread =
        resolved(base, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);

    check(symbol != NULL &&
              resolved(base, 12000, CU_GET_PROC_ADDRESS_DEFAULT) == symbol &&
              legacy == symbol,
          "cuGetProcAddress(%s) gives the exported %s", base,
          identities[i].symbol);
    if (identities[i].per_stream) {
        check(thread != NULL && thread != symbol,
              "with the per-thread-stream flag %s is another function", base);
    } else if (strcmp(base, "cuGetProcAddress") != 0) {
        check(thread == symbol, "the per-thread-stream flag leaves %s alone",
              base);
    }
}

/* The form of CUDA 11, which has no status to say it with. */
static void part_old_resolver(void)
{
    CUresult (*resolver)(const char *, void **, int, cuuint64_t);
    void *symbol = exported("cuGetProcAddress"), *pointer = &symbol;

    memcpy(&resolver, &symbol, sizeof(resolver));
    expect(CUDA_ERROR_NOT_FOUND, resolver("cuNoSuchThing", &pointer, 12000, 0),
           "the old cuGetProcAddress of an unknown name");
    check(pointer == &symbol, "it leaves the pointer alone");
}

static void part_entry_points(void)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *pointer = &status;
    size_t i;

    section = "entry points";
    for (i = 0; i < sizeof(identities) / sizeof(identities[0]); i++) {
        identity(i);
    }
    check(exported("cuMemAlloc") != NULL &&
              exported("cuMemAlloc") != exported("cuMemAlloc_v2"),
          "cuMemAlloc and cuMemAlloc_v2 are two functions");
    expect(CUDA_SUCCESS,
           cuGetProcAddress("cuNoSuchThing", &pointer, 12000, 0, &status),
           "cuGetProcAddress of an unknown name");
    check(pointer == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
          "it gives NULL and SYMBOL_NOT_FOUND");
    pointer = &status;
    expect(CUDA_SUCCESS,
           cuGetProcAddress("cuCtxSetFlags", &pointer, 12000, 0, &status),
           "cuGetProcAddress of a name for too old a version");
    check(pointer == NULL &&
              status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
          "it gives NULL and VERSION_NOT_SUFFICIENT");
    part_old_resolver();
    pointer = &status;
    expect(CUDA_ERROR_INVALID_VALUE,
           cuGetProcAddress("cuMemCreate", &pointer, 99000, 0, &status),
           "cuGetProcAddress for a version newer than the driver");
    check(pointer == &status, "it leaves the pointer alone");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuGetProcAddress("cuMemCreate", &pointer, 12000, 4, &status),
           "cuGetProcAddress with an unknown flag");
    check(resolved("cuMemAlloc_v2", 12000, 0) == NULL,
          "cuGetProcAddress does not know names with a suffix");
}

/* ---- pools ---- */

static CUmemoryPool make_pool(int types)
{
    CUmemPoolProps props;
    CUmemoryPool pool;

    memset(&props, 0, sizeof(props));
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = (CUmemAllocationHandleType)types;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUdeviceptr pool_memory(CUmemoryPool pool, size_t size, CUstream stream)
{
    CUdeviceptr ptr;

    MUST(cuMemAllocFromPoolAsync(&ptr, size, pool, stream));
    MUST(cuStreamSynchronize(stream));
    return ptr;
}

static void pool_attributes(CUmemoryPool pool, CUdeviceptr ptr, size_t size)
{
    CUmemGenericAllocationHandle handle;

    check(range_is(ptr + 100, ptr, size), "GetAddressRange is the allocation");
    check(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr) == ptr &&
              attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr) == size,
          "RANGE_START_ADDR and RANGE_SIZE are the allocation");
    check(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) ==
              (uintptr_t)pool,
          "MEMPOOL_HANDLE is the pool");
    check(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr) == 0,
          "CONTEXT of pool memory is NULL");
    check(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr) == FD_TYPE,
          "ALLOWED_HANDLE_TYPES is the pool's");
    check(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) == 0,
          "IS_LEGACY_CUDA_IPC_CAPABLE of pool memory is 0");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr),
           "retain on pool memory");
}

static void pool_exports(CUmemoryPool pool, CUdeviceptr ptr)
{
    CUmemPoolPtrExportData data;
    CUmemoryPool usual;
    int fd = -1;

    MUST(cuDeviceGetDefaultMemPool(&usual, 0));
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemPoolExportToShareableHandle(&fd, usual, FD_TYPE, 0),
           "export of the default pool");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(usual),
           "destroy of the default pool");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, ptr),
           "export of a pointer of a pool that was not exported");
    expect(CUDA_SUCCESS,
           cuMemPoolExportToShareableHandle(&fd, pool, FD_TYPE, 0),
           "export of a POSIX_FD pool");
    close(fd);
    expect(CUDA_SUCCESS, cuMemPoolExportPointer(&data, ptr),
           "export of an allocation's base");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, ptr + 4096),
           "export of an address inside it");
}

static void pool_frees(CUmemoryPool pool, CUstream stream)
{
    CUdeviceptr ptr = pool_memory(pool, 64 * MIB, stream), again, base;
    uint64_t id = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
    size_t size;

    MUST(cuMemFreeAsync(ptr, stream));
    expect(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, ptr),
           "GetAddressRange right after cuMemFreeAsync");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(ptr, stream),
           "second cuMemFreeAsync");
    MUST(cuStreamSynchronize(stream));
    again = pool_memory(pool, 64 * MIB, stream);
    check(again == ptr, "the next allocation has the same address");
    check(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, again) != id,
          "and another BUFFER_ID");
    expect(CUDA_SUCCESS, cuMemFree(again), "cuMemFree of pool memory");
}

static void pool_of_device(CUmemoryPool pool, CUstream stream)
{
    CUmemoryPool before;
    CUdeviceptr ptr;

    MUST(cuDeviceGetMemPool(&before, 0));
    expect(CUDA_SUCCESS, cuDeviceSetMemPool(0, pool),
           "cuDeviceSetMemPool to a POSIX_FD pool");
    MUST(cuMemAllocAsync(&ptr, GRANULE, stream));
    check(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr) == FD_TYPE,
          "cuMemAllocAsync then gives memory with handle types 1");
    MUST(cuMemFreeAsync(ptr, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuDeviceSetMemPool(0, before));
}

/* The attribute lies for pools too, but they can be made and used. */
static void part_fabric_pool(void)
{
    CUmemFabricHandle handle;
    CUmemoryPool pool;
    CUdeviceptr ptr;
    CUstream stream;

    section = "fabric pool";
    start(0);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pool = make_pool(CU_MEM_HANDLE_TYPE_FABRIC);
    ptr = pool_memory(pool, GRANULE, stream);
    check(range_is(ptr, ptr, GRANULE), "memory of a FABRIC pool can be had");
    expect(has_fabric() ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED,
           cuMemPoolExportToShareableHandle(&handle, pool,
                                            CU_MEM_HANDLE_TYPE_FABRIC, 0),
           "export of a FABRIC pool");
    /* The pool's next use ends the process on the real driver. */
}

/* Assumed: by the driver's documentation; no real run has shown it. */
static void part_fabric(void)
{
    CUmemAllocationProp prop = property(0, CU_MEM_HANDLE_TYPE_FABRIC | FD_TYPE);
    CUmemGenericAllocationHandle handle, imported;
    CUmemFabricHandle fabric;
    CUdeviceptr ptr;

    section = "fabric";
    if (!has_fabric()) {
        printf("skip  fabric: no IMEX channel\n");
        return;
    }
    MUST(cuMemCreate(&handle, 2 * GRANULE, &prop, 0));
    expect(CUDA_SUCCESS,
           cuMemExportToShareableHandle(&fabric, handle,
                                        CU_MEM_HANDLE_TYPE_FABRIC, 0),
           "export as FABRIC");
    expect(CUDA_SUCCESS,
           cuMemImportFromShareableHandle(&imported, &fabric,
                                          CU_MEM_HANDLE_TYPE_FABRIC),
           "import of a FABRIC handle");
    MUST(cuMemGetAllocationPropertiesFromHandle(&prop, imported));
    check(prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE,
          "imported memory shows handle type NONE");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemExportToShareableHandle(&fabric, imported,
                                        CU_MEM_HANDLE_TYPE_FABRIC, 0),
           "export of imported memory");
    MUST(cuMemAddressReserve(&ptr, 4 * GRANULE, 0, 0, 0));
    expect(CUDA_SUCCESS, cuMemMap(ptr, 2 * GRANULE, 0, imported, 0),
           "map of imported memory, its own size");
    check(cuMemMap(ptr + 2 * GRANULE, GRANULE, 0, imported, 0) != CUDA_SUCCESS,
          "map of a part of imported memory is refused");
    MUST(cuMemUnmap(ptr, 2 * GRANULE));
    MUST(cuMemAddressFree(ptr, 4 * GRANULE));
    MUST(cuMemRelease(imported));
    MUST(cuMemRelease(handle));
}

static void pool_destroyed(CUstream stream)
{
    CUmemoryPool pool = make_pool(0), own;
    CUdeviceptr ptr = pool_memory(pool, GRANULE, stream), other;
    int fd;

    expect(CUDA_SUCCESS, cuMemPoolDestroy(pool),
           "destroy of a pool with allocations");
    check(range_is(ptr, ptr, GRANULE), "they outlive it");
    MUST(cuMemFreeAsync(ptr, stream));
    pool = make_pool(FD_TYPE);
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, FD_TYPE, 0));
    expect(CUDA_SUCCESS,
           cuMemPoolImportFromShareableHandle(&own, as_handle(fd), FD_TYPE, 0),
           "import of a pool");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemAllocFromPoolAsync(&other, GRANULE, own, stream),
           "allocation from an imported pool");
    close(fd);
    MUST(cuMemPoolDestroy(own));
    MUST(cuMemPoolDestroy(pool));
}

static void part_pools(void)
{
    CUmemoryPool pool = make_pool(FD_TYPE);
    CUstream stream;
    CUdeviceptr ptr;

    section = "pools";
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ptr = pool_memory(pool, 64 * MIB, stream);
    pool_attributes(pool, ptr, 64 * MIB);
    pool_exports(pool, ptr);
    pool_frees(pool, stream);
    pool_of_device(pool, stream);

    pool_destroyed(stream);
    MUST(cuMemFreeAsync(ptr, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
    MUST(cuStreamDestroy(stream));
}

/* ---- two processes: pools ---- */

static void part_pool_importer(int sock)
{
    CUmemPoolPtrExportData data;
    CUmemAccessDesc desc;
    CUmemoryPool pool;
    CUdeviceptr ptr = 0, again = 0;
    int fd;

    section = "pool importer";
    start(0);
    fd = receive_fd(sock);
    receive_bytes(sock, &data, sizeof(data));
    expect(CUDA_SUCCESS,
           cuMemPoolImportFromShareableHandle(&pool, as_handle(fd), FD_TYPE, 0),
           "import of the pool");
    memset(&desc, 0, sizeof(desc));
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    expect(CUDA_SUCCESS, cuMemPoolSetAccess(pool, &desc, 1),
           "access to the pool");
    expect(CUDA_SUCCESS, cuMemPoolImportPointer(&ptr, pool, &data),
           "import of a pointer");
    expect(CUDA_SUCCESS, cuMemPoolImportPointer(&again, pool, &data),
           "import of the same pointer");
    check(ptr == again, "it has the same address");
    check(range_is(ptr + 4096, ptr, 64 * MIB),
          "GetAddressRange is the allocation");
    check(bytes_are(ptr, 0x44, MIB), "it reads the exporter's bytes");
    signal_peer(sock);
    wait_peer(sock);
    check(bytes_are(ptr, 0x44, MIB),
          "the exporter freed it: still the old bytes");
    signal_peer(sock);
    wait_peer(sock);
    check(bytes_are(ptr, 0x44, MIB),
          "the exporter has new memory there: still the old bytes");
    expect(CUDA_SUCCESS, cuMemFree(ptr), "one cuMemFree ends both imports");
    expect(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr), "a second one");
    signal_peer(sock);
}

static void part_pool_sharing(void)
{
    CUmemoryPool pool = make_pool(FD_TYPE);
    CUmemPoolPtrExportData data;
    CUdeviceptr ptr, again;
    CUstream stream;
    int sock[2], fd;
    pid_t pid;

    section = "pool sharing";
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ptr = pool_memory(pool, 64 * MIB, stream);
    MUST(cuMemsetD8Async(ptr, 0x44, 64 * MIB, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, FD_TYPE, 0));
    MUST(cuMemPoolExportPointer(&data, ptr));
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock) != 0) {
        exit(3);
    }
    pid = spawn("pool_importer", sock[1]);
    close(sock[1]);
    send_fd(sock[0], fd);
    send_bytes(sock[0], &data, sizeof(data));
    wait_peer(sock[0]);
    MUST(cuMemFreeAsync(ptr, stream));
    MUST(cuStreamSynchronize(stream));
    signal_peer(sock[0]);
    wait_peer(sock[0]);
    again = pool_memory(pool, 64 * MIB, stream);
    check(again == ptr, "new memory at the old address");
    MUST(cuMemsetD8Async(again, 0x55, 64 * MIB, stream));
    MUST(cuStreamSynchronize(stream));
    signal_peer(sock[0]);
    wait_peer(sock[0]);
    check(bytes_are(again, 0x55, MIB), "it holds the new bytes");
    join(pid, "pool_importer", 0);
    close(sock[0]);
    close(fd);
    MUST(cuMemFreeAsync(again, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(pool));
}

/* ---- memory on the host ---- */

static void part_host_memory(void)
{
    CUmemAllocationProp prop = property(0, FD_TYPE);
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc host;
    CUdeviceptr ptr, base = 1;
    size_t size = 0;
    uint64_t value;

    section = "host memory";
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    expect(CUDA_SUCCESS, cuMemCreate(&handle, GRANULE, &prop, 0),
           "create on a host NUMA node");
    MUST(cuMemAddressReserve(&ptr, 2 * GRANULE, 0, 0, 0));
    MUST(cuMemMap(ptr, GRANULE, 0, handle, 0));
    MUST(set_access(ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    check(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) ==
              CU_MEMORYTYPE_HOST,
          "MEMORY_TYPE is host");
    expect(
        CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr),
        "HOST_POINTER before the CPU has access");
    expect(CUDA_SUCCESS, cuMemGetAddressRange(&base, &size, ptr + 5),
           "GetAddressRange");
    check(base == 0 && size == GRANULE,
          "it answers the size, and 0 for the base");
    expect(CUDA_ERROR_INVALID_VALUE, dmabuf(ptr, GRANULE, 0), "dmabuf");
    memset(&host, 0, sizeof(host));
    host.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    host.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    expect(CUDA_SUCCESS, cuMemSetAccess(ptr, GRANULE, &host, 1),
           "access for the CPU");
    memset((void *)(uintptr_t)ptr, 0x66, GRANULE);
    check(bytes_are(ptr, 0x66, GRANULE), "the CPU writes, the GPU reads");
    MUST(cuMemRelease(handle));
    unreserve(ptr, 2 * GRANULE);
}

/* ---- without a context, without cuInit, after a fork ---- */

static void part_no_init(void)
{
    CUdeviceptr base;
    size_t size;
    int value;

    section = "no cuInit";
    expect(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&value),
           "cuDeviceGetCount");
    expect(CUDA_ERROR_NOT_INITIALIZED, cuMemGetAddressRange(&base, &size, 4096),
           "cuMemGetAddressRange");
    expect(CUDA_SUCCESS, cuDriverGetVersion(&value), "cuDriverGetVersion");
    check(resolved("cuMemCreate", 12000, 0) != NULL, "cuGetProcAddress works");
}

static void part_no_context(void)
{
    CUdeviceptr ptr, other, base;
    CUipcMemHandle ipc;
    CUstream stream;
    size_t size, total;
    int fd;

    section = "no context";
    MUST(cuInit(0));
    ptr = chunks(2, GRANULE, 4 * GRANULE);
    check(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr) != 0,
          "pointer attributes answer");
    expect(CUDA_ERROR_INVALID_CONTEXT, cuMemGetAddressRange(&base, &size, ptr),
           "cuMemGetAddressRange");
    expect(CUDA_ERROR_INVALID_CONTEXT,
           cuMemGetHandleForAddressRange(
               &fd, ptr, GRANULE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
           "dmabuf");
    expect(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&other, GRANULE),
           "cuMemAlloc");
    expect(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyDtoD(ptr, ptr + GRANULE, 64),
           "cuMemcpyDtoD");
    expect(CUDA_ERROR_INVALID_CONTEXT, cuIpcGetMemHandle(&ipc, ptr),
           "cuIpcGetMemHandle");
    expect(CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate(&stream, 0),
           "cuStreamCreate");
    expect(CUDA_ERROR_INVALID_CONTEXT, cuMemGetInfo(&size, &total),
           "cuMemGetInfo");
}

static void part_ended_context(void)
{
    CUcontext ctx = NULL;
    CUdeviceptr ptr;
    unsigned flags;
    int active = 1;

    section = "ended context";
    start(0);
    MUST(cuDevicePrimaryCtxRelease(0));
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    check(active == 0, "the last release ends the primary context");
    MUST(cuCtxGetCurrent(&ctx));
    check(ctx == primary, "it stays current");
    expect(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&ptr, GRANULE),
           "cuMemAlloc in it");
    expect(CUDA_SUCCESS, cuCtxPushCurrent(primary), "pushing it");
    MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
    check(ctx == primary, "a new one has the same address");
    expect(CUDA_SUCCESS, cuMemAlloc(&ptr, GRANULE), "and works again");
}

static void part_fork(void)
{
    CUdeviceptr ptr, base;
    size_t size;
    pid_t pid;

    section = "fork";
    start(0);
    ptr = chunks(1, GRANULE, GRANULE);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        failures = 0;
        expect(CUDA_ERROR_NOT_INITIALIZED, cuInit(0), "cuInit in the child");
        expect(CUDA_ERROR_NOT_INITIALIZED,
               cuMemGetAddressRange(&base, &size, ptr),
               "cuMemGetAddressRange in the child");
        expect(CUDA_ERROR_NOT_INITIALIZED, cuMemUnmap(ptr, GRANULE),
               "cuMemUnmap in the child");
        _exit(failures);
    }
    join(pid, "forked child", 0);
    check(range_is(ptr, ptr, GRANULE), "the parent is unharmed");
}

/* ---- two GPUs ---- */

static void other_device_access(CUdeviceptr ptr, CUstream stream,
                                CUdeviceptr memory)
{
    CUdeviceptr base;
    size_t size;

    expect(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, ptr),
           "GetAddressRange where this device has no access");
    expect(CUDA_ERROR_INVALID_VALUE,
           cuMemcpyDtoDAsync(memory, ptr, GRANULE, stream),
           "copy from memory that this device has no access to");
    expect(CUDA_SUCCESS,
           set_access(ptr, GRANULE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           "access for the second device, peer access not enabled");
    check(range_is(ptr, ptr, GRANULE), "GetAddressRange then answers");
    expect(CUDA_SUCCESS, cuMemcpyDtoDAsync(memory, ptr, GRANULE, stream),
           "and the copy runs");
    MUST(cuStreamSynchronize(stream));
    check(bytes_are(memory, 0x77, GRANULE), "with the right bytes");
    check(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 0,
          "DEVICE_ORDINAL stays the owner's");
}

static void part_other_opener(int sock)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;

    section = "ipc from the other device";
    start(1);
    receive_bytes(sock, &handle, sizeof(handle));
    expect(CUDA_SUCCESS,
           cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
           "open in a context of the second device");
    check(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 1,
          "DEVICE_ORDINAL is the opener's");
    check(bytes_are(ptr, 0x78, GRANULE), "it reads the first device's bytes");
}

static void other_opener(CUdeviceptr plain)
{
    CUipcMemHandle handle;
    int sock[2];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock) != 0) {
        exit(3);
    }
    MUST(cuIpcGetMemHandle(&handle, plain));
    pid = spawn("other_opener", sock[1]);
    close(sock[1]);
    send_bytes(sock[0], &handle, sizeof(handle));
    join(pid, "other_opener", 0);
    close(sock[0]);
}

static void hidden_device(CUdeviceptr ptr)
{
    CUmemGenericAllocationHandle handle;
    int sock[2], fd;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock) != 0) {
        exit(3);
    }
    MUST(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr));
    MUST(cuMemExportToShareableHandle(&fd, handle, FD_TYPE, 0));
    MUST(cuMemRelease(handle));
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    pid = spawn("hidden_importer", sock[1]);
    unsetenv("CUDA_VISIBLE_DEVICES");
    close(sock[1]);
    send_fd(sock[0], fd);
    close(fd);
    join(pid, "hidden_importer", 0);
    close(sock[0]);
}

static void part_hidden_importer(int sock)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUdeviceptr ptr;
    int fd;

    section = "hidden importer";
    start(0); /* the second GPU: the first is hidden */
    fd = receive_fd(sock);
    expect(CUDA_SUCCESS,
           cuMemImportFromShareableHandle(&handle, as_handle(fd), FD_TYPE),
           "import of a hidden GPU's memory");
    MUST(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    check(prop.location.id == CU_DEVICE_INVALID, "its location is device -2");
    MUST(cuMemAddressReserve(&ptr, GRANULE, 0, 0, 0));
    MUST(cuMemMap(ptr, GRANULE, 0, handle, 0));
    expect(CUDA_SUCCESS,
           set_access(ptr, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           "access for the visible GPU");
    check(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 0,
          "DEVICE_ORDINAL reads 0");
    check(bytes_are(ptr, 0x77, GRANULE), "it reads the bytes");
}

static void part_two_devices(void)
{
    CUcontext second;
    CUdeviceptr ptr, plain, memory;
    CUstream stream;

    section = "two devices";
    ptr = chunks(1, GRANULE, GRANULE);
    MUST(cuMemsetD8(ptr, 0x77, GRANULE));
    MUST(cuMemAlloc(&plain, GRANULE));
    MUST(cuMemsetD8(plain, 0x78, GRANULE));
    MUST(cuCtxSynchronize());
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cuCtxPushCurrent(second));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&memory, GRANULE));
    other_device_access(ptr, stream, memory);
    expect(CUDA_SUCCESS, cuMemcpyDtoDAsync(memory, plain, GRANULE, stream),
           "copy from the other's cuMemAlloc memory, no peer access");
    MUST(cuStreamSynchronize(stream));
    check(bytes_are(memory, 0x78, GRANULE), "with the right bytes");
    MUST(cuCtxPopCurrent(NULL));
    other_opener(plain);
    hidden_device(ptr);
}

/* ---- all ---- */

static const struct {
    const char *name;
    void (*alone)(void);    /* in the main process */
    void (*child)(void);    /* in a process of its own */
    void (*with_peer)(int); /* started by another part */
} parts[] = {
    {"no_init", NULL, part_no_init, NULL},
    {"no_context", NULL, part_no_context, NULL},
    {"ended_context", NULL, part_ended_context, NULL},
    {"fork", NULL, part_fork, NULL},
    {"device", part_device, NULL, NULL},
    {"queries", part_queries, NULL, NULL},
    {"attributes", part_attributes, NULL, NULL},
    {"handles", part_handles, NULL, NULL},
    {"mapping", part_mapping, NULL, NULL},
    {"dmabuf", part_dmabuf, NULL, NULL},
    {"copies", part_copies, NULL, NULL},
    {"streams", part_streams, NULL, NULL},
    {"entry_points", part_entry_points, NULL, NULL},
    {"pools", part_pools, NULL, NULL},
    {"host_memory", part_host_memory, NULL, NULL},
    {"held", part_held, NULL, NULL},
    {"sharing", part_sharing, NULL, NULL},
    {"importer", NULL, NULL, part_importer},
    {"ipc", part_ipc, NULL, NULL},
    {"ipc_importer", NULL, NULL, part_ipc_importer},
    {"pool_sharing", part_pool_sharing, NULL, NULL},
    {"pool_importer", NULL, NULL, part_pool_importer},
    {"hidden_importer", NULL, NULL, part_hidden_importer},
    {"other_opener", NULL, NULL, part_other_opener},
    {"fabric", part_fabric, NULL, NULL},
    {"fabric_pool", NULL, part_fabric_pool, NULL},
    {"flight", NULL, part_flight, NULL},
    {"fault", NULL, part_fault, NULL},
};

#define PARTS (sizeof(parts) / sizeof(parts[0]))

static int run_child(const char *name, int sock)
{
    size_t i;

    for (i = 0; i < PARTS; i++) {
        if (strcmp(parts[i].name, name) != 0) {
            continue;
        }
        if (parts[i].with_peer != NULL) {
            parts[i].with_peer(sock);
        } else if (parts[i].child != NULL) {
            parts[i].child();
        } else {
            start(0);
            parts[i].alone();
        }
        return failures != 0;
    }
    fprintf(stderr, "no part is called %s\n", name);
    return 2;
}

static void run_all(void)
{
    int devices = 0, version = 0;
    size_t i;

    for (i = 0; i < PARTS; i++) {
        if (parts[i].child != NULL) {
            section = parts[i].name;
            run_part(parts[i].name);
        }
    }
    start(0);
    for (i = 0; i < PARTS; i++) {
        if (parts[i].alone != NULL) {
            parts[i].alone();
        }
    }
    MUST(cuDeviceGetCount(&devices));
    MUST(cuDriverGetVersion(&version));
    if (devices >= 2) {
        part_two_devices();
    } else {
        printf("skip  two devices: there is one\n");
    }
    printf("# %s driver, CUDA %d, %d device(s)\n",
           simulated() ? "simulated" : "real", version, devices);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        return run_child(argv[1], argc > 2 ? atoi(argv[2]) : -1);
    }
    run_all();
    printf("# %d checks in the main process, %d failed\n", checks, failures);
    return failures != 0;
}
