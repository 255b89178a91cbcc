/*
 * cuGetProcAddress, from a table of this library's own addresses. dlsym would
 * hand a preload that wraps it its own function.
 */
#include "internal.h"

#include <string.h>

#define STREAM_FLAGS                                                           \
    (CU_GET_PROC_ADDRESS_LEGACY_STREAM |                                       \
     CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

/* The newest form that both the caller and the driver are new enough for. */
static const struct sim_entry *pick(const char *symbol, int version,
                                    enum sim_mode mode, bool *known)
{
    const struct sim_entry *best = NULL;
    int id;

    for (id = 0; id < SIM_ID_COUNT; id++) {
        const struct sim_entry *entry = &sim_entries[id];

        if (strcmp(entry->base, symbol) != 0 || entry->mode != mode ||
            entry->since > sim.config.driver_version) {
            continue;
        }
        *known = true;
        if (entry->since <= version &&
            (best == NULL || entry->since >= best->since)) {
            best = entry;
        }
    }
    return best;
}

static CUresult resolve(const char *symbol, void **pfn, int version,
                        cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    const struct sim_entry *found = NULL;
    bool known = false;
    int driver;

    if (symbol == NULL || pfn == NULL || (flags & ~STREAM_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_cuDriverGetVersion(&driver);
    if (version > driver) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
        found = pick(symbol, version, SIM_PTSZ, &known);
    }
    if (found == NULL) {
        found = pick(symbol, version, SIM_LEGACY, &known);
    }
    *pfn = found == NULL ? NULL : found->address;
    if (status != NULL) {
        *status = found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known       ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    /* A symbol that is not there is no error: measured. */
    return CUDA_SUCCESS;
}

CUresult sim_cuGetProcAddress(const char *symbol, void **pfn, int version,
                              cuuint64_t flags)
{
    void *found = NULL;
    CUresult result;

    if (pfn == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = resolve(symbol, &found, version, flags, NULL);
    if (result == CUDA_SUCCESS && found == NULL) {
        return CUDA_ERROR_NOT_FOUND; /* the newer form succeeds here */
    }
    if (result == CUDA_SUCCESS) {
        *pfn = found;
    }
    return result;
}

CUresult sim_cuGetProcAddress_v2(const char *symbol, void **pfn, int version,
                                 cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
    return resolve(symbol, pfn, version, flags, status);
}

CUresult sim_cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn,
                                      int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status)
{
    if (flags == CU_GET_PROC_ADDRESS_DEFAULT) {
        flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    }
    return resolve(symbol, pfn, version, flags, status);
}
