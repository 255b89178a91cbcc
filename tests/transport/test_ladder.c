/* SPDX-License-Identifier: MIT */
/*
 * Exporter and importer as two processes, where the kernel denies them a step
 * of the ladder: real seccomp filters, real users, real ends (cases F1, F3, F5
 * and K3).
 */
#include "../lane/exporter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/fork.h"
#include "gate.h"
#include "mirror/mirror.h"
#include "mirror/peer.h"
#include "transport/client.h"

#define WINDOW     (16 * CHUNK)
#define USER       1000
#define OTHER_USER 1001
#define SKIPPED    77
/* Case F1's bound for a refusal. */
#define REFUSAL_MS 100

struct pair {
    struct exporter ex;
    uint64_t base;
    uint8_t key[KEY_SIZE];
    CUdeviceptr mirror;
};

static void start_exporter(struct pair *pair, unsigned count)
{
    pair->ex = ex_start();
    pair->base = ex_reserve(&pair->ex, WINDOW);
    ex_map(&pair->ex, pair->base, CHUNK, count, 1);
    ex_key(&pair->ex, pair->base, count * CHUNK, pair->key);
}

static void start(struct pair *pair, unsigned count)
{
    start_exporter(pair, count);
    lane_cuda(0);
}

static void log_at(const char *level)
{
    lane_log_to_file();
    CHECK(setenv("VMMLANE_LOG", level, 1) == 0);
}

static void transport(const char *steps)
{
    CHECK((steps == NULL ? unsetenv("VMMLANE_TRANSPORT")
                         : setenv("VMMLANE_TRANSPORT", steps, 1)) == 0);
}

static void deny(const char *first, const char *second, int error)
{
    long calls[2] = {gate_number(first), second ? gate_number(second) : 0};

    gate_deny(calls, second ? 2 : 1, error);
}

static void need_root(void)
{
    if (geteuid() == 0)
        return;
    fprintf(stderr, "only root can be another user\n");
    _exit(SKIPPED);
}

static bool is_dead(void *arg)
{
    const struct pair *pair = arg;
    struct vmml_handle handle = lane_handle(pair->key);
    struct vmml_peer *peer = vmml_peer_find(handle.nonce);

    return peer == NULL || atomic_load(&peer->dead);
}

static bool holds_nothing(void *arg)
{
    (void)arg;
    return !vmml_mirror_refresh();
}

/* Noticed without the importer's help; then nothing is mapped or posted. */
static void check_end(struct pair *pair)
{
    CHECK(lane_wait(is_dead, pair));
    CHECK(lane_wait(holds_nothing, NULL));
    im_refused(pair->mirror, CHUNK);
    CHECK(!im_prepare(pair->key));
}

static void refused_without_delay(const struct pair *pair)
{
    uint64_t best = UINT64_MAX;
    unsigned i;

    for (i = 0; i < 5; i++) {
        uint64_t begin = lane_ms();

        CHECK(!im_prepare(pair->key));
        best = lane_ms() - begin < best ? lane_ms() - begin : best;
    }
    CHECK(best <= REFUSAL_MS);
    CHECK_EQUAL(lane_log_count("no fast lane to process"), 1);
}

/* Bytes, growth, revocation, re-backing, and the exporter's death. */
static void check_lane(struct pair *pair)
{
    uint64_t base = pair->base;

    pair->mirror = im_attach(pair->key);
    im_expect(pair->mirror, base, 4 * CHUNK, 1);
    im_put(pair->mirror + CHUNK - 16, base + CHUNK - 16, 32, 2);
    CHECK(ex_holds(&pair->ex, base + CHUNK - 16, 16, 2));
    CHECK(ex_holds(&pair->ex, base + CHUNK, 16, 2));
    ex_fill(&pair->ex, base, CHUNK, 1);
    ex_fill(&pair->ex, base + CHUNK, CHUNK, 1);
    ex_map(&pair->ex, base + 4 * CHUNK, CHUNK, 4, 1);
    ex_key(&pair->ex, base, 8 * CHUNK, pair->key);
    CHECK(im_prepare(pair->key));
    im_expect(pair->mirror, base, 8 * CHUNK, 1);
    CHECK_CU(ex_unmap(&pair->ex, base + 2 * CHUNK, CHUNK));
    im_refused(pair->mirror + 2 * CHUNK, CHUNK);
    im_expect(pair->mirror + 3 * CHUNK, base + 3 * CHUNK, CHUNK, 1);
    ex_map(&pair->ex, base + 2 * CHUNK, CHUNK, 1, 5);
    ex_key(&pair->ex, base, 8 * CHUNK, pair->key);
    CHECK(im_prepare(pair->key));
    im_expect(pair->mirror + 2 * CHUNK, base + 2 * CHUNK, CHUNK, 5);
    ex_kill(&pair->ex);
    check_end(pair);
}

