/*
 * A libuct.so.0 in front of the wheel's own. Its memory domain cuda_cpy is for
 * UCX what a NIC is that reaches GPU memory without dmabuf: it has its
 * registrations cached, so that whole ranges are registered, and refuses memory
 * over several allocations (VMML_TEST_REFUSE=several) or all of it ("all").
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uct/api/uct.h>

typedef ucs_status_t reg_fn(uct_md_h md, void *address, size_t length,
                            const void *params, uct_mem_h *memh);
typedef ucs_status_t query_fn(uct_md_h md, uct_md_attr_t *attr);

static void *behind(const char *name)
{
    static void *library;

    if (library == NULL)
        library = dlopen("libuct.so.9", RTLD_NOLOAD | RTLD_LAZY);
    return library != NULL ? dlsym(library, name) : NULL;
}

static bool is_cuda_copy(uct_md_h md)
{
    query_fn *query = (query_fn *)behind("uct_md_query");
    uct_md_attr_t attr;

    return query != NULL && query(md, &attr) == UCS_OK &&
           strcmp(attr.component_name, "cuda_cpy") == 0;
}

static bool refuses(uct_md_h md, void *address, size_t length)
{
    const char *what = getenv("VMML_TEST_REFUSE");
    CUdeviceptr at = (CUdeviceptr)address;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    size_t size;

    if (what == NULL || !is_cuda_copy(md) ||
        cuMemRetainAllocationHandle(&handle, address) != CUDA_SUCCESS)
        return false;
    cuMemRelease(handle);
    if (strcmp(what, "all") == 0)
        return true;
    return cuMemGetAddressRange(&base, &size, at) != CUDA_SUCCESS ||
           at - base + length > size;
}

ucs_status_t uct_md_mem_reg_v2(uct_md_h md, void *address, size_t length,
                               const void *params, uct_mem_h *memh)
{
    reg_fn *real = (reg_fn *)behind("uct_md_mem_reg_v2");

    if (refuses(md, address, length)) {
        fprintf(stderr, "refused %p length %zu\n", address, length);
        return UCS_ERR_IO_ERROR;
    }
    return real != NULL ? real(md, address, length, params, memh)
                        : UCS_ERR_UNSUPPORTED;
}

/* uct_md_attr_v2_t of uct_v2.h, which is not installed: the 7th word is
 * cache_mem_types (UCX 1.18 to 1.22). */
ucs_status_t uct_md_query_v2(uct_md_h md, uint64_t *attr)
{
    enum { CACHE_MEM_TYPES = 6 };
    ucs_status_t (*real)(uct_md_h md, uint64_t * attr) =
        (ucs_status_t(*)(uct_md_h, uint64_t *))behind("uct_md_query_v2");
    ucs_status_t status = real != NULL ? real(md, attr) : UCS_ERR_UNSUPPORTED;

    if (status == UCS_OK && is_cuda_copy(md))
        attr[CACHE_MEM_TYPES] |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}
