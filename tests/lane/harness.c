/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/hash.h"
#include "hooks.h"
#include "lane/state.h"

#define SKIPPED 77

/* --- processes ------------------------------------------------------------ */

static bool has_pidfd(void)
{
    long pidfd = syscall(SYS_pidfd_open, getpid(), 0);
    long fd;

    if (pidfd < 0)
        return false;
    fd = syscall(SYS_pidfd_getfd, (int)pidfd, STDERR_FILENO, 0);
    close((int)pidfd);
    if (fd >= 0)
        close((int)fd);
    return fd >= 0;
}

/* Everything that the test has started ends with it. */
static void run_child(const struct lane_test *test)
{
    setpgid(0, 0);
    alarm(LANE_TEST_SECONDS);
    if (test->needs_pidfd && !has_pidfd()) {
        fprintf(stderr, "pidfd_getfd(2) is not permitted here\n");
        _exit(SKIPPED);
    }
    test->run();
    _exit(0);
}

static int run_one(const struct lane_test *test)
{
    pid_t pid;
    int status;

    fflush(NULL);
    pid = fork();
    if (pid == 0)
        run_child(test);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    kill(-pid, SIGKILL);
    if (WIFSIGNALED(status)) {
        printf("%s: signal %d\n", test->name, WTERMSIG(status));
        return 1;
    }
    printf("%s: %s\n", test->name,
           WEXITSTATUS(status) == 0         ? "passed"
           : WEXITSTATUS(status) == SKIPPED ? "skipped"
                                            : "FAILED");
    return WEXITSTATUS(status);
}

