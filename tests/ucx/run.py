#!/usr/bin/env python3
"""Unmodified UCX, two processes, every scenario: lanes and bytes.

Without --driver the machine's own NVIDIA driver is used; with it, the
simulated one. Prints one line per run; exits 1 if any run is not as it must
be, 77 if nothing could be run.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import pair

# What one operation may do besides giving right bytes over cuda_ipc.
MUST_FAIL = {"get-refused", "put-refused"}
MAY_FAIL = {"get-idle", "get-across", "get-before-hole", "get-after-hole",
            "get-flipped", "put-flipped", "get-several"}
OTHER_LANE = {"get-other-lane"}
ANY_LANE = {"own-process", "late-context"}
ANY_LANE_KINDS = ("host", "managed")

# UCX must open each window once and close none.
STEADY = {"whole", "windows", "interior", "tensors", "growth", "growth-below",
          "reback", "reback-deregistered", "reback-quiet", "unseen",
          "identity", "aliases", "idle", "hole", "hole-later"}

# A client's exit code: the scenario cannot be had here.
SKIP = 77

# Functions that UCM hooks, by UCX version (measured with bistro).
HOOKS = {(1, 18): 13, (1, 19): 14}
HOOKS_NEWER = 15


@dataclasses.dataclass
class Sizes:
    """Memory specifications (memory.c) for one class of machine."""
    main: str
    malloc: str
    small: str  # for UCX's emulation, which is slow
    chunks: list
    below: str
    holey: str
    growth: int
    extent: str  # more than a tenth of the device's memory
    memory: dict # settings that make the device that small
    killed: str  # of a transfer that takes long
    split: str   # of no handle type, sent in 512 pieces and as one
    many: str    # chunks; fewer where the limit of descriptors is lower
    descriptors: int  # of the exporter, for each chunk


EVERY = os.environ.get("VMML_TEST_EVERY") == "1"

# Calls of the C library that are no system call and take no lock.
HARMLESS = {"memchr", "memcmp", "memcpy", "memmove", "memset", "strchr",
            "strcmp", "strlen", "strncmp", "strrchr"}
# How a copy is posted.
COPIES = {"cuMemcpyDtoDAsync_v2", "cuMemcpyAsync", "cuMemcpyBatchAsync_v2"}

QUERIED = "vmm:3x2M+16M"
SIMULATED = Sizes(main="vmm:26x4M/2M@76M", malloc="malloc:76M",
                  small="vmm:8x2M",
                  chunks=["single:16M", "first:16M", "none:8x2M",
                          "vmm:64x2M", "pool:16M"],
                  below="vmm:8x2M+64M", holey="vmm:16x2M", growth=64,
                  extent="vmm:32x2M",
                  memory={"VMMLANE_SIM_VRAM_MB": "512",
                          "VMMLANE_SIM_DOMAIN": f"tail{os.getpid()}"},
                  killed="vmm:16x2M", split="none:32x2M", many="vmm:3000x2M",
                  descriptors=2)
REAL = Sizes(main="vmm:26x20M@512M", malloc="malloc:512M",
             small="vmm:8x8M",
             chunks=["vmm:1x512M", "vmm:256x2M", "single:512M", "first:512M",
                     "none:26x20M@512M", "vmm:48x20M/2M", "pool:512M"],
             below="vmm:8x20M+512M", holey="vmm:16x20M", growth=64,
             extent="vmm:760x20M", memory={}, killed="vmm:1024x20M",
             split="none:512x2M",
             many="vmm:65000x2M", descriptors=1)


@dataclasses.dataclass
class Case:
    """One pair to run and what is known of its two sides."""
    group: str
    scenario: str
    kind: str
    versions: tuple  # exporter's and importer's UCX
    shims: tuple     # has the side the shim? A name: that other version of it
    hook_mode: str = "bistro"
    environment: dict = dataclasses.field(default_factory=dict)
    arguments: tuple = ()
    slow_importer: bool = False  # its copies, on the simulated driver
    compared: bool = False       # UCX's calls with the driver's own answers
    refused: str = None          # what the exporter's UCX cannot register
    counted: bool = False        # the importer's shim: what it calls
    tls: str = None

    @property
    def name(self):
        exporter, importer = self.versions
        version = exporter if exporter == importer else \
            f"{exporter}->{importer}"
        return f"{version} {self.group} {self.scenario} {self.kind}"

    @property
    def served(self):
        """Both sides have the shim, and nothing switches the lane off."""
        share = self.environment.get("VMMLANE_SHARE")
        if self.kind.startswith("none") and \
                self.environment.get("VMMLANE_CREATE") == "off":
            return False
        if self.shims != (True, True) or share == "off":
            return False
        if self.kind.startswith("async") and \
                self.environment.get("VMMLANE_POOLS") != "default":
            return False  # a device's default pool is not shareable
        if self.refused == "all":
            return False
        # The keys of 1.18.0, built without fabric, are of another size.
        return len(set(self.versions)) == 1 or "1.18.0" not in self.versions

    @property
    def other_version(self):
        """The name of the shim's other version on one side, or None."""
        return next((s for s in self.shims if isinstance(s, str)), None)


