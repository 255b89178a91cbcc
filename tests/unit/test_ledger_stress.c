/* SPDX-License-Identifier: MIT */
/*
 * One exporter and several importers at the same time, as threads and as
 * processes. What an importer sees must be a state that was.
 *
 * Every chunk's device is a hash of its other fields, so that a torn one is
 * noticed. And a view says how many chunks it must hold: those published up to
 * its newest serial, less its revocations.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ledger/reader.h"
#include "ledger/writer.h"

#define GRANULE   (2ull << 20)
#define BASE      0x7f0000000000ull
#define PLACES    512u
#define SIZE      (2 * GRANULE * PLACES)
#define CHANGES   200000u
#define IMPORTERS 2

static const uint8_t uuid[16];

struct shared {
    atomic_bool done;
    atomic_ulong views;     /* consistent ones seen */
    atomic_ulong additions; /* of these, only what was new */
    atomic_ulong again;     /* -EAGAIN */
    atomic_ulong wrong;
    uint64_t first_revoked;
};

struct exporter {
    struct vmml_ledger *ledger;
    struct shared *shared;
    uint32_t window;
    int slots[PLACES]; /* -1: nothing is mapped there */
};

static uint32_t hash_of(uint64_t address, uint64_t size, int fd)
{
    return (uint32_t)vmml_mix64(address + vmml_mix64(size + (uint64_t)fd));
}

static void check(struct shared *shared, bool right)
{
    if (!right)
        atomic_fetch_add(&shared->wrong, 1);
}

/* --- exporter ------------------------------------------------------------- */

static void set_up(struct exporter *exporter, struct shared *shared)
{
    int window;
    unsigned i;

    assert_int_equal(vmml_ledger_create(&exporter->ledger), 0);
    window = vmml_ledger_add_window(exporter->ledger, BASE, SIZE, 0, uuid);
    assert_true(window >= 0);
    exporter->window = (uint32_t)window;
    exporter->shared = shared;
    for (i = 0; i < PLACES; i++)
        exporter->slots[i] = -1;
}

static void publish(struct exporter *exporter, unsigned place, uint64_t random)
{
    uint64_t address = BASE + 2 * GRANULE * place;
    uint64_t size = random & 1 ? GRANULE : 2 * GRANULE, serial;
    int fd = (int)(random >> 40);

    exporter->slots[place] =
        vmml_ledger_publish(exporter->ledger, exporter->window, address, size,
                            fd, hash_of(address, size, fd), &serial);
    check(exporter->shared, exporter->slots[place] >= 0);
}

static void unmap(struct exporter *exporter, unsigned place, uint64_t random)
{
    uint32_t slot = (uint32_t)exporter->slots[place];
    uint64_t serial;

    if (random & 2)
        vmml_ledger_begin_unmap(exporter->ledger, slot);
    if ((random & 12) == 4) {
        vmml_ledger_restore(exporter->ledger, slot, &serial);
        return;
    }
    vmml_ledger_kill(exporter->ledger, slot);
    exporter->slots[place] = -1;
}

static void pause_a_little(void)
{
    int i;

    for (i = 0; i < 200; i++)
        atomic_signal_fence(memory_order_seq_cst);
}

static void change(struct exporter *exporter)
{
    uint64_t random = 1;
    unsigned i;

    for (i = 0; i < CHANGES; i++) {
        unsigned place;

        random = vmml_mix64(random + 0x9e3779b97f4a7c15ull);
        place = (unsigned)(random >> 20) % PLACES;
        /* In turns, additions slowly: a view of them alone needs a while in
         * which nothing is revoked. */
        if (exporter->slots[place] < 0 && i / 512 % 2 == 0) {
            publish(exporter, place, random);
            pause_a_little();
        } else if (exporter->slots[place] >= 0 && i / 512 % 2 != 0) {
            unmap(exporter, place, random);
        }
        /* Importers are to get somewhere on a small machine. */
        if (i % 3000 == 0)
            usleep(20);
    }
    atomic_store(&exporter->shared->done, true);
}

/* --- importer ------------------------------------------------------------- */