/* ---- F1: seccomp --------------------------------------------------------- */

static void both_are_filtered(const char *first, const char *second, int error)
{
    struct pair pair;

    log_at("info");
    deny(first, second, error);
    start(&pair, 4);
    check_lane(&pair);
    CHECK_EQUAL(lane_log_count("by its socket"), 1);
    CHECK(!lane_log_has("no fast lane"));
}

static void getfd_not_permitted(void)
{
    both_are_filtered("pidfd_getfd", NULL, EPERM);
}

static void getfd_not_there(void)
{
    both_are_filtered("pidfd_getfd", NULL, ENOSYS);
}

static void both_not_permitted(void)
{
    both_are_filtered("pidfd_getfd", "pidfd_open", EPERM);
}

static void both_not_there(void)
{
    both_are_filtered("pidfd_getfd", "pidfd_open", ENOSYS);
}

static void open_not_permitted(void)
{
    both_are_filtered("pidfd_open", NULL, EPERM);
}

/* The line names the gate and the fix. */
static void refused_by(const char *call, int error)
{
    struct pair pair;
    char text[64];

    log_at("warn");
    transport("getfd");
    deny(call, NULL, error);
    start(&pair, 4);
    refused_without_delay(&pair);
    snprintf(text, sizeof(text), "%s(2) is denied by a seccomp filter (mode 2",
             call);
    CHECK(lane_log_has(text));
    CHECK(lane_log_has(geteuid() == 0 ? "with CAP_SYS_PTRACE"
                                      : "without CAP_SYS_PTRACE"));
    CHECK(lane_log_has("switched off by VMMLANE_TRANSPORT"));
    CHECK(lane_log_has("--cap-add=SYS_PTRACE"));
    ex_stop(&pair.ex);
}

static void getfd_refused(void)
{
    refused_by("pidfd_getfd", EPERM);
}

static void open_refused(void)
{
    refused_by("pidfd_open", ENOSYS);
}

static void exporter_has_no_socket(void)
{
    struct pair pair;

    log_at("warn");
    deny("pidfd_getfd", NULL, EPERM);
    transport("getfd");
    start_exporter(&pair, 4);
    transport(NULL);
    lane_cuda(0);
    refused_without_delay(&pair);
    CHECK(lane_log_has("nobody answers at its socket"));
    ex_stop(&pair.ex);
}

static void importer_may_have_no_socket(void)
{
    struct pair pair;

    log_at("warn");
    start(&pair, 4);
    deny("pidfd_getfd", "socket", EPERM);
    refused_without_delay(&pair);
    CHECK(lane_log_has("pidfd_getfd(2) is denied by a seccomp filter"));
    CHECK(lane_log_has("its socket cannot be used"));
    ex_stop(&pair.ex);
}

/* The exporter may take in nobody: importers do not wait for it. */
static void exporter_may_accept_nobody(void)
{
    struct pair pair;

    log_at("warn");
    deny("pidfd_getfd", "accept4", EPERM);
    start(&pair, 4);
    refused_without_delay(&pair);
    ex_stop(&pair.ex);
}

/* A filter that comes when the lane is up. */
static void filtered_later(void)
{
    struct pair pair;

    log_at("info");
    start(&pair, 4);
    pair.mirror = im_attach(pair.key);
    CHECK_EQUAL(lane_log_count("by pidfd_getfd"), 1);
    deny("pidfd_getfd", "pidfd_open", EPERM);
    check_lane(&pair);
    CHECK(!lane_log_has("no fast lane"));
}

/* ---- VMMLANE_TRANSPORT --------------------------------------------------- */

static void socket_alone(void)
{
    const long calls[] = {gate_number("pidfd_open"),
                          gate_number("pidfd_getfd")};
    struct pair pair;

    transport("Socket");
    start(&pair, 4);
    gate_count(calls, 2, 0);
    check_lane(&pair);
    CHECK_EQUAL(gate_counted(), 0);
}

