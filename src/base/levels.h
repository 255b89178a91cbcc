/* SPDX-License-Identifier: MIT */
/*
 * VMMLANE_LOG: a level, and levels of topics: `warn`, `warn,mirror=debug`,
 * `lane=trace,mirror=trace`. What comes later in the list wins; a topic that is
 * not named has the level that stands alone, warn where there is none.
 */
#ifndef VMML_BASE_LEVELS_H
#define VMML_BASE_LEVELS_H

#include <stdbool.h>

/* A topic is the name of a source folder. */
#define VMML_LOG_TOPICS    17
#define VMML_LOG_TOPIC_MAX 16 /* bytes, with the zero */

extern const char *const vmml_log_topics[VMML_LOG_TOPICS];

struct vmml_log_levels {
    unsigned char rest; /* enum vmml_log_level */
    unsigned char of[VMML_LOG_TOPICS];
};

/* False, and `levels` is left alone, where a word of it is not known. */
bool vmml_log_levels_parse(const char *text, struct vmml_log_levels *levels);

/* enum vmml_log_level */
int vmml_log_level_of(const struct vmml_log_levels *levels, const char *topic);

/* The highest of them. */
int vmml_log_level_highest(const struct vmml_log_levels *levels);

#endif
