/* What a process holds. */
#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static uint64_t count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint64_t count = 0;

    if (dir == NULL)
        die(EXIT_SETUP, "/proc/self/fd: %s", strerror(errno));
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and the folder's own */
}

static uint64_t count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    uint64_t count = 0;
    int c;

    if (maps == NULL)
        die(EXIT_SETUP, "/proc/self/maps: %s", strerror(errno));
    while ((c = getc(maps)) != EOF)
        count += c == '\n';
    fclose(maps);
    return count;
}

struct state state_now(void)
{
    struct state state;
    struct rlimit limit;
    size_t free_bytes, total;

    CU_MUST(cuMemGetInfo(&free_bytes, &total));
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        die(EXIT_SETUP, "getrlimit: %s", strerror(errno));
    state.free_bytes = free_bytes;
    state.descriptors = count_descriptors();
    state.mappings = count_mappings();
    state.soft_limit = limit.rlim_cur;
    state.hard_limit = limit.rlim_max;
    return state;
}