def scenario_list(sizes):
    main, holey = sizes.main, sizes.holey
    return [
        ("whole", sizes.malloc), ("whole", main),
        *[("whole", kind) for kind in sizes.chunks],
        ("windows", holey), ("interior", main), ("tensors", main),
        ("growth", holey), ("growth-below", sizes.below),
        ("reback", holey), ("reback-deregistered", holey),
        ("reback-deregistered", "none:8x2M"),
        ("reback-quiet", main), ("unseen", holey),
        ("hole", holey), ("hole-later", holey),
        ("neighbours", holey), ("identity", main), ("aliases", holey),
        ("idle", holey),
        ("vmm-then-malloc", main), ("malloc-then-vmm", main),
        ("flipped", "vmm:8x2M"), ("own-process", main), ("killed", main), ("late-context", main),
        ("late-context", sizes.malloc),
        ("mem-query", QUERIED), ("captured", "vmm:92x20M"),
    ]


def cases_alone(sizes, version):
    """Without the shim: what users have today."""
    for scenario, kind in (("whole", sizes.malloc), ("whole", sizes.small),
                           ("vmm-then-malloc", sizes.small),
                           ("mem-query", QUERIED)):
        yield Case("alone", scenario, kind, (version,) * 2, (False, False))


def cases_asked(options, sizes, version):
    """Any scenario without the shim, to see what UCX alone does. Whole
    transfers at half a gigabyte a second: of three kinds, timed once."""
    for scenario, kind in scenario_list(sizes):
        if scenario == "whole" and \
                kind not in (sizes.malloc, sizes.main, sizes.chunks[0]):
            continue
        slow = scenario == "whole" and kind != sizes.malloc
        yield Case("alone", scenario, kind, (version,) * 2, (False, False),
                   arguments=("--reps", "1") if slow else ())


def cases_shim(sizes, version):
    both = ((version,) * 2, (True, True))
    for scenario, kind in scenario_list(sizes):
        yield Case("shim", scenario, kind, *both)
    yield Case("shim", "tail", sizes.extent, *both, environment=sizes.memory)
    # What ends an extent vmmlane decides: a few builds of UCX will do.
    if version in ("1.18.0", "1.20.1", "1.22.0"):
        yield Case("shim", "strangers", "vmm:8x2M", *both,
                   environment={"VMMLANE_SIM_DEVICES": "2"})
    yield Case("shim", "old-key", "vmm:8x2M", *both, slow_importer=True)
    # Older builds of UCX go on with streams that are gone.
    if version == "1.22.0":
        yield Case("shim", "contexts", sizes.holey, *both,
                   arguments=("--local", "vmm"))
    yield Case("no-rcache", "rounds", sizes.holey, *both,
               environment={"UCX_RCACHE_ENABLE": "n"})


def cases_fence(options, sizes, version):
    """In the modes that leave the order to cuda_ipc: `auto` flushes where it
    can. On the simulated driver the data take long, so that a flag that
    nothing holds back comes first; a GPU may keep the order by itself."""
    modes = ["weak"]
    if not version.startswith("1.18."):
        modes.append("ep_based")
    scenarios = ["fence"]
    if options.driver:
        scenarios.append("fence-unwatched")
    for mode in modes:
        for scenario in scenarios:
            yield Case(f"fence-{mode}", scenario, sizes.holey,
                       (version,) * 2, (True, True), slow_importer=True,
                       environment={"UCX_FENCE_MODE": mode})


def cases_pools(version):
    both = ((version,) * 2, (True, True))
    as_cuda = {"UCX_CUDA_COPY_ASYNC_MEM_TYPE": "cuda"}
    # UCX types pool memory by that setting, where nothing else tells.
    for name, environment in (("pool", {}), ("pool-as-cuda", as_cuda)):
        yield Case(name, "pool", "pool:8M", *both, environment=environment)
        yield Case(name, "whole", "async:1M", *both, environment=environment)
    yield Case("pool-default", "pool", "async:8M", *both,
               environment={"VMMLANE_POOLS": "default"})


