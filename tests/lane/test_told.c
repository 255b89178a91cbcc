/* SPDX-License-Identifier: MIT */
/*
 * What the process tells: one line for each cause of a lost lane, counts of
 * the repeats, nothing where nothing is wrong; an error instead where that is
 * asked for; and what another process can see of it all.
 */
#include "exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "hooks.h"
#include "inspect/survey.h"
#include "mirror/mirror.h"
#include "standin.h"
#include "stats/count.h"
#include "stats/stats.h"

#define WINDOW (16 * CHUNK)

static const struct lane_memory not_shareable = {0};

static uint64_t lost_count(unsigned cause)
{
    return atomic_load(&vmml_stats)->lost[cause].count;
}

static int pack_reason(vmml_uct_mem_h memh, uint64_t address, size_t length)
{
    uint8_t key[KEY_SIZE];

    CHECK(lane_pack(memh, address, length, key));
    return lane_reason(key);
}

/* A window that begins with `count` chunks that cannot be shared. */
static uint64_t make_unshareable(unsigned count)
{
    uint64_t base = lane_reserve(WINDOW);
    unsigned i;

    for (i = 0; i < count; i++)
        lane_map_as(base + i * CHUNK, CHUNK, 1, &not_shareable);
    return base;
}

/* --- one line for a cause ------------------------------------------------- */

#define THREADS 4

/* Of each thread: 10,000 registrations, 100,000 in scripts/test --all. */
static unsigned rounds(void)
{
    return getenv("VMML_TEST_EVERY") != NULL ? 25000 : 2500;
}

static void *lose(void *arg)
{
    uint64_t base = *(const uint64_t *)arg;
    unsigned i;

    for (i = rounds(); i > 0; i--) {
        vmml_uct_mem_h memh = lane_reg(base, 3 * CHUNK);

        CHECK_EQUAL(pack_reason(memh, base, 3 * CHUNK),
                    VMML_REASON_NOT_SHAREABLE);
        lane_dereg(memh);
    }
    return NULL;
}

static void one_line_and_a_count(void)
{
    const struct vmml_stats_lost *lost =
        &vmml_stats_private.lost[VMML_REASON_NOT_SHAREABLE];
    pthread_t threads[THREADS];
    char text[128];
    uint64_t base;
    unsigned i;

    lane_log_to_file();
    lane_cuda(0);
    base = make_unshareable(3);
    lane_md(); /* loads the stand-in */
    for (i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, lose, &base), 0);
    for (i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK_EQUAL(lane_log_count("\n"), 1);
    snprintf(text, sizeof(text),
             "no fast lane for 0x%lx+0x%lx (3 chunks, handle types none, "
             "result %d)",
             (unsigned long)base, 3 * CHUNK, CUDA_ERROR_INVALID_VALUE);
    CHECK(lane_log_has(text));
    CHECK(lane_log_has("correct and slow. Remedy: "));
    CHECK_EQUAL(lost->count, THREADS * rounds());
    CHECK_EQUAL(lost->address, base);
    CHECK_EQUAL(lost->length, 3 * CHUNK);
    CHECK_EQUAL(vmml_count_get(VMML_COUNT_keys_refused), THREADS * rounds());
    CHECK_EQUAL(vmml_count_get(VMML_COUNT_registrations_taken),
                THREADS * rounds());
    CHECK_EQUAL(vmml_count_get(VMML_COUNT_registrations_ended),
                THREADS * rounds());
}

static CUresult (*real_attribute)(void *data, CUpointer_attribute attribute,
                                  CUdeviceptr ptr);

/* As a driver did for memory of cudaMalloc: a comment in UCX's cuda_ipc_md.c.
 */
static CUresult not_legacy(void *data, CUpointer_attribute attribute,
                           CUdeviceptr ptr)
{
    CUresult result = real_attribute(data, attribute, ptr);

    if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
        memset(data, 0, sizeof(uint32_t));
    return result;
}

