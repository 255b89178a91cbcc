/* SPDX-License-Identifier: MIT */
#include "driver_model.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/fork.h"
#include "base/log.h"
#include "doors/real.h"

/* More than one granule of addresses for each handle would hide reuse. */
#define HANDLES_MAX 32768u

struct allocation {
    CUmemAllocationProp prop;
    unsigned granules;
    unsigned references; /* by handle */
    unsigned mappings;
    bool multicast;
    bool live;
};

struct mapping {
    unsigned first;  /* granule */
    unsigned count;  /* granules; 0: nothing is mapped */
    unsigned handle; /* 0: cuMemAlloc */
    unsigned long long id;
    CUmemAccess_flags access[MODEL_DEVICES];
};

struct vmml_conf model_conf;
enum vmml_caller model_caller;
int model_version;
int model_posix_fd;
CUresult model_refuse_types;
unsigned long long model_foreign_types;
void (*model_after)(enum model_function function, CUdeviceptr ptr);
CUmemAllocationProp model_last_prop;
unsigned long long model_last_flags;
size_t model_last_size;

static pthread_mutex_t model_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation model_allocations[HANDLES_MAX];
static unsigned model_first_free;
static struct mapping *model_mappings[MODEL_GRANULES]; /* by granule */
static struct mapping model_pool[MODEL_GRANULES];      /* by first granule */
static struct {
    unsigned first;
    unsigned count;
} model_windows[MODEL_GRANULES];
static unsigned long long model_next_id;
static unsigned model_counts[MODEL_FUNCTION_COUNT];
static struct {
    unsigned n;
    CUresult error;
    bool sticky;
} model_faults[MODEL_FUNCTION_COUNT];

/* Handle values are far from 0 and from each other, as pointers are. */
static CUmemGenericAllocationHandle handle_value(unsigned index)
{
    return 0x5500000000ull + index * 0x100ull;
}

static unsigned handle_index(CUmemGenericAllocationHandle handle)
{
    unsigned long long offset = handle - 0x5500000000ull;

    if (offset % 0x100 != 0 || offset / 0x100 >= HANDLES_MAX)
        return 0;
    return (unsigned)(offset / 0x100);
}

static void require(bool condition)
{
    if (!condition)
        abort(); /* the test asked the model for something impossible */
}

/* Counts the call; returns the error that it has to fail with. */
static CUresult enter(enum model_function function)
{
    CUresult error = CUDA_SUCCESS;

    pthread_mutex_lock(&model_lock);
    model_counts[function]++;
    if (model_faults[function].n == 1) {
        error = model_faults[function].error;
        if (!model_faults[function].sticky)
            model_faults[function].n = 0;
    } else if (model_faults[function].n > 1) {
        model_faults[function].n--;
    }
    if (error != CUDA_SUCCESS)
        pthread_mutex_unlock(&model_lock);
    return error;
}

static CUresult leave(enum model_function function, CUdeviceptr ptr,
                      CUresult rc)
{
    pthread_mutex_unlock(&model_lock);
    if (model_after != NULL)
        model_after(function, ptr);
    return rc;
}

static struct mapping *mapping_at(CUdeviceptr ptr)
{
    if (ptr < MODEL_BASE ||
        (ptr - MODEL_BASE) / MODEL_GRANULE >= MODEL_GRANULES)
        return NULL;
    return model_mappings[(ptr - MODEL_BASE) / MODEL_GRANULE];
}

static struct allocation *allocation_of(CUmemGenericAllocationHandle handle)
{
    struct allocation *allocation = &model_allocations[handle_index(handle)];

    return handle_index(handle) != 0 && allocation->live ? allocation : NULL;
}

static void end_if_unused(struct allocation *allocation)
{
    if (allocation->references == 0 && allocation->mappings == 0)
        allocation->live = false;
    if ((unsigned)(allocation - model_allocations) < model_first_free &&
        !allocation->live)
        model_first_free = (unsigned)(allocation - model_allocations);
}