def cases_settings(sizes, version):
    both = ((version,) * 2, (True, True))
    for scenario in ("whole", "growth", "reback-quiet"):
        yield Case("reloc", scenario, sizes.holey, *both, hook_mode="reloc")
    # Memory that is none of vmmlane's business (C2).
    yield Case("compared", "vmm-then-malloc", sizes.small, *both,
               compared=True)
    if version in ("1.18.0", "1.22.0"):
        yield Case("compared", "whole", "managed:4M", *both, compared=True)
    # A module of UCX that is bound past every preload (K4).
    for late in ((), ("--deepbind-late",)):
        yield Case("deepbind", "whole", sizes.small, *both,
                   arguments=("--deepbind", str(
                       pair.Wheel(version).lib / "ucx/libuct_cuda.so.0"),
                       *late))
    # Another memory domain refuses (I2, I3).
    for refused, kind, settings in (
            ("several", "vmm:8x2M", {}),
            ("several", "none:8x2M", {"VMML_TEST_RDMA": "1"}),
            ("all", "vmm:8x2M", {})) if sizes is SIMULATED else ():
        yield Case("refused", "refused", kind, *both, refused=refused,
                   environment=settings)
    yield Case("share-off", "whole", sizes.small, *both,
               environment={"VMMLANE_SHARE": "off"})
    # A range query for each 8 KiB (A8).
    yield Case("share-off-uncached", "whole", sizes.small, *both,
               environment={"VMMLANE_SHARE": "off", "UCX_MEMTYPE_CACHE": "n"})
    yield Case("vmm-local", "whole", sizes.main, *both,
               arguments=("--local", "vmm"))
    yield Case("local-memh", "whole", sizes.main, *both,
               arguments=("--local", "vmm", "--local-memh"))
    # cuda_ipc of 1.18 does not take part in such endpoints.
    if not version.startswith("1.18."):
        yield Case("peer-errors", "reback", sizes.holey, *both,
                   arguments=("--peer-errors",))


def cases_descriptors(options, sizes, version):
    """What a descriptor costs (A5), and memory in pieces (A6)."""
    both = ((version,) * 2, (True, True))
    if options.count_calls:
        yield Case("descriptors", "descriptors", sizes.main, *both,
                   counted=True,
                   arguments=("--posts", "100000" if EVERY else "10000"))
    # 1 GiB in chunks of 2 MiB is what users had.
    split = REAL.split if EVERY else sizes.split
    yield Case("descriptors", "split", split, *both,
               arguments=("--reps", "1") if options.driver else ())
    yield Case("descriptors-as-asked", "split", "none:2x2M", *both,
               environment={"VMMLANE_CREATE": "off"},
               arguments=("--reps", "0"))


def cases_one_sided(sizes, version):
    for name, shims in (("exporter-only", (True, False)),
                        ("importer-only", (False, True))):
        for scenario in ("vmm-then-malloc", "malloc-then-vmm"):
            yield Case(name, scenario, sizes.small, (version,) * 2, shims)


def cases_hostile(sizes, version):
    """What must come back. Each with a device of its own, as far as memory is
    counted on the simulated driver."""
    both = ((version,) * 2, (True, True))
    for scenario, kind in (("sleep-wake", sizes.small),
                           ("capture", sizes.small),
                           ("killed-in-flight", sizes.killed),
                           ("many-chunks", sizes.many)):
        domain = f"{scenario}-{version}-{os.getpid()}"
        yield Case("hostile", scenario, kind, *both,
                   slow_importer=scenario == "killed-in-flight",
                   environment={"VMMLANE_SIM_DOMAIN": domain},
                   arguments=("--descriptors", str(sizes.descriptors)))
    yield Case("hostile", "pool-many", "pool:64K", *both)


def cases_fabric(sizes, version):
    """On one node, chunks that a fabric handle alone can share (simulated
    driver only): the behaviours of groups A, B and D."""
    node = {"VMMLANE_SIM_FABRIC": "on"}
    both = ((version,) * 2, (True, True))
    # The lane tests have the rest of the groups; `--kind` and `--scenario`.
    for scenario in ("whole", "growth", "reback", "unseen", "identity"):
        yield Case("fabric", scenario, "fabric:8x2M", *both, environment=node)
    yield Case("fabric", "hole", "fabric:16x2M", *both, environment=node)
    yield Case("fabric", "whole", "both:8x2M", *both, environment=node)
    # A2: it can be made, and no fabric handle of it can be had.
    yield Case("fabric-denied", "whole", "both:8x2M", *both,
               environment={**node, "VMMLANE_SIM_IMEX": "create"})