static void socket_first(void)
{
    struct pair pair;

    log_at("info");
    transport("socket,getfd");
    start(&pair, 4);
    check_lane(&pair);
    CHECK_EQUAL(lane_log_count("by its socket"), 1);
}

/* It goes on with the second where the first fails. */
static void second_of_the_order(void)
{
    struct pair pair;

    log_at("info");
    transport("getfd");
    start_exporter(&pair, 4);
    transport("socket,ptracer,getfd");
    lane_cuda(0);
    check_lane(&pair);
    CHECK_EQUAL(lane_log_count("by pidfd_getfd"), 1);
}

static void no_step_at_all(void)
{
    struct pair pair;

    log_at("warn");
    start_exporter(&pair, 4);
    transport("ptracer");
    lane_cuda(0);
    refused_without_delay(&pair);
    CHECK(lane_log_has("VMMLANE_TRANSPORT has neither getfd nor socket"));
    ex_stop(&pair.ex);
}

static void bad_value(void)
{
    struct pair pair;

    log_at("info");
    start_exporter(&pair, 4);
    transport("getfd,sokcet");
    lane_cuda(0);
    check_lane(&pair);
    CHECK_EQUAL(lane_log_count("VMMLANE_TRANSPORT=getfd,sokcet"), 1);
    CHECK(!lane_log_has("no fast lane"));
    CHECK_EQUAL(lane_log_count("by pidfd_getfd"), 1);
}

/* ---- who may not trace --------------------------------------------------- */

static void hide(void)
{
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
}

