/* SPDX-License-Identifier: MIT */
/* `memory CASE`, the shim preloaded, on the simulated driver or a real one. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>

#include "asker.h"
#include "preload.h"

#define CHUNK ((size_t)2 << 20)

/* The modules that ask. Everything that the program itself asks is asked by
 * one that is not UCX. */
extern const struct asker *uct_cuda;
extern const struct asker *ucm_cuda;
extern const struct asker *named;

/* Controls of the simulated driver (tests/sim/sim.h); NULL on a real one. */
struct memory_sim {
    long (*call_count)(const char *name);
    void (*reset_counts)(void);
    int (*fail)(const char *name, unsigned long nth, int result, int from);
    void (*clear_failures)(void);
};
extern const struct memory_sim *memory_sim;
/* The case needs it. */
void memory_need_sim(void);
/* Calls of one function since memory_count_anew(); `otherwise` on a real
 * driver. */
void memory_count_anew(void);
long memory_calls(const char *name, long otherwise);

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
