/* SPDX-License-Identifier: MIT */
#include "preload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"

static void *driver;
static __typeof__(cuMemGetAddressRange_v2) *range;
static atomic_bool stop;
static atomic_ulong rounds;

static void *call_hooks(void *unused)
{
    while (!atomic_load(&stop)) {
        CUdeviceptr base;
        size_t size;

        CHECK_INT(range(&base, &size, 0x5123), CUDA_SUCCESS);
        CHECK(preload_symbol(driver, "cuMemMap") != NULL);
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

/* The fake driver ignores arguments, so do the hooks that pass on. */
static void call_every_hook(void)
{
    __typeof__(cuIpcOpenMemHandle_v2) *open_handle;
    CUipcMemHandle handle = {{0}};

    for (const struct fake_function *f = preload_functions(driver);
         f->name != NULL; f++) {
        long (*function)(long, long, long, long, long, long, long, long) =
            preload_symbol(driver, f->name);

        /* That one takes a structure by value. */
        if (f->hooked && strcmp(f->name, "cuIpcOpenMemHandle_v2") != 0)
            function(0, 0, 0, 0, 0, 0, 0, 0);
    }
    open_handle = preload_symbol(driver, "cuIpcOpenMemHandle_v2");
    open_handle(NULL, handle, 0);
}

static void fork_one(void)
{
    int status = 0;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        alarm(120); /* a child that hangs ends, and fails the case */
        call_every_hook();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
}

/* Children of a process whose other thread is inside a hook. */
void case_fork(void)
{
    pthread_t thread;

    driver = preload_open("libcuda.so.1");
    range = preload_symbol(driver, "cuMemGetAddressRange_v2");
    CHECK_INT(pthread_create(&thread, NULL, call_hooks, NULL), 0);
    while (atomic_load(&rounds) == 0)
        usleep(1000);
    for (int i = 0; i < 50; i++)
        fork_one();
    atomic_store(&stop, true);
    CHECK_INT(pthread_join(thread, NULL), 0);
}

/* A warning has nowhere to go: VMMLANE_RANGE is set to nonsense. */
void case_closed_stderr(void)
{
    CUdeviceptr base = 0;
    int pair[2];

    driver = preload_open("libcuda.so.1");
    close(STDERR_FILENO);
    range = preload_symbol(driver, "cuMemGetAddressRange_v2");
    CHECK_INT(range(&base, NULL, 0x5123), CUDA_SUCCESS);
    CHECK_INT(base, 0x5000);
    /* Nor may it end the process where stderr is a pipe without a reader. */
    CHECK_INT(pipe(pair), 0);
    close(pair[0]);
    if (pair[1] != STDERR_FILENO)
        CHECK_INT(dup2(pair[1], STDERR_FILENO), STDERR_FILENO);
    CHECK_INT(range(&base, NULL, 0x6123), CUDA_SUCCESS);
    CHECK_INT(base, 0x6000);
}
