/* SPDX-License-Identifier: MIT */
/*
 * Own formatter (text.h), buffers on the stack, one write(2): hooks run before
 * main, inside allocators and in forked children.
 *
 * The file is opened for each line and closed again. A descriptor that was
 * kept would be one that the application may close (closefrom) and get again
 * for a file of its own.
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/conf_log.h"
#include "base/hash.h"
#include "base/quiet.h"
#include "base/text.h"
#include "stats/count.h"

/* Until the settings are read every line comes to vmml_log_write. */
int vmml_log_level = VMML_LOG_TRACE;

__thread struct vmml_log_key *vmml_log_key
    __attribute__((tls_model("initial-exec")));

static void vmml_write_quiet(int fd, const char *text, size_t length)
{
    struct vmml_quiet quiet;
    ssize_t written;

    vmml_quiet_begin(&quiet);
    do {
        written = write(fd, text, length);
    } while (written < 0 && errno == EINTR);
    vmml_quiet_end(&quiet, written < 0);
}

static int vmml_log_open(const char *pattern)
{
    char path[4096];

    if (!vmml_path_expand(pattern, path, sizeof(path))) {
        errno = ENAMETOOLONG;
        return -1;
    }
    /* A FIFO that nobody reads must not hold the host up (open(2), ENXIO). */
    return open(
        path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
        0666);
}

static void vmml_log_emit(const char *text, size_t length)
{
    static struct vmml_once failed;
    const char *pattern = vmml_conf_log_file();
    char message[VMML_LOG_LINE_MAX];
    struct vmml_text line = {.at = message, .size = sizeof(message) - 1};
    int fd;

    if (pattern != NULL) {
        fd = vmml_log_open(pattern);
        if (fd >= 0) {
            vmml_write_quiet(fd, text, length);
            close(fd);
            return;
        }
        if (vmml_once(&failed)) {
            vmml_text_printf(&line,
                             "vmmlane[%d] WARN %s: VMMLANE_LOG_FILE=%s cannot "
                             "be opened (errno %d): stderr is used",
                             (int)getpid(), __func__, pattern, errno);
            message[line.used++] = '\n';
            vmml_write_quiet(STDERR_FILENO, message, line.used);
        }
    }
    vmml_write_quiet(STDERR_FILENO, text, length);
}

/* ---- lines ---- */

/* What is said of an event besides its message. */
struct event {
    enum vmml_log_level level;
    const char *topic;
    const char *function;
    const struct vmml_log_key *key; /* NULL: none */
    struct timespec time;
};

static const char *const level_names[] = {"OFF",   "ERROR", "WARN", "INFO",
                                          "DEBUG", "TRACE", "STATS"};

/* For tools: no capitals. */
static const char *const level_words[] = {"off",   "error", "warn", "info",
                                          "debug", "trace", "stats"};

/* The folder that holds the file, `topic` long enough for one. */
static void topic_of(const char *file, char topic[VMML_LOG_TOPIC_MAX])
{
    const char *end = strrchr(file, '/');
    const char *begin = end;
    size_t length;

    topic[0] = '\0';
    if (end == NULL)
        return;
    while (begin > file && begin[-1] != '/')
        begin--;
    length = (size_t)(end - begin);
    if (length >= VMML_LOG_TOPIC_MAX)
        length = VMML_LOG_TOPIC_MAX - 1;
    memcpy(topic, begin, length);
    topic[length] = '\0';
}

/* The same in both processes, and for every key of a window. */
static unsigned key_id(const struct vmml_log_key *key)
{
    return (unsigned)vmml_hash_window(key->nonce, key->base, key->size);
}

static void put_head(struct vmml_text *line, const struct event *event)
{
    vmml_text_printf(line, "vmmlane[%d] ", (int)getpid());
    vmml_text_time(line, &event->time, false);
    vmml_text_printf(line, " %s %s %s", level_names[event->level], event->topic,
                     event->function);
    if (event->key != NULL)
        vmml_text_printf(line, " [key %08x 0x%lx+0x%lx]", key_id(event->key),
                         (unsigned long)event->key->base,
                         (unsigned long)event->key->size);
    vmml_text_printf(line, ": ");
}

static void write_text(const struct event *event, const char *format,
                       va_list *args)
{
    char text[VMML_LOG_LINE_MAX];
    struct vmml_text line = {.at = text, .size = sizeof(text) - 1};

    put_head(&line, event);
    vmml_text_vprintf(&line, format, args);
    if (line.cut)
        memcpy(text + line.size - 3, "...", 3);
    text[line.used++] = '\n';
    vmml_log_emit(text, line.used);
}