static bool is_named(int argc, char **argv, const char *name)
{
    int i;

    for (i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2;
}

int lane_main(int argc, char **argv, const struct lane_test *tests,
              size_t count)
{
    unsigned failed = 0, skipped = 0, ran = 0;
    size_t i;

    if (getenv("VMML_TEST_FABRIC") != NULL) {
        lane_plain.handle_types = CU_MEM_HANDLE_TYPE_FABRIC;
        lane_unseen.handle_types = CU_MEM_HANDLE_TYPE_FABRIC;
        CHECK(setenv("VMMLANE_SIM_FABRIC", "on", 1) == 0);
    }
    for (i = 0; i < count; i++) {
        int status;

        if (!is_named(argc, argv, tests[i].name))
            continue;
        status = run_one(&tests[i]);
        ran++;
        skipped += status == SKIPPED;
        failed += status != 0 && status != SKIPPED;
    }
    printf("%u run, %u failed, %u skipped\n", ran, failed, skipped);
    if (failed > 0 || ran == 0 || (argc > 1 && ran != (unsigned)argc - 1))
        return 1;
    return skipped == ran ? SKIPPED : 0;
}

unsigned lane_fd_count(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and the folder's own */
}

void lane_own_domain(void)
{
    char name[32];

    snprintf(name, sizeof(name), "lane-%d", getpid());
    CHECK(setenv("VMMLANE_SIM_DOMAIN", name, 1) == 0);
}

uint64_t lane_ms(void)
{
    struct timespec time;

    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

bool lane_wait(bool (*done)(void *arg), void *arg)
{
    uint64_t end = lane_ms() + LANE_WAIT_MS;

    while (!done(arg)) {
        if (lane_ms() > end)
            return false;
        usleep(2000);
    }
    return true;
}

static bool has_fds(void *arg)
{
    return lane_fd_count() == *(unsigned *)arg;
}

bool lane_fds_become(unsigned count)
{
    return lane_wait(has_fds, &count);
}

/* The simulated driver's own begin here. */
enum { SIM_FDS = 2048 };

static bool noted[SIM_FDS];

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

void lane_fds_note(void)
{
    int fd;

    for (fd = 0; fd < SIM_FDS; fd++)
        noted[fd] = is_open(fd);
}

unsigned lane_fds_new(void)
{
    unsigned count = 0;
    int fd;

    for (fd = 0; fd < SIM_FDS; fd++)
        count += !noted[fd] && is_open(fd);
    return count;
}

unsigned lane_fds_inherited(void)
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit((int)lane_fds_new());
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return (unsigned)WEXITSTATUS(status);
}

static int log_fd = -1;

void lane_log_to_file(void)
{
    char path[32];

    log_fd = memfd_create("log", 0);
    CHECK(log_fd >= 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", log_fd);
    CHECK(setenv("VMMLANE_LOG_FILE", path, 1) == 0);
}

unsigned lane_log_count(const char *text)
{
    static char log[1 << 16];
    ssize_t length = pread(log_fd, log, sizeof(log) - 1, 0);
    unsigned count = 0;
    const char *at;

    CHECK(length >= 0);
    log[length] = '\0';
    for (at = log; (at = strstr(at, text)) != NULL; at++)
        count++;
    return count;
}

bool lane_log_has(const char *text)
{
    return lane_log_count(text) > 0;
}

/* --- memory --------------------------------------------------------------- */

struct lane_memory lane_plain = {
    .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
};
struct lane_memory lane_unseen = {
    .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .unseen = true,
};

void lane_cuda(int device)
{
    CUcontext context;

    CHECK_CU(cuInit(0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_CU(cuCtxSetCurrent(context));
    CHECK(vmml_real() != NULL);
}

void lane_ledger(void)
{
    pthread_mutex_lock(&vmml_exporter.lock);
    CHECK(vmml_exporter_ready());
    pthread_mutex_unlock(&vmml_exporter.lock);
}

uint64_t lane_reserve(size_t size)
{
    CUdeviceptr address;

    CHECK_CU(cuMemAddressReserve(&address, size, 0, 0, 0));
    return address;
}

void lane_reserve_at(uint64_t address, size_t size)
{
    CUdeviceptr got;

    CHECK_CU(cuMemAddressReserve(&got, size, 0, address, 0));
    CHECK_EQUAL(got, address);
}

void lane_free_address(uint64_t address, size_t size)
{
    CHECK_CU(vmml_cuMemAddressFree(NULL, address, size));
}

/* Megabytes of a pattern are nobody's race: the thread sanitizer would only
 * make them slow. */
#define UNWATCHED __attribute__((no_sanitize_thread))

static UNWATCHED uint64_t word_at(uint64_t address, unsigned seed)
{
    return vmml_mix64(address / 8 ^ (uint64_t)seed << 48);
}

UNWATCHED void lane_fill(void *bytes, uint64_t address, size_t size,
                         unsigned seed)
{
    uint64_t *words = bytes;
    size_t i;

    for (i = 0; i < size / 8; i++)
        words[i] = word_at(address + 8 * i, seed);
}

UNWATCHED size_t lane_differs(const void *bytes, uint64_t address, size_t size,
                              unsigned seed)
{
    const uint8_t *at = bytes;
    size_t i = 0;

    while (i < size) {
        uint64_t word = word_at(address + i, seed);
        size_t skip = (address + i) % 8;
        size_t part = 8 - skip < size - i ? 8 - skip : size - i;
        size_t k;

        if (memcmp(at + i, (const uint8_t *)&word + skip, part) != 0) {
            for (k = 0; at[i + k] == ((const uint8_t *)&word)[skip + k]; k++)
                continue;
            return i + k;
        }
        i += part;
    }
    return size;
}

static void map_handle(uint64_t address, size_t size,
                       CUmemGenericAllocationHandle handle,
                       const struct lane_memory *memory)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };

    CHECK_CU(memory->unseen ? lane_real()->cuMemMap(address, size, 0, handle, 0)
                            : vmml_cuMemMap(NULL, address, size, 0, handle, 0));
    if (!memory->no_access)
        CHECK_CU(memory->unseen
                     ? lane_real()->cuMemSetAccess(address, size, &desc, 1)
                     : vmml_cuMemSetAccess(NULL, address, size, &desc, 1));
}

void lane_map_as(uint64_t address, size_t size, unsigned seed,
                 const struct lane_memory *memory)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = (CUmemAllocationHandleType)memory->handle_types,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->device},
    };
    CUmemGenericAllocationHandle handle;
    void *view;

    CHECK_CU(cuMemCreate(&handle, size, &prop, 0));
    map_handle(address, size, handle, memory);
    CHECK_CU(cuMemRelease(handle));
    view = sim_host_view(address, size);
    CHECK(view != NULL);
    lane_fill(view, address, size, seed);
}

void lane_map(uint64_t address, size_t size, unsigned seed)
{
    lane_map_as(address, size, seed, &lane_plain);
}

void lane_map_run(uint64_t address, size_t size, unsigned count, unsigned seed)
{
    unsigned i;

    for (i = 0; i < count; i++)
        lane_map(address + i * size, size, seed);
}

