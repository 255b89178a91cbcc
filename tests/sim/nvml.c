/*
 * What UCX asks of libnvidia-ml.so.1. NVML's header is not part of the CUDA
 * driver API's, so the few types are declared here, in their documented
 * layout (NVML API reference, driver 535 to 580).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_EXPORT __attribute__((visibility("default")))

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

/* nvmlFieldValue_t: NVML_FI_DEV_NVLINK_LINK_COUNT and _SPEED fields. */
#define NVML_FI_DEV_NVLINK_LINK_COUNT 91
#define NVML_VALUE_TYPE_UNSIGNED_INT  1
#define NVLINKS                       18
#define MAX_DEVICES                   16
#define FIRST_BUS                     0x1b /* as in device.c */

typedef union nvmlValue_st {
    double dVal;
    int siVal;
    unsigned int uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    signed long long sllVal;
} nvmlValue_t;

typedef struct nvmlFieldValue_st {
    unsigned int fieldId;
    unsigned int scopeId;
    long long timestamp;
    long long latencyUsec;
    int valueType;
    int nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct nvmlPciInfo_st {
    char busIdLegacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

/* nvmlGpuFabricInfo_t, and the head that all versions of its V form have: the
 * version's number lies in the top byte of `version`, the size below it. */
typedef struct nvmlGpuFabricInfo_st {
    unsigned char clusterUuid[16];
    int status;
    unsigned int cliqueId;
    unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct nvmlGpuFabricInfoV_st {
    unsigned int version;
    unsigned char clusterUuid[16];
    int status;
    unsigned int cliqueId;
    unsigned char state;
} nvmlGpuFabricInfoV_t;

#define NVML_GPU_FABRIC_STATE_NOT_SUPPORTED 0
#define NVML_GPU_FABRIC_STATE_COMPLETED     3

typedef struct nvmlDevice_st {
    int index;
} * nvmlDevice_t;

static struct nvmlDevice_st devices[MAX_DEVICES];

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int result);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                             nvmlFieldValue_t *values);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                        nvmlPciInfo_t *pci);
int nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info);
int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device,
                                nvmlGpuFabricInfoV_t *info);

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL || *text == '\0' ? otherwise : atoi(text);
}

static int device_count(void)
{
    int count = number("VMMLANE_SIM_DEVICES", 1);

    return count < 0 || count > MAX_DEVICES ? 0 : count;
}

static int nvlink_on(void)
{
    return number("VMMLANE_SIM_NVLINK", 0) != 0;
}

NVML_EXPORT int nvmlInit_v2(void)
{
    int i;

    for (i = 0; i < MAX_DEVICES; i++) {
        devices[i].index = i;
    }
    return NVML_SUCCESS;
}

NVML_EXPORT int nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

NVML_EXPORT const char *nvmlErrorString(int result)
{
    return result == NVML_SUCCESS ? "Success" : "Error of the simulated NVML";
}

NVML_EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = (unsigned)device_count();
    return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index,
                                              nvmlDevice_t *device)
{
    if (device == NULL || index >= (unsigned)device_count()) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = &devices[index];
    return NVML_SUCCESS;
}

static void fill_pci(nvmlPciInfo_t *pci, unsigned bus)
{
    memset(pci, 0, sizeof(*pci));
    pci->bus = bus;
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "0000:%02X:00.0", bus);
    snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", bus);
}

NVML_EXPORT int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    if (device == NULL || pci == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    fill_pci(pci, FIRST_BUS + (unsigned)device->index);
    return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                         nvmlFieldValue_t *values)
{
    int i;

    if (device == NULL || values == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (i = 0; i < count; i++) {
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        if (values[i].fieldId == NVML_FI_DEV_NVLINK_LINK_COUNT && nvlink_on()) {
            values[i].nvmlReturn = NVML_SUCCESS;
            values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
            values[i].value.uiVal = NVLINKS;
        }
    }
    return NVML_SUCCESS;
}

/* The other end is an NVSwitch, on a bus where no GPU is. */
NVML_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device,
                                                    unsigned int link,
                                                    nvmlPciInfo_t *pci)
{
    if (device == NULL || pci == NULL || link >= NVLINKS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!nvlink_on()) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    fill_pci(pci, 0x07);
    return NVML_SUCCESS;
}

/* Whether the GPU has joined its NVLink domain. That says nothing of the node's
 * IMEX channel. */
static int fabric_on(void)
{
    const char *text = getenv("VMMLANE_SIM_FABRIC");

    return text != NULL && strcmp(text, "on") == 0;
}

#define FABRIC_INFO_NEWEST 3

NVML_EXPORT int nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device,
                                           nvmlGpuFabricInfo_t *info)
{
    if (device == NULL || info == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    memset(info, 0, sizeof(*info));
    if (fabric_on()) {
        memcpy(info->clusterUuid, "sim-fabric-uuid", 16);
        info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    }
    return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device,
                                            nvmlGpuFabricInfoV_t *info)
{
    if (device == NULL || info == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (info->version >> 24 == 0 || info->version >> 24 > FABRIC_INFO_NEWEST ||
        (info->version & 0xffffff) < sizeof(*info)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    memset(info->clusterUuid, 0, sizeof(info->clusterUuid));
    info->status = NVML_SUCCESS;
    info->cliqueId = 0;
    info->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
    if (fabric_on()) {
        memcpy(info->clusterUuid, "sim-fabric-uuid", 16);
        info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    }
    return NVML_SUCCESS;
}
