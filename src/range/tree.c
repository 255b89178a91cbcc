/* SPDX-License-Identifier: MIT */
#include "range/tree.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct vmml_node *node_at(const struct vmml_tree *tree, uint32_t index)
{
    return (struct vmml_node *)(tree->pool + (size_t)index * tree->stride);
}

static uint32_t index_of(const struct vmml_tree *tree,
                         const struct vmml_node *node)
{
    return (uint32_t)((size_t)((const unsigned char *)node - tree->pool) /
                      tree->stride);
}

/* Heap order: a fixed mix of the address (splitmix64's finaliser) is as good
 * as a random number here, since nobody gains by an unbalanced tree. */
static uint64_t priority(const struct vmml_node *node)
{
    uint64_t x = node->base;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int vmml_tree_init(struct vmml_tree *tree, size_t stride, uint32_t capacity)
{
    long address;

    memset(tree, 0, sizeof(*tree));
    /* Readable, since UCM takes regions without access for CUDA memory. */
    address = syscall(SYS_mmap, NULL, stride * capacity, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
    if (address == -1)
        return -errno;
    tree->pool = (unsigned char *)address;
    tree->stride = stride;
    tree->capacity = capacity;
    tree->fresh = 1;
    return 0;
}

void vmml_tree_fini(struct vmml_tree *tree)
{
    if (tree->pool != NULL)
        syscall(SYS_munmap, tree->pool, tree->stride * tree->capacity);
    memset(tree, 0, sizeof(*tree));
}

void vmml_tree_clear(struct vmml_tree *tree)
{
    tree->fresh = 1;
    tree->free = 0;
    tree->root = 0;
    tree->count = 0;
}

static struct vmml_node *take(struct vmml_tree *tree)
{
    struct vmml_node *node;

    if (tree->free != 0) {
        node = node_at(tree, tree->free);
        tree->free = node->left;
        return node;
    }
    if (tree->fresh >= tree->capacity)
        return NULL;
    return node_at(tree, tree->fresh++);
}

/* Parts of the subtree at `index`: bases below `base`, and the others. */
static void split(struct vmml_tree *tree, uint32_t index, uint64_t base,
                  uint32_t *below, uint32_t *above)
{
    while (index != 0) {
        struct vmml_node *node = node_at(tree, index);

        if (node->base < base) {
            *below = index;
            below = &node->right;
            index = node->right;
        } else {
            *above = index;
            above = &node->left;
            index = node->left;
        }
    }
    *below = 0;
    *above = 0;
}

/* Joins two subtrees, every base of the first below those of the second. */
static uint32_t join(struct vmml_tree *tree, uint32_t first, uint32_t second)
{
    uint32_t result = 0, *slot = &result;

    while (first != 0 && second != 0) {
        struct vmml_node *a = node_at(tree, first), *b = node_at(tree, second);

        if (priority(a) > priority(b)) {
            *slot = first;
            slot = &a->right;
            first = a->right;
        } else {
            *slot = second;
            slot = &b->left;
            second = b->left;
        }
    }
    *slot = first != 0 ? first : second;
    return result;
}

void *vmml_tree_add(struct vmml_tree *tree, uint64_t base, uint64_t end)
{
    struct vmml_node *node = take(tree);
    uint32_t *slot = &tree->root, index;
    uint64_t rank;

    if (node == NULL)
        return NULL;
    memset(node, 0, tree->stride);
    node->base = base;
    node->end = end;
    index = index_of(tree, node);
    rank = priority(node);
    while (*slot != 0) {
        struct vmml_node *at = node_at(tree, *slot);

        if (priority(at) < rank)
            break;
        slot = base < at->base ? &at->left : &at->right;
    }
    split(tree, *slot, base, &node->left, &node->right);
    *slot = index;
    tree->count++;
    return node;
}

void vmml_tree_remove(struct vmml_tree *tree, uint64_t base)
{
    uint32_t *slot = &tree->root, index;

    while (*slot != 0) {
        struct vmml_node *node = node_at(tree, *slot);

        if (node->base == base) {
            index = *slot;
            *slot = join(tree, node->left, node->right);
            node->left = tree->free;
            tree->free = index;
            tree->count--;
            return;
        }
        slot = base < node->base ? &node->left : &node->right;
    }
}

void *vmml_tree_floor(const struct vmml_tree *tree, uint64_t address)
{
    struct vmml_node *best = NULL;
    uint32_t index = tree->root;

    while (index != 0) {
        struct vmml_node *node = node_at(tree, index);

        if (node->base <= address) {
            best = node;
            index = node->right;
        } else {
            index = node->left;
        }
    }
    return best;
}

void *vmml_tree_ceiling(const struct vmml_tree *tree, uint64_t address)
{
    struct vmml_node *best = NULL;
    uint32_t index = tree->root;

    while (index != 0) {
        struct vmml_node *node = node_at(tree, index);

        if (node->base >= address) {
            best = node;
            index = node->left;
        } else {
            index = node->right;
        }
    }
    return best;
}

void *vmml_tree_find(const struct vmml_tree *tree, uint64_t address)
{
    struct vmml_node *node = vmml_tree_floor(tree, address);

    return node != NULL && address < node->end ? node : NULL;
}
