/* SPDX-License-Identifier: MIT */
/*
 * What the shim's shared memory files (memfd_create(2)) have in common.
 */
#ifndef VMML_BASE_MEMFD_H
#define VMML_BASE_MEMFD_H

#include <stddef.h>

/* The size of a new file. Returns 0, or -errno of ftruncate(2): EFBIG where the
 * process may not have so large a file (RLIMIT_FSIZE). */
int vmml_memfd_resize(int fd, size_t size);

/* Allocate bytes [offset, offset + length), so that no store there can be
 * answered by SIGBUS. Returns 0, or -errno of fallocate(2). */
int vmml_memfd_allocate(int fd, size_t offset, size_t length);

/*
 * No other size and no other seals from now on, and no new writable mapping:
 * the maker maps it first. Before Linux 5.1 there is no FUTURE_WRITE; the
 * file's mode is then all that keeps others from writing.
 * Returns 0, or -errno of fcntl(2).
 */
int vmml_memfd_seal(int fd);

#endif
