/*
 * The two test processes that drive an unmodified UCX: an exporter that owns
 * device memory and obeys commands, and an importer that runs a scenario.
 */
#ifndef VMMLANE_TESTS_UCX_CLIENT_H
#define VMMLANE_TESTS_UCX_CLIENT_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <ucp/api/ucp.h>

/* Exit codes of both processes. */
enum {
    EXIT_WRONG_BYTES = 1,
    EXIT_USAGE = 2,
    EXIT_TIMEOUT = 3,
    EXIT_SETUP = 4,
    EXIT_SKIP = 77,
};

/* ---- reporting ---- */

__attribute__((format(printf, 2, 3), noreturn)) void
die(int code, const char *format, ...);

/* Ends the process with EXIT_SETUP unless the driver call succeeded. */
#define CU_MUST(call) cu_must((call), #call, __FILE__, __LINE__)
void cu_must(CUresult result, const char *call, const char *file, int line);
const char *cu_name(CUresult result);

/* Seconds of a monotonic clock. */
double now(void);

/* ---- options shared by both roles ---- */

struct options {
    const char *role;
    const char *scenario;
    const char *kind; /* what the exporter allocates, see memory.c */
    const char
        *local;  /* what the importer allocates: "malloc", "vmm", "host" */
    int fd;      /* socket to the peer */
    int next_fd; /* "restarted": socket to the exporter's successor */
    int device;
    int reps;             /* repetitions of a timed transfer */
    int rounds;           /* rounds of re-backing */
    int growth;           /* largest growth step, in chunks */
    int descriptors;      /* what a chunk costs its exporter */
    int posts;            /* of the scenario "descriptors" */
    double timeout;       /* seconds that one wait may take */
    const char *plan;     /* of the sweep: a file */
    const char *sizes;    /* bench.h: of messages, "1M,64M,all" */
    double budget;        /* bench.h: seconds for one line of results */
    const char *deepbind; /* a module of UCX, to be opened past every preload */
    bool deepbind_late;   /* only when CUDA is in use */
    bool tag;             /* UCP's tagged messages too */
    bool peer_errors;     /* UCP_ERR_HANDLING_MODE_PEER */
    bool local_memh;      /* give UCX a handle for the local buffer */
    bool verbose;
};

extern struct options opt;

/* main.c: opens opt.deepbind, if there is one. */
void open_deepbind(void);

/* ---- pattern.c: what every byte must be ---- */

/* The byte at an offset is a function of (seed, offset); a seed names a round
 * or a writer. */
void pattern_write(void *buffer, size_t length, uint64_t seed, uint64_t offset);

/* Number of bytes that differ from the pattern; *first gets the offset of the
 * first one. */
uint64_t pattern_compare(const void *buffer, size_t length, uint64_t seed,
                         uint64_t offset, uint64_t *first);

/* Fills, or compares, device memory at `address`, whose pattern offset is
 * `offset`. */
void device_fill(CUdeviceptr address, size_t length, uint64_t seed,
                 uint64_t offset);
uint64_t device_compare(CUdeviceptr address, size_t length, uint64_t seed,
                        uint64_t offset, uint64_t *first);

/* ---- memory.c: device memory of every kind ---- */

enum kind {
    KIND_MALLOC,  /* cuMemAlloc */
    KIND_VMM,     /* POSIX_FD chunks at the start of a large reservation */
    KIND_SINGLE,  /* one POSIX_FD handle that fills its reservation */
    KIND_FIRST,   /* one POSIX_FD handle, the first of a larger reservation */
    KIND_NONE,    /* as KIND_VMM, but requestedHandleTypes is 0 */
    KIND_POOL,    /* cuMemAllocFromPoolAsync from a pool of POSIX_FD type, one
                   * for the process */
    KIND_FABRIC,  /* as KIND_VMM, of FABRIC type alone */
    KIND_WHOLE,   /* one FABRIC handle that fills its reservation */
    KIND_BOTH,    /* as KIND_VMM, of FABRIC and POSIX_FD type */
    KIND_HOST,    /* the host's, by malloc */
    KIND_ASYNC,   /* cuMemAllocAsync, from the device's current pool */
    KIND_MANAGED, /* cuMemAllocManaged */
    KIND_MIXED,   /* as KIND_FABRIC, but every other chunk is of POSIX_FD */
};

struct chunk {
    CUmemGenericAllocationHandle handle;
    size_t offset; /* from the segment's base */
    size_t size;
    bool mapped;
};

