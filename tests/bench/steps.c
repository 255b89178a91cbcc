/* SPDX-License-Identifier: MIT */
#include "steps.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* syscall, and the breakpoint that begins and ends a count. */
#define OPCODE_SYSCALL    0x050f
#define OPCODE_BREAKPOINT 0xcc

enum owner { SHIM, LIBC, DRIVER, REST };

struct area {
    uint64_t from, to;
    enum owner owner;
};

#define AREAS_MAX 4096

static struct area areas[AREAS_MAX];
static size_t area_count;

static bool untraced;

/* Written by the tracer. */
static struct steps *shared;

static enum owner owner_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash == NULL ? path : slash + 1;

    if (strncmp(file, "libvmmlane", 10) == 0)
        return SHIM;
    if (strncmp(file, "libcuda.so", 10) == 0)
        return DRIVER;
    if (strncmp(file, "libc.so", 7) == 0 || strncmp(file, "ld-linux", 8) == 0 ||
        strcmp(file, "[vdso]") == 0)
        return LIBC;
    return REST;
}

/* Code of the traced process. */
static void read_areas(pid_t pid)
{
    char line[4352], path[4096], flags[5];
    unsigned long from, to;
    FILE *maps;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    maps = fopen(path, "re");
    area_count = 0;
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        path[0] = '\0';
        if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %4095s", &from, &to, flags,
                   path) < 3 ||
            flags[2] != 'x' || area_count == AREAS_MAX)
            continue;
        areas[area_count++] = (struct area){from, to, owner_of(path)};
    }
    if (maps != NULL)
        fclose(maps);
}

static enum owner owner_at(uint64_t address)
{
    static size_t last;
    size_t i;

    if (last < area_count && address >= areas[last].from &&
        address < areas[last].to)
        return areas[last].owner;
    for (i = 0; i < area_count; i++)
        if (address >= areas[i].from && address < areas[i].to) {
            last = i;
            return areas[i].owner;
        }
    return REST;
}

static void count_one(uint64_t address, long code)
{
    uint64_t *const of[] = {
        [SHIM] = &shared->shim,
        [LIBC] = &shared->libc,
        [DRIVER] = &shared->driver,
        [REST] = &shared->rest,
    };

    (*of[owner_at(address)])++;
    if ((code & 0xffff) == OPCODE_SYSCALL)
        shared->system_calls++;
}

static uint64_t address_now(pid_t pid)
{
    return (uint64_t)ptrace(PTRACE_PEEKUSER, pid,
                            offsetof(struct user, regs.rip), NULL);
}

static bool wait_for(pid_t pid, int *status)
{
    pid_t got;

    do
        got = waitpid(pid, status, 0);
    while (got < 0 && errno == EINTR);
    return got == pid && WIFSTOPPED(*status);
}

/* From behind the first breakpoint to the second, which is stepped over.
 * A signal that comes meanwhile is passed on. */
static bool count(pid_t pid, int *status)
{
    long signal_number = 0;
    uint64_t at;
    long code;

    memset(shared, 0, sizeof(*shared));
    read_areas(pid);
    for (;;) {
        at = address_now(pid);
        errno = 0;
        code = ptrace(PTRACE_PEEKTEXT, pid, (void *)at, NULL);
        if (errno != 0)
            return false;
        if ((code & 0xff) == OPCODE_BREAKPOINT)
            return ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, regs.rip),
                          at + 1) == 0;
        count_one(at, code);
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, signal_number) != 0 ||
            !wait_for(pid, status))
            return false;
        signal_number = WSTOPSIG(*status) == SIGTRAP ? 0 : WSTOPSIG(*status);
    }
}

static int trace(pid_t pid)
{
    long signal_number = 0;
    int status = 0;

    while (wait_for(pid, &status)) {
        signal_number = WSTOPSIG(status);
        if (signal_number == SIGTRAP) {
            signal_number = 0;
            if (!count(pid, &status))
                break;
        }
        if (ptrace(PTRACE_CONT, pid, NULL, signal_number) != 0)
            break;
    }
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (WIFSIGNALED(status))
        fprintf(stderr, "steps: ended by signal %d\n", WTERMSIG(status));
    else
        kill(pid, SIGKILL);
    return 1;
}

int steps_run(int (*run)(void *arg), void *arg)
{
    pid_t pid;

    /* For a profiler, or strace. */
    if (getenv("BENCH_UNTRACED") != NULL) {
        untraced = true;
        return run(arg);
    }
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    pid = fork();
    if (pid > 0)
        return trace(pid);
    if (pid < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return 1;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        perror("no instructions can be counted: ptrace");
        _exit(77);
    }
    exit(run(arg));
}

__attribute__((noinline)) void steps_count(void (*run)(void *arg), void *arg,
                                           struct steps *steps)
{
    memset(steps, 0, sizeof(*steps));
    if (untraced) {
        run(arg);
        return;
    }
    __asm__ volatile("int3" ::: "memory");
    run(arg);
    __asm__ volatile("int3" ::: "memory");
    *steps = *shared;
}