/* The lowest free value: handle values are used again. */
static unsigned new_handle(unsigned granules, const CUmemAllocationProp *prop)
{
    unsigned i = model_first_free;

    while (i < HANDLES_MAX && model_allocations[i].live)
        i++;
    require(i < HANDLES_MAX);
    memset(&model_allocations[i], 0, sizeof(model_allocations[i]));
    model_allocations[i].live = true;
    model_allocations[i].references = 1;
    model_allocations[i].granules = granules;
    model_allocations[i].prop = *prop;
    model_first_free = i + 1;
    return i;
}

static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    CUresult rc = enter(MODEL_cuMemGetAddressRange_v2);
    struct mapping *mapping;
    bool accessible = false;
    unsigned i;

    if (rc != CUDA_SUCCESS)
        return rc;
    mapping = mapping_at(ptr);
    for (i = 0; mapping != NULL && i < MODEL_DEVICES; i++)
        accessible |= mapping->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (base == NULL && size == NULL) {
        rc = CUDA_ERROR_INVALID_VALUE;
    } else if (!accessible) {
        rc = CUDA_ERROR_NOT_FOUND;
    } else {
        if (base != NULL)
            *base = model_address(mapping->first);
        if (size != NULL)
            *size = mapping->count * MODEL_GRANULE;
    }
    return leave(MODEL_cuMemGetAddressRange_v2, ptr, rc);
}

static CUresult attribute_of(const struct mapping *mapping, void *data,
                             CUpointer_attribute attribute)
{
    unsigned window = mapping->first;

    while (model_windows[window].count == 0 && window > 0)
        window--;
    if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID)
        *(unsigned long long *)data = mapping->id;
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        *(CUdeviceptr *)data = model_address(window);
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        *(size_t *)data = model_windows[window].count * MODEL_GRANULE;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(void *data, CUpointer_attribute attribute,
                              CUdeviceptr ptr)
{
    CUresult rc = enter(MODEL_cuPointerGetAttribute);
    struct mapping *mapping;

    if (rc != CUDA_SUCCESS)
        return rc;
    mapping = mapping_at(ptr);
    rc = mapping == NULL ? CUDA_ERROR_INVALID_VALUE
                         : attribute_of(mapping, data, attribute);
    return leave(MODEL_cuPointerGetAttribute, ptr, rc);
}

bool model_torn;