static void become(uid_t user)
{
    CHECK(setresgid(user, user, user) == 0);
    CHECK(setresuid(user, user, user) == 0);
    /* It is lost with the user, and an exec would give it back. */
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static void become_another(void)
{
    become(OTHER_USER);
}

static void exporter_is_not_dumpable(void)
{
    struct pair pair;

    need_root();
    log_at("info");
    become(USER);
    ex_setup = hide;
    start(&pair, 4);
    check_lane(&pair);
    CHECK_EQUAL(lane_log_count("by its socket"), 1);
}

static void not_dumpable_and_no_socket(void)
{
    struct pair pair;

    need_root();
    log_at("warn");
    become(USER);
    transport("getfd");
    ex_setup = hide;
    start(&pair, 4);
    refused_without_delay(&pair);
    CHECK(lane_log_has("it is not dumpable"));
    CHECK(lane_log_has("switched off by VMMLANE_TRANSPORT"));
    ex_stop(&pair.ex);
}

static void exporter_of_another_user(void)
{
    struct pair pair;

    need_root();
    log_at("warn");
    ex_setup = become_another;
    start_exporter(&pair, 4);
    become(USER);
    lane_cuda(0);
    refused_without_delay(&pair);
    CHECK(lane_log_has("it is another user's"));
    ex_stop(&pair.ex);
}

/* ---- what an importer may ask for ---------------------------------------- */

static int get_from(const struct pair *pair, uint32_t what, uint32_t slot,
                    uint64_t serial)
{
    struct vmml_handle handle = lane_handle(pair->key);
    unsigned patience = VMML_CLIENT_PATIENCE_MS;
    int socket = vmml_client_connect(handle.nonce, &patience);
    int fd;

    CHECK(socket >= 0);
    fd = vmml_client_get(socket, handle.nonce, what, slot, serial, &patience);
    CHECK(fd < 0 || (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    close(socket);
    return fd;
}

static int ask_for(const struct pair *pair, uint32_t slot, uint64_t serial)
{
    int fd = get_from(pair, VMML_WIRE_CHUNK, slot, serial);

    close(fd);
    return fd < 0 ? fd : 0;
}

static size_t published(const struct pair *pair,
                        struct vmml_chunk_view **chunks)
{
    struct vmml_handle handle = lane_handle(pair->key);
    int fd = get_from(pair, VMML_WIRE_LEDGER, 0, 0);
    struct vmml_ledger_reader *reader;
    struct vmml_window_view view;
    size_t count;

    CHECK_EQUAL(vmml_ledger_open(fd, handle.nonce, &reader), 0);
    close(fd);
    CHECK_EQUAL(vmml_ledger_find_window(reader, pair->base, WINDOW, &view), 0);
    *chunks = NULL;
    CHECK_EQUAL(vmml_ledger_collect(reader, &view, 0, CHUNK, chunks, &count),
                0);
    vmml_ledger_close(reader);
    return count;
}

static void only_what_is_published(void)
{
    struct vmml_chunk_view *chunks;
    struct pair pair;
    size_t count, i;

    start(&pair, 4);
    count = published(&pair, &chunks);
    CHECK_EQUAL(count, 4);
    for (i = 0; i < count; i++) {
        CHECK_EQUAL(ask_for(&pair, chunks[i].slot, chunks[i].serial), 0);
        CHECK_EQUAL(ask_for(&pair, chunks[i].slot, chunks[i].serial + 1),
                    -ENOENT);
        CHECK_EQUAL(ask_for(&pair, chunks[i].slot, 0), -ENOENT);
    }
    CHECK_EQUAL(ask_for(&pair, UINT32_MAX, chunks[0].serial), -ENOENT);
    CHECK_EQUAL(ask_for(&pair, 1u << 31, chunks[0].serial), -ENOENT);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, 4 * CHUNK));
    for (i = 0; i < count; i++)
        CHECK_EQUAL(ask_for(&pair, chunks[i].slot, chunks[i].serial), -ENOENT);
    /* Other memory in the same slots has other serials. */
    ex_map(&pair.ex, pair.base, CHUNK, 4, 2);
    ex_key(&pair.ex, pair.base, 4 * CHUNK, pair.key);
    for (i = 0; i < count; i++)
        CHECK_EQUAL(ask_for(&pair, chunks[i].slot, chunks[i].serial), -ENOENT);
    free(chunks);
    ex_stop(&pair.ex);
}

/* ---- ends, by the socket ------------------------------------------------- */

extern char **environ;

/* The process waits in read(2) when these come. */
static void spawn_sleeper(int signal)
{
    static char *const argv[] = {(char *)"sleep", (char *)"100", NULL};
    pid_t pid;

    (void)signal;
    /* NOLINTNEXTLINE(bugprone-signal-handler) */
    if (posix_spawn(&pid, "/bin/sleep", NULL, NULL, argv, environ) != 0)
        _exit(1);
}

static void vfork_sleeper(int signal)
{
    (void)signal;
    /* NOLINTNEXTLINE(bugprone-signal-handler,clang-analyzer-security.*) */
    if (vfork() == 0) {
        execl("/bin/sleep", "sleep", "100", (char *)NULL);
        _exit(1);
    }
}

static void become_sleeper(int signal)
{
    (void)signal;
    execl("/bin/sleep", "sleep", "100", (char *)NULL);
    _exit(1);
}

static void take_signals(void)
{
    CHECK(signal(SIGUSR1, spawn_sleeper) != SIG_ERR);
    CHECK(signal(SIGUSR2, vfork_sleeper) != SIG_ERR);
    CHECK(signal(SIGHUP, become_sleeper) != SIG_ERR);
}

static void attach_by_socket(struct pair *pair)
{
    ex_setup = take_signals;
    transport("socket");
    start(pair, 4);
    pair->mirror = im_attach(pair->key);
    im_expect(pair->mirror, pair->base, 4 * CHUNK, 1);
}

static void exec_is_an_end(void)
{
    struct pair pair;

    attach_by_socket(&pair);
    CHECK(kill(pair.ex.pid, SIGHUP) == 0);
    check_end(&pair);
}

/* With its pidfd the process goes on; the pipe says that it is another. */
static void exec_is_an_end_by_getfd(void)
{
    struct pair pair;

    ex_setup = take_signals;
    start(&pair, 4);
    pair.mirror = im_attach(pair.key);
    /* A child holds no end of the pipe. */
    ex_fork(&pair.ex);
    CHECK(kill(pair.ex.pid, SIGHUP) == 0);
    check_end(&pair);
}

/* Children that live on hold nothing that would hide the end. */
static void children_do_not_hide_an_end(void)
{
    struct pair pair;

#ifdef __SANITIZE_THREAD__
    fprintf(stderr, "the thread sanitizer bears no vfork(2)\n");
    _exit(SKIPPED);
#endif
    attach_by_socket(&pair);
    ex_fork(&pair.ex);
    CHECK(kill(pair.ex.pid, SIGUSR1) == 0);
    usleep(20000);
    CHECK(kill(pair.ex.pid, SIGUSR2) == 0);
    usleep(20000);
    im_expect(pair.mirror, pair.base, 4 * CHUNK, 1);
    ex_kill(&pair.ex);
    check_end(&pair);
}

/* A child's end is not its parent's. */
static void end_of_a_child(void)
{
    struct pair pair;
    pid_t child;

    attach_by_socket(&pair);
    child = ex_fork(&pair.ex);
    CHECK(kill(child, SIGKILL) == 0);
    usleep(50000);
    check_lane(&pair);
}

static unsigned entries(const char *path, const char *link)
{
    char target[64];
    struct dirent *entry;
    unsigned count = 0;
    DIR *dir = opendir(path);

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        ssize_t length =
            readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

        target[length > 0 ? length : 0] = '\0';
        count += entry->d_name[0] != '.' &&
                 (link == NULL || strncmp(target, link, strlen(link)) == 0);
    }
    closedir(dir);
    return count;
}