CUresult lane_unmap(uint64_t address, size_t size)
{
    return vmml_cuMemUnmap(NULL, address, size);
}

CUresult lane_unmap_unseen(uint64_t address, size_t size)
{
    return lane_real()->cuMemUnmap(address, size);
}

/* --- as UCX does ---------------------------------------------------------- */

static void *standin(const char *variable, const char *symbol)
{
    const char *path = getenv(variable);
    void *handle;
    void *found;

    CHECK(path != NULL);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(handle != NULL);
    found = dlsym(handle, symbol);
    CHECK(found != NULL);
    return found;
}

void *lane_standin(const char *symbol)
{
    return standin("VMML_TEST_STANDIN", symbol);
}

vmml_uct_md_h lane_md(void)
{
    static vmml_uct_md_h md;

    if (md == NULL)
        md = standin("VMML_TEST_STANDIN", "standin_md");
    return md;
}

vmml_uct_md_h lane_md_native(void)
{
    static vmml_uct_md_h md;

    if (md == NULL)
        md = standin("VMML_TEST_STANDIN_NATIVE", "standin_md");
    return md;
}

const void *lane_caller(void)
{
    return lane_md();
}

vmml_uct_mem_h lane_reg_in(vmml_uct_md_h md, uint64_t address, size_t length)
{
    static uintptr_t numbers;
    vmml_uct_mem_h memh =
        (vmml_uct_mem_h)(__atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED) *
                         64);

    vmml_lane_register(md, memh, (void *)(uintptr_t)address, length);
    return memh;
}

vmml_uct_mem_h lane_reg(uint64_t address, size_t length)
{
    return lane_reg_in(lane_md(), address, length);
}

void lane_dereg(vmml_uct_mem_h memh)
{
    vmml_lane_deregister(lane_md(), memh);
}

bool lane_pack(vmml_uct_mem_h memh, uint64_t address, size_t length,
               uint8_t key[KEY_SIZE])
{
    struct vmml_pack pack;

    if (!vmml_lane_begin_pack(lane_md(), memh, (void *)(uintptr_t)address,
                              length, &pack))
        return false;
    memset(key, 0xa5, KEY_SIZE);
    memcpy(key + 4, pack.handle, VMML_HANDLE_SIZE);
    vmml_lane_finish_pack(&pack, key);
    return true;
}

struct vmml_handle lane_handle(const uint8_t key[KEY_SIZE])
{
    struct vmml_handle handle;

    CHECK(vmml_handle_find(key, KEY_SIZE, &handle) >= 0);
    return handle;
}

int lane_reason(const uint8_t key[KEY_SIZE])
{
    struct vmml_handle handle = lane_handle(key);

    CHECK_EQUAL((handle.flags & VMML_HANDLE_TOMBSTONE) != 0,
                handle.reason != VMML_REASON_NONE);
    return handle.reason;
}

static int compare_chunks(const void *a, const void *b)
{
    const struct vmml_chunk_view *left = a, *right = b;

    return (left->address > right->address) - (left->address < right->address);
}

size_t lane_published(uint64_t base, uint64_t size,
                      struct vmml_chunk_view *chunks, size_t max)
{
    struct vmml_ledger *ledger = vmml_exporter.ledger;
    struct vmml_ledger_reader *reader;
    struct vmml_window_view view;
    struct vmml_chunk_view *found = NULL;
    size_t count = 0;

    if (ledger == NULL)
        return 0;
    CHECK_EQUAL(vmml_ledger_open(vmml_ledger_fd(ledger),
                                 vmml_ledger_nonce(ledger), &reader),
                0);
    if (vmml_ledger_find_window(reader, base, size, &view) == 0)
        CHECK_EQUAL(
            vmml_ledger_collect(reader, &view, 0, CHUNK, &found, &count), 0);
    vmml_ledger_close(reader);
    if (count == 0) {
        free(found);
        return 0;
    }
    qsort(found, count, sizeof(*found), compare_chunks);
    memcpy(chunks, found, (count < max ? count : max) * sizeof(*chunks));
    free(found);
    return count;
}

/* With the lock, so that the exporter's threads do not close it meanwhile. */
static int copy_fd(int fd)
{
    int copy;

    pthread_mutex_lock(&vmml_exporter.lock);
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&vmml_exporter.lock);
    CHECK(copy >= 0);
    return copy;
}

