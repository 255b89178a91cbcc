/*
 * Another thread of the importer captures a CUDA graph in global mode while
 * vmmlane maps and unmaps (D8). The simulated driver captures nothing: there
 * tests/limits looks at the mode of each call.
 */
#include "client.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { LENGTH = 1 << 20 };

static struct {
    CUresult (*begin)(CUstream, CUstreamCaptureMode);
    CUresult (*end)(CUstream, CUgraph *);
    CUcontext context;
    CUdeviceptr from, to;
    atomic_bool captures;
    atomic_bool stop;
    CUresult result;
} capture;

static void *capture_copy(void *arg)
{
    CUgraph graph = NULL;
    CUstream stream;

    CU_MUST(cuCtxSetCurrent(capture.context));
    CU_MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_MUST(capture.begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_MUST(cuMemcpyDtoDAsync(capture.to, capture.from, LENGTH, stream));
    atomic_store(&capture.captures, true);
    while (!atomic_load(&capture.stop))
        usleep(1000);
    capture.result =
        cuMemcpyDtoDAsync(capture.to, capture.from, LENGTH, stream);
    if (capture.result == CUDA_SUCCESS)
        capture.result = capture.end(stream, &graph);
    return arg;
}

/* Keys of a window that grows and shrinks, and the watcher's turn. */
static struct key change_window(struct remote *remote)
{
    struct key key;

    remote_grow(remote, 4, false);
    key = key_make_all(remote);
    remote_unmap(remote, 0, 2, false);
    sleep(1);
    return key;
}

void scenario_capture(void)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(opt.kind, seed);
    struct key old = key_make_all(&remote);
    struct key key;
    pthread_t thread;
    uint64_t at;

    report_detail(&remote, "get", key_get(&old, old.offset, old.length, seed),
                  "before");
    *(void **)&capture.begin = dlsym(RTLD_DEFAULT, "cuStreamBeginCapture_v2");
    *(void **)&capture.end = dlsym(RTLD_DEFAULT, "cuStreamEndCapture");
    if (capture.begin == NULL || capture.end == NULL) {
        printf("state %s: this driver captures nothing\n", opt.scenario);
        atomic_store(&capture.stop, true);
    } else {
        CU_MUST(cuCtxGetCurrent(&capture.context));
        CU_MUST(cuMemAlloc(&capture.from, LENGTH));
        CU_MUST(cuMemAlloc(&capture.to, LENGTH));
        if (pthread_create(&thread, NULL, capture_copy, NULL) != 0)
            die(EXIT_SETUP, "no thread");
        while (!atomic_load(&capture.captures))
            usleep(1000);
    }
    key = change_window(&remote);
    if (!atomic_exchange(&capture.stop, true)) {
        pthread_join(thread, NULL);
        printf("state %s: the capture ended with %s\n", opt.scenario,
               cu_name(capture.result));
        expect("capture-succeeds", capture.result == CUDA_SUCCESS);
    }
    at = chunks_end(&remote, remote.chunk_count - 5);
    remote_fill(&remote, at, remote.offset + remote.length - at, seed);
    report_detail(&remote, "get",
                  key_get(&key, at, remote.offset + remote.length - at, seed),
                  "grown-meanwhile");
    key_must_fail(&old, remote.chunks[0].offset, remote.chunks[0].size,
                  "unmapped-meanwhile");
    key_destroy(&old);
    key_destroy(&key);
    remote_free(&remote);
}
