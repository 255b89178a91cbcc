#!/usr/bin/env python3
"""Unmodified UCX between two simulated nodes, on the simulated driver.

Each node has PID, network, IPC and mount namespaces of its own, and a boot id,
by which UCX tells nodes apart. They share one folder, which stands for the
fabric, and a pair of virtual network devices. Exits 1 if anything is not as it
must be, 77 if nothing could be run.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pair

INNER = "VMMLANE_TEST_NODES"
DEVICE = "node0"
# After an unmap a key that was unpacked before reads the old memory, as UCX's
# own fabric keys do (docs/fabric.md).
OLD_MEMORY = {"get-refused", "put-refused"}


@dataclasses.dataclass
class Check:
    """One pair: its memory, which sides have the shim, and the lane."""
    scenario: str
    kind: str
    shims: tuple = (True, True)
    lane: str = "cuda_ipc"  # of memory that is not cuMemAlloc's; None: any
    name: str = ""
    environment: dict = dataclasses.field(default_factory=dict)
    lines: tuple = ()  # once each in the exporter's log
    may_fail: frozenset = frozenset()

    def problems(self, outcome):
        found = []
        if self.shims == (False, False) and not self.kind.startswith("whole"):
            return self.problems_alone(outcome)
        # The client ends with 1 where bytes are not the present ones.
        old = any(r.operation in OLD_MEMORY for r in outcome.results)
        if outcome.codes != (0, 0) and not (old and outcome.codes == (0, 1)):
            found.append(f"exit codes {outcome.codes}")
        if not outcome.results and not outcome.expects:
            found.append("no result")
        for result in outcome.results:
            what = f"{result.operation} {result.detail}"
            if result.operation in OLD_MEMORY:
                continue
            if result.bytes == "BAD":
                found.append(f"{what}: WRONG BYTES")
            elif result.operation in self.may_fail:
                continue
            elif result.status != "OK" and self.lane is not None:
                found.append(f"{what}: {result.status}")
            elif result.status == "OK" and self.lane is not None and \
                    not result.kind.startswith("malloc") and \
                    (result.lane == "cuda_ipc") != (self.lane == "cuda_ipc"):
                found.append(f"{what}: lane {result.lane}")
        if self.lane == "cuda_ipc":
            found += [f"expected: {name}" for name, holds in outcome.expects
                      if not holds]
        for text in self.lines:
            count = outcome.logs[0].count(text)
            if count != 1:
                found.append(f"{count} lines of the exporter say: {text}")
        return found


    @staticmethod
    def problems_alone(outcome):
        """UCX names the first chunk only: a failure, another lane, or bytes
        that are not the exporter's (seen). It is never right over cuda_ipc."""
        return [f"{result.operation}: right without the shim"
                for result in outcome.results
                if result.bytes == "ok" and result.lane == "cuda_ipc"]


HOLES = frozenset({"get-across", "get-before-hole", "get-after-hole",
                   "get-refused", "put-refused"})


def checks(options):
    # What is enough to see the path at work; `--all` adds the rest.
    both = [Check("whole", "fabric:3x2M"), Check("whole", "fabric:26x2M")]
    # UCX's own business, with and without the shim.
    native = [Check("whole", "whole:8M", shims)
              for shims in ((True, True), (True, False))]
    # Without the shim on either side another lane, or none, and right bytes.
    without = [Check("whole", "fabric:8x2M", (False, False), None),
               Check("whole", "fabric:2x2M", (True, False), "other")]
    if options.quick:
        return both + native[:1] + without[:1]
    both += [
        Check("whole", "fabric:1x2M"),
        Check("growth", "fabric:8x2M"),
        Check("hole", "fabric:16x2M", may_fail=HOLES),
        Check("reback", "fabric:8x2M"),
        Check("unseen", "fabric:8x2M"),
        Check("probes", "fabric:4096x2M"),
    ]
    # Not across nodes: other lanes, right bytes, one line where it is a loss.
    local = [Check("whole", "mixed:2x2M", lane="other",
                   lines=("some of its chunks have a fabric handle",))]
    if not options.all:
        return both + native + without + local
    both += [
        Check("whole", "both:8x2M"),
        Check("windows", "fabric:16x2M"),
        Check("growth-below", "fabric:8x2M+64M"),
        Check("neighbours", "fabric:16x2M", may_fail=HOLES),
        Check("identity", "fabric:26x2M"),
        Check("reback-deregistered", "fabric:16x2M"),
        Check("reback-quiet", "fabric:16x2M"),
    ]
    native.append(Check("whole", "whole:8M", (False, False)))
    without.append(Check("vmm-then-malloc", "fabric:8x2M", (True, False),
                         "other"))
    local += [Check("whole", "vmm:8x2M", lane="other"),
              Check("whole", "both:8x2M", lane="other",
                    environment={"VMMLANE_SIM_IMEX": "create"})]
    return both + native + without + local