/* All offsets count from `base`, the start of the reservation or allocation. */
struct segment {
    enum kind kind;
    CUdeviceptr base;
    size_t reserved;
    size_t data_offset; /* the first chunk */
    size_t
        data_length; /* what the specification asked for, at most all chunks */
    size_t sizes[2]; /* chunk sizes, taken in turn */
    size_t chunk_count;
    struct chunk *chunks; /* in the order of their addresses */
};

/*
 * Specification: KIND[:COUNTxSIZE[/SIZE]][+START][@LENGTH][~RESERVE]
 * with sizes in bytes or with the suffix K, M or G. Two sizes alternate.
 * START: offset of the first chunk; LENGTH: bytes of it that are used;
 * RESERVE: size of the reservation, by default 1.125 of the device's memory
 * as PyTorch makes it. `hint`: wished address of the reservation, or 0.
 */
void segment_create(struct segment *segment, const char *specification,
                    CUdeviceptr hint);
void segment_destroy(struct segment *segment);

/* How many bytes of a specification are used. */
size_t specification_bytes(const char *specification);

/* Unmaps and releases chunks; with `unseen` past every hook (unseen.c). */
void segment_unmap(struct segment *segment, size_t first, size_t count,
                   bool unseen);

/* Gives unmapped chunks new handles. */
void segment_map(struct segment *segment, size_t first, size_t count);

/* Adds chunks above the last one, or below the first one. */
void segment_grow(struct segment *segment, size_t count, bool below);

/* A segment of its own whose one chunk maps the handle of another segment's
 * chunk. */
void segment_alias(struct segment *alias, const struct segment *of,
                   size_t chunk);

/* Maps the handle of chunk `chunk` a second time, above the last chunk of the
 * same segment. */
void segment_alias_inside(struct segment *segment, size_t chunk);

void device_open(bool with_context);

/* ---- strangers.c: memory that ends an extent ---- */

enum stranger {
    STRANGER_NO_ACCESS,   /* good memory without cuMemSetAccess */
    STRANGER_HOST,        /* of the host, by cuMemCreate */
    STRANGER_UNSHAREABLE, /* made without a handle type */
    STRANGER_IMPORTED,    /* another process's, by its descriptor `fd` */
    STRANGER_DEVICE,      /* another device's */
};

/* In the place of a chunk that was unmapped. False: not to be had here. */
bool segment_put_stranger(struct segment *segment, size_t index,
                          enum stranger stranger, pid_t pid, int fd);

/* Device memory of this process, which only its descriptor holds. */
int export_memory(size_t size);

/* ---- state.c: what a process holds ---- */

struct state {
    uint64_t free_bytes;  /* of the device, cuMemGetInfo */
    uint64_t descriptors; /* open ones */
    uint64_t mappings;    /* lines of /proc/self/maps */
    uint64_t soft_limit;  /* RLIMIT_NOFILE */
    uint64_t hard_limit;
};

struct state state_now(void);

/* ---- wire.c: commands to the exporter ---- */

enum command {
    CMD_ADDRESS,  /* payload: own worker address; reply: the peer's */
    CMD_ALLOC,    /* payload: specification; hint -> segment */
    CMD_FREE,     /* segment */
    CMD_TABLE,    /* segment -> chunk table */
    CMD_FILL,     /* segment, offset, length, seed */
    CMD_CHECK,    /* segment, offset, length, seed -> wrong bytes, first wrong
                     offset */
    CMD_REGISTER, /* segment, offset, length -> key id, or NO_KEY; payload: the
                     packed key */
    CMD_REPACK,   /* key id -> payload: the key packed again */
    CMD_DEREGISTER,   /* key id */
    CMD_UNMAP,        /* segment, first, count, unseen */
    CMD_MAP,          /* segment, first, count */
    CMD_GROW,         /* segment, count, below */
    CMD_ALIAS,        /* segment, chunk -> new segment */
    CMD_ALIAS_INSIDE, /* segment, chunk */
    CMD_STRANGER, /* segment, chunk, stranger, pid, descriptor -> could it be
                     had? */
    CMD_WATCH,    /* data segment, offset, length, seed, flag segment, offset,
                     value
                     -> wrong bytes, first wrong offset */
    CMD_SWEEP,    /* payload: "arm RULE", "disarm" or "report" (tests/sweep)
                     -> payload: the report's text */
    CMD_BENCH,    /* bench.h */
    CMD_KILL,     /* the exporter kills itself with SIGKILL */
    CMD_STATE, /* -> free bytes, descriptors, mappings, soft and hard limit of
                  descriptors, pid */
    CMD_QUIT,
};

enum { WIRE_ARGS = 8 };

