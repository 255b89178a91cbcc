/* SPDX-License-Identifier: MIT */
#include "create/upgrade.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/fork.h"

/* cuDriverGetVersion of driver 535. */
#define DRIVER_MIN 12020

#define DEVICES_MAX 64

enum verdict { UNKNOWN, YES, NO };

static atomic_uchar upgrade_platform;
static atomic_uchar upgrade_devices[DEVICES_MAX];

bool vmml_upgrade_is_wsl(const char *release)
{
    return strcasestr(release, "microsoft") != NULL ||
           strcasestr(release, "wsl") != NULL;
}

static bool is_wsl(void)
{
    struct utsname name;
    int saved = errno;
    bool found;

    /* The device through which the guest reaches the host's GPU. */
    found = access("/dev/dxg", F_OK) == 0 ||
            (uname(&name) == 0 && vmml_upgrade_is_wsl(name.release));
    errno = saved;
    return found;
}

static bool has_platform(const struct vmml_real *real)
{
    unsigned char verdict = atomic_load(&upgrade_platform);
    int version = 0;

    if (verdict == UNKNOWN) {
        if (real->cuDriverGetVersion == NULL ||
            real->cuDriverGetVersion(&version) != CUDA_SUCCESS)
            return false;
        verdict = version >= DRIVER_MIN && !is_wsl() ? YES : NO;
        atomic_store(&upgrade_platform, verdict);
    }
    return verdict == YES;
}

static bool has_descriptors(const struct vmml_real *real, int ordinal)
{
    unsigned char verdict;
    CUdevice device;
    int value = 0;

    if (ordinal < 0 || ordinal >= DEVICES_MAX)
        return false;
    verdict = atomic_load(&upgrade_devices[ordinal]);
    if (verdict == UNKNOWN) {
        if (real->cuDeviceGet == NULL || real->cuDeviceGetAttribute == NULL ||
            real->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
            real->cuDeviceGetAttribute(
                &value,
                CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                device) != CUDA_SUCCESS)
            return false;
        verdict = value != 0 ? YES : NO;
        atomic_store(&upgrade_devices[ordinal], verdict);
    }
    return verdict == YES;
}

/* Fields and flags that this header does not know mean a request that is
 * better left alone. Tile pools are no linear memory. */
static bool is_plain(const CUmemAllocationProp *prop, unsigned long long flags)
{
    static const unsigned char zero[sizeof(prop->allocFlags.reserved)];

    return flags == 0 && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE &&
           prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->win32HandleMetaData == NULL &&
           prop->allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE &&
           (prop->allocFlags.usage & ~CU_MEM_CREATE_USAGE_HW_DECOMPRESS) == 0 &&
           memcmp(prop->allocFlags.reserved, zero, sizeof(zero)) == 0;
}

bool vmml_upgrade_wanted(const struct vmml_real *real,
                         const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
    const struct vmml_conf *conf = vmml_conf();

    return conf->on && conf->create && !vmml_in_child &&
           is_plain(prop, flags) && has_platform(real) &&
           has_descriptors(real, prop->location.id);
}

void vmml_upgrade_forget(void)
{
    unsigned i;

    atomic_store(&upgrade_platform, UNKNOWN);
    for (i = 0; i < DEVICES_MAX; i++)
        atomic_store(&upgrade_devices[i], UNKNOWN);
}
