/* SPDX-License-Identifier: MIT */
#include "exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "hooks.h"
#include "lane/state.h"
#include "mirror/mirror.h"

enum op {
    OP_STOP,
    OP_RESERVE,
    OP_RESERVE_AT,
    OP_FREE_ADDRESS,
    OP_MAP,
    OP_MAP_UNSEEN,
    OP_UNMAP,
    OP_UNMAP_UNSEEN,
    OP_REG,
    OP_DEREG,
    OP_PACK,
    OP_FILL,
    OP_HOLDS,
    OP_FD_COUNT,
    OP_RUN,
    OP_CALLS,
    OP_REFUSE_UNMAP,
    OP_FORK,
    OP_CLOSE,
    OP_PUT_NULL,
    OP_CHURN,
};

struct request {
    enum op op;
    unsigned count;
    unsigned seed;
    uint64_t address;
    uint64_t size;
    uint64_t memh;
    uint64_t (*function)(uint64_t arg);
    char name[48];
};

struct reply {
    uint64_t value;
    uint8_t key[KEY_SIZE];
};

/* --- in the exporter ------------------------------------------------------ */

static void map_all(const struct request *request,
                    const struct lane_memory *memory)
{
    unsigned i;

    for (i = 0; i < request->count; i++)
        lane_map_as(request->address + i * request->size, request->size,
                    request->seed, memory);
}

static uint64_t sleeping_child(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        for (;;)
            pause();
    }
    CHECK(pid > 0);
    return (uint64_t)pid;
}

static void *churn(void *arg)
{
    const struct request *request = arg;
    uint8_t key[KEY_SIZE];
    vmml_uct_mem_h memh;

    for (;;) {
        memh = lane_reg(request->address, request->size);
        CHECK(lane_pack(memh, request->address, request->size, key));
        usleep(2000); /* so that some copies find it */
        CHECK_CU(lane_unmap(request->address, request->size));
        lane_map(request->address, request->size, request->seed);
        lane_dereg(memh);
    }
    return NULL;
}

static void start_churn(const struct request *request)
{
    static struct request copy;
    pthread_t thread;

    copy = *request;
    CHECK_EQUAL(pthread_create(&thread, NULL, churn, &copy), 0);
}

static bool holds(const struct request *request)
{
    void *view = sim_host_view(request->address, request->size);

    CHECK(view != NULL);
    return lane_differs(view, request->address, request->size, request->seed) ==
           request->size;
}

static void *view_of(const struct request *request)
{
    void *view = sim_host_view(request->address, request->size);

    CHECK(view != NULL);
    return view;
}

static uint64_t serve(const struct request *request, uint8_t *key)
{
    uint64_t address = request->address;
    vmml_uct_mem_h memh = (vmml_uct_mem_h)(uintptr_t)request->memh;
    int null;

    switch (request->op) {
    case OP_RESERVE:
        return lane_reserve(request->size);
    case OP_RESERVE_AT:
        lane_reserve_at(address, request->size);
        break;
    case OP_FREE_ADDRESS:
        lane_free_address(address, request->size);
        break;
    case OP_MAP:
        map_all(request, &lane_plain);
        break;
    case OP_MAP_UNSEEN:
        map_all(request, &lane_unseen);
        break;
    case OP_UNMAP:
        return lane_unmap(address, request->size);
    case OP_UNMAP_UNSEEN:
        return lane_unmap_unseen(address, request->size);
    case OP_REG:
        return (uintptr_t)lane_reg(address, request->size);
    case OP_DEREG:
        lane_dereg(memh);
        break;
    case OP_PACK:
        return lane_pack(memh, address, request->size, key);
    case OP_FILL:
        lane_fill(view_of(request), address, request->size, request->seed);
        break;
    case OP_HOLDS:
        return holds(request);
    case OP_FD_COUNT:
        return lane_fd_count();
    case OP_RUN:
        return request->function(address);
    case OP_CALLS:
        return (uint64_t)sim_call_count(request->name);
    case OP_REFUSE_UNMAP:
        lane_watch(NULL, NULL);
        lane_refuse_unmap(true);
        break;
    case OP_FORK:
        return sleeping_child();
    case OP_CLOSE:
        CHECK_EQUAL(close((int)address), 0);
        break;
    case OP_PUT_NULL:
        null = open("/dev/null", O_RDONLY);
        CHECK(null >= 0);
        CHECK_EQUAL(dup2(null, (int)address), (int)address);
        break;
    case OP_CHURN:
        start_churn(request);
        break;
    case OP_STOP:
        _exit(0);
    }
    return 0;
}

