#!/usr/bin/env python3
"""The rows of docs/recipes.md: two containers, as the kernel sees them.

Unmodified UCX on the simulated driver, as user 1000 without capabilities, in
namespaces and under the filter that a container runtime makes (moby's and
containerd's default profile denies pidfd_getfd(2) without CAP_SYS_PTRACE, with
EPERM, and lets pidfd_open(2) through). No container runtime is needed. Exits 1
if anything is not as it must be, 77 if nothing could be run.
"""

import argparse
import dataclasses
import os
import subprocess
import tempfile
from pathlib import Path

import pair

DEVICE = "eth0"
MEMORY = "vmm:8x2M"
USER = 1000


class Networks:
    """Two network namespaces, as two pods have, with a cable between them."""

    def __init__(self):
        self.holders = []

    def __enter__(self):
        own = os.readlink("/proc/self/ns/net")
        for _ in range(2):
            self.holders.append(subprocess.Popen(
                ["unshare", "--net", "sleep", "infinity"]))
        for holder in self.holders:
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                pass
        ends = [f"vm{holder.pid}" for holder in self.holders]
        pair.call(["ip", "link", "add", ends[0], "type", "veth", "peer",
                   "name", ends[1]])
        for i, holder in enumerate(self.holders):
            pair.call(["ip", "link", "set", ends[i], "netns",
                       str(holder.pid), "name", DEVICE])
            inside = ["nsenter", "-t", str(holder.pid), "-n", "ip"]
            pair.call([*inside, "addr", "add", f"10.78.0.{i + 1}/24", "dev",
                       DEVICE])
            for device in (DEVICE, "lo"):
                pair.call([*inside, "link", "set", device, "up"])
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.kill()
            holder.wait()


class UserNamespace:
    """As a rootless pod has; `first`: its users outside begin there."""

    def __init__(self, first):
        self.first = first

    def __enter__(self):
        own = os.readlink("/proc/self/ns/user")
        self.holder = subprocess.Popen(["unshare", "--user", "sleep",
                                        "infinity"])
        while os.readlink(f"/proc/{self.holder.pid}/ns/user") == own:
            pass
        for kind in ("uid", "gid"):
            Path(f"/proc/{self.holder.pid}/{kind}_map").write_text(
                f"0 {self.first} 65536\n")
        return self

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.wait()


