#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLAB_SIZE   ((size_t)1 << 20)
#define SMALLEST    ((size_t)32)
#define CLASS_COUNT 12 /* 32 bytes to 64 KiB */

static pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;
static char *slab, *slab_end;
static void *free_list[CLASS_COUNT];

void *sim_sys_mmap(void *addr, size_t size, int prot, int flags, int fd,
                   off_t offset)
{
    int saved = errno;
    long at = syscall(SYS_mmap, addr, size, prot, flags, fd, offset);

    errno = saved;
    return at == -1 ? NULL : (void *)at;
}

void sim_sys_munmap(void *addr, size_t size)
{
    int saved = errno;

    syscall(SYS_munmap, addr, size);
    errno = saved;
}

static void *big_alloc(size_t size)
{
    return sim_sys_mmap(NULL, sim_round_up(size, SIM_PAGE),
                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
}

static int size_class(size_t size)
{
    int class = 0;

    while (class < CLASS_COUNT && SMALLEST << class < size) {
        class ++;
    }
    return class;
}

static void *carve(size_t size)
{
    void *ptr;

    if ((size_t)(slab_end - slab) < size) {
        slab = big_alloc(SLAB_SIZE);
        if (slab == NULL) {
            slab_end = NULL;
            return NULL;
        }
        slab_end = slab + SLAB_SIZE;
    }
    ptr = slab;
    slab += size;
    return ptr;
}

void *sim_zalloc(size_t size)
{
    int class = size_class(size);
    void *ptr;

    if (class == CLASS_COUNT) {
        return big_alloc(size);
    }
    pthread_mutex_lock(&heap_lock);
    ptr = free_list[class];
    if (ptr != NULL) {
        memcpy(&free_list[class], ptr, sizeof(void *));
    } else {
        ptr = carve(SMALLEST << class);
    }
    pthread_mutex_unlock(&heap_lock);
    return ptr == NULL ? NULL : memset(ptr, 0, SMALLEST << class);
}

void sim_free(void *ptr, size_t size)
{
    int class = size_class(size);

    if (ptr == NULL) {
        return;
    }
    if (class == CLASS_COUNT) {
        sim_sys_munmap(ptr, sim_round_up(size, SIM_PAGE));
        return;
    }
    pthread_mutex_lock(&heap_lock);
    memcpy(ptr, &free_list[class], sizeof(void *));
    free_list[class] = ptr;
    pthread_mutex_unlock(&heap_lock);
}
