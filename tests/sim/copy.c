/*
 * Copies and sets: what is refused at the call, and the work of a stream's
 * thread. A copy goes in slices, each of which looks the mappings up anew, as
 * an engine that walks page tables does.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static size_t slice = 256 << 10;
static unsigned slice_delay_us;

/* ---- holding copies ---- */

static pthread_mutex_t hold_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hold_cond = PTHREAD_COND_INITIALIZER;
static int holding;
static unsigned held;

SIM_EXPORT void sim_hold_copies(int hold)
{
    pthread_mutex_lock(&hold_lock);
    holding = hold;
    pthread_cond_broadcast(&hold_cond);
    pthread_mutex_unlock(&hold_lock);
}

SIM_EXPORT int sim_wait_held(unsigned n, unsigned timeout_ms)
{
    struct timespec until;
    int result = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&hold_lock);
    while (held < n && result == 0) {
        result = pthread_cond_timedwait(&hold_cond, &hold_lock, &until);
    }
    pthread_mutex_unlock(&hold_lock);
    return held >= n ? 0 : -1;
}

SIM_EXPORT void sim_set_copy_slice(size_t bytes)
{
    __atomic_store_n(&slice, bytes == 0 ? 1 : bytes, __ATOMIC_RELAXED);
}

SIM_EXPORT void sim_set_slice_delay(unsigned us)
{
    __atomic_store_n(&slice_delay_us, us, __ATOMIC_RELAXED);
}

static void pace(void)
{
    unsigned us = __atomic_load_n(&slice_delay_us, __ATOMIC_RELAXED);
    struct timespec delay = {us / 1000000, (long)(us % 1000000) * 1000};

    if (us > 0) {
        nanosleep(&delay, NULL);
    }
    pthread_mutex_lock(&hold_lock);
    if (holding) {
        held++;
        pthread_cond_broadcast(&hold_cond);
        while (holding) {
            pthread_cond_wait(&hold_cond, &hold_lock);
        }
        held--;
    }
    pthread_mutex_unlock(&hold_lock);
}

/* ---- checks at the call ---- */

/* An address that names no memory of the driver's is taken for the program's
 * own where the call allows that, a hole in a reservation too: the process
 * then dies of SIGSEGV, as with the real driver. */
static bool check_side(CUdeviceptr ptr, size_t n, bool device_only,
                       CUdevice dev, bool write, bool *mapped)
{
    CUdeviceptr at = ptr;
    struct sim_map *map;

    *mapped = sim_visible_map(ptr) != NULL;
    if (!*mapped) {
        return !device_only;
    }
    while (at < ptr + n) {
        map = sim_visible_map(at);
        if (map == NULL || !sim_map_allows(map, dev, write)) {
            return false;
        }
        at = map->node.start + map->node.size;
    }
    return true;
}

