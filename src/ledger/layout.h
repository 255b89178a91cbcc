/* SPDX-License-Identifier: MIT */
/*
 * The shared memory of a ledger: what an exporter publishes, as an importer
 * maps it read-only. Version VMML_LEDGER_VERSION; all fields little-endian
 * and naturally aligned.
 *
 * The file is a memfd of fixed size, sealed against shrinking, growing and new
 * writable mappings. It is sparse: the exporter allocates (fallocate) a part
 * before it writes there, so that neither side can be killed by SIGBUS.
 *
 * An importer believes nothing in it: every field is checked before use.
 */
#ifndef VMML_LEDGER_LAYOUT_H
#define VMML_LEDGER_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/hash.h"

#define VMML_LEDGER_MAGIC      0x6c656e616c6d6d76ull /* "vmmlanel" */
#define VMML_LEDGER_CHUNKS_MAX 1048576
#define VMML_NONCE_SIZE        16

/* Tests build the shim with other numbers of these. */
#ifndef VMML_LEDGER_VERSION
#define VMML_LEDGER_VERSION 2
#endif
#ifndef VMML_LEDGER_WINDOWS_MAX
#define VMML_LEDGER_WINDOWS_MAX 65536
#endif

/* No entry: ends a chain. */
#define VMML_LEDGER_NONE UINT32_MAX

enum vmml_chunk_kind {
    VMML_CHUNK_FD = 1,     /* a file descriptor of the exporter */
    VMML_CHUNK_FABRIC = 2, /* a fabric handle: struct vmml_ledger_fabric */
    /* An allocation of a stream-ordered pool, alone in its window. The
     * descriptor is the pool's, one for all its allocations; what else an
     * importer needs is in the window's struct vmml_ledger_pooled. */
    VMML_CHUNK_POOLED = 3,
};

enum vmml_chunk_state {
    VMML_CHUNK_FREE,      /* unused, or dead and to be reused */
    VMML_CHUNK_LIVE,      /* may be mapped and copied from */
    VMML_CHUNK_UNMAPPING, /* the exporter is in cuMemUnmap */
};

/*
 * Buckets of the window directory: a hash of base and size leads to the first
 * window of a chain. Entries hold a window's index plus 1, so that a part of
 * the file that was never written reads as empty.
 */
#define VMML_LEDGER_BUCKETS 16384

struct vmml_ledger_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_size; /* bytes; the buckets start there */
    uint8_t nonce[VMML_NONCE_SIZE];
    uint32_t pid;    /* in the exporter's PID namespace */
    uint32_t pid_ns; /* inode number of that namespace */
    int32_t life_fd; /* read end of a pipe whose write end only the
                      * exporter holds: it hangs up when the exporter ends
                      * or calls exec; -1: there is none */
    uint32_t unused;
    uint64_t start_time; /* clock ticks since boot, /proc/PID/stat field 22 */
    uint32_t window_capacity;
    uint32_t chunk_capacity;
    _Atomic uint32_t window_count; /* windows [0, count) were ever used */
    _Atomic uint32_t chunk_count;  /* chunks [0, count) were ever used */
    /* Sequence lock of the directory: odd while a window is taken out of its
     * chain. An insertion does not change it. */
    _Atomic uint32_t directory_sequence;
    uint32_t reserved;
};

enum vmml_window_state {
    VMML_WINDOW_SERVED = 1,
    VMML_WINDOW_RETIRED = 2, /* no key of it is served any more */
};

/*
 * A window: one reservation of the exporter. 128 bytes: what each copy reads
 * and what each publication writes lie in two cache lines.
 *
 * The sequence lock covers all fields, and the chain of chunks, against
 * everything but a publication: that puts a chunk in front of the chain, and
 * then raises `newest`. A reader takes `newest` first and leaves out what is
 * newer. An evicted window's entry is used again for another base and size.
 */
struct vmml_ledger_window {
    _Atomic uint64_t revoked; /* counts revocations: what a copy compares */
    _Atomic uint64_t base;
    _Atomic uint64_t size;
    _Atomic uint64_t device_uuid[2]; /* 16 bytes, in their order in memory */
    _Atomic uint32_t device;         /* CUdevice in the exporter */
    _Atomic uint32_t state;
    _Atomic uint32_t bucket_next; /* index plus 1, 0 at the end */
    uint32_t reserved0;
    _Atomic uint64_t origin; /* where the memory lies in the exporter, if
                              * that is not `base`: a pool's; else 0 */

