/* SPDX-License-Identifier: MIT */
#include "inspect/print.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* "1.5 GiB". */
struct amount {
    char text[24];
};

static struct amount bytes_text(uint64_t bytes)
{
    static const char *const units[] = {"B",   "KiB", "MiB", "GiB",
                                        "TiB", "PiB", "EiB"};
    struct amount amount;
    double value = (double)bytes;
    unsigned unit = 0;

    for (; value >= 1024 && unit < 6; unit++)
        value /= 1024;
    snprintf(amount.text, sizeof(amount.text),
             unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return amount;
}

/* enum vmml_sync, of mirror/state.h. */
static const char *outcome_text(uint32_t outcome)
{
    static const char *const texts[] = {"current", "gone", "incomplete",
                                        "busy"};

    return outcome < 4 ? texts[outcome] : "unknown";
}

static const char *kind_text(uint8_t kind)
{
    switch (kind) {
    case VMML_CHUNK_FD:
        return "descriptor";
    case VMML_CHUNK_FABRIC:
        return "fabric";
    case VMML_CHUNK_POOLED:
        return "pool";
    default:
        return "unknown";
    }
}

static void label_of(unsigned cause, char *label, size_t size)
{
    const char *known = vmml_cause_label(cause);

    if (known != NULL)
        snprintf(label, size, "%s", known);
    else
        snprintf(label, size, "reason-%u", cause);
}

static void release_of(const struct vmml_target *target, char release[33])
{
    size_t i;

    memcpy(release, target->stats->header.release, 32);
    release[32] = '\0';
    for (i = 0; release[i] != '\0'; i++)
        if (release[i] < 0x20 || release[i] > 0x7e)
            release[i] = '?';
}

/* Where the memory lies in the exporter. */
static uint64_t window_address(const struct vmml_window_view *view)
{
    return view->origin != 0 ? view->origin : view->base;
}

/* ---- text ---- */

static void print_head(const struct vmml_survey *survey, FILE *out)
{
    const struct vmml_target *target = &survey->target;
    char release[33];

    fprintf(out, "process %d (%s)", (int)target->pid, target->name);
    if (target->stats != NULL) {
        release_of(target, release);
        fprintf(out, ", vmmlane %s", release);
    }
    fprintf(out, "\nlane: %s: %s\n", vmml_survey_state(survey),
            vmml_survey_sentence(survey));
    if (target->loaded)
        fprintf(out, "library: %s\n", target->library);
    if (target->settings[0] != '\0')
        fprintf(out, "settings: %s\n", target->settings);
    fprintf(out, "descriptors: %u of %lu\n", target->descriptors,
            target->descriptor_limit);
    if (target->ledger == NULL && target->ledger_error != ENOENT)
        fprintf(out, "ledger: cannot be read: %s\n",
                strerror(target->ledger_error));
}

static void print_chunks(const struct vmml_survey_window *window, FILE *out)
{
    size_t i;

    for (i = 0; i < window->chunk_count; i++) {
        const struct vmml_chunk_view *chunk = &window->chunks[i];
        uint64_t address = window_address(&window->view) +
                           (chunk->address - window->view.base);

        fprintf(out, "    0x%" PRIx64 " + %-10s %s", address,
                bytes_text(chunk->size).text, kind_text(chunk->kind));
        if (chunk->fd >= 0)
            fprintf(out, " %" PRId32, chunk->fd);
        fprintf(out, ", publication %" PRIu64 "\n", chunk->serial);
    }
}

static void print_windows(const struct vmml_survey *survey, bool chunks,
                          FILE *out)
{
    size_t i;

    fprintf(out, "\nexported: windows %zu, chunks %zu, %s\n",
            survey->window_count, survey->chunk_count,
            bytes_text(survey->bytes).text);
    for (i = 0; i < survey->window_count; i++) {
        const struct vmml_survey_window *window = &survey->windows[i];

        fprintf(out, "  0x%" PRIx64 " + %-10s device %" PRIu32,
                window_address(&window->view),
                bytes_text(window->view.size).text, window->view.device);
        if (window->error != 0)
            fprintf(out, ": %s\n",
                    window->error == EAGAIN ? "changes all the time"
                                            : strerror(window->error));
        else
            fprintf(out, ": %zu chunks, %s\n", window->chunk_count,
                    bytes_text(window->bytes).text);
        if (chunks)
            print_chunks(window, out);
    }
    fprintf(out, "importers: %zu\n", survey->importer_count);
    for (i = 0; i < survey->importer_count; i++) {
        const struct vmml_survey_importer *importer = &survey->importers[i];

        fprintf(out, "  %d (%s)", (int)importer->pid, importer->name);
        if (importer->known)
            fprintf(out, ": %" PRIu64 " chunks mapped, %s\n", importer->chunks,
                    bytes_text(importer->bytes).text);
        else
            fprintf(out, ": has the ledger mapped\n");
    }
}

static void print_mirrors(const struct vmml_survey *survey, FILE *out)
{
    size_t i;

    fprintf(out, "\nimported: windows %zu\n", survey->mirror_count);
    for (i = 0; i < survey->mirror_count; i++) {
        const struct vmml_stats_mirror *mirror = &survey->mirrors[i];

        fprintf(out,
                "  of %" PRIu32 ": 0x%" PRIx64 " + %s at 0x%" PRIx64
                " on device %" PRId32 ": %" PRIu32 " chunks, %s, %s\n",
                mirror->pid, mirror->base, bytes_text(mirror->size).text,
                mirror->address, mirror->device, mirror->chunks,
                bytes_text(mirror->bytes).text, outcome_text(mirror->outcome));
    }
}

/* Seconds since then; 0 where clocks went back. */
static uint64_t age_of(uint64_t then)
{
    struct timespec time = {0, 0};
    uint64_t now;

    clock_gettime(CLOCK_REALTIME, &time);
    now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    return now > then ? (now - then) / 1000000000u : 0;
}

static void print_last(const struct vmml_stats_lost *lost, FILE *out)
{
    if (lost->last == 0)
        return;
    fprintf(out, "    last %" PRIu64 " s ago", age_of(lost->last));
    if (lost->length != 0)
        fprintf(out, ", 0x%" PRIx64 "+0x%" PRIx64, lost->address, lost->length);
    if (lost->pid != 0)
        fprintf(out, ", process %" PRIu32, lost->pid);
    if (lost->chunks != 0)
        fprintf(out, ", %" PRIu32 " chunks", lost->chunks);
    if (lost->code < 0)
        fprintf(out, ", %s", strerror(-lost->code));
    else if (lost->code > 0)
        fprintf(out, ", CUresult %" PRId32, lost->code);
    fputc('\n', out);
}

static void print_lost(const struct vmml_survey *survey, FILE *out)
{
    struct vmml_stats_lost lost;
    char label[32];
    unsigned i;

    fprintf(out, "\nlost lanes: %" PRIu64 "\n", survey->lost);
    for (i = 0; i < VMML_STATS_CAUSES; i++) {
        const char *text = vmml_cause_text(i);

        if (!vmml_target_lost(&survey->target, i, &lost))
            continue;
        label_of(i, label, sizeof(label));
        fprintf(out, "  %s, %" PRIu64 " times: %s\n", label, lost.count,
                text != NULL ? text : "of a newer version");
        print_last(&lost, out);
    }
}

static void print_counts(const struct vmml_survey *survey, FILE *out)
{
    unsigned i;

    fprintf(out, "\ncounters\n");
    for (i = 0; i < VMML_COUNTERS; i++) {
        uint64_t count = vmml_target_count(&survey->target, i);

        if (count != 0)
            fprintf(out, "  %-24s %12" PRIu64 "  %s\n", vmml_counter_names[i],
                    count, vmml_counter_meanings[i]);
    }
    fprintf(out, "\ncalls of hooked functions\n");
    for (i = 0; i < VMML_HOOKS; i++) {
        uint64_t count = vmml_target_count(&survey->target, VMML_COUNTERS + i);

        if (count != 0)
            fprintf(out, "  %-40s %12" PRIu64 "\n", vmml_hook_names[i], count);
    }
}

void vmml_survey_print(const struct vmml_survey *survey, bool chunks, FILE *out)
{
    print_head(survey, out);
    if (survey->target.ledger != NULL)
        print_windows(survey, chunks, out);
    if (survey->target.stats == NULL)
        return;
    if (survey->mirror_count > 0)
        print_mirrors(survey, out);
    print_lost(survey, out);
    print_counts(survey, out);
}

/* ---- JSON ---- */

/* Addresses are text: a number of JSON may be read as a double. */
static void json_address(struct vmml_json *json, const char *key,
                         uint64_t address)
{
    char text[24];

    snprintf(text, sizeof(text), "0x%" PRIx64, address);
    vmml_json_text(json, key, text);
}

static void json_head(const struct vmml_survey *survey, struct vmml_json *json)
{
    const struct vmml_target *target = &survey->target;
    char release[33];

    vmml_json_number(json, "pid", target->pid);
    vmml_json_text(json, "name", target->name);
    vmml_json_text(json, "lane", vmml_survey_state(survey));
    vmml_json_text(json, "explanation", vmml_survey_sentence(survey));
    vmml_json_bool(json, "loaded", target->loaded);
    if (target->loaded)
        vmml_json_text(json, "library", target->library);
    vmml_json_text(json, "settings", target->settings);
    vmml_json_unsigned(json, "descriptors", target->descriptors);
    vmml_json_unsigned(json, "descriptor_limit", target->descriptor_limit);
    if (target->stats == NULL)
        return;
    release_of(target, release);
    vmml_json_text(json, "release", release);
    vmml_json_unsigned(json, "since", target->stats->header.since);
}

static void json_chunks(const struct vmml_survey_window *window,
                        struct vmml_json *json)
{
    size_t i;

