/* SPDX-License-Identifier: MIT */
/*
 * Two processes: an exporter that does as it is told over a socket, and what
 * an importer's UCX would do with its keys.
 */
#ifndef VMML_TESTS_LANE_EXPORTER_H
#define VMML_TESTS_LANE_EXPORTER_H

#include <sys/types.h>

#include "harness.h"

struct exporter {
    pid_t pid;
    int sock;
};

/* Fork one. The caller must not have called CUDA or the shim yet, or have
 * called ex_nursery() before it did. */
struct exporter ex_start(void);
/* What it does before all else, unless NULL. */
extern void (*ex_setup)(void);
/* From now on exporters are forked by a process that is forked now. */
void ex_nursery(void);
/* Ask it to exit, and wait for that. */
void ex_stop(struct exporter *exporter);
/* SIGKILL, and wait. */
void ex_kill(struct exporter *exporter);

/* The functions of harness.h of these names, in the exporter. */
uint64_t ex_reserve(struct exporter *exporter, size_t size);
void ex_reserve_at(struct exporter *exporter, uint64_t address, size_t size);
void ex_free_address(struct exporter *exporter, uint64_t address, size_t size);
void ex_map(struct exporter *exporter, uint64_t address, size_t size,
            unsigned count, unsigned seed);
void ex_map_unseen(struct exporter *exporter, uint64_t address, size_t size,
                   unsigned count, unsigned seed);
CUresult ex_unmap(struct exporter *exporter, uint64_t address, size_t size);
CUresult ex_unmap_unseen(struct exporter *exporter, uint64_t address,
                         size_t size);
uint64_t ex_reg(struct exporter *exporter, uint64_t address, size_t length);
void ex_dereg(struct exporter *exporter, uint64_t memh);
bool ex_pack(struct exporter *exporter, uint64_t memh, uint64_t address,
             size_t length, uint8_t key[KEY_SIZE]);

/* Fill with the pattern of `seed`; does it hold it? */
void ex_fill(struct exporter *exporter, uint64_t address, size_t size,
             unsigned seed);
bool ex_holds(struct exporter *exporter, uint64_t address, size_t size,
              unsigned seed);
unsigned ex_fd_count(struct exporter *exporter);
/* Call a function of this program in the exporter. */
uint64_t ex_run(struct exporter *exporter, uint64_t (*function)(uint64_t arg),
                uint64_t arg);
/* The same, without waiting for its end: no other request after that. */
void ex_begin(struct exporter *exporter, uint64_t (*function)(uint64_t arg),
              uint64_t arg);
long ex_calls(struct exporter *exporter, const char *name);
/* Its next refused cuMemUnmap. */
void ex_refuse_unmap(struct exporter *exporter);
/* A child of it that sleeps until the test ends; its pid. */
pid_t ex_fork(struct exporter *exporter);
/* Close a descriptor of it. Put another file under its number. */
void ex_close(struct exporter *exporter, int fd);
void ex_put_null(struct exporter *exporter, int fd);
/* Begin, on a thread of its own, to unmap and map for ever. */
void ex_churn(struct exporter *exporter, uint64_t address, size_t size,
              unsigned seed);

/* Register and pack in one. */
void ex_key(struct exporter *exporter, uint64_t address, size_t length,
            uint8_t key[KEY_SIZE]);

/* --- the importer --------------------------------------------------------- */

/* As the unpack hook does, for device 0. */
bool im_prepare(const uint8_t key[KEY_SIZE]);
/* As UCX opens it: where the window lies here. */
CUdeviceptr im_open(const uint8_t key[KEY_SIZE]);
/* im_prepare() and im_open(), both of which must do. */
CUdeviceptr im_attach(const uint8_t key[KEY_SIZE]);
bool im_close(CUdeviceptr ptr);

/* A buffer of this process, on the current device. */
#define BUFFER_SIZE (32 * CHUNK)
CUdeviceptr im_buffer(void);
CUstream im_stream(void);

/* Post a copy as UCX does. */
CUresult im_post(CUdeviceptr dst, CUdeviceptr src, size_t length);
/* GET: `mirror` is the address here of the exporter's `address`. Checks that
 * the posted copy gave the pattern of `seed`, or that it was refused. */
void im_expect(CUdeviceptr mirror, uint64_t address, size_t length,
               unsigned seed);
void im_refused(CUdeviceptr mirror, size_t length);
/* PUT the pattern of `seed`. */
void im_put(CUdeviceptr mirror, uint64_t address, size_t length, unsigned seed);

#endif