    _Atomic uint32_t sequence; /* odd while the exporter writes */
    _Atomic uint32_t head;     /* newest live chunk, or VMML_LEDGER_NONE */
    _Atomic uint64_t newest;   /* serial of the newest publication */
    _Atomic uint32_t live;     /* chunks in the chain */
    uint32_t reserved1[11];
};

/* A chunk: one cuMemMap mapping. 64 bytes. Serials fall along a chain. */
struct vmml_ledger_chunk {
    _Atomic uint64_t serial; /* of this publication; never reused */
    _Atomic uint64_t address;
    _Atomic uint64_t size;
    _Atomic uint32_t window;
    _Atomic uint32_t next; /* older chunk of the window */
    _Atomic int32_t fd;    /* in the exporter; -1 where the kind has none */
    _Atomic uint32_t device;
    _Atomic uint8_t state;
    _Atomic uint8_t kind;
    uint8_t reserved[22];
};

/*
 * An allocation of a stream-ordered pool, one place for each window. 128 bytes.
 * Written before the chunk is published, and not again before it is dead: what
 * was read is of this publication if that is live afterwards.
 */
#define VMML_POINTER_WORDS 8
struct vmml_ledger_pooled {
    _Atomic uint64_t size; /* bytes; the chunk's is rounded up */
    _Atomic uint64_t pool; /* number of the pool, used once in the exporter */
    _Atomic uint64_t data[VMML_POINTER_WORDS]; /* CUmemPoolPtrExportData */
    uint64_t reserved[6];
};

/*
 * Windows of pool allocations are not of addresses: each gets one above all
 * addresses that a CPU or a GPU has, so that an allocation and the next one at
 * its address have different windows, keys and identities.
 */
#define VMML_POOLED_BASE (1ull << 56)
#define VMML_POOLED_END  (1ull << 57)

static inline int vmml_is_pooled(uint64_t window_base)
{
    return window_base >= VMML_POOLED_BASE;
}

_Static_assert(sizeof(struct vmml_ledger_pooled) == 128, "wire format");

/*
 * CUmemFabricHandle of a chunk of that kind, one place for each chunk. Written
 * before the chunk is published, and not again before it is dead: what was
 * read is of this publication if that is live afterwards.
 */
#define VMML_FABRIC_WORDS 8
struct vmml_ledger_fabric {
    _Atomic uint64_t words[VMML_FABRIC_WORDS];
};

_Static_assert(sizeof(struct vmml_ledger_fabric) == 64, "wire format");
_Static_assert(sizeof(struct vmml_ledger_window) == 128, "wire format");
_Static_assert(sizeof(struct vmml_ledger_chunk) == 64, "wire format");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint8_t) == 1,
               "wire format");

#define VMML_LEDGER_HEADER_SIZE   4096ul
#define VMML_LEDGER_BUCKET_OFFSET VMML_LEDGER_HEADER_SIZE
#define VMML_LEDGER_WINDOW_OFFSET                                              \
    (VMML_LEDGER_BUCKET_OFFSET + VMML_LEDGER_BUCKETS * 4ul)
#define VMML_LEDGER_CHUNK_OFFSET                                               \
    (VMML_LEDGER_WINDOW_OFFSET +                                               \
     VMML_LEDGER_WINDOWS_MAX * sizeof(struct vmml_ledger_window))
#define VMML_LEDGER_POOLED_OFFSET                                              \
    (VMML_LEDGER_CHUNK_OFFSET +                                                \
     VMML_LEDGER_CHUNKS_MAX * sizeof(struct vmml_ledger_chunk))
#define VMML_LEDGER_FABRIC_OFFSET                                              \
    (VMML_LEDGER_POOLED_OFFSET +                                               \
     VMML_LEDGER_WINDOWS_MAX * sizeof(struct vmml_ledger_pooled))
#define VMML_LEDGER_FILE_SIZE                                                  \
    (VMML_LEDGER_FABRIC_OFFSET +                                               \
     VMML_LEDGER_CHUNKS_MAX * sizeof(struct vmml_ledger_fabric))

/* The bucket of a window. */
static inline uint32_t vmml_ledger_bucket(uint64_t base, uint64_t size)
{
    return (uint32_t)(vmml_mix64(base ^ vmml_mix64(size)) %
                      VMML_LEDGER_BUCKETS);
}

#endif
