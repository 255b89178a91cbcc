/*
 * PUT, fence, PUT (E5): the flag never comes before the data.
 *
 * UCX orders the two by the stream that it posts them on, and keys of vmmlane
 * have a stream of their own. "fence-unwatched" calls ucp_worker_fence() past
 * vmmlane and so shows that the order of "fence" is vmmlane's doing.
 */
#include "client.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 5 };

typedef ucs_status_t (*fence_function)(ucp_worker_h worker);

static const void *dynamic_entry(const struct link_map *map, Elf64_Sxword tag)
{
    const Elf64_Dyn *entry;

    for (entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == tag)
            return (const void *)entry->d_un.d_ptr;
    }
    die(EXIT_SETUP, "libucp has no dynamic entry %ld", (long)tag);
}

/* UCX's own: read from the library's symbols, since vmmlane's dlsym() answers
 * with its hook. Linkers put the names behind the symbols. */
static fence_function unwatched_fence(void)
{
    const struct link_map *map = dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD);
    const Elf64_Sym *symbol;
    const char *names;
    fence_function fence;

    if (map == NULL)
        die(EXIT_SETUP, "libucp: %s", dlerror());
    names = dynamic_entry(map, DT_STRTAB);
    for (symbol = dynamic_entry(map, DT_SYMTAB);
         (const char *)(symbol + 1) <= names; symbol++) {
        if (symbol->st_shndx != SHN_UNDEF &&
            strcmp(names + symbol->st_name, "ucp_worker_fence") == 0) {
            Elf64_Addr address = map->l_addr + symbol->st_value;

            memcpy(&fence, &address, sizeof(fence));
            return fence;
        }
    }
    die(EXIT_SETUP, "libucp has no ucp_worker_fence");
}

static ucs_status_t post_fenced(const struct transfer *data,
                                const struct transfer *flag,
                                fence_function fence, char *lane)
{
    ucs_status_ptr_t first = transfer_post(data, lane);
    ucs_status_ptr_t second;
    ucs_status_t status = fence(ucx.worker);
    ucs_status_t other;

    if (status != UCS_OK)
        die(EXIT_SETUP, "ucp_worker_fence: %s", ucs_status_string(status));
    second = transfer_post(flag, NULL);
    status = transport_wait(first);
    other = transport_wait(second);
    if (status == UCS_OK)
        status = other;
    return status == UCS_OK ? transport_flush(ucx.ep) : status;
}

/* The exporter polls the flag and then compares the data. */
static struct outcome fence_round(const struct key *data,
                                  const struct key *flag, uint64_t value,
                                  fence_function fence)
{
    uint64_t seed = new_seed();
    struct outcome outcome = {.verdict = BYTES_NONE};
    CUdeviceptr local = local_buffer(data->length + sizeof(value));
    struct transfer t = {.operation = OP_PUT,
                         .local = local,
                         .length = data->length,
                         .remote = data->remote->base + data->offset,
                         .rkey = data->rkey};
    struct transfer f = {.operation = OP_PUT,
                         .local = local + data->length,
                         .length = sizeof(value),
                         .remote = flag->remote->base + flag->offset,
                         .rkey = flag->rkey};
    struct wire_header h = {.command = CMD_WATCH,
                            .args = {data->remote->id, data->offset,
                                     data->length, seed, flag->remote->id,
                                     flag->offset, value}};
    void *payload;

    device_fill(local, data->length, seed, data->offset);
    CU_MUST(cuMemcpyHtoD(local + data->length, &value, sizeof(value)));
    wire_send(opt.fd, &h, NULL);
    outcome.status = post_fenced(&t, &f, fence, outcome.lane);
    transport_until_readable(opt.fd);
    if (!wire_receive(opt.fd, &h, &payload))
        die(EXIT_SETUP, "the exporter died while it watched the flag");
    free(payload);
    outcome.verdict = h.args[0] == 0 ? BYTES_OK : BYTES_BAD;
    return outcome;
}

static bool on_cuda_ipc(const struct key *key, uint64_t seed)
{
    struct outcome outcome = key_get(key, key->offset, key->length, seed);

    return outcome.status == UCS_OK && strcmp(outcome.lane, "cuda_ipc") == 0;
}

struct pair {
    struct remote vmm;
    struct remote plain;
    struct key vmm_key;
    struct key plain_key;
};

/* While it polls, the exporter could not answer emulated PUTs: false where not
 * both are on cuda_ipc. */
static bool make_pair(struct pair *pair)
{
    uint64_t seed = new_seed();
    char specification[64];

    pair->vmm = filled(opt.kind, seed);
    pair->vmm_key = key_make_all(&pair->vmm);
    snprintf(specification, sizeof(specification), "malloc:%llu",
             (unsigned long long)pair->vmm.length);
    pair->plain = filled(specification, seed);
    pair->plain_key = key_make_all(&pair->plain);
    if (on_cuda_ipc(&pair->vmm_key, seed) &&
        on_cuda_ipc(&pair->plain_key, seed))
        return true;
    printf("skip %s: not on cuda_ipc\n", opt.scenario);
    return false;
}

static void free_pair(struct pair *pair)
{
    key_destroy(&pair->vmm_key);
    key_destroy(&pair->plain_key);
    remote_free(&pair->plain);
    remote_free(&pair->vmm);
}

void scenario_fence(void)
{
    struct pair pair;

    if (!make_pair(&pair))
        return;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        report_detail(&pair.vmm, "put-fence-put",
                      fence_round(&pair.vmm_key, &pair.plain_key, 2 * i,
                                  ucp_worker_fence),
                      "data-vmm");
        report_detail(&pair.plain, "put-fence-put",
                      fence_round(&pair.plain_key, &pair.vmm_key, 2 * i + 1,
                                  ucp_worker_fence),
                      "data-malloc");
    }
    free_pair(&pair);
}

void scenario_fence_unwatched(void)
{
    fence_function fence = unwatched_fence();
    bool wrong = false;
    struct pair pair;

    if (!make_pair(&pair))
        return;
    for (uint64_t i = 1; i <= ROUNDS && !wrong; i++)
        wrong =
            fence_round(&pair.vmm_key, &pair.plain_key, 2 * i, fence).verdict ==
                BYTES_BAD ||
            fence_round(&pair.plain_key, &pair.vmm_key, 2 * i + 1, fence)
                    .verdict == BYTES_BAD;
    expect("flag-before-data", wrong);
    free_pair(&pair);
}
