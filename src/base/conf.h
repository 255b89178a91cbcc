/* SPDX-License-Identifier: MIT */
/*
 * The settings, read once from the environment.
 *
 * base/toggles.def is the one table of them: name, values, default, meaning.
 * A value that is not in the table gives one warning and the default.
 */
#ifndef VMML_BASE_CONF_H
#define VMML_BASE_CONF_H

#include <stdbool.h>

enum vmml_conf_range {
    VMML_RANGE_EXTENT,
    VMML_RANGE_REQUEST,
    VMML_RANGE_OFF,
};

enum vmml_conf_native {
    VMML_NATIVE_AUTO,  /* stand down where UCX does it right by itself */
    VMML_NATIVE_NEVER, /* serve those as well */
};

enum vmml_conf_log_format {
    VMML_LOG_FORMAT_TEXT,
    VMML_LOG_FORMAT_JSON, /* one object a line */
};

enum vmml_conf_stats {
    VMML_STATS_ON,
    VMML_STATS_OFF,
    VMML_STATS_EXIT, /* logged at the end as well */
};

enum vmml_conf_pools {
    VMML_POOLS_ON,
    VMML_POOLS_OFF,
    VMML_POOLS_DEFAULT, /* on, and each device gets a pool that can be shared */
};

enum vmml_conf_ipc {
    VMML_IPC_OFF,
    VMML_IPC_ALL, /* legacy IPC of VMM memory for any caller */
};

struct vmml_conf {
    bool on;                      /* VMMLANE */
    enum vmml_conf_range range;   /* VMMLANE_RANGE */
    const char *range_callers;    /* VMMLANE_RANGE_CALLERS: fnmatch patterns
                                   * of file names, ',' between; or NULL */
    bool share;                   /* VMMLANE_SHARE */
    bool create;                  /* VMMLANE_CREATE */
    enum vmml_conf_native native; /* VMMLANE_NATIVE */
    enum vmml_conf_pools pools;   /* VMMLANE_POOLS */
    enum vmml_conf_ipc ipc;       /* VMMLANE_IPC */
    const char *transport;        /* VMMLANE_TRANSPORT, or NULL: see
                                   * transport/steps.h */
    bool children;                /* VMMLANE_CHILDREN */
    bool strict;                  /* VMMLANE_STRICT */
    enum vmml_conf_stats stats;   /* VMMLANE_STATS */
    const char *metrics_file;     /* VMMLANE_METRICS_FILE, or NULL: %p, %h */
    enum vmml_conf_log_format log_format; /* VMMLANE_LOG_FORMAT */
    const char *log_rate; /* VMMLANE_LOG_RATE as text: conf_log.h */
};

/* The settings; read from the environment by the first call, which also opens
 * the log. Usable at any time, also before main. Never NULL. */
const struct vmml_conf *vmml_conf(void);

/* VMMLANE_CHILDREN alone, as the environment has it now: asked in every
 * process, also where nothing is to be said of bad values. */
bool vmml_conf_children(void);

#endif
