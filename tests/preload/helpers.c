/* SPDX-License-Identifier: MIT */
#include "preload.h"

#include <dlfcn.h>
#include <string.h>

void *preload_open(const char *file)
{
    void *handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL);

    if (handle == NULL)
        printf("%s\n", dlerror());
    CHECK(handle != NULL);
    return handle;
}

void *preload_symbol(void *handle, const char *name)
{
    void *address = dlsym(handle, name);

    if (address == NULL)
        printf("%s\n", name);
    CHECK(address != NULL);
    return address;
}

bool preload_is_shim(const void *address)
{
    Dl_info info;

    return dladdr(address, &info) != 0 &&
           strstr(info.dli_fname, "libvmmlane") != NULL;
}

bool preload_served(void)
{
    const char *value = getenv("VMMLANE");

    return value == NULL || strcmp(value, "off") != 0;
}

const char *preload_name(const void *address)
{
    Dl_info info;

    return dladdr(address, &info) != 0 && info.dli_sname != NULL
               ? info.dli_sname
               : "";
}

const struct fake_function *preload_functions(void *driver)
{
    return preload_symbol(driver, "fake_functions");
}

void *preload_real(void *driver, const char *name)
{
    const struct fake_function *f = preload_functions(driver);

    while (f->name != NULL && strcmp(f->name, name) != 0)
        f++;
    CHECK(f->name != NULL);
    return f->address;
}