/* Of an address where nothing is mapped it says nothing, and succeeds. */
static CUresult get_attributes(unsigned count, CUpointer_attribute *attributes,
                               void **data, CUdeviceptr ptr)
{
    CUresult rc = enter(MODEL_cuPointerGetAttributes);
    struct mapping *mapping;
    unsigned i;

    if (rc != CUDA_SUCCESS)
        return rc;
    mapping = mapping_at(ptr);
    for (i = 0; mapping != NULL && i < count && rc == CUDA_SUCCESS; i++)
        rc = attribute_of(mapping, data[i], attributes[i]);
    for (i = 0; mapping != NULL && model_torn && i < count; i++)
        if (attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
            *(size_t *)data[i] = MODEL_GRANULE;
    model_torn = false;
    return leave(MODEL_cuPointerGetAttributes, ptr, rc);
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult rc = enter(MODEL_cuMemRetainAllocationHandle);
    struct mapping *mapping;

    if (rc != CUDA_SUCCESS)
        return rc;
    mapping = mapping_at((CUdeviceptr)(uintptr_t)address);
    if (mapping == NULL || mapping->handle == 0) {
        rc = CUDA_ERROR_INVALID_VALUE;
    } else {
        model_allocations[mapping->handle].references++;
        *handle = handle_value(mapping->handle);
    }
    return leave(MODEL_cuMemRetainAllocationHandle,
                 (CUdeviceptr)(uintptr_t)address, rc);
}

static CUresult get_properties(CUmemAllocationProp *prop,
                               CUmemGenericAllocationHandle handle)
{
    CUresult rc = enter(MODEL_cuMemGetAllocationPropertiesFromHandle);
    struct allocation *allocation;

    if (rc != CUDA_SUCCESS)
        return rc;
    allocation = allocation_of(handle);
    if (allocation == NULL || prop == NULL ||
        (allocation->multicast && model_foreign_types == 0))
        rc = CUDA_ERROR_INVALID_VALUE;
    else
        *prop = allocation->prop;
    return leave(MODEL_cuMemGetAllocationPropertiesFromHandle, 0, rc);
}

static CUresult get_access(unsigned long long *flags,
                           const CUmemLocation *location, CUdeviceptr ptr)
{
    CUresult rc = enter(MODEL_cuMemGetAccess);
    struct mapping *mapping;

    if (rc != CUDA_SUCCESS)
        return rc;
    mapping = mapping_at(ptr);
    if (mapping == NULL || location->id < 0 || location->id >= MODEL_DEVICES)
        rc = CUDA_ERROR_INVALID_VALUE;
    else
        *flags = mapping->access[location->id];
    return leave(MODEL_cuMemGetAccess, ptr, rc);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    CUresult rc = enter(MODEL_cuMemRelease);
    struct allocation *allocation;

    if (rc != CUDA_SUCCESS)
        return rc;
    allocation = allocation_of(handle);
    if (allocation == NULL || allocation->references == 0) {
        rc = CUDA_ERROR_INVALID_VALUE;
    } else {
        allocation->references--;
        end_if_unused(allocation);
    }
    return leave(MODEL_cuMemRelease, 0, rc);
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop,
                       unsigned long long flags)
{
    CUresult rc = enter(MODEL_cuMemCreate);

    if (prop != NULL)
        model_last_prop = *prop;
    model_last_size = size;
    model_last_flags = flags;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (handle == NULL || prop == NULL || size == 0 ||
        size % MODEL_GRANULE != 0 || flags != 0)
        rc = CUDA_ERROR_INVALID_VALUE;
    else if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
             model_refuse_types != CUDA_SUCCESS)
        rc = model_refuse_types;
    else
        *handle =
            handle_value(new_handle((unsigned)(size / MODEL_GRANULE), prop));
    return leave(MODEL_cuMemCreate, 0, rc);
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *os_handle,
                       CUmemAllocationHandleType type)
{
    CUresult rc = enter(MODEL_cuMemImportFromShareableHandle);
    CUmemAllocationProp prop = model_prop(0, model_foreign_types);

    if (rc != CUDA_SUCCESS)
        return rc;
    *handle = handle_value(new_handle(1, &prop));
    return leave(MODEL_cuMemImportFromShareableHandle, 0, CUDA_SUCCESS);
}

static CUresult multicast(CUmemGenericAllocationHandle *handle,
                          const CUmulticastObjectProp *prop)
{
    CUresult rc = enter(MODEL_cuMulticastCreate);
    CUmemAllocationProp shown = model_prop(0, model_foreign_types);
    unsigned index;

    if (rc != CUDA_SUCCESS)
        return rc;
    index = new_handle(1, &shown);
    model_allocations[index].multicast = true;
    *handle = handle_value(index);
    return leave(MODEL_cuMulticastCreate, 0, CUDA_SUCCESS);
}

static CUresult export(void *os_handle, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult rc = enter(MODEL_cuMemExportToShareableHandle);
    struct allocation *allocation;

    if (rc != CUDA_SUCCESS)
        return rc;
    allocation = allocation_of(handle);
    if (allocation == NULL || os_handle == NULL || type == 0 ||
        ((unsigned)allocation->prop.requestedHandleTypes & (unsigned)type) == 0)
        rc = CUDA_ERROR_INVALID_VALUE;
    else
        *(int *)os_handle = 1000;
    return leave(MODEL_cuMemExportToShareableHandle, 0, rc);
}

static CUresult get_version(int *version)
{
    CUresult rc = enter(MODEL_cuDriverGetVersion);

    if (rc != CUDA_SUCCESS)
        return rc;
    *version = model_version;
    return leave(MODEL_cuDriverGetVersion, 0, CUDA_SUCCESS);
}

