#include "client.h"
#include "unseen.h"

#include <stdlib.h>
#include <string.h>

static CUdevice device;

void device_open(bool with_context)
{
    CUcontext context;

    CU_MUST(cuInit(0));
    CU_MUST(cuDeviceGet(&device, opt.device));
    if (!with_context)
        return;
    CU_MUST(cuDevicePrimaryCtxRetain(&context, device));
    CU_MUST(cuCtxSetCurrent(context));
}

static CUmemAllocationHandleType handle_types(enum kind kind)
{
    switch (kind) {
    case KIND_NONE:
        return CU_MEM_HANDLE_TYPE_NONE;
    case KIND_FABRIC:
    case KIND_WHOLE:
    case KIND_MIXED:
        return CU_MEM_HANDLE_TYPE_FABRIC;
    case KIND_BOTH:
        return CU_MEM_HANDLE_TYPE_FABRIC |
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    default:
        return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
}

static CUmemAllocationProp properties_of(enum kind kind)
{
    CUmemAllocationProp properties;

    memset(&properties, 0, sizeof(properties));
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.requestedHandleTypes = handle_types(kind);
    properties.allocFlags.gpuDirectRDMACapable =
        getenv("VMML_TEST_RDMA") != NULL;
    return properties;
}

static size_t granularity(void)
{
    CUmemAllocationProp properties = properties_of(KIND_VMM);
    size_t value;

    CU_MUST(cuMemGetAllocationGranularity(&value, &properties,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return value;
}

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* ---- the specification ---- */

struct specification {
    enum kind kind;
    size_t count;
    size_t sizes[2];
    size_t start;
    size_t length;
    size_t reserve;
};

static size_t parse_size(const char **text)
{
    char *end;
    unsigned long long value = strtoull(*text, &end, 10);

    if (end == *text)
        die(EXIT_USAGE, "a size is missing at '%s'", *text);
    if (*end == 'K')
        value <<= 10;
    else if (*end == 'M')
        value <<= 20;
    else if (*end == 'G')
        value <<= 30;
    if (*end == 'K' || *end == 'M' || *end == 'G')
        end++;
    *text = end;
    return value;
}

static enum kind parse_kind(const char **text)
{
    static const char *const names[] = {
        "malloc", "vmm",  "single", "first", "none",    "pool", "fabric",
        "whole",  "both", "host",   "async", "managed", "mixed"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t length = strlen(names[i]);

        if (strncmp(*text, names[i], length) != 0)
            continue;
        *text += length;
        return (enum kind)i;
    }
    die(EXIT_USAGE, "unknown kind of memory '%s'", *text);
}

static void parse_chunks(struct specification *s, const char **text)
{
    s->sizes[0] = parse_size(text);
    if (**text == 'x') {
        (*text)++;
        s->count = s->sizes[0];
        s->sizes[0] = parse_size(text);
    }
    s->sizes[1] = s->sizes[0];
    if (**text == '/') {
        (*text)++;
        s->sizes[1] = parse_size(text);
    }
}

static struct specification parse(const char *text)
{
    struct specification s = {.count = 1, .sizes = {2 << 20, 2 << 20}};

    s.kind = parse_kind(&text);
    while (*text != '\0') {
        char c = *text++;

        if (c == ':')
            parse_chunks(&s, &text);
        else if (c == '+')
            s.start = parse_size(&text);
        else if (c == '@')
            s.length = parse_size(&text);
        else if (c == '~')
            s.reserve = parse_size(&text);
        else
            die(EXIT_USAGE, "unexpected '%c' in a memory specification", c);
    }
    return s;
}

static size_t chunks_bytes(const struct specification *s)
{
    return s->count / 2 * s->sizes[1] + (s->count + 1) / 2 * s->sizes[0];
}

static size_t used_bytes(const struct specification *s)
{
    size_t bytes = chunks_bytes(s);

    return s->length != 0 && s->length < bytes ? s->length : bytes;
}

size_t specification_bytes(const char *text)
{
    struct specification s = parse(text);

    return used_bytes(&s);
}

/* ---- chunks ---- */

static void chunk_map(struct segment *segment, struct chunk *chunk,
                      CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };

    chunk->handle = handle;
    CU_MUST(cuMemMap(segment->base + chunk->offset, chunk->size, 0, handle, 0));
    CU_MUST(
        cuMemSetAccess(segment->base + chunk->offset, chunk->size, &access, 1));
    chunk->mapped = true;
}

static void chunk_back(struct segment *segment, struct chunk *chunk)
{
    CUmemAllocationProp properties = properties_of(segment->kind);
    CUmemGenericAllocationHandle handle;

    if (segment->kind == KIND_MIXED && (chunk - segment->chunks) % 2 != 0)
        properties = properties_of(KIND_VMM);
    CU_MUST(cuMemCreate(&handle, chunk->size, &properties, 0));
    chunk_map(segment, chunk, handle);
}

static struct chunk *chunks_insert(struct segment *segment, size_t at,
                                   size_t count)
{
    size_t total = segment->chunk_count + count;
    struct chunk *chunks = realloc(segment->chunks, total * sizeof(*chunks));

    if (chunks == NULL)
        die(EXIT_SETUP, "out of memory");
    memmove(chunks + at + count, chunks + at,
            (segment->chunk_count - at) * sizeof(*chunks));
    memset(chunks + at, 0, count * sizeof(*chunks));
    segment->chunks = chunks;
    segment->chunk_count = total;
    return chunks + at;
}

static size_t data_end(const struct segment *segment)
{
    const struct chunk *last;

    if (segment->chunk_count == 0)
        return segment->data_offset;
    last = &segment->chunks[segment->chunk_count - 1];
    return last->offset + last->size;
}

static void append(struct segment *segment, size_t count)
{
    size_t index = segment->chunk_count;
    size_t offset = data_end(segment);

    chunks_insert(segment, index, count);
    for (; index < segment->chunk_count; index++) {
        struct chunk *chunk = &segment->chunks[index];

        chunk->offset = offset;
        chunk->size = segment->sizes[index % 2];
        offset += chunk->size;
        if (offset > segment->reserved)
            die(EXIT_SETUP, "the reservation is too small for its chunks");
        chunk_back(segment, chunk);
    }
}

static void prepend(struct segment *segment, size_t count)
{
    size_t bytes = count * segment->sizes[0];

    if (bytes > segment->data_offset)
        die(EXIT_SETUP, "no room below the first chunk");
    segment->data_offset -= bytes;
    chunks_insert(segment, 0, count);
    for (size_t i = 0; i < count; i++) {
        segment->chunks[i].offset =
            segment->data_offset + i * segment->sizes[0];
        segment->chunks[i].size = segment->sizes[0];
        chunk_back(segment, &segment->chunks[i]);
    }
}

void segment_grow(struct segment *segment, size_t count, bool below)
{
    if (below)
        prepend(segment, count);
    else
        append(segment, count);
    segment->data_length = data_end(segment) - segment->data_offset;
}

/* ---- memory of pools: one chunk, freed and allocated again ---- */

static bool is_pooled(const struct segment *segment)
{
    return segment->kind == KIND_POOL || segment->kind == KIND_ASYNC;
}

static CUmemoryPool shareable_pool(void)
{
    static CUmemoryPool pool;
    CUmemPoolProps properties;

    if (pool != NULL)
        return pool;
    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    CU_MUST(cuMemPoolCreate(&pool, &properties));
    return pool;
}

static void pool_back(struct segment *segment)
{
    if (segment->kind == KIND_POOL)
        CU_MUST(cuMemAllocFromPoolAsync(&segment->base, segment->reserved,
                                        shareable_pool(), NULL));
    else
        CU_MUST(cuMemAllocAsync(&segment->base, segment->reserved, NULL));
    CU_MUST(cuStreamSynchronize(NULL));
    segment->chunks[0].mapped = true;
}

static void pool_free(struct segment *segment)
{
    CU_MUST(cuMemFreeAsync(segment->base, NULL));
    CU_MUST(cuStreamSynchronize(NULL));
    segment->chunks[0].mapped = false;
}

static CUresult unseen_unmap(CUdeviceptr address, size_t size)
{
    CUresult (*unmap)(CUdeviceptr, size_t);
    void *found = unseen_symbol("cuMemUnmap");

    if (found == NULL)
        die(EXIT_SETUP, "no cuMemUnmap in the symbol table of libcuda.so");
    memcpy(&unmap, &found, sizeof(unmap));
    return unmap(address, size);
}

void segment_unmap(struct segment *segment, size_t first, size_t count,
                   bool unseen)
{
    if (is_pooled(segment)) {
        pool_free(segment);
        return;
    }
    for (size_t i = first; i < first + count; i++) {
        struct chunk *chunk = &segment->chunks[i];
        CUdeviceptr address = segment->base + chunk->offset;

        CU_MUST(unseen ? unseen_unmap(address, chunk->size)
                       : cuMemUnmap(address, chunk->size));
        CU_MUST(cuMemRelease(chunk->handle));
        chunk->mapped = false;
    }
}

void segment_map(struct segment *segment, size_t first, size_t count)
{
    if (is_pooled(segment)) {
        pool_back(segment);
        return;
    }
    for (size_t i = first; i < first + count; i++)
        chunk_back(segment, &segment->chunks[i]);
}

/* ---- segments ---- */

static size_t default_reserve(enum kind kind, size_t bytes)
{
    size_t total;

    if (kind == KIND_SINGLE || kind == KIND_WHOLE)
        return bytes;
    if (kind == KIND_FIRST)
        return 4 * bytes;
    CU_MUST(cuDeviceTotalMem(&total, device));
    return round_up(total + total / 8, granularity());
}

/* Memory of one piece. */
static void create_plain(struct segment *segment, size_t bytes)
{
    struct chunk *chunk = chunks_insert(segment, 0, 1);

    chunk->size = bytes;
    chunk->mapped = true;
    segment->reserved = bytes;
    segment->data_offset = 0;
    if (is_pooled(segment))
        pool_back(segment);
    else if (segment->kind == KIND_HOST)
        segment->base = (CUdeviceptr)aligned_alloc(2 << 20, bytes);
    else if (segment->kind == KIND_MANAGED)
        CU_MUST(cuMemAllocManaged(&segment->base, bytes, CU_MEM_ATTACH_GLOBAL));
    else
        CU_MUST(cuMemAlloc(&segment->base, bytes));
    if (segment->base == 0)
        die(EXIT_SETUP, "out of memory");
}

static void reserve(struct segment *segment, CUdeviceptr hint)
{
    CU_MUST(cuMemAddressReserve(&segment->base, segment->reserved, 0, hint, 0));
    if (hint != 0 && segment->base != hint)
        die(EXIT_SKIP, "the driver did not reserve at the wished address");
}

void segment_create(struct segment *segment, const char *specification,
                    CUdeviceptr hint)
{
    struct specification s = parse(specification);
    size_t bytes = chunks_bytes(&s);

    memset(segment, 0, sizeof(*segment));
    segment->kind = s.kind;
    memcpy(segment->sizes, s.sizes, sizeof(s.sizes));
    segment->data_offset = s.start;
    if (s.kind == KIND_MALLOC || s.kind == KIND_HOST ||
        s.kind == KIND_MANAGED || is_pooled(segment)) {
        create_plain(segment, bytes);
    } else {
        segment->reserved =
            s.reserve != 0 ? s.reserve : default_reserve(s.kind, bytes);
        reserve(segment, hint);
        append(segment, s.count);
    }
    segment->data_length = used_bytes(&s);
}

void segment_alias(struct segment *alias, const struct segment *of,
                   size_t chunk)
{
    memset(alias, 0, sizeof(*alias));
    alias->kind = of->kind;
    alias->sizes[0] = alias->sizes[1] = of->chunks[chunk].size;
    alias->reserved = alias->data_length = of->chunks[chunk].size;
    reserve(alias, 0);
    chunks_insert(alias, 0, 1)->size = alias->data_length;
    CU_MUST(cuMemRetainAllocationHandle(
        &alias->chunks[0].handle,
        (void *)(of->base + of->chunks[chunk].offset)));
    chunk_map(alias, &alias->chunks[0], alias->chunks[0].handle);
}

void segment_alias_inside(struct segment *segment, size_t chunk)
{
    CUmemGenericAllocationHandle handle;
    size_t offset = data_end(segment);
    size_t size = segment->chunks[chunk].size;
    struct chunk *added = chunks_insert(segment, segment->chunk_count, 1);

    added->offset = offset;
    added->size = size;
    CU_MUST(cuMemRetainAllocationHandle(
        &handle, (void *)(segment->base + segment->chunks[chunk].offset)));
    chunk_map(segment, added, handle);
    segment->data_length = data_end(segment) - segment->data_offset;
}

void segment_destroy(struct segment *segment)
{
    if (segment->kind == KIND_MALLOC || segment->kind == KIND_MANAGED) {
        CU_MUST(cuMemFree(segment->base));
    } else if (segment->kind == KIND_HOST) {
        free((void *)segment->base);
    } else if (is_pooled(segment)) {
        if (segment->chunks[0].mapped)
            pool_free(segment);
    } else {
        for (size_t i = 0; i < segment->chunk_count; i++)
            if (segment->chunks[i].mapped)
                segment_unmap(segment, i, 1, false);
        CU_MUST(cuMemAddressFree(segment->base, segment->reserved));
    }
    free(segment->chunks);
    memset(segment, 0, sizeof(*segment));
}