void (*ex_setup)(void);

static void run_exporter(int sock)
{
    struct request request;
    struct reply reply;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ex_setup != NULL)
        ex_setup();
    lane_cuda(0);
    while (read(sock, &request, sizeof(request)) == sizeof(request)) {
        memset(&reply, 0, sizeof(reply));
        reply.value = serve(&request, reply.key);
        CHECK_EQUAL(write(sock, &reply, sizeof(reply)), sizeof(reply));
    }
    _exit(0);
}

/* --- asking it ------------------------------------------------------------ */

static struct exporter fork_exporter(void)
{
    struct exporter exporter;
    int pair[2];

    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    exporter.sock = pair[0];
    exporter.pid = fork();
    CHECK(exporter.pid >= 0);
    if (exporter.pid == 0) {
        close(pair[0]);
        run_exporter(pair[1]);
    }
    close(pair[1]);
    return exporter;
}

/* A pid travels beside the socket of its process. */
union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

static void send_exporter(int sock, struct exporter *exporter)
{
    union control control;
    struct iovec bytes = {&exporter->pid, sizeof(exporter->pid)};
    struct msghdr message = {
        .msg_iov = &bytes,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control),
    };

    memset(&control, 0, sizeof(control));
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &exporter->sock, sizeof(int));
    CHECK_EQUAL(sendmsg(sock, &message, 0), sizeof(exporter->pid));
    close(exporter->sock);
}

static struct exporter receive_exporter(int sock)
{
    struct exporter exporter;
    union control control;
    struct iovec bytes = {&exporter.pid, sizeof(exporter.pid)};
    struct msghdr message = {
        .msg_iov = &bytes,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control),
    };

    CHECK_EQUAL(recvmsg(sock, &message, MSG_CMSG_CLOEXEC),
                sizeof(exporter.pid));
    CHECK_EQUAL(control.header.cmsg_type, SCM_RIGHTS);
    memcpy(&exporter.sock, CMSG_DATA(&control.header), sizeof(int));
    return exporter;
}

static int nursery = -1;

void ex_nursery(void)
{
    struct exporter exporter;
    int pair[2];
    char wanted;
    pid_t pid;

    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGCHLD, SIG_IGN);
        close(pair[0]);
        while (read(pair[1], &wanted, 1) == 1) {
            exporter = fork_exporter();
            send_exporter(pair[1], &exporter);
        }
        _exit(0);
    }
    close(pair[1]);
    nursery = pair[0];
}

struct exporter ex_start(void)
{
    if (nursery < 0)
        return fork_exporter();
    CHECK_EQUAL(write(nursery, "", 1), 1);
    return receive_exporter(nursery);
}

/* Exit status; of a child of the nursery 0. */
static int wait_for_end(pid_t pid)
{
    int status = 0;

    if (nursery < 0) {
        CHECK_EQUAL(waitpid(pid, &status, 0), pid);
        return status;
    }
    while (kill(pid, 0) == 0)
        usleep(1000);
    return 0;
}

void ex_stop(struct exporter *exporter)
{
    struct request request = {.op = OP_STOP};
    int status;

    CHECK_EQUAL(write(exporter->sock, &request, sizeof(request)),
                sizeof(request));
    status = wait_for_end(exporter->pid);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 0);
    close(exporter->sock);
}

void ex_kill(struct exporter *exporter)
{
    CHECK_EQUAL(kill(exporter->pid, SIGKILL), 0);
    wait_for_end(exporter->pid);
    close(exporter->sock);
}

static struct reply ask(struct exporter *exporter,
                        const struct request *request)
{
    struct reply reply;

    CHECK_EQUAL(write(exporter->sock, request, sizeof(*request)),
                sizeof(*request));
    CHECK_EQUAL(read(exporter->sock, &reply, sizeof(reply)), sizeof(reply));
    return reply;
}