def cases_fabric_all(sizes, version):
    node = {"VMMLANE_SIM_FABRIC": "on"}
    both = ((version,) * 2, (True, True))
    for scenario in ("windows", "reback-deregistered", "hole-later",
                     "neighbours", "idle"):
        yield Case("fabric", scenario, "fabric:16x2M", *both, environment=node)
    yield Case("fabric", "growth-below", "fabric:8x2M+64M", *both,
               environment=node)
    yield Case("fabric", "reback-quiet", "fabric:26x4M/2M@76M", *both,
               environment=node)
    yield Case("fabric", "mem-query", "fabric:3x2M+16M", *both,
               environment=node)
    yield Case("fabric-denied", "reback", "both:8x2M", *both,
               environment={**node, "VMMLANE_SIM_IMEX": "create"})


def cases_versions(options, sizes, version):
    """Another version of the shim on one side (E3)."""
    for name in options.other:
        # What the importer's UCX makes of it differs by the handle alone.
        if version != options.ucx[-1] and name != "handle":
            continue
        for shims in ((name, True), (True, name)):
            # Of the socket's language only the socket knows.
            environment = {"VMMLANE_TRANSPORT": "socket"} \
                if name == "wire" else {}
            side = "exporter" if shims[0] == name else "importer"
            yield Case(f"other-{name}-{side}", "vmm-then-malloc", sizes.small,
                       (version,) * 2, shims, environment=environment)


def mixed_pairs(versions):
    """Old and new key layouts, both ways.

    Left out: 1.18.0 -> 1.18.1, whose importer crashes at its end now and then,
    without the shim as well (measured).
    """
    newest = versions[-1]
    pairs = [(old, newest) for old in versions[:-1]]
    if "1.18.1" in versions and "1.21.0" in versions:
        pairs.append(("1.18.1", "1.21.0"))
    return pairs + [(b, a) for a, b in pairs]


def cases_mixed(sizes, versions):
    for pair_of_versions in mixed_pairs(versions):
        # Over posix: most versions find no route over tcp's loopback.
        yield Case("mixed", "vmm-then-malloc", sizes.small, pair_of_versions,
                   (True, True), tls="cuda_copy,cuda_ipc,posix")


# Left to the other wheels where --share is given: what differs between builds
# of UCX is in them. Pairs of (group, scenarios), no scenarios being all.
SHARED = {"1.18.1", "1.19.0", "1.21.0"}
LEFT = {"no-rcache": (), "fence-ep_based": (), "pool-as-cuda": (),
        "pool-default": (), "descriptors": (), "descriptors-as-asked": (),
        "deepbind": (), "refused": (),
        "share-off-uncached": (), "vmm-local": (),
        "local-memh": (), "peer-errors": (),
        "reloc": ("growth", "reback-quiet"),
        "shim": ("flipped", "old-key", "captured")}


def is_left(case):
    """Does another wheel stand for it?"""
    if case.versions[0] not in SHARED or case.group not in LEFT:
        return False
    return not LEFT[case.group] or case.scenario in LEFT[case.group]


def all_cases(options, sizes):
    for case in every_case(options, sizes):
        if not (options.share and is_left(case)):
            yield case


def every_case(options, sizes):
    for version in options.ucx:
        if "alone" in options.group and options.scenario:
            yield from cases_asked(options, sizes, version)
        elif "alone" in options.group:
            yield from cases_alone(sizes, version)
        if not options.shim:
            continue
        if "shim" in options.group:
            yield from cases_shim(sizes, version)
            yield from cases_fence(options, sizes, version)
        if "settings" in options.group:
            yield from cases_settings(sizes, version)
        if "pools" in options.group:
            yield from cases_pools(version)
        if "descriptors" in options.group:
            yield from cases_descriptors(options, sizes, version)
        if "one-sided" in options.group:
            yield from cases_one_sided(sizes, version)
        if "hostile" in options.group:
            yield from cases_hostile(sizes, version)
        if "fabric" in options.group and options.driver:
            yield from cases_fabric(sizes, version)
        if "fabric-all" in options.group and options.driver:
            yield from cases_fabric_all(sizes, version)
        if "versions" in options.group:
            yield from cases_versions(options, sizes, version)
    if options.shim and "mixed" in options.group:
        yield from cases_mixed(sizes, options.ucx)
    if options.shim and "large" in options.group:
        yield Case("shim", "whole", "vmm:1024x20M", (options.ucx[-1],) * 2,
                   (True, True))


