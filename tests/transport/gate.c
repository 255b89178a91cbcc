/* SPDX-License-Identifier: MIT */
#include "gate.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define MAX_CALLS  16
#define AT(member) ((unsigned)offsetof(struct seccomp_data, member))

#ifdef __x86_64__
static const int registers[5] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8};
#define RESULT(context)      ((context)->uc_mcontext.gregs[REG_RAX])
#define ARGUMENT(context, i) ((context)->uc_mcontext.gregs[registers[i]])
#else
#define RESULT(context)      ((context)->uc_mcontext.regs[0])
#define ARGUMENT(context, i) ((context)->uc_mcontext.regs[i])
#endif

unsigned long gate_arguments[5];

static atomic_uint counted;

static void install(struct sock_filter *code, size_t length)
{
    struct sock_fprog program = {(unsigned short)length, code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0)
        return;
    perror("seccomp(2)");
    _exit(77);
}

/* Load the number; for each call: "is it this one? then `action`". */
static void filter(const long *calls, size_t count, unsigned long first,
                   unsigned action)
{
    struct sock_filter code[3 * MAX_CALLS + 4];
    size_t length = 0;
    size_t i;

    if (count > MAX_CALLS)
        abort();
    if (first != 0) {
        /* Low word, little-endian. */
        code[length++] =
            (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, AT(args[0]));
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                      (unsigned)first, 1, 0);
        code[length++] =
            (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[length++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, AT(nr));
    for (i = 0; i < count; i++) {
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                      (unsigned)calls[i], 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    }
    code[length++] =
        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    install(code, length);
}

void gate_deny(const long *calls, size_t count, int error)
{
    filter(calls, count, 0, SECCOMP_RET_ERRNO | (unsigned)error);
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
    int i;

    (void)signal;
    (void)info;
    for (i = 0; i < 5; i++)
        gate_arguments[i] = (unsigned long)ARGUMENT((ucontext_t *)context, i);
    atomic_fetch_add(&counted, 1);
    RESULT((ucontext_t *)context) = 0;
}

void gate_count(const long *calls, size_t count, unsigned long first)
{
    struct sigaction action = {.sa_sigaction = on_trap,
                               .sa_flags = SA_SIGINFO | SA_NODEFER};

    atomic_store(&counted, 0);
    if (sigaction(SIGSYS, &action, NULL) != 0)
        abort();
    filter(calls, count, first, SECCOMP_RET_TRAP);
}

unsigned gate_counted(void)
{
    return atomic_load(&counted);
}

long gate_number(const char *name)
{
    static const struct {
        const char *name;
        long number;
    } calls[] = {
        {"pidfd_open", SYS_pidfd_open},
        {"pidfd_getfd", SYS_pidfd_getfd},
        {"kill", SYS_kill},
        {"ptrace", SYS_ptrace},
        {"prctl", SYS_prctl},
        {"accept4", SYS_accept4},
        {"socket", SYS_socket},
        {"membarrier", SYS_membarrier},
    };
    size_t i;

    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].name, name) == 0)
            return calls[i].number;
    return -1;
}
