#include "client.h"

#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options opt = {
    .kind = "vmm:8x2M",
    .local = "malloc",
    .fd = -1,
    .next_fd = -1,
    .reps = 5,
    .rounds = 4,
    .growth = 64,
    .descriptors = 1,
    .posts = 10000,
    .timeout = 60,
    .sizes = "all",
    .budget = 0.4,
};

enum {
    OPT_ROLE = 256,
    OPT_SCENARIO,
    OPT_KIND,
    OPT_LOCAL,
    OPT_FD,
    OPT_NEXT_FD,
    OPT_DEVICE,
    OPT_REPS,
    OPT_ROUNDS,
    OPT_GROWTH,
    OPT_DESCRIPTORS,
    OPT_POSTS,
    OPT_TIMEOUT,
    OPT_PLAN,
    OPT_SIZES,
    OPT_BUDGET,
    OPT_TAG,
    OPT_DEEPBIND,
    OPT_DEEPBIND_LATE,
    OPT_PEER_ERRORS,
    OPT_LOCAL_MEMH,
    OPT_VERBOSE,
    OPT_LIST,
};

static const struct option options[] = {
    {"role", required_argument, NULL, OPT_ROLE},
    {"scenario", required_argument, NULL, OPT_SCENARIO},
    {"kind", required_argument, NULL, OPT_KIND},
    {"local", required_argument, NULL, OPT_LOCAL},
    {"fd", required_argument, NULL, OPT_FD},
    {"next-fd", required_argument, NULL, OPT_NEXT_FD},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"reps", required_argument, NULL, OPT_REPS},
    {"rounds", required_argument, NULL, OPT_ROUNDS},
    {"growth", required_argument, NULL, OPT_GROWTH},
    {"descriptors", required_argument, NULL, OPT_DESCRIPTORS},
    {"posts", required_argument, NULL, OPT_POSTS},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"plan", required_argument, NULL, OPT_PLAN},
    {"sizes", required_argument, NULL, OPT_SIZES},
    {"budget", required_argument, NULL, OPT_BUDGET},
    {"tag", no_argument, NULL, OPT_TAG},
    {"deepbind", required_argument, NULL, OPT_DEEPBIND},
    {"deepbind-late", no_argument, NULL, OPT_DEEPBIND_LATE},
    {"peer-errors", no_argument, NULL, OPT_PEER_ERRORS},
    {"local-memh", no_argument, NULL, OPT_LOCAL_MEMH},
    {"verbose", no_argument, NULL, OPT_VERBOSE},
    {"list", no_argument, NULL, OPT_LIST},
    {NULL, 0, NULL, 0},
};

static void list(void)
{
    for (const struct scenario *s = scenarios; s->name != NULL; s++)
        puts(s->name);
    exit(0);
}

static void take(int option)
{
    switch (option) {
    case OPT_ROLE:
        opt.role = optarg;
        break;
    case OPT_SCENARIO:
        opt.scenario = optarg;
        break;
    case OPT_KIND:
        opt.kind = optarg;
        break;
    case OPT_LOCAL:
        opt.local = optarg;
        break;
    case OPT_FD:
        opt.fd = atoi(optarg);
        break;
    case OPT_NEXT_FD:
        opt.next_fd = atoi(optarg);
        break;
    case OPT_DEVICE:
        opt.device = atoi(optarg);
        break;
    case OPT_REPS:
        opt.reps = atoi(optarg);
        break;
    case OPT_ROUNDS:
        opt.rounds = atoi(optarg);
        break;
    case OPT_GROWTH:
        opt.growth = atoi(optarg);
        break;
    case OPT_DESCRIPTORS:
        opt.descriptors = atoi(optarg);
        break;
    case OPT_POSTS:
        opt.posts = atoi(optarg);
        break;
    case OPT_TIMEOUT:
        opt.timeout = atof(optarg);
        break;
    case OPT_PLAN:
        opt.plan = optarg;
        break;
    case OPT_SIZES:
        opt.sizes = optarg;
        break;
    case OPT_BUDGET:
        opt.budget = atof(optarg);
        break;
    case OPT_TAG:
        opt.tag = true;
        break;
    case OPT_DEEPBIND:
        opt.deepbind = optarg;
        break;
    case OPT_DEEPBIND_LATE:
        opt.deepbind_late = true;
        break;
    case OPT_PEER_ERRORS:
        opt.peer_errors = true;
        break;
    case OPT_LOCAL_MEMH:
        opt.local_memh = true;
        break;
    case OPT_VERBOSE:
        opt.verbose = true;
        break;
    case OPT_LIST:
        list();
        break;
    default:
        exit(EXIT_USAGE);
    }
}

/* As UCX opens its modules when it was built with --enable-module-deepbind; it
 * finds this one open already (K4). */
void open_deepbind(void)
{
    if (opt.deepbind != NULL &&
        dlopen(opt.deepbind, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND) == NULL)
        die(EXIT_SETUP, "%s", dlerror());
}

int main(int argc, char **argv)
{
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        take(option);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (opt.role != NULL && strcmp(opt.role, "alone") == 0)
        return alone_main();
    if (opt.role == NULL || opt.fd < 0)
        die(EXIT_USAGE, "--role exporter|importer and --fd are needed; run.py "
                        "starts both");
    if (!opt.deepbind_late)
        open_deepbind();
    if (strcmp(opt.role, "exporter") == 0)
        return exporter_main();
    if (strcmp(opt.role, "importer") == 0 && opt.scenario != NULL)
        return importer_main();
    die(EXIT_USAGE, "unknown role, or no scenario");
}
