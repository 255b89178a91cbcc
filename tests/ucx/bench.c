#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t since(double begin)
{
    return (uint64_t)((now() - begin) * 1e9);
}

static void *allocated(size_t count, size_t size)
{
    void *memory = calloc(count, size);

    if (memory == NULL)
        die(EXIT_SETUP, "out of memory");
    return memory;
}

/* ---- the exporter ---- */

static int *exported;
static size_t exported_count;

static void raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        die(EXIT_SETUP, "getrlimit: %s", strerror(errno));
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        die(EXIT_SETUP, "setrlimit: %s", strerror(errno));
}

/* As a shim has to: it holds no handle of the memory. */
static void retain(const struct segment *segment, size_t chunk,
                   CUmemGenericAllocationHandle *handle)
{
    CU_MUST(cuMemRetainAllocationHandle(
        handle, (void *)(segment->base + segment->chunks[chunk].offset)));
}

/* Returns its descriptor. */
static int export(const struct segment *segment, size_t chunk)
{
    CUmemGenericAllocationHandle handle;
    int fd;

    retain(segment, chunk, &handle);
    CU_MUST(cuMemExportToShareableHandle(
        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU_MUST(cuMemRelease(handle));
    return fd;
}

static void *export_all(struct wire_header *h, const struct segment *segment)
{
    size_t count = segment->chunk_count;
    CUmemGenericAllocationHandle handle;
    double begin;
    int *copy;

    raise_limit();
    exported = allocated(count, sizeof(*exported));
    exported_count = count;
    begin = now();
    for (size_t i = 0; i < count; i++)
        exported[i] = export(segment, i);
    h->args[0] = since(begin);
    begin = now();
    for (size_t i = 0; i < count; i++) {
        retain(segment, i, &handle);
        CU_MUST(cuMemRelease(handle));
    }
    h->args[1] = since(begin);
    copy = allocated(count, sizeof(*copy));
    memcpy(copy, exported, count * sizeof(*copy));
    h->payload_length = count * sizeof(*copy);
    return copy;
}

static void close_all(void)
{
    for (size_t i = 0; i < exported_count; i++)
        close(exported[i]);
    free(exported);
    exported = NULL;
    exported_count = 0;
}

static void *give_ipc(struct wire_header *h, const struct segment *segment)
{
    CUipcMemHandle *handle = allocated(1, sizeof(*handle));

    CU_MUST(cuIpcGetMemHandle(handle, segment->base));
    h->payload_length = sizeof(*handle);
    return handle;
}

static ucp_mem_h keyed;

static void *make_key(struct wire_header *h, const struct segment *segment)
{
    CUdeviceptr address = segment->base + h->args[2];
    double begin = now();
    void *packed = NULL;
    void *again = NULL;
    size_t length = 0;
    void *copy;

    h->status = memory_register(address, h->args[3], &keyed);
    h->args[0] = since(begin);
    begin = now();
    if (h->status == UCS_OK)
        h->status = memory_pack(keyed, &packed, &length);
    h->args[1] = since(begin);
    if (h->status != UCS_OK)
        die(EXIT_SETUP, "no key: %s", ucs_status_string(h->status));
    begin = now();
    h->status = memory_pack(keyed, &again, &length);
    h->args[2] = since(begin);
    copy = allocated(1, length);
    memcpy(copy, packed, length);
    ucp_rkey_buffer_release(packed);
    if (h->status == UCS_OK)
        ucp_rkey_buffer_release(again);
    h->payload_length = length;
    return copy;
}

/* The chunks that begin in a range, by the driver's calls alone: seconds. */
static double export_range(const struct segment *segment, uint64_t from,
                           uint64_t to)
{
    static size_t next;
    double seconds = 0;

    if (next >= segment->chunk_count || segment->chunks[next].offset > from)
        next = 0;
    while (next < segment->chunk_count && segment->chunks[next].offset < from)
        next++;
    for (; next < segment->chunk_count && segment->chunks[next].offset < to;
         next++) {
        double begin = now();
        int fd = export(segment, next);

        seconds += now() - begin;
        close(fd);
    }
    return seconds;
}

static double pack_once(struct wire_header *h, ucp_mem_h memh)
{
    double begin = now();
    size_t length;
    void *packed;

    h->status = memory_pack(memh, &packed, &length);
    if (h->status == UCS_OK)
        ucp_rkey_buffer_release(packed);
    return now() - begin;
}

/* The raw exports as often before a pack as after it: the second export of an
 * allocation may take another time than the first. */
static void pack_all(struct wire_header *h, const struct segment *segment,
                     ucp_mem_h *memh, uint64_t length, bool exports)
{
    size_t count = h->args[4];
    double packs = 0, raw = 0;

    for (size_t i = 0; i < count && h->status == UCS_OK; i++) {
        uint64_t from = h->args[2] + i * length;

        if (exports && i % 2 == 0)
            raw += export_range(segment, from, from + length);
        packs += pack_once(h, memh[i]);
        if (exports && i % 2 != 0)
            raw += export_range(segment, from, from + length);
    }
    h->args[1] = (uint64_t)(packs * 1e9);
    h->args[4] = (uint64_t)(raw * 1e9);
}

static void register_all(struct wire_header *h, const struct segment *segment)
{
    size_t count = h->args[4];
    uint64_t length = h->args[3];
    ucp_mem_h *memh = allocated(count, sizeof(*memh));
    double begin;

    raise_limit();
    begin = now();

    for (size_t i = 0; i < count && h->status == UCS_OK; i++) {
        if (i == 1)
            h->args[3] = since(begin);
        h->status = memory_register(segment->base + h->args[2] + i * length,
                                    length, &memh[i]);
    }
    h->args[0] = since(begin);
    pack_all(h, segment, memh, length, h->args[5] != 0);
    begin = now();
    for (size_t i = 0; i < count; i++)
        if (memh[i] != NULL)
            ucp_mem_unmap(ucx.context, memh[i]);
    h->args[2] = since(begin);
    free(memh);
}

static void send_all(struct wire_header *h)
{
    const struct segment *segments[] = {segment_of(h->args[1]),
                                        segment_of(h->args[5])};
    ucp_request_param_t param = {.op_attr_mask = 0};

    for (uint64_t i = 0; i < h->args[4]; i++) {
        const struct segment *segment = segments[i % 2];
        CUdeviceptr address = segment->base + segment->data_offset;

        h->status = transport_wait(
            ucp_tag_send_nbx(ucx.ep, (void *)address, h->args[3], i, &param));
        if (h->status != UCS_OK)
            return;
    }
}

void *bench_obey(struct wire_header *h)
{
    const struct segment *segment = segment_of(h->args[1]);

    switch ((enum bench)h->args[0]) {
    case BENCH_EXPORT:
        return export_all(h, segment);
    case BENCH_CLOSE:
        close_all();
        return NULL;
    case BENCH_IPC:
        return give_ipc(h, segment);
    case BENCH_KEY:
        return make_key(h, segment);
    case BENCH_UNKEY:
        h->status = ucp_mem_unmap(ucx.context, keyed);
        return NULL;
    case BENCH_REGISTER:
        register_all(h, segment);
        return NULL;
    case BENCH_SEND:
        send_all(h);
        return NULL;
    }
    die(EXIT_USAGE, "unknown work %llu", (unsigned long long)h->args[0]);
}

/* ---- the importer ---- */

void bench_command(enum bench what, struct wire_header *h, void **reply)
{
    h->args[0] = what;
    h->payload_length = 0;
    command(CMD_BENCH, h, NULL, reply);
    if (h->status != UCS_OK)
        die(EXIT_SETUP, "the exporter's work %d: %s", (int)what,
            ucs_status_string(h->status));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

double median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(*values), by_value);
    return values[count / 2];
}

static CUmemGenericAllocationHandle import(struct raw *raw, int pidfd,
                                           int number)
{
    CUmemGenericAllocationHandle handle;
    double begin = now();
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);

    if (fd < 0)
        die(EXIT_SKIP, "pidfd_getfd: %s", strerror(errno));
    raw->get_fd += now() - begin;
    begin = now();
    CU_MUST(cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    raw->import += now() - begin;
    begin = now();
    close(fd);
    raw->get_fd += now() - begin;
    return handle;
}

static void map_all(struct raw *raw, int pidfd, const int *numbers)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = opt.device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    const struct wire_chunk *chunks = raw->remote->chunks;
    uint64_t first = chunks[0].offset;
    uint64_t end = first;
    double begin;

    for (uint64_t i = 0; i < raw->remote->chunk_count; i++) {
        CUmemGenericAllocationHandle handle = import(raw, pidfd, numbers[i]);

        begin = now();
        CU_MUST(cuMemMap(raw->base + chunks[i].offset, chunks[i].size, 0,
                         handle, 0));
        CU_MUST(cuMemRelease(handle));
        raw->map += now() - begin;
        end = chunks[i].offset + chunks[i].size;
    }
    begin = now();
    CU_MUST(cuMemSetAccess(raw->base + first, end - first, &access, 1));
    raw->access = now() - begin;
}

