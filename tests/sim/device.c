/* The library and its devices: simulated H200s. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- initialisation ---- */

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    rlim_t hard;

    /* Each allocation is a descriptor here; on a GPU it is none. */
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    hard = limit.rlim_max;
    limit.rlim_cur = limit.rlim_max = 1 << 20;
    if (hard < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0) {
        return;
    }
    limit.rlim_cur = limit.rlim_max = hard;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void forked_child(void)
{
    /* The lock may be held by a thread that the child does not have. */
    pthread_mutex_init(&sim.lock, NULL);
    sim.forked = __atomic_load_n(&sim.initialised, __ATOMIC_RELAXED) != 0;
}

CUresult sim_cuInit(unsigned int flags)
{
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sim.forked) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    sim_lock();
    if (!sim.initialised) {
        sim_config_read();
        raise_descriptor_limit();
        pthread_atfork(NULL, NULL, forked_child);
        __atomic_store_n(&sim.initialised, 1, __ATOMIC_RELEASE);
    }
    sim_unlock();
    return sim.config.devices == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult sim_cuDriverGetVersion(int *version)
{
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_config_read();
    *version = sim.config.driver_version;
    return CUDA_SUCCESS;
}

CUresult sim_cuGetExportTable(const void **table, const CUuuid *id)
{
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- devices ---- */

bool sim_dev_valid(CUdevice dev)
{
    return dev >= 0 && dev < sim.config.devices;
}

CUresult sim_cuDeviceGet(CUdevice *device, int ordinal)
{
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetCount(int *count)
{
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = sim.config.devices;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetName(char *name, int len, CUdevice dev)
{
    if (name == NULL || len <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    snprintf(name, (size_t)len, "Simulated H200");
    return CUDA_SUCCESS;
}

void sim_device_uuid(int physical, unsigned char *uuid)
{
    memcpy(uuid, "sim-gpu-uuid-\0\0\0", 16);
    uuid[13] = (unsigned char)sim.config.node;
    uuid[15] = (unsigned char)(physical + 1);
}

CUresult sim_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    if (uuid == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_device_uuid(sim.config.physical[dev], (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    return sim_cuDeviceGetUuid_v2(uuid, dev);
}

CUresult sim_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    if (bytes == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = sim.config.vram;
    return CUDA_SUCCESS;
}

/* The bus number of physical device 0. */
#define FIRST_BUS 0x1b

struct attribute {
    CUdevice_attribute id;
    int value;
};

#define ATTR(name, value)                                                      \
    {                                                                          \
        CU_DEVICE_ATTRIBUTE_##name, value                                      \
    }

/* An H200's, where a program is likely to look. */
static const struct attribute attributes[] = {
    ATTR(MAX_THREADS_PER_BLOCK, 1024),
    ATTR(WARP_SIZE, 32),
    ATTR(CLOCK_RATE, 1980000),
    ATTR(MULTIPROCESSOR_COUNT, 132),
    ATTR(CAN_MAP_HOST_MEMORY, 1),
    ATTR(CONCURRENT_KERNELS, 1),
    ATTR(ECC_ENABLED, 1),
    ATTR(PCI_DEVICE_ID, 0),
    ATTR(PCI_DOMAIN_ID, 0),
    ATTR(MEMORY_CLOCK_RATE, 3201000),
    ATTR(GLOBAL_MEMORY_BUS_WIDTH, 6016),
    ATTR(L2_CACHE_SIZE, 62914560),
    ATTR(ASYNC_ENGINE_COUNT, 3),
    ATTR(UNIFIED_ADDRESSING, 1),
    ATTR(COMPUTE_CAPABILITY_MAJOR, 9),
    ATTR(COMPUTE_CAPABILITY_MINOR, 0),
    ATTR(STREAM_PRIORITIES_SUPPORTED, 1),
    ATTR(MANAGED_MEMORY, 1),
    ATTR(CONCURRENT_MANAGED_ACCESS, 1),
    ATTR(PAGEABLE_MEMORY_ACCESS, 0),
    ATTR(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    ATTR(HOST_REGISTER_SUPPORTED, 1),
    ATTR(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    ATTR(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    ATTR(GENERIC_COMPRESSION_SUPPORTED, 1),
    ATTR(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1),
    ATTR(MEMORY_POOLS_SUPPORTED, 1),
    ATTR(GPU_DIRECT_RDMA_SUPPORTED, 1),
    ATTR(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1),
    ATTR(GPU_DIRECT_RDMA_WRITES_ORDERING, 100),
    ATTR(DMA_BUF_SUPPORTED, 1),
    ATTR(IPC_EVENT_SUPPORTED, 1),
    ATTR(HOST_NUMA_ID, 0),
    ATTR(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    ATTR(HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1),
};

static int attribute_value(CUdevice_attribute attrib, CUdevice dev)
{
    size_t i;

    switch (attrib) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return FIRST_BUS + sim.config.physical[dev];
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        return sim.config.fabric != SIM_FABRIC_OFF;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        return sim.config.fabric == SIM_FABRIC_OFF ? 1 : 9;
    default:
        break;
    }
    for (i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        if (attributes[i].id == attrib) {
            return attributes[i].value;
        }
    }
    return 0;
}

CUresult sim_cuDeviceGetAttribute(int *value, CUdevice_attribute attrib,
                                  CUdevice dev)
{
    if (value == NULL || attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = attribute_value(attrib, dev);
    return CUDA_SUCCESS;
}

const char *sim_device_bus_id(int physical, char *buf, size_t size)
{
    snprintf(buf, size, "0000:%02X:00.0", FIRST_BUS + physical);
    return buf;
}

CUresult sim_cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
    if (id == NULL || len <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_device_bus_id(sim.config.physical[dev], id, (size_t)len);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
    unsigned domain, bus, slot;
    int i;

    if (dev == NULL || id == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        if (sscanf(id, "%x:%x", &bus, &slot) != 2) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        domain = 0;
    }
    for (i = 0; i < sim.config.devices; i++) {
        if (domain == 0 && slot == 0 &&
            bus == (unsigned)(FIRST_BUS + sim.config.physical[i])) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    if (can == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(dev) || !sim_dev_valid(peer)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *can = dev != peer && sim.config.peer;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib,
                                     CUdevice src, CUdevice dst)
{
    if (value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_dev_valid(src) || !sim_dev_valid(dst) || src == dst) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
                 ? 0
                 : sim.config.peer;
    return CUDA_SUCCESS;
}
