/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doors/caller.h"
#include "doors/module.h"

static const char *native_module, *plain_module;
static char folder[] = "/tmp/vmmlane-caller-XXXXXX";

/* File names as UCX's releases, wheels and suffixed builds have them. */
static void test_file_names(void **state)
{
    static const struct {
        const char *file;
        enum vmml_caller class;
    } names[] = {
        {"libuct_cuda.so", VMML_CALLER_UCT_CUDA},
        {"libuct_cuda.so.0", VMML_CALLER_UCT_CUDA},
        {"libuct_cuda.so.0.0.0", VMML_CALLER_UCT_CUDA},
        {"libuct_cuda-1a2b3c4d.so.0.0.0", VMML_CALLER_UCT_CUDA},
        {"libuct_cuda-nixl.so.0", VMML_CALLER_UCT_CUDA},
        {"libuct_cuda_nixl.so", VMML_CALLER_UCT_CUDA},
        {"libuct_cuda_gdrcopy.so.0", VMML_CALLER_UCX},
        {"libuct_cuda_gdrcopy-1a2b3c4d.so.0.0.0", VMML_CALLER_UCX},
        {"libuct_cudax.so", VMML_CALLER_UCX},
        {"libuct.so.0", VMML_CALLER_UCX},
        {"libuct-1141f529.so.0.0.0", VMML_CALLER_UCX},
        {"libuct_ib.so", VMML_CALLER_UCX},
        {"libucp.so.0.0.0", VMML_CALLER_UCX},
        {"libucp-nixl.so.0", VMML_CALLER_UCX},
        {"libucs.so.0", VMML_CALLER_UCX},
        {"libucs_fuse.so", VMML_CALLER_UCX},
        {"libucc.so.1", VMML_CALLER_OTHER},
        {"libucpx.so", VMML_CALLER_OTHER},
        {"libucm.so.0", VMML_CALLER_UCM},
        {"libucm_cuda.so.0.0.0", VMML_CALLER_UCM},
        {"libucm-fc7d2b1a.so.0.0.0", VMML_CALLER_UCM},
        {"libcuda.so.1", VMML_CALLER_DRIVER},
        {"libcuda.so.580.65.06", VMML_CALLER_DRIVER},
        {"libcudadebugger.so.1", VMML_CALLER_DRIVER},
        {"libcupti.so.13", VMML_CALLER_DRIVER},
        {"libToolsInjection64.so", VMML_CALLER_DRIVER},
        {"libmytool.so", VMML_CALLER_DRIVER},
        {"libcudart.so.13", VMML_CALLER_OTHER},
        {"libcudart-1a2b3c4d.so.12", VMML_CALLER_OTHER},
        {"libcudnn.so.9", VMML_CALLER_OTHER},
        {"libcublas.so.13", VMML_CALLER_OTHER},
        {"libcudaq.so", VMML_CALLER_OTHER},
        {"libnccl.so.2", VMML_CALLER_OTHER},
        {"libtorch_cuda.so", VMML_CALLER_OTHER},
        {"libvmmlane.so", VMML_CALLER_SHIM},
        {"libnamed.so.3", VMML_CALLER_NAMED},
        {"_engine.cpython-311-x86_64-linux-gnu.so", VMML_CALLER_NAMED},
        {"libunnamed.so", VMML_CALLER_OTHER},
        {"python3.11", VMML_CALLER_OTHER},
        {"", VMML_CALLER_OTHER},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (vmml_file_class(names[i].file) != names[i].class)
            fail_msg("%s is %d, not %d", names[i].file,
                     (int)vmml_file_class(names[i].file), (int)names[i].class);
    }
}

static void copy_file(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    char buffer[4096];
    size_t count;

    assert_non_null(in);
    assert_non_null(out);
    while ((count = fread(buffer, 1, sizeof(buffer), in)) > 0)
        assert_int_equal(fwrite(buffer, 1, count, out), count);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

static void *load_as(const char *module, const char *name)
{
    char path[PATH_MAX];
    void *handle;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    copy_file(module, path);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    if (handle == NULL)
        fail_msg("%s", dlerror());
    return handle;
}

static void test_loaded_modules(void **state)
{
    void *cuda = load_as(plain_module, "libuct_cuda-0a1b2c3d.so.0.0.0");
    void *ucm = load_as(plain_module, "libucm.so.0");
    void *page;

    assert_int_equal(vmml_caller_class(dlsym(cuda, "module_text")),
                     VMML_CALLER_UCT_CUDA);
    assert_int_equal(vmml_caller_class(dlsym(cuda, "module_data")),
                     VMML_CALLER_UCT_CUDA);
    assert_int_equal(vmml_caller_class(dlsym(ucm, "module_text")),
                     VMML_CALLER_UCM);
    assert_int_equal(vmml_caller_class(dlsym(RTLD_DEFAULT, "malloc")),
                     VMML_CALLER_OTHER);
    assert_int_equal(vmml_caller_class((void *)vmml_caller_class),
                     VMML_CALLER_SHIM);
    /* Code that no module holds, and no address at all. */
    page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    assert_int_equal(vmml_caller_class(page), VMML_CALLER_OTHER);
    assert_int_equal(vmml_caller_class(NULL), VMML_CALLER_OTHER);
    munmap(page, 4096);
    dlclose(cuda);
    dlclose(ucm);
}

/* Of one module after another, mostly at the same place: each is told by its
 * own name. */
static void test_places_used_again(void **state)
{
    static const struct {
        const char *file;
        enum vmml_caller class;
    } names[] = {{"libucm.so.0", VMML_CALLER_UCM},
                 {"libunnamed.so", VMML_CALLER_OTHER},
                 {"libucs.so.0", VMML_CALLER_UCX},
                 {"libucm.so.0", VMML_CALLER_UCM}};
    struct vmml_module module;
    void *address, *handle;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        handle = load_as(plain_module, names[i].file);
        address = dlsym(handle, "module_text");
        for (int round = 0; round < 2; round++)
            assert_int_equal(vmml_hook_caller(address), names[i].class);
        assert_false(vmml_caller_is_kept(address));
        dlclose(handle);
        assert_false(vmml_module_find(address, &module));
        assert_int_equal(vmml_hook_caller(address), VMML_CALLER_OTHER);
    }
}

