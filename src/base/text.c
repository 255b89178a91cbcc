/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <stdint.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Wider than any line. */
#define WIDTH_MAX 4096

struct vmml_spec {
    unsigned width;
    bool zero;
    bool alternate;
    unsigned longs; /* 0 int, 1 long or size_t, 2 long long */
};

void vmml_text_char(struct vmml_text *line, char c)
{
    if (line->used < line->size)
        line->at[line->used++] = c;
    else
        line->cut = true;
}

/* A line stays one line, whatever an environment variable holds. */
static void vmml_put_text(struct vmml_text *line, const char *text,
                          unsigned width)
{
    size_t length;

    if (text == NULL)
        text = "(null)";
    for (length = strlen(text); length < width; length++)
        vmml_text_char(line, ' ');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        vmml_text_char(line, c < 0x20 || c == 0x7f ? '?' : *text);
    }
}

static void vmml_put_number(struct vmml_text *line, unsigned long long value,
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
        vmml_text_char(line, ' ');
    if (negative)
        vmml_text_char(line, '-');
    if (spec->alternate) {
        vmml_text_char(line, '0');
        vmml_text_char(line, 'x');
    }
    for (; fill > 0; fill--)
        vmml_text_char(line, '0');
    while (count > 0)
        vmml_text_char(line, digits[--count]);
}

static const char *vmml_parse_spec(const char *format, struct vmml_spec *spec)
{
    memset(spec, 0, sizeof(*spec));
    for (; *format == '0' || *format == '#'; format++) {
        spec->zero = spec->zero || *format == '0';
        spec->alternate = spec->alternate || *format == '#';
    }
    for (; *format >= '0' && *format <= '9'; format++) {
        if (spec->width < WIDTH_MAX)
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
static const char *vmml_put_conversion(struct vmml_text *line,
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
        vmml_text_char(line, (char)va_arg(*args, int));
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
        vmml_text_char(line, *format);
        break;
    }
    return format + 1;
}

void vmml_text_vprintf(struct vmml_text *line, const char *format,
                       va_list *args)
{
    while (*format != '\0') {
        if (*format == '%')
            format = vmml_put_conversion(line, format + 1, args);
        else
            vmml_text_char(line, *format++);
    }
}

void vmml_text_printf(struct vmml_text *line, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vmml_text_vprintf(line, format, &args);
    va_end(args);
}

/* How many bytes of valid UTF-8 begin here; 0: none does. Surrogates and
 * overlong forms are none (RFC 3629). */
static unsigned utf8_length(const unsigned char *at)
{
    unsigned length, i;

    if (at[0] < 0x80)
        return 1;
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    length = at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    for (i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return length;
}

static void put_escaped(struct vmml_text *line, unsigned char c)
{
    if (c == '"' || c == '\\') {
        vmml_text_char(line, '\\');
        vmml_text_char(line, (char)c);
    } else if (c < 0x20 || c == 0x7f) {
        vmml_text_printf(line, "\\u%04x", (unsigned)c);
    } else {
        vmml_text_char(line, (char)c);
    }
}

void vmml_text_json(struct vmml_text *line, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    unsigned length;

    vmml_text_char(line, '"');
    while (*at != '\0') {
        length = utf8_length(at);
        if (length == 0) {
            vmml_text_printf(line, "\\ufffd");
            at++;
        } else if (length == 1) {
            put_escaped(line, *at++);
        } else {
            while (length-- > 0)
                vmml_text_char(line, (char)*at++);
        }
    }
    vmml_text_char(line, '"');
}

/* Days since 1970-01-01 to a date (Howard Hinnant: chrono-Compatible Low-Level
 * Date Algorithms, civil_from_days): gmtime_r(3) takes a lock. */
static void put_date(struct vmml_text *line, uint64_t days)
{
    uint64_t shifted = days + 719468;
    uint64_t era = shifted / 146097, day = shifted % 146097;
    uint64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    uint64_t of_year = day - (365 * year + year / 4 - year / 100);
    uint64_t month = (5 * of_year + 2) / 153;
    uint64_t of_month = of_year - (153 * month + 2) / 5 + 1;

    month = month < 10 ? month + 3 : month - 9;
    year += era * 400 + (month <= 2);
    vmml_text_printf(line, "%04lu-%02lu-%02lu", (unsigned long)year,
                     (unsigned long)month, (unsigned long)of_month);
}

void vmml_text_time(struct vmml_text *line, const struct timespec *time,
                    bool with_date)
{
    uint64_t seconds = (uint64_t)time->tv_sec;
    unsigned of_day = (unsigned)(seconds % 86400);

    if (with_date) {
        put_date(line, seconds / 86400);
        vmml_text_char(line, 'T');
    }
    vmml_text_printf(line, "%02u:%02u:%02u.%06luZ", of_day / 3600,
                     of_day / 60 % 60, of_day % 60,
                     (unsigned long)time->tv_nsec / 1000);
}

bool vmml_path_expand(const char *pattern, char *path, size_t size)
{
    struct vmml_text line = {.at = path, .size = size - 1};
    struct utsname host;

    for (; *pattern != '\0'; pattern++) {
        char what = *pattern == '%' ? *++pattern : '\0';

        if (what == 'p')
            vmml_text_printf(&line, "%d", (int)getpid());
        else if (what == 'h')
            vmml_text_printf(&line, "%s",
                             uname(&host) == 0 ? host.nodename : "host");
        else if (*pattern == '\0')
            break;
        else
            vmml_text_char(&line, *pattern);
    }
    path[line.used] = '\0';
    return !line.cut;
}