    vmml_json_open(json, "list", '[');
    for (i = 0; i < window->chunk_count; i++) {
        const struct vmml_chunk_view *chunk = &window->chunks[i];

        vmml_json_open(json, NULL, '{');
        json_address(json, "address",
                     window_address(&window->view) +
                         (chunk->address - window->view.base));
        vmml_json_unsigned(json, "bytes", chunk->size);
        vmml_json_text(json, "kind", kind_text(chunk->kind));
        vmml_json_number(json, "descriptor", chunk->fd);
        vmml_json_unsigned(json, "serial", chunk->serial);
        vmml_json_close(json);
    }
    vmml_json_close(json);
}

static void json_window(const struct vmml_survey_window *window, bool chunks,
                        struct vmml_json *json)
{
    vmml_json_open(json, NULL, '{');
    json_address(json, "address", window_address(&window->view));
    vmml_json_unsigned(json, "size", window->view.size);
    vmml_json_unsigned(json, "device", window->view.device);
    vmml_json_unsigned(json, "chunks", window->chunk_count);
    vmml_json_unsigned(json, "bytes", window->bytes);
    vmml_json_unsigned(json, "revocations", window->view.revoked);
    vmml_json_bool(json, "read", window->error == 0);
    if (chunks)
        json_chunks(window, json);
    vmml_json_close(json);
}

static void json_exported(const struct vmml_survey *survey, bool chunks,
                          struct vmml_json *json)
{
    size_t i;

