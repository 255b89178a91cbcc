/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/choices.h"
#include "base/remedy.h"
#include "base/spelling.h"
#include "command/settings.h"
#include "doctor/gates.h"
#include "mirror/pidfd.h"

/* ---- settings ---- */

unsigned vmml_gates_steps(const struct vmml_subject *subject, bool *valid)
{
    static const struct {
        const char *word;
        unsigned way;
    } words[] = {{"getfd", VMML_WAY_GETFD},
                 {"ptracer", VMML_WAY_PTRACER},
                 {"socket", VMML_WAY_SOCKET}};
    const char *list = vmml_subject_env(subject, "VMMLANE_TRANSPORT");
    unsigned ways = 0;

    *valid = true;
    if (list == NULL)
        return VMML_WAY_ALL;
    while (*list != '\0') {
        size_t length = strcspn(list, ","), i;

        for (i = 0; i < 3; i++)
            if (strlen(words[i].word) == length &&
                strncasecmp(list, words[i].word, length) == 0)
                break;
        if (i == 3 || (list[length] == ',' && list[length + 1] == '\0')) {
            *valid = false;
            return VMML_WAY_ALL;
        }
        ways |= words[i].way;
        list += length + (list[length] == ',');
    }
    return ways;
}

static void switches(struct vmml_report *report,
                     const struct vmml_subject *subject)
{
    bool on = vmml_subject_is_on(subject, "VMMLANE", true);
    bool share = vmml_subject_is_on(subject, "VMMLANE_SHARE", true);
    bool create = vmml_subject_is_on(subject, "VMMLANE_CREATE", true);

    vmml_report_add(report, on ? VMML_PASS : VMML_FAIL, "settings.on",
                    subject->about, "unset VMMLANE",
                    on ? "vmmlane is switched on" : "VMMLANE is off");
    vmml_report_add(report, share ? VMML_PASS : VMML_FAIL, "settings.share",
                    subject->about, "unset VMMLANE_SHARE",
                    share ? "memory is shared over cuda_ipc"
                          : "VMMLANE_SHARE is off: no key is made or read");
    vmml_report_add(report, create ? VMML_PASS : VMML_WARN, "settings.create",
                    subject->about, VMML_REMEDY_HANDLE_TYPE,
                    create ? "memory of handle type NONE is made shareable"
                           : "VMMLANE_CREATE is off: memory of handle type "
                             "NONE has no lane");
}

static void steps(struct vmml_report *report,
                  const struct vmml_subject *subject)
{
    const char *list = vmml_subject_env(subject, "VMMLANE_TRANSPORT");
    bool valid;

    vmml_gates_steps(subject, &valid);
    if (valid)
        vmml_report_add(report, VMML_PASS, "settings.transport", subject->about,
                        NULL, "%s",
                        list == NULL ? "getfd,ptracer,socket" : list);
    else
        vmml_report_add(report, VMML_WARN, "settings.transport", subject->about,
                        "a list of getfd, ptracer, socket",
                        "VMMLANE_TRANSPORT=%s is no such list: "
                        "getfd,ptracer,socket is used",
                        list);
}

/* The other spellings of a switch that the library takes. */
static bool is_switch_word(const struct vmml_setting *setting,
                           const char *value)
{
    static const char *const words[] = {"1", "y", "yes", "true",
                                        "0", "n", "no",  "false"};
    size_t i;

    if (!vmml_setting_takes(setting, "off"))
        return false;
    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(words[i], value) == 0)
            return true;
    return false;
}

/* True: none. */
static bool no_misspelt(struct vmml_report *report,
                        const struct vmml_subject *subject)
{
    const char *at = subject->environment, *meant;
    const char *end = at + subject->environment_size;
    char name[VMML_SETTING_NAME_MAX], remedy[96];
    bool good = true;

    for (; at != NULL && at < end; at += strlen(at) + 1) {
        if (!vmml_misspelt(at, name, &meant))
            continue;
        good = false;
        snprintf(remedy, sizeof(remedy), "%s%s",
                 meant != NULL ? "perhaps " : "`vmmlane --settings` lists them",
                 meant != NULL ? meant : "");
        vmml_report_add(
            report, VMML_WARN, "settings.values", subject->about, remedy,
            "%s is no setting of vmmlane, and changes nothing", name);
    }
    return good;
}

