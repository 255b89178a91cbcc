/* SPDX-License-Identifier: MIT */
#include "doctor/report.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "command/json.h"

#define JSON_VERSION 1

struct gate {
    enum vmml_verdict verdict;
    const char *name;
    char *about;
    char *remedy; /* or NULL */
    char *evidence;
};

struct vmml_report {
    struct gate *gates;
    size_t count;
    size_t capacity;
    bool incomplete; /* memory ran out */
};

static const struct {
    const char *word;
    const char *colour;
} verdicts[] = {
    [VMML_PASS] = {"pass", "\033[32m"}, [VMML_NOTE] = {"note", "\033[36m"},
    [VMML_SKIP] = {"skip", "\033[2m"},  [VMML_WARN] = {"warn", "\033[33m"},
    [VMML_FAIL] = {"fail", "\033[31m"},
};

struct vmml_report *vmml_report_new(void)
{
    return calloc(1, sizeof(struct vmml_report));
}

static void free_gate(struct gate *gate)
{
    free(gate->about);
    free(gate->remedy);
    free(gate->evidence);
}

void vmml_report_free(struct vmml_report *report)
{
    size_t i;

    if (report == NULL)
        return;
    for (i = 0; i < report->count; i++)
        free_gate(&report->gates[i]);
    free(report->gates);
    free(report);
}

static bool make_room(struct vmml_report *report)
{
    size_t capacity = report->capacity == 0 ? 64 : 2 * report->capacity;
    struct gate *gates;

    if (report->count < report->capacity)
        return true;
    gates = realloc(report->gates, capacity * sizeof(*gates));
    if (gates == NULL)
        return false;
    report->gates = gates;
    report->capacity = capacity;
    return true;
}

void vmml_report_add(struct vmml_report *report, enum vmml_verdict verdict,
                     const char *name, const char *about, const char *remedy,
                     const char *format, ...)
{
    struct gate gate = {.verdict = verdict, .name = name};
    va_list list;

    va_start(list, format);
    if (vasprintf(&gate.evidence, format, list) < 0)
        gate.evidence = NULL;
    va_end(list);
    gate.about = strdup(about == NULL ? "" : about);
    if (remedy != NULL && verdict != VMML_PASS)
        gate.remedy = strdup(remedy);
    if (gate.evidence == NULL || gate.about == NULL || !make_room(report)) {
        free_gate(&gate);
        report->incomplete = true;
        return;
    }
    report->gates[report->count++] = gate;
}

bool vmml_report_has(const struct vmml_report *report, const char *name,
                     enum vmml_verdict verdict)
{
    size_t i;

    for (i = 0; i < report->count; i++)
        if (report->gates[i].verdict >= verdict &&
            strcmp(report->gates[i].name, name) == 0)
            return true;
    return false;
}

bool vmml_report_can_come_up(const struct vmml_report *report)
{
    size_t i;

    for (i = 0; i < report->count; i++)
        if (report->gates[i].verdict == VMML_FAIL)
            return false;
    return !report->incomplete;
}

/* ---- for people ---- */

static size_t group_length(const char *name)
{
    return strcspn(name, ".");
}

/* A new group, or another subject. */
static bool begins_section(const struct gate *gate, const struct gate *before)
{
    size_t length = group_length(gate->name);

    return before == NULL || group_length(before->name) != length ||
           strncmp(gate->name, before->name, length) != 0 ||
           strcmp(gate->about, before->about) != 0;
}

/* Paths and process titles are another's: no control character of them. */
static void print_text(const char *text, FILE *stream)
{
    for (; *text != '\0'; text++)
        fputc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text,
              stream);
}

static void print_gate(const struct gate *gate, FILE *stream, bool colour)
{
    const char *name = gate->name + group_length(gate->name);

    fprintf(stream, "  %s%s%s  %-16s ",
            colour ? verdicts[gate->verdict].colour : "",
            verdicts[gate->verdict].word, colour ? "\033[0m" : "",
            *name == '.' ? name + 1 : gate->name);
    print_text(gate->evidence, stream);
    fputc('\n', stream);
    if (gate->remedy == NULL)
        return;
    fprintf(stream, "        %s",
            colour ? "\033[1mRemedy:\033[0m " : "Remedy: ");
    print_text(gate->remedy, stream);
    fputc('\n', stream);
}

static void print_verdict(const struct vmml_report *report, FILE *stream,
                          bool colour)
{
    bool good = vmml_report_can_come_up(report);
    const char *separator = ": ";
    size_t i;

    fprintf(stream, "\n%s%s%s",
            colour ? verdicts[good ? VMML_PASS : VMML_FAIL].colour : "",
            good ? "The lane can come up" : "The lane cannot come up",
            colour ? "\033[0m" : "");
    for (i = 0; i < report->count; i++) {
        if (report->gates[i].verdict != VMML_FAIL)
            continue;
        fprintf(stream, "%s%s", separator, report->gates[i].name);
        separator = ", ";
    }
    if (report->incomplete)
        fputs(" (out of memory: not every gate is shown)", stream);
    fputs(".\n", stream);
}

void vmml_report_print(const struct vmml_report *report, FILE *stream,
                       bool colour)
{
    const struct gate *before = NULL;
    size_t i;

    for (i = 0; i < report->count; i++) {
        const struct gate *gate = &report->gates[i];

        if (begins_section(gate, before)) {
            fprintf(stream, "%s%s%.*s%s", before == NULL ? "" : "\n",
                    colour ? "\033[1m" : "", (int)group_length(gate->name),
                    gate->name, colour ? "\033[0m" : "");
            if (gate->about[0] != '\0') {
                fputs(": ", stream);
                print_text(gate->about, stream);
            }
            fputc('\n', stream);
        }
        print_gate(gate, stream, colour);
        before = gate;
    }
    print_verdict(report, stream, colour);
}

/* ---- for machines ---- */

static void write_text(struct vmml_json *json, const char *key,
                       const char *text)
{
    if (text == NULL || text[0] == '\0')
        vmml_json_null(json, key);
    else
        vmml_json_text(json, key, text);
}

static void write_gate(struct vmml_json *json, const struct gate *gate)
{
    vmml_json_open(json, NULL, '{');
    vmml_json_text(json, "gate", gate->name);
    write_text(json, "about", gate->about);
    vmml_json_text(json, "verdict", verdicts[gate->verdict].word);
    vmml_json_text(json, "evidence", gate->evidence);
    write_text(json, "remedy", gate->remedy);
    vmml_json_close(json);
}

void vmml_report_print_json(const struct vmml_report *report, FILE *stream)
{
    struct vmml_json json = {.out = stream};
    size_t i;

    vmml_json_open(&json, NULL, '{');
    vmml_json_number(&json, "version", JSON_VERSION);
    vmml_json_bool(&json, "can_come_up", vmml_report_can_come_up(report));
    vmml_json_bool(&json, "complete", !report->incomplete);
    vmml_json_open(&json, "gates", '[');
    for (i = 0; i < report->count; i++)
        write_gate(&json, &report->gates[i]);
    vmml_json_close(&json);
    vmml_json_close(&json);
}
