/* SPDX-License-Identifier: MIT */
/*
 * The exporter's socket and its client, each against the worst that the other
 * end can do (case F3). The server runs in a process of its own, which takes
 * commands.
 */
#include "../lane/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/fork.h"
#include "gate.h"
#include "transport/client.h"
#include "transport/server.h"

#define OTHER_USER    1000
#define OVERFLOW_USER 65534
#define SLOT          3
#define SERIAL        77
#define SKIPPED       77

static const uint8_t known_nonce[VMML_NONCE_SIZE] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Each test has its own: the last one's server may not have ended yet. */
static uint8_t nonce[VMML_NONCE_SIZE];

static void choose_nonce(void)
{
    pid_t pid = getpid();

    if (nonce[15] != 0)
        return;
    nonce[15] = 1;
    memcpy(nonce, &pid, sizeof(pid));
}

/* ---- the server's process ---- */

static int shared_file = -1;

static int get(uint32_t what, uint32_t slot, uint64_t serial)
{
    int fd;

    if (what != VMML_WIRE_CHUNK || slot != SLOT || serial != SERIAL)
        return -ENOENT;
    fd = fcntl(shared_file, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? -errno : fd;
}

static int hoard[4096];
static size_t hoarded;

/* To the last descriptor. */
static void take_all_descriptors(void)
{
    while (hoarded < 4096 && (hoard[hoarded] = dup(0)) >= 0)
        hoarded++;
    CHECK(hoarded < 4096 && errno == EMFILE);
}

static void give_back_descriptors(void)
{
    while (hoarded > 0)
        close(hoard[--hoarded]);
}

/* As daemons do: also the descriptors of others. */
static void close_all_but(int a, int b)
{
    int fd;

    for (fd = 3; fd < 3000; fd++)
        if (fd != a && fd != b)
            /* Past the thread sanitizer, to which this is a race. */
            syscall(SYS_close, fd);
}

static void fork_a_child(void)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        for (;;)
            pause();
}

