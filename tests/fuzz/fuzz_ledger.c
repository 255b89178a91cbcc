/* SPDX-License-Identifier: MIT */
/*
 * A right ledger with words of it overwritten. Each 12 bytes of the input are
 * one change: where (a part and an entry, 2 bytes), offset in it (1 byte),
 * width (1 byte), value (8 bytes). Then it is used as an importer does.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ledger/reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define GRANULE (2ull << 20)
#define BASE    0x7f0000000000ull
#define SIZE    (64 * GRANULE)
#define WINDOWS 4u
#define CHUNKS  32u

#define CHANGE_SIZE 12
#define CHANGES_MAX 64

static const uint8_t nonce[VMML_NONCE_SIZE] = {1};

static uint8_t *map;
static int fd = -1;
static struct vmml_ledger_header *header;
static struct vmml_ledger_window *windows;
static struct vmml_ledger_chunk *chunks;

static _Atomic uint32_t *bucket_of(uint32_t window)
{
    _Atomic uint32_t *buckets = (void *)(map + VMML_LEDGER_BUCKET_OFFSET);

    return &buckets[vmml_ledger_bucket(BASE + window * SIZE, SIZE)];
}

static void fill_chunk(uint32_t i)
{
    struct vmml_ledger_chunk *chunk = &chunks[i];
    uint32_t window = i % WINDOWS;

    chunk->serial = i + 1;
    chunk->address = BASE + window * SIZE + i / WINDOWS * GRANULE;
    chunk->size = GRANULE;
    chunk->window = window;
    chunk->next = i < WINDOWS ? VMML_LEDGER_NONE : i - WINDOWS;
    /* Every fourth one is shared by a fabric handle. */
    chunk->fd = i % 4 == 0 ? -1 : (int)i;
    chunk->state = VMML_CHUNK_LIVE;
    chunk->kind = i % 4 == 0 ? VMML_CHUNK_FABRIC : VMML_CHUNK_FD;
}

static void fill_window(uint32_t i)
{
    struct vmml_ledger_window *window = &windows[i];

    window->base = BASE + i * SIZE;
    window->size = SIZE;
    window->state = VMML_WINDOW_SERVED;
    window->head = CHUNKS - WINDOWS + i;
    window->live = CHUNKS / WINDOWS;
    window->newest = CHUNKS;
    *bucket_of(i) = i + 1;
}

static void fill(void)
{
    uint32_t i;

    memset(map, 0, VMML_LEDGER_HEADER_SIZE);
    memset(windows, 0, WINDOWS * sizeof(*windows));
    memset(chunks, 0, CHUNKS * sizeof(*chunks));
    header->magic = VMML_LEDGER_MAGIC;
    header->version = VMML_LEDGER_VERSION;
    header->header_size = VMML_LEDGER_HEADER_SIZE;
    memcpy(header->nonce, nonce, sizeof(nonce));
    header->window_capacity = VMML_LEDGER_WINDOWS_MAX;
    header->chunk_capacity = VMML_LEDGER_CHUNKS_MAX;
    header->window_count = WINDOWS;
    header->chunk_count = CHUNKS;
    for (i = 0; i < WINDOWS; i++)
        fill_window(i);
    for (i = 0; i < CHUNKS; i++)
        fill_chunk(i);
}

static void make(void)
{
    fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, VMML_LEDGER_FILE_SIZE) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        abort();
    map = mmap(NULL, VMML_LEDGER_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
               fd, 0);
    if (map == MAP_FAILED)
        abort();
    header = (void *)map;
    windows = (void *)(map + VMML_LEDGER_WINDOW_OFFSET);
    chunks = (void *)(map + VMML_LEDGER_CHUNK_OFFSET);
}

