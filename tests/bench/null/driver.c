/* SPDX-License-Identifier: MIT */
/*
 * A driver with nothing behind it, so that what is measured is vmmlane's own
 * work: address space is a table of 2 MiB granules, no call makes a system call
 * but the export of a descriptor, and each costs some nanoseconds. Answers are
 * those of the simulated driver (tests/sim), as far as the lane asks. One
 * device. Queries take no lock: what they are about must not change meanwhile.
 */
/* All that the header declares is exported. */
#pragma GCC visibility push(default)
#include "driver.h"
#pragma GCC visibility pop

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE  ((size_t)2 << 20)
#define GRANULES (1u << 19)
#define BASE     0x500000000000ull
#define HANDLES  (1u << 18)
/* vmmlane moves descriptors above this; one that is there already stays. */
#define FD_LOWEST 1024

enum kind { KIND_VMM, KIND_MALLOC };

struct reservation {
    uint32_t first, count; /* granules */
    enum kind kind;
};

struct granule {
    uint32_t reservation;  /* index plus 1 */
    uint32_t first, count; /* of the chunk; count 0: nothing is mapped */
    uint32_t handle;       /* index */
    bool access;
    uint64_t buffer_id;
};

struct handle {
    uint32_t refs, maps;
    uint32_t next_free; /* index plus 1 */
    bool is_imported;
    size_t size;
};

static struct granule granules[GRANULES];
static struct reservation reservations[1u << 12];
static struct handle handles[HANDLES];
static uint32_t granules_used = 1, reservations_used, handles_used;
static uint32_t free_handle;
static uint64_t next_buffer_id = 1;
static int memory_fd = -1, shared_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool null_share_fds;
struct null_calls null_calls;

#define CALL(name)                                                             \
    (__atomic_add_fetch(&null_calls.name, 1, __ATOMIC_RELAXED),                \
     __atomic_add_fetch(&null_calls.all, 1, __ATOMIC_RELAXED))

/* --- addresses ------------------------------------------------------------ */

static uint32_t index_of(CUdeviceptr ptr)
{
    return ptr < BASE || ptr - BASE >= GRANULES * GRANULE
               ? 0
               : (uint32_t)((ptr - BASE) / GRANULE);
}

static CUdeviceptr address_of(uint32_t index)
{
    return BASE + (uint64_t)index * GRANULE;
}

/* The mapped granule at an address, or NULL. */
static const struct granule *mapped_at(CUdeviceptr ptr)
{
    const struct granule *granule = &granules[index_of(ptr)];

    return granule->count == 0 ? NULL : granule;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                             CUdeviceptr addr, unsigned long long flags)
{
    uint32_t count = (uint32_t)(size / GRANULE), i;
    struct reservation *reservation = &reservations[reservations_used];

    CALL(reserve);
    if (count > GRANULES - granules_used ||
        reservations_used == sizeof(reservations) / sizeof(reservations[0]))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *reservation = (struct reservation){granules_used, count, KIND_VMM};
    reservations_used++;
    for (i = 0; i < count; i++)
        granules[granules_used + i].reservation = reservations_used;
    *ptr = address_of(granules_used);
    granules_used += count + 1; /* never back to back */
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    uint32_t first = index_of(ptr), i;

    CALL(free);
    for (i = 0; i < size / GRANULE; i++)
        granules[first + i].reservation = 0;
    return CUDA_SUCCESS;
}

/* --- handles -------------------------------------------------------------- */

static CUmemGenericAllocationHandle value_of(uint32_t index)
{
    return 0x1000 + (uint64_t)index;
}

static struct handle *handle_of(CUmemGenericAllocationHandle value)
{
    return value < 0x1000 || value - 0x1000 >= handles_used
               ? NULL
               : &handles[value - 0x1000];
}

