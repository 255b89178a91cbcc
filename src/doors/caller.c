/* SPDX-License-Identifier: MIT */
#include "doors/caller.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "doors/image.h"
#include "doors/module.h"

/* `name` and then the end of a name: "libucs" is libucs.so.0, libucs-1a2b.so
 * (a wheel's hash or --with-soname-suffix), libucs_fuse.so; not libucsomething.
 */
static bool vmml_is_library(const char *file, const char *name)
{
    size_t length = strlen(name);

    return strncmp(file, name, length) == 0 && file[length] != '\0' &&
           strchr(".-_", file[length]) != NULL;
}

/* The tool that CUDA_INJECTION64_PATH names is loaded by the driver and
 * watches it: it wants the real functions. */
static const char *vmml_injected_file(void)
{
    const char *path = secure_getenv("CUDA_INJECTION64_PATH");
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;

    return slash != NULL ? slash + 1 : path != NULL ? path : "";
}

/* Copied by the first thread; those that come before it is done look for
 * themselves. */
static bool vmml_is_injected(const char *file)
{
    enum { UNREAD, READING, READ };
    static atomic_int state;
    static char tool[128];
    int expected = UNREAD;
    const char *name;

    if (atomic_load_explicit(&state, memory_order_acquire) == READ)
        return tool[0] != '\0' && strcmp(file, tool) == 0;
    name = vmml_injected_file();
    if (atomic_compare_exchange_strong(&state, &expected, READING)) {
        if (strlen(name) < sizeof(tool))
            strcpy(tool, name);
        atomic_store_explicit(&state, READ, memory_order_release);
    }
    return name[0] != '\0' && strcmp(file, name) == 0;
}

static bool vmml_is_driver(const char *file)
{
    static const char *const starts[] = {
        "libcuda.so",   "libcuda-",         "libcudadebugger.so",
        "libcupti.so",  "libcuinj64.so",    "libnvperf_",
        "libsanitizer", "libToolsInjection"};

    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (strncmp(file, starts[i], strlen(starts[i])) == 0)
            return true;
    }
    return vmml_is_injected(file);
}

/* VMMLANE_RANGE_CALLERS: patterns with ',' between. */
static bool vmml_is_named(const char *file)
{
    const char *patterns = vmml_conf()->range_callers, *end;
    char pattern[256];
    size_t length;

    for (; patterns != NULL && *patterns != '\0'; patterns = end) {
        end = strchrnul(patterns, ',');
        length = (size_t)(end - patterns);
        if (*end == ',')
            end++;
        if (length == 0 || length >= sizeof(pattern))
            continue;
        memcpy(pattern, patterns, length);
        pattern[length] = '\0';
        if (fnmatch(pattern, file, 0) == 0)
            return true;
    }
    return false;
}

static enum vmml_caller vmml_ucx_class(const char *file)
{
    if (vmml_is_library(file, "libuct_cuda_gdrcopy"))
        return VMML_CALLER_UCX;
    if (vmml_is_library(file, "libuct_cuda"))
        return VMML_CALLER_UCT_CUDA;
    if (vmml_is_library(file, "libucm"))
        return VMML_CALLER_UCM;
    if (vmml_is_library(file, "libucs") || vmml_is_library(file, "libuct") ||
        vmml_is_library(file, "libucp"))
        return VMML_CALLER_UCX;
    return VMML_CALLER_OTHER;
}

enum vmml_caller vmml_file_class(const char *file)
{
    enum vmml_caller class = VMML_CALLER_OTHER;

    if (strncmp(file, "libuc", 5) == 0)
        class = vmml_ucx_class(file);
    if (class != VMML_CALLER_OTHER)
        return class;
    if (vmml_is_driver(file))
        return VMML_CALLER_DRIVER;
    if (vmml_is_library(file, "libvmmlane"))
        return VMML_CALLER_SHIM;
    return vmml_is_named(file) ? VMML_CALLER_NAMED : VMML_CALLER_OTHER;
}

/*
 * Modules that were seen: the class of a module is that of its name. An entry
 * is written once, so that it is read without a lock; a module that is loaded
 * at the place of another has another name, and an entry of its own. Names that
 * are too long, and modules beyond the table, are looked at each time.
 */
#define KNOWN_MODULES 128

enum known_state { UNUSED, WRITING, WRITTEN };

static struct known {
    _Atomic uint32_t state; /* enum known_state */
    enum vmml_caller class;
    const void *start;
    uint64_t identity;
    _Atomic bool is_kept; /* by an own reference, for ever */
    char name[232];
} known_modules[KNOWN_MODULES];

_Atomic(const void *) vmml_kept_callers[VMML_KEPT_CALLERS];

static bool write_known(struct known *known, const struct vmml_module *module)
{
    uint32_t unused = UNUSED;

    if (!atomic_compare_exchange_strong(&known->state, &unused, WRITING))
        return false;
    known->start = module->start;
    known->identity = vmml_module_identity(module);
    known->class = vmml_file_class(vmml_module_file(module));
    strcpy(known->name, module->name);
    atomic_store_explicit(&known->state, WRITTEN, memory_order_release);
    return true;
}

static size_t known_place(const struct vmml_module *module)
{
    return ((uintptr_t)module->start >> 12) * 0x9e3779b97f4a7c15ull >>
           57; /* of 128 */
}

static bool is_known_as(const struct known *known,
                        const struct vmml_module *module)
{
    return atomic_load_explicit(&known->state, memory_order_acquire) ==
               WRITTEN &&
           known->start == module->start &&
           strcmp(known->name, module->name) == 0;
}

/* Its entry, made when it is new; NULL: it gets none. */
static struct known *look_up_known(const struct vmml_module *module)
{
    size_t first = known_place(module);
    size_t i;