@dataclasses.dataclass
class Row:
    """Two containers, what they share, and what must come of it."""
    name: str
    pid: bool = True  # one PID namespace?
    net: bool = True
    users: tuple = (USER, USER)
    # "host": the host's user namespace; "one" for both; "own": one for each
    user_namespace: str = "host"
    filtered: bool = True
    line: str = None  # of the importer's warning; None: the lane comes up

    def command(self, i, options, client, networks, rootless):
        words = []
        if self.user_namespace != "host":
            holder = rootless[i if self.user_namespace == "own" else 0].holder
            words += ["nsenter", "-t", str(holder.pid), "-U"]
        if not self.net:
            words += ["nsenter", "-t", str(networks.holders[i].pid), "-n"]
        words += ["unshare", "--mount"]
        if not self.pid:
            words += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        # UCX finds network devices in /sys, which is of a namespace too.
        if not self.net:
            words += ["sh", "-c", "mount -t sysfs sysfs /sys && exec \"$@\"",
                      "sh"]
        words += ["setpriv", f"--reuid={self.users[i]}",
                  f"--regid={self.users[i]}", "--clear-groups",
                  "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        if self.filtered:
            words += [str(options.gate), "EPERM", "pidfd_getfd"]
        return [*words, str(client)]


DENIED = "is denied by a seccomp filter"
ELSEWHERE = "it lives in another PID namespace, and nobody answers at its " \
    "socket"
ROWS = [
    Row("one container, or a pod with shareProcessNamespace"),
    Row("one pod, a PID namespace for each container", pid=False),
    Row("two pods, hostPID, SYS_PTRACE", net=False, filtered=False),
    Row("two pods, hostPID alone", net=False, line=DENIED),
    Row("two pods, nothing shared", pid=False, net=False, line=ELSEWHERE),
    Row("two users", users=(USER, USER + 1), line=DENIED),
    Row("two users, SYS_PTRACE", users=(USER, USER + 1), filtered=False,
        line="it is another user's"),
    Row("rootless, one user namespace", user_namespace="one"),
    Row("rootless, one user namespace, two PID namespaces", pid=False,
        user_namespace="one"),
    Row("hostUsers: false in both", pid=False, user_namespace="own",
        line="its socket belongs to another user, or one that is not mapped"),
]
QUICK = {ROWS[1].name, ROWS[2].name, ROWS[4].name}


def run(row, options, wheel, client, networks, rootless):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        sides = []
        for i in range(2):
            program = Path(folder) / f"container{i}"
            words = " ".join(f"'{word}'" for word in row.command(
                i, options, client, networks, rootless))
            program.write_text(f"#!/bin/sh\nexec {words} \"$@\"\n")
            program.chmod(0o755)
            sides.append(pair.Side(
                wheel, program, shim=options.shim,
                environment={} if row.net else {"UCX_NET_DEVICES": DEVICE}))
        return pair.run_pair(*sides, "whole", MEMORY, driver=options.driver)


def problems(row, outcome):
    found = []
    if outcome.codes != (0, 0) or not outcome.results:
        found.append(f"exit codes {outcome.codes}, {len(outcome.results)} "
                     "results")
    for result in outcome.results:
        if result.status != "OK" or result.bytes != "ok" or \
                (result.lane == "cuda_ipc") != (row.line is None):
            found.append(f"{result.operation}: lane {result.lane}, bytes "
                         f"{result.bytes}, {result.status}")
    warnings = [line for line in outcome.logs[1].splitlines()
                if "no fast lane to process" in line]
    if len(warnings) != (row.line is not None):
        found.append(f"{len(warnings)} warnings")
    if row.line and not any(row.line in line for line in warnings):
        found.append(f"no warning says: {row.line}")
    return found


def why_not(client):
    """A reason for which nothing can be run here, or None."""
    if os.geteuid() != 0:
        return "needs root to make namespaces"
    for command in (["unshare", "--net", "--pid", "--fork", "true"],
                    ["unshare", "--user", "true"], ["ip", "-V"],
                    ["setpriv", f"--reuid={USER}", "--clear-groups",
                     "test", "-x", client]):
        try:
            done = subprocess.run(command, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            return f"no {command[0]}"
        if done.returncode != 0:
            return f"{' '.join(map(str, command))}: not possible here"
    return None


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", default="1.22.0", metavar="VERSION")
    parser.add_argument("--shim", required=True, help="libvmmlane.so")
    parser.add_argument("--driver", required=True, metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    parser.add_argument("--gate", required=True, help="run_gated")
    parser.add_argument("--quick", action="store_true",
                        help="what no other test has")
    pair.add_build_option(parser)
    return parser.parse_args()


def main():
    options = parse_options()
    pair.resolve(options, "shim", "driver", "gate")
    quick = options.quick and not os.environ.get("VMML_TEST_EVERY")
    rows = [row for row in ROWS if not quick or row.name in QUICK]
    wheel, client = pair.client_of(options.ucx, options.build)
    reason = why_not(client)
    if reason:
        print(reason)
        return 77
    failed = 0
    with Networks() as networks, UserNamespace(100000) as one, \
            UserNamespace(200000) as two:
        for row in rows:
            outcome = run(row, options, wheel, client, networks, (one, two))
            found = problems(row, outcome)
            lanes = "+".join(sorted({r.lane for r in outcome.results}))
            print(f"{'FAIL' if found else 'ok  '} {row.name}: {lanes}",
                  flush=True)
            for problem in found:
                print(f"     {problem}")
            if found:
                pair.show_logs(outcome, last=12)
            failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    pair.run_script(main)