static CUresult new_handle(CUmemGenericAllocationHandle *value, size_t size,
                           bool is_imported)
{
    uint32_t index;

    pthread_mutex_lock(&lock);
    index = handles_used;
    if (free_handle != 0) {
        index = free_handle - 1;
        free_handle = handles[index].next_free;
    } else if (handles_used < HANDLES) {
        handles_used++;
    }
    if (index < HANDLES)
        handles[index] = (struct handle){
            .refs = 1, .size = size, .is_imported = is_imported};
    pthread_mutex_unlock(&lock);
    *value = value_of(index);
    return index < HANDLES ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void check_handle(struct handle *handle)
{
    if (handle->refs != 0 || handle->maps != 0)
        return;
    handle->next_free = free_handle;
    free_handle = (uint32_t)(handle - handles) + 1;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    CALL(create);
    return new_handle(handle, size, false);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle value)
{
    struct handle *handle = handle_of(value);

    CALL(release);
    if (handle == NULL || handle->refs == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    handle->refs--;
    check_handle(handle);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *value,
                                     void *addr)
{
    const struct granule *granule = mapped_at((uintptr_t)addr);

    CALL(retain);
    if (granule == NULL ||
        reservations[granule->reservation - 1].kind != KIND_VMM)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    handles[granule->handle].refs++;
    pthread_mutex_unlock(&lock);
    *value = value_of(granule->handle);
    return CUDA_SUCCESS;
}

CUresult
cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                       CUmemGenericAllocationHandle value)
{
    const struct handle *handle = handle_of(value);

    CALL(properties);
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(prop, 0, sizeof(*prop));
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    if (!handle->is_imported)
        prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                       const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    *granularity = GRANULE;
    return CUDA_SUCCESS;
}

/* With null_share_fds all exports have one number, so that more chunks can be
 * shared than the process may have descriptors. */
CUresult cuMemExportToShareableHandle(void *out,
                                      CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    CALL(export);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&lock);
    if (memory_fd < 0)
        memory_fd = memfd_create("bench", MFD_CLOEXEC);
    if (!null_share_fds) {
        *(int *)out = fcntl(memory_fd, F_DUPFD_CLOEXEC, 0);
    } else {
        if (shared_fd < 0 || fcntl(shared_fd, F_GETFD) < 0)
            shared_fd = fcntl(memory_fd, F_DUPFD_CLOEXEC, FD_LOWEST);
        *(int *)out = shared_fd;
    }
    pthread_mutex_unlock(&lock);
    return *(int *)out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                        void *os_handle,
                                        CUmemAllocationHandleType type)
{
    CALL(import);
    return new_handle(handle, GRANULE, true);
}

