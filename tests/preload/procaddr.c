/* SPDX-License-Identifier: MIT */
#include "preload.h"

#include <stdint.h>
#include <string.h>

#include "cuda_abi.h"

struct resolvers {
    __typeof__(cuGetProcAddress) *v1;
    __typeof__(cuGetProcAddress_v2) *v2;
    __typeof__(cuGetProcAddress_v2_ptsz) *v2_ptsz;
};

static struct resolvers open_resolvers(void *driver)
{
    struct resolvers r = {
        preload_symbol(driver, "cuGetProcAddress"),
        preload_symbol(driver, "cuGetProcAddress_v2"),
        preload_symbol(driver, "cuGetProcAddress_v2_ptsz"),
    };

    CHECK(preload_is_shim((void *)r.v1));
    CHECK(preload_is_shim((void *)r.v2));
    CHECK(preload_is_shim((void *)r.v2_ptsz));
    return r;
}

static void check_symbol(const struct resolvers *r, void *driver,
                         const char *symbol, const char *name, bool hooked)
{
    void *real = preload_real(driver, name);
    CUdriverProcAddressQueryResult status;
    void *pfn[4] = {NULL, NULL, NULL, NULL};

    status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CHECK_INT(r->v1(symbol, &pfn[0], 11050, 0), CUDA_SUCCESS);
    CHECK_INT(r->v2(symbol, &pfn[1], 12000, 0, &status), CUDA_SUCCESS);
    CHECK_INT(status, CU_GET_PROC_ADDRESS_SUCCESS);
    CHECK_INT(r->v2(symbol, &pfn[2], 12000, 0, NULL), CUDA_SUCCESS);
    CHECK_INT(r->v2_ptsz(symbol, &pfn[3], 12000, 0, NULL), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) {
        CHECK(preload_is_shim(pfn[i]) == hooked);
        CHECK(hooked ? strcmp(preload_name(pfn[i]), name) == 0
                     : pfn[i] == real);
    }
}

void case_procaddr(void)
{
    void *driver = preload_open("libcuda.so.1");
    struct resolvers r = open_resolvers(driver);
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *marker = (void *)(uintptr_t)0x1234, *pfn = marker;

    check_symbol(&r, driver, "cuMemMap", "cuMemMap", true);
    check_symbol(&r, driver, "cuMemUnmap", "cuMemUnmap", true);
    check_symbol(&r, driver, "cuMemGetAddressRange", "cuMemGetAddressRange_v2",
                 true);
    check_symbol(&r, driver, "cuMemRelease", "cuMemRelease", false);
    check_symbol(&r, driver, "cuNewInFuture", "cuNewInFuture", false);

    /* Errors leave the output as the driver leaves it. */
    CHECK_INT(r.v2("cuMemMap", &pfn, 99000, 0, &status),
              CUDA_ERROR_INVALID_VALUE);
    CHECK(pfn == marker);
    CHECK_INT(r.v1("cuMemMap", &pfn, 99000, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(pfn == marker);
    CHECK_INT(r.v2("cuMemMap", NULL, 12000, 0, &status),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(r.v2(NULL, &pfn, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    CHECK(pfn == marker);

    /* Not there: v2 says so by status alone. */
    CHECK_INT(r.v1("cuNoSuchName", &pfn, 11050, 0), CUDA_ERROR_NOT_FOUND);
    CHECK(pfn == NULL);
    pfn = marker;
    CHECK_INT(r.v2("cuNoSuchName", &pfn, 12000, 0, &status), CUDA_SUCCESS);
    CHECK(pfn == NULL);
    CHECK_INT(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    pfn = marker;
    CHECK_INT(r.v2_ptsz("cuNoSuchName", &pfn, 12000, 0, NULL), CUDA_SUCCESS);
    CHECK(pfn == NULL);
}

/* The resolver asked for itself: each form by its own signature. */
void case_procaddr_itself(void)
{
    void *driver = preload_open("libcuda.so.1");
    struct resolvers r = open_resolvers(driver);
    void *v1 = NULL, *v2 = NULL, *ptsz = NULL, *pfn = NULL;

    CHECK_INT(r.v1("cuGetProcAddress", &v1, 11030, 0), CUDA_SUCCESS);
    CHECK(v1 == (void *)r.v1);
    CHECK_INT(r.v2("cuGetProcAddress", &v2, 12000, 0, NULL), CUDA_SUCCESS);
    CHECK(v2 == (void *)r.v2);
    CHECK_INT(r.v2_ptsz("cuGetProcAddress", &ptsz, 12000, 0, NULL),
              CUDA_SUCCESS);
    CHECK(ptsz == (void *)r.v2_ptsz);
    CHECK_INT(((__typeof__(cuGetProcAddress_v2) *)v2)("cuMemMap", &pfn, 12000,
                                                      0, NULL),
              CUDA_SUCCESS);
    CHECK(preload_is_shim(pfn));
}

void case_procaddr_exempt(void)
{
    void *ucm = preload_open("libucm.so.0");
    void *driver = preload_open("libcuda.so.1");
    void *(*resolve)(const char *) = preload_symbol(ucm, "fake_ucm_resolve");

    CHECK(resolve("cuMemMap") == preload_real(driver, "cuMemMap"));
    CHECK(resolve("cuMemGetAddressRange") ==
          preload_real(driver, "cuMemGetAddressRange_v2"));
}

/* Run with and without the shim: the output must be the same. */
void case_null_outputs(void)
{
    void *driver = preload_open("libcuda.so.1");
    __typeof__(cuMemGetAddressRange_v2) *range =
        preload_symbol(driver, "cuMemGetAddressRange_v2");
    __typeof__(cuPointerGetAttribute) *attribute =
        preload_symbol(driver, "cuPointerGetAttribute");
    __typeof__(cuPointerGetAttributes) *attributes =
        preload_symbol(driver, "cuPointerGetAttributes");
    CUpointer_attribute wanted[3] = {2, 0, 7};
    unsigned out[3] = {91, 92, 93};
    void *data[3] = {&out[0], &out[1], &out[2]};
    CUdeviceptr base = 1;
    size_t size = 2;

    printf("%d\n", range(NULL, NULL, 0x5123));
    printf("%d", range(&base, NULL, 0x5123));
    printf(" %llx\n", base);
    printf("%d", range(NULL, &size, 0x5123));
    printf(" %zx\n", size);
    base = size = 3;
    printf("%d", range(&base, &size, 0));
    printf(" %llx %zx\n", base, size);
    printf("%d\n", attribute(NULL, 2, 0x5123));
    printf("%d", attributes(3, wanted, data, 0x5123));
    printf(" %u %u %u\n", out[0], out[1], out[2]);
    wanted[1] = 5;
    data[2] = NULL;
    printf("%d", attributes(3, wanted, data, 0x5123));
    printf(" %u %u %u\n", out[0], out[1], out[2]);
    printf("%d\n", attributes(0, NULL, NULL, 0x5123));
}

/* A library that has the driver's names and loads it at the first call: the
 * shim's export came before it. */
void case_trampoline(void)
{
    void *library = preload_open("libcuda_trampoline.so");
    int (*unmap)(void) = preload_symbol(library, "fake_call_unmap");

    printf("%d\n", unmap());
    printf("%d\n", unmap());
}