/* Forks a child that asks for what the socket had, and ends. */
static void fork_a_short_child(void)
{
    pid_t pid = fork();
    int status;

    CHECK(pid >= 0);
    if (pid == 0)
        exit(0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void obey(char command, int in, int out)
{
    const struct rlimit few = {150, 150};

    switch (command) {
    case 'f':
        take_all_descriptors();
        break;
    case 'e':
        give_back_descriptors();
        break;
    case 'c':
        close_all_but(in, out);
        break;
    case 'l':
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        break;
    case 'k':
        fork_a_child();
        break;
    case 's':
        fork_a_short_child();
        break;
    default:
        _exit(1);
    }
}

struct server {
    pid_t pid;
    int in;  /* commands */
    int out; /* one byte for each that was obeyed */
};

static void serve(const uint8_t *own_nonce, uid_t user, int in, int out)
{
    struct rlimit limit = {4096 - 64, 4096 - 64};
    char command;

    /* A child of fork is to close what the socket has. */
    CHECK(vmml_fork_watch() == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(user == 0 || setresuid(user, user, user) == 0);
    shared_file = memfd_create("chunk", MFD_CLOEXEC);
    CHECK(shared_file >= 0 && write(shared_file, "chunk", 5) == 5);
    CHECK_EQUAL(vmml_server_start(own_nonce, get), 0);
    CHECK(write(out, "x", 1) == 1);
    while (read(in, &command, 1) == 1) {
        obey(command, in, out);
        CHECK(write(out, "x", 1) == 1);
    }
    _exit(0);
}

static struct server start_as(const uint8_t *own_nonce, uid_t user)
{
    struct server server;
    int in[2], out[2];
    char byte;

    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    server.pid = fork();
    CHECK(server.pid >= 0);
    if (server.pid == 0) {
        close(in[1]);
        close(out[0]);
        serve(own_nonce, user, in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    server.in = in[1];
    server.out = out[0];
    CHECK(read(server.out, &byte, 1) == 1);
    return server;
}

static struct server start(void)
{
    return start_as(nonce, 0);
}

static void command(const struct server *server, char byte)
{
    CHECK(write(server->in, &byte, 1) == 1);
    CHECK(read(server->out, &byte, 1) == 1);
}

static unsigned fds_of(pid_t pid)
{
    unsigned count = 0;
    char path[32];
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    dir = opendir(path);
    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* CPU time so far, in clock ticks (fields 14 and 15 of proc(5)'s stat). */
static unsigned long cpu_of(pid_t pid)
{
    unsigned long user, system;
    char path[32], text[1024];
    const char *at;
    ssize_t length;
    int fd, i;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    length = read(fd, text, sizeof(text) - 1);
    close(fd);
    CHECK(length > 0);
    text[length] = '\0';
    at = strrchr(text, ')');
    CHECK(at != NULL);
    for (i = 2; i < 14; i++)
        at = strchr(at + 1, ' ');
    CHECK(sscanf(at, "%lu %lu", &user, &system) == 2);
    return user + system;
}

/* A thread that spins uses all that it is given of a second. */
static void check_asleep(pid_t pid)
{
    unsigned long before = cpu_of(pid);
    unsigned long used;

    usleep(1000000);
    used = cpu_of(pid) - before;
    if (used > 5)
        fprintf(stderr, "%lu ticks of CPU time in a second\n", used);
    CHECK(used <= 5);
}

/* ---- the client's end ---- */

static int connect_to(const uint8_t *to)
{
    unsigned patience = VMML_CLIENT_PATIENCE_MS;

    return vmml_client_connect(to, &patience);
}

static int ask(int socket, const uint8_t *with, uint32_t slot, uint64_t serial)
{
    unsigned patience = VMML_CLIENT_PATIENCE_MS;

    return vmml_client_get(socket, with, VMML_WIRE_CHUNK, slot, serial,
                           &patience);
}

static void check_is_chunk(int fd)
{
    char text[8] = "";

    CHECK(fd >= 0);
    CHECK(pread(fd, text, sizeof(text), 0) == 5 && strcmp(text, "chunk") == 0);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

/* The service does what it is there for. */
static void check_serves(void)
{
    int socket = connect_to(nonce);
    int fd;

    CHECK(socket >= 0);
    CHECK((fcntl(socket, F_GETFD) & FD_CLOEXEC) != 0);
    fd = ask(socket, nonce, SLOT, SERIAL);
    check_is_chunk(fd);
    close(fd);
    close(socket);
}

static bool has_fds(void *arg)
{
    const unsigned *wanted = arg;

    return fds_of((pid_t)wanted[0]) == wanted[1];
}

/* Sooner or later the server has closed what it closes. */
static void check_fds(pid_t pid, unsigned wanted)
{
    unsigned arg[2] = {(unsigned)pid, wanted};

    CHECK(lane_wait(has_fds, arg));
}

/* A plain connection, without the client's checks. */
static int raw_connect(const uint8_t *to)
{
    struct sockaddr_un address;
    socklen_t length = vmml_wire_address(to, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, length) == 0)
        return fd;
    close(fd);
    return -1;
}

static struct vmml_wire_request request_for(uint32_t slot)
{
    struct vmml_wire_request request = {
        .magic = VMML_WIRE_MAGIC,
        .version = VMML_WIRE_VERSION,
        .what = VMML_WIRE_CHUNK,
        .slot = slot,
        .serial = SERIAL,
    };

    memcpy(request.nonce, nonce, sizeof(nonce));
    return request;
}

/* ---- what it is there for ---- */

static void gives_what_is_asked(void)
{
    uint8_t wrong[VMML_NONCE_SIZE];
    struct server server = start();
    unsigned before = fds_of(server.pid);
    unsigned i;
    int socket;

    check_serves();
    socket = connect_to(nonce);
    CHECK_EQUAL(ask(socket, nonce, SLOT, SERIAL + 1), -ENOENT);
    CHECK_EQUAL(ask(socket, nonce, SLOT + 1, SERIAL), -ENOENT);
    check_is_chunk(ask(socket, nonce, SLOT, SERIAL));
    /* Any bit of the nonce matters; a wrong one ends the connection. */
    for (i = 0; i < 8 * VMML_NONCE_SIZE; i += 7) {
        int other = connect_to(nonce);

        memcpy(wrong, nonce, sizeof(wrong));
        wrong[i / 8] ^= (uint8_t)(1u << i % 8);
        CHECK_EQUAL(ask(other, wrong, SLOT, SERIAL), -EPIPE);
        CHECK_EQUAL(ask(other, nonce, SLOT, SERIAL), -EPIPE);
        close(other);
        CHECK_EQUAL(connect_to(wrong), -ECONNREFUSED);
    }
    check_is_chunk(ask(socket, nonce, SLOT, SERIAL));
    close(socket);
    check_fds(server.pid, before);
}

static void two_on_one_host(void)
{
    uint8_t second[VMML_NONCE_SIZE] = {42};
    struct server one = start();
    struct server two = start_as(second, 0);
    int socket;

    check_serves();
    socket = connect_to(second);
    check_is_chunk(ask(socket, second, SLOT, SERIAL));
    kill(one.pid, SIGKILL);
    CHECK(waitpid(one.pid, NULL, 0) == one.pid);
    CHECK_EQUAL(connect_to(nonce), -ECONNREFUSED);
    check_is_chunk(ask(socket, second, SLOT, SERIAL));
    kill(two.pid, SIGKILL);
    CHECK(waitpid(two.pid, NULL, 0) == two.pid);
    CHECK_EQUAL(ask(socket, second, SLOT, SERIAL), -EPIPE);
}

/* SipHash-2-4 with this nonce as its key, of the blocks 1 and 2: computed by
 * another implementation, which gives the vectors of its authors. */
static void name_tells_nothing(void)
{
    static const char expected[] = "@vmmlane-2b91b2b085e6d1f62cf030f1fa30eb6d";
    char line[512], hex[2 * VMML_NONCE_SIZE + 1];
    unsigned found = 0;
    FILE *file;
    size_t i;

    start_as(known_nonce, 0);
    for (i = 0; i < VMML_NONCE_SIZE; i++)
        snprintf(hex + 2 * i, 3, "%02x", known_nonce[i]);
    file = fopen("/proc/net/unix", "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *name = strstr(line, "@vmmlane");

        if (name == NULL)
            continue;
        CHECK(strstr(line, hex) == NULL && strstr(line, hex + 16) == NULL);
        found += strncmp(name, expected, sizeof(expected) - 1) == 0;
    }
    fclose(file);
    CHECK(found > 0);
}

/* ---- users ---- */

static void need_root(void)
{
    if (geteuid() != 0) {
        fprintf(stderr, "only root can be another user\n");
        _exit(SKIPPED);
    }
}

/* Run in a child that is `user`; its exit code. */
static int as_user(uid_t user, int (*run)(void))
{
    pid_t pid = fork();
    int status;

    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(setresuid(user, user, user) == 0);
        _exit(run());
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Past its own checks, and with the right nonce. */
static int try_as_stranger(void)
{
    struct vmml_wire_request request = request_for(SLOT);
    int fd;

    CHECK_EQUAL(connect_to(nonce), -EKEYREJECTED);
    fd = raw_connect(nonce);
    CHECK(fd >= 0);
    (void)send(fd, &request, sizeof(request), MSG_NOSIGNAL);
    CHECK_EQUAL(ask(fd, nonce, SLOT, SERIAL), -EKEYREJECTED);
    CHECK_EQUAL(ask(fd, nonce, SLOT, SERIAL), -EPIPE);
    return 0;
}

static void another_user_gets_nothing(void)
{
    struct server server;
    unsigned before;

    need_root();
    server = start();
    before = fds_of(server.pid);
    CHECK_EQUAL(as_user(OTHER_USER, try_as_stranger), 0);
    CHECK_EQUAL(as_user(OVERFLOW_USER, try_as_stranger), 0);
    check_fds(server.pid, before);
    check_serves();
}

/* Two users that are not mapped look the same: that is no proof. */
static void the_overflow_user_is_nobody(void)
{
    need_root();
    start_as(nonce, OVERFLOW_USER);
    CHECK_EQUAL(as_user(OVERFLOW_USER, try_as_stranger), 0);
}

static int bind_name(void)
{
    struct sockaddr_un address;
    socklen_t length = vmml_wire_address(nonce, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)&address, length) == 0);
    CHECK(listen(fd, 8) == 0);
    return fd;
}

/* The name of a dead exporter, taken by another user: it learns nothing. */
static void a_taken_name_is_noticed(void)
{
    struct server server;
    char bytes[128];
    int ready[2];
    pid_t pid;
    int status;

    need_root();
    server = start();
    kill(server.pid, SIGKILL);
    CHECK(waitpid(server.pid, NULL, 0) == server.pid);
    CHECK(pipe(ready) == 0);
    pid = fork();
    if (pid == 0) {
        int fd;

        CHECK(setresuid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
        fd = bind_name();
        CHECK(write(ready[1], "x", 1) == 1);
        fd = accept(fd, NULL, NULL);
        CHECK(fd >= 0);
        _exit(recv(fd, bytes, sizeof(bytes), 0) == 0 ? 0 : 1);
    }
    CHECK(read(ready[0], bytes, 1) == 1);
    CHECK_EQUAL(connect_to(nonce), -EKEYREJECTED);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* ---- hostile importers ---- */

static void garbage_is_survived(void)
{
    struct server server = start();
    unsigned before = fds_of(server.pid);
    struct vmml_wire_request request = request_for(SLOT);
    static uint8_t bytes[5000];
    size_t length;
    unsigned i;

    for (i = 0; i < 300; i++) {
        int fd = raw_connect(nonce);
        size_t k;

        CHECK(fd >= 0);
        for (k = 0; k < sizeof(bytes); k++)
            bytes[k] = (uint8_t)rand();
        length = (size_t)rand() % (i % 2 ? sizeof(request) + 2 : 5000);
        /* Half of them begin well. */
        if (i % 4 == 1)
            memcpy(bytes, &request, sizeof(request));
        if (length == sizeof(request) && i % 4 == 1)
            length--;
        CHECK(send(fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length);
        CHECK_EQUAL(ask(fd, nonce, SLOT, SERIAL), -EPIPE);
        close(fd);
    }
    /* Another version, another question, a field at its limit. */
    for (i = 0; i < 4; i++) {
        int fd = raw_connect(nonce);

        request = request_for(i == 3 ? UINT32_MAX : SLOT);
        request.magic += i == 0;
        request.version += i == 1;
        request.what = i == 2 ? UINT32_MAX : VMML_WIRE_CHUNK;
        CHECK(send(fd, &request, sizeof(request), MSG_NOSIGNAL) > 0);
        if (i == 0)
            CHECK_EQUAL(ask(fd, nonce, SLOT, SERIAL), -EPIPE);
        else if (i == 1)
            CHECK_EQUAL(ask(fd, nonce, SLOT, SERIAL), -EPROTONOSUPPORT);
        else
            CHECK_EQUAL(ask(fd, nonce, SLOT, SERIAL), -ENOENT);
        close(fd);
    }
    check_fds(server.pid, before);
    check_serves();
}

/* Descriptors that are sent to the server are not taken. */
static void descriptors_are_not_taken(void)
{
    struct server server = start();
    unsigned before = fds_of(server.pid);
    struct vmml_wire_request request = request_for(SLOT);
    struct iovec iov = {&request, sizeof(request)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    int mine = memfd_create("mine", MFD_CLOEXEC);
    int socket = raw_connect(nonce);
    unsigned i;

    memset(&control, 0, sizeof(control));
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &mine, sizeof(mine));
    for (i = 0; i < 20; i++) {
        CHECK(sendmsg(socket, &message, 0) == (ssize_t)sizeof(request));
        check_is_chunk(ask(socket, nonce, SLOT, SERIAL));
    }
    close(socket);
    check_fds(server.pid, before);
}

static void half_way_off(void)
{
    struct server server = start();
    unsigned before = fds_of(server.pid);
    struct vmml_wire_request request = request_for(SLOT);
    unsigned i;

    for (i = 0; i < 200; i++) {
        int fd = raw_connect(nonce);

        CHECK(fd >= 0);
        if (i % 3 > 0)
            CHECK(send(fd, &request, sizeof(request), MSG_NOSIGNAL) > 0);
        if (i % 3 > 1)
            shutdown(fd, SHUT_RDWR);
        close(fd);
    }
    check_fds(server.pid, before);
    check_serves();
}

/* One that asks and asks, and reads no answer. */
static void never_reads(void)
{
    struct server server = start();
    unsigned before = fds_of(server.pid);
    struct vmml_wire_request request = request_for(SLOT);
    int fd = raw_connect(nonce);
    unsigned asked = 0;

    CHECK(fd >= 0);
    while (send(fd, &request, sizeof(request), MSG_NOSIGNAL) > 0)
        CHECK(asked++ < 1000000);
    CHECK(errno == EPIPE || errno == ECONNRESET);
    check_serves();
    check_fds(server.pid, before);
    close(fd);
    check_serves();
}

static void a_thousand_connects(void)
{
    struct server server = start();
    unsigned before = fds_of(server.pid);
    unsigned i;

    for (i = 0; i < 1000; i++)
        check_serves();
    check_fds(server.pid, before);
}

/* More than there are places for: they are told, and the rest is served. */
static void all_at_once(void)
{
    struct server server = start();
    unsigned before = fds_of(server.pid);
    static int sockets[1000];
    unsigned served = 0, refused = 0, i;

    for (i = 0; i < 1000; i++) {
        int fd;

        sockets[i] = connect_to(nonce);
        CHECK(sockets[i] >= 0);
        fd = ask(sockets[i], nonce, SLOT, SERIAL);
        served += fd >= 0;
        refused += fd == -EUSERS;
        close(fd);
    }
    CHECK_EQUAL(served, VMML_SERVER_CLIENTS);
    CHECK_EQUAL(refused, 1000 - VMML_SERVER_CLIENTS);
    check_asleep(server.pid);
    for (i = 0; i < VMML_SERVER_CLIENTS; i++) {
        int fd = ask(sockets[i], nonce, SLOT, SERIAL);

        check_is_chunk(fd);
        close(fd);
    }
    for (i = 0; i < 1000; i++)
        close(sockets[i]);
    check_fds(server.pid, before);
    check_serves();
}

/* ---- an exporter in trouble ---- */

static void no_descriptor_left(void)
{
    struct server server = start();
    int early = connect_to(nonce);
    unsigned i;

    check_is_chunk(ask(early, nonce, SLOT, SERIAL));
    command(&server, 'f');
    for (i = 0; i < 20; i++) {
        int fd = connect_to(nonce);

        CHECK(fd >= 0);
        CHECK_EQUAL(ask(fd, nonce, SLOT, SERIAL), -EMFILE);
        close(fd);
    }
    CHECK_EQUAL(ask(early, nonce, SLOT, SERIAL), -EMFILE);
    check_asleep(server.pid);
    command(&server, 'e');
    check_is_chunk(ask(early, nonce, SLOT, SERIAL));
    check_serves();
}

/* Its limit lowered below what it has open. */
static void limit_below_its_count(void)
{
    struct server server = start();
    struct rlimit low = {1, 4096 - 64};
    struct rlimit before;
    static int sockets[40];
    unsigned i;

    need_root(); /* prlimit(2) of another process */
    for (i = 0; i < 40; i++) {
        sockets[i] = connect_to(nonce);
        check_is_chunk(ask(sockets[i], nonce, SLOT, SERIAL));
    }
    CHECK(prlimit(server.pid, RLIMIT_NOFILE, &low, &before) == 0);
    close(sockets[39]);
    check_asleep(server.pid);
    CHECK(prlimit(server.pid, RLIMIT_NOFILE, &before, NULL) == 0);
    check_serves();
    check_is_chunk(ask(sockets[0], nonce, SLOT, SERIAL));
}

/* The kernel keeps what its poll(2) waits for until that returns. */
static bool nobody_listens(void *arg)
{
    int fd = connect_to(nonce);

    (void)arg;
    close(fd);
    return fd == -ECONNREFUSED;
}

static void application_closes_everything(void)
{
    struct server server = start();
    int early = connect_to(nonce);

    check_is_chunk(ask(early, nonce, SLOT, SERIAL));
    command(&server, 'c');
    CHECK_EQUAL(ask(early, nonce, SLOT, SERIAL), -EPIPE);
    CHECK(lane_wait(nobody_listens, NULL));
    check_asleep(server.pid);
}

/* A child of fork answers nobody, and holds nothing open. */
static void forked_child_is_no_server(void)
{
    struct server server = start();
    struct pollfd end = {.events = 0};
    unsigned before = fds_of(server.pid);
    int socket = connect_to(nonce);

    check_is_chunk(ask(socket, nonce, SLOT, SERIAL));
    command(&server, 's');
    check_is_chunk(ask(socket, nonce, SLOT, SERIAL));
    check_serves();
    command(&server, 'k');
    check_is_chunk(ask(socket, nonce, SLOT, SERIAL));
    check_serves();
    check_fds(server.pid, before + 1);
    kill(server.pid, SIGKILL);
    CHECK(waitpid(server.pid, NULL, 0) == server.pid);
    /* When the child, too, has come so far. */
    end.fd = socket;
    CHECK(poll(&end, 1, LANE_WAIT_MS) == 1 && (end.revents & POLLHUP));
    CHECK_EQUAL(ask(socket, nonce, SLOT, SERIAL), -EPIPE);
    CHECK_EQUAL(connect_to(nonce), -ECONNREFUSED);
}

/* ---- hostile exporters ---- */

static void on_signal(int signal)
{
    (void)signal;
}

/* A signal each 5 ms, which ends every wait (profilers do so). */
static void start_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL,
                             .sigev_signo = SIGUSR1};
    struct itimerspec every = {{0, 5000000}, {0, 5000000}};
    timer_t timer;

    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &every, NULL) == 0);
}

/* It is waited for once; what it says later is the answer to nothing. */
static void never_answers(void)
{
    struct server server = start();
    int socket = connect_to(nonce);
    unsigned patience = 300;
    int status;

    CHECK(kill(server.pid, SIGSTOP) == 0);
    CHECK(waitpid(server.pid, &status, WUNTRACED) == server.pid);
    start_signals();
    CHECK_EQUAL(vmml_client_get(socket, nonce, VMML_WIRE_CHUNK, SLOT, SERIAL,
                                &patience),
                -ETIMEDOUT);
    CHECK_EQUAL(patience, 0);
    CHECK(kill(server.pid, SIGCONT) == 0);
    check_serves(); /* its answer to the first has come by now */
    CHECK_EQUAL(vmml_client_get(socket, nonce, VMML_WIRE_CHUNK, SLOT + 1,
                                SERIAL, &patience),
                -ETIMEDOUT);
}

/* Its queue of connections is full, or its answers are slow. */
static void full_queue(void)
{
    int fd = bind_name();
    unsigned patience = 200;
    int status, i;

    CHECK(listen(fd, 1) == 0);
    for (i = 0; i < 10; i++) {
        status = vmml_client_connect(nonce, &patience);
        if (status < 0)
            break;
    }
    CHECK_EQUAL(status, -ETIMEDOUT);
    CHECK_EQUAL(patience, 0);
}

struct bad_answer {
    uint32_t magic;
    int32_t status;
    size_t length;
    unsigned fds;
    int expected; /* 1: a descriptor */
    bool ends;    /* and the connection is at its end */
};

static const struct bad_answer bad_answers[] = {
    {VMML_WIRE_MAGIC, 0, 8, 1, 1, false},
    {VMML_WIRE_MAGIC, 0, 8, 2, 1, false},
    {VMML_WIRE_MAGIC, 0, 8, 4, 1, false},
    {VMML_WIRE_MAGIC, 0, 8, 200, 1, false},
    {VMML_WIRE_MAGIC, -ENOENT, 8, 0, -ENOENT, false},
    {VMML_WIRE_MAGIC, -ENOENT, 8, 3, -ENOENT, false},
    {VMML_WIRE_MAGIC, 0, 8, 0, -EPROTO, true},
    {VMML_WIRE_MAGIC, 17, 8, 1, -EPROTO, true},
    {VMML_WIRE_MAGIC, -4096, 8, 1, -EPROTO, true},
    {VMML_WIRE_MAGIC, INT32_MIN, 8, 0, -EPROTO, true},
    {VMML_WIRE_MAGIC + 1, 0, 8, 1, -EPROTO, true},
    {VMML_WIRE_MAGIC, 0, 7, 2, -EPROTO, true},
    {VMML_WIRE_MAGIC, 0, 1, 1, -EPROTO, true},
    {VMML_WIRE_MAGIC, 0, 9, 1, -EPROTO, true},
};

static void send_bad(int socket, const struct bad_answer *bad)
{
    uint8_t bytes[64] = {0};
    struct iovec iov = {bytes, bad->length};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(256 * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    unsigned i;

    memcpy(bytes, &bad->magic, 4);
    memcpy(bytes + 4, &bad->status, 4);
    if (bad->fds > 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bad->fds * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(bad->fds * sizeof(int));
        for (i = 0; i < bad->fds; i++)
            memcpy(CMSG_DATA(&control.header) + i * sizeof(int), &shared_file,
                   sizeof(int));
    }
    CHECK(sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)bad->length);
}

static void run_bad_server(const struct bad_answer *bad)
{
    struct vmml_wire_request request;
    int listening = bind_name();
    int fd = accept(listening, NULL, NULL);

    CHECK(fd >= 0);
    while (recv(fd, &request, sizeof(request), 0) == sizeof(request))
        send_bad(fd, bad);
    _exit(0);
}

static int try_connect(void)
{
    int fd;

    do {
        fd = connect_to(nonce);
        usleep(1000);
    } while (fd == -ECONNREFUSED);
    return fd;
}

static void bad_answers_leave_nothing(void)
{
    size_t i;

    shared_file = memfd_create("chunk", MFD_CLOEXEC);
    CHECK(write(shared_file, "chunk", 5) == 5);
    for (i = 0; i < sizeof(bad_answers) / sizeof(bad_answers[0]); i++) {
        const struct bad_answer *bad = &bad_answers[i];
        pid_t pid = fork();
        int socket, fd, status;
        unsigned before;

        if (pid == 0)
            run_bad_server(bad);
        socket = try_connect();
        before = lane_fd_count();
        fd = ask(socket, nonce, SLOT, SERIAL);
        if (bad->expected == 1)
            check_is_chunk(fd);
        else
            CHECK_EQUAL(fd, bad->expected);
        CHECK_EQUAL(lane_fd_count(), before + (fd >= 0));
        if (bad->ends)
            CHECK_EQUAL(ask(socket, nonce, SLOT, SERIAL), -EPIPE);
        if (fd >= 0)
            close(fd);
        close(socket);
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
}

/* The importer's own limit is no fault of the exporter's. */
static void importer_has_no_descriptor_left(void)
{
    struct rlimit limit = {2000, 2000};
    int socket;

    start();
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    socket = connect_to(nonce);
    take_all_descriptors();
    CHECK_EQUAL(ask(socket, nonce, SLOT, SERIAL), -EMFILE);
    give_back_descriptors();
    check_is_chunk(ask(socket, nonce, SLOT, SERIAL));
}

/* ---- calls of the client's that fail ---- */

enum call { SEND, RECVMSG, POLL, CLOCK };

/* The next `times` calls of this one fail. */
static struct {
    enum call call;
    int error;
    unsigned times;
} fault;

static bool fails(enum call call)
{
    if (fault.times == 0 || fault.call != call)
        return false;
    fault.times--;
    errno = fault.error;
    return true;
}

/* Where the linker looks for them also on behalf of libraries. */
#pragma GCC visibility push(default)

ssize_t __real_send(int fd, const void *data, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t size, int flags);

ssize_t __wrap_send(int fd, const void *data, size_t size, int flags)
{
    return fails(SEND) ? -1 : __real_send(fd, data, size, flags);
}

ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    return fails(RECVMSG) ? -1 : __real_recvmsg(fd, message, flags);
}

int __real_poll(struct pollfd *set, nfds_t count, int ms);
int __wrap_poll(struct pollfd *set, nfds_t count, int ms);

int __wrap_poll(struct pollfd *set, nfds_t count, int ms)
{
    return fails(POLL) ? -1 : __real_poll(set, count, ms);
}

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    return fails(CLOCK) ? -1 : __real_clock_gettime(clock, time);
}

#pragma GCC visibility pop

/* A failed call costs its own question. The next one has its own answer, on a
 * new connection where this one is at its end, and patience is left. */
static void failed_calls_cost_one_question(void)
{
    static const struct {
        enum call call;
        int error;
        unsigned times;
    } cases[] = {
        {SEND, EINTR, 3},      {SEND, EPIPE, 1},
        {SEND, ECONNRESET, 1}, {SEND, ENOBUFS, 1},
        {RECVMSG, EINTR, 3},   {RECVMSG, ECONNRESET, 1},
        {RECVMSG, ENOMEM, 1},  {RECVMSG, ECONNRESET, 2},
        {POLL, EINTR, 3},      {POLL, ENOMEM, 1},
        {CLOCK, EINVAL, 1},    {CLOCK, EINVAL, 2},
        {CLOCK, EINVAL, 1000},
    };
    size_t i;

    start();
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned patience = VMML_CLIENT_PATIENCE_MS;
        int socket = vmml_client_connect(nonce, &patience);
        unsigned before = lane_fd_count();
        int fd;

        fault.call = cases[i].call;
        fault.error = cases[i].error;
        fault.times = cases[i].times;
        fd = vmml_client_get(socket, nonce, VMML_WIRE_CHUNK, SLOT, SERIAL,
                             &patience);
        fault.times = 0;
        if (fd >= 0) {
            check_is_chunk(fd);
            close(fd);
        }
        CHECK(patience > VMML_CLIENT_PATIENCE_MS / 2);
        fd = vmml_client_get(socket, nonce, VMML_WIRE_CHUNK, SLOT + 1, SERIAL,
                             &patience);
        CHECK(fd == -ENOENT || fd == -EPIPE);
        CHECK_EQUAL(lane_fd_count(), before);
        close(socket);
        check_serves();
    }
}

/* More descriptors under way than a user may have: told, and no end. */
static void run_as_poor_user(void)
{
    struct vmml_wire_request request = request_for(SLOT);
    unsigned i, got = 0, refused = 0;
    int socket;

    socket = connect_to(nonce);
    CHECK(socket >= 0);
    for (i = 0; i < 200; i++)
        CHECK(send(socket, &request, sizeof(request), 0) > 0);
    usleep(200000);
    for (i = 0; i < 200; i++) {
        unsigned patience = 5000;
        /* One question more each time: the answers are in order. */
        int fd = vmml_client_get(socket, nonce, VMML_WIRE_CHUNK, SLOT, SERIAL,
                                 &patience);

        got += fd >= 0;
        refused += fd == -ETOOMANYREFS;
        close(fd);
    }
    CHECK_EQUAL(got + refused, 200);
    CHECK(refused > 0);
}

static int poor_user(void)
{
    run_as_poor_user();
    return 0;
}

static void too_many_under_way(void)
{
    struct server server;

    need_root();
    server = start_as(nonce, OTHER_USER);
    command(&server, 'l');
    CHECK_EQUAL(as_user(OTHER_USER, poor_user), 0);
}

int main(int argc, char **argv)
{
    static const struct lane_test tests[] = {
        LANE_TEST(gives_what_is_asked),
        LANE_TEST(two_on_one_host),
        LANE_TEST(name_tells_nothing),
        LANE_TEST(another_user_gets_nothing),
        LANE_TEST(the_overflow_user_is_nobody),
        LANE_TEST(a_taken_name_is_noticed),
        LANE_TEST(garbage_is_survived),
        LANE_TEST(descriptors_are_not_taken),
        LANE_TEST(half_way_off),
        LANE_TEST(never_reads),
        LANE_TEST(a_thousand_connects),
        LANE_TEST(all_at_once),
        LANE_TEST(no_descriptor_left),
        LANE_TEST(limit_below_its_count),
        LANE_TEST(application_closes_everything),
        LANE_TEST(forked_child_is_no_server),
        LANE_TEST(never_answers),
        LANE_TEST(full_queue),
        LANE_TEST(bad_answers_leave_nothing),
        LANE_TEST(importer_has_no_descriptor_left),
        LANE_TEST(too_many_under_way),
        LANE_TEST(failed_calls_cost_one_question),
    };

    CHECK(pthread_atfork(NULL, NULL, choose_nonce) == 0);
    return lane_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