/* By a second mapping of the descriptor: a byte written there is seen here. */
static CUmemGenericAllocationHandle
import_fd(const struct vmml_chunk_view *chunk)
{
    CUmemGenericAllocationHandle handle;
    int fd = copy_fd(chunk->fd);

    CHECK_CU(cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    return handle;
}

static CUmemGenericAllocationHandle
import_fabric(const struct vmml_chunk_view *chunk)
{
    CUmemGenericAllocationHandle handle;
    CUmemFabricHandle fabric;
    struct vmml_chunk *own;
    struct vmml_window *window;

    CHECK_EQUAL(chunk->fd, -1);
    window = vmml_windows_at(&vmml_exporter.windows, chunk->address);
    CHECK(window != NULL);
    own = vmml_window_chunk_at(window, chunk->address);
    CHECK(own != NULL && own->has_fabric);
    memcpy(&fabric, vmml_window_fabric(window, own), sizeof(fabric));
    CHECK_CU(cuMemImportFromShareableHandle(&handle, &fabric,
                                            CU_MEM_HANDLE_TYPE_FABRIC));
    return handle;
}

bool lane_is_present(const struct vmml_chunk_view *chunk)
{
    CUmemGenericAllocationHandle handle;
    uint64_t address = lane_reserve(chunk->size);
    uint64_t *here, *there;
    bool same = false;

    if (chunk->kind == VMML_CHUNK_FABRIC)
        handle = import_fabric(chunk);
    else
        handle = import_fd(chunk);
    CHECK_CU(cuMemMap(address, chunk->size, 0, handle, 0));
    CHECK_CU(cuMemRelease(handle));
    here = sim_host_view(chunk->address, chunk->size);
    there = sim_host_view(address, chunk->size);
    CHECK(there != NULL);
    if (here != NULL) {
        *here ^= 1;
        same = *here == *there;
        *here ^= 1;
        same &= *here == *there;
    }
    CHECK_CU(cuMemUnmap(address, chunk->size));
    CHECK_CU(cuMemAddressFree(address, chunk->size));
    return same;
}

/* --- at the moment of a driver call --------------------------------------- */

struct vmml_real *lane_real(void)
{
    return (struct vmml_real *)vmml_real();
}

static struct vmml_real driver; /* the functions as they were found */
static __thread lane_at_fn at_call;
static __thread void *at_arg;
static __thread unsigned steps;
static __thread bool refuse_next;

static void at(const char *name, bool after)
{
    struct lane_call call = {name, after, 0};
    lane_at_fn fn = at_call;

    if (fn == NULL)
        return;
    call.step = ++steps;
    fn(&call, at_arg);
}

#define WATCHED(name, params, args)                                            \
    static CUresult CUDAAPI watched_##name params                              \
    {                                                                          \
        CUresult result;                                                       \
                                                                               \
        at(#name, false);                                                      \
        result = driver.name args;                                             \
        at(#name, true);                                                       \
        return result;                                                         \
    }

WATCHED(cuMemGetAddressRange_v2,
        (CUdeviceptr * base, size_t *size, CUdeviceptr ptr), (base, size, ptr))
WATCHED(cuPointerGetAttribute,
        (void *data, CUpointer_attribute attribute, CUdeviceptr ptr),
        (data, attribute, ptr))
WATCHED(cuMemRetainAllocationHandle,
        (CUmemGenericAllocationHandle * handle, void *address),
        (handle, address))
WATCHED(cuMemExportToShareableHandle,
        (void *out, CUmemGenericAllocationHandle handle,
         CUmemAllocationHandleType type, unsigned long long flags),
        (out, handle, type, flags))
WATCHED(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
WATCHED(cuMemMap,
        (CUdeviceptr ptr, size_t size, size_t offset,
         CUmemGenericAllocationHandle handle, unsigned long long flags),
        (ptr, size, offset, handle, flags))
WATCHED(cuMemImportFromShareableHandle,
        (CUmemGenericAllocationHandle * handle, void *os_handle,
         CUmemAllocationHandleType type),
        (handle, os_handle, type))
WATCHED(cuMemSetAccess,
        (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
         size_t count),
        (ptr, size, desc, count))
WATCHED(cuMemAddressFree, (CUdeviceptr ptr, size_t size), (ptr, size))
WATCHED(cuMemcpyDtoDAsync_v2,
        (CUdeviceptr dst, CUdeviceptr src, size_t length, CUstream stream),
        (dst, src, length, stream))
WATCHED(cuMemFreeAsync, (CUdeviceptr ptr, CUstream stream), (ptr, stream))
WATCHED(cuMemPoolDestroy, (CUmemoryPool pool), (pool))
WATCHED(cuMemPoolExportToShareableHandle,
        (void *out, CUmemoryPool pool, CUmemAllocationHandleType type,
         unsigned long long flags),
        (out, pool, type, flags))
WATCHED(cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr ptr),
        (out, ptr))
WATCHED(cuMemPoolImportFromShareableHandle,
        (CUmemoryPool * pool, void *handle, CUmemAllocationHandleType type,
         unsigned long long flags),
        (pool, handle, type, flags))

static CUresult CUDAAPI watched_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result;

    at("cuMemUnmap", false);
    if (refuse_next) {
        refuse_next = false;
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        result = driver.cuMemUnmap(ptr, size);
    }
    at("cuMemUnmap", true);
    return result;
}

static void replace_functions(void)
{
    struct vmml_real *real = lane_real();

    driver = *real;
    real->cuMemGetAddressRange_v2 = watched_cuMemGetAddressRange_v2;
    real->cuPointerGetAttribute = watched_cuPointerGetAttribute;
    real->cuMemRetainAllocationHandle = watched_cuMemRetainAllocationHandle;
    real->cuMemExportToShareableHandle = watched_cuMemExportToShareableHandle;
    real->cuMemRelease = watched_cuMemRelease;
    real->cuMemMap = watched_cuMemMap;
    real->cuMemUnmap = watched_cuMemUnmap;
    real->cuMemImportFromShareableHandle =
        watched_cuMemImportFromShareableHandle;
    real->cuMemSetAccess = watched_cuMemSetAccess;
    real->cuMemAddressFree = watched_cuMemAddressFree;
    real->cuMemcpyDtoDAsync_v2 = watched_cuMemcpyDtoDAsync_v2;
    real->cuMemFreeAsync = watched_cuMemFreeAsync;
    real->cuMemPoolDestroy = watched_cuMemPoolDestroy;
    real->cuMemPoolExportToShareableHandle =
        watched_cuMemPoolExportToShareableHandle;
    real->cuMemPoolExportPointer = watched_cuMemPoolExportPointer;
    real->cuMemPoolImportFromShareableHandle =
        watched_cuMemPoolImportFromShareableHandle;
}

void lane_watch(lane_at_fn fn, void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, replace_functions);
    steps = 0;
    at_arg = arg;
    at_call = fn;
}

void lane_refuse_unmap(bool refuse)
{
    refuse_next = refuse;
}

struct job {
    void (*run)(void *arg);
    void *arg;
};

static void *run_job(void *arg)
{
    const struct job *job = arg;

    job->run(job->arg);
    return NULL;
}

void lane_on_thread(void (*run)(void *arg), void *arg)
{
    struct job job = {run, arg};
    pthread_t thread;

    CHECK_EQUAL(pthread_create(&thread, NULL, run_job, &job), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

/* --- a fork while a descriptor is open ------------------------------------ */

static pthread_t forker;
static const char *fork_after;

static int device_descriptors(void)
{
    char path[64], target[128];
    int count = 0;
    int fd;

    for (fd = 0; fd < SIM_FDS; fd++) {
        ssize_t length;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        length = readlink(path, target, sizeof(target) - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        count += strstr(target, "memfd:vmmlane-sim") != NULL;
    }
    return count;
}

static void *fork_and_count(void *arg)
{
    pid_t pid = fork();
    int status;

    (void)arg;
    if (pid == 0)
        _exit(device_descriptors());
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return (void *)(intptr_t)WEXITSTATUS(status);
}

static void fork_at(const struct lane_call *call, void *arg)
{
    (void)arg;
    if (!call->after || fork_after == NULL ||
        strcmp(call->name, fork_after) != 0)
        return;
    fork_after = NULL;
    CHECK(pthread_create(&forker, NULL, fork_and_count, NULL) == 0);
    usleep(50000); /* so long a fork that does not wait has time */
}

void lane_fork_after(const char *name)
{
    fork_after = name;
    lane_watch(fork_at, NULL);
}

int lane_fork_inherited(void)
{
    void *count;

    CHECK(fork_after == NULL);
    lane_watch(NULL, NULL);
    CHECK(pthread_join(forker, &count) == 0);
    return (int)(intptr_t)count;
}