static void plain_memory_takes_no_line(void)
{
    uint8_t key[KEY_SIZE];
    CUdeviceptr plain;
    unsigned i;

    lane_log_to_file();
    lane_cuda(0);
    real_attribute = lane_real()->cuPointerGetAttribute;
    lane_real()->cuPointerGetAttribute = not_legacy;
    CHECK_CU(cuMemAlloc_v2(&plain, 4 * CHUNK));
    for (i = 0; i < 1000; i++) {
        vmml_uct_mem_h memh = lane_reg(plain, 4 * CHUNK);

        CHECK(!lane_pack(memh, plain, 4 * CHUNK, key));
        lane_dereg(memh);
    }
    CHECK_EQUAL(lane_log_count("\n"), 0);
    CHECK_EQUAL(vmml_count_get(VMML_COUNT_keys_refused), 0);
}

/* --- causes --------------------------------------------------------------- */

/* The line of this request says so, and no other does. */
static void check_line(uint64_t address, size_t length, const char *chunks,
                       const char *says)
{
    char text[128];

    snprintf(text, sizeof(text), "no fast lane for 0x%lx+0x%lx (%s",
             (unsigned long)address, (unsigned long)length, chunks);
    CHECK_EQUAL(lane_log_count(text), 1);
    CHECK_EQUAL(lane_log_count(says), 1);
}

static void causes_are_told_apart(void)
{
    uint64_t base, failing, border;
    char result[32];

    lane_log_to_file();
    lane_cuda(0);
    base = make_unshareable(2);
    CHECK_EQUAL(pack_reason(lane_reg(base, 2 * CHUNK), base, 2 * CHUNK),
                VMML_REASON_NOT_SHAREABLE);

    failing = lane_reserve(WINDOW);
    lane_map_run(failing, CHUNK, 5, 1);
    CHECK_EQUAL(
        sim_fail("cuMemExportToShareableHandle", 1, CUDA_ERROR_UNKNOWN, 1), 0);
    CHECK_EQUAL(pack_reason(lane_reg(failing, 5 * CHUNK), failing, 5 * CHUNK),
                VMML_REASON_DRIVER);
    sim_clear_failures();

    border = lane_reserve(4 * CHUNK);
    lane_map_run(border, CHUNK, 4, 1);
    CHECK_EQUAL(pack_reason(lane_reg(border, 4 * CHUNK + 1), border, 4 * CHUNK),
                VMML_REASON_WINDOW);

    CHECK_EQUAL(lane_log_count("no fast lane"), 3);
    check_line(base, 2 * CHUNK, "2 chunks", "without a handle type");
    snprintf(result, sizeof(result), "result %d)", CUDA_ERROR_UNKNOWN);
    check_line(failing, 5 * CHUNK, "5 chunks, handle types POSIX_FD", result);
    check_line(border, 4 * CHUNK, "4 chunks", "leaves its reservation");
    CHECK_EQUAL(lost_count(VMML_CAUSE_NOT_SHAREABLE), 1);
    CHECK_EQUAL(lost_count(VMML_CAUSE_DRIVER), 1);
    CHECK_EQUAL(lost_count(VMML_CAUSE_WINDOW), 1);
}

/* Of two causes in one request the first that is met is told, and the other
 * when it is the one that is left. */
static void two_causes_at_once(void)
{
    uint64_t base;

    lane_log_to_file();
    lane_cuda(0);
    base = lane_reserve(WINDOW);
    lane_map_as(base, CHUNK, 1, &not_shareable);
    lane_map(base + CHUNK, CHUNK, 1);
    CHECK_EQUAL(
        sim_fail("cuMemExportToShareableHandle", 2, CUDA_ERROR_UNKNOWN, 1), 0);
    CHECK_EQUAL(pack_reason(lane_reg(base, 2 * CHUNK), base, 2 * CHUNK),
                VMML_REASON_NOT_SHAREABLE);
    CHECK_EQUAL(lane_log_count("no fast lane"), 1);
    CHECK_EQUAL(pack_reason(lane_reg(base + CHUNK, CHUNK), base + CHUNK, CHUNK),
                VMML_REASON_DRIVER);
    sim_clear_failures();
    CHECK_EQUAL(lane_log_count("no fast lane"), 2);
    check_line(base, 2 * CHUNK, "2 chunks", "without a handle type");
    check_line(base + CHUNK, CHUNK, "1 chunks", "a driver call failed");
}

