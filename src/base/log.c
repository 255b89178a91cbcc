/* SPDX-License-Identifier: MIT */
/*
 * Own formatter, one buffer on the stack, one write(2): hooks run before main,
 * inside allocators and in forked children.
 *
 * The file is opened for each line and closed again. A descriptor that was
 * kept would be one that the application may close (closefrom) and get again
 * for a file of its own.
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/conf_log.h"

/* Until the settings are read every line comes to vmml_log_write. */
int vmml_log_level = VMML_LOG_TRACE;

struct vmml_line {
    char *text;
    size_t size;
    size_t used;
    bool cut;
};

struct vmml_spec {
    unsigned width;
    bool zero;
    bool alternate;
    unsigned longs; /* 0 int, 1 long or size_t, 2 long long */
};

static void vmml_put(struct vmml_line *line, char c)
{
    if (line->used < line->size)
        line->text[line->used++] = c;
    else
        line->cut = true;
}

/* A line stays one line, whatever an environment variable holds. */
static void vmml_put_text(struct vmml_line *line, const char *text,
                          unsigned width)
{
    size_t length;

    if (text == NULL)
        text = "(null)";
    for (length = strlen(text); length < width; length++)
        vmml_put(line, ' ');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        vmml_put(line, c < 0x20 || c == 0x7f ? '?' : *text);
    }
}

static void vmml_put_number(struct vmml_line *line, unsigned long long value,
                            bool negative, unsigned base,
                            const struct vmml_spec *spec)
{
    char digits[32];
    unsigned count = 0, taken, fill;

    do {
        digits[count++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0);

    taken = count + (negative ? 1 : 0) + (spec->alternate ? 2 : 0);
    fill = spec->width > taken ? spec->width - taken : 0;
    for (; !spec->zero && fill > 0; fill--)
        vmml_put(line, ' ');
    if (negative)
        vmml_put(line, '-');
    if (spec->alternate) {
        vmml_put(line, '0');
        vmml_put(line, 'x');
    }
    for (; fill > 0; fill--)
        vmml_put(line, '0');
    while (count > 0)
        vmml_put(line, digits[--count]);
}

static const char *vmml_parse_spec(const char *format, struct vmml_spec *spec)
{
    memset(spec, 0, sizeof(*spec));
    for (; *format == '0' || *format == '#'; format++) {
        spec->zero = spec->zero || *format == '0';
        spec->alternate = spec->alternate || *format == '#';
    }
    for (; *format >= '0' && *format <= '9'; format++) {
        if (spec->width < VMML_LOG_LINE_MAX)
            spec->width = spec->width * 10 + (unsigned)(*format - '0');
    }
    for (; *format == 'l' || *format == 'z'; format++)
        spec->longs++;
    return format;
}

/* Sign-extended where `is_signed`. */
static unsigned long long vmml_take(va_list *args, unsigned longs,
                                    bool is_signed)
{
    if (longs == 0 && is_signed)
        return (unsigned long long)(long long)va_arg(*args, int);
    if (longs == 0)
        return va_arg(*args, unsigned);
    /* long and long long are alike on the 64-bit CPUs that there are. */
    return va_arg(*args, unsigned long long);
}

_Static_assert(sizeof(long) == sizeof(long long) &&
                   sizeof(size_t) == sizeof(long long),
               "one way to take all but int");

/* Returns the place after the conversion. */
static const char *vmml_put_conversion(struct vmml_line *line,
                                       const char *format, va_list *args)
{
    struct vmml_spec spec;
    unsigned long long value;
    bool negative;

    format = vmml_parse_spec(format, &spec);
    switch (*format) {
    case '\0':
        return format;
    case 's':
        vmml_put_text(line, va_arg(*args, const char *), spec.width);
        break;
    case 'c':
        vmml_put(line, (char)va_arg(*args, int));
        break;
    case 'd':
    case 'i':
        value = vmml_take(args, spec.longs, true);
        negative = (long long)value < 0;
        spec.alternate = false;
        vmml_put_number(line, negative ? -value : value, negative, 10, &spec);
        break;
    case 'u':
    case 'x':
        spec.alternate = spec.alternate && *format == 'x';
        vmml_put_number(line, vmml_take(args, spec.longs, false), false,
                        *format == 'x' ? 16 : 10, &spec);
        break;
    case 'p':
        spec.alternate = true;
        vmml_put_number(line, (uintptr_t)va_arg(*args, void *), false, 16,
                        &spec);
        break;
    default:
        vmml_put(line, *format);
        break;
    }
    return format + 1;
}

static void vmml_put_format(struct vmml_line *line, const char *format,
                            va_list *args)
{
    while (*format != '\0') {
        if (*format == '%')
            format = vmml_put_conversion(line, format + 1, args);
        else
            vmml_put(line, *format++);
    }
}

__attribute__((format(printf, 2, 3))) static void
vmml_put_printf(struct vmml_line *line, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vmml_put_format(line, format, &args);
    va_end(args);
}

/* %p the process, %h the host, %% a per cent sign. False: too long. */
static bool vmml_log_path(const char *pattern, char *path, size_t size)
{
    struct vmml_line line = {.text = path, .size = size - 1};
    struct utsname host;

    for (; *pattern != '\0'; pattern++) {
        char what = *pattern == '%' ? *++pattern : '\0';

        if (what == 'p')
            vmml_put_printf(&line, "%d", (int)getpid());
        else if (what == 'h')
            vmml_put_text(&line, uname(&host) == 0 ? host.nodename : "host", 0);
        else if (*pattern == '\0')
            break;
        else
            vmml_put(&line, *pattern);
    }
    path[line.used] = '\0';
    return !line.cut;
}

/* The host must not die of SIGPIPE because of a line of ours. */
static void vmml_write_quiet(int fd, const char *text, size_t length)
{
    static const struct timespec no_wait;
    sigset_t pipe_set, old_set, pending;
    bool was_pending;
    ssize_t written;

    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE) == 1;
    if (pthread_sigmask(SIG_BLOCK, &pipe_set, &old_set) != 0)
        return;
    do {
        written = write(fd, text, length);
    } while (written < 0 && errno == EINTR);
    if (written < 0 && errno == EPIPE && !was_pending) {
        while (sigtimedwait(&pipe_set, NULL, &no_wait) < 0 && errno == EINTR)
            ;
    }
    pthread_sigmask(SIG_SETMASK, &old_set, NULL);
}

