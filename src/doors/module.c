/* SPDX-License-Identifier: MIT */
/*
 * _dl_find_object (glibc 2.35) answers in nanoseconds and without a lock. It
 * is looked up at run time: the shim must load on an older glibc too. There,
 * dl_iterate_phdr is asked, and modules found are remembered until the loader's
 * count of unloaded ones moves.
 */
#include "doors/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "doors/libc.h"

/* struct dl_find_object of glibc's <dlfcn.h>, which older headers lack. */
struct vmml_found_object {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[8];
};

typedef int vmml_find_object_fn(void *address, struct vmml_found_object *out);

#ifdef DLFO_STRUCT_HAS_EH_DBASE
_Static_assert(offsetof(struct vmml_found_object, link_map) ==
                   offsetof(struct dl_find_object, dlfo_link_map),
               "struct dl_find_object");
_Static_assert(sizeof(struct vmml_found_object) >=
                   sizeof(struct dl_find_object),
               "struct dl_find_object");
#endif

static int vmml_no_find_object(void *address, struct vmml_found_object *out)
{
    return -1;
}

static vmml_find_object_fn *vmml_find_object(void)
{
    static _Atomic(vmml_find_object_fn *) found;
    vmml_find_object_fn *function =
        atomic_load_explicit(&found, memory_order_relaxed);
    vmml_dlsym_fn *real_dlsym;

    if (function != NULL)
        return function;
    real_dlsym = vmml_dlsym_real();
    if (real_dlsym != NULL)
        function =
            (vmml_find_object_fn *)real_dlsym(RTLD_NEXT, "_dl_find_object");
    if (function == NULL) {
        dlerror();
        function = vmml_no_find_object;
    }
    atomic_store_explicit(&found, function, memory_order_relaxed);
    return function;
}

/* Read and written in dl_iterate_phdr's callback alone: under the loader's
 * lock. */
#define VMML_WALK_KNOWN 64

static struct {
    unsigned long long unloads; /* dlpi_subs when the entries were made */
    unsigned count;
    unsigned next; /* to be overwritten when all are taken */
    struct vmml_module modules[VMML_WALK_KNOWN];
} vmml_walked;

struct vmml_search {
    const char *address;
    struct vmml_module *module;
    bool started;
};

static bool vmml_holds(const struct vmml_module *module, const char *address)
{
    return address >= (const char *)module->start &&
           address < (const char *)module->end;
}

static bool vmml_walk_known(struct vmml_search *search,
                            unsigned long long unloads)
{
    if (vmml_walked.unloads != unloads) {
        vmml_walked.unloads = unloads;
        vmml_walked.count = 0;
    }
    for (unsigned i = 0; i < vmml_walked.count; i++) {
        if (vmml_holds(&vmml_walked.modules[i], search->address)) {
            *search->module = vmml_walked.modules[i];
            return true;
        }
    }
    return false;
}

static void vmml_walk_remember(const struct vmml_module *module)
{
    if (vmml_walked.count < VMML_WALK_KNOWN) {
        vmml_walked.modules[vmml_walked.count++] = *module;
        return;
    }
    vmml_walked.modules[vmml_walked.next] = *module;
    vmml_walked.next = (vmml_walked.next + 1) % VMML_WALK_KNOWN;
}

static void vmml_walk_module(const struct dl_phdr_info *info,
                             struct vmml_module *module)
{
    uintptr_t low = UINTPTR_MAX, high = 0;

    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;

        if (header->p_type != PT_LOAD)
            continue;
        if (start < low)
            low = start;
        if (start + header->p_memsz > high)
            high = start + header->p_memsz;
    }
    module->name = info->dlpi_name;
    module->base = info->dlpi_addr;
    module->start = (const void *)low;
    module->end = (const void *)high;
}

static int vmml_walk_one(struct dl_phdr_info *info, size_t size, void *data)
{
    struct vmml_search *search = data;

    if (!search->started) {
        search->started = true;
        if (vmml_walk_known(search, info->dlpi_subs))
            return 1;
    }
    vmml_walk_module(info, search->module);
    if (!vmml_holds(search->module, search->address))
        return 0;
    vmml_walk_remember(search->module);
    return 1;
}

bool vmml_module_walk(const void *address, struct vmml_module *module)
{
    struct vmml_search search = {.address = address, .module = module};

    return dl_iterate_phdr(vmml_walk_one, &search) == 1;
}

bool vmml_module_find(const void *address, struct vmml_module *module)
{
    vmml_find_object_fn *find = vmml_find_object();
    struct vmml_found_object object;

    if (find == vmml_no_find_object)
        return vmml_module_walk(address, module);
    if (find((void *)address, &object) != 0 || object.link_map == NULL)
        return false;
    module->name = object.link_map->l_name;
    module->base = object.link_map->l_addr;
    module->start = object.map_start;
    module->end = object.map_end;
    return true;
}

const char *vmml_module_file(const struct vmml_module *module)
{
    const char *name = module->name, *slash;

    if (name == NULL || name[0] == '\0')
        name = program_invocation_short_name;
    if (name == NULL)
        return "";
    slash = strrchr(name, '/');
    return slash != NULL ? slash + 1 : name;
}

uint64_t vmml_module_identity(const struct vmml_module *module)
{
    uint64_t hash = 0xcbf29ce484222325ull ^ module->base;

    for (const char *c = module->name; c != NULL && *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
    return hash;
}