    vmml_json_open(json, "windows", '[');
    for (i = 0; i < survey->window_count; i++)
        json_window(&survey->windows[i], chunks, json);
    vmml_json_close(json);
    vmml_json_unsigned(json, "chunks", survey->chunk_count);
    vmml_json_unsigned(json, "bytes", survey->bytes);
    vmml_json_open(json, "importers", '[');
    for (i = 0; i < survey->importer_count; i++) {
        const struct vmml_survey_importer *importer = &survey->importers[i];

        vmml_json_open(json, NULL, '{');
        vmml_json_number(json, "pid", importer->pid);
        vmml_json_text(json, "name", importer->name);
        if (importer->known) {
            vmml_json_unsigned(json, "chunks", importer->chunks);
            vmml_json_unsigned(json, "bytes", importer->bytes);
        }
        vmml_json_close(json);
    }
    vmml_json_close(json);
}

static void json_mirrors(const struct vmml_survey *survey,
                         struct vmml_json *json)
{
    size_t i;

    vmml_json_open(json, "mirrors", '[');
    for (i = 0; i < survey->mirror_count; i++) {
        const struct vmml_stats_mirror *mirror = &survey->mirrors[i];

        vmml_json_open(json, NULL, '{');
        vmml_json_unsigned(json, "exporter", mirror->pid);
        json_address(json, "window", mirror->base);
        vmml_json_unsigned(json, "size", mirror->size);
        json_address(json, "address", mirror->address);
        vmml_json_number(json, "device", mirror->device);
        vmml_json_unsigned(json, "chunks", mirror->chunks);
        vmml_json_unsigned(json, "bytes", mirror->bytes);
        vmml_json_text(json, "state", outcome_text(mirror->outcome));
        vmml_json_close(json);
    }
    vmml_json_close(json);
}

static void json_lost(const struct vmml_survey *survey, struct vmml_json *json)
{
    struct vmml_stats_lost lost;
    char label[32];
    unsigned i;

    vmml_json_open(json, "lost", '[');
    for (i = 0; i < VMML_STATS_CAUSES; i++) {
        const char *text = vmml_cause_text(i);

        if (!vmml_target_lost(&survey->target, i, &lost))
            continue;
        label_of(i, label, sizeof(label));
        vmml_json_open(json, NULL, '{');
        vmml_json_text(json, "cause", label);
        vmml_json_text(json, "explanation", text != NULL ? text : "");
        vmml_json_unsigned(json, "count", lost.count);
        vmml_json_real(json, "last", (double)lost.last / 1e9);
        json_address(json, "address", lost.address);
        vmml_json_unsigned(json, "bytes", lost.length);
        vmml_json_unsigned(json, "exporter", lost.pid);
        vmml_json_unsigned(json, "chunks", lost.chunks);
        vmml_json_unsigned(json, "handle_types", lost.handle_types);
        vmml_json_number(json, "result", lost.code);
        vmml_json_close(json);
    }
    vmml_json_close(json);
}

static void json_counts(const struct vmml_survey *survey,
                        struct vmml_json *json)
{
    unsigned i;

    vmml_json_open(json, "counters", '{');
    for (i = 0; i < VMML_COUNTERS; i++)
        vmml_json_unsigned(json, vmml_counter_names[i],
                           vmml_target_count(&survey->target, i));
    vmml_json_close(json);
    vmml_json_open(json, "calls", '{');
    for (i = 0; i < VMML_HOOKS; i++)
        vmml_json_unsigned(
            json, vmml_hook_names[i],
            vmml_target_count(&survey->target, VMML_COUNTERS + i));
    vmml_json_close(json);
}

void vmml_survey_json(const struct vmml_survey *survey, bool chunks,
                      struct vmml_json *json)
{
    vmml_json_open(json, NULL, '{');
    json_head(survey, json);
    if (survey->target.ledger != NULL)
        json_exported(survey, chunks, json);
    if (survey->target.stats != NULL) {
        json_mirrors(survey, json);
        json_lost(survey, json);
        json_counts(survey, json);
    }
    vmml_json_close(json);
}