# ---- what must hold ----


def judge_result(case, result):
    """Problems of one operation, as texts."""
    what = f"{result.operation} {result.detail}"
    if result.bytes == "BAD":
        return [f"{what}: WRONG BYTES"]
    if result.operation in MUST_FAIL:
        return [f"{what}: did not fail"] if result.status == "OK" else []
    failed = result.status != "OK"
    plain = result.kind.startswith("malloc")
    if result.operation in MAY_FAIL:
        return []  # an error, or right bytes over any lane
    if not case.served and not plain:
        # UCX alone may refuse such memory, but must not corrupt it.
        if failed and (case.shims == (True, False) or case.other_version):
            return [f"{what}: {result.status}"]
        if case.other_version and result.lane == "cuda_ipc":
            return [f"{what}: served by another version"]
        return []
    if failed:
        return [f"{what}: {result.status}"]
    if plain and len(set(case.versions)) > 1:
        return []  # UCX's own keys of two versions may not match
    if result.operation in OTHER_LANE:
        return [f"{what}: lane cuda_ipc"] if result.lane == "cuda_ipc" else []
    # A key of vmmlane takes no context; UCX's own does.
    any_lane = case.scenario in ANY_LANE and \
        (case.scenario != "late-context" or plain)
    if result.lane != "cuda_ipc" and not any_lane and \
            not result.kind.startswith(ANY_LANE_KINDS):
        return [f"{what}: lane {result.lane}"]
    return []


def judge_hooks(case, outcome):
    for role, log, version in zip(("exporter", "importer"), outcome.logs,
                                  case.versions):
        mode, count = pair.hooks_installed(log)
        numbers = tuple(int(n) for n in version.split(".")[:2])
        wanted = HOOKS.get(numbers, HOOKS_NEWER)
        if mode != case.hook_mode or count < wanted:
            return [f"{role}: UCM's hooks: {mode} {count}, "
                    f"not {case.hook_mode} {wanted}"]
    return []


def judge_ipc(case, outcome):
    """Growth, re-backing and new keys neither close nor open a mirror anew."""
    if not case.served or outcome.ipc is None:
        return []
    windows, opens, closes = outcome.ipc
    if case.scenario in STEADY and (not 1 <= opens <= windows or closes > 0):
        return [f"IPC: {opens} opens and {closes} closes "
                f"for {windows} windows"]
    return []


def judge_log(case, outcome):
    """UCX says nothing of legacy IPC and of keys that it could not make."""
    if not case.served:
        return []
    return [f"exporter: {line}" for line in outcome.logs[0].splitlines()
            if "failed" in line and
            ("cuIpcGetMemHandle" in line or "cuMemExportToShareable" in line)]


def judge_version(case, outcome):
    """One line at the importer says why, and none at the exporter."""
    if case.other_version is None:
        return []
    problems = []
    for role, log, wanted in zip(("exporter", "importer"), outcome.logs,
                                 (0, 1)):
        lines = [line for line in log.splitlines()
                 if re.match(r"vmmlane\[\d+\] \S+ (WARN|ERROR) ", line)]
        if len(lines) != wanted or \
                not all("another version of vmmlane" in line
                        for line in lines):
            problems.append(f"{role}: {len(lines)} warnings, not {wanted} "
                            "of another version")
    return problems


def judge_layout(case, outcome):
    """1.18.0 and any other: one line at the importer says why."""
    if not all(shim is True for shim in case.shims):
        return []
    lines = outcome.logs[1].count("do not read each other's keys")
    wanted = len(set(case.versions)) > 1 and "1.18.0" in case.versions
    return [] if lines == int(wanted) else \
        [f"{lines} lines of keys that UCX does not read"]


def judge_pool(case, outcome):
    """Memory that is not shareable by design has one line."""
    if not case.kind.startswith("async") or not all(case.shims):
        return []
    lines = outcome.logs[0].count("not shareable by design")
    wanted = 0 if case.served else 1
    return [] if lines == wanted else [f"{lines} lines of pools, not {wanted}"]


def judge_context(case, outcome):
    """A key that comes before CUDA is up (A9): where the lane is lost, the log
    names the cause."""
    if case.scenario != "late-context" or not case.shims[1]:
        return []
    lines = outcome.logs[1].count("no CUDA context when a key arrived")
    wanted = 1 if case.kind.startswith("malloc") else 0
    return [] if lines == wanted else [f"{lines} lines of a missing context"]