/* So much as no message of VMML_LOG_LINE_MAX bytes can need, were each of them
 * escaped, and the other members. */
#define JSON_MAX (6 * VMML_LOG_LINE_MAX + 512)

static void write_json(const struct event *event, const char *format,
                       va_list *args)
{
    char message[VMML_LOG_LINE_MAX];
    struct vmml_text plain = {.at = message, .size = sizeof(message) - 1};
    char text[JSON_MAX];
    struct vmml_text line = {.at = text, .size = sizeof(text)};

    vmml_text_vprintf(&plain, format, args);
    if (plain.cut)
        memcpy(message + plain.size - 3, "...", 3);
    message[plain.used] = '\0';
    vmml_text_printf(&line, "{\"time\":\"");
    vmml_text_time(&line, &event->time, true);
    vmml_text_printf(&line,
                     "\",\"pid\":%d,\"tid\":%ld,\"level\":\"%s\","
                     "\"topic\":\"%s\",\"function\":\"%s\",",
                     (int)getpid(), (long)syscall(SYS_gettid),
                     level_words[event->level], event->topic, event->function);
    if (event->key != NULL)
        vmml_text_printf(&line,
                         "\"key\":\"%08x\",\"window\":\"0x%lx\","
                         "\"window_bytes\":%lu,",
                         key_id(event->key), (unsigned long)event->key->base,
                         (unsigned long)event->key->size);
    vmml_text_printf(&line, "\"message\":");
    vmml_text_json(&line, message);
    vmml_text_printf(&line, "}\n");
    vmml_log_emit(text, line.used);
}

static void write_event(const struct event *event, const char *format,
                        va_list *args)
{
    if (vmml_conf()->log_format == VMML_LOG_FORMAT_JSON)
        write_json(event, format, args);
    else
        write_text(event, format, args);
}

__attribute__((format(printf, 2, 3))) static void
write_own(const struct event *event, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    write_event(event, format, &args);
    va_end(args);
}

/* ---- how many lines ---- */

/* Lines of the second that is now, and those left out in it. */
static atomic_long rate_second;
static atomic_ulong rate_lines;
static atomic_ulong rate_dropped;

static void tell_dropped(const struct event *event, unsigned long dropped)
{
    struct event own = *event;

    own.level = VMML_LOG_WARN;
    own.key = NULL;
    own.function = __func__;
    write_own(&own, "%lu lines were left out (VMMLANE_LOG_RATE=%u)", dropped,
              vmml_conf_log_rate());
}

/* What says that something is wrong, and what was asked for, always passes. */
static bool may_write(const struct event *event)
{
    unsigned rate = vmml_conf_log_rate();
    long second = atomic_load(&rate_second);
    unsigned long dropped;

    if (rate == 0 || event->level <= VMML_LOG_WARN ||
        event->level == VMML_LOG_STATS)
        return true;
    if (second != event->time.tv_sec &&
        atomic_compare_exchange_strong(&rate_second, &second,
                                       event->time.tv_sec)) {
        atomic_store(&rate_lines, 0);
        dropped = atomic_exchange(&rate_dropped, 0);
        if (dropped > 0)
            tell_dropped(event, dropped);
    }
    if (atomic_fetch_add(&rate_lines, 1) < rate)
        return true;
    atomic_fetch_add(&rate_dropped, 1);
    return false;
}

void vmml_log_write(enum vmml_log_level level, const char *file,
                    const char *function, const char *format, ...)
{
    char topic[VMML_LOG_TOPIC_MAX];
    struct event event = {
        .level = level,
        .topic = topic,
        .function = function,
        .key = vmml_log_key,
    };
    int saved_errno = errno;
    va_list args;

    if (event.key != NULL && event.key->nonce == NULL)
        event.key = NULL;
    topic_of(file, topic);
    if (level != VMML_LOG_STATS &&
        (int)level > vmml_log_level_of(vmml_conf_log_levels(), topic))
        goto out;
    clock_gettime(CLOCK_REALTIME, &event.time);
    if (may_write(&event)) {
        vmml_count(log_lines);
        va_start(args, format);
        write_event(&event, format, &args);
        va_end(args);
    } else {
        vmml_count(log_lines_dropped);
    }
out:
    errno = saved_errno;
}
