/* SPDX-License-Identifier: MIT */
/* The words of the settings that are one word of a list (toggles.def). */
#ifndef VMML_BASE_CHOICES_H
#define VMML_BASE_CHOICES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/conf.h"
#include "base/log.h"

struct vmml_choice {
    const char *word;
    int value;
};

static const struct vmml_choice vmml_on_off[] = {
    {"on", true}, {"off", false}, {NULL, 0}};
static const struct vmml_choice vmml_range_choices[] = {
    {"extent", VMML_RANGE_EXTENT},
    {"request", VMML_RANGE_REQUEST},
    {"off", VMML_RANGE_OFF},
    {NULL, 0}};
static const struct vmml_choice vmml_native_choices[] = {
    {"auto", VMML_NATIVE_AUTO}, {"never", VMML_NATIVE_NEVER}, {NULL, 0}};
static const struct vmml_choice vmml_pools_choices[] = {
    {"on", VMML_POOLS_ON},
    {"off", VMML_POOLS_OFF},
    {"default", VMML_POOLS_DEFAULT},
    {NULL, 0}};
static const struct vmml_choice vmml_format_choices[] = {
    {"text", VMML_LOG_FORMAT_TEXT}, {"json", VMML_LOG_FORMAT_JSON}, {NULL, 0}};
static const struct vmml_choice vmml_ipc_choices[] = {
    {"off", VMML_IPC_OFF}, {"all", VMML_IPC_ALL}, {NULL, 0}};
static const struct vmml_choice vmml_stats_choices[] = {
    {"on", VMML_STATS_ON},
    {"off", VMML_STATS_OFF},
    {"exit", VMML_STATS_EXIT},
    {NULL, 0}};
static const struct vmml_choice vmml_log_choices[] = {{"off", VMML_LOG_OFF},
                                                      {"error", VMML_LOG_ERROR},
                                                      {"warn", VMML_LOG_WARN},
                                                      {"info", VMML_LOG_INFO},
                                                      {"debug", VMML_LOG_DEBUG},
                                                      {"trace", VMML_LOG_TRACE},
                                                      {NULL, 0}};

#endif