def judge_refused(case, outcome):
    """What UCX cannot register by itself fails as without vmmlane; one line
    says why."""
    if not case.refused:
        return []
    problems = []
    words = "lies in several chunks" \
        if "VMML_TEST_RDMA" in case.environment else \
        "allocated without gpuDirectRDMACapable"
    lines = [line for line in outcome.logs[0].splitlines()
             if re.match(r"vmmlane\[\d+\] \S+ (WARN|ERROR) ", line)]
    if len(lines) != 1 or words not in lines[0]:
        problems.append(f"warnings: {lines}")
    if case.refused == "all" and any(result.status == "OK"
                                     for result in outcome.results):
        problems.append("a failure was not passed on")
    return problems


def judge_compared(case, outcome):
    """UCX is told of such memory what the driver says, bit for bit."""
    if not case.compared:
        return []
    problems = []
    wanted = {"exporter": ["cuPointerGetAttribute"],
              "importer": ["cuPointerGetAttribute"]}
    if case.scenario == "vmm-then-malloc":
        wanted["exporter"] += ["cuIpcGetMemHandle", "cuMemGetAddressRange",
                               "cuDeviceGetUuid"]
        wanted["importer"] += ["cuIpcOpenMemHandle"]
    for (role, names), log in zip(wanted.items(), outcome.logs):
        found = re.findall(r"^compared (\S+) calls=(\d+) differ=(\d+)$", log,
                           re.MULTILINE)
        problems += [f"{role}: {differ} answers of {name} differ"
                     for name, _, differ in found if differ != "0"]
        problems += [f"{role}: no call of {name} was compared"
                     for name in names
                     if not any(f[0].startswith(name) for f in found)]
    return problems


def judge_as_asked(case, outcome):
    """One line says why the memory is not shareable, and what to ask for."""
    if case.group != "descriptors-as-asked":
        return []
    lines = [line for log in outcome.logs for line in log.splitlines()
             if re.match(r"vmmlane\[\d+\] \S+ (WARN|ERROR) ", line)]
    wanted = ("allocated without a handle type that can be shared",
              "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")
    if len(lines) != 1 or not all(words in lines[0] for words in wanted):
        return [f"{len(lines)} warnings: {lines[:2]}"]
    return []


def judge_steady(case, outcome):
    """A descriptor costs no system call, no lock, no call of the driver but
    the copy."""
    if not case.counted:
        return []
    match = re.search(r"^steady posts=(\d+) calls(.*)$", outcome.logs[1],
                      re.MULTILINE)
    if not match:
        return ["the calls were not counted"]
    posts = int(match.group(1))
    calls = {name: (int(own), int(passed)) for name, own, passed in
             re.findall(r" (\w+)=(\d+)\+(\d+)", match.group(2))}
    problems = [f"{own} calls of {name} for {posts} descriptors"
                for name, (own, _) in calls.items()
                if own > 0 and name not in HARMLESS | COPIES]
    copies = sum(sum(calls[name]) for name in COPIES & calls.keys())
    if copies != posts:
        problems.append(f"{copies} copies for {posts} descriptors")
    return problems


def judge_exports(case, outcome):
    """A job that registers for each message, or each piece, does not export
    for each."""
    if case.scenario not in ("rounds", "split") or outcome.exports is None:
        return []
    chunks = int(re.search(r":(\d+)x", case.kind).group(1))
    if case.scenario == "split":
        return [] if not case.served or outcome.exports == chunks else \
            [f"{outcome.exports} exports of {chunks} chunks"]
    if outcome.exports == 0 or outcome.exports > 3 * chunks:
        return [f"{outcome.exports} exports of {chunks} chunks"]
    return []