/* --- the importer, strict or not ------------------------------------------ */

/* An exporter's key that carries a reason, and one that is served. */
static uint64_t refused_key(uint64_t base)
{
    unsigned i;

    lane_map_as(base + 8 * CHUNK, CHUNK, 1, &not_shareable);
    for (i = 9; i < 12; i++)
        lane_map(base + i * CHUNK, CHUNK, 1);
    return 0;
}

struct keys {
    struct exporter ex;
    uint64_t base;
    uint8_t served[KEY_SIZE];
    uint8_t refused[KEY_SIZE];
};

static vmml_ucs_status_t passes(vmml_uct_component_h of, const void *buffer,
                                struct vmml_uct_rkey_bundle *bundle)
{
    return VMML_UCS_OK;
}

static void start_in(struct keys *keys)
{
    struct standin_uct *uct;

    keys->ex = ex_start();
    keys->base = ex_reserve(&keys->ex, WINDOW);
    ex_map(&keys->ex, keys->base, CHUNK, 4, 1);
    ex_run(&keys->ex, refused_key, keys->base);
    ex_key(&keys->ex, keys->base, 4 * CHUNK, keys->served);
    ex_key(&keys->ex, keys->base + 8 * CHUNK, CHUNK, keys->refused);
    CHECK_EQUAL(lane_reason(keys->refused), VMML_REASON_NOT_SHAREABLE);
    uct = lane_standin("standin_uct");
    uct->unpack = passes;
    lane_cuda(0);
    im_buffer();
    im_stream();
}

/* The exporter's lines go to standard error. */
static void start(struct keys *keys)
{
    start_in(keys);
    lane_log_to_file();
}

static vmml_ucs_status_t unpack(const uint8_t key[KEY_SIZE])
{
    struct vmml_uct_rkey_bundle bundle = {.rkey = 0};

    return vmml_uct_rkey_unpack(lane_caller(), lane_md()->component, key,
                                &bundle);
}

static void lost_is_a_fallback(void)
{
    struct keys keys;

    start(&keys);
    CHECK_EQUAL(unpack(keys.refused), VMML_UCS_ERR_UNREACHABLE);
    CHECK_EQUAL(unpack(keys.served), VMML_UCS_OK);
    im_expect(im_open(keys.served), keys.base, 4 * CHUNK, 1);
    CHECK_EQUAL(vmml_count_get(VMML_COUNT_keys_unreachable), 1);
    CHECK_EQUAL(vmml_count_get(VMML_COUNT_keys_served), 1);
    CHECK_EQUAL(lost_count(VMML_CAUSE_NOT_SHAREABLE), 1);
    ex_stop(&keys.ex);
}

/* UCX is let to choose cuda_ipc, which it does between GPUs alone, and the copy
 * fails; what has the lane goes on as before. */