class Nodes:
    """Two nodes that live as long as this object."""

    def __init__(self, folder):
        self.fabric = Path(folder) / "fabric"
        self.fabric.mkdir()
        self.folder = Path(folder)
        self.holders = []

    def __enter__(self):
        for _ in range(2):
            self.holders.append(subprocess.Popen(
                ["unshare", "--net", "sleep", "infinity"]))
        for holder in self.holders:
            self.wait_for(holder.pid)
        pair.call(["ip", "link", "add", "vmml0", "type", "veth", "peer",
                   "name", "vmml1"])
        for i, holder in enumerate(self.holders):
            pair.call(["ip", "link", "set", f"vmml{i}", "netns",
                       str(holder.pid)])
            inside = ["nsenter", "-t", str(holder.pid), "-n", "ip"]
            pair.call([*inside, "link", "set", f"vmml{i}", "name", DEVICE])
            pair.call([*inside, "addr", "add", f"10.77.0.{i + 1}/24", "dev",
                       DEVICE])
            pair.call([*inside, "link", "set", DEVICE, "up"])
            pair.call([*inside, "link", "set", "lo", "up"])
            (self.folder / f"boot{i}").write_text(f"{uuid.uuid4()}\n")
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.kill()
            holder.wait()

    @staticmethod
    def wait_for(pid):
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{pid}/ns/net") == own:
            pass

    def program(self, i, client):
        """A program that runs the client on node i."""
        path = self.folder / f"node{i}-{pair.digest([Path(client)])}"
        boot = "/proc/sys/kernel/random/boot_id"
        path.write_text(
            "#!/bin/sh\n"
            f"exec nsenter -t {self.holders[i].pid} -n "
            "unshare --pid --ipc --mount --fork --mount-proc --kill-child "
            # UCX finds network devices in /sys, which is of a namespace too.
            f"sh -c 'mount -t sysfs sysfs /sys && "
            f"mount --bind {self.folder}/boot{i} {boot} && "
            # Of the environment what is the client's alone.
            f"exec env $VMMLANE_TEST_LATE \"$0\" \"$@\"' '{client}' "
            "\"$@\"\n")
        path.chmod(0o755)
        return path

    def environment(self, i):
        return {"VMMLANE_SIM_FABRIC": "on",
                "VMMLANE_SIM_FABRIC_DIR": str(self.fabric),
                "VMMLANE_SIM_NODE": str(i + 1),
                "VMMLANE_SIM_NVLINK": "1",
                "UCX_NET_DEVICES": DEVICE}


def run(check, nodes, wheel, client, options):
    sides = [pair.Side(wheel, nodes.program(i, client),
                       shim=options.shim if check.shims[i] else None,
                       environment={**nodes.environment(i),
                                    **check.environment})
             for i in range(2)]
    arguments = ["--growth", "8", "--rounds", "2", "--reps", "2"]
    if options.verbose:
        arguments.append("--verbose")
    return pair.run_pair(*sides, check.scenario, check.kind,
                         driver=options.driver, timeout=options.timeout,
                         arguments=arguments)


def run_version(options, version):
    wheel, client = pair.client_of(version, options.build)
    failed = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, \
            Nodes(folder) as nodes:
        for check in checks(options):
            if options.scenario and check.scenario not in options.scenario:
                continue
            if options.kind and check.kind != options.kind:
                continue
            outcome = run(check, nodes, wheel, client, options)
            problems = check.problems(outcome)
            # What a process leaves behind that ended before its driver.
            left = list(nodes.fabric.iterdir())
            for path in left:
                path.unlink()
            lanes = sorted({r.lane for r in outcome.results
                            if r.status == "OK"})
            errors = sorted({r.status for r in outcome.results
                             if r.status != "OK"})
            shims = "".join("+" if shim else "-" for shim in check.shims)
            print(f"{'FAIL' if problems else 'ok  '} {version} {shims} "
                  f"{check.scenario} {check.kind}: {len(outcome.results)} "
                  f"ops, lane {'+'.join(lanes) or '-'} "
                  f"{' '.join(errors)} ({outcome.seconds:.1f} s)",
                  flush=True)
            for problem in problems:
                print(f"     {problem}")
            if problems or options.verbose:
                pair.show_logs(outcome, last=14)
            failed += bool(problems)
    return failed


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", nargs="+", metavar="VERSION",
                        default=["1.18.1", "1.20.1", "1.22.0"])
    parser.add_argument("--shim", required=True, type=Path)
    parser.add_argument("--driver", required=True, type=Path)
    parser.add_argument("--scenario", nargs="+")
    parser.add_argument("--kind")
    parser.add_argument("--quick", action="store_true",
                        help="the main ones of them")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--timeout", type=float, default=pair.SECONDS)
    pair.add_build_option(parser)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    pair.resolve(options, "shim", "driver")
    return options


def can_make_nodes():
    if os.geteuid() != 0 or not all(map(shutil.which,
                                        ("unshare", "nsenter", "ip"))):
        return False
    return subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--ipc", "--fork",
         "--mount-proc", "sh", "-c",
         "ip link add vmml0 type veth peer name vmml1 && "
         "mount -t sysfs sysfs /sys && "
         "mount --bind /dev/null /proc/sys/kernel/random/boot_id"],
        stderr=subprocess.DEVNULL).returncode == 0


def run_inside(script):
    """Runs a script with our arguments where nodes can be made, and returns
    its exit code; None where they can be made already."""
    if INNER in os.environ:
        return None
    if not can_make_nodes():
        print("no namespaces, virtual network devices or bind mounts")
        return 77
    os.environ[INNER] = "1"
    return subprocess.run(["unshare", "--net", "--mount", sys.executable,
                           script, *sys.argv[1:]]).returncode


def main():
    options = parse_options()
    code = run_inside(__file__)
    if code is not None:
        return code
    failed = sum(run_version(options, version) for version in options.ucx)
    return 1 if failed else 0


if __name__ == "__main__":
    pair.run_script(main)