/* An address that is kept stays libuct_cuda's. */
static void test_kept(void **state)
{
    void *handle = load_as(plain_module, "libuct_cuda.so.0.0.7");
    void *address = dlsym(handle, "module_text");
    struct vmml_module module;

    assert_false(vmml_caller_is_kept(address));
    assert_int_equal(vmml_hook_caller(address), VMML_CALLER_UCT_CUDA);
    assert_true(vmml_caller_is_kept(address));
    assert_int_equal(vmml_hook_caller(address), VMML_CALLER_UCT_CUDA);
    dlclose(handle);
    assert_true(vmml_module_find(address, &module));
    assert_string_equal(vmml_module_file(&module), "libuct_cuda.so.0.0.7");
    assert_false(vmml_caller_is_kept(NULL));
    assert_int_equal(vmml_hook_caller(NULL), VMML_CALLER_OTHER);
}

/* glibc before 2.35 has no _dl_find_object: both ways answer alike. */
static void test_walk(void **state)
{
    void *cuda = load_as(plain_module, "libuct_cuda.so.0");
    const void *addresses[] = {
        dlsym(cuda, "module_text"), dlsym(cuda, "module_data"),
        dlsym(RTLD_DEFAULT, "malloc"), (void *)vmml_caller_class};
    struct vmml_module found, walked;

    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++) {
            assert_true(vmml_module_find(addresses[i], &found));
            assert_true(vmml_module_walk(addresses[i], &walked));
            assert_string_equal(found.name, walked.name);
            assert_true(found.base == walked.base);
            assert_ptr_equal(found.start, walked.start);
            /* The rest of the last page counts for one of them. */
            assert_true(addresses[i] < found.end);
            assert_true(addresses[i] < walked.end);
        }
        assert_false(vmml_module_walk(NULL, &walked));
    }
    dlclose(cuda);
}

/* Another module comes to the place of one that was unloaded. */
static void test_replaced(void **state)
{
    struct vmml_module walked;
    void *first, *second;
    const void *place;

    for (int i = 0; i < 10; i++) {
        first = load_as(native_module, "libuct_cuda.so.0");
        place = dlsym(first, "module_text");
        assert_int_equal(vmml_caller_class(place), VMML_CALLER_UCT_CUDA);
        assert_true(vmml_module_has_native_fd(place));
        assert_true(vmml_module_walk(place, &walked));
        dlclose(first);
        second = load_as(plain_module, "libsomething.so.0");
        if (dlsym(second, "module_text") == place)
            break;
        dlclose(second);
        second = NULL;
    }
    if (second == NULL)
        skip();
    assert_int_equal(vmml_caller_class(place), VMML_CALLER_OTHER);
    assert_false(vmml_module_has_native_fd(place));
    assert_true(vmml_module_walk(place, &walked));
    assert_non_null(strstr(walked.name, "libsomething"));
    dlclose(second);
}

static void test_native_fd(void **state)
{
    void *native = load_as(native_module, "libuct_cuda-1.so.0");
    void *plain = load_as(plain_module, "libuct_cuda-2.so.0");

    for (int round = 0; round < 2; round++) {
        assert_true(vmml_module_has_native_fd(dlsym(native, "module_call")));
        assert_true(vmml_module_has_native_fd(dlsym(native, "module_data")));
        assert_false(vmml_module_has_native_fd(dlsym(plain, "module_call")));
        assert_false(vmml_module_has_native_fd(dlsym(plain, "module_data")));
        assert_false(vmml_module_has_native_fd(NULL));
    }
    /* libc has the text, as the name of a wrapper, but imports nothing. */
    assert_false(vmml_module_has_native_fd(dlsym(RTLD_DEFAULT, "malloc")));
    dlclose(native);
    dlclose(plain);
}

static int make_folder(void **state)
{
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_names),
        cmocka_unit_test(test_loaded_modules),
        cmocka_unit_test(test_places_used_again),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_native_fd),
    };

    if (argc != 3)
        return 2;
    native_module = argv[1];
    plain_module = argv[2];
    setenv("VMMLANE_RANGE_CALLERS", "libnamed*,,_engine.*.so", 1);
    setenv("CUDA_INJECTION64_PATH", "/opt/tool/libmytool.so", 1);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
