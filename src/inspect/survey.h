/* SPDX-License-Identifier: MIT */
/*
 * All that there is to say of a process, read at one moment.
 */
#ifndef VMML_INSPECT_SURVEY_H
#define VMML_INSPECT_SURVEY_H

#include "inspect/target.h"
#include "stats/names.h"

struct vmml_survey_window {
    struct vmml_window_view view;
    struct vmml_chunk_view *chunks; /* chunk_count of them, newest first */
    size_t chunk_count;
    uint64_t bytes;
    int error; /* of reading its chunks: 0 or errno; EAGAIN: it changes */
};

struct vmml_survey_importer {
    pid_t pid;
    char name[32];
    bool known;      /* it has statistics: */
    uint64_t chunks; /* that it has mapped of this process */
    uint64_t bytes;
};

enum vmml_lane_state {
    VMML_LANE_NOT_LOADED, /* no libvmmlane.so in the process */
    VMML_LANE_UNSEEN,     /* it has nothing that shows what it does */
    VMML_LANE_UNUSED,     /* no key of VMM memory yet */
    VMML_LANE_UP,
    VMML_LANE_PARTLY, /* up, and lost for some memory or some peer */
    VMML_LANE_LOST,
};

struct vmml_survey {
    struct vmml_target target;
    enum vmml_lane_state state;
    uint64_t lost; /* lanes, in all */
    struct vmml_survey_window *windows;
    size_t window_count;
    size_t chunk_count;
    uint64_t bytes; /* published now */
    struct vmml_survey_importer *importers;
    size_t importer_count;
    struct vmml_stats_mirror mirrors[VMML_STATS_MIRRORS];
    size_t mirror_count;
};

/* Returns 0, or an errno: ESRCH, EACCES, ENOMEM. Then nothing is to be freed.
 */
int vmml_survey_make(pid_t pid, struct vmml_survey *survey);
void vmml_survey_free(struct vmml_survey *survey);

/* A word for the state ("up"), and a sentence about this one. */
const char *vmml_survey_state(const struct vmml_survey *survey);
const char *vmml_survey_sentence(const struct vmml_survey *survey);

#endif