static CUresult get_device(CUdevice *device, int ordinal)
{
    CUresult rc = enter(MODEL_cuDeviceGet);

    if (rc != CUDA_SUCCESS)
        return rc;
    *device = ordinal;
    if (ordinal < 0 || ordinal >= MODEL_DEVICES)
        rc = CUDA_ERROR_INVALID_DEVICE;
    return leave(MODEL_cuDeviceGet, 0, rc);
}

static CUresult get_device_attribute(int *value, CUdevice_attribute attribute,
                                     CUdevice device)
{
    CUresult rc = enter(MODEL_cuDeviceGetAttribute);

    if (rc != CUDA_SUCCESS)
        return rc;
    *value =
        attribute ==
                CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            ? model_posix_fd
            : 0;
    return leave(MODEL_cuDeviceGetAttribute, 0, CUDA_SUCCESS);
}

_Atomic(const struct vmml_real *) vmml_real_found;

const struct vmml_real *vmml_real_search(void)
{
    static const struct vmml_real real = {
        .cuMemGetAddressRange_v2 = get_range,
        .cuPointerGetAttribute = get_attribute,
        .cuPointerGetAttributes = get_attributes,
        .cuMemRetainAllocationHandle = retain,
        .cuMemGetAllocationPropertiesFromHandle = get_properties,
        .cuMemGetAccess = get_access,
        .cuMemRelease = release,
        .cuMemCreate = create,
        .cuMemImportFromShareableHandle = import,
        .cuMulticastCreate = multicast,
        .cuMemExportToShareableHandle = export,
        .cuDriverGetVersion = get_version,
        .cuDeviceGet = get_device,
        .cuDeviceGetAttribute = get_device_attribute,
    };

    return &real;
}

/* The log and forks are other parts. */
bool vmml_in_child;

int vmml_fork_watch(void)
{
    return 0;
}

int vmml_log_level = VMML_LOG_OFF;

void vmml_log_write(enum vmml_log_level level, const char *file,
                    const char *function, const char *format, ...)
{
}

const struct vmml_conf *vmml_conf(void)
{
    return &model_conf;
}

enum vmml_caller vmml_caller_class(const void *address)
{
    return model_caller;
}

_Atomic(const void *) vmml_kept_callers[VMML_KEPT_CALLERS];

enum vmml_caller vmml_hook_caller_look(const void *caller)
{
    return vmml_caller_class(caller);
}

void model_reset(void)
{
    memset(model_mappings, 0, sizeof(model_mappings));
    memset(model_windows, 0, sizeof(model_windows));
    memset(model_allocations, 0, sizeof(model_allocations));
    memset(model_counts, 0, sizeof(model_counts));
    memset(model_faults, 0, sizeof(model_faults));
    memset(&model_last_prop, 0, sizeof(model_last_prop));
    model_first_free = 1;
    model_next_id = 1;
    model_after = NULL;
    model_version = 13000;
    model_posix_fd = 1;
    model_refuse_types = CUDA_SUCCESS;
    model_foreign_types = 0;
    model_caller = VMML_CALLER_OTHER;
    memset(&model_conf, 0, sizeof(model_conf));
    model_conf.on = true;
    model_conf.share = true;
    model_conf.create = true;
}

unsigned model_calls(enum model_function function)
{
    unsigned count;

    pthread_mutex_lock(&model_lock);
    count = model_counts[function];
    pthread_mutex_unlock(&model_lock);
    return count;
}

unsigned model_all_calls(void)
{
    unsigned i, sum = 0;

    for (i = 0; i < MODEL_FUNCTION_COUNT; i++)
        sum += model_calls(i);
    return sum;
}

void model_fail(enum model_function function, unsigned n, CUresult error,
                bool sticky)
{
    pthread_mutex_lock(&model_lock);
    model_faults[function].n = n;
    model_faults[function].error = error;
    model_faults[function].sticky = sticky;
    pthread_mutex_unlock(&model_lock);
}

CUdeviceptr model_address(unsigned granule)
{
    return MODEL_BASE + granule * MODEL_GRANULE;
}

