/* SPDX-License-Identifier: MIT */
/* `memory CASE`, on the simulated driver, the shim preloaded. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>

#include "asker.h"
#include "preload.h"
#include "sim.h"

#define CHUNK ((size_t)2 << 20)

/* The modules that ask. Everything that the program itself asks is asked by
 * one that is not UCX. */
extern const struct asker *uct_cuda;
extern const struct asker *ucm_cuda;
extern const struct asker *named;

void check_success(CUresult rc, const char *what);
#define CHECK_CU(call) check_success(call, #call)

/* Memory, in chunks. Each function ends the program where it fails. */
CUmemAllocationProp memory_prop(CUmemAllocationHandleType types);
CUdeviceptr memory_reserve(unsigned chunks, CUdeviceptr hint);
CUmemGenericAllocationHandle memory_create(unsigned chunks,
                                           const CUmemAllocationProp *prop);
/* Maps and gives the handle back; access for `device`, none where it is -1. */
void memory_map(CUdeviceptr ptr, unsigned chunks,
                CUmemGenericAllocationHandle handle, int device);
/* POSIX_FD chunks, one by one, for device 0. */
void memory_fill(CUdeviceptr ptr, unsigned chunks);
void memory_unmap(CUdeviceptr ptr, unsigned chunks);

/* Inside the libuct's memory query, by libuct_cuda. */
struct asker_answer memory_query(CUdeviceptr address, size_t length);
void check_range(struct asker_answer answer, CUdeviceptr base, size_t size);
#define CHECK_RANGE(answer, base, size)                                        \
    do {                                                                       \
        printf("%s:%d\n", __FILE__, __LINE__);                                 \
        check_range(answer, base, size);                                       \
    } while (0)

#define MEMORY_CASES(X)                                                        \
    X("extents", case_extents)                                                 \
    X("ends", case_ends)                                                       \
    X("two-devices", case_two_devices)                                         \
    X("neighbours", case_neighbours)                                           \
    X("changes", case_changes)                                                 \
    X("readable", case_readable)                                               \
    X("cost", case_cost)                                                       \
    X("range-off", case_range_off)                                             \
    X("range-request", case_range_request)                                     \
    X("others", case_others)                                                   \
    X("named", case_named)                                                     \
    X("upgrade", case_upgrade)                                                 \
    X("upgrade-not", case_upgrade_not)                                         \
    X("upgrade-refused", case_upgrade_refused)                                 \
    X("upgrade-values", case_upgrade_values)

#define MEMORY_DECLARE(name, function) void function(void);
MEMORY_CASES(MEMORY_DECLARE)

#endif
