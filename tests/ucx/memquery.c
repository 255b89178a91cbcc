/* What the cuda_copy memory domain says of ranges over several chunks. */
#include "client.h"

#include <stdio.h>
#include <string.h>
#include <uct/api/uct.h>
#include <unistd.h>

static const char COMPONENT[] = "cuda_cpy";

static uct_md_h open_md(uct_component_h component, const char *md_name)
{
    uct_md_config_t *config;
    uct_md_h md = NULL;

    if (uct_md_config_read(component, NULL, NULL, &config) != UCS_OK)
        return NULL;
    if (uct_md_open(component, md_name, config, &md) != UCS_OK)
        md = NULL;
    uct_config_release(config);
    return md;
}

static uct_md_h find_md(void)
{
    uct_component_h *components;
    uct_md_h md = NULL;
    unsigned count;

    if (uct_query_components(&components, &count) != UCS_OK)
        return NULL;
    for (unsigned i = 0; i < count && md == NULL; i++) {
        uct_component_attr_t attr = {.field_mask =
                                         UCT_COMPONENT_ATTR_FIELD_NAME};

        if (uct_component_query(components[i], &attr) != UCS_OK)
            continue;
        if (strcmp(attr.name, COMPONENT) == 0)
            md = open_md(components[i], COMPONENT);
    }
    uct_release_component_list(components);
    return md;
}

static void query(uct_md_h md, const struct segment *segment, uint64_t offset,
                  uint64_t length, const char *name)
{
    uct_md_mem_attr_t attr = {
        .field_mask = UCT_MD_MEM_ATTR_FIELD_MEM_TYPE |
                      UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS |
                      UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH |
                      UCT_MD_MEM_ATTR_FIELD_DMABUF_FD |
                      UCT_MD_MEM_ATTR_FIELD_DMABUF_OFFSET,
        .dmabuf_fd = -1,
    };
    CUdeviceptr address = segment->base + offset;
    ucs_status_t status = uct_md_mem_query(md, (void *)address, length, &attr);
    uint64_t base = (uint64_t)attr.base_address;
    uint64_t end = base + attr.alloc_length;
    uint64_t data = segment->base + segment->data_offset;
    char label[64];

    printf("query %s %s status=%s base=%+lld length=%zu dmabuf=%s "
           "dmabuf_offset=%zu\n",
           opt.scenario, name, status == UCS_OK ? "OK" : "error",
           (long long)(base - segment->base), attr.alloc_length,
           attr.dmabuf_fd >= 0 ? "yes" : "no", attr.dmabuf_offset);
    snprintf(label, sizeof(label), "%s-covered", name);
    expect(label,
           status == UCS_OK && base <= address && end >= address + length);
    snprintf(label, sizeof(label), "%s-mapped", name);
    expect(label, status == UCS_OK && base >= data &&
                      end <= data + segment->data_length);
    snprintf(label, sizeof(label), "%s-dmabuf", name);
    expect(label, attr.dmabuf_fd >= 0);
    if (attr.dmabuf_fd >= 0)
        close(attr.dmabuf_fd);
}

static uct_md_h must_find_md(void)
{
    uct_md_h md = find_md();

    if (md == NULL)
        die(EXIT_SETUP, "no memory domain %s", COMPONENT);
    return md;
}

/* A caller outside UCX is told of one chunk. */
static void ask_outside(const struct segment *segment, uint64_t offset)
{
    CUdeviceptr base;
    size_t size;

    CU_MUST(cuMemGetAddressRange(&base, &size, segment->base + offset));
    expect("outside-one-chunk",
           size == segment->chunks[0].size &&
               base == segment->base + offset / size * size);
}

/* The registration that failed in Mooncake under SGLang (I1): a tensor over 92
 * chunks of 20 MiB, in the numbers that a user captured. */
void scenario_captured(void)
{
    const uint64_t offset = 8214528, length = 1916853120;
    uint64_t seed = new_seed();
    struct remote remote;
    struct segment segment;
    struct key key;
    uct_md_h md = must_find_md();

    segment_create(&segment, "vmm:92x20M", 0);
    query(md, &segment, offset, length, "captured");
    ask_outside(&segment, offset);
    ask_outside(&segment, offset + length - 1);
    uct_md_close(md);
    segment_destroy(&segment);

    /* The same registered, and read where it begins and ends. */
    remote = remote_alloc("vmm:92x20M", 0);
    key = key_make(&remote, offset, length);
    remote_fill(&remote, offset, 4096, seed);
    report_detail(&remote, "get", key_get(&key, offset, 4096, seed), "begin");
    remote_fill(&remote, offset + length - 4096, 4096, seed);
    report_detail(&remote, "get",
                  key_get(&key, offset + length - 4096, 4096, seed), "end");
    key_destroy(&key);
    key_deregister(&key);
    remote_free(&remote);
}

void scenario_memory_query(void)
{
    struct segment segment;
    uct_md_h md;
    size_t size;

    segment_create(&segment, opt.kind, 0);
    size = segment.chunks[0].size;
    md = must_find_md();
    query(md, &segment, segment.data_offset, segment.data_length, "all");
    query(md, &segment, segment.data_offset + size + 4096, 4096, "offset");
    query(md, &segment, segment.data_offset + size - 4096, 8192, "crossing");
    query(md, &segment, segment.data_offset + size + size / 2,
          segment.data_length - size - size / 2, "tail");
    uct_md_close(md);
    segment_destroy(&segment);
}
