/* Treaps of intervals that do not overlap. */
#include "internal.h"

/* splitmix64: a priority that is spread however close the addresses lie. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static void split(struct sim_node *node, uint64_t start, struct sim_node **low,
                  struct sim_node **high)
{
    if (node == NULL) {
        *low = *high = NULL;
    } else if (node->start < start) {
        *low = node;
        split(node->right, start, &node->right, high);
    } else {
        *high = node;
        split(node->left, start, low, &node->left);
    }
}

static struct sim_node *merge(struct sim_node *low, struct sim_node *high)
{
    if (low == NULL) {
        return high;
    }
    if (high == NULL) {
        return low;
    }
    if (low->priority > high->priority) {
        low->right = merge(low->right, high);
        return low;
    }
    high->left = merge(low, high->left);
    return high;
}

void sim_tree_insert(struct sim_tree *tree, struct sim_node *node)
{
    struct sim_node **link = &tree->root;

    node->priority = mix(node->start);
    while (*link != NULL && (*link)->priority > node->priority) {
        link = node->start < (*link)->start ? &(*link)->left : &(*link)->right;
    }
    split(*link, node->start, &node->left, &node->right);
    *link = node;
}

void sim_tree_remove(struct sim_tree *tree, struct sim_node *node)
{
    struct sim_node **link = &tree->root;

    while (*link != node) {
        link = node->start < (*link)->start ? &(*link)->left : &(*link)->right;
    }
    *link = merge(node->left, node->right);
}

struct sim_node *sim_tree_from(const struct sim_tree *tree, uint64_t address)
{
    struct sim_node *node = tree->root, *best = NULL;

    while (node != NULL) {
        if (node->start + node->size > address) {
            best = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    return best;
}

struct sim_node *sim_tree_find(const struct sim_tree *tree, uint64_t address)
{
    struct sim_node *node = sim_tree_from(tree, address);

    return node != NULL && node->start <= address ? node : NULL;
}