void model_reserve(unsigned granule, unsigned count)
{
    require(granule + count <= MODEL_GRANULES);
    model_windows[granule].first = granule;
    model_windows[granule].count = count;
}

void model_unreserve(unsigned granule)
{
    model_windows[granule].count = 0;
}

CUmemAllocationProp model_prop(int device, unsigned long long handle_types)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)handle_types;
    return prop;
}

CUmemGenericAllocationHandle model_make(unsigned granules,
                                        const CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle;

    pthread_mutex_lock(&model_lock);
    handle = handle_value(new_handle(granules, prop));
    pthread_mutex_unlock(&model_lock);
    return handle;
}

void model_release(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&model_lock);
    require(allocation_of(handle) != NULL);
    allocation_of(handle)->references--;
    end_if_unused(allocation_of(handle));
    pthread_mutex_unlock(&model_lock);
}

void model_map(unsigned granule, CUmemGenericAllocationHandle handle)
{
    struct mapping *mapping = &model_pool[granule];
    struct allocation *allocation;
    unsigned i;

    pthread_mutex_lock(&model_lock);
    allocation = allocation_of(handle);
    require(allocation != NULL);
    memset(mapping, 0, sizeof(*mapping));
    mapping->first = granule;
    mapping->count = allocation->granules;
    mapping->handle = handle_index(handle);
    mapping->id = model_next_id++;
    allocation->mappings++;
    require(granule + mapping->count <= MODEL_GRANULES);
    for (i = granule; i < granule + mapping->count; i++) {
        require(model_mappings[i] == NULL);
        model_mappings[i] = mapping;
    }
    pthread_mutex_unlock(&model_lock);
}

void model_access(unsigned granule, unsigned count, int device,
                  CUmemAccess_flags flags)
{
    unsigned i;

    pthread_mutex_lock(&model_lock);
    for (i = granule; i < granule + count; i++) {
        require(model_mappings[i] != NULL);
        model_mappings[i]->access[device] = flags;
    }
    pthread_mutex_unlock(&model_lock);
}

void model_unmap(unsigned granule, unsigned count)
{
    unsigned i = granule, j;

    pthread_mutex_lock(&model_lock);
    while (i < granule + count) {
        struct mapping *mapping = model_mappings[i++];

        if (mapping == NULL)
            continue;
        require(mapping->first == i - 1 &&
                mapping->first + mapping->count <= granule + count);
        for (j = mapping->first; j < mapping->first + mapping->count; j++)
            model_mappings[j] = NULL;
        if (mapping->handle != 0) {
            model_allocations[mapping->handle].mappings--;
            end_if_unused(&model_allocations[mapping->handle]);
        }
        i = mapping->first + mapping->count;
    }
    pthread_mutex_unlock(&model_lock);
}

void model_alloc(unsigned granule, unsigned count)
{
    struct mapping *mapping = &model_pool[granule];
    unsigned i;

    pthread_mutex_lock(&model_lock);
    require(granule + count <= MODEL_GRANULES);
    memset(mapping, 0, sizeof(*mapping));
    mapping->first = granule;
    mapping->count = count;
    mapping->id = model_next_id++;
    mapping->access[0] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    for (i = granule; i < granule + count; i++)
        model_mappings[i] = mapping;
    pthread_mutex_unlock(&model_lock);
}

unsigned model_live_handles(void)
{
    unsigned i, live = 0;

    pthread_mutex_lock(&model_lock);
    for (i = 1; i < HANDLES_MAX; i++)
        live += model_allocations[i].live;
    pthread_mutex_unlock(&model_lock);
    return live;
}

unsigned model_references(CUmemGenericAllocationHandle handle)
{
    unsigned references;

    pthread_mutex_lock(&model_lock);
    references = model_allocations[handle_index(handle)].references;
    pthread_mutex_unlock(&model_lock);
    return references;
}

CUmemAllocationProp model_real_prop(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;

    pthread_mutex_lock(&model_lock);
    require(allocation_of(handle) != NULL);
    prop = allocation_of(handle)->prop;
    pthread_mutex_unlock(&model_lock);
    return prop;
}