static void values(struct vmml_report *report,
                   const struct vmml_subject *subject)
{
    const struct vmml_setting *setting = vmml_settings_list;
    char words[256], remedy[320];
    bool good = no_misspelt(report, subject);

    for (; setting->variable != NULL; setting++) {
        const char *value = vmml_subject_env(subject, setting->variable);

        if (value == NULL || vmml_setting_takes(setting, value) ||
            is_switch_word(setting, value))
            continue;
        good = false;
        vmml_setting_words(setting, words, sizeof(words));
        snprintf(remedy, sizeof(remedy), "one of %s", words);
        vmml_report_add(report, VMML_WARN, "settings.values", subject->about,
                        remedy, "%s=%s is no value of it: the default is used",
                        setting->variable, value);
    }
    if (good)
        vmml_report_add(report, VMML_PASS, "settings.values", subject->about,
                        NULL, "each setting has a value that it takes");
}

/* Where is the shim in LD_PRELOAD (ld.so(8))? *path: the entry. */
static bool preload_entry(const struct vmml_subject *subject,
                          char path[PATH_MAX])
{
    const char *list = vmml_subject_env(subject, "LD_PRELOAD");

    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ": \t\n");
        const char *slash = memrchr(list, '/', length);
        const char *file = slash == NULL ? list : slash + 1;

        if (length < PATH_MAX && strncmp(file, "libvmmlane", 10) == 0) {
            memcpy(path, list, length);
            path[length] = '\0';
            return true;
        }
        list += length + (list[length] != '\0');
    }
    return false;
}

static void preload(struct vmml_report *report,
                    const struct vmml_subject *subject)
{
    char entry[PATH_MAX];

    if (!preload_entry(subject, entry))
        vmml_report_add(report, VMML_NOTE, "settings.preload", NULL,
                        "vmmlane run -- command ..., or LD_PRELOAD with the "
                        "path that `vmmlane --library` prints",
                        "LD_PRELOAD has no libvmmlane.so here");
    else if (strchr(entry, '/') != NULL && strchr(entry, '$') == NULL &&
             access(entry, R_OK) != 0)
        vmml_report_add(report, VMML_FAIL, "settings.preload", NULL,
                        "the path that `vmmlane --library` prints",
                        "LD_PRELOAD names %s: %s", entry, strerror(errno));
    else
        vmml_report_add(report, VMML_PASS, "settings.preload", NULL, NULL,
                        "LD_PRELOAD has %s", entry);
}

void vmml_gates_settings(struct vmml_report *report,
                         const struct vmml_subject *subject)
{
    if (!subject->environment_known)
        return;
    if (subject->pid == 0)
        preload(report, subject);
    switches(report, subject);
    steps(report, subject);
    values(report, subject);
}

/* ---- a running process ---- */

static bool readable(struct vmml_report *report,
                     const struct vmml_subject *subject)
{
    if (subject->environment_known && subject->files_known) {
        vmml_report_add(report, VMML_PASS, "process.readable", subject->about,
                        NULL, "%s, user %u, %lu descriptors open",
                        subject->command, (unsigned)subject->uid,
                        (unsigned long)subject->descriptors_used);
        return true;
    }
    vmml_report_add(report, VMML_FAIL, "process.readable", subject->about,
                    "ask as root, or as its user",
                    "%s (user %u) cannot be judged: its environment and maps "
                    "may not be read",
                    subject->command, (unsigned)subject->uid);
    return false;
}

