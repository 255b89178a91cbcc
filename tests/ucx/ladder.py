#!/usr/bin/env python3
"""Unmodified UCX where the kernel denies descriptors a way between processes.

Seccomp filters around both processes, and an exporter in another PID
namespace, on the simulated driver. Exits 1 if anything is not as it must be,
77 if nothing could be run.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pair

BOTH = "pidfd_getfd,pidfd_open"
MEMORY = "vmm:8x2M"


def wrapper(folder, name, command, client):
    """A program that runs the client by way of another."""
    path = Path(folder) / name
    words = " ".join(f"'{word}'" for word in [*command, client])
    path.write_text(f"#!/bin/sh\nexec {words} \"$@\"\n")
    path.chmod(0o755)
    return path


def gated(options, error, calls):
    return [str(options.gate), error, calls]


class Check:
    """One pair: how its two sides are run and what must come of it."""

    def __init__(self, name, exporter, importer, *, lane=True, settings=None,
                 lines=()):
        self.name = name
        self.commands = (exporter, importer)
        self.lane = lane  # is it cuda_ipc?
        self.settings = settings or {}
        self.lines = lines  # of the importer's log, once each

    def run(self, options, version, client, wheel):
        with tempfile.TemporaryDirectory() as folder:
            sides = []
            for role, command in zip(("exporter", "importer"), self.commands):
                program = wrapper(folder, role, command, client) \
                    if command else client
                sides.append(pair.Side(wheel, program, shim=options.shim,
                                       environment=self.settings))
            return pair.run_pair(*sides, "whole", MEMORY,
                                 driver=options.driver,
                                 timeout=options.timeout)

    def problems(self, outcome):
        found = []
        if outcome.codes != (0, 0):
            found.append(f"exit codes {outcome.codes}")
        if not outcome.results:
            found.append("no result")
        for result in outcome.results:
            if result.bytes == "BAD":
                found.append(f"{result.operation}: WRONG BYTES")
            elif result.status != "OK":
                found.append(f"{result.operation}: {result.status}")
            elif (result.lane == "cuda_ipc") != self.lane:
                found.append(f"{result.operation}: lane {result.lane}")
        warnings = [line for line in outcome.logs[1].splitlines()
                    if line.startswith("vmmlane") and " WARN " in line and
                    "no fast lane to process" in line]
        if len(warnings) != len(self.lines):
            found.append(f"{len(warnings)} warnings, not {len(self.lines)}")
        for text in self.lines:
            if not any(text in line for line in warnings):
                found.append(f"no warning says: {text}")
        return found


def seccomp_checks(options):
    for error in ("EPERM", "ENOSYS"):
        for calls in ("pidfd_getfd", BOTH):
            gate = gated(options, error, calls)
            yield Check(f"{calls} {error}", gate, gate)
    gate = gated(options, "EPERM", "pidfd_getfd")
    yield Check("pidfd_getfd EPERM, no socket", gate, gate, lane=False,
                settings={"VMMLANE_TRANSPORT": "getfd"},
                lines=["denied by a seccomp filter (mode 2"])


def namespace_checks(wheel):
    command = [shutil.which("unshare"), "--pid", "--fork", "--kill-child"]
    second = [*command, "/bin/sh", "-c", '"$0" "$@" & wait $!']
    yield Check("exporter in another PID namespace", command, None)
    yield Check("importer in another PID namespace", None, command)
    yield Check("two PID namespaces", command, second)
    # Without the namespace in its address UCX takes an equal pid for its own
    # process, with which cuda_ipc has nothing to do.
    yield Check("two PID namespaces, one pid", command, command,
                lane=wheel.number >= (1, 21))
    yield Check("another PID namespace, no socket", command, None, lane=False,
                settings={"VMMLANE_TRANSPORT": "getfd"},
                lines=["lives in another PID namespace"])


def nixl_problems(options):
    """NIXL's UCX (1.23) gives cuda_ipc up there before any key: it is said.

    None where NIXL is not installed.
    """
    unshare = f"{shutil.which('unshare')} --pid --fork --kill-child"
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "python"
        python.write_text("#!/bin/sh\n"
                          'case "$*" in\n'
                          f'*"--role exporter"*) exec {unshare} '
                          f'"{options.nixl_python}" "$@" ;;\n'
                          f'*) exec "{options.nixl_python}" "$@" ;;\n'
                          "esac\n")
        python.chmod(0o755)
        done = subprocess.run(
            [sys.executable, pair.HERE / "nixl_pair.py", "--driver",
             options.driver, "--shim", options.shim, "--python", python,
             "--any-lane", "--verbose"], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
    if done.returncode == 77:
        return None
    found = []
    if done.returncode != 0:
        found.append(f"exit code {done.returncode}\n{done.stdout[-3000:]}")
    lines = done.stdout.count("no fast lane to a process in another PID "
                              "namespace")
    if lines != 1:
        found.append(f"{lines} warnings, not 1")
    return found


def check_nixl(options):
    """Returns how many checks failed."""
    problems = nixl_problems(options)
    if problems is None:
        print("skip NIXL: not installed")
        return 0
    print(f"{'FAIL' if problems else 'ok  '} NIXL, another PID namespace: "
          "cuda_ipc is refused, and it is said")
    for problem in problems:
        print(f"     {problem}")
    return len(problems)


def can_unshare():
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--pid", "--fork", "true"],
                          stderr=subprocess.DEVNULL).returncode == 0


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", nargs="+", default=None, metavar="VERSION")
    parser.add_argument("--shim", required=True, help="libvmmlane.so")
    parser.add_argument("--driver", required=True, metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    parser.add_argument("--gate", required=True, help="run_gated")
    parser.add_argument("--timeout", type=float, default=pair.SECONDS)
    pair.add_build_option(parser)
    parser.add_argument("--nixl-python",
                        default=str(pair.ROOT / ".venv/bin/python"),
                        help="interpreter that has nixl")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def run_version(options, version):
    """Returns how many checks failed."""
    wheel, client = pair.client_of(version, options.build)
    checks = list(seccomp_checks(options))
    if can_unshare():
        checks += namespace_checks(wheel)
    else:
        print(f"skip {version} PID namespaces: not permitted here")
    failed = 0
    for check in checks:
        outcome = check.run(options, version, client, wheel)
        problems = check.problems(outcome)
        lanes = sorted({r.lane for r in outcome.results})
        print(f"{'FAIL' if problems else 'ok  '} {version} {check.name}: "
              f"{len(outcome.results)} ops, lane {'+'.join(lanes) or '-'} "
              f"({outcome.seconds:.1f} s)", flush=True)
        for problem in problems:
            print(f"     {problem}")
        if problems or options.verbose:
            pair.show_logs(outcome, last=25)
        failed += bool(problems)
    return failed


def main():
    options = parse_options()
    pair.resolve(options, "shim", "driver", "gate")
    failed = sum(run_version(options, version)
                 for version in pair.versions_of(options))
    if can_unshare():
        failed += check_nixl(options)
    return 1 if failed else 0


if __name__ == "__main__":
    pair.run_script(main)
