/* SPDX-License-Identifier: MIT */
/*
 * A module that was opened with RTLD_DEEPBIND is bound to the real libraries
 * and sees none of the shim's exports: NIXL opens its UCX plugin that way when
 * told to, and a UCX built with --enable-module-deepbind its modules. What such
 * a module's slots hold is replaced by what they would hold without the flag,
 * as UCM's reloc mode does. A slot that was never called through points into
 * its own module still, and is filled in the same way.
 *
 * dlopen is not wrapped for it: from a wrapper's frame the caller's RUNPATH and
 * $ORIGIN are lost.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/remedy.h"
#include "doors/caller.h"
#include "doors/doors.h"
#include "doors/image.h"
#include "doors/libc.h"
#include "doors/module.h"
#include "doors/real.h"

#if defined(__x86_64__)
#define VMML_JUMP_SLOT R_X86_64_JUMP_SLOT
#define VMML_GLOB_DAT  R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define VMML_JUMP_SLOT R_AARCH64_JUMP_SLOT
#define VMML_GLOB_DAT  R_AARCH64_GLOB_DAT
#endif

/* A module that is being looked at. The own reference keeps it loaded. */
struct vmml_rebind {
    char name[512];
    struct vmml_image image;
    bool driver; /* its calls of the driver too, not of UCX alone */
    unsigned bypassed;
    unsigned failed;
};

static bool vmml_is_ucx_file(const char *file)
{
    enum vmml_caller class = vmml_file_class(file);

    return class == VMML_CALLER_UCX || class == VMML_CALLER_UCT_CUDA;
}

/* Modules of UCX that were looked at, by identity. A full table ends the search
 * for further ones. */
static _Atomic uint64_t vmml_rebind_done[128];

/* Modules that have called, by the start of their mapping. */
static _Atomic uint64_t vmml_rebind_callers[128];
_Atomic(const void *) vmml_rebind_seen[VMML_KEPT_CALLERS];

static bool vmml_set_has(_Atomic uint64_t *set, uint64_t value)
{
    for (size_t i = 0; i < 128; i++) {
        uint64_t entry = atomic_load_explicit(&set[i], memory_order_relaxed);

        if (entry == value)
            return true;
        if (entry == 0)
            return false;
    }
    return true;
}

/* False when it was there, or the set is full. */
static bool vmml_set_add(_Atomic uint64_t *set, uint64_t value)
{
    for (size_t i = 0; i < 128; i++) {
        uint64_t entry = 0;

        if (atomic_compare_exchange_strong(&set[i], &entry, value))
            return true;
        if (entry == value)
            return false;
    }
    return false;
}

/* What is loaded after something was unloaded may have its name and its place.
 * To look at one twice changes nothing. */
static int vmml_rebind_forget_unloaded(struct dl_phdr_info *info, size_t size,
                                       void *data)
{
    static _Atomic unsigned long long last;

    (void)size;
    (void)data;
    if (atomic_exchange(&last, info->dlpi_subs) != info->dlpi_subs)
        for (size_t i = 0; i < 128; i++)
            atomic_store(&vmml_rebind_done[i], 0);
    return 1;
}

/* The loader has made whole pages of PT_GNU_RELRO read-only; a part of a page
 * at the end is data. */
static bool vmml_is_read_only(const struct vmml_rebind *module, void **slot)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    for (unsigned i = 0; i < module->image.count; i++) {
        const ElfW(Phdr) *header = &module->image.headers[i];
        uintptr_t start = module->image.base + header->p_vaddr;
        uintptr_t end = (start + header->p_memsz) & ~(page - 1);

        if (header->p_type == PT_GNU_RELRO && (uintptr_t)slot >= start &&
            (uintptr_t)slot < end)
            return true;
    }
    return false;
}

static bool vmml_store_slot(const struct vmml_rebind *module, void **slot,
                            void *value)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *start = (void *)((uintptr_t)slot & ~(page - 1));
    bool read_only = vmml_is_read_only(module, slot);

    if (read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (read_only && mprotect(start, page, PROT_READ) != 0)
        vmml_debug("%s: a page stays writable", module->name);
    return true;
}

/*
 * What a module without RTLD_DEEPBIND finds: the first definition in the
 * program and its preloads. Not RTLD_DEFAULT: for a caller that is linked with
 * -Bsymbolic, as the shim is, glibc looks in the caller first, and a preload in
 * front of the shim would be passed by.
 */
static void *vmml_first_definition(const char *name)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    void *found = NULL;

    if (program == NULL)
        return NULL;
    found = vmml_dlsym_real()(program, name);
    dlclose(program);
    return found;
}

static void vmml_rebind_slot(struct vmml_rebind *module, void **slot,
                             void *real, const char *name)
{
    void *bound = __atomic_load_n(slot, __ATOMIC_RELAXED);
    void *wanted = vmml_first_definition(name);

    if (wanted == NULL || bound == wanted)
        return;
    /* Another interposer's, UCM's for one, stays. */
    if (bound != real && !vmml_image_holds(&module->image, bound))
        return;
    if (!vmml_store_slot(module, slot, wanted))
        module->failed++;
    else if (bound == real)
        module->bypassed++;
}

