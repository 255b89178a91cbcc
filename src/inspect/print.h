/* SPDX-License-Identifier: MIT */
/* A survey as text for people and as JSON for tools. */
#ifndef VMML_INSPECT_PRINT_H
#define VMML_INSPECT_PRINT_H

#include <stdbool.h>
#include <stdio.h>

#include "command/json.h"
#include "inspect/survey.h"

/* chunks: each one of every window. */
void vmml_survey_print(const struct vmml_survey *survey, bool chunks,
                       FILE *out);
void vmml_survey_json(const struct vmml_survey *survey, bool chunks,
                      struct vmml_json *json);

#endif
