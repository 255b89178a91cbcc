/* SPDX-License-Identifier: MIT */
/*
 * The driver, opened and asked in a child process: whatever it does there, the
 * doctor lives on, and a context would end with the child.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/remedy.h"
#include "doctor/child.h"
#include "doctor/gates.h"

#define DEVICES_MAX 64

/* cuDriverGetVersion of driver 535: see create/upgrade.c. */
#define UPGRADE_MIN 12020

#define UNTRIED (-1)

/* What one device can do; each try: a CUresult, or UNTRIED. */
struct support {
    int vmm, posix_fd, fabric, dmabuf; /* attributes */
    int compute_mode;                  /* CUcomputemode */
    int create_fd, export_fd, import_fd;
    int create_fabric;
    int export_dmabuf;
};

struct device {
    char name[64];
    struct support can;
};

enum stage { STAGE_OPEN, STAGE_INIT, STAGE_DEVICES, STAGE_DONE };

static const char *const stage_names[] = {"dlopen of libcuda.so.1", "cuInit",
                                          "a call to a device", ""};

struct asked {
    enum stage stage;
    char library[256];
    char error[256]; /* dlopen's */
    int init;        /* CUresult */
    char init_name[64];
    int version;
    int count;
    int apart;    /* pairs of devices without peer access */
    int from, to; /* one of them */
    struct device devices[DEVICES_MAX];
};

#define FUNCTIONS(X)                                                           \
    X(cuInit)                                                                  \
    X(cuDriverGetVersion)                                                      \
    X(cuGetErrorName)                                                          \
    X(cuDeviceGetCount)                                                        \
    X(cuDeviceGet)                                                             \
    X(cuDeviceGetName)                                                         \
    X(cuDeviceCanAccessPeer)                                                   \
    X(cuDeviceGetAttribute)                                                    \
    X(cuDevicePrimaryCtxRetain)                                                \
    X(cuCtxSetCurrent)                                                         \
    X(cuMemGetAllocationGranularity)                                           \
    X(cuMemCreate)                                                             \
    X(cuMemRelease)                                                            \
    X(cuMemAddressReserve)                                                     \
    X(cuMemAddressFree)                                                        \
    X(cuMemMap)                                                                \
    X(cuMemUnmap)                                                              \
    X(cuMemSetAccess)                                                          \
    X(cuMemExportToShareableHandle)                                            \
    X(cuMemImportFromShareableHandle)                                          \
    X(cuMemGetHandleForAddressRange)

static struct {
#define DECLARE(name) __typeof__(name) *name;
    FUNCTIONS(DECLARE)
#undef DECLARE
} cu;

/* ---- in the child ---- */

static const char *open_driver(struct asked *asked)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    struct link_map *map = NULL;

    if (library == NULL)
        return dlerror();
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL)
        snprintf(asked->library, sizeof(asked->library), "%s", map->l_name);
#define FIND(name) *(void **)&cu.name = dlsym(library, #name);
    FUNCTIONS(FIND)
#undef FIND
    return cu.cuInit == NULL || cu.cuDriverGetVersion == NULL ||
                   cu.cuDeviceGetCount == NULL || cu.cuDeviceGet == NULL ||
                   cu.cuDeviceGetAttribute == NULL
               ? "it lacks functions of the CUDA driver API"
               : NULL;
}

static bool has_vmm(void)
{
    return cu.cuMemGetAllocationGranularity != NULL && cu.cuMemCreate != NULL &&
           cu.cuMemRelease != NULL && cu.cuMemExportToShareableHandle != NULL &&
           cu.cuMemImportFromShareableHandle != NULL &&
           cu.cuMemAddressReserve != NULL && cu.cuMemAddressFree != NULL &&
           cu.cuMemMap != NULL && cu.cuMemUnmap != NULL &&
           cu.cuMemSetAccess != NULL;
}

static CUmemAllocationProp wanted(CUdevice device,
                                  CUmemAllocationHandleType type)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = type,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

/* Memory can be made without a context (measured); a call that wants one gets
 * the primary one, which ends with this process. */