static void open_chunks(struct raw *raw, uint64_t export_ns[2])
{
    struct wire_header state = {.command = 0};
    struct wire_header h = {.args = {0, raw->remote->id}};
    void *numbers;
    int pidfd;

    command(CMD_STATE, &state, NULL, NULL);
    pidfd = (int)syscall(SYS_pidfd_open, (pid_t)state.args[5], 0);
    if (pidfd < 0)
        die(EXIT_SKIP, "pidfd_open: %s", strerror(errno));
    bench_command(BENCH_EXPORT, &h, &numbers);
    export_ns[0] = h.args[0];
    export_ns[1] = h.args[1];
    raw->reserved = raw->remote->reserved;
    raw->reserve = now();
    CU_MUST(cuMemAddressReserve(&raw->base, raw->reserved, 0, 0, 0));
    raw->reserve = now() - raw->reserve;
    map_all(raw, pidfd, numbers);
    close(pidfd);
    free(numbers);
    h.args[1] = raw->remote->id;
    bench_command(BENCH_CLOSE, &h, NULL);
}

struct raw raw_open(const struct remote *remote, uint64_t export_ns[2])
{
    struct raw raw = {.remote = remote};
    struct wire_header h = {.args = {0, remote->id}};
    void *handle;

    if (strncmp(remote->kind, "malloc", strlen("malloc")) != 0) {
        open_chunks(&raw, export_ns);
        return raw;
    }
    bench_command(BENCH_IPC, &h, &handle);
    CU_MUST(cuIpcOpenMemHandle(&raw.base, *(CUipcMemHandle *)handle,
                               CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    free(handle);
    return raw;
}

void raw_close(struct raw *raw)
{
    const struct wire_chunk *chunks = raw->remote->chunks;

    if (raw->reserved == 0) {
        CU_MUST(cuIpcCloseMemHandle(raw->base));
        return;
    }
    for (uint64_t i = 0; i < raw->remote->chunk_count; i++)
        CU_MUST(cuMemUnmap(raw->base + chunks[i].offset, chunks[i].size));
    CU_MUST(cuMemAddressFree(raw->base, raw->reserved));
}

static CUstream raw_stream(CUevent *event)
{
    static CUstream stream;
    static CUevent done;

    if (stream == NULL) {
        CU_MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CU_MUST(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    }
    *event = done;
    return stream;
}

/* As UCX does it: the end is seen by asking an event. */
double raw_copy(CUdeviceptr to, CUdeviceptr from, size_t length, size_t piece,
                size_t growth, double *post)
{
    CUevent event;
    CUstream stream = raw_stream(&event);
    double begin = now();
    CUresult result;

    for (size_t at = 0; at < length;) {
        size_t rest = length - at;
        size_t part = piece != 0 && piece < rest ? piece : rest;

        CU_MUST(cuMemcpyDtoDAsync(to + at, from + at, part, stream));
        at += part;
        piece *= growth;
    }
    CU_MUST(cuEventRecord(event, stream));
    *post = now() - begin;
    while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
        ;
    CU_MUST(result);
    return now() - begin;
}
