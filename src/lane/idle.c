/* SPDX-License-Identifier: MIT */
/*
 * Closing late: a chunk that no registration covers any more keeps its entry
 * for VMML_IDLE_SECONDS, because a job that registers per message would
 * otherwise export per message. One thread, there only while something waits.
 */
#include "lane/state.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

/* A chunk by address, not by pointer: it may be gone by then. */
struct idle {
    struct vmml_window *window; /* a reference */
    uint64_t address;
    uint64_t ticket;
    struct timespec due;
};

/* A ring: deadlines only grow. Protected by the exporter's lock. */
static struct {
    struct idle *ring;
    size_t capacity; /* a power of two, or 0 */
    size_t first;
    size_t count;
    uint64_t tickets; /* given out */
    bool running;
} idle;

static struct timespec now(void)
{
    struct timespec time = {0, 0};

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time;
}

static bool is_due(const struct timespec *due)
{
    struct timespec time = now();

    return time.tv_sec > due->tv_sec ||
           (time.tv_sec == due->tv_sec && time.tv_nsec >= due->tv_nsec);
}

/* The chunk that an entry is about; NULL: none any more, or a later entry is
 * about it. */
static struct vmml_chunk *chunk_of(const struct idle *entry)
{
    struct vmml_chunk *chunk;

    if (entry->window->retired)
        return NULL;
    chunk = vmml_window_chunk_at(entry->window, entry->address);
    return chunk != NULL && chunk->idle == entry->ticket ? chunk : NULL;
}

static void expire(const struct idle *entry, struct vmml_fd_list *fds)
{
    struct vmml_window *window = entry->window;
    struct vmml_chunk *chunk = chunk_of(entry);

    if (chunk == NULL)
        return;
    chunk->idle = 0;
    if (chunk->state == VMML_EXPORT_LIVE &&
        !vmml_window_is_covered(window, chunk))
        vmml_chunk_kill(window, chunk, fds);
}

/* Close what is due. Returns false when nothing waits any more. */
static bool close_due(struct timespec *next)
{
    struct vmml_fd_list fds;
    bool more;

    vmml_fd_list_init(&fds);
    pthread_mutex_lock(&vmml_exporter.lock);
    while (idle.count > 0 && is_due(&idle.ring[idle.first].due)) {
        struct idle entry = idle.ring[idle.first];

        idle.first = (idle.first + 1) & (idle.capacity - 1);
        idle.count--;
        expire(&entry, &fds);
        vmml_window_release(entry.window);
    }
    more = idle.count > 0;
    if (more)
        *next = idle.ring[idle.first].due;
    idle.running = more;
    pthread_mutex_unlock(&vmml_exporter.lock);
    vmml_fd_list_close(&fds);
    return more;
}

static void *idle_thread(void *arg)
{
    struct timespec next;

    (void)arg;
    while (close_due(&next))
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    return NULL;
}

static bool start_thread(void)
{
    int error = vmml_thread_start(idle_thread);

    if (error != 0)
        vmml_warn_once("no thread for closing idle descriptors (error %d): "
                       "they are closed at once",
                       error);
    return error == 0;
}

/* A chunk that is registered again and again leaves an entry each time. */
static void drop_outdated(void)
{
    size_t kept = 0;
    size_t i;

    for (i = 0; i < idle.count; i++) {
        struct idle *entry = &idle.ring[(idle.first + i) & (idle.capacity - 1)];

        if (chunk_of(entry) == NULL)
            vmml_window_release(entry->window);
        else
            idle.ring[(idle.first + kept++) & (idle.capacity - 1)] = *entry;
    }
    idle.count = kept;
}

static bool grow_ring(void)
{
    size_t capacity = idle.capacity ? 2 * idle.capacity : 64;
    struct idle *ring;
    size_t i;

    if (idle.count < idle.capacity)
        return true;
    drop_outdated();
    if (idle.count < idle.capacity / 2)
        return true;
    ring = malloc(capacity * sizeof(*ring));
    if (ring == NULL)
        return idle.count < idle.capacity;
    for (i = 0; i < idle.count; i++)
        ring[i] = idle.ring[(idle.first + i) & (idle.capacity - 1)];
    free(idle.ring);
    idle.ring = ring;
    idle.capacity = capacity;
    idle.first = 0;
    return true;
}

static bool push(struct vmml_window *window, struct vmml_chunk *chunk)
{
    struct idle *entry;

    if (!grow_ring())
        return false;
    entry = &idle.ring[(idle.first + idle.count) & (idle.capacity - 1)];
    entry->window = window;
    entry->address = chunk->address;
    entry->ticket = ++idle.tickets;
    entry->due = now();
    entry->due.tv_sec += VMML_IDLE_SECONDS;
    window->refs++;
    chunk->idle = entry->ticket;
    idle.count++;
    return true;
}

void vmml_idle_add(struct vmml_window *window, uint64_t from, uint64_t to,
                   bool anew)
{
    struct vmml_chunk *chunk;
    struct vmml_fd_list fds;

    vmml_fd_list_init(&fds);
    while ((chunk = vmml_window_next_chunk(window, &from, to)) != NULL) {
        if ((chunk->idle != 0 && !anew) || chunk->state != VMML_EXPORT_LIVE ||
            vmml_window_is_covered(window, chunk))
            continue;
        if (!push(window, chunk))
            vmml_chunk_kill(window, chunk, &fds);
    }
    if (idle.count > 0 && !idle.running) {
        idle.running = start_thread();
        while (!idle.running && idle.count > 0) {
            struct idle entry = idle.ring[idle.first];

            idle.first = (idle.first + 1) & (idle.capacity - 1);
            idle.count--;
            expire(&entry, &fds);
            vmml_window_release(entry.window);
        }
    }
    vmml_fd_list_close(&fds);
}

void vmml_idle_forget(void)
{
    idle.ring = NULL;
    idle.capacity = 0;
    idle.first = 0;
    idle.count = 0;
    idle.running = false;
}
