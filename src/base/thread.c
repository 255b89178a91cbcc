/* SPDX-License-Identifier: MIT */
#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

int vmml_thread_start(void *(*function)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int error = pthread_attr_init(&attr);

    if (error != 0)
        return error;
    error = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error == 0)
        error = pthread_create(&thread, &attr, function, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return error;
}
