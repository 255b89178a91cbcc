/* SPDX-License-Identifier: MIT */
#include "inspect/survey.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lane/window.h"

/* Importers that are shown. */
#define IMPORTERS_MAX 1024

static void add_bytes(struct vmml_survey *survey,
                      struct vmml_survey_window *window)
{
    size_t i;

    for (i = 0; i < window->chunk_count; i++)
        window->bytes += window->chunks[i].size;
    survey->chunk_count += window->chunk_count;
    survey->bytes += window->bytes;
}

static void read_windows(struct vmml_survey *survey)
{
    const struct vmml_ledger_reader *ledger = survey->target.ledger;
    uint32_t count = vmml_ledger_windows(ledger);
    uint32_t i;

    survey->windows = calloc(count, sizeof(*survey->windows));
    for (i = 0; survey->windows != NULL && i < count; i++) {
        struct vmml_survey_window *window =
            &survey->windows[survey->window_count];

        if (vmml_ledger_window_at(ledger, i, &window->view) != 0)
            continue;
        window->error =
            -vmml_ledger_collect(ledger, &window->view, 0, VMML_GRANULE,
                                 &window->chunks, &window->chunk_count);
        if (window->error == ENOENT) /* retired meanwhile */
            continue;
        survey->window_count++;
        add_bytes(survey, window);
    }
}

static void read_mirrors(struct vmml_survey *survey)
{
    unsigned i;

    for (i = 0; i < VMML_STATS_MIRRORS; i++)
        if (vmml_target_mirror(&survey->target, i,
                               &survey->mirrors[survey->mirror_count]))
            survey->mirror_count++;
}

/* Its own statistics say what it has mapped of the exporter. */
static void read_importer(const struct vmml_survey *survey, pid_t pid,
                          struct vmml_survey_importer *importer)
{
    struct vmml_stats_mirror mirror;
    struct vmml_target target;
    unsigned i;

    importer->pid = pid;
    if (vmml_target_open(pid, &target) != 0)
        return;
    memcpy(importer->name, target.name, sizeof(importer->name));
    importer->known = target.stats != NULL;
    for (i = 0; i < VMML_STATS_MIRRORS; i++) {
        if (!vmml_target_mirror(&target, i, &mirror) ||
            mirror.pid != survey->target.own_pid)
            continue;
        importer->chunks += mirror.chunks;
        importer->bytes += mirror.bytes;
    }
    vmml_target_close(&target);
}

static void read_importers(struct vmml_survey *survey)
{
    static pid_t pids[IMPORTERS_MAX];
    size_t count = vmml_target_importers(&survey->target, pids, IMPORTERS_MAX);
    size_t i;

    if (count > IMPORTERS_MAX)
        count = IMPORTERS_MAX;
    survey->importers = calloc(count, sizeof(*survey->importers));
    if (survey->importers == NULL)
        return;
    survey->importer_count = count;
    for (i = 0; i < count; i++)
        read_importer(survey, pids[i], &survey->importers[i]);
}

static uint64_t count_lost(const struct vmml_target *target)
{
    struct vmml_stats_lost lost;
    uint64_t sum = 0;
    unsigned i;

    for (i = 0; i < VMML_STATS_CAUSES; i++)
        if (i != VMML_CAUSE_REVOKED && vmml_target_lost(target, i, &lost))
            sum += lost.count;
    return sum;
}

static enum vmml_lane_state judge(const struct vmml_survey *survey)
{
    const struct vmml_target *target = &survey->target;
    bool up = survey->chunk_count > 0 ||
              vmml_target_count(target, VMML_COUNT_keys_served) > 0;

    if (!target->loaded)
        return VMML_LANE_NOT_LOADED;
    if (target->stats == NULL && target->ledger == NULL)
        return VMML_LANE_UNSEEN;
    if (survey->lost > 0)
        return up ? VMML_LANE_PARTLY : VMML_LANE_LOST;
    return up ? VMML_LANE_UP : VMML_LANE_UNUSED;
}

int vmml_survey_make(pid_t pid, struct vmml_survey *survey)
{
    int error;

    memset(survey, 0, sizeof(*survey));
    error = vmml_target_open(pid, &survey->target);
    if (error != 0)
        return error;
    if (survey->target.ledger != NULL) {
        read_windows(survey);
        read_importers(survey);
        if (survey->windows == NULL || survey->importers == NULL) {
            vmml_survey_free(survey);
            return ENOMEM;
        }
    }
    read_mirrors(survey);
    survey->lost = count_lost(&survey->target);
    survey->state = judge(survey);
    return 0;
}

void vmml_survey_free(struct vmml_survey *survey)
{
    size_t i;

    for (i = 0; i < survey->window_count; i++)
        free(survey->windows[i].chunks);
    free(survey->windows);
    free(survey->importers);
    vmml_target_close(&survey->target);
    survey->windows = NULL;
    survey->importers = NULL;
}

const char *vmml_survey_state(const struct vmml_survey *survey)
{
    static const char *const words[] = {
        [VMML_LANE_NOT_LOADED] = "not-loaded", [VMML_LANE_UNSEEN] = "unseen",
        [VMML_LANE_UNUSED] = "unused",         [VMML_LANE_UP] = "up",
        [VMML_LANE_PARTLY] = "partly-lost",    [VMML_LANE_LOST] = "lost",
    };

    return words[survey->state];
}

/* Why does it show nothing? */
static const char *unseen(const struct vmml_target *target)
{
    switch (target->stats_error) {
    case EPROTONOSUPPORT:
        return "it runs another version of vmmlane: use the vmmlane command "
               "of that one";
    case ENOENT:
        return "UCX has not asked it for GPU memory, or VMMLANE or "
               "VMMLANE_STATS is off, or the process closed its descriptors";
    default:
        return "what it shares is not what vmmlane writes";
    }
}

const char *vmml_survey_sentence(const struct vmml_survey *survey)
{
    switch (survey->state) {
    case VMML_LANE_NOT_LOADED:
        return "libvmmlane.so is not loaded: start it with vmmlane run";
    case VMML_LANE_UNSEEN:
        return unseen(&survey->target);
    case VMML_LANE_UNUSED:
        return "no key of VMM memory was made or read yet";
    case VMML_LANE_UP:
        return "every key has it";
    case VMML_LANE_PARTLY:
        return "some keys have it, others lost it: see the lost lanes";
    case VMML_LANE_LOST:
        return "no key has it: see the lost lanes";
    }
    return "";
}
