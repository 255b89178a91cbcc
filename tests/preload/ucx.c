/* SPDX-License-Identifier: MIT */
#include "preload.h"

#include <dlfcn.h>
#include <string.h>

#include "cuda_abi.h"
#include "fake/fake_ucx.h"
#include "ucx/uct_abi.h"

static const char *const copies[] = {"libucp.so.0", "libucp-1a2b3c4d.so.0"};

/* The copies are loaded one after the other and asked in turn: each must reach
 * its own libuct. */
void case_ucx_copies(void)
{
    static const enum fake_ucx_function functions[] = {
        FAKE_UCX_REG, FAKE_UCX_QUERY, FAKE_UCX_PACK, FAKE_UCX_RELEASE,
        FAKE_UCX_FENCE};
    fake_ucx_ask_ptr ask[2];

    preload_open("libcuda.so.1");
    for (int i = 0; i < 2; i++)
        ask[i] = preload_symbol(preload_open(copies[i]), "fake_ucx_ask");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            for (int copy = 0; copy < 2; copy++)
                CHECK_INT(ask[copy](functions[i]),
                          FAKE_UCX_RESULT(copy + 1, functions[i]));
        }
    }
}

/* An export whose real function the caller's own libuct lacks; the other
 * copy's is not taken for it. */
void case_ucx_missing(void)
{
    fake_ucx_ask_ptr ask[2];
    fake_ucx_elem_fn *elem;

    for (int i = 0; i < 2; i++)
        ask[i] = preload_symbol(preload_open(copies[i]), "fake_ucx_ask");
    CHECK_INT(ask[0](FAKE_UCX_QUERY_V2), FAKE_UCX_RESULT(1, FAKE_UCX_QUERY_V2));
    CHECK_INT(ask[1](FAKE_UCX_QUERY_V2), VMML_UCS_ERR_UNSUPPORTED);
    CHECK_INT(ask[1](FAKE_UCX_UNPACK_V2), VMML_UCS_ERR_UNSUPPORTED);
    elem = preload_symbol(preload_open(copies[1]), "fake_ucx_elem");
    CHECK_INT((signed char)elem(), VMML_UCS_ERR_UNSUPPORTED);
}

/* libuct's unpack calls its own unpack_v2 through the preload. */
void case_ucx_nested(void)
{
    fake_ucx_ask_fn *ask =
        preload_symbol(preload_open(copies[0]), "fake_ucx_ask");
    int *unpacks = preload_symbol(preload_open("libuct.so.0"), "fake_unpacks");

    CHECK_INT(ask(FAKE_UCX_UNPACK), FAKE_UCX_RESULT(1, FAKE_UCX_UNPACK_V2));
    CHECK_INT(*unpacks, 1);
    CHECK_INT(ask(FAKE_UCX_UNPACK_V2), FAKE_UCX_RESULT(1, FAKE_UCX_UNPACK_V2));
    CHECK_INT(*unpacks, 2);
}

/* The assembly stub keeps every argument, in registers and on the stack. */
void case_ucx_registers(void)
{
    fake_ucx_elem_fn *elem =
        preload_symbol(preload_open(copies[0]), "fake_ucx_elem");

    CHECK_INT(elem(), FAKE_UCX_ELEM_SUM);
    CHECK_INT(elem(), FAKE_UCX_ELEM_SUM);
}

/* A program without a UCX of its own, and one that came with RTLD_GLOBAL. */
void case_ucx_global(void)
{
    signed char (*query)(void *, void *, size_t, void *);
    static const struct vmml_uct_component component = {"fake"};
    static struct vmml_uct_md md = {NULL, &component};

    CHECK(dlsym(RTLD_DEFAULT, "uct_md_mem_query") == NULL);
    CHECK(dlopen(copies[0], RTLD_LAZY | RTLD_GLOBAL) != NULL);
    query = (signed char (*)(void *, void *, size_t, void *))dlsym(
        RTLD_DEFAULT, "uct_md_mem_query");
    CHECK(preload_is_shim((void *)query));
    CHECK_INT(query(&md, NULL, 1, NULL), FAKE_UCX_RESULT(1, FAKE_UCX_QUERY));
}

/* Looked up by name, as a foreign function interface does: the caller of the
 * function then has no libucp in its scope. */