def judge(case, outcome, simulated):
    problems = []
    exporter, importer = outcome.codes
    if exporter == SKIP and not simulated:
        # What a real driver does not always grant, a wished address say.
        outcome.skipped.append("the driver did not grant what it needs")
        return []
    if outcome.timed_out:
        problems.append("timeout")
    killed = case.scenario in ("killed", "killed-in-flight")
    if exporter != 0 and not (killed and exporter == -9):
        problems.append(f"exporter's exit code {exporter}")
    if importer != 0:
        problems.append(f"importer's exit code {importer}")
    for result in outcome.results:
        problems += judge_result(case, result)
    if case.served:
        problems += [f"expected: {name}" for name, holds in outcome.expects
                     if not holds]
    if not outcome.results and not outcome.expects and not outcome.skipped:
        problems.append("no result")
    if case.served and outcome.skipped:
        problems += outcome.skipped
    problems += judge_ipc(case, outcome)
    problems += judge_exports(case, outcome)
    problems += judge_layout(case, outcome)
    problems += judge_pool(case, outcome)
    problems += judge_as_asked(case, outcome)
    problems += judge_steady(case, outcome)
    problems += judge_refused(case, outcome)
    problems += judge_context(case, outcome)
    problems += judge_log(case, outcome)
    problems += judge_version(case, outcome)
    problems += judge_compared(case, outcome)
    # UCX 1.18 finds this driver's functions patchable in some processes only.
    luck = not simulated and any(v.startswith("1.18.") for v in case.versions)
    if not problems and not luck:
        problems += judge_hooks(case, outcome)
    return problems


# ---- running and printing ----


def summary(outcome):
    lanes = sorted({r.lane for r in outcome.results if r.status == "OK"})
    errors = sorted({r.status for r in outcome.results if r.status != "OK"})
    speed = [f"{r.operation} {r.gbps:.2f}" for r in outcome.results
             if r.gbps > 0][:2]
    text = f"{len(outcome.results)} ops, lane {'+'.join(lanes) or '-'}"
    if errors:
        text += f", errors {'+'.join(errors)}"
    if speed:
        text += f", GB/s {', '.join(speed)}"
    if outcome.ipc:
        text += ", %d windows, %d opens, %d closes" % outcome.ipc
    if outcome.exports:
        text += f", {outcome.exports} exports"
    if outcome.expects:
        text += f", {sum(h for _, h in outcome.expects)}" \
                f"/{len(outcome.expects)} expectations"
    if outcome.skipped:
        text += f", skipped: {'; '.join(outcome.skipped)}"
    return text


def exports_in(calls):
    """How often the simulated driver was asked for a handle's descriptor."""
    if not calls.exists():
        return None
    counts = dict(line.split() for line in calls.read_text().splitlines())
    return int(counts.get("cuMemExportToShareableHandle", 0))


def run_case(case, options, clients):
    sides = [pair.Side(*clients[version],
                       shim=options.other.get(shim, options.shim)
                       if shim else None,
                       counter=options.comparer if case.compared
                       else options.counter,
                       environment=case.environment)
             for version, shim in zip(case.versions, case.shims)]
    if case.slow_importer:
        sides[1].environment = {**case.environment,
                                "VMMLANE_SIM_SLICE_DELAY_US": "200"}
    if case.refused:
        sides[0].front = pair.build_refuser(sides[0].wheel, options.build)
        sides[0].environment = {**sides[0].environment,
                                "VMML_TEST_REFUSE": case.refused}
    if case.counted:
        sides[1].behind = options.count_calls
    for side, visible in zip(sides, options.visible or ()):
        side.environment = {**side.environment,
                            "CUDA_VISIBLE_DEVICES": visible}
    arguments = ["--growth", str(options.sizes.growth),
                 "--reps", str(options.reps), *case.arguments]
    if options.verbose:
        arguments.append("--verbose")
        for side in sides:
            side.environment = {**side.environment, "UCX_PROTO_INFO": "y"}
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls"
        sides[0].environment = {**sides[0].environment,
                                "VMMLANE_SIM_COUNT_FILE": str(calls)}
        outcome = pair.run_pair(*sides, case.scenario, case.kind,
                                driver=options.driver,
                                timeout=options.timeout,
                                tls=case.tls or options.tls,
                                hook_mode=case.hook_mode, arguments=arguments)
        outcome.exports = exports_in(calls)
    return case, outcome, judge(case, outcome, options.driver is not None)


def show(case, outcome, problems, options):
    verdict = "ok  " if not problems else "FAIL"
    print(f"{verdict} {case.name}: {summary(outcome)} "
          f"({outcome.seconds:.1f} s)", flush=True)
    for problem in problems:
        print(f"     {problem}")
    for line in outcome.logs[1].splitlines():
        if line.startswith("state "):
            print(f"     {line}", flush=True)
    if problems or options.verbose:
        pair.show_logs(outcome, last=None if options.verbose else 25)