static uint64_t ask_range(struct exporter *exporter, enum op op,
                          uint64_t address, uint64_t size)
{
    struct request request = {.op = op, .address = address, .size = size};

    return ask(exporter, &request).value;
}

uint64_t ex_reserve(struct exporter *exporter, size_t size)
{
    return ask_range(exporter, OP_RESERVE, 0, size);
}

void ex_reserve_at(struct exporter *exporter, uint64_t address, size_t size)
{
    ask_range(exporter, OP_RESERVE_AT, address, size);
}

void ex_free_address(struct exporter *exporter, uint64_t address, size_t size)
{
    ask_range(exporter, OP_FREE_ADDRESS, address, size);
}

static void map_by(struct exporter *exporter, enum op op, uint64_t address,
                   size_t size, unsigned count, unsigned seed)
{
    struct request request = {.op = op,
                              .address = address,
                              .size = size,
                              .count = count,
                              .seed = seed};

    ask(exporter, &request);
}

void ex_map(struct exporter *exporter, uint64_t address, size_t size,
            unsigned count, unsigned seed)
{
    map_by(exporter, OP_MAP, address, size, count, seed);
}

void ex_map_unseen(struct exporter *exporter, uint64_t address, size_t size,
                   unsigned count, unsigned seed)
{
    map_by(exporter, OP_MAP_UNSEEN, address, size, count, seed);
}

CUresult ex_unmap(struct exporter *exporter, uint64_t address, size_t size)
{
    return (CUresult)ask_range(exporter, OP_UNMAP, address, size);
}

CUresult ex_unmap_unseen(struct exporter *exporter, uint64_t address,
                         size_t size)
{
    return (CUresult)ask_range(exporter, OP_UNMAP_UNSEEN, address, size);
}

uint64_t ex_reg(struct exporter *exporter, uint64_t address, size_t length)
{
    return ask_range(exporter, OP_REG, address, length);
}

void ex_dereg(struct exporter *exporter, uint64_t memh)
{
    struct request request = {.op = OP_DEREG, .memh = memh};

    ask(exporter, &request);
}

bool ex_pack(struct exporter *exporter, uint64_t memh, uint64_t address,
             size_t length, uint8_t key[KEY_SIZE])
{
    struct request request = {
        .op = OP_PACK, .memh = memh, .address = address, .size = length};
    struct reply reply = ask(exporter, &request);

    memcpy(key, reply.key, KEY_SIZE);
    return reply.value != 0;
}

void ex_key(struct exporter *exporter, uint64_t address, size_t length,
            uint8_t key[KEY_SIZE])
{
    CHECK(ex_pack(exporter, ex_reg(exporter, address, length), address, length,
                  key));
}

void ex_fill(struct exporter *exporter, uint64_t address, size_t size,
             unsigned seed)
{
    map_by(exporter, OP_FILL, address, size, 1, seed);
}

bool ex_holds(struct exporter *exporter, uint64_t address, size_t size,
              unsigned seed)
{
    struct request request = {
        .op = OP_HOLDS, .address = address, .size = size, .seed = seed};

    return ask(exporter, &request).value != 0;
}

unsigned ex_fd_count(struct exporter *exporter)
{
    return (unsigned)ask_range(exporter, OP_FD_COUNT, 0, 0);
}

uint64_t ex_run(struct exporter *exporter, uint64_t (*function)(uint64_t arg),
                uint64_t arg)
{
    struct request request = {
        .op = OP_RUN, .address = arg, .function = function};

    return ask(exporter, &request).value;
}

void ex_begin(struct exporter *exporter, uint64_t (*function)(uint64_t arg),
              uint64_t arg)
{
    struct request request = {
        .op = OP_RUN, .address = arg, .function = function};

    CHECK_EQUAL(write(exporter->sock, &request, sizeof(request)),
                sizeof(request));
}

long ex_calls(struct exporter *exporter, const char *name)
{
    struct request request = {.op = OP_CALLS};

    snprintf(request.name, sizeof(request.name), "%s", name);
    return (long)ask(exporter, &request).value;
}