static void lost_is_an_error_when_strict(void)
{
    struct vmml_handle handle;
    struct keys keys;
    uint8_t unknown[KEY_SIZE];
    CUdeviceptr mirror;

    CHECK_EQUAL(setenv("VMMLANE_STRICT", "1", 1), 0);
    start(&keys);
    CHECK_EQUAL(unpack(keys.refused), VMML_UCS_OK);
    mirror = im_open(keys.refused);
    im_refused(mirror + 8 * CHUNK, CHUNK);
    CHECK_EQUAL(unpack(keys.served), VMML_UCS_OK);
    CHECK_EQUAL(im_open(keys.served), mirror);
    im_expect(mirror, keys.base, 4 * CHUNK, 1);
    im_refused(mirror + 8 * CHUNK, CHUNK);
    CHECK_EQUAL(lane_log_count("VMMLANE_STRICT: "), 1);

    /* One that cannot be reached at all. */
    memcpy(unknown, keys.served, sizeof(unknown));
    handle = lane_handle(unknown);
    handle.nonce[5] ^= 1;
    vmml_handle_encode(&handle, unknown + 4);
    CHECK_EQUAL(unpack(unknown), VMML_UCS_OK);
    mirror = im_open(unknown);
    im_refused(mirror, CHUNK);
    /* Bytes that are no handle of ours are UCX's own business. */
    memset(unknown, 0x33, sizeof(unknown));
    CHECK_EQUAL(unpack(unknown), VMML_UCS_OK);
    ex_stop(&keys.ex);
}

/* --- what another process sees -------------------------------------------- */

