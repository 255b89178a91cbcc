/* SPDX-License-Identifier: MIT */
/*
 * What the measurements of bench-cpu share. It runs under the preload, with
 * what stands for UCX (module.h), on the driver that does nothing (null/), on
 * the simulated one, or on a real one.
 */
#ifndef VMML_TESTS_BENCH_BENCH_H
#define VMML_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "module.h"
#include "null/driver.h"
#include "steps.h"

#define CHUNK ((size_t)2 << 20)

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__,         \
                    #condition);                                               \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#define CHECK_CU(call)                                                         \
    do {                                                                       \
        CUresult result_ = (call);                                             \
                                                                               \
        if (result_ != CUDA_SUCCESS) {                                         \
            fprintf(stderr, "%s:%d: %s: CUresult %d\n", __FILE__, __LINE__,    \
                    #call, (int)result_);                                      \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* One line for scripts/bench. must: "<= 20", "= 0" or "-". */
void bench_figure(const char *figure, const char *of, double value,
                  const char *unit, const char *must);
/* Texts for a figure's case, "1,000 chunks"; good for the next 60 of them. */
const char *bench_many(unsigned long count, const char *what);
const char *bench_text(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Only what is counted, and quickly: for a test. */
extern bool bench_counted_only;

/* What is timed: `times` of it. */
struct bench_side {
    void (*run)(void *arg, unsigned long times);
    void *arg;
};

/* The sides in turn, so that all see the same machine, in many rounds; the
 * median of each, in nanoseconds for one time. `times` takes some ten
 * microseconds, so that few rounds are interrupted on a loaded machine. */
void bench_in_turn(const struct bench_side *sides, size_t count,
                   unsigned long times, double *ns);

/* Nanoseconds of processor time of this process: for what cannot be repeated,
 * on a machine that others use. */
double bench_spent(void);

/* The stand-ins: bench_uct_cuda is UCX's to vmmlane, bench_ucm is given the
 * driver's own functions. */
extern const struct bench_module *bench_uct_cuda, *bench_ucm;

/* Load them, cuInit, make the device's primary context current. */
void bench_start(void);

/* Calls of the driver by this process; NULL on another driver. */
const struct null_calls *bench_calls(void);
/* Of any driver that counts: all calls so far, or 0. */
unsigned long bench_all_calls(void);

/* A reservation, and chunks of CHUNK in it, `first` to `first + count`. Few
 * allocations are mapped many times, as the driver allows. */
CUdeviceptr bench_reserve(unsigned long chunks);
void bench_map(CUdeviceptr base, unsigned long first, unsigned long count);
void bench_unmap(CUdeviceptr base, unsigned long first, unsigned long count);

/* As UCX calls itself. */
vmml_uct_mem_h bench_reg(CUdeviceptr ptr, size_t length);
void bench_dereg(vmml_uct_mem_h memh);
void bench_pack(vmml_uct_mem_h memh, CUdeviceptr ptr, size_t length,
                uint8_t key[BENCH_KEY]);
struct bench_range bench_query(CUdeviceptr ptr, size_t length);

/* Private memory of the process that is in use, in bytes. */
size_t bench_private(void);
/* Shared memory, which is where the ledger lies. */
size_t bench_shared(void);

/* The measurements. argv: what follows the name. */
int bench_doors(int argc, char **argv);
int bench_extents(int argc, char **argv);
int bench_lane(int argc, char **argv);
int bench_registrations(int argc, char **argv);

#endif