/* ---- exporters that do not answer ---------------------------------------- */

static void stop(const struct pair *pair)
{
    int status;

    CHECK(kill(pair->ex.pid, SIGSTOP) == 0);
    CHECK(waitpid(pair->ex.pid, &status, WUNTRACED) == pair->ex.pid);
}

/* All waits for it together are one patience, and one line is said. */
static void silent_from_the_start(void)
{
    struct pair pair;
    uint64_t begin;
    unsigned i;

    log_at("warn");
    transport("socket");
    start(&pair, 4);
    stop(&pair);
    begin = lane_ms();
    for (i = 0; i < 10; i++)
        CHECK(!im_prepare(pair.key));
    CHECK(lane_ms() - begin < 2 * VMML_CLIENT_PATIENCE_MS);
    CHECK_EQUAL(lane_log_count("no fast lane to process"), 1);
    CHECK(lane_log_has("does not answer"));
    CHECK(kill(pair.ex.pid, SIGCONT) == 0);
    ex_stop(&pair.ex);
}

/* What is mapped stays good; what is new cannot be had. */
static void silent_later(void)
{
    struct pair pair;
    uint64_t begin;
    unsigned i;

    transport("socket");
    start(&pair, 4);
    pair.mirror = im_attach(pair.key);
    ex_map(&pair.ex, pair.base + 4 * CHUNK, CHUNK, 4, 1);
    ex_key(&pair.ex, pair.base, 8 * CHUNK, pair.key);
    stop(&pair);
    begin = lane_ms();
    for (i = 0; i < 10; i++)
        CHECK(!im_prepare(pair.key));
    CHECK(lane_ms() - begin < 2 * VMML_CLIENT_PATIENCE_MS);
    im_expect(pair.mirror, pair.base, 4 * CHUNK, 1);
    im_refused(pair.mirror + 4 * CHUNK, CHUNK);
    CHECK(kill(pair.ex.pid, SIGCONT) == 0);
    im_expect(pair.mirror, pair.base, 4 * CHUNK, 1);
    CHECK_CU(ex_unmap(&pair.ex, pair.base, CHUNK));
    im_refused(pair.mirror, CHUNK);
    im_expect(pair.mirror + CHUNK, pair.base + CHUNK, 3 * CHUNK, 1);
    ex_kill(&pair.ex);
    check_end(&pair);
}

/* ---- a fork while an exporter does not answer ---------------------------- */

struct asking {
    const struct pair *pair;
    const char *link; /* what the importer has open while it waits */
    unsigned before;  /* that were open before */
    atomic_bool done;
    bool served;
};

static void *prepare_key(void *arg)
{
    struct asking *asking = arg;

    asking->served = im_prepare(asking->pair->key);
    atomic_store(&asking->done, true);
    return NULL;
}

static bool is_waiting(void *arg)
{
    const struct asking *asking = arg;

    return entries("/proc/self/fd", asking->link) > asking->before;
}

/* The fork is over before the wait is, and its child has nothing of it. */
static void fork_meanwhile(struct asking *asking)
{
    int status = 0;
    pid_t child;

    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(entries("/proc/self/fd", asking->link) <= asking->before ? 0 : 1);
    CHECK(!atomic_load(&asking->done));
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* An importer waits for a stopped exporter until that goes on. */
static void fork_while_it_waits(struct pair *pair, const char *link,
                                bool (*waits)(void *asking))
{
    struct asking asking = {
        .pair = pair,
        .link = link,
        .before = entries("/proc/self/fd", link),
    };
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, prepare_key, &asking) == 0);
    CHECK(lane_wait(waits, &asking));
    fork_meanwhile(&asking);
    CHECK(kill(pair->ex.pid, SIGCONT) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(asking.served);
}

static void fork_while_attaching(void)
{
    struct pair pair;

    transport("socket");
    start(&pair, 4);
    stop(&pair);
    fork_while_it_waits(&pair, "socket:", is_waiting);
    check_lane(&pair);
}

