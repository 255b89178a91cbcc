/* Functions of the loaded libcuda.so.1 past every hook. */
#ifndef VMMLANE_TESTS_UCX_UNSEEN_H
#define VMMLANE_TESTS_UCX_UNSEEN_H

/* Found in its symbol table without dlsym; NULL where it has none. */
void *unseen_symbol(const char *name);

#endif
