/* SPDX-License-Identifier: MIT */
/*
 * What the tests of lane/, mirror/ and ucx/ share: each test in a process of
 * its own, memory on the simulated driver, registrations and packs as UCX
 * makes them, and a way to run something at the very moment of a driver call.
 */
#ifndef VMML_TESTS_LANE_HARNESS_H
#define VMML_TESTS_LANE_HARNESS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "doors/real.h"
#include "lane/handle.h"
#include "lane/window.h"
#include "ledger/reader.h"
#include "tests/sim/sim.h"

/* --- checks and processes ------------------------------------------------- */

/* A failed check ends its process: cmocka's would jump into its parent's
 * stack. */
#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: [%d] failed: %s\n", __FILE__, __LINE__,    \
                    getpid(), #condition);                                     \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

#define CHECK_EQUAL(a, b)                                                      \
    do {                                                                       \
        long long left_ = (long long)(a), right_ = (long long)(b);             \
                                                                               \
        if (left_ != right_) {                                                 \
            fprintf(stderr,                                                    \
                    "%s:%d: [%d] %s = %lld (0x%llx), %s = %lld "               \
                    "(0x%llx)\n",                                              \
                    __FILE__, __LINE__, getpid(), #a, left_,                   \
                    (unsigned long long)left_, #b, right_,                     \
                    (unsigned long long)right_);                               \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

#define CHECK_CU(call) CHECK_EQUAL(call, CUDA_SUCCESS)

struct lane_test {
    const char *name;
    void (*run)(void);
    bool needs_pidfd; /* two processes that share descriptors */
};

#define LANE_TEST(function)                                                    \
    {                                                                          \
#function, function, false                                             \
    }
#define LANE_PAIR(function)                                                    \
    {                                                                          \
#function, function, true                                              \
    }

/*
 * Run them, or those that argv names, each in a forked process that has four
 * minutes. With VMML_TEST_FABRIC in the environment memory is of FABRIC type.
 * Returns the exit status: 77 when all were skipped.
 */
int lane_main(int argc, char **argv, const struct lane_test *tests,
              size_t count);

/* Descriptors that this process has open. */
unsigned lane_fd_count(void);

/* Are there so many, now or soon? What is revoked is closed just after. */
bool lane_fds_become(unsigned count);

/* Remember the descriptors that are open now. How many others there are, the
 * simulated driver's own left out: here, and in a child of fork. */
void lane_fds_note(void);
unsigned lane_fds_new(void);
unsigned lane_fds_inherited(void);

/* Milliseconds that a wait may take, and seconds of a whole test: they end what
 * hangs, and a machine that does much else is not to reach them. */
#define LANE_WAIT_MS      120000
#define LANE_TEST_SECONDS 900

/* Until `done(arg)` or LANE_WAIT_MS have passed; returns whether it was. */
bool lane_wait(bool (*done)(void *arg), void *arg);

/* Before cuInit: device memory of this process and its children alone, so that
 * sim_memory_used() counts nobody else's. */
void lane_own_domain(void);

/* Milliseconds of CLOCK_MONOTONIC. */
uint64_t lane_ms(void);

/* Send the log to a file of this process; and what is in it. */
void lane_log_to_file(void);
bool lane_log_has(const char *text);
unsigned lane_log_count(const char *text);

/* --- memory --------------------------------------------------------------- */

#define MIB   (1ul << 20)
#define CHUNK VMML_GRANULE

/* cuInit, and the device's primary context made current. */
void lane_cuda(int device);

/* Make the ledger, and whatever descriptors come with it, now. */
void lane_ledger(void);

uint64_t lane_reserve(size_t size);
/* As lane_reserve(), at this very address. */
void lane_reserve_at(uint64_t address, size_t size);
void lane_free_address(uint64_t address, size_t size);

/* How memory is made and mapped. */
struct lane_memory {
    int device;
    int handle_types; /* 0: as the caller of cuMemCreate gave it, NONE */
    bool unseen;      /* past the hooks */
    bool no_access;   /* without cuMemSetAccess */
};
extern struct lane_memory lane_plain; /* device 0, POSIX_FD, seen */
extern struct lane_memory lane_unseen;

/* One chunk, filled with the pattern of `seed`. */
void lane_map(uint64_t address, size_t size, unsigned seed);
void lane_map_as(uint64_t address, size_t size, unsigned seed,
                 const struct lane_memory *memory);
/* `count` chunks of `size` each. */
void lane_map_run(uint64_t address, size_t size, unsigned count, unsigned seed);

CUresult lane_unmap(uint64_t address, size_t size);
CUresult lane_unmap_unseen(uint64_t address, size_t size);

/* The pattern: 8 bytes made of seed and address. `bytes`: what lies at
 * `address`, a multiple of 8. */
void lane_fill(void *bytes, uint64_t address, size_t size, unsigned seed);
/* Offset of the first byte that differs, or `size`. Any alignment. */
size_t lane_differs(const void *bytes, uint64_t address, size_t size,
                    unsigned seed);

/* --- as UCX does ---------------------------------------------------------- */

/* A memory domain of a stand-in for libuct_cuda; and an address inside it, for
 * hooks that look at their caller. */
vmml_uct_md_h lane_md(void);
const void *lane_caller(void);
/* A symbol of it. */
void *lane_standin(const char *symbol);
/* The same of a stand-in that shares descriptors by itself. */
vmml_uct_md_h lane_md_native(void);

#define KEY_SIZE VMML_HANDLE_SCAN

/* Register: returns the memory handle, a number that no other has. */
vmml_uct_mem_h lane_reg(uint64_t address, size_t length);
vmml_uct_mem_h lane_reg_in(vmml_uct_md_h md, uint64_t address, size_t length);
void lane_dereg(vmml_uct_mem_h memh);
/* The key that UCX would send, the handle at byte 4. False: native. */
bool lane_pack(vmml_uct_mem_h memh, uint64_t address, size_t length,
               uint8_t key[KEY_SIZE]);
/* The handle in a key. */
struct vmml_handle lane_handle(const uint8_t key[KEY_SIZE]);
/* The reason of a tombstone, or VMML_REASON_NONE. */
int lane_reason(const uint8_t key[KEY_SIZE]);

/* What an importer would find published in a window of this process: the live
 * chunks, sorted by address. Returns their number, 0 for a window that is not
 * served; at most `max` are stored. */
size_t lane_published(uint64_t base, uint64_t size,
                      struct vmml_chunk_view *chunks, size_t max);
/* Whether the descriptor or fabric handle of a published chunk holds what is
 * mapped now. */
bool lane_is_present(const struct vmml_chunk_view *chunk);

/* --- at the moment of a driver call --------------------------------------- */

/* The shim's table of real functions, for replacing members. */
struct vmml_real *lane_real(void);

/* A driver call of a thread that has called lane_watch(). */
struct lane_call {
    const char *name;
    bool after;    /* the real function has returned */
    unsigned step; /* counts from 1, before and after apart */
};

/* From now on `at` is called around every watched call of the shim; NULL ends
 * it. `refuse`: the next cuMemUnmap of a watched thread fails. */
typedef void (*lane_at_fn)(const struct lane_call *call, void *arg);
void lane_watch(lane_at_fn at, void *arg);
void lane_refuse_unmap(bool refuse);

/* Another thread forks at the first call of this name that has returned; the
 * call goes on meanwhile. */
void lane_fork_after(const char *name);
/* How many descriptors of device memory, but for the driver's own, that child
 * had. */
int lane_fork_inherited(void);

/* Run it on another thread and wait for its end. */
void lane_on_thread(void (*run)(void *arg), void *arg);

#endif