static void check_chunks(struct shared *shared,
                         const struct vmml_chunk_view *chunks, size_t count,
                         uint64_t since, uint64_t newest)
{
    size_t i;

    for (i = 0; i < count; i++) {
        check(shared,
              chunks[i].device ==
                  hash_of(chunks[i].address, chunks[i].size, chunks[i].fd));
        check(shared, chunks[i].serial > since && chunks[i].serial <= newest);
        check(shared, i == 0 || chunks[i].serial < chunks[i - 1].serial);
    }
}

static void collect(struct vmml_ledger_reader *reader, struct shared *shared,
                    struct vmml_window_view *view, uint64_t since)
{
    struct vmml_chunk_view *chunks = NULL;
    struct vmml_window_view before = *view;
    size_t count = 0;
    int status;

    status = vmml_ledger_collect(reader, view, since, GRANULE, &chunks, &count);
    if (status == -EAGAIN) {
        atomic_fetch_add(&shared->again, 1);
        return;
    }
    check(shared, status == 0);
    if (status != 0)
        return;
    check_chunks(shared, chunks, count, since, view->newest);
    check(shared, view->newest >= before.newest);
    check(shared, view->revoked >= before.revoked);
    if (since == 0) {
        atomic_fetch_add(&shared->views, 1);
        check(shared,
              count == view->newest - (view->revoked - shared->first_revoked));
    } else {
        atomic_fetch_add(&shared->additions, 1);
        check(shared, count <= view->newest - since);
    }
    free(chunks);
}

static void import(int fd, const uint8_t *nonce, struct shared *shared)
{
    struct vmml_ledger_reader *reader;
    struct vmml_window_view view;

    if (vmml_ledger_open(fd, nonce, &reader) != 0) {
        check(shared, false);
        return;
    }
    while (!atomic_load(&shared->done)) {
        bool revoked;

        if (vmml_ledger_find_window(reader, BASE, SIZE, &view) != 0) {
            atomic_fetch_add(&shared->again, 1);
            continue;
        }
        collect(reader, shared, &view, 0);
        if (vmml_ledger_window_changed(reader, &view, &revoked) && !revoked)
            collect(reader, shared, &view, view.newest);
    }
    /* At rest: the last state, at the first try. */
    if (vmml_ledger_find_window(reader, BASE, SIZE, &view) == 0)
        collect(reader, shared, &view, 0);
    else
        check(shared, false);
    vmml_ledger_close(reader);
}

static struct shared *share(void)
{
    struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(shared != MAP_FAILED);
    /* A new window counts its making as a revocation. */
    shared->first_revoked = 1;
    return shared;
}

static void assert_right(struct shared *shared)
{
    print_message("%lu views, %lu additions, %lu times again\n",
                  atomic_load(&shared->views), atomic_load(&shared->additions),
                  atomic_load(&shared->again));
    assert_int_equal(atomic_load(&shared->wrong), 0);
    assert_true(atomic_load(&shared->views) >= IMPORTERS);
    munmap(shared, sizeof(*shared));
}

/* --- tests ---------------------------------------------------------------- */

static struct exporter exporter;

static void *import_thread(void *shared)
{
    import(vmml_ledger_fd(exporter.ledger), vmml_ledger_nonce(exporter.ledger),
           shared);
    return NULL;
}

static void test_threads(void **state)
{
    struct shared *shared = share();
    pthread_t ids[IMPORTERS];
    int i;

    set_up(&exporter, shared);
    for (i = 0; i < IMPORTERS; i++)
        assert_int_equal(pthread_create(&ids[i], NULL, import_thread, shared),
                         0);
    change(&exporter);
    for (i = 0; i < IMPORTERS; i++)
        assert_int_equal(pthread_join(ids[i], NULL), 0);
    vmml_ledger_destroy(exporter.ledger);
    assert_right(shared);
}

static void test_processes(void **state)
{
    struct shared *shared = share();
    int i, status;

    set_up(&exporter, shared);
    for (i = 0; i < IMPORTERS; i++) {
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) {
            import(vmml_ledger_fd(exporter.ledger),
                   vmml_ledger_nonce(exporter.ledger), shared);
            _exit(0);
        }
    }
    change(&exporter);
    for (i = 0; i < IMPORTERS; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    vmml_ledger_destroy(exporter.ledger);
    assert_right(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_processes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
