/* SPDX-License-Identifier: MIT */
#include "base/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/quiet.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

int vmml_memfd_resize(int fd, size_t size)
{
    struct vmml_quiet quiet;
    int status;

    vmml_quiet_begin(&quiet);
    status = ftruncate(fd, (off_t)size) == 0 ? 0 : -errno;
    vmml_quiet_end(&quiet, status != 0);
    return status;
}

int vmml_memfd_allocate(int fd, size_t offset, size_t length)
{
    int status;

    do {
        status = fallocate(fd, 0, (off_t)offset, (off_t)length);
    } while (status != 0 && errno == EINTR);
    return status == 0 ? 0 : -errno;
}

int vmml_memfd_seal(int fd)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

    if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) == 0)
        return 0;
    if (errno == EINVAL && fcntl(fd, F_ADD_SEALS, seals) == 0)
        return 0;
    return -errno;
}
