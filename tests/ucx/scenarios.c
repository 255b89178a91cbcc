/* The scenarios by name, and what they share. */
#include "client.h"

void report_detail(const struct remote *remote, const char *operation,
                   struct outcome outcome, const char *detail)
{
    report(remote->kind, operation, &outcome, detail);
}

struct remote filled(const char *specification, uint64_t seed)
{
    struct remote remote = remote_alloc(specification, 0);

    remote_fill(&remote, remote.offset, remote.length, seed);
    return remote;
}

uint64_t chunks_end(const struct remote *remote, uint64_t last)
{
    return remote->chunks[last].offset + remote->chunks[last].size;
}

const struct scenario scenarios[] = {
    {"whole", scenario_whole, false},
    {"windows", scenario_windows, false},
    {"interior", scenario_interior, false},
    {"tensors", scenario_tensors, false},
    {"growth", scenario_growth, false},
    {"growth-below", scenario_growth_below, false},
    {"reback", scenario_reback, false},
    {"reback-deregistered", scenario_reback_deregistered, false},
    {"reback-quiet", scenario_reback_quiet, false},
    {"unseen", scenario_unseen, false},
    {"hole", scenario_hole, false},
    {"hole-later", scenario_hole_later, false},
    {"neighbours", scenario_neighbours, false},
    {"identity", scenario_identity, false},
    {"aliases", scenario_aliases, false},
    {"tail", scenario_tail, false},
    {"rounds", scenario_rounds, false},
    {"restarted", scenario_restarted, false},
    {"idle", scenario_idle, false},
    {"contexts", scenario_contexts, false},
    {"fence", scenario_fence, false},
    {"fence-unwatched", scenario_fence_unwatched, false},
    {"vmm-then-malloc", scenario_vmm_then_malloc, false},
    {"malloc-then-vmm", scenario_malloc_then_vmm, false},
    {"flipped", scenario_flipped, false},
    {"strangers", scenario_strangers, false},
    {"old-key", scenario_old_key, false},
    {"own-process", scenario_own_process, false},
    {"killed", scenario_killed, false},
    {"killed-in-flight", scenario_killed_in_flight, false},
    {"sleep-wake", scenario_sleep_wake, false},
    {"many-chunks", scenario_many_chunks, false},
    {"probes", scenario_probes, false},
    {"capture", scenario_capture, false},
    {"pool", scenario_pool, false},
    {"pool-many", scenario_pool_many, false},
    {"native", scenario_native, false},
    {"matrix", scenario_matrix, false},
    {"late-context", scenario_late_context, true},
    {"sweep", scenario_sweep, false},
    {"descriptors", scenario_descriptors, false},
    {"split", scenario_split, false},
    {"refused", scenario_refused, false},
    {"captured", scenario_captured, false},
    {"mem-query", scenario_memory_query, false},
    {"bench-steady", scenario_bench_steady, false},
    {"bench-plain", scenario_bench_plain, false},
    {"bench-cut", scenario_bench_cut, false},
    {"bench-open", scenario_bench_open, false},
    {"bench-tag", scenario_bench_tag, false},
    {"bench-storm", scenario_bench_storm, false},
    {"bench-register", scenario_bench_register, false},
    {"bench-ranges", scenario_bench_ranges, false},
    {NULL, NULL, false},
};