static void preloaded(struct vmml_report *report,
                      const struct vmml_subject *subject)
{
    const char *file = vmml_subject_file(subject, "libvmmlane");
    char entry[PATH_MAX];

    if (file != NULL)
        vmml_report_add(report, VMML_PASS, "process.preloaded", subject->about,
                        NULL, "%s is loaded", file);
    else if (preload_entry(subject, entry))
        vmml_report_add(report, VMML_FAIL, "process.preloaded", subject->about,
                        "a path that exists in its container; no set-user-id "
                        "program, static executable or musl",
                        "LD_PRELOAD has %s, and it is not loaded", entry);
    else
        vmml_report_add(report, VMML_FAIL, "process.preloaded", subject->about,
                        "start it by `vmmlane run`",
                        "it was started without vmmlane");
}

static void cuda(struct vmml_report *report, const struct vmml_subject *subject)
{
    const char *file = vmml_subject_file(subject, "libcuda.so");

    vmml_report_add(report, file != NULL ? VMML_PASS : VMML_NOTE,
                    "process.cuda", subject->about, NULL,
                    file != NULL ? "%s is loaded" : "it uses no CUDA (yet)%.0s",
                    file != NULL ? file : "");
}

static void dumpable(struct vmml_report *report,
                     const struct vmml_subject *subject)
{
    bool socket =
        (vmml_gates_steps(subject, &(bool){true}) & VMML_WAY_SOCKET) != 0;

    if (subject->owner == subject->uid)
        vmml_report_add(report, VMML_PASS, "process.dumpable", subject->about,
                        NULL, "its user's processes may look at it");
    else
        vmml_report_add(report, socket ? VMML_WARN : VMML_FAIL,
                        "process.dumpable", subject->about, VMML_REMEDY_SOCKET,
                        "it is not dumpable (PR_SET_DUMPABLE, or it changed "
                        "its user): pidfd_getfd(2) is denied%s",
                        socket ? ", the socket remains"
                               : ", and the socket is switched off by "
                                 "VMMLANE_TRANSPORT");
}

static void filter(struct vmml_report *report,
                   const struct vmml_subject *subject,
                   const struct vmml_trial *trial)
{
    if (subject->seccomp == 0)
        vmml_report_add(report, VMML_PASS, "process.seccomp", subject->about,
                        NULL, "no filter");
    else if (trial->getfd == 0)
        vmml_report_add(report, VMML_NOTE, "process.seccomp", subject->about,
                        "run `vmmlane doctor` inside its container",
                        "a filter (mode %d); what it lets through cannot be "
                        "seen from outside",
                        subject->seccomp);
    else
        vmml_report_add(report, VMML_WARN, "process.seccomp", subject->about,
                        VMML_REMEDY_SECCOMP,
                        "a filter (mode %d), and pidfd_getfd(2) is denied here",
                        subject->seccomp);
}

/* pidfd_getfd(2) asks for the right before it looks at the number: with one
 * that is never open nothing is taken, and EBADF is a yes. */
static void taken(struct vmml_report *report,
                  const struct vmml_subject *subject)
{
    int pidfd = vmml_pidfd_open((uint32_t)subject->pid);
    int fd = pidfd < 0 ? pidfd : vmml_pidfd_getfd(pidfd, INT_MAX);

    if (pidfd >= 0)
        close(pidfd);
    if (fd >= 0)
        close(fd);
    vmml_report_add(report, fd >= 0 || fd == -EBADF ? VMML_PASS : VMML_WARN,
                    "process.pidfd_getfd", subject->about, VMML_REMEDY_PTRACE,
                    fd >= 0 || fd == -EBADF
                        ? "descriptors may be taken by user %u from here"
                        : "user %u may not take its descriptors from here: %s",
                    (unsigned)geteuid(), strerror(-fd));
}

void vmml_gates_process(struct vmml_report *report,
                        const struct vmml_subject *subject,
                        const struct vmml_trial *trial)
{
    if (!readable(report, subject))
        return;
    preloaded(report, subject);
    cuda(report, subject);
    dumpable(report, subject);
    filter(report, subject, trial);
    taken(report, subject);
}