/* In a child, as the command does it. */
static void survey(pid_t pid,
                   void (*check)(const struct vmml_survey *survey,
                                 const struct keys *keys),
                   const struct keys *keys)
{
    pid_t child = fork();
    int status = -1;

    CHECK(child >= 0);
    if (child == 0) {
        static struct vmml_survey seen;

        CHECK_EQUAL(vmml_survey_make(pid, &seen), 0);
        check(&seen, keys);
        vmml_survey_free(&seen);
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
}

static void exporter_as_seen(const struct vmml_survey *survey,
                             const struct keys *keys)
{
    CHECK_EQUAL(survey->window_count, 1);
    CHECK_EQUAL(survey->windows[0].view.base, keys->base);
    CHECK_EQUAL(survey->windows[0].view.size, WINDOW);
    CHECK_EQUAL(survey->windows[0].error, 0);
    CHECK_EQUAL(survey->chunk_count, 4);
    CHECK_EQUAL(survey->bytes, 4 * CHUNK);
    CHECK_EQUAL(survey->importer_count, 1);
    CHECK_EQUAL(survey->importers[0].pid, getppid());
    CHECK(survey->importers[0].known);
    CHECK_EQUAL(survey->importers[0].chunks, 4);
    CHECK_EQUAL(survey->importers[0].bytes, 4 * CHUNK);
    CHECK_EQUAL(survey->lost, 1);
    CHECK_EQUAL(vmml_target_count(&survey->target, VMML_COUNT_chunks_published),
                4);
    CHECK_EQUAL(vmml_target_count(&survey->target, VMML_COUNT_keys_packed), 2);
    /* The tests do not preload the library. */
    CHECK(!survey->target.loaded);
}

static void importer_as_seen(const struct vmml_survey *survey,
                             const struct keys *keys)
{
    struct vmml_stats_lost lost;

    CHECK_EQUAL(survey->window_count, 0);
    CHECK(survey->target.ledger == NULL);
    CHECK_EQUAL(survey->target.ledger_error, ENOENT);
    CHECK_EQUAL(survey->mirror_count, 1);
    CHECK_EQUAL(survey->mirrors[0].pid, keys->ex.pid);
    CHECK_EQUAL(survey->mirrors[0].base, keys->base);
    CHECK_EQUAL(survey->mirrors[0].chunks, 4);
    CHECK_EQUAL(survey->mirrors[0].bytes, 4 * CHUNK);
    CHECK(vmml_target_lost(&survey->target, VMML_CAUSE_NOT_SHAREABLE, &lost));
    CHECK_EQUAL(lost.count, 1);
    CHECK_EQUAL(lost.pid, keys->ex.pid);
    CHECK_EQUAL(vmml_target_count(&survey->target, VMML_COUNT_copies), 3);
    CHECK_EQUAL(vmml_target_count(&survey->target, VMML_COUNT_copied_bytes),
                6 * CHUNK);
    CHECK_EQUAL(vmml_target_count(&survey->target, VMML_COUNT_chunks_mapped),
                4);
}

static uint64_t start_stats(uint64_t unused)
{
    vmml_stats_start();
    return 0;
}

static void both_can_be_seen(void)
{
    struct keys keys;
    CUdeviceptr mirror;
    unsigned i;

    start(&keys);
    /* What uct_md_mem_reg_v2 does in the exporter. */
    ex_run(&keys.ex, start_stats, 0);
    CHECK_EQUAL(unpack(keys.refused), VMML_UCS_ERR_UNREACHABLE);
    CHECK_EQUAL(unpack(keys.served), VMML_UCS_OK);
    mirror = im_open(keys.served);
    for (i = 0; i < 3; i++)
        im_expect(mirror + i * CHUNK / 2, keys.base + i * CHUNK / 2, 2 * CHUNK,
                  1);
    survey(keys.ex.pid, exporter_as_seen, &keys);
    survey(getpid(), importer_as_seen, &keys);
    ex_stop(&keys.ex);
    CHECK_EQUAL(vmml_survey_make(keys.ex.pid, &(struct vmml_survey){0}), ESRCH);
}

/* ---- a key from its pack to a copy ---- */

static unsigned lines_of(const struct vmml_handle *handle, const char *says)
{
    char text[128];

    snprintf(text, sizeof(text), " [key %08x 0x%lx+0x%lx]: %s",
             (unsigned)vmml_identity(handle->nonce, handle->base, handle->size),
             (unsigned long)handle->base, (unsigned long)handle->size, says);
    return lane_log_count(text);
}

/* Both processes write into one file here. */
static void a_key_can_be_followed(void)
{
    uint8_t other_key[KEY_SIZE];
    struct vmml_handle handle;
    struct keys keys;
    uint64_t other;

    CHECK_EQUAL(
        setenv("VMMLANE_LOG", "warn,lane=trace,mirror=trace,ucx=debug", 1), 0);
    lane_log_to_file();
    start_in(&keys);
    other = ex_reserve(&keys.ex, WINDOW);
    ex_map(&keys.ex, other, CHUNK, 2, 1);
    ex_key(&keys.ex, other, 2 * CHUNK, other_key);
    CHECK_EQUAL(unpack(keys.served), VMML_UCS_OK);
    im_expect(im_open(keys.served), keys.base, 4 * CHUNK, 1);
    CHECK_CU(ex_unmap(&keys.ex, keys.base, CHUNK));
    handle = lane_handle(keys.served);
    CHECK_EQUAL(lines_of(&handle, "window "), 2); /* made, opened */
    CHECK_EQUAL(lines_of(&handle, "registration "), 2);
    CHECK_EQUAL(lines_of(&handle, "chunk "), 4 + 1); /* one is revoked */
    CHECK_EQUAL(lines_of(&handle, "pack "), 2);
    CHECK_EQUAL(lines_of(&handle, "no fast lane "), 1);
    CHECK_EQUAL(lines_of(&handle, "mirror of window "), 1);
    CHECK_EQUAL(lines_of(&handle, "4 chunks of window "), 1);
    CHECK_EQUAL(lines_of(&handle, "key of process "), 1);
    CHECK_EQUAL(lines_of(&handle, "a copy of 0x800000 bytes at 0x0 of the "),
                1);
    /* The other window has an id of its own, and no importer. */
    handle = lane_handle(other_key);
    CHECK_EQUAL(lines_of(&handle, "chunk "), 2);
    CHECK_EQUAL(lines_of(&handle, "a copy "), 0);
    ex_stop(&keys.ex);
}

/* ---- who shows something else ---- */

enum fake {
    FAKE_EMPTY,
    FAKE_UNSEALED,
    FAKE_MAGIC,
    FAKE_VERSION,
    FAKE_NAMES,
    FAKE_PID,
    FAKE_GARBAGE,
    FAKES,
};

static void make_fake(enum fake fake)
{
    struct vmml_stats_file *stats = calloc(1, sizeof(*stats));
    int fd = memfd_create(VMML_STATS_NAME, MFD_ALLOW_SEALING);
    size_t size = fake == FAKE_EMPTY ? 0 : sizeof(*stats);

    CHECK(stats != NULL && fd >= 0);
    if (fake == FAKE_GARBAGE)
        memset(stats, 0x99, sizeof(*stats));
    stats->header.magic = VMML_STATS_MAGIC ^ (fake == FAKE_MAGIC);
    stats->header.version = VMML_STATS_VERSION + (fake == FAKE_VERSION);
    stats->header.size = sizeof(*stats);
    stats->header.names = vmml_stats_names() ^ (fake == FAKE_NAMES);
    stats->header.pid = (uint32_t)getpid() + (fake == FAKE_PID);
    CHECK_EQUAL(write(fd, stats, size), size);
    if (fake != FAKE_UNSEALED)
        CHECK_EQUAL(
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            0);
    free(stats);
}

static void what_is_no_statistics_is_not_read(void)
{
    static const int errors[FAKES] = {
        [FAKE_EMPTY] = EPROTO,
        [FAKE_UNSEALED] = EPROTO,
        [FAKE_MAGIC] = EPROTO,
        [FAKE_VERSION] = EPROTONOSUPPORT,
        [FAKE_NAMES] = EPROTONOSUPPORT,
        [FAKE_PID] = ENOENT,
        [FAKE_GARBAGE] = 0,
    };
    static struct vmml_survey seen;
    struct vmml_stats_lost lost;
    int fake, go[2], status;
    pid_t child;
    char byte;

    for (fake = 0; fake < FAKES; fake++) {
        CHECK_EQUAL(pipe(go), 0);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            make_fake(fake);
            CHECK_EQUAL(write(go[1], "x", 1), 1);
            pause();
        }
        CHECK_EQUAL(read(go[0], &byte, 1), 1);
        CHECK_EQUAL(vmml_survey_make(child, &seen), 0);
        CHECK_EQUAL(seen.target.stats_error, errors[fake]);
        CHECK((seen.target.stats != NULL) == (fake == FAKE_GARBAGE));
        if (fake == FAKE_GARBAGE)
            /* An entry that is for ever being written: its count alone. */
            CHECK(vmml_target_lost(&seen.target, 3, &lost) &&
                  lost.count == 0x9999999999999999 && lost.address == 0);
        vmml_survey_free(&seen);
        CHECK_EQUAL(kill(child, SIGKILL), 0);
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        close(go[0]);
        close(go[1]);
    }
}