CUresult sim_copy_check(struct sim_copy *copy, CUdevice dev)
{
    if (!check_side(copy->dst, copy->n, copy->dst_device, dev, true,
                    &copy->dst_mapped) ||
        (!copy->set && !check_side(copy->src, copy->n, copy->src_device, dev,
                                   false, &copy->src_mapped))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- one side of a slice ---- */

struct side {
    char *host;
    size_t n;
    struct sim_phys *phys; /* NULL: pageable host memory */
    CUdeviceptr at;
    uint64_t buffer_id;
};

static bool side_open(struct side *side, CUdeviceptr at, size_t n, bool device,
                      CUdevice dev, bool write)
{
    struct sim_map *map = device ? sim_map_at(at) : NULL;
    size_t left;

    memset(side, 0, sizeof(*side));
    side->at = at;
    side->n = n;
    if (!device) {
        side->host = (char *)(uintptr_t)at;
        return true;
    }
    if (map == NULL || !sim_map_allows(map, dev, write)) {
        return false;
    }
    left = map->node.size - (size_t)(at - map->node.start);
    side->n = left < n ? left : n;
    side->host = map->phys->host + (at - map->node.start);
    side->phys = map->phys;
    side->phys->pins++;
    side->buffer_id = map->buffer_id;
    return true;
}

/* False where the memory was unmapped while it was used. */
static bool side_close(struct side *side)
{
    struct sim_map *map;

    if (side->phys == NULL) {
        return true;
    }
    map = sim_map_at(side->at);
    side->phys->pins--;
    sim_phys_check(side->phys);
    return map != NULL && map->buffer_id == side->buffer_id;
}

/* ---- the work ---- */

static void fill(char *dst, size_t n, const struct sim_copy *copy,
                 uint64_t offset)
{
    unsigned char bytes[4];
    size_t i;

    if (copy->width == 1) {
        memset(dst, (int)copy->pattern, n);
        return;
    }
    memcpy(bytes, &copy->pattern, sizeof(bytes));
    for (i = 0; i < n; i++) {
        dst[i] = (char)bytes[(offset + i) % copy->width];
    }
}

/* Does up to a slice from offset on; *done says how much. */
static CUresult run_slice(CUdevice dev, const struct sim_copy *copy,
                          size_t offset, size_t *done)
{
    size_t n = __atomic_load_n(&slice, __ATOMIC_RELAXED);
    struct side dst, src;
    bool good;

    n = copy->n - offset < n ? copy->n - offset : n;
    sim_lock();
    if (!side_open(&dst, copy->dst + offset, n, copy->dst_mapped, dev, true)) {
        sim_unlock();
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (copy->set) {
        memset(&src, 0, sizeof(src));
        src.n = n;
    } else if (!side_open(&src, copy->src + offset, n, copy->src_mapped, dev,
                          false)) {
        side_close(&dst);
        sim_unlock();
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    sim_unlock();

    n = dst.n < src.n ? dst.n : src.n;
    if (copy->set) {
        fill(dst.host, n, copy, offset);
    } else {
        memmove(dst.host, src.host, n);
    }
    pace();
    *done = n;

    sim_lock();
    good = side_close(&dst);
    good = side_close(&src) && good;
    sim_unlock();
    return good ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult sim_copy_run(CUdevice dev, const struct sim_copy *copy)
{
    CUresult result = CUDA_SUCCESS;
    size_t offset = 0, done;

    while (offset < copy->n && result == CUDA_SUCCESS) {
        result = run_slice(dev, copy, offset, &done);
        if (result == CUDA_SUCCESS) {
            offset += done;
        }
    }
    return result;
}

/* ---- entry points ---- */

static CUresult copy_call(CUdeviceptr dst, bool dst_device, CUdeviceptr src,
                          bool src_device, size_t n, CUstream stream, bool wait)
{
    struct sim_copy copy = {
        .dst = dst,
        .src = src,
        .n = n,
        .dst_device = dst_device,
        .src_device = src_device,
    };

    return n == 0 ? CUDA_SUCCESS : sim_stream_copy(stream, &copy, wait);
}

CUresult sim_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return copy_call(dst, false, src, false, n, NULL, true);
}

CUresult sim_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n,
                           CUstream stream)
{
    return copy_call(dst, false, src, false, n, stream, false);
}

CUresult sim_cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
    return copy_call(dst, true, (uintptr_t)src, false, n, NULL, true);
}

CUresult sim_cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
    return copy_call((uintptr_t)dst, false, src, true, n, NULL, true);
}

CUresult sim_cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return copy_call(dst, true, src, true, n, NULL, true);
}

CUresult sim_cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n,
                                  CUstream stream)
{
    return copy_call(dst, true, (uintptr_t)src, false, n, stream, false);
}

CUresult sim_cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n,
                                  CUstream stream)
{
    return copy_call((uintptr_t)dst, false, src, true, n, stream, false);
}

CUresult sim_cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n,
                                  CUstream stream)
{
    return copy_call(dst, true, src, true, n, stream, false);
}

