/* SPDX-License-Identifier: MIT */
/*
 * The one warning for each cause of a lost lane: what, why and the remedy.
 */
#include "lane/state.h"

#include "base/driver.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/remedy.h"
#include "stats/count.h"

static const char *remedy(enum vmml_reason reason)
{
    switch (reason) {
    case VMML_REASON_HOLE:
        return "register only memory that is mapped and has access set";
    case VMML_REASON_NOT_SHAREABLE:
        return VMML_REMEDY_HANDLE_TYPE;
    case VMML_REASON_IMPORTED:
        return "register it in the process that made it";
    case VMML_REASON_NO_DESCRIPTOR:
        return VMML_REMEDY_DESCRIPTORS_HARD;
    case VMML_REASON_NO_CHANNEL:
        return VMML_REMEDY_IMEX;
    case VMML_REASON_DEVICE:
    case VMML_REASON_WINDOW:
        return "register each reservation by itself";
    case VMML_REASON_FREED:
        return "end its registration before memory is freed";
    default:
        return "see the log with VMMLANE_LOG=debug";
    }
}

static void warn_of_limit(uint64_t address, uint64_t length, unsigned wanted,
                          int code)
{
    struct vmml_fd_limit limit = vmml_fd_limit();
    size_t chunks;

    pthread_mutex_lock(&vmml_exporter.lock);
    chunks = vmml_exporter.chunk_count;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_warn(
        "no fast lane for 0x%lx+0x%lx (%u chunks, result %d): too few file "
        "descriptors, and each chunk needs one. RLIMIT_NOFILE's hard limit of "
        "%lu allows %zu "
        "(%d stay the application's), %zu are free, %zu chunks have one. "
        "Transfers of it are correct and slow. Remedy: %s",
        (unsigned long)address, (unsigned long)length, wanted, code, limit.hard,
        limit.numbers, VMML_FD_SPARE, vmml_fd_room(), chunks,
        remedy(VMML_REASON_NO_DESCRIPTOR));
}

/* What there is of a request. */
struct facts {
    unsigned chunks; /* of the first COUNT_MAX, holes counted by granules */
    unsigned long long handle_types; /* of a chunk without descriptors, or of
                                      * the last */
};

/* It is walked once for each cause. */
#define COUNT_MAX 10000

static bool handle_types_at(const struct vmml_real *real, CUdeviceptr ptr,
                            unsigned long long *types)
{
    CUmemAllocationProp prop;

    if (vmml_properties_at(real, ptr, &prop) != CUDA_SUCCESS)
        return false;
    *types = prop.requestedHandleTypes;
    return true;
}

static void look(const struct vmml_real *real, uint64_t address, uint64_t end,
                 struct facts *facts)
{
    unsigned steps = 0;
    bool found = false;
    CUdeviceptr base;
    size_t size;

    while (address < end && steps++ < COUNT_MAX) {
        if (vmml_mapping_at(real, address, &base, &size) != CUDA_SUCCESS ||
            size == 0) {
            address = (address / VMML_GRANULE + 1) * VMML_GRANULE;
            continue;
        }
        facts->chunks++;
        address = base + size;
        if (!found && handle_types_at(real, base, &facts->handle_types))
            found = (facts->handle_types &
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0;
    }
}

static struct facts look_at(uint64_t address, uint64_t length)
{
    const struct vmml_real *real = vmml_real();
    struct vmml_relaxed relaxed;
    struct facts facts = {0, 0};

    if (real == NULL || length > UINT64_MAX - address)
        return facts;
    vmml_relax(real, &relaxed);
    look(real, address, address + length, &facts);
    vmml_relax_end(real, &relaxed);
    return facts;
}

/* The words of the bits (CUmemAllocationHandleType). */
static const char *types_text(unsigned long long types)
{
    switch (types) {
    case CU_MEM_HANDLE_TYPE_NONE:
        return "none";
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
        return "POSIX_FD";
    case CU_MEM_HANDLE_TYPE_FABRIC:
        return "FABRIC";
    case CU_MEM_HANDLE_TYPE_FABRIC | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
        return "POSIX_FD and FABRIC";
    default:
        return "others";
    }
}

void vmml_lane_warn(enum vmml_reason reason, uint64_t address, uint64_t length)
{
    /* Not the count of the cause: keys of others count there, too. */
    static struct vmml_once seen[VMML_CAUSE_IMPORTER];
    struct facts facts = {0, 0};
    int code = vmml_publish_code;
    bool first = reason > VMML_REASON_NONE && reason < VMML_CAUSE_IMPORTER &&
                 vmml_once(&seen[reason]);

    vmml_publish_code = 0;
    vmml_count(keys_refused);
    if (first)
        facts = look_at(address, length);
    vmml_lost(reason, &(struct vmml_loss){
                          .address = address,
                          .length = length,
                          .handle_types = facts.handle_types,
                          .chunks = facts.chunks,
                          .code = code,
                      });
    if (!first)
        return;
    if (reason == VMML_REASON_NO_DESCRIPTOR) {
        warn_of_limit(address, length, facts.chunks, code);
        return;
    }
    vmml_warn("no fast lane for 0x%lx+0x%lx (%u%s chunks, handle types %s, "
              "result %d): %s. Transfers of it are correct and slow. Remedy: "
              "%s",
              (unsigned long)address, (unsigned long)length, facts.chunks,
              facts.chunks == COUNT_MAX ? " or more" : "",
              types_text(facts.handle_types), code, vmml_reason_string(reason),
              remedy(reason));
}

/* VMML_REASON_LOCAL is no warning: such memory is not made for other nodes. */
void vmml_lane_warn_across(enum vmml_reason reason, uint64_t address,
                           uint64_t length)
{
    static struct vmml_once seen[VMML_CAUSE_IMPORTER];

    vmml_lost(reason,
              &(struct vmml_loss){.address = address, .length = length});
    if (reason == VMML_REASON_LOCAL || reason >= VMML_CAUSE_IMPORTER ||
        !vmml_once(&seen[reason]))
        return;
    vmml_warn("no fast lane to other nodes for 0x%lx+0x%lx: %s. On this node "
              "it has one. Remedy: %s",
              (unsigned long)address, (unsigned long)length,
              vmml_reason_string(reason),
              reason == VMML_REASON_MIXED
                  ? "let the allocator ask for CU_MEM_HANDLE_TYPE_FABRIC "
                    "for all of it"
                  : "2 MiB of GPU memory for each reservation, and an IMEX "
                    "channel");
}