/* --- mappings ------------------------------------------------------------- */

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                  CUmemGenericAllocationHandle value, unsigned long long flags)
{
    uint32_t first = index_of(ptr), count = (uint32_t)(size / GRANULE), i;
    struct handle *handle = handle_of(value);

    CALL(map);
    if (first == 0 || handle == NULL || granules[first].reservation == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < count; i++)
        granules[first + i] = (struct granule){
            .reservation = granules[first + i].reservation,
            .first = first,
            .count = count,
            .handle = (uint32_t)(handle - handles),
            .buffer_id = next_buffer_id,
        };
    next_buffer_id++;
    pthread_mutex_lock(&lock);
    handle->maps++;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    uint32_t i = index_of(ptr), end = i + (uint32_t)(size / GRANULE);

    CALL(unmap);
    for (; i < end; i++) {
        struct granule *granule = &granules[i];

        if (granule->count == 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (granule->first == i) {
            pthread_mutex_lock(&lock);
            handles[granule->handle].maps--;
            check_handle(&handles[granule->handle]);
            pthread_mutex_unlock(&lock);
        }
        *granule = (struct granule){.reservation = granule->reservation};
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size,
                        const CUmemAccessDesc *desc, size_t count)
{
    uint32_t i = index_of(ptr), end = i + (uint32_t)(size / GRANULE);

    CALL(access);
    for (; i < end; i++) {
        if (granules[i].count == 0)
            return CUDA_ERROR_INVALID_VALUE;
        granules[i].access = true;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags,
                        const CUmemLocation *location, CUdeviceptr ptr)
{
    const struct granule *granule = mapped_at(ptr);

    CALL(get_access);
    if (granule == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = granule->access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                             : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    const struct granule *granule = mapped_at(ptr);

    CALL(range);
    if (granule == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = address_of(granule->first);
    if (size != NULL)
        *size = granule->count * GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *ptr, size_t size)
{
    CUmemGenericAllocationHandle handle;
    size_t whole = (size + GRANULE - 1) / GRANULE * GRANULE;
    CUresult result = cuMemAddressReserve(ptr, whole, 0, 0, 0);

    if (result == CUDA_SUCCESS)
        result = new_handle(&handle, whole, false);
    if (result == CUDA_SUCCESS)
        result = cuMemMap(*ptr, whole, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
        reservations[granules[index_of(*ptr)].reservation - 1].kind =
            KIND_MALLOC;
        result = cuMemSetAccess(*ptr, whole, NULL, 0);
    }
    return result;
}

/* --- pointers ------------------------------------------------------------- */

static CUresult attribute_of(void *data, CUpointer_attribute attribute,
                             CUdeviceptr ptr)
{
    const struct granule *granule = mapped_at(ptr);
    const struct reservation *reservation;

    if (granule == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    reservation = &reservations[granule->reservation - 1];
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = granule->buffer_id;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = address_of(reservation->first);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = reservation->count * GRANULE;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = address_of(granule->first);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = granule->count * GRANULE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = NULL;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = NULL;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                               CUdeviceptr ptr)
{
    CALL(attribute);
    return attribute_of(data, attribute, ptr);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes,
                                void **data, CUdeviceptr ptr)
{
    CUresult result = CUDA_SUCCESS;
    unsigned i;

    CALL(attributes);
    for (i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = attribute_of(data[i], attributes[i], ptr);
    return result;
}

/* --- devices and contexts ------------------------------------------------- */

static CUcontext current;
static char primary;

/* The tables become memory at once, so that none of it is taken for
 * vmmlane's. */
CUresult cuInit(unsigned flags)
{
    size_t page;

    for (page = 0; page < sizeof(granules); page += 4096)
        ((volatile char *)granules)[page] = 0;
    for (page = 0; page < sizeof(handles); page += 4096)
        ((volatile char *)handles)[page] = 0;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                              CUdevice device)
{
    *value = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    CALL(uuid);
    memset(uuid, 7, sizeof(*uuid));
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CALL(context);
    *context = (CUcontext)(void *)&primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    CALL(context);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
                                    int *active)
{
    CALL(context);
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CALL(context);
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CALL(context);
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CALL(context);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    CALL(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    CALL(context);
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode old = now;

    CALL(capture);
    now = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* --- streams and copies --------------------------------------------------- */

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    static char streams[64];
    static unsigned count;

    *stream = (CUstream)(void *)&streams[count++ % sizeof(streams)];
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    CALL(stream);
    *context = (CUcontext)(void *)&primary;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CALL(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CALL(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
    CALL(stream);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    static char one;

    CALL(event);
    *event = (CUevent)(void *)&one;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CALL(event);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
    CALL(event);
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    CALL(event);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    CALL(event);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t length,
                           CUstream stream)
{
    CALL(copy);
    return CUDA_SUCCESS;
}

/* --- legacy IPC ----------------------------------------------------------- */

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    const struct granule *granule = mapped_at(ptr);

    CALL(ipc);
    if (granule == NULL ||
        reservations[granule->reservation - 1].kind != KIND_MALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof(*handle));
    memcpy(handle->reserved, &ptr, sizeof(ptr));
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle,
                            unsigned flags)
{
    CALL(ipc);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    CALL(ipc);
    return CUDA_ERROR_INVALID_VALUE;
}

/* --- functions by name ---------------------------------------------------- */

CUresult cuGetProcAddress(const char *symbol, void **function, int version,
                          cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    *function = NULL;
    if (strcmp(symbol, "cuMemGetAddressRange") == 0)
        *function = (void *)cuMemGetAddressRange;
    if (status != NULL)
        *status = *function == NULL ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                                    : CU_GET_PROC_ADDRESS_SUCCESS;
    return *function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
