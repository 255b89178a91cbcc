/*
 * Memory that ends an extent (B2), put between two good chunks of a segment.
 */
#include "client.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static CUmemAllocationProp properties_of(enum stranger stranger)
{
    CUmemAllocationProp properties;

    memset(&properties, 0, sizeof(properties));
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = opt.device;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (stranger == STRANGER_HOST) {
        properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
        properties.location.id = 0;
    } else if (stranger == STRANGER_UNSHAREABLE) {
        /* Compressed memory is not upgraded to a shareable type. */
        properties.requestedHandleTypes = 0;
        properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    } else if (stranger == STRANGER_DEVICE) {
        properties.location.id = 1 - opt.device;
    }
    return properties;
}

static bool can_be_made(enum stranger stranger)
{
    int count;

    CU_MUST(cuDeviceGetCount(&count));
    return stranger != STRANGER_DEVICE || count > 1;
}

/* The importer's memory, by its descriptor. */
static CUmemGenericAllocationHandle import(pid_t pid, int number)
{
    CUmemGenericAllocationHandle handle;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);

    if (fd < 0)
        die(EXIT_SKIP, "a descriptor of another process cannot be had");
    CU_MUST(cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    close(pidfd);
    return handle;
}

bool segment_put_stranger(struct segment *segment, size_t index,
                          enum stranger stranger, pid_t pid, int fd)
{
    CUmemAllocationProp properties = properties_of(stranger);
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = opt.device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    struct chunk *chunk = &segment->chunks[index];
    CUdeviceptr address = segment->base + chunk->offset;

    if (!can_be_made(stranger))
        return false;
    if (stranger == STRANGER_IMPORTED)
        chunk->handle = import(pid, fd);
    else
        CU_MUST(cuMemCreate(&chunk->handle, chunk->size, &properties, 0));
    CU_MUST(cuMemMap(address, chunk->size, 0, chunk->handle, 0));
    if (stranger != STRANGER_NO_ACCESS)
        CU_MUST(cuMemSetAccess(address, chunk->size, &access, 1));
    chunk->mapped = true;
    return true;
}

int export_memory(size_t size)
{
    CUmemAllocationProp properties = properties_of(STRANGER_IMPORTED);
    CUmemGenericAllocationHandle handle;
    int fd;

    CU_MUST(cuMemCreate(&handle, size, &properties, 0));
    CU_MUST(cuMemExportToShareableHandle(
        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU_MUST(cuMemRelease(handle));
    return fd;
}
