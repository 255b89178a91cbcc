/* SPDX-License-Identifier: MIT */
/*
 * The program's start for glibc 2.28 (base/glibc_2_28.h). What the C compiler
 * puts before main asks for __libc_start_main of 2.34, which runs the
 * program's initialisers by itself; the linker is told to come here instead
 * (--wrap). The old one leaves them to `init`, which new start files do not
 * have.
 */
typedef int vmml_main_fn(int argc, char **argv, char **environment);
typedef void vmml_init_fn(int argc, char **argv, char **environment);

int vmml_old_start(vmml_main_fn *program, int argc, char **argv,
                   vmml_init_fn *init, void (*fini)(void),
                   void (*loader_fini)(void), void *stack_end);

#if defined(__x86_64__)
__asm__(".symver vmml_old_start,__libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver vmml_old_start,__libc_start_main@GLIBC_2.17");
#endif

/* The linker's own. */
extern vmml_init_fn *__init_array_start[] __attribute__((visibility("hidden")));
extern vmml_init_fn *__init_array_end[] __attribute__((visibility("hidden")));

static void vmml_initialise(int argc, char **argv, char **environment)
{
    for (vmml_init_fn **each = __init_array_start; each < __init_array_end;
         each++)
        (*each)(argc, argv, environment);
}

int __wrap___libc_start_main(vmml_main_fn *program, int argc, char **argv,
                             vmml_init_fn *init, void (*fini)(void),
                             void (*loader_fini)(void), void *stack_end);

int __wrap___libc_start_main(vmml_main_fn *program, int argc, char **argv,
                             vmml_init_fn *init, void (*fini)(void),
                             void (*loader_fini)(void), void *stack_end)
{
    return vmml_old_start(program, argc, argv,
                          init != 0 ? init : vmml_initialise, fini, loader_fini,
                          stack_end);
}
