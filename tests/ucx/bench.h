/*
 * What the bench scenarios need besides the client: the exporter's timed work,
 * and the driver's own calls for the same memory, without UCX.
 */
#ifndef VMMLANE_TESTS_UCX_BENCH_H
#define VMMLANE_TESTS_UCX_BENCH_H

#include "client.h"

/* args[0] of CMD_BENCH. Others: args[1] segment, args[2] offset, args[3]
 * length, args[4] count, args[5] a second segment; of BENCH_REGISTER: also
 * export each chunk, before or after its pack in turn. Replies in nanoseconds.
 */
enum bench {
    BENCH_EXPORT, /* -> of retain + export + release of all chunks, of retain
                     + release alone; payload: the descriptors */
    BENCH_CLOSE,  /* those are closed */
    BENCH_IPC,    /* payload: the legacy IPC handle of the segment */
    BENCH_KEY,    /* -> of registration, first pack, second pack; payload: the
                     key. It lives until BENCH_UNKEY */
    BENCH_UNKEY,
    BENCH_REGISTER, /* `count` registrations of `length` side by side, a pack of
                       each -> of registrations, of packs, of deregistrations,
                       of the first registration, of the exports */
    BENCH_SEND,     /* `count` tagged messages of `length`, in turn of both
                       segments */
};

/* The exporter's part; the payload is the caller's to free. */
void *bench_obey(struct wire_header *h);

/* A command of the importer: h->args[1..] are set. */
void bench_command(enum bench what, struct wire_header *h, void **reply);

double median(double *values, size_t count); /* sorts them */

/* The same memory by the driver's calls alone. */
struct raw {
    CUdeviceptr base; /* where offset 0 of the remote segment is */
    size_t reserved;  /* 0: opened by legacy IPC */
    const struct remote *remote;
    double reserve;                     /* seconds, */
    double get_fd, import, map, access; /* of all chunks together */
};

/* Exports at the exporter and imports here. export_ns: args of the reply. */
struct raw raw_open(const struct remote *remote, uint64_t export_ns[2]);
void raw_close(struct raw *raw);

/* A copy, from its call until its end was seen: seconds; *post: of the call
 * alone. Posted in pieces, the first of `piece` bytes (0: whole), each `growth`
 * times the one before. */
double raw_copy(CUdeviceptr to, CUdeviceptr from, size_t length, size_t piece,
                size_t growth, double *post);

#endif