static bool needs_context(CUresult result, CUdevice device)
{
    CUcontext context;

    return result == CUDA_ERROR_INVALID_CONTEXT &&
           cu.cuDevicePrimaryCtxRetain != NULL && cu.cuCtxSetCurrent != NULL &&
           cu.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
           cu.cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

static CUresult create(CUdevice device, CUmemAllocationHandleType type,
                       size_t *size, CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp property = wanted(device, type);
    CUresult result;

    result = cu.cuMemGetAllocationGranularity(size, &property,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return result;
    result = cu.cuMemCreate(handle, *size, &property, 0);
    if (needs_context(result, device))
        result = cu.cuMemCreate(handle, *size, &property, 0);
    return result;
}

static CUresult export_range(CUdevice device, CUdeviceptr address, size_t size,
                             int *fd)
{
    CUresult result = cu.cuMemGetHandleForAddressRange(
        fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);

    if (needs_context(result, device))
        result = cu.cuMemGetHandleForAddressRange(
            fd, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    return result;
}

static void try_dmabuf(CUdevice device, CUmemGenericAllocationHandle handle,
                       size_t size, struct support *can)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address;
    int fd = -1;

    if (!can->dmabuf || cu.cuMemGetHandleForAddressRange == NULL ||
        cu.cuMemAddressReserve(&address, size, 0, 0, 0) != CUDA_SUCCESS)
        return;
    if (cu.cuMemMap(address, size, 0, handle, 0) == CUDA_SUCCESS) {
        if (cu.cuMemSetAccess(address, size, &access, 1) == CUDA_SUCCESS)
            can->export_dmabuf = (int)export_range(device, address, size, &fd);
        if (fd >= 0)
            close(fd);
        cu.cuMemUnmap(address, size);
    }
    cu.cuMemAddressFree(address, size);
}

static void try_descriptor(CUdevice device, struct support *can)
{
    CUmemGenericAllocationHandle handle, copy;
    size_t size = 0;
    int fd = -1;

    can->create_fd = (int)create(
        device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &size, &handle);
    if (can->create_fd != CUDA_SUCCESS)
        return;
    can->export_fd = (int)cu.cuMemExportToShareableHandle(
        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (can->export_fd == CUDA_SUCCESS) {
        can->import_fd = (int)cu.cuMemImportFromShareableHandle(
            &copy, (void *)(uintptr_t)fd,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (can->import_fd == CUDA_SUCCESS)
            cu.cuMemRelease(copy);
        close(fd);
    }
    try_dmabuf(device, handle, size, can);
    cu.cuMemRelease(handle);
}

static void try_fabric(CUdevice device, struct support *can)
{
    CUmemGenericAllocationHandle handle;
    size_t size;

    if (!can->fabric)
        return;
    can->create_fabric =
        (int)create(device, CU_MEM_HANDLE_TYPE_FABRIC, &size, &handle);
    if (can->create_fabric == CUDA_SUCCESS)
        cu.cuMemRelease(handle);
}

static int attribute(CUdevice device, CUdevice_attribute which)
{
    int value = 0;

    /* Older drivers do not know the newer ones. */
    return cu.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS
               ? value
               : 0;
}

static void ask_device(int ordinal, struct device *answer)
{
    struct support *can = &answer->can;
    CUdevice device;

    memset(can, 0, sizeof(*can));
    can->create_fd = can->export_fd = can->import_fd = UNTRIED;
    can->create_fabric = can->export_dmabuf = UNTRIED;
    if (cu.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS)
        return;
    if (cu.cuDeviceGetName == NULL ||
        cu.cuDeviceGetName(answer->name, sizeof(answer->name), device) !=
            CUDA_SUCCESS)
        answer->name[0] = '\0';
    can->vmm =
        has_vmm() &&
        attribute(device,
                  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    can->posix_fd = attribute(
        device,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    can->fabric =
        attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    can->compute_mode = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    can->dmabuf = attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    if (!can->vmm)
        return;
    if (can->posix_fd)
        try_descriptor(device, can);
    try_fabric(device, can);
}

static void ask_peers(struct asked *asked)
{
    int i, j, can;

    for (i = 0; cu.cuDeviceCanAccessPeer != NULL && i < asked->count; i++) {
        for (j = 0; j < asked->count; j++) {
            if (i == j ||
                cu.cuDeviceCanAccessPeer(&can, i, j) != CUDA_SUCCESS || can)
                continue;
            asked->from = i;
            asked->to = j;
            asked->apart++;
        }
    }
}

static void ask_driver(void *argument)
{
    struct asked *asked = argument;
    const char *error, *name = NULL;
    int i;

    error = open_driver(asked);
    if (error != NULL) {
        snprintf(asked->error, sizeof(asked->error), "%s", error);
        return;
    }
    asked->stage = STAGE_INIT;
    asked->init = (int)cu.cuInit(0);
    if (cu.cuGetErrorName != NULL &&
        cu.cuGetErrorName((CUresult)asked->init, &name) == CUDA_SUCCESS)
        snprintf(asked->init_name, sizeof(asked->init_name), "%s", name);
    if (cu.cuDriverGetVersion(&asked->version) != CUDA_SUCCESS)
        asked->version = 0;
    asked->stage = STAGE_DEVICES;
    if (asked->init == CUDA_SUCCESS &&
        cu.cuDeviceGetCount(&asked->count) != CUDA_SUCCESS)
        asked->count = 0;
    if (asked->count > DEVICES_MAX)
        asked->count = DEVICES_MAX;
    for (i = 0; i < asked->count; i++)
        ask_device(i, &asked->devices[i]);
    ask_peers(asked);
    asked->stage = STAGE_DONE;
}

/* ---- gates ---- */

#define REMEDY_DRIVER                                                          \
    "install the NVIDIA driver; a container needs the NVIDIA runtime "         \
    "(--gpus all)"

static bool library(struct vmml_report *report, const struct asked *asked)
{
    if (asked->error[0] == '\0') {
        vmml_report_add(report, VMML_PASS, "driver.library", NULL, NULL,
                        "%s, CUDA %d.%d", asked->library, asked->version / 1000,
                        asked->version % 1000 / 10);
        return true;
    }
    vmml_report_add(report, VMML_FAIL, "driver.library", NULL, REMEDY_DRIVER,
                    "libcuda.so.1 cannot be opened: %s", asked->error);
    return false;
}

static const char *init_remedy(int result)
{
    switch (result) {
    case CUDA_ERROR_NO_DEVICE:
        return access("/dev/nvidiactl", F_OK) != 0
                   ? REMEDY_DRIVER
                   : "set CUDA_VISIBLE_DEVICES to a GPU that there is, or "
                     "unset it";
    case CUDA_ERROR_STUB_LIBRARY:
        return "take the CUDA toolkit's stubs out of LD_LIBRARY_PATH";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
        return "use the libcuda.so.1 that belongs to the kernel's driver (no "
               "cuda-compat in LD_LIBRARY_PATH)";
    case CUDA_ERROR_SYSTEM_NOT_READY:
        return "start nvidia-fabricmanager";
    default:
        return "see dmesg(1) and nvidia-smi; /dev/nvidia* must be readable and "
               "writable";
    }
}

static bool init(struct vmml_report *report, const struct asked *asked)
{
    if (asked->init != CUDA_SUCCESS) {
        vmml_report_add(
            report, VMML_FAIL, "driver.init", NULL, init_remedy(asked->init),
            "cuInit gives %d (%s)%s", asked->init, asked->init_name,
            access("/dev/nvidiactl", F_OK) != 0 ? "; there is no /dev/nvidiactl"
                                                : "");
        return false;
    }
    vmml_report_add(report, VMML_PASS, "driver.init", NULL, NULL,
                    "cuInit succeeds");
    if (asked->count > 0)
        return true;
    vmml_report_add(report, VMML_FAIL, "driver.devices", NULL,
                    init_remedy(CUDA_ERROR_NO_DEVICE),
                    "no GPU is visible (CUDA_VISIBLE_DEVICES is %s)",
                    getenv("CUDA_VISIBLE_DEVICES") != NULL
                        ? getenv("CUDA_VISIBLE_DEVICES")
                        : "not set");
    return false;
}

static void upgrade(struct vmml_report *report, const struct asked *asked)
{
    vmml_report_add(
        report, asked->version >= UPGRADE_MIN ? VMML_PASS : VMML_WARN,
        "driver.upgrade", NULL,
        "a driver of version 535 or newer; or " VMML_REMEDY_HANDLE_TYPE,
        asked->version >= UPGRADE_MIN
            ? "memory of handle type NONE can be made shareable "
              "(CUDA %d.%d, 12.2 or newer)"
            : "memory of handle type NONE is not made shareable: "
              "CUDA %d.%d is older than 12.2",
        asked->version / 1000, asked->version % 1000 / 10);
}

static void peers(struct vmml_report *report, const struct asked *asked)
{
    if (asked->apart == 0)
        vmml_report_add(report, VMML_PASS, "driver.peer", NULL, NULL,
                        asked->count == 1
                            ? "one GPU: all transfers stay on it"
                            : "each GPU can access each other one");
    else
        vmml_report_add(report, VMML_WARN, "driver.peer", NULL,
                        "NVLink, or PCIe without ACS or an IOMMU between the "
                        "GPUs (nvidia-smi topo -p2p r)",
                        "%d pairs of GPUs have no peer access (GPU %d to %d): "
                        "between them there is no cuda_ipc, for any memory",
                        asked->apart, asked->from, asked->to);
}

static void compute_mode(struct vmml_report *report, const char *about,
                         const struct support *can)
{
    switch (can->compute_mode) {
    case CU_COMPUTEMODE_DEFAULT:
        vmml_report_add(report, VMML_PASS, "driver.compute_mode", about, NULL,
                        "several processes may use it");
        break;
    case CU_COMPUTEMODE_PROHIBITED:
        vmml_report_add(report, VMML_FAIL, "driver.compute_mode", about,
                        "nvidia-smi --compute-mode=DEFAULT",
                        "no process may use it (mode %d)", can->compute_mode);
        break;
    default:
        vmml_report_add(report, VMML_NOTE, "driver.compute_mode", about,
                        "nvidia-smi --compute-mode=DEFAULT, where both sides "
                        "of a transfer use one GPU",
                        "one process at a time may use it (mode %d)",
                        can->compute_mode);
    }
}

static void posix_fd(struct vmml_report *report, const char *about,
                     const struct support *can)
{
    if (!can->posix_fd)
        vmml_report_add(report, VMML_FAIL, "driver.posix_fd", about,
                        "a GPU and driver with POSIX_FD handles",
                        "the device has no POSIX_FD handles");
    else if (can->create_fd == CUDA_ERROR_OUT_OF_MEMORY)
        vmml_report_add(report, VMML_SKIP, "driver.posix_fd", about,
                        "free some memory of the GPU, and ask again",
                        "no memory of the GPU is left to try it with");
    else if (can->create_fd != 0 || can->export_fd != 0 || can->import_fd != 0)
        vmml_report_add(report, VMML_FAIL, "driver.posix_fd", about,
                        "a driver that shares memory by descriptors here",
                        "%s gives %d, though the attribute says 1",
                        can->create_fd != 0 ? "cuMemCreate with POSIX_FD"
                        : can->export_fd != 0
                            ? "cuMemExportToShareableHandle"
                            : "cuMemImportFromShareableHandle",
                        can->create_fd != 0   ? can->create_fd
                        : can->export_fd != 0 ? can->export_fd
                                              : can->import_fd);
    else
        vmml_report_add(report, VMML_PASS, "driver.posix_fd", about, NULL,
                        "memory was made, exported and imported by descriptor");
}

static void fabric(struct vmml_report *report, const char *about,
                   const struct support *can)
{
    if (!can->fabric)
        vmml_report_add(report, VMML_PASS, "driver.fabric", about, NULL,
                        "no FABRIC handles; one node needs none");
    else if (can->create_fabric == 0)
        vmml_report_add(report, VMML_PASS, "driver.fabric", about, NULL,
                        "FABRIC memory can be made. vmmlane serves it "
                        "between nodes, which has been tried on simulated "
                        "nodes only: it has not met such hardware");
    else
        vmml_report_add(report, VMML_NOTE, "driver.fabric", about,
                        "for several nodes an IMEX channel (nvidia-imex, "
                        "/dev/nvidia-caps-imex-channels); on one node nothing",
                        "the attribute says 1, and cuMemCreate with FABRIC "
                        "gives %d: the attribute lies",
                        can->create_fabric);
}

static void dmabuf(struct vmml_report *report, const char *about,
                   const struct support *can)
{
    if (can->dmabuf && can->export_dmabuf == 0)
        vmml_report_add(report, VMML_PASS, "driver.dmabuf", about, NULL,
                        "a range was exported as dmabuf");
    else if (can->dmabuf && can->export_dmabuf == UNTRIED)
        vmml_report_add(report, VMML_SKIP, "driver.dmabuf", about, NULL,
                        "not tried: nothing could be mapped");
    else
        vmml_report_add(report, VMML_NOTE, "driver.dmabuf", about,
                        "for NICs nvidia-peermem, or the open kernel modules; "
                        "on one node nothing",
                        can->dmabuf ? "the attribute says 1, and the export "
                                      "gives %d"
                                    : "no DMA_BUF export (attribute %d)",
                        can->dmabuf ? can->export_dmabuf : 0);
}

static void device(struct vmml_report *report, const char *about,
                   const struct support *can)
{
    if (!can->vmm) {
        vmml_report_add(report, VMML_FAIL, "driver.vmm", about,
                        "a GPU and driver with CUDA virtual memory "
                        "management",
                        "no virtual memory management: no memory of "
                        "cuMemCreate, and nothing for vmmlane to do");
        return;
    }
    vmml_report_add(report, VMML_PASS, "driver.vmm", about, NULL,
                    "virtual memory management");
    compute_mode(report, about, can);
    posix_fd(report, about, can);
    fabric(report, about, can);
    dmabuf(report, about, can);
}

/* One section for a row of equal devices. */
static void devices(struct vmml_report *report, const struct asked *asked)
{
    char about[128];
    int i, last;

    for (i = 0; i < asked->count; i = last + 1) {
        const struct device *first = &asked->devices[i];

        for (last = i; last + 1 < asked->count &&
                       memcmp(&asked->devices[last + 1].can, &first->can,
                              sizeof(first->can)) == 0;)
            last++;
        if (last == i)
            snprintf(about, sizeof(about), "GPU %d (%s)", i, first->name);
        else
            snprintf(about, sizeof(about), "GPUs %d to %d (%s)", i, last,
                     first->name);
        device(report, about, &first->can);
    }
}

static void judge(struct vmml_report *report, const struct asked *asked)
{
    if (!library(report, asked) || !init(report, asked))
        return;
    vmml_report_add(report, VMML_PASS, "driver.devices", NULL, NULL,
                    "%d visible", asked->count);
    upgrade(report, asked);
    peers(report, asked);
    devices(report, asked);
}

void vmml_gates_driver(struct vmml_report *report,
                       const struct vmml_doctor *doctor)
{
    struct asked *asked = vmml_shared_new(sizeof(*asked));
    struct vmml_child child;

    if (asked == NULL) {
        vmml_report_add(report, VMML_SKIP, "driver.init", NULL, NULL,
                        "no memory for the child that asks the driver");
        return;
    }
    child = vmml_child_run(ask_driver, asked, doctor->timeout);
    if (child.end == VMML_CHILD_DONE)
        judge(report, asked);
    else
        vmml_report_add(
            report, VMML_FAIL,
            asked->stage == STAGE_OPEN ? "driver.library" : "driver.init", NULL,
            child.end == VMML_CHILD_TIMED_OUT
                ? "see dmesg(1) for the GPU's errors (Xid), and "
                  "reset it; a longer --timeout where it is only "
                  "slow"
                : "see dmesg(1) for the GPU's errors (Xid), and "
                  "install the driver anew",
            "%s %s", stage_names[asked->stage],
            vmml_child_text(child, doctor->timeout));
    vmml_shared_free(asked, sizeof(*asked));
}

/* ---- NVLink, as UCX asks (uct/cuda/cuda_ipc/cuda_ipc_iface.c) ---- */

/* Of the NVML API reference; its header is not part of the driver API's. */
#define NVML_FI_DEV_NVLINK_LINK_COUNT 91
#define NVML_VALUE_TYPE_UNSIGNED_INT  1

struct nvml_field {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    union {
        unsigned number;
        unsigned long long widest;
    } value;
};

struct links {
    int count; /* -1: NVML cannot be used */
};

static void ask_nvml(void *argument)
{
    struct links *links = argument;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*start)(void), (*handle)(unsigned, void **);
    int (*fields)(void *, int, struct nvml_field *);
    int (*remote)(void *, unsigned, void *);
    struct nvml_field field = {.field = NVML_FI_DEV_NVLINK_LINK_COUNT};
    long long pci[64]; /* nvmlPciInfo_t has 68 bytes */
    void *gpu;
    unsigned i;

    links->count = -1;
    if (library == NULL)
        return;
    *(void **)&start = dlsym(library, "nvmlInit_v2");
    *(void **)&handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&fields = dlsym(library, "nvmlDeviceGetFieldValues");
    *(void **)&remote = dlsym(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    if (start == NULL || handle == NULL || fields == NULL || remote == NULL ||
        start() != 0)
        return;
    links->count = 0;
    if (handle(0, &gpu) != 0 || fields(gpu, 1, &field) != 0 ||
        field.result != 0 || field.type != NVML_VALUE_TYPE_UNSIGNED_INT)
        return;
    for (i = 0; i < field.value.number; i++)
        if (remote(gpu, i, pci) != 0)
            return;
    links->count = (int)field.value.number;
}

int vmml_driver_nvlinks(const struct vmml_doctor *doctor)
{
    struct links *links = vmml_shared_new(sizeof(*links));
    int count = -1;

    if (links == NULL)
        return -1;
    if (vmml_child_run(ask_nvml, links, doctor->timeout).end == VMML_CHILD_DONE)
        count = links->count;
    vmml_shared_free(links, sizeof(*links));
    return count;
}