static void change(const uint8_t *at)
{
    uint8_t entry = at[1], offset = at[2];
    size_t width = (size_t)1 << (at[3] & 3);
    uint8_t *part;
    size_t size;

    switch (at[0] & 3) {
    case 0:
        part = (void *)header;
        size = sizeof(*header);
        break;
    case 1:
        part = (void *)&windows[entry % WINDOWS];
        size = sizeof(*windows);
        break;
    case 2:
        part = (void *)&chunks[entry % CHUNKS];
        size = sizeof(*chunks);
        break;
    default:
        part = (void *)bucket_of(entry % WINDOWS);
        size = sizeof(uint32_t);
        width = 4;
        break;
    }
    memcpy(part + offset % size / width * width, at + 4, width);
}

/* A sequence that is odd for ever costs milliseconds of waiting: unit tests
 * look at that. */
static void make_even(void)
{
    uint32_t i;

    header->directory_sequence &= ~1u;
    for (i = 0; i < WINDOWS; i++)
        windows[i].sequence &= ~1u;
}

static void check_view(const struct vmml_chunk_view *view, size_t count,
                       uint64_t base, uint64_t granule)
{
    size_t i, j;

    if (count > SIZE / granule)
        abort();
    for (i = 0; i < count; i++) {
        if (view[i].address < base || view[i].size == 0 ||
            view[i].size > SIZE || view[i].address + view[i].size > base + SIZE)
            abort();
        if (view[i].address % granule != 0 || view[i].size % granule != 0 ||
            view[i].slot >= VMML_LEDGER_CHUNKS_MAX)
            abort();
        if (view[i].kind == VMML_CHUNK_FD
                ? view[i].fd < 0
                : view[i].kind != VMML_CHUNK_FABRIC || view[i].fd != -1)
            abort();
        for (j = 0; j < i; j++) {
            if (view[i].address < view[j].address + view[j].size &&
                view[j].address < view[i].address + view[i].size)
                abort();
        }
    }
}

static void use(const struct vmml_ledger_reader *reader, uint64_t granule,
                uint64_t since)
{
    struct vmml_chunk_view *view = NULL;
    struct vmml_window_view window;
    uint8_t handle[VMML_FABRIC_WORDS * 8];
    bool revoked;
    size_t count, i;
    uint32_t w;

    for (w = 0; w < WINDOWS; w++) {
        if (vmml_ledger_find_window(reader, BASE + w * SIZE, SIZE, &window) !=
            0)
            continue;
        (void)vmml_ledger_window_changed(reader, &window, &revoked);
        (void)*vmml_ledger_revoked_word(reader, window.index);
        if (vmml_ledger_collect(reader, &window, since, granule, &view,
                                &count) != 0)
            continue;
        check_view(view, count, BASE + w * SIZE, granule);
        for (i = 0; i < count; i++) {
            if (!vmml_ledger_is_live(reader, view[i].slot, view[i].serial) ||
                !vmml_ledger_fabric_handle(reader, &view[i], handle))
                abort();
        }
        free(view);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct vmml_ledger_reader *reader;
    uint64_t granule, since;
    size_t at;
    int status;

    if (size < 2 || size > 2 + CHANGES_MAX * CHANGE_SIZE)
        return 0;
    if (fd < 0)
        make();
    fill();
    for (at = 2; at + CHANGE_SIZE <= size; at += CHANGE_SIZE)
        change(data + at);
    make_even();
    granule = GRANULE >> (data[0] & 15);
    since = data[1] & 63;
    status = vmml_ledger_open(fd, nonce, &reader);
    if (status != 0) {
        if (status != -EPROTO && status != -ESTALE &&
            status != -EPROTONOSUPPORT)
            abort();
        /* The header was good when it was opened. */
        fill();
        if (vmml_ledger_open(fd, nonce, &reader) != 0)
            abort();
        for (at = 2; at + CHANGE_SIZE <= size; at += CHANGE_SIZE)
            change(data + at);
        make_even();
    }
    use(reader, granule, since);
    vmml_ledger_close(reader);
    return 0;
}