/* A load and a store that no other thread touches. */
static void copies_are_counted_for_each_thread(void)
{
    struct keys keys;
    CUdeviceptr mirror;

    start(&keys);
    CHECK_EQUAL(unpack(keys.served), VMML_UCS_OK);
    mirror = im_open(keys.served);
    im_expect(mirror, keys.base, CHUNK, 1);
    CHECK(vmml_stats_shard != 0);
    CHECK_EQUAL(atomic_load(&vmml_stats)
                    ->shards[vmml_stats_shard]
                    .counts[VMML_COUNT_copies],
                1);
    CHECK_EQUAL(atomic_load(&vmml_stats)->shards[0].counts[VMML_COUNT_copies],
                0);
    ex_stop(&keys.ex);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(one_line_and_a_count),
        LANE_TEST(plain_memory_takes_no_line),
        LANE_TEST(causes_are_told_apart),
        LANE_TEST(two_causes_at_once),
        LANE_PAIR(lost_is_a_fallback),
        LANE_PAIR(lost_is_an_error_when_strict),
        LANE_PAIR(both_can_be_seen),
        LANE_PAIR(a_key_can_be_followed),
        LANE_TEST(what_is_no_statistics_is_not_read),
        LANE_PAIR(copies_are_counted_for_each_thread),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