/* Full: nobody takes in who connects. Returns how many sockets that took. */
static size_t fill_queue(const struct pair *pair, int sockets[], size_t most)
{
    struct vmml_handle handle = lane_handle(pair->key);
    unsigned patience = 0;
    size_t count = 0;

    while (count < most) {
        sockets[count] = vmml_client_connect(handle.nonce, &patience);
        if (sockets[count] < 0)
            break;
        count++;
    }
    CHECK(count < most);
    return count;
}

/* What it does while it waits to be taken in is seen from nowhere. */
static bool has_begun(void *arg)
{
    const struct asking *asking = arg;

    usleep(30000);
    return !atomic_load(&asking->done);
}

static void fork_while_connecting(void)
{
    struct pair pair;
    int sockets[256];
    size_t count;

    transport("socket");
    start(&pair, 4);
    /* As after the first attachment, or with memory of one's own. */
    CHECK(vmml_fork_watch() == 0);
    stop(&pair);
    count = fill_queue(&pair, sockets, 256);
    fork_while_it_waits(&pair, "socket:", has_begun);
    check_lane(&pair);
    while (count > 0)
        close(sockets[--count]);
}

/* ---- nothing published, nothing started ---------------------------------- */

static void nothing_without_a_publication(void)
{
    uint8_t key[KEY_SIZE];
    unsigned threads, sockets;
    CUdeviceptr plain;
    uint64_t base;

    lane_cuda(0);
    CHECK_CU(cuMemAlloc_v2(&plain, CHUNK));
    threads = entries("/proc/self/task", NULL);
    sockets = entries("/proc/self/fd", "socket:");
    CHECK(!lane_pack(lane_reg(plain, CHUNK), plain, CHUNK, key));
    base = lane_reserve(WINDOW);
    lane_map(base, CHUNK, 1);
    CHECK_EQUAL(entries("/proc/self/task", NULL), threads);
    CHECK_EQUAL(entries("/proc/self/fd", "socket:"), sockets);
    CHECK(lane_pack(lane_reg(base, CHUNK), base, CHUNK, key));
    CHECK(entries("/proc/self/task", NULL) > threads);
    CHECK(entries("/proc/self/fd", "socket:") > sockets);
}

static void no_socket_where_it_is_forbidden(void)
{
    uint8_t key[KEY_SIZE];
    unsigned threads, sockets;
    uint64_t base;

    transport("getfd,ptracer");
    lane_cuda(0);
    base = lane_reserve(WINDOW);
    lane_map(base, CHUNK, 1);
    threads = entries("/proc/self/task", NULL);
    sockets = entries("/proc/self/fd", "socket:");
    CHECK(lane_pack(lane_reg(base, CHUNK), base, CHUNK, key));
    CHECK_EQUAL(entries("/proc/self/task", NULL), threads);
    CHECK_EQUAL(entries("/proc/self/fd", "socket:"), sockets);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(getfd_not_permitted),
        LANE_TEST(getfd_not_there),
        LANE_TEST(both_not_permitted),
        LANE_TEST(both_not_there),
        LANE_TEST(open_not_permitted),
        LANE_TEST(getfd_refused),
        LANE_TEST(open_refused),
        LANE_TEST(exporter_has_no_socket),
        LANE_TEST(importer_may_have_no_socket),
        LANE_TEST(exporter_may_accept_nobody),
        LANE_PAIR(filtered_later),
        LANE_TEST(socket_alone),
        LANE_TEST(socket_first),
        LANE_PAIR(second_of_the_order),
        LANE_TEST(no_step_at_all),
        LANE_PAIR(bad_value),
        LANE_TEST(exporter_is_not_dumpable),
        LANE_PAIR(not_dumpable_and_no_socket),
        LANE_PAIR(exporter_of_another_user),
        LANE_TEST(only_what_is_published),
        LANE_TEST(exec_is_an_end),
        LANE_PAIR(exec_is_an_end_by_getfd),
        LANE_TEST(children_do_not_hide_an_end),
        LANE_TEST(end_of_a_child),
        LANE_TEST(silent_from_the_start),
        LANE_TEST(silent_later),
        LANE_TEST(fork_while_attaching),
        LANE_TEST(fork_while_connecting),
        LANE_TEST(nothing_without_a_publication),
        LANE_TEST(no_socket_where_it_is_forbidden),
    };

    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
