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

#define VMML_LEDGER_MAGIC       0x6c656e616c6d6d76ull /* "vmmlanel" */
#define VMML_LEDGER_VERSION     1
#define VMML_LEDGER_WINDOWS_MAX 65536
#define VMML_LEDGER_CHUNKS_MAX  1048576
#define VMML_NONCE_SIZE         16

/* No entry: ends a chain. */
#define VMML_LEDGER_NONE UINT32_MAX

enum vmml_chunk_kind {
    VMML_CHUNK_FD = 1, /* a file descriptor of the exporter */
};

enum vmml_chunk_state {
    VMML_CHUNK_FREE,      /* unused, or dead and to be reused */
    VMML_CHUNK_LIVE,      /* may be mapped and copied from */
    VMML_CHUNK_UNMAPPING, /* the exporter is in cuMemUnmap */
};

struct vmml_ledger_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_size; /* bytes; the window table starts there */
    uint8_t nonce[VMML_NONCE_SIZE];
    uint32_t pid;       /* in the exporter's PID namespace */
    uint32_t pid_ns;    /* inode number of that namespace */
    uint64_t start_time; /* clock ticks since boot, /proc/PID/stat field 22 */
    uint32_t window_capacity;
    uint32_t chunk_capacity;
    _Atomic uint32_t window_count; /* windows [0, count) were ever used */
    _Atomic uint32_t chunk_count;  /* chunks [0, count) were ever used */
};

/*
 * A window: one reservation of the exporter. Constant once it is counted in
 * window_count, but for the fields below `sequence`.
 */
struct vmml_ledger_window {
    uint64_t base;
    uint64_t size; /* 0: retired, no key of it is served any more */
    uint8_t device_uuid[16];
    uint32_t device; /* CUdevice in the exporter */
    /* Sequence lock over all below and over the chain: odd while the exporter
     * writes. */
    _Atomic uint32_t sequence;
    _Atomic uint32_t head;   /* newest live chunk, or VMML_LEDGER_NONE */
    _Atomic uint32_t live;   /* chunks in the chain */
    _Atomic uint64_t newest; /* serial of the newest publication */
    _Atomic uint64_t revoked; /* counts revocations: what a copy compares */
};

/* A chunk: one cuMemMap mapping. 64 bytes. */
struct vmml_ledger_chunk {
    _Atomic uint64_t serial; /* of this publication; never reused */
    _Atomic uint64_t address;
    _Atomic uint64_t size;
    _Atomic uint32_t window;
    _Atomic uint32_t next; /* older chunk of the window */
    _Atomic int32_t fd;    /* in the exporter */
    _Atomic uint32_t device;
    _Atomic uint8_t state;
    _Atomic uint8_t kind;
    uint8_t reserved[22];
};

#define VMML_LEDGER_HEADER_SIZE 4096ul
#define VMML_LEDGER_WINDOW_OFFSET VMML_LEDGER_HEADER_SIZE
#define VMML_LEDGER_CHUNK_OFFSET                                               \
    (VMML_LEDGER_WINDOW_OFFSET +                                               \
     VMML_LEDGER_WINDOWS_MAX * sizeof(struct vmml_ledger_window))
#define VMML_LEDGER_FILE_SIZE                                                  \
    (VMML_LEDGER_CHUNK_OFFSET +                                                \
     VMML_LEDGER_CHUNKS_MAX * sizeof(struct vmml_ledger_chunk))

#endif