void ex_refuse_unmap(struct exporter *exporter)
{
    ask_range(exporter, OP_REFUSE_UNMAP, 0, 0);
}

pid_t ex_fork(struct exporter *exporter)
{
    return (pid_t)ask_range(exporter, OP_FORK, 0, 0);
}

void ex_close(struct exporter *exporter, int fd)
{
    ask_range(exporter, OP_CLOSE, (uint64_t)fd, 0);
}

void ex_put_null(struct exporter *exporter, int fd)
{
    ask_range(exporter, OP_PUT_NULL, (uint64_t)fd, 0);
}

void ex_churn(struct exporter *exporter, uint64_t address, size_t size,
              unsigned seed)
{
    map_by(exporter, OP_CHURN, address, size, 1, seed);
}

/* --- the importer --------------------------------------------------------- */

bool im_prepare(const uint8_t key[KEY_SIZE])
{
    struct vmml_handle handle = lane_handle(key);

    return vmml_mirror_prepare(&handle, 0);
}

CUdeviceptr im_open(const uint8_t key[KEY_SIZE])
{
    CUipcMemHandle bytes;
    CUdeviceptr ptr = 0;

    memcpy(&bytes, key + 4, sizeof(bytes));
    CHECK_CU(vmml_cuIpcOpenMemHandle_v2(lane_caller(), &ptr, bytes,
                                        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return ptr;
}

CUdeviceptr im_attach(const uint8_t key[KEY_SIZE])
{
    CHECK(im_prepare(key));
    return im_open(key);
}

bool im_close(CUdeviceptr ptr)
{
    return vmml_cuIpcCloseMemHandle(lane_caller(), ptr) == CUDA_SUCCESS;
}

CUdeviceptr im_buffer(void)
{
    static __thread CUdeviceptr buffer;

    if (buffer == 0)
        CHECK_CU(cuMemAlloc_v2(&buffer, BUFFER_SIZE));
    return buffer;
}

CUstream im_stream(void)
{
    static __thread CUstream stream;

    if (stream == NULL)
        CHECK_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUresult im_post(CUdeviceptr dst, CUdeviceptr src, size_t length)
{
    return vmml_cuMemcpyDtoDAsync_v2(lane_caller(), dst, src, length,
                                     im_stream());
}

void im_expect(CUdeviceptr mirror, uint64_t address, size_t length,
               unsigned seed)
{
    uint8_t *bytes = sim_host_view(im_buffer(), length);

    CHECK(bytes != NULL);
    memset(bytes, 0xee, length);
    CHECK_CU(im_post(im_buffer(), mirror, length));
    CHECK_CU(cuStreamSynchronize(im_stream()));
    if (lane_differs(bytes, address, length, seed) != length) {
        unsigned other;

        for (other = 0; other < 100; other++)
            if (lane_differs(bytes, address, length, other) == length)
                fprintf(stderr, "the bytes are of seed %u\n", other);
        fprintf(stderr, "first byte 0x%x, wanted seed %u\n", bytes[0], seed);
    }
    CHECK_EQUAL(lane_differs(bytes, address, length, seed), length);
}

void im_refused(CUdeviceptr mirror, size_t length)
{
    uint8_t *bytes = sim_host_view(im_buffer(), length);
    size_t i;

    CHECK(bytes != NULL);
    memset(bytes, 0xee, length);
    CHECK_EQUAL(im_post(im_buffer(), mirror, length), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(im_post(mirror, im_buffer(), length), CUDA_ERROR_INVALID_VALUE);
    /* The context is as before, and no byte has come over. */
    CHECK_CU(cuStreamSynchronize(im_stream()));
    for (i = 0; i < length; i++)
        CHECK_EQUAL(bytes[i], 0xee);
}

void im_put(CUdeviceptr mirror, uint64_t address, size_t length, unsigned seed)
{
    uint8_t *bytes = sim_host_view(im_buffer(), length + 8);
    size_t skip = address % 8;

    CHECK(bytes != NULL);
    lane_fill(bytes, address - skip, (skip + length + 7) / 8 * 8, seed);
    CHECK_CU(im_post(mirror, im_buffer() + skip, length));
    CHECK_CU(cuStreamSynchronize(im_stream()));
}