def show_ratios(runs, wanted):
    """Speed of VMM memory over that of cuMemAlloc memory, by UCX version.

    Returns how many are below `wanted`.
    """
    speeds = {}
    for case, outcome, _ in runs:
        if case.group == "shim" and case.scenario == "whole":
            for result in outcome.results:
                if result.gbps > 0:
                    key = (case.versions[0], result.operation)
                    speeds.setdefault(key, {})[case.kind] = result.gbps
    below = 0
    for (version, operation), kinds in speeds.items():
        plain = [kinds[kind] for kind in kinds if kind.startswith("malloc")]
        for kind, gbps in kinds.items():
            if not plain or kind.startswith("malloc"):
                continue
            low = gbps < wanted * plain[0]
            below += low
            print(f"{'LOW ' if low else 'ratio'} {version} {operation} {kind}: "
                  f"{gbps:.1f} / {plain[0]:.1f} GB/s = "
                  f"{gbps / plain[0]:.2f}")
    return below


def parse_options():
    groups = ["alone", "shim", "settings", "pools", "one-sided", "mixed",
              "descriptors", "versions", "large", "hostile", "fabric",
              "fabric-all"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", nargs="+", default=None, metavar="VERSION",
                        help="wheel versions (default: all unpacked)")
    parser.add_argument("--shim", help="libvmmlane.so to preload")
    parser.add_argument("--other-shim", nargs="+", default=[],
                        metavar="NAME=FILE",
                        help="other versions of it, for the group versions")
    parser.add_argument("--count-calls", metavar="FILE",
                        help="libcount-calls.so (tests/sweep), for the group "
                             "descriptors")
    parser.add_argument("--driver", metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    parser.add_argument("--scenario", nargs="+", help="only these")
    parser.add_argument("--kind", help="memory of --scenario, see memory.c")
    parser.add_argument("--group", nargs="+", choices=groups,
                        default=groups[:-4])
    parser.add_argument("--quick", action="store_true",
                        help="oldest and newest UCX, the main scenarios")
    parser.add_argument("--share", action="store_true",
                        help="fewer settings on 1.18.1, 1.19 and 1.21, unless "
                             "VMML_TEST_EVERY is 1")
    parser.add_argument("--mixed", action="store_const", dest="group",
                        const=["mixed"], help="only pairs of two versions")
    parser.add_argument("--sizes", choices=["simulated", "real"])
    parser.add_argument("--tls", default="cuda_copy,cuda_ipc,tcp")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--ratio", type=float, metavar="R",
                        help="compare speeds with cuMemAlloc memory's; fail "
                             "below R of it (for a GPU that nobody else uses)")
    parser.add_argument("--timeout", type=float, default=pair.SECONDS)
    parser.add_argument("--jobs", type=int, default=1)
    pair.add_build_option(parser)
    parser.add_argument("--visible", nargs=2, metavar=("E", "I"),
                        help="CUDA_VISIBLE_DEVICES of exporter and importer")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def prepare(options):
    options.ucx = pair.versions_of(options)
    if options.quick:
        options.ucx = list(dict.fromkeys([options.ucx[0], options.ucx[-1]]))
    pair.need_driver(options)
    pair.resolve(options, "driver", "shim", "count_calls")
    if EVERY:
        options.share = False
    options.other = {}
    for word in options.other_shim:
        name, path = word.split("=", 1)
        options.other[name] = Path(path).resolve(strict=True)
    simulated = options.sizes == "simulated" if options.sizes else \
        options.driver is not None
    options.sizes = SIMULATED if simulated else REAL
    options.counter = pair.build_counter(options.build)
    options.comparer = pair.build_comparer(options.build)
    return {version: pair.client_of(version, options.build)
            for version in options.ucx}


def select(options):
    cases = list(all_cases(options, options.sizes))
    if options.quick:
        main = {"whole", "growth", "reback", "vmm-then-malloc", "mem-query"}
        cases = [c for c in cases if c.scenario in main]
    if options.scenario:
        cases = [c for c in cases if c.scenario in options.scenario]
    if options.kind:
        cases = [dataclasses.replace(c, kind=options.kind) for c in cases]
        cases = list({c.name: c for c in cases}.values())
    return cases


def main():
    options = parse_options()
    start = time.monotonic()
    try:
        clients = prepare(options)
    except pair.SetupError as error:
        print(error)
        return pair.SKIP
    cases = select(options)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_case, c, options, clients) for c in cases]
        for run in runs:
            case, outcome, problems = run.result()
            bad += bool(problems)
            show(case, outcome, problems, options)
    if options.ratio is not None:
        bad += show_ratios([run.result() for run in runs], options.ratio)
    print(f"{len(cases)} runs, {bad} not as they must be, "
          f"{time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
