/* SPDX-License-Identifier: MIT */
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

/* Without signals. attr: NULL for the default. */
static int start(void *(*function)(void *), void *arg,
                 const pthread_attr_t *attr, pthread_t *thread)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, attr, function, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int vmml_thread_start(void *(*function)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;
    int error = pthread_attr_init(&attr);

    if (error != 0)
        return error;
    error = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (error == 0)
        error = start(function, NULL, &attr, &thread);
    pthread_attr_destroy(&attr);
    return error;
}

int vmml_thread_start_joinable(void *(*function)(void *), void *arg,
                               pthread_t *thread)
{
    return start(function, arg, NULL, thread);
}

void vmml_thread_join(pthread_t thread)
{
    int state;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_join(thread, NULL);
    pthread_setcancelstate(state, NULL);
}
