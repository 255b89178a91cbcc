/* Counters, calls that fail on demand, re-entry. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RULES 64

struct rule {
    enum sim_id id;
    unsigned long at;
    CUresult result;
    bool from;
};

static unsigned long counts[SIM_ID_COUNT];
static struct rule rules[MAX_RULES];
static int rule_count;
static pthread_mutex_t rule_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t env_once = PTHREAD_ONCE_INIT;

static sim_reentry_fn reentry;
static void *reentry_arg;

static int id_of(const char *name, size_t len)
{
    int id;

    for (id = 0; id < SIM_ID_COUNT; id++) {
        if (strncmp(sim_entries[id].name, name, len) == 0 &&
            sim_entries[id].name[len] == '\0') {
            return id;
        }
    }
    return -1;
}

static int rule_add(int id, unsigned long at, CUresult result, bool from)
{
    int full;

    if (id < 0 || at == 0) {
        return -1;
    }
    pthread_mutex_lock(&rule_lock);
    full = rule_count == MAX_RULES;
    if (!full) {
        rules[rule_count] = (struct rule){(enum sim_id)id, at, result, from};
        __atomic_store_n(&rule_count, rule_count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&rule_lock);
    return full ? -1 : 0;
}

/* name:nth[:result][,...] */
static void rules_from(const char *variable, bool from)
{
    const char *text = getenv(variable);
    char *end;
    size_t len;
    unsigned long at;
    long result;
    int id;

    while (text != NULL && *text != '\0') {
        len = strcspn(text, ":");
        id = id_of(text, len);
        text += len;
        at = *text == ':' ? strtoul(text + 1, &end, 10) : 0;
        result = CUDA_ERROR_UNKNOWN;
        if (at > 0 && *end == ':') {
            result = strtol(end + 1, &end, 10);
        }
        if (at == 0 || (*end != '\0' && *end != ',') ||
            rule_add(id, at, (CUresult)result, from) != 0) {
            fprintf(stderr, "simulated driver: bad rule in %s=%s\n", variable,
                    getenv(variable));
            abort();
        }
        text = *end == ',' ? end + 1 : end;
    }
}

int sim_tracing;

void sim_trace(enum sim_id id, CUresult result)
{
    char line[128];
    int len;

    if ((result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) &&
        sim_tracing < 2) {
        return;
    }
    len = snprintf(line, sizeof(line), "[sim %d] %s -> %d\n", getpid(),
                   sim_entries[id].name, result);
    if (write(STDERR_FILENO, line, (size_t)len) < 0) {
        sim_tracing = 0; /* nobody listens */
    }
}

static void rules_from_env(void)
{
    const char *trace = getenv("VMMLANE_SIM_TRACE");

    sim_tracing = trace == NULL ? 0 : atoi(trace);
    rules_from("VMMLANE_SIM_FAIL", false);
    rules_from("VMMLANE_SIM_FAIL_FROM", true);
}

void sim_fault_init(void)
{
    pthread_once(&env_once, rules_from_env);
}

static CUresult rule_for(enum sim_id id, unsigned long n)
{
    CUresult result = CUDA_SUCCESS;
    int i;

    pthread_mutex_lock(&rule_lock);
    for (i = 0; i < rule_count && result == CUDA_SUCCESS; i++) {
        if (rules[i].id == id &&
            (n == rules[i].at || (rules[i].from && n > rules[i].at))) {
            result = rules[i].result;
        }
    }
    pthread_mutex_unlock(&rule_lock);
    return result;
}

CUresult sim_enter(enum sim_id id, enum sim_need need)
{
    unsigned long n = __atomic_add_fetch(&counts[id], 1, __ATOMIC_RELAXED);
    CUresult result;
    CUcontext ctx;

    sim_fault_init();
    if (__atomic_load_n(&rule_count, __ATOMIC_ACQUIRE) > 0) {
        result = rule_for(id, n);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    if (need == SIM_NONE) {
        return CUDA_SUCCESS;
    }
    if (!__atomic_load_n(&sim.initialised, __ATOMIC_ACQUIRE) || sim.forked) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (need == SIM_INIT) {
        return CUDA_SUCCESS;
    }
    ctx = sim_ctx_current();
    if (ctx == NULL) {
        return need == SIM_STREAM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!ctx->live) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return __atomic_load_n(&ctx->error, __ATOMIC_ACQUIRE);
}

void sim_reenter(const char *name, CUdeviceptr ptr, size_t size)
{
    sim_reentry_fn fn = __atomic_load_n(&reentry, __ATOMIC_ACQUIRE);

    if (fn != NULL) {
        fn(name, ptr, size, reentry_arg);
    }
}

void sim_crash(const char *why)
{
    fprintf(stderr,
            "simulated driver: %s, which ends a process on the real one\n",
            why);
    abort();
}

/* ---- exported controls ---- */

SIM_EXPORT void sim_set_reentry(sim_reentry_fn fn, void *arg)
{
    reentry_arg = arg;
    __atomic_store_n(&reentry, fn, __ATOMIC_RELEASE);
}

SIM_EXPORT long sim_call_count(const char *name)
{
    int id = id_of(name, strlen(name));

    return id < 0 ? -1 : (long)__atomic_load_n(&counts[id], __ATOMIC_RELAXED);
}

SIM_EXPORT void sim_reset_counts(void)
{
    int id;

    for (id = 0; id < SIM_ID_COUNT; id++) {
        __atomic_store_n(&counts[id], 0, __ATOMIC_RELAXED);
    }
}

SIM_EXPORT int sim_fail(const char *name, unsigned long nth, int result,
                        int from)
{
    int id = id_of(name, strlen(name));

    sim_fault_init();
    return id < 0
               ? -1
               : rule_add(id,
                          __atomic_load_n(&counts[id], __ATOMIC_RELAXED) + nth,
                          (CUresult)result, from != 0);
}

SIM_EXPORT void sim_clear_failures(void)
{
    sim_fault_init();
    pthread_mutex_lock(&rule_lock);
    __atomic_store_n(&rule_count, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&rule_lock);
}

/* ---- the count file ---- */

static void expand_pid(char *path, size_t size, const char *pattern)
{
    const char *mark = strstr(pattern, "%p");

    if (mark == NULL) {
        snprintf(path, size, "%s", pattern);
        return;
    }
    snprintf(path, size, "%.*s%d%s", (int)(mark - pattern), pattern, getpid(),
             mark + 2);
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *pattern = getenv("VMMLANE_SIM_COUNT_FILE");
    char path[4096], line[128];
    int fd, id, len;

    if (pattern == NULL || *pattern == '\0' || sim.forked) {
        return;
    }
    expand_pid(path, sizeof(path), pattern);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return;
    }
    for (id = 0; id < SIM_ID_COUNT; id++) {
        if (counts[id] == 0) {
            continue;
        }
        len = snprintf(line, sizeof(line), "%s %lu\n", sim_entries[id].name,
                       counts[id]);
        if (write(fd, line, (size_t)len) != len) {
            break;
        }
    }
    close(fd);
}
