/* SPDX-License-Identifier: MIT */
#include "transport/steps.h"

#include <pthread.h>
#include <string.h>
#include <strings.h>

#include "base/conf.h"
#include "base/log.h"

static const enum vmml_step defaults[VMML_STEPS] = {
    VMML_STEP_GETFD,
    VMML_STEP_PTRACER,
    VMML_STEP_SOCKET,
};

static enum vmml_step step_of(const char *word, size_t length)
{
    static const struct {
        const char *name;
        enum vmml_step step;
    } names[] = {
        {"getfd", VMML_STEP_GETFD},
        {"ptracer", VMML_STEP_PTRACER},
        {"socket", VMML_STEP_SOCKET},
    };
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i].name) == length &&
            strncasecmp(names[i].name, word, length) == 0)
            return names[i].step;
    return VMML_STEP_NONE;
}

static bool parse(const char *text, enum vmml_step steps[VMML_STEPS])
{
    size_t count = 0;

    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        enum vmml_step step = step_of(text, length);

        if (step == VMML_STEP_NONE || count == VMML_STEPS)
            return false;
        steps[count++] = step;
        text += length;
        /* A comma is between two steps. */
        if (*text == ',' && *++text == '\0')
            return false;
    }
    return count > 0;
}

static enum vmml_step chosen[VMML_STEPS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    const char *text = vmml_conf()->transport;

    if (text != NULL) {
        if (parse(text, chosen))
            return;
        vmml_warn("VMMLANE_TRANSPORT=%s: a list of getfd, ptracer, socket is "
                  "expected; getfd,ptracer,socket is used",
                  text);
    }
    memcpy(chosen, defaults, sizeof(chosen));
}

const enum vmml_step *vmml_steps(void)
{
    pthread_once(&once, choose);
    return chosen;
}

bool vmml_step_allowed(enum vmml_step step)
{
    const enum vmml_step *steps = vmml_steps();
    size_t i;

    for (i = 0; i < VMML_STEPS; i++)
        if (steps[i] == step)
            return true;
    return false;
}