static CUresult check_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                            size_t count)
{
    CUresult result = CUDA_SUCCESS;
    size_t i;

    sim_lock();
    for (i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct sim_copy copy = {.dst = dsts[i], .src = srcs[i], .n = sizes[i]};

        result = sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE
                               : sim_copy_check(&copy, sim_ctx_current()->dev);
    }
    sim_unlock();
    return result;
}

CUresult sim_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs,
                                   size_t *sizes, size_t count,
                                   CUmemcpyAttributes *attrs, size_t *attr_ids,
                                   size_t nattrs, CUstream stream)
{
    CUresult result;
    size_t i;

    if (dsts == NULL || srcs == NULL || sizes == NULL || count == 0 ||
        attrs == NULL || attr_ids == NULL || nattrs == 0 || nattrs > count ||
        stream == NULL || stream == CU_STREAM_LEGACY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = check_batch(dsts, srcs, sizes, count);
    for (i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result =
            copy_call(dsts[i], false, srcs[i], false, sizes[i], stream, false);
    }
    return result;
}

CUresult sim_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs,
                                size_t *sizes, size_t count,
                                CUmemcpyAttributes *attrs, size_t *attr_ids,
                                size_t nattrs, size_t *fail, CUstream stream)
{
    CUresult result = sim_cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs,
                                                attr_ids, nattrs, stream);

    if (fail != NULL && result != CUDA_SUCCESS) {
        *fail = SIZE_MAX; /* no copy was begun */
    }
    return result;
}

static CUresult set_call(CUdeviceptr dst, unsigned pattern, unsigned width,
                         size_t count, CUstream stream, bool wait)
{
    struct sim_copy copy = {
        .dst = dst,
        .n = count * width,
        .set = true,
        .pattern = pattern,
        .width = width,
        .dst_device = true,
    };

    if (dst % width != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return count == 0 ? CUDA_SUCCESS : sim_stream_copy(stream, &copy, wait);
}

CUresult sim_cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n)
{
    return set_call(dst, value, 1, n, NULL, true);
}

CUresult sim_cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t n)
{
    return set_call(dst, value, 4, n, NULL, true);
}

CUresult sim_cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n,
                             CUstream stream)
{
    return set_call(dst, value, 1, n, stream, false);
}

CUresult sim_cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t n,
                              CUstream stream)
{
    return set_call(dst, value, 4, n, stream, false);
}

/* ---- per-thread default stream forms ---- */

CUresult sim_cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t n,
                                CUstream stream)
{
    return sim_cuMemcpyAsync(dst, src, n, sim_per_thread_stream(stream));
}

CUresult sim_cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dst, const void *src,
                                       size_t n, CUstream stream)
{
    return sim_cuMemcpyHtoDAsync_v2(dst, src, n, sim_per_thread_stream(stream));
}

CUresult sim_cuMemcpyDtoHAsync_v2_ptsz(void *dst, CUdeviceptr src, size_t n,
                                       CUstream stream)
{
    return sim_cuMemcpyDtoHAsync_v2(dst, src, n, sim_per_thread_stream(stream));
}

CUresult sim_cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dst, CUdeviceptr src,
                                       size_t n, CUstream stream)
{
    return sim_cuMemcpyDtoDAsync_v2(dst, src, n, sim_per_thread_stream(stream));
}

CUresult sim_cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs,
                                        size_t *sizes, size_t count,
                                        CUmemcpyAttributes *attrs,
                                        size_t *attr_ids, size_t nattrs,
                                        CUstream stream)
{
    return sim_cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attr_ids,
                                     nattrs, sim_per_thread_stream(stream));
}

CUresult sim_cuMemsetD8Async_ptsz(CUdeviceptr dst, unsigned char value,
                                  size_t n, CUstream stream)
{
    return sim_cuMemsetD8Async(dst, value, n, sim_per_thread_stream(stream));
}

CUresult sim_cuMemsetD32Async_ptsz(CUdeviceptr dst, unsigned int value,
                                   size_t n, CUstream stream)
{
    return sim_cuMemsetD32Async(dst, value, n, sim_per_thread_stream(stream));
}
