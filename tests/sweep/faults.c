/* Rules, counts and what is held. */
#include "faults.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rule {
    char name[64];
    unsigned long at;
    int error; /* 0: the call's own */
    bool from;
    bool pass;
};

static struct rule rule;
static bool armed;
static unsigned long fired;
static long held[LIVE_COUNT];

static const char *const held_names[LIVE_COUNT] = {
    "allocations", "maps",    "threads", "reservations",
    "mappings",    "handles", "events",  "contexts",
};

int sweep_hit(struct call *call, bool passed)
{
    unsigned long n;

    if (!__atomic_load_n(&armed, __ATOMIC_ACQUIRE))
        return 0;
    n = __atomic_add_fetch(passed ? &call->passed : &call->own, 1,
                           __ATOMIC_RELAXED);
    if (rule.at == 0 || strcmp(rule.name, call->name) != 0 ||
        (passed && !rule.pass))
        return 0;
    if (rule.pass)
        n = __atomic_load_n(&call->own, __ATOMIC_RELAXED) +
            __atomic_load_n(&call->passed, __ATOMIC_RELAXED);
    if (n < rule.at || (n > rule.at && !rule.from))
        return 0;
    __atomic_add_fetch(&fired, 1, __ATOMIC_RELAXED);
    return rule.error != 0 ? rule.error : call->error;
}

void sweep_live(enum live what, long change)
{
    __atomic_add_fetch(&held[what], change, __ATOMIC_RELAXED);
}

static struct call *call_at(size_t index)
{
    static size_t libc_calls;
    struct call *call;

    if (libc_calls == 0)
        while (sweep_libc_call(libc_calls) != NULL)
            libc_calls++;
    call = index < libc_calls ? sweep_libc_call(index)
                              : sweep_driver_call_at(index - libc_calls);
    return call;
}

static void parse(const char *text)
{
    char option[16];
    int used = 0;

    memset(&rule, 0, sizeof(rule));
    if (text == NULL || *text == '\0')
        return;
    if (sscanf(text, "%63[^:]:%lu:%d%n", rule.name, &rule.at, &rule.error,
               &used) != 3) {
        fprintf(stderr, "sweep: bad rule '%s'\n", text);
        abort();
    }
    for (text += used; sscanf(text, ":%15[^:]%n", option, &used) == 1;
         text += used) {
        rule.from |= strcmp(option, "from") == 0;
        rule.pass |= strcmp(option, "pass") == 0;
    }
}

void sweep_arm(const char *text)
{
    struct call *call;

    sweep_disarm();
    parse(text);
    for (size_t i = 0; (call = call_at(i)) != NULL; i++) {
        __atomic_store_n(&call->own, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&call->passed, 0, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&fired, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&armed, true, __ATOMIC_RELEASE);
}

void sweep_arm_from(char **environment)
{
    static const char name[] = "VMMLANE_SWEEP_RULE=";

    for (; *environment != NULL; environment++)
        if (strncmp(*environment, name, sizeof(name) - 1) == 0)
            sweep_arm(*environment + sizeof(name) - 1);
}

void sweep_disarm(void)
{
    __atomic_store_n(&armed, false, __ATOMIC_RELEASE);
}

/* ---- the report ---- */

struct text {
    char *at;
    size_t left;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *text,
                                                      const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(text->at, text->left, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= text->left)
        length = text->left > 0 ? (int)text->left - 1 : 0;
    text->at += length;
    text->left -= (size_t)length;
}

static void count_descriptors(struct text *text)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned memory = 0, pidfds = 0, events = 0, sockets = 0, others = 0;
    struct dirent *entry;

    if (folder == NULL)
        return;
    while ((entry = readdir(folder)) != NULL) {
        char target[128] = "";

        if (readlinkat(dirfd(folder), entry->d_name, target,
                       sizeof(target) - 1) <= 0)
            continue;
        if (strncmp(target, "/memfd:", 7) == 0)
            memory++;
        else if (strstr(target, "pidfd") != NULL)
            pidfds++;
        else if (strstr(target, "event") != NULL)
            events++;
        else if (strncmp(target, "socket:", 7) == 0)
            sockets++;
        else
            others++;
    }
    closedir(folder);
    put(text, " memfds=%u pidfds=%u events_fds=%u sockets=%u others_fds=%u",
        memory, pidfds, events, sockets, others);
}

/* Mappings of memfds: the simulated driver's device memory, and ledgers. */
static void count_maps(struct text *text)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned count = 0;
    char line[512];

    if (maps == NULL)
        return;
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "/memfd:") != NULL;
    fclose(maps);
    put(text, " memfd_maps=%u", count);
}

/* sim.h; a real driver has none. */
__attribute__((weak)) uint64_t sim_memory_used(int device);

void sweep_report(char *to, size_t size)
{
    struct text text = {to, size};
    struct call *call;

    put(&text, "fired=%lu calls", __atomic_load_n(&fired, __ATOMIC_RELAXED));
    for (size_t i = 0; (call = call_at(i)) != NULL; i++) {
        unsigned long own = __atomic_load_n(&call->own, __ATOMIC_RELAXED);
        unsigned long passed = __atomic_load_n(&call->passed, __ATOMIC_RELAXED);

        if (own != 0 || passed != 0)
            put(&text, " %s=%lu+%lu", call->name, own, passed);
    }
    put(&text, "\nlive");
    for (size_t i = 0; i < LIVE_COUNT; i++)
        put(&text, " %s=%ld", held_names[i],
            __atomic_load_n(&held[i], __ATOMIC_RELAXED));
    count_descriptors(&text);
    count_maps(&text);
    if (sim_memory_used != NULL)
        put(&text, " device_bytes=%llu",
            (unsigned long long)sim_memory_used(0));
}
