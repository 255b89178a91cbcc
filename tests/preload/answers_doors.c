/* SPDX-License-Identifier: MIT */
#include "answers.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "preload.h"

static void *driver;

static void *by_dlsym(const char *name, const char *base)
{
    return dlsym(driver, name);
}

static void *by_procaddr(const char *name, const char *base)
{
    __typeof__(cuGetProcAddress) *resolve = dlsym(driver, "cuGetProcAddress");
    void *address = NULL;

    CHECK_INT(resolve(base, &address, 11080, 0), CUDA_SUCCESS);
    return address;
}

static void *by_procaddr_v2(const char *name, const char *base)
{
    void *address = NULL, *resolver = NULL;

    /* The resolver itself comes from the resolver, as libcudart has it. */
    CHECK_INT(
        cuGetProcAddress_v2("cuGetProcAddress", &resolver, 12000, 0, NULL),
        CUDA_SUCCESS);
    CHECK_INT(
        ((__typeof__(cuGetProcAddress_v2) *)resolver)(
            base, &address, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL),
        CUDA_SUCCESS);
    return address;
}

static void *by_procaddr_v2_ptsz(const char *name, const char *base)
{
    CUdriverProcAddressQueryResult status;
    void *address = NULL;

    CHECK_INT(cuGetProcAddress_v2_ptsz(base, &address, 13000, 0, &status),
              CUDA_SUCCESS);
    CHECK_INT(status, CU_GET_PROC_ADDRESS_SUCCESS);
    return address;
}

static void open_by(struct doors *doors,
                    void *(*find)(const char *name, const char *base))
{
#define DOOR_FIND(function, base)                                              \
    doors->function = find(#function, base);                                   \
    CHECK(doors->function != NULL);
    DOOR_FUNCTIONS(DOOR_FIND)
}

static void open_elf(struct doors *doors)
{
#define DOOR_DIRECT(function, base) doors->function = function;
    DOOR_FUNCTIONS(DOOR_DIRECT)
}

void answers_open_door(struct doors *doors, enum door door)
{
    static const char *const names[] = {"elf", "dlsym", "procaddr",
                                        "procaddr_v2", "procaddr_v2_ptsz"};

    driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    CHECK(driver != NULL);
    doors->name = names[door];
    switch (door) {
    case DOOR_ELF:
        open_elf(doors);
        break;
    case DOOR_DLSYM:
        open_by(doors, by_dlsym);
        break;
    case DOOR_PROCADDR:
        open_by(doors, by_procaddr);
        break;
    case DOOR_PROCADDR_V2:
        open_by(doors, by_procaddr_v2);
        break;
    default:
        open_by(doors, by_procaddr_v2_ptsz);
        break;
    }
    /* With the shim, all of them lead to it: what is compared is its answer. */
    if (getenv("LD_PRELOAD") != NULL && preload_served())
        CHECK(preload_is_shim((void *)doors->cuMemMap));
}