/* In a reply to CMD_REGISTER: the registration itself failed. */
#define NO_KEY UINT64_MAX

struct wire_header {
    uint32_t command;
    int32_t status; /* in a reply: ucs_status_t */
    uint64_t args[WIRE_ARGS];
    uint64_t payload_length;
};

/* One line of a chunk table, the payload of replies to ALLOC, TABLE, GROW and
 * ALIAS. */
struct wire_chunk {
    uint64_t offset;
    uint64_t size;
    uint64_t mapped;
};

void wire_send(int fd, struct wire_header *header, const void *payload);

/* Returns false at the end of the stream. *payload is the caller's to free, or
 * NULL. */
bool wire_receive(int fd, struct wire_header *header, void **payload);

/* ---- transport.c: UCP ---- */

struct transport {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
};

extern struct transport ucx;

void transport_open(void);
void transport_close(void);
ucp_ep_h transport_connect(const void *address);

/* Progresses the worker until the socket has something to read. */
void transport_until_readable(int fd);

/* Waits for a request of UCP (or a status pointer); frees it. */
ucs_status_t transport_wait(ucs_status_ptr_t request);

enum operation { OP_GET, OP_PUT };

struct transfer {
    enum operation operation;
    CUdeviceptr local;
    size_t length;
    uint64_t remote;
    ucp_rkey_h rkey;
    ucp_mem_h local_memh; /* or NULL */
    ucp_ep_h ep;          /* or NULL for ucx.ep */
};

enum { LANE_SIZE = 64 };

/* Posts; `lane` (LANE_SIZE bytes, may be NULL) gets what UCX says of the
 * request's protocol. */
ucs_status_ptr_t transfer_post(const struct transfer *transfer, char *lane);

/* Posts, waits, and flushes a PUT. */
ucs_status_t transfer_run(const struct transfer *transfer, char *lane);
ucs_status_t transport_flush(ucp_ep_h ep);

/* The lane's name (LANE_SIZE bytes) of a request that is under way. */
void transport_lane(ucs_status_ptr_t request, char *lane);

/* Registers device memory and packs a key. */
ucs_status_t memory_register(CUdeviceptr address, size_t length,
                             ucp_mem_h *memh);
ucs_status_t memory_pack(ucp_mem_h memh, void **key, size_t *length);

/* ---- the two roles ---- */

int alone_main(void);
int exporter_main(void);
int importer_main(void);

/* The exporter's segment of this number. */
struct segment *segment_of(uint64_t id);

/* ---- the importer's side of a scenario ---- */

struct remote {
    uint64_t id;
    CUdeviceptr base;
    uint64_t reserved;
    uint64_t offset; /* of the data */
    uint64_t length;
    uint64_t chunk_count;
    struct wire_chunk *chunks;
    char kind[64];
};

struct key {
    uint64_t id;
    const struct remote *remote;
    uint64_t offset;
    uint64_t length;
    ucs_status_t status; /* of registration, packing and unpacking */
    ucp_ep_h ep;
    ucp_rkey_h rkey;
};

enum verdict {
    BYTES_OK,
    BYTES_BAD,
    BYTES_NONE, /* the operation failed, or had none to compare */
};

struct outcome {
    ucs_status_t status;
    enum verdict verdict;
    double gbps; /* 0: not measured */
    char lane[LANE_SIZE];
};

/* A wrong byte anywhere in this process's life. */
extern bool wrong_bytes;

/* Prints "result SCENARIO KIND OP lane= bytes= status= gbps= DETAIL". */
void report(const char *kind, const char *operation,
            const struct outcome *outcome, const char *detail);

/* Prints "expect SCENARIO NAME ok|BROKEN": what must hold besides bytes. */
void expect(const char *name, bool holds);

uint64_t new_seed(void);

/* A seed that no fill uses: what local memory holds before a GET. */
enum { POISON = 0xfffff };

/* Local device memory of at least `length` bytes. */
CUdeviceptr local_buffer(size_t length);

/* Tells an exporter where this process is, and connects to it: ucx.ep. */
void connect_to_exporter(void);

void command(enum command command, struct wire_header *header,
             const void *payload, void **reply);
struct remote remote_alloc(const char *specification, CUdeviceptr hint);
void remote_free(struct remote *remote);
/* Keeps the layout here, for old keys. */
void remote_free_late(struct remote *remote);
void remote_fill(const struct remote *remote, uint64_t offset, uint64_t length,
                 uint64_t seed);
void remote_unmap(struct remote *remote, uint64_t first, uint64_t count,
                  bool unseen);
