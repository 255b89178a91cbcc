/* SPDX-License-Identifier: MIT */
#include "base/quiet.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

static void drop_pending(sigset_t *ours, int signal)
{
    sigset_t pending;

    sigemptyset(&pending);
    sigpending(&pending);
    if (sigismember(&pending, signal) == 1)
        sigdelset(ours, signal);
}

void vmml_quiet_begin(struct vmml_quiet *quiet)
{
    sigset_t both;

    sigemptyset(&both);
    sigaddset(&both, SIGPIPE);
    sigaddset(&both, SIGXFSZ);
    quiet->ours = both;
    drop_pending(&quiet->ours, SIGPIPE);
    drop_pending(&quiet->ours, SIGXFSZ);
    quiet->blocked = pthread_sigmask(SIG_BLOCK, &both, &quiet->before) == 0;
}

void vmml_quiet_end(struct vmml_quiet *quiet, bool raised)
{
    static const struct timespec no_wait;
    int saved = errno;

    if (!quiet->blocked)
        return;
    while (raised &&
           (sigtimedwait(&quiet->ours, NULL, &no_wait) > 0 || errno == EINTR))
        continue;
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
    errno = saved;
}
