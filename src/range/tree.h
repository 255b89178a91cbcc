/* SPDX-License-Identifier: MIT */
/*
 * An ordered set of address intervals that do not overlap: a treap over a
 * pool of fixed size.
 *
 * Made for a place where malloc must not be called: the pool is one anonymous
 * mapping, made by a raw system call (UCM hooks libc's), and touched only as
 * far as it is used. Not thread-safe.
 */
#ifndef VMML_RANGE_TREE_H
#define VMML_RANGE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* First member of every item. */
struct vmml_node {
    uint64_t base; /* the interval is [base, end) */
    uint64_t end;
    uint32_t left; /* indices in the pool; 0 is none */
    uint32_t right;
};

struct vmml_tree {
    unsigned char *pool;
    size_t stride;     /* bytes of one item */
    uint32_t capacity; /* items, the unused one at index 0 included */
    uint32_t fresh;    /* first index that was never used */
    uint32_t free;     /* list of given-back items, by `left` */
    uint32_t root;
    uint32_t count;
};

/*
 * Make an empty set of at most `capacity` items of `stride` bytes.
 * Returns 0, or -errno of mmap.
 */
int vmml_tree_init(struct vmml_tree *tree, size_t stride, uint32_t capacity);

/* Give the pool back; the tree is as before vmml_tree_init(). */
void vmml_tree_fini(struct vmml_tree *tree);

/* Forget all items. */
void vmml_tree_clear(struct vmml_tree *tree);

/* Add [base, end), which overlaps none. The item is zeroed past its node.
 * Returns it, or NULL when the pool is full. Items never move. */
void *vmml_tree_add(struct vmml_tree *tree, uint64_t base, uint64_t end);

/* Take the item at exactly `base` out. */
void vmml_tree_remove(struct vmml_tree *tree, uint64_t base);

/* The item with the greatest base <= address; NULL when there is none. */
void *vmml_tree_floor(const struct vmml_tree *tree, uint64_t address);

/* The item with the least base >= address; NULL when there is none. */
void *vmml_tree_ceiling(const struct vmml_tree *tree, uint64_t address);

/* The item whose interval holds `address`; NULL when there is none. */
void *vmml_tree_find(const struct vmml_tree *tree, uint64_t address);

#endif
