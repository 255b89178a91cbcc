/* SPDX-License-Identifier: MIT */
#include "preload.h"

#include <string.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
#define PRELOAD_ENTRY(name, function) {name, function},
        PRELOAD_CASES(PRELOAD_ENTRY)};

    CHECK(argc == 2);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        cases[i].run();
        return 0;
    }
    printf("no case %s\n", argv[1]);
    return 2;
}
