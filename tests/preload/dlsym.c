/* SPDX-License-Identifier: MIT */
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

extern int ompt_start_tool(int depth);
extern int fake_second_needed;

void case_dlsym_versions(void)
{
    void *driver = preload_open("libcuda.so.1");

    CHECK(preload_is_shim(dlsym(driver, "cuMemMap")));
    CHECK(preload_is_shim(preload_old_dlsym(driver, "cuMemMap")));
}

void case_dlsym_names(void)
{
    void *driver = preload_open("libcuda.so.1");
    unsigned hooked = 0;

    for (const struct fake_function *f = preload_functions(driver);
         f->name != NULL; f++) {
        void *address = preload_symbol(driver, f->name);

        if (!f->hooked) {
            CHECK(address == f->address);
            continue;
        }
        hooked++;
        CHECK(preload_is_shim(address));
        CHECK(strcmp(preload_name(address), f->name) == 0);
        /* The export that direct calls reach, so that pointers compare. */
        CHECK(address == dlsym(RTLD_DEFAULT, f->name));
    }
    CHECK(hooked >= 20);
    CHECK(dlsym(driver, "cuNoSuchName") == NULL);
}

void case_dlsym_foreign(void)
{
    static const char *const names[] = {"cudnnCreate", "cublasCreate_v2",
                                        "cufftPlan1d", "cuMemMap",
                                        "cuMemGetAddressRange_v2"};
    void *driver = preload_open("libcuda.so.1");
    void *library = preload_open("libcudnn.so.9");

    CHECK(preload_is_shim(dlsym(driver, "cuMemMap")));
    for (int i = 0; i < 5; i++) {
        int (*function)(void) = preload_symbol(library, names[i]);

        CHECK(!preload_is_shim((void *)function));
        CHECK_INT(function(), 41 + i);
    }
}

void case_dlsym_next(void)
{
    /* The first definition finds the second; a wrapper in C would make it find
     * itself. */
    CHECK_INT(ompt_start_tool(0), 101);
    CHECK_INT(fake_second_needed, 0);
    /* From here, the libraries follow. */
    CHECK(dlsym(RTLD_NEXT, "ompt_start_tool") != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "ompt_start_tool") == (void *)ompt_start_tool);
}

/* The driver and UCM get the driver's own addresses. */
void case_dlsym_exempt(void)
{
    static const char *const names[] = {"cuMemMap", "cuMemUnmap",
                                        "cuMemGetAddressRange_v2"};
    void *ucm = preload_open("libucm.so.0");
    void *driver = preload_open("libcuda.so.1");
    void *(*find)(const char *, int) = preload_symbol(ucm, "fake_ucm_find");
    int (*init)(unsigned) = preload_symbol(driver, "cuInit");
    int *looks_up = preload_symbol(driver, "fake_init_looks_up");

    for (int i = 0; i < 3; i++) {
        void *real = preload_real(driver, names[i]);

        CHECK(find(names[i], 0) == real);
        CHECK(find(names[i], 1) == real);
        CHECK(preload_is_shim(dlsym(driver, names[i])));
    }
    *looks_up = 1;
    CHECK_INT(init(0), 0);
}

/* A name that nobody but the shim has is not there. */
void case_dlsym_probe(void)
{
    void *driver;

    CHECK(dlsym(RTLD_DEFAULT, "cuMemMap") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "uct_md_mkey_pack_v2") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "ucp_worker_fence") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "uct_md_mem_elem_pack") == NULL);
    driver = preload_open("libcuda.so.1");
    CHECK(driver != NULL);
    CHECK(preload_is_shim(dlsym(RTLD_DEFAULT, "cuMemMap")));
    CHECK(dlerror() == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "uct_md_mkey_pack_v2") == NULL);
}

/* VMMLANE=off: real pointers. */
void case_dlsym_off(void)
{
    void *driver = preload_open("libcuda.so.1");
    int (*resolve)(const char *, void **, int, unsigned long, int *) =
        preload_symbol(driver, "cuGetProcAddress_v2");
    int (*unmap)(unsigned long, size_t) = dlsym(RTLD_DEFAULT, "cuMemUnmap");
    void *pfn = NULL;

    for (const struct fake_function *f = preload_functions(driver);
         f->name != NULL; f++)
        CHECK(dlsym(driver, f->name) == f->address);
    CHECK_INT(resolve("cuMemMap", &pfn, 12000, 0, NULL), 0);
    CHECK(pfn == preload_real(driver, "cuMemMap"));
    /* Direct calls come through the export. */
    CHECK(preload_is_shim((void *)unmap));
    CHECK_INT(unmap(0x1000, 0x1000),
              ((int (*)(void))preload_real(driver, "cuMemUnmap"))());
}

static void print_dlerror(const char *what, void *address)
{
    int error = errno;
    const char *text = dlerror();

    printf("%s: %s, errno %d, %s\n", what, address != NULL ? "found" : "NULL",
           error, text != NULL ? text : "no error");
}

/* Run with and without the shim: the output must be the same. */
void case_dlerror(void)
{
    static const char *const names[] = {"cuMemMap",     "cuInit",
                                        "cuNoSuchName", "ucp_worker_fence",
                                        "dlsym",        "malloc"};
    void *driver = preload_open("libcuda.so.1");
    void *tool = preload_open("libtool_second.so");

    for (int i = 0; i < 6; i++) {
        errno = 77;
        print_dlerror(names[i], dlsym(driver, names[i]));
        errno = 78;
        print_dlerror(names[i], dlsym(tool, names[i]));
    }
    errno = 79;
    print_dlerror("default", dlsym(RTLD_DEFAULT, "cuNoSuchName"));
    print_dlerror("next", dlsym(RTLD_NEXT, "cuNoSuchName"));
    /* A failure that is asked about after a success. */
    CHECK(dlsym(driver, "cuNoSuchName") == NULL);
    print_dlerror("after success", dlsym(driver, "cuMemUnmap"));
}