    for (i = 0; i < KNOWN_MODULES; i++) {
        struct known *known = &known_modules[(first + i) % KNOWN_MODULES];

        if (atomic_load_explicit(&known->state, memory_order_acquire) ==
            UNUSED) {
            if (module->name == NULL ||
                strlen(module->name) >= sizeof(known->name))
                return NULL;
            if (write_known(known, module))
                return known;
        }
        if (atomic_load_explicit(&known->state, memory_order_acquire) !=
            WRITTEN)
            return NULL; /* another thread is at it */
        if (is_known_as(known, module))
            return known;
    }
    return NULL;
}

static inline struct known *known_of(const struct vmml_module *module)
{
    struct known *known = &known_modules[known_place(module)];

    return is_known_as(known, module) ? known : look_up_known(module);
}

uint64_t vmml_caller_identity(const void *address)
{
    struct vmml_module module;
    struct known *known;

    if (!vmml_module_find(address, &module))
        return 0;
    known = known_of(&module);
    return known != NULL ? known->identity : vmml_module_identity(&module);
}

/* *known: the entry of its module, or NULL. */
static enum vmml_caller find_class(const void *address, struct known **known)
{
    struct vmml_module module;

    *known = NULL;
    if (vmml_is_own(address))
        return VMML_CALLER_SHIM;
    if (!vmml_module_find(address, &module))
        return VMML_CALLER_OTHER;
    *known = known_of(&module);
    return *known != NULL ? (*known)->class
                          : vmml_file_class(vmml_module_file(&module));
}

enum vmml_caller vmml_caller_class(const void *address)
{
    struct known *known;

    return find_class(address, &known);
}

/* Only while the module is kept: the place of an address is never given to
 * another. */
static void keep_caller(const void *caller, struct known *known)
{
    const void *none = NULL;

    if (!atomic_load_explicit(&known->is_kept, memory_order_acquire)) {
        if (dlopen(known->name, RTLD_NOLOAD | RTLD_LAZY) == NULL) {
            dlerror();
            return;
        }
        atomic_store_explicit(&known->is_kept, true, memory_order_release);
    }
    atomic_compare_exchange_strong(&vmml_kept_callers[vmml_kept_place(caller)],
                                   &none, caller);
}

enum vmml_caller vmml_hook_caller_look(const void *caller)
{
    struct known *known;
    enum vmml_caller class = find_class(caller, &known);

    if (class == VMML_CALLER_UCT_CUDA && known != NULL)
        keep_caller(caller, known);
    return class;
}

static bool vmml_image_imports(const struct vmml_image *image, const char *name)
{
    struct vmml_dynamic dynamic;

    if (!vmml_image_dynamic(image, &dynamic))
        return false;
    for (size_t i = 1; i < dynamic.undefined; i++) {
        const ElfW(Sym) *symbol = &dynamic.symbols[i];

        if (symbol->st_shndx == SHN_UNDEF &&
            strcmp(dynamic.names + symbol->st_name, name) == 0)
            return true;
    }
    return false;
}

static bool vmml_image_contains(const struct vmml_image *image,
                                const char *text)
{
    for (unsigned i = 0; i < image->count; i++) {
        const ElfW(Phdr) *header = &image->headers[i];

        if (header->p_type != PT_LOAD || (header->p_flags & PF_R) == 0 ||
            (header->p_flags & PF_W) != 0)
            continue;
        if (memmem((const void *)(image->base + header->p_vaddr),
                   header->p_filesz, text, strlen(text)) != NULL)
            return true;
    }
    return false;
}

/* Remembered answers: a module's identity, its lowest bit the answer. */
struct verdicts {
    _Atomic uint64_t entries[32];
};

static bool verdict_known(struct verdicts *verdicts, uint64_t identity,
                          bool *verdict)
{
    for (size_t i = 0; i < 32; i++) {
        uint64_t entry =
            atomic_load_explicit(&verdicts->entries[i], memory_order_relaxed);

        if ((entry | 1) == (identity | 1) && entry != 0) {
            *verdict = (entry & 1) != 0;
            return true;
        }
    }
    return false;
}

static void verdict_remember(struct verdicts *verdicts, uint64_t identity,
                             bool verdict)
{
    uint64_t entry = (identity & ~1ull) | verdict;

    for (size_t i = 0; i < 32; i++) {
        uint64_t empty = 0;

        if (atomic_compare_exchange_strong(&verdicts->entries[i], &empty,
                                           entry))
            return;
    }
}

bool vmml_module_has_fabric(const void *address)
{
    static struct verdicts known;
    struct vmml_image image;
    uint64_t identity = vmml_caller_identity(address);
    bool fabric;

    if (identity == 0)
        return false;
    if (verdict_known(&known, identity, &fabric))
        return fabric;
    if (!vmml_image_find(address, &image))
        return false;
    fabric = vmml_image_imports(&image, "cuMemPoolExportPointer");
    verdict_remember(&known, identity, fabric);
    return fabric;
}

bool vmml_module_has_native_fd(const void *address)
{
    static struct verdicts known;
    struct vmml_module module;
    struct vmml_image image;
    uint64_t identity = vmml_caller_identity(address);
    bool native;

    if (identity == 0)
        return false;
    if (verdict_known(&known, identity, &native))
        return native;
    if (!vmml_image_find(address, &image) ||
        !vmml_module_find(address, &module))
        return false;
    native = vmml_image_imports(&image, "syscall") &&
             vmml_image_contains(&image, "pidfd_getfd");
    verdict_remember(&known, identity, native);
    vmml_debug("%s shares descriptors %s", vmml_module_file(&module),
               native ? "by itself" : "not by itself");
    return native;
}
