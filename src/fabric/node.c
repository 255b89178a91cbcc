/* SPDX-License-Identifier: MIT */
#include "fabric/node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/hash.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

static uint64_t read_id(void)
{
    char text[64];
    ssize_t length;
    int fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    do {
        length = read(fd, text, sizeof(text));
    } while (length < 0 && errno == EINTR);
    close(fd);
    if (length <= 0)
        return 0;
    return vmml_mix64(vmml_fnv1a64(VMML_FNV_START, text, (size_t)length));
}

uint64_t vmml_node_id(void)
{
    static _Atomic uint64_t known;
    uint64_t id = atomic_load_explicit(&known, memory_order_relaxed);

    if (id == 0) {
        id = read_id();
        atomic_store_explicit(&known, id, memory_order_relaxed);
    }
    return id;
}

uint8_t vmml_node_byte(void)
{
    uint64_t id = vmml_node_id();

    return id == 0 ? 0 : (uint8_t)(id % 255 + 1);
}