void remote_map(struct remote *remote, uint64_t first, uint64_t count);
void remote_grow(struct remote *remote, uint64_t count, bool below);
struct remote remote_alias(const struct remote *remote, uint64_t chunk);
void remote_alias_inside(struct remote *remote, uint64_t chunk);

/* What the exporter holds. */
struct state remote_state(void);

/* Compares the exporter's memory; false on a wrong byte. */
bool remote_check(const struct remote *remote, uint64_t offset, uint64_t length,
                  uint64_t seed);

/* Registers [offset, offset + length), packs, and unpacks here. */
struct key key_make(const struct remote *remote, uint64_t offset,
                    uint64_t length);
struct key key_make_all(const struct remote *remote);
void key_repack(struct key *key);

/* The key's bytes, packed again, the caller's to free; *length is theirs. */
uint8_t *key_packed(const struct key *key, size_t *length);
/* A key of the same range, unpacked from other bytes. */
struct key key_unpacked(const struct key *key, const uint8_t *packed);

void key_deregister(struct key *key);
void key_destroy(struct key *key);

/* Reads into poisoned local memory and compares with the seed's pattern. */
struct outcome key_get(const struct key *key, uint64_t offset, uint64_t length,
                       uint64_t seed);

/* Writes the seed's pattern and has the exporter compare it. */
struct outcome key_put(const struct key *key, uint64_t offset, uint64_t length,
                       uint64_t seed);

/*
 * Posts a PUT and a GET to memory that is not there: both must fail. (But for
 * the GET of UCX 1.18, which ends the process.)
 */
void key_must_fail(const struct key *key, uint64_t offset, uint64_t length,
                   const char *detail);

/* Whether this UCX ends the process when a posted GET is refused. */
bool get_aborts(void);

/* A transfer of poison, not compared. */
ucs_status_t key_post(const struct key *key, enum operation operation,
                      uint64_t offset, uint64_t length, char *lane);

/* As above with opt.reps timed repetitions: median GB/s. */
struct outcome key_time(const struct key *key, enum operation operation,
                        uint64_t offset, uint64_t length, uint64_t seed);

struct scenario {
    const char *name;
    void (*run)(void);
    bool without_context; /* the importer makes no context beforehand */
};

extern const struct scenario scenarios[];

void report_detail(const struct remote *remote, const char *operation,
                   struct outcome outcome, const char *detail);

/* An address far from what either driver chooses by itself. */
#define PLACE ((CUdeviceptr)1 << 44)

/* Allocates and fills all data with the seed's pattern. */
struct remote filled(const char *specification, uint64_t seed);

/* Offset of the end of a chunk. */
uint64_t chunks_end(const struct remote *remote, uint64_t chunk);

void scenario_whole(void);
void scenario_windows(void);
void scenario_interior(void);
void scenario_tensors(void);
void scenario_growth(void);
void scenario_growth_below(void);
void scenario_reback(void);
void scenario_reback_deregistered(void);
void scenario_reback_quiet(void);
void scenario_unseen(void);
void scenario_hole(void);
void scenario_hole_later(void);
void scenario_neighbours(void);
void scenario_identity(void);
void scenario_aliases(void);
void scenario_idle(void);
void scenario_contexts(void);
void scenario_fence(void);
void scenario_fence_unwatched(void);
void scenario_vmm_then_malloc(void);
void scenario_malloc_then_vmm(void);
void scenario_flipped(void);
void scenario_strangers(void);
void scenario_old_key(void);
void scenario_own_process(void);
void scenario_killed(void);
void scenario_restarted(void);
void scenario_rounds(void);
void scenario_tail(void);
void scenario_late_context(void);
void scenario_pool(void);
void scenario_pool_many(void);
void scenario_native(void);
void scenario_matrix(void);
void scenario_sleep_wake(void);
void scenario_killed_in_flight(void);
void scenario_many_chunks(void);
void scenario_probes(void);
void scenario_capture(void);
void scenario_sweep(void);
void scenario_bench_steady(void);
void scenario_bench_plain(void);
void scenario_bench_cut(void);
void scenario_bench_open(void);
void scenario_bench_tag(void);
void scenario_bench_storm(void);
void scenario_bench_register(void);
void scenario_bench_ranges(void);
void scenario_descriptors(void);
void scenario_split(void);
void scenario_refused(void);

/* scenarios_sweep.c: obeys a payload of CMD_SWEEP; the text is the caller's. */
char *sweep_obey(const char *payload);

/* memquery.c: what the cuda_copy memory domain answers for parts of a segment.
 */
void scenario_memory_query(void);
void scenario_captured(void);

#endif