static void vmml_rebind_relocations(struct vmml_rebind *module,
                                    const struct vmml_dynamic *dynamic,
                                    const ElfW(Rela) * relocation, size_t count)
{
    for (; count > 0; relocation++, count--) {
        unsigned long type = ELF64_R_TYPE(relocation->r_info);
        const char *name;
        void *real = NULL;

        if (type != VMML_JUMP_SLOT && type != VMML_GLOB_DAT)
            continue;
        name = dynamic->names +
               dynamic->symbols[ELF64_R_SYM(relocation->r_info)].st_name;
        if (vmml_door_is_uct(name))
            real = vmml_door_uct_real(vmml_uct(dynamic->symbols), name);
        else if (module->driver && vmml_door_by_name(name) != NULL)
            real = vmml_door_real(vmml_door_by_name(name));
        if (real != NULL)
            vmml_rebind_slot(
                module, (void **)(module->image.base + relocation->r_offset),
                real, name);
    }
}

static void vmml_rebind_module(struct vmml_rebind *module)
{
    struct vmml_dynamic dynamic;

    if (!vmml_image_dynamic(&module->image, &dynamic))
        return;
    vmml_rebind_relocations(module, &dynamic, dynamic.plt_relocations,
                            dynamic.plt_count);
    vmml_rebind_relocations(module, &dynamic, dynamic.relocations,
                            dynamic.count);
    dlerror();
    if (module->failed > 0)
        vmml_warn("%s was opened with RTLD_DEEPBIND and calls past vmmlane, "
                  "and its slots cannot be changed: VMM memory gets no fast "
                  "lane there. Remedy: " VMML_REMEDY_DEEPBIND,
                  module->name);
    else if (module->bypassed > 0)
        vmml_info("%s was opened with RTLD_DEEPBIND: %u calls of it lead "
                  "through vmmlane again",
                  module->name, module->bypassed);
}

struct vmml_rebind_search {
    struct vmml_rebind module;
    uint64_t identity;
};

/* The next one that was not looked at. Nothing of the loader is called here. */
static int vmml_rebind_match(struct dl_phdr_info *info, size_t size, void *data)
{
    struct vmml_rebind_search *search = data;
    struct vmml_module module = {.name = info->dlpi_name,
                                 .base = info->dlpi_addr};
    struct vmml_image image = {info->dlpi_addr, info->dlpi_phdr,
                               info->dlpi_phnum};

    if (module.name == NULL || module.name[0] == '\0' ||
        strlen(module.name) >= sizeof(search->module.name))
        return 0;
    search->identity = vmml_module_identity(&module);
    if (vmml_set_has(vmml_rebind_done, search->identity))
        return 0;
    if (!vmml_is_ucx_file(vmml_module_file(&module)) &&
        !vmml_image_needs(&image, vmml_is_ucx_file))
        return 0;
    memset(&search->module, 0, sizeof(search->module));
    strcpy(search->module.name, module.name);
    search->module.image = image;
    search->module.driver =
        vmml_file_class(vmml_module_file(&module)) == VMML_CALLER_UCT_CUDA;
    return 1;
}

void vmml_rebind_scan(void)
{
    struct vmml_rebind_search search;
    void *handle;

    if (!vmml_conf()->on)
        return;
    dl_iterate_phdr(vmml_rebind_forget_unloaded, NULL);
    while (dl_iterate_phdr(vmml_rebind_match, &search) == 1) {
        if (!vmml_set_add(vmml_rebind_done, search.identity))
            continue;
        handle = dlopen(search.module.name, RTLD_NOLOAD | RTLD_LAZY);
        if (handle == NULL) {
            dlerror();
            continue;
        }
        vmml_rebind_module(&search.module);
        dlclose(handle);
    }
}

static int vmml_rebind_count(struct dl_phdr_info *info, size_t size, void *data)
{
    *(unsigned long long *)data = info->dlpi_adds;
    return 1;
}

void vmml_rebind_scan_new(void)
{
    static _Atomic unsigned long long last;
    unsigned long long loaded = 0;

    dl_iterate_phdr(vmml_rebind_count, &loaded);
    if (atomic_exchange_explicit(&last, loaded, memory_order_relaxed) != loaded)
        vmml_rebind_scan();
}

void vmml_rebind_look(const void *caller)
{
    struct vmml_module module;

    atomic_store_explicit(&vmml_rebind_seen[vmml_kept_place(caller)], caller,
                          memory_order_relaxed);
    if (!vmml_module_find(caller, &module) ||
        vmml_set_has(vmml_rebind_callers, (uintptr_t)module.start) ||
        !vmml_set_add(vmml_rebind_callers, (uintptr_t)module.start))
        return;
    vmml_rebind_scan();
}
