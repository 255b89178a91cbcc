/*
 * Controls that the simulated CUDA driver exports beside the driver API, for
 * tests in the same process. A program that may also run on a real driver
 * looks them up with dlsym().
 *
 * The environment switches (VMMLANE_SIM_*) are listed in README.md.
 */
#ifndef VMMLANE_TESTS_SIM_H
#define VMMLANE_TESTS_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Calls of one entry point so far in this process, failed ones included.
 * name: the exported symbol, e.g. "cuMemGetAddressRange_v2".
 * Returns the count, or -1 for a name that the driver does not have.
 */
long sim_call_count(const char *name);

/* Sets all counts to zero, and with them the n of the failure rules. */
void sim_reset_counts(void);

/*
 * Makes a call fail. name: the exported symbol. nth: 1 is the next call.
 * result: the CUresult to give. from: 0 fails the nth call alone, 1 fails it
 * and all later ones.
 * Returns 0, or -1 for an unknown name or when 64 rules stand.
 */
int sim_fail(const char *name, unsigned long nth, int result, int from);

/* Removes all failure rules, those of the environment included. */
void sim_clear_failures(void);

/*
 * Registers a function that the driver calls inside cuMemMap, cuMemUnmap,
 * cuMemFree and cuMemFreeAsync, on the calling thread with no lock held, as
 * UCM's patch does: before the work for unmap and free, after it for a map
 * that succeeded. name: the entry point. NULL ends it.
 */
typedef void (*sim_reentry_fn)(const char *name, uint64_t address, size_t size,
                               void *arg);
void sim_set_reentry(sim_reentry_fn fn, void *arg);

/*
 * While hold is 1, a copy stops before its next slice and stays in flight;
 * 0 lets all go on. A copy's first slice (see sim_set_copy_slice) is done
 * before it stops, so that a held copy is a running one.
 */
void sim_hold_copies(int hold);

/* Waits until n copies stand held, at most timeout_ms. Returns 0 or -1. */
int sim_wait_held(unsigned n, unsigned timeout_ms);

/* Size of a copy's slice in bytes, 1 or more; the default is 256 KiB. */
void sim_set_copy_slice(size_t bytes);

/* Sleep after each slice, in microseconds; 0 by default. */
void sim_set_slice_delay(unsigned us);

/*
 * A readable and writable view of device memory for the CPU, without any
 * driver call being counted. Valid until the memory is unmapped.
 * Returns NULL where [address, address + size) is not inside one mapping.
 */
void *sim_host_view(uint64_t address, size_t size);

/* Bytes of simulated device memory that all processes of this domain hold on
 * a device, by its physical number. */
uint64_t sim_memory_used(int device);

#ifdef __cplusplus
}
#endif

#endif
