/*
 * Many kinds of memory in one pair of processes, for the compatibility matrix
 * (matrix.py): GET and PUT of each, under the name of its cell.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void get(const struct key *key, uint64_t seed, const char *cell)
{
    report_detail(key->remote, "get",
                  key_get(key, key->offset, key->length, seed), cell);
}

static void put(const struct key *key, const char *cell)
{
    report_detail(key->remote, "put",
                  key_put(key, key->offset, key->length, new_seed()), cell);
}

static void end(struct key *key)
{
    key_destroy(key);
    key_deregister(key);
}

/* Both keys serve after the memory has grown. */
static void grow(struct remote *remote, uint64_t seed, const char *cell)
{
    struct key old = key_make_all(remote);
    struct key all;

    get(&old, seed, cell);
    seed = new_seed();
    remote_grow(remote, remote->chunk_count, false);
    remote_fill(remote, remote->offset, remote->length, seed);
    all = key_make_all(remote);
    get(&all, seed, cell);
    get(&old, seed, cell);
    put(&all, cell);
    end(&old);
    end(&all);
}

static void reback(struct remote *remote, uint64_t seed, const char *cell)
{
    struct key old = key_make_all(remote);
    struct key key;

    get(&old, seed, cell);
    seed = new_seed();
    remote_unmap(remote, 0, remote->chunk_count, false);
    remote_map(remote, 0, remote->chunk_count);
    remote_fill(remote, remote->offset, remote->length, seed);
    key = key_make_all(remote);
    get(&key, seed, cell);
    put(&key, cell);
    end(&old);
    end(&key);
}

static void plain(struct remote *remote, uint64_t seed, const char *cell)
{
    struct key key = key_make_all(remote);

    get(&key, seed, cell);
    put(&key, cell);
    end(&key);
}

static void run_cell(const char *cell, const char *specification)
{
    uint64_t seed = new_seed();
    struct remote remote = filled(specification, seed);

    if (strcmp(cell, "grown") == 0)
        grow(&remote, seed, cell);
    else if (strcmp(cell, "re-backed") == 0)
        reback(&remote, seed, cell);
    else
        plain(&remote, seed, cell);
    remote_free(&remote);
}

/* The memory is a list: CELL=SPECIFICATION,... */
void scenario_matrix(void)
{
    char *list = strdup(opt.kind);
    char *rest = list;
    char *cell;

    if (list == NULL)
        die(EXIT_SETUP, "out of memory");
    while ((cell = strsep(&rest, ",")) != NULL) {
        char *specification = strchr(cell, '=');

        if (specification == NULL)
            die(EXIT_USAGE, "the scenario 'matrix' needs CELL=MEMORY,...");
        *specification++ = '\0';
        run_cell(cell, specification);
    }
    free(list);
}
