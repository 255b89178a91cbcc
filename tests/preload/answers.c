/* SPDX-License-Identifier: MIT */
/*
 * What a caller outside UCX is told, by every door: a few thousand calls, a
 * line for each with its result and all that it wrote. Run on the simulated
 * driver with and without the shim, the output must be the same.
 */
#include "answers.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

#define MIB   (1024ull * 1024)
#define CHUNK (2 * MIB)
#define SPAN  (32 * MIB)

static struct doors doors[DOOR_COUNT];

/* Where the process's memory lies differs from run to run. */
static struct {
    CUdeviceptr base;
    size_t size;
    char name;
} regions[8];
static unsigned region_count;

static void add_region(char name, CUdeviceptr base, size_t size)
{
    regions[region_count].base = base;
    regions[region_count].size = size;
    regions[region_count++].name = name;
}

static void print_value(uint64_t value)
{
    for (unsigned i = 0; i < region_count; i++) {
        if (value - regions[i].base <= regions[i].size) {
            printf(" %c+%llx", regions[i].name,
                   (unsigned long long)(value - regions[i].base));
            return;
        }
    }
    printf(" %llx", (unsigned long long)value);
}

static void print_bytes(const void *bytes, size_t size)
{
    printf(" ");
    for (size_t i = 0; i < size; i++)
        printf("%02x", ((const unsigned char *)bytes)[i]);
}

static CUmemAllocationProp device_memory(CUmemAllocationHandleType types)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = types;
    return prop;
}

/* One chunk of the layout, made through the door that its place picks. */
static void place_chunk(CUdeviceptr at, CUmemAllocationHandleType types,
                        bool access)
{
    const struct doors *d = &doors[(at / CHUNK) % DOOR_COUNT];
    CUmemAllocationProp prop = device_memory(types);
    CUmemAccessDesc desc = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    CHECK_INT(d->cuMemCreate(&handle, CHUNK, &prop, 0), CUDA_SUCCESS);
    CHECK_INT(d->cuMemMap(at, CHUNK, 0, handle, 0), CUDA_SUCCESS);
    if (access)
        CHECK_INT(d->cuMemSetAccess(at, CHUNK, &desc, 1), CUDA_SUCCESS);
    CHECK_INT(cuMemRelease(handle), CUDA_SUCCESS);
}

/* Chunks that can be exported, a hole, chunks that cannot, one without access.
 */
static CUdeviceptr make_layout(void)
{
    static const struct {
        unsigned chunk;
        CUmemAllocationHandleType types;
        bool access;
    } chunks[] = {
        {0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, true},
        {1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, true},
        {2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, true},
        {4, CU_MEM_HANDLE_TYPE_NONE, true},
        {5, CU_MEM_HANDLE_TYPE_NONE, true},
        {6, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, false},
        {7, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, true},
    };
    CUdeviceptr base;

    CHECK_INT(cuMemAddressReserve(&base, SPAN, 0, 0, 0), CUDA_SUCCESS);
    add_region('W', base, SPAN);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++)
        place_chunk(base + chunks[i].chunk * CHUNK, chunks[i].types,
                    chunks[i].access);
    return base;
}

static void ask_range(const struct doors *d, CUdeviceptr ptr)
{
    CUdeviceptr base = 0xabab;
    size_t size = 0xcdcd;

    printf("range");
    print_value(ptr);
    printf(" %d", d->cuMemGetAddressRange_v2(&base, &size, ptr));
    print_value(base);
    printf(" %zx", size);
    base = size = 0;
    printf(" %d", d->cuMemGetAddressRange_v2(&base, NULL, ptr));
    print_value(base);
    printf(" %d %zx", d->cuMemGetAddressRange_v2(NULL, &size, ptr), size);
    printf(" %d\n", d->cuMemGetAddressRange_v2(NULL, NULL, ptr));
}

static const CUpointer_attribute attributes[] = {
    CU_POINTER_ATTRIBUTE_CONTEXT,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    CU_POINTER_ATTRIBUTE_BUFFER_ID,
    CU_POINTER_ATTRIBUTE_IS_MANAGED,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    CU_POINTER_ATTRIBUTE_MAPPED,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
    (CUpointer_attribute)0,
    (CUpointer_attribute)999,
};

#define ATTRIBUTES (sizeof(attributes) / sizeof(attributes[0]))

