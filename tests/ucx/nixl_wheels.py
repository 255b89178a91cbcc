#!/usr/bin/env python3
"""Every wheel of NIXL that scripts/setup --nixl=all has unpacked.

For each: device memory of both kinds, READ and WRITE, with and without
vmmlane, with keys that come before and after the importer's CUDA context, on
the simulated driver; memory that is read while its owner sleeps; then
scripts/example. Exits 1 if anything is not as it
must be, 77 if there is no wheel.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import nixl_pair
import pair

SMALL = ["--large", "8", "--count", "200", "--reps", "1"]
EARLY = "no CUDA context when a key arrived"


# NIXL 0.7.1 bundles a UCX 1.19 with its assertions: it ends itself over a range
# of several chunks. It also takes keys for cuda_ipc without a context.
FAULT_OF_119 = "<= (key->d_bptr + key->b_len)' failed"


def is_119(wheel):
    return "-0.7." in wheel.name


class Check:
    def __init__(self, name, arguments, *, lane, shim=True, line=None):
        self.name = name
        self.arguments = arguments
        self.shim = shim
        self.lane = lane  # of the longest messages; the keys that came too
        # early lead to the first, those of later rounds to the second
        self.line = line  # in the importer's log, exactly once

    def options(self, common, wheel):
        shim = ["--shim", common.shim] if self.shim else []
        return nixl_pair.parse_options(
            ["--driver", common.driver, "--python", common.python, "--wheel",
             str(wheel), *shim, *SMALL, *self.arguments])

    def problems(self, codes, logs, wheel):
        if is_119(wheel) and "vmm" in self.name and not self.shim:
            return [] if FAULT_OF_119 in logs[0] else ["not UCX's own fault"]
        if is_119(wheel) and self.lane == "emulation+cuda_ipc":
            return [] if codes == (0, 0) else [f"exit codes {codes}"]
        found = []
        if codes != (0, 0):
            found.append(f"exit codes {codes}")
        lanes = nixl_pair.largest_lane(logs[1])
        if set(lanes) != {"read", "write"}:
            found.append(f"operations {lanes}")
        if set(lanes.values()) != {self.lane}:
            found.append(f"lanes {lanes}, not {self.lane}")
        if self.line and logs[1].count(self.line) != 1:
            found.append(f"{logs[1].count(self.line)} lines "
                         f"\"{self.line}\", not 1")
        return found


CHECKS = [
    Check("vmm", ["--kind", "vmm"], lane="cuda_ipc"),
    Check("malloc", ["--kind", "malloc"], lane="cuda_ipc"),
    Check("vmm, unseen", ["--kind", "vmm", "--unseen"], lane="cuda_ipc"),
    Check("vmm, key first", ["--kind", "vmm", "--key-first"],
          lane="cuda_ipc"),
    Check("malloc, key first", ["--kind", "malloc", "--key-first"],
          lane="emulation+cuda_ipc", line=EARLY),
    Check("vmm", ["--kind", "vmm"], shim=False, lane="emulation"),
    Check("malloc", ["--kind", "malloc"], shim=False, lane="cuda_ipc"),
    Check("vmm, key first", ["--kind", "vmm", "--key-first"], shim=False,
          lane="emulation"),
    Check("malloc, key first", ["--kind", "malloc", "--key-first"],
          shim=False, lane="emulation+cuda_ipc"),
]


def run_check(check, common, wheel):
    """Returns whether all was as it must be."""
    codes, logs = nixl_pair.run(check.options(common, wheel))
    found = check.problems(codes, logs, wheel)
    lanes = nixl_pair.largest_lane(logs[1])
    print(f"{'FAIL' if found else 'ok  '} {wheel.name} "
          f"{'with' if check.shim else 'without'} vmmlane: {check.name}: "
          f"{', '.join(sorted(f'{o} {l}' for o, l in lanes.items()))}",
          flush=True)
    for problem in found:
        print(f"     {problem}")
    if found or common.verbose:
        for role, log in zip(("exporter", "importer"), logs):
            for line in log.splitlines():
                if common.verbose or ("| " not in line and
                                      "+---" not in line):
                    print(f"     {role}| {line}")
    return not found


def run_example(common, wheel):
    done = subprocess.run(
        [sys.executable, pair.ROOT / "scripts/example", "--python",
         common.python, "--driver", common.driver, "--shim", common.shim,
         "--nixl", wheel, "--segments", "expandable", "--rounds", "1",
         "--passes", "2", "--reps", "1", "--divide", "24"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    good = done.returncode == 0
    print(f"{'ok  ' if good else 'FAIL'} {wheel.name} with vmmlane: "
          "scripts/example", flush=True)
    if not good:
        print(done.stdout)
    return good


# Without the lane the owner's UCX reads its memory for the importer
# (ucp_mem_type_pack, uct_cuda_copy_ep_get_short) by cuMemcpyAsync, which takes
# what is not mapped for host memory: UCX's own fault, with or without vmmlane.
SLEEPER_DIES = "exit codes (-11, 1)"


def run_engine(common, wheel, shim):
    """A serving engine's memory is read while it sleeps."""
    done = subprocess.run(
        [sys.executable, pair.HERE / "engine_pair.py", "--python",
         common.python, "--driver", common.driver, "--wheel", wheel,
         "--engine", "vllm", *(["--shim", common.shim] if shim else
                               ["--any-lane"])],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    good = done.returncode == 0 if shim else SLEEPER_DIES in done.stdout
    print(f"{'ok  ' if good else 'FAIL'} {wheel.name} "
          f"{'with' if shim else 'without'} vmmlane: memory asleep: "
          f"{'an error' if shim else 'its owner ends by SIGSEGV'}", flush=True)
    if not good:
        print(done.stdout)
    return good


def wheels(python):
    """Those of this interpreter's version."""
    tag = subprocess.run(
        [python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"],
        stdout=subprocess.PIPE, text=True).stdout.strip()
    return sorted((pair.CACHE / "nixl-wheels").glob(f"*-{tag}")) if tag else []


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", required=True,
                        help="folder of the simulated driver")
    parser.add_argument("--shim", required=True, help="libvmmlane.so")
    parser.add_argument("--python", default=str(pair.ROOT / ".venv/bin/python"))
    parser.add_argument("--wheel", nargs="+", metavar="DIR",
                        help="these only (default: all in the cache)")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def main():
    common = parse_options()
    if not Path(common.python).exists():
        print("no .venv: run scripts/setup --nixl=all")
        return 77
    found = [Path(wheel) for wheel in common.wheel or wheels(common.python)]
    if not found:
        print("no wheel of NIXL is unpacked: run scripts/setup --nixl=all")
        return 77
    good = []
    for wheel in found:
        good += [run_check(check, common, wheel) for check in CHECKS]
        good += [run_engine(common, wheel, shim) for shim in (True, False)]
        good.append(run_example(common, wheel))
    print(f"{len(found)} wheels, {len(good)} checks, "
          f"{good.count(False)} not as they must be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