static int vmml_log_open(const char *pattern)
{
    char path[4096];

    if (!vmml_log_path(pattern, path, sizeof(path))) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY,
                0666);
}

static void vmml_log_emit(const char *text, size_t length)
{
    static struct vmml_once failed;
    const char *pattern = vmml_conf_log_file();
    char message[VMML_LOG_LINE_MAX];
    struct vmml_line line = {.text = message, .size = sizeof(message) - 1};
    int fd;

    if (pattern != NULL) {
        fd = vmml_log_open(pattern);
        if (fd >= 0) {
            vmml_write_quiet(fd, text, length);
            close(fd);
            return;
        }
        if (vmml_once(&failed)) {
            vmml_put_printf(&line,
                            "vmmlane[%d] WARN %s: VMMLANE_LOG_FILE=%s cannot "
                            "be opened (errno %d): stderr is used",
                            (int)getpid(), __func__, pattern, errno);
            message[line.used++] = '\n';
            vmml_write_quiet(STDERR_FILENO, message, line.used);
        }
    }
    vmml_write_quiet(STDERR_FILENO, text, length);
}

void vmml_log_write(enum vmml_log_level level, const char *function,
                    const char *format, ...)
{
    static const char *const names[] = {"OFF",   "ERROR", "WARN", "INFO",
                                        "DEBUG", "TRACE", "STATS"};
    char text[VMML_LOG_LINE_MAX];
    struct vmml_line line = {.text = text, .size = sizeof(text) - 1};
    int saved_errno = errno;
    va_list args;

    vmml_conf(); /* reads the level and the file at the first line */
    if (level != VMML_LOG_STATS &&
        __atomic_load_n(&vmml_log_level, __ATOMIC_RELAXED) < (int)level)
        goto out;
    vmml_put_printf(&line, "vmmlane[%d] %s %s: ", (int)getpid(), names[level],
                    function);
    va_start(args, format);
    vmml_put_format(&line, format, &args);
    va_end(args);
    if (line.cut)
        memcpy(text + line.size - 3, "...", 3);
    text[line.used++] = '\n';
    vmml_log_emit(text, line.used);
out:
    errno = saved_errno;
}
