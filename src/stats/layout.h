/* SPDX-License-Identifier: MIT */
/*
 * The statistics of a process, as `vmmlane inspect` maps them: a memfd of fixed
 * size, sealed against shrinking, growing and new writable mappings, that is
 * found in /proc/PID/fd by its name. All fields little-endian and naturally
 * aligned. It changes with its version and with the names that it counts, of
 * which the header holds a hash.
 *
 * Who reads it believes nothing in it.
 */
#ifndef VMML_STATS_LAYOUT_H
#define VMML_STATS_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#define VMML_STATS_NAME    "vmmlane-stats"
#define VMML_STATS_MAGIC   0x73656e616c6d6d76ull /* "vmmlanes" */
#define VMML_STATS_VERSION 1

/* Counters of a shard, hooks among them; shards; causes; mirrors. */
#define VMML_STATS_SLOTS   128
#define VMML_STATS_SHARDS  32
#define VMML_STATS_CAUSES  64
#define VMML_STATS_MIRRORS 128

struct vmml_stats_header {
    uint64_t magic;
    uint32_t version;
    uint32_t size;  /* bytes, of the whole */
    uint64_t names; /* vmml_stats_names() */
    uint32_t pid;   /* in its own PID namespace */
    uint32_t unused;
    uint64_t since; /* seconds since the epoch */
    char release[32];
    uint8_t reserved[4096 - 72];
};

/* The counts of one thread, or of all that share it: number 0. A count is the
 * sum over the shards. */
struct vmml_stats_shard {
    _Atomic uint64_t counts[VMML_STATS_SLOTS];
};

/* What is known of the last loss of one cause. The sequence is odd while it is
 * written; `count` is exact all the same. */
struct vmml_stats_lost {
    _Atomic uint64_t count;
    _Atomic uint64_t last; /* ns since the epoch */
    _Atomic uint64_t address;
    _Atomic uint64_t length;
    _Atomic uint64_t handle_types; /* CUmemAllocationHandleType bits */
    _Atomic uint32_t sequence;
    _Atomic uint32_t pid;    /* of the exporter; 0: this process */
    _Atomic uint32_t chunks; /* 0: not known */
    _Atomic int32_t code;    /* a CUresult, or -errno; 0: none */
    uint64_t reserved;
};

/* A mirror as it was when it was last brought up to date. */
struct vmml_stats_mirror {
    _Atomic uint32_t sequence; /* odd while it is written */
    _Atomic uint32_t used;
    _Atomic uint64_t base; /* of the window, in the exporter */
    _Atomic uint64_t size;
    _Atomic uint64_t address; /* here */
    _Atomic uint64_t bytes;   /* mapped */
    _Atomic uint32_t pid;     /* of the exporter */
    _Atomic uint32_t chunks;  /* mapped */
    _Atomic int32_t device;   /* CUdevice here */
    _Atomic uint32_t outcome; /* enum vmml_sync of the last update */
    uint64_t reserved;
};

struct vmml_stats_file {
    struct vmml_stats_header header;
    struct vmml_stats_shard shards[VMML_STATS_SHARDS];
    struct vmml_stats_lost lost[VMML_STATS_CAUSES];
    struct vmml_stats_mirror mirrors[VMML_STATS_MIRRORS];
};

_Static_assert(sizeof(struct vmml_stats_header) == 4096, "wire format");
_Static_assert(sizeof(struct vmml_stats_lost) == 64, "wire format");
_Static_assert(sizeof(struct vmml_stats_mirror) == 64, "wire format");

#endif