/* Pointers into the driver's own heap are told apart from NULL only. */
static void print_attribute(CUpointer_attribute attribute,
                            const unsigned char *bytes)
{
    uint64_t value;

    memcpy(&value, bytes, sizeof(value));
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT ||
        attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
        printf(" %s", value != 0 ? "set" : "null");
    else
        print_value(value);
    print_bytes(bytes + 8, 8);
}

static void ask_attributes(const struct doors *d, CUdeviceptr ptr)
{
    CUpointer_attribute some[3] = {CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                   (CUpointer_attribute)999,
                                   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    CUpointer_attribute all[ATTRIBUTES - 2];
    unsigned char out[ATTRIBUTES][16];
    void *data[ATTRIBUTES];

    for (size_t i = 0; i < ATTRIBUTES; i++) {
        memset(out, 0xab, sizeof(out));
        printf("attribute %d", attributes[i]);
        print_value(ptr);
        printf(" %d", d->cuPointerGetAttribute(out[0], attributes[i], ptr));
        print_attribute(attributes[i], out[0]);
        printf(" %d\n", d->cuPointerGetAttribute(NULL, attributes[i], ptr));
    }
    memset(out, 0xab, sizeof(out));
    memcpy(all, attributes, sizeof(all));
    for (size_t i = 0; i < ATTRIBUTES; i++)
        data[i] = out[i];
    printf("attributes");
    print_value(ptr);
    printf(" %d", d->cuPointerGetAttributes(ATTRIBUTES - 2, all, data, ptr));
    for (size_t i = 0; i < ATTRIBUTES - 2; i++)
        print_attribute(all[i], out[i]);
    memset(out, 0xab, sizeof(out));
    printf(" %d", d->cuPointerGetAttributes(3, some, data, ptr));
    for (size_t i = 0; i < 3; i++)
        print_attribute(some[i], out[i]);
    printf("\n");
}

static void ask_ipc(const struct doors *d, CUdeviceptr ptr)
{
    CUipcMemHandle handle;
    CUdeviceptr opened = 0xabab;
    CUresult result;

    memset(&handle, 0, sizeof(handle));
    result = d->cuIpcGetMemHandle(&handle, ptr);
    printf("ipc");
    print_value(ptr);
    /* A genuine handle holds what differs from run to run. */
    printf(" %d", result);
    if (result != CUDA_SUCCESS)
        print_bytes(&handle, sizeof(handle));
    printf(" %d", d->cuIpcGetMemHandle(NULL, ptr));
    result = d->cuIpcOpenMemHandle_v2(&opened, handle, 1);
    printf(" %d", result);
    if (result == CUDA_SUCCESS)
        printf(" %d", d->cuIpcCloseMemHandle(opened));
    printf(" %d\n", d->cuIpcCloseMemHandle(ptr));
}

static void ask_devices(const struct doors *d)
{
    CUuuid uuid;

    for (CUdevice device = -1; device < 3; device++) {
        memset(&uuid, 0xab, sizeof(uuid));
        printf("uuid %d %d", device, d->cuDeviceGetUuid(&uuid, device));
        print_bytes(&uuid, sizeof(uuid));
        memset(&uuid, 0xab, sizeof(uuid));
        printf(" %d", d->cuDeviceGetUuid_v2(&uuid, device));
        print_bytes(&uuid, sizeof(uuid));
        printf("\n");
    }
}

static void print_properties(const struct doors *d,
                             CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;

    memset(&prop, 0xab, sizeof(prop));
    printf(" %d", d->cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    print_bytes(&prop, sizeof(prop));
}

static void print_export(const struct doors *d,
                         CUmemGenericAllocationHandle handle,
                         CUmemAllocationHandleType type)
{
    int fd = -1;
    CUmemGenericAllocationHandle imported = 0;
    CUresult result = d->cuMemExportToShareableHandle(&fd, handle, type, 0);

    printf(" %d %d", result, fd >= 0);
    if (result != CUDA_SUCCESS || fd < 0)
        return;
    result = d->cuMemImportFromShareableHandle(
        &imported, (void *)(uintptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    printf(" %d", result);
    if (result == CUDA_SUCCESS) {
        print_properties(d, imported);
        printf(" %d", cuMemRelease(imported));
    }
    close(fd);
}

/* The life of one allocation, with the errors on its way. */
static void ask_life(const struct doors *d, CUdeviceptr base,
                     CUmemAllocationHandleType types)
{
    CUmemAllocationProp prop = device_memory(types);
    CUmemAccessDesc desc = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0, retained = 0;
    CUdeviceptr at = base + 10 * CHUNK;

    printf("life %d %d", types, d->cuMemCreate(&handle, 12345, &prop, 0));
    printf(" %d", d->cuMemCreate(&handle, CHUNK, &prop, 7));
    printf(" %d", d->cuMemCreate(NULL, CHUNK, &prop, 0));
    printf(" %d", d->cuMemCreate(&handle, CHUNK, &prop, 0));
    print_properties(d, handle);
    print_export(d, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    print_export(d, handle, CU_MEM_HANDLE_TYPE_FABRIC);
    printf(" %d", d->cuMemMap(base, CHUNK, 0, handle, 0));
    printf(" %d", d->cuMemMap(at, CHUNK / 2, 0, handle, 0));
    printf(" %d", d->cuMemMap(at, CHUNK, 0, handle, 0));
    printf(" %d", d->cuMemSetAccess(at, 2 * CHUNK, &desc, 1));
    printf(" %d", d->cuMemSetAccess(at, CHUNK, &desc, 1));
    printf(" %d", cuMemRetainAllocationHandle(&retained, (void *)at));
    printf(" %d", retained == handle);
    print_properties(d, retained);
    print_export(d, retained, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    printf(" %d %d\n", cuMemRelease(retained), cuMemRelease(handle));
    ask_range(d, at + 17);
    ask_attributes(d, at + 17);
    printf("end %d", d->cuMemUnmap(at, CHUNK / 2));
    printf(" %d", d->cuMemcpyDtoDAsync_v2(base, at, 4096, NULL));
    printf(" %d", d->cuMemcpyDtoDAsync_v2(base, at + CHUNK, 4096, NULL));
    printf(" %d", cuStreamSynchronize(NULL));
    printf(" %d", d->cuMemUnmap(at, CHUNK));
    printf(" %d", d->cuMemUnmap(at, CHUNK));
    printf(" %d\n", d->cuMemAddressFree(base, SPAN / 2));
}

static void ask_rest(const struct doors *d)
{
    CUmemGenericAllocationHandle handle = 0;
    CUstream stream;

    printf("rest %d", d->cuMemImportFromShareableHandle(
                          &handle, (void *)(uintptr_t)-1,
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    printf(" %d", d->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    printf(" %d", d->cuStreamDestroy_v2(stream));
    printf(" %d", d->cuStreamCreate(&stream, ~0u));
    printf(" %d", d->cuStreamCreateWithPriority(&stream, 0, 0));
    printf(" %d\n", d->cuStreamDestroy_v2(stream));
}

static void ask_at(const struct doors *d, CUdeviceptr ptr)
{
    ask_range(d, ptr);
    ask_attributes(d, ptr);
    ask_ipc(d, ptr);
}

int main(void)
{
    static int on_host;
    CUdeviceptr window, plain, pool, managed;
    CUcontext context;

    CHECK_INT(cuInit(0), CUDA_SUCCESS);
    CHECK_INT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    for (int i = 0; i < DOOR_COUNT; i++)
        answers_open_door(&doors[i], i);
    window = make_layout();
    CHECK_INT(cuMemAlloc_v2(&plain, MIB), CUDA_SUCCESS);
    add_region('A', plain, MIB);
    CHECK_INT(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL),
              CUDA_SUCCESS);
    add_region('M', managed, MIB);
    CHECK_INT(cuMemAllocAsync(&pool, MIB, NULL), CUDA_SUCCESS);
    CHECK_INT(cuStreamSynchronize(NULL), CUDA_SUCCESS);
    add_region('P', pool, MIB);
    add_region('H', (CUdeviceptr)(uintptr_t)&on_host, sizeof(on_host));

    for (int i = 0; i < DOOR_COUNT; i++) {
        printf("door %s\n", doors[i].name);
        for (CUdeviceptr at = 0; at < 9 * CHUNK; at += CHUNK / 2)
            ask_at(&doors[i], window + at);
        ask_at(&doors[i], window + CHUNK - 1);
        ask_at(&doors[i], window + SPAN - 1);
        ask_at(&doors[i], plain);
        ask_at(&doors[i], plain + 12345);
        ask_at(&doors[i], managed);
        ask_at(&doors[i], managed + 12345);
        ask_at(&doors[i], pool);
        ask_at(&doors[i], 0);
        ask_at(&doors[i], (CUdeviceptr)(uintptr_t)&on_host);
        ask_devices(&doors[i]);
        ask_life(&doors[i], window, CU_MEM_HANDLE_TYPE_NONE);
        ask_life(&doors[i], window, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        ask_rest(&doors[i]);
    }
    return 0;
}
