/* SPDX-License-Identifier: MIT */
#include "create/origins.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fork.h"

/* Slots; powers of two. 2^21 slots are 32 MiB, and 1.5 million values. */
#define SLOTS_MIN (1u << 12)
#define SLOTS_MAX (1u << 21)

/* Open addressing, linear probing. A slot once used stays in its chain, with
 * its origin unknown, until the table is made anew. */
struct slot {
    uint64_t handle;
    uint32_t origin;
    uint32_t used;
};

static pthread_mutex_t origins_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot *origins_slots;
static uint32_t origins_capacity;
static uint32_t origins_used;
static atomic_uint origins_known;
static atomic_uint origins_upgraded;

/* Raw system calls: UCM hooks libc's, and its handlers call the driver. */
static struct slot *map_slots(uint32_t capacity)
{
    long address =
        syscall(SYS_mmap, NULL, capacity * sizeof(struct slot),
                PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);

    return address == -1 ? NULL : (struct slot *)address;
}

static void unmap_slots(struct slot *slots, uint32_t capacity)
{
    if (slots != NULL)
        syscall(SYS_munmap, slots, capacity * sizeof(struct slot));
}

/* The slot of the value, or the free one that it would take. There always is
 * a free one. */
static struct slot *locate(struct slot *slots, uint32_t capacity,
                           uint64_t handle)
{
    uint32_t i = (uint32_t)((handle * 0x9e3779b97f4a7c15u) >> 32);

    while (slots[i & (capacity - 1)].used &&
           slots[i & (capacity - 1)].handle != handle)
        i++;
    return &slots[i & (capacity - 1)];
}

/* A table with room: the values whose origin is known move. */
static bool make_room(void)
{
    uint32_t capacity = SLOTS_MIN, moved = 0, i;
    struct slot *slots;

    if (origins_capacity != 0 && origins_used < origins_capacity / 4 * 3)
        return true;
    while (capacity <= SLOTS_MAX && capacity / 2 <= origins_known)
        capacity *= 2;
    if (capacity > SLOTS_MAX)
        capacity = SLOTS_MAX;
    if (origins_known >= capacity / 4 * 3)
        return false;
    slots = map_slots(capacity);
    if (slots == NULL)
        return false;
    for (i = 0; i < origins_capacity; i++) {
        if (origins_slots[i].origin != VMML_HANDLE_UNKNOWN) {
            *locate(slots, capacity, origins_slots[i].handle) =
                origins_slots[i];
            moved++;
        }
    }
    unmap_slots(origins_slots, origins_capacity);
    origins_slots = slots;
    origins_capacity = capacity;
    origins_used = moved;
    return true;
}

static void count(enum vmml_handle_origin origin, int change)
{
    if (origin != VMML_HANDLE_UNKNOWN)
        atomic_fetch_add(&origins_known, (unsigned)change);
    if (origin == VMML_HANDLE_UPGRADED)
        atomic_fetch_add(&origins_upgraded, (unsigned)change);
}

static int set(uint64_t handle, enum vmml_handle_origin origin)
{
    struct slot *slot = NULL;

    if (origins_capacity != 0)
        slot = locate(origins_slots, origins_capacity, handle);
    if (slot == NULL || !slot->used) {
        if (origin == VMML_HANDLE_UNKNOWN)
            return 0;
        if (!make_room())
            return -ENOMEM;
        slot = locate(origins_slots, origins_capacity, handle);
        if (!slot->used) {
            slot->used = 1;
            slot->handle = handle;
            origins_used++;
        }
    }
    count(slot->origin, -1);
    count(origin, 1);
    slot->origin = origin;
    return 0;
}

int vmml_origins_set(CUmemGenericAllocationHandle handle,
                     enum vmml_handle_origin origin)
{
    int rc;

    /* Most processes never have one. */
    if (origin == VMML_HANDLE_UNKNOWN && atomic_load(&origins_known) == 0)
        return 0;
    if (vmml_fork_watch() != 0)
        return -ENOMEM;
    pthread_mutex_lock(&origins_lock);
    rc = set(handle, origin);
    pthread_mutex_unlock(&origins_lock);
    return rc;
}

enum vmml_handle_origin vmml_origins_get(CUmemGenericAllocationHandle handle)
{
    enum vmml_handle_origin origin;

    if (atomic_load(&origins_known) == 0)
        return VMML_HANDLE_UNKNOWN;
    pthread_mutex_lock(&origins_lock);
    origin = locate(origins_slots, origins_capacity, handle)->origin;
    pthread_mutex_unlock(&origins_lock);
    return origin;
}

bool vmml_origins_reserve(void)
{
    bool room;

    if (vmml_fork_watch() != 0)
        return false;
    pthread_mutex_lock(&origins_lock);
    room = make_room();
    pthread_mutex_unlock(&origins_lock);
    return room;
}

unsigned vmml_origins_upgraded(void)
{
    return atomic_load(&origins_upgraded);
}

void vmml_origins_forget(void)
{
    pthread_mutex_init(&origins_lock, NULL);
    unmap_slots(origins_slots, origins_capacity);
    origins_slots = NULL;
    origins_capacity = 0;
    origins_used = 0;
    atomic_store(&origins_known, 0);
    atomic_store(&origins_upgraded, 0);
}
