/* SPDX-License-Identifier: MIT */
/*
 * The table of taken registrations, by memory domain and memory handle.
 */
#include "lane/state.h"

#include <stdlib.h>

static size_t bucket_of(vmml_uct_md_h md, vmml_uct_mem_h memh, size_t count)
{
    uint64_t key = (uintptr_t)memh ^ ((uint64_t)(uintptr_t)md << 1);

    /* Fibonacci hashing: pointers differ in their middle bits. */
    return (size_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & (count - 1);
}

static struct vmml_registration **find_link(vmml_uct_md_h md,
                                            vmml_uct_mem_h memh)
{
    struct vmml_registration **link;

    if (vmml_exporter.bucket_count == 0)
        return NULL;
    link =
        &vmml_exporter.buckets[bucket_of(md, memh, vmml_exporter.bucket_count)];
    while (*link != NULL && ((*link)->md != md || (*link)->memh != memh))
        link = &(*link)->next;
    return *link == NULL ? NULL : link;
}

struct vmml_registration *vmml_registration_find(vmml_uct_md_h md,
                                                 vmml_uct_mem_h memh)
{
    struct vmml_registration **link = find_link(md, memh);

    return link == NULL ? NULL : *link;
}

static void move_to(struct vmml_registration **buckets, size_t count)
{
    size_t i;

    for (i = 0; i < vmml_exporter.bucket_count; i++) {
        struct vmml_registration *entry = vmml_exporter.buckets[i];

        while (entry != NULL) {
            struct vmml_registration *next = entry->next;
            size_t bucket = bucket_of(entry->md, entry->memh, count);

            entry->next = buckets[bucket];
            buckets[bucket] = entry;
            entry = next;
        }
    }
}

static bool grow_buckets(void)
{
    size_t count = vmml_exporter.bucket_count;
    struct vmml_registration **buckets;

    if (vmml_exporter.registration_count < count)
        return true;
    count = count ? 2 * count : 64;
    buckets = calloc(count, sizeof(*buckets));
    if (buckets == NULL)
        return vmml_exporter.bucket_count != 0;
    move_to(buckets, count);
    free(vmml_exporter.buckets);
    vmml_exporter.buckets = buckets;
    vmml_exporter.bucket_count = count;
    return true;
}

bool vmml_registration_add(const struct vmml_registration *registration)
{
    struct vmml_registration *entry = malloc(sizeof(*entry));
    size_t bucket;

    if (entry == NULL || !grow_buckets()) {
        free(entry);
        return false;
    }
    bucket = bucket_of(registration->md, registration->memh,
                       vmml_exporter.bucket_count);
    *entry = *registration;
    entry->next = vmml_exporter.buckets[bucket];
    vmml_exporter.buckets[bucket] = entry;
    vmml_exporter.registration_count++;
    return true;
}

struct vmml_registration *vmml_registration_take(vmml_uct_md_h md,
                                                 vmml_uct_mem_h memh)
{
    struct vmml_registration **link = find_link(md, memh);
    struct vmml_registration *entry;

    if (link == NULL)
        return NULL;
    entry = *link;
    *link = entry->next;
    vmml_exporter.registration_count--;
    return entry;
}