void case_ucx_fence(void)
{
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            void *library = preload_open(copies[i]);
            signed char (*fence)(void *) =
                preload_symbol(library, "ucp_worker_fence");

            CHECK(preload_is_shim((void *)fence));
            CHECK_INT(fence(NULL), FAKE_UCX_RESULT(i + 1, FAKE_UCX_FENCE));
        }
    }
}

static fake_ucx_ask_fn *open_deep_ucp(const void ***caller)
{
    void *ucp = dlopen(copies[0], RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    fake_ucx_ask_fn *ask;

    CHECK(ucp != NULL);
    ask = preload_symbol(ucp, "fake_ucx_ask");
    *caller = preload_symbol(ucp, "fake_query_caller");
    CHECK_INT(ask(FAKE_UCX_QUERY), FAKE_UCX_RESULT(1, FAKE_UCX_QUERY));
    CHECK(!preload_is_shim(**caller));
    return ask;
}

static void check_deep_ucp(fake_ucx_ask_fn *ask, const void **caller,
                           bool served)
{
    CHECK_INT(ask(FAKE_UCX_QUERY), FAKE_UCX_RESULT(1, FAKE_UCX_QUERY));
    CHECK(preload_is_shim(*caller) == served);
    CHECK_INT(ask(FAKE_UCX_PACK), FAKE_UCX_RESULT(1, FAKE_UCX_PACK));
    CHECK_INT(ask(FAKE_UCX_UNPACK), FAKE_UCX_RESULT(1, FAKE_UCX_UNPACK_V2));
}

static void call_module(void *module, bool served)
{
    void *(*resolve)(void) = preload_symbol(module, "fake_module_resolve");
    void *pfn = resolve();

    CHECK(pfn != NULL);
    CHECK(preload_is_shim(pfn) == served);
}

/* NIXL_UCX_DEEPBIND: libucp is deep-bound, the module that it loads later is
 * not, and its first call brings libucp back. */
void case_deepbind_plugin(void)
{
    const void **query_caller;
    fake_ucx_ask_fn *ask = open_deep_ucp(&query_caller);
    void *module = preload_open("libuct_cuda.so.0");

    call_module(module, preload_served());
    check_deep_ucp(ask, query_caller, preload_served());
}

/* UCX's --enable-module-deepbind: modules are, and UCX then asks for their
 * initialisation by name. */
void case_deepbind_module(void)
{
    static const char *const files[] = {"libuct_cuda.so.0",
                                        "libuct_cuda-now.so.0"};

    for (int i = 0; i < 2; i++) {
        void *module = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);

        CHECK(module != NULL);
        call_module(module, false);
        CHECK(dlsym(module, "ucs_module_global_init") != NULL);
        call_module(module, preload_served());
    }
}

/* Closed, and opened once more at the same place (under qemu-user it may be
 * another). */
void case_deepbind_again(void)
{
    const void *place = NULL;
    int same = 0;

    for (int i = 0; i < 3; i++) {
        void *module =
            dlopen("libuct_cuda.so.0", RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);

        CHECK(module != NULL);
        same += place == preload_symbol(module, "fake_module_resolve");
        place = preload_symbol(module, "fake_module_resolve");
        call_module(module, false);
        CHECK(dlsym(module, "ucs_module_global_init") != NULL);
        call_module(module, preload_served());
        CHECK(dlclose(module) == 0);
        CHECK(dlopen("libuct_cuda.so.0", RTLD_LAZY | RTLD_NOLOAD) == NULL);
    }
#ifdef __x86_64__
    CHECK(same > 0);
#endif
}

/* All of it deep-bound: nothing calls the shim until memory is allocated. */
void case_deepbind_all(void)
{
    const void **query_caller;
    fake_ucx_ask_fn *ask = open_deep_ucp(&query_caller);
    void *module =
        dlopen("libuct_cuda.so.0", RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    void *driver = preload_open("libcuda.so.1");
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    __typeof__(cuMemCreate) *create = preload_symbol(driver, "cuMemCreate");

    CHECK(module != NULL);
    call_module(module, false);
    memset(&prop, 0, sizeof(prop));
    create(&handle, 4096, &prop, 0);
    call_module(module, preload_served());
    check_deep_ucp(ask, query_caller, preload_served());
}
