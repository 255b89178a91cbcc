/* SPDX-License-Identifier: MIT */
/*
 * fork(2): a child neither publishes nor serves anything of its parent. A
 * CUDA context cannot be used in a child either (CUDA programming guide), so
 * the shim passes everything through there.
 */
#ifndef VMML_BASE_FORK_H
#define VMML_BASE_FORK_H

#include <stdbool.h>
#include <stddef.h>

/* Set in a child of a process that had shim state. */
extern bool vmml_in_child;

/*
 * The parts with state, in the order in which their locks are taken; NULL: it
 * has none. In the child the locks are made anew, and nothing is left of what
 * the parent shared.
 */
struct vmml_fork_part {
    void (*lock)(void);
    void (*unlock)(void);
    void (*child)(void);
};
extern const struct vmml_fork_part vmml_fork_parts[];
extern const size_t vmml_fork_part_count;

/* Watch forks from now on; called by each part that makes state, any number
 * of times. Returns 0 or an errno of pthread_atfork(3). */
int vmml_fork_watch(void);

/*
 * Between these two a descriptor may be open that no table knows, so that a
 * child would keep it, and the memory behind it: a fork waits for the end, at
 * most VMML_FORK_WAIT_MS. The caller of the first holds no lock of the shim.
 */
void vmml_fork_hold(void);
void vmml_fork_release(void);
#define VMML_FORK_WAIT_MS 200

/*
 * Between these two the thread waits for somebody else, and what it holds by
 * then is in a table: a fork does not wait for it. Returns how often it holds,
 * for the second; 0, and nothing is done, where it does not.
 */
int vmml_fork_let_go(void);
void vmml_fork_hold_again(int holds);

/* As vmml_fork_hold(), by a thread that keeps a fork out by a lock until it
 * has called this. Waits for nothing. */
void vmml_fork_note(void);

#endif
