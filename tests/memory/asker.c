/* SPDX-License-Identifier: MIT */
/* Built without tail calls: the return address of each call of the driver is in
 * this module, which is how the shim tells callers apart. */
#include "asker.h"

static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    return cuMemGetAddressRange_v2(base, size, ptr);
}

static CUresult properties(CUmemAllocationProp *prop,
                           CUmemGenericAllocationHandle handle)
{
    return cuMemGetAllocationPropertiesFromHandle(prop, handle);
}

static CUresult export_handle(int *fd, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type)
{
    return cuMemExportToShareableHandle(fd, handle, type, 0);
}

static CUresult retain(CUmemGenericAllocationHandle *handle, CUdeviceptr ptr)
{
    return cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)ptr);
}

static CUresult types(unsigned long long *value, CUdeviceptr ptr)
{
    *value = 77;
    return cuPointerGetAttribute(
        value, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr);
}

static CUresult types_of_many(unsigned long long *value, CUdeviceptr ptr)
{
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    int device = -1;
    void *data[] = {&device, value};
    *value = 77;
    return cuPointerGetAttributes(2, attributes, data, ptr);
}

/* The one export. */
__attribute__((visibility("default"))) struct asker asker = {
    range, properties, export_handle, retain, types, types_of_many};
