#!/usr/bin/env python3
"""A restarted exporter with its forerunner's pid, on each UCX.

In a PID namespace of its own, where the next pid can be chosen. Exits 77 where
that is not allowed.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pair

INNER = "VMMLANE_TEST_PID_NAMESPACE"
NEXT_PID = Path("/proc/sys/kernel/ns_last_pid")
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def start(side, role, channels, log, options, pid=None):
    arguments = ["--role", role, "--scenario", "restarted", "--kind",
                 options.kind, "--timeout", str(pair.SECONDS)]
    for name, own in zip(("--fd", "--next-fd"), channels):
        arguments += [name, str(own.fileno())]
    environment = pair.environment_of(side, options.driver,
                                      "cuda_copy,cuda_ipc,posix", "bistro")
    if pid is not None:
        NEXT_PID.write_text(str(pid - 1))
    return subprocess.Popen([side.client, *arguments], env=environment,
                            pass_fds=[own.fileno() for own in channels],
                            stdin=subprocess.DEVNULL, stdout=log,
                            stderr=subprocess.STDOUT, start_new_session=True)


def run(side, options):
    """Exit codes of both exporters and the importer, pids, and the log."""
    one, two = socket.socketpair(), socket.socketpair()
    log = tempfile.TemporaryFile(mode="w+", errors="replace")
    exporter_log = tempfile.TemporaryFile(mode="w+", errors="replace")
    first = start(side, "exporter", [one[0]], exporter_log, options)
    importer = start(side, "importer", [one[1], two[1]], log, options)
    second = None
    try:
        for own in (*one, two[1]):
            own.close()
        first.wait(pair.SECONDS)
        # A thread that it begins now would get the number.
        importer.send_signal(signal.SIGSTOP)
        os.waitpid(importer.pid, os.WUNTRACED)
        second = start(side, "exporter", [two[0]], exporter_log, options,
                       first.pid)
        importer.send_signal(signal.SIGCONT)
        two[0].close()
        importer.wait(pair.SECONDS)
        second.wait(pair.MOMENT)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in (first, importer, second):
            if process and process.poll() is None:
                pair.end_group(process)
    texts = []
    for file in (exporter_log, log):
        file.seek(0)
        texts.append(file.read())
    codes = tuple(process.returncode if process else None
                  for process in (first, second, importer))
    return codes, second is not None and first.pid == second.pid, texts


def judge(codes, same_pid, log):
    problems = []
    if not same_pid:
        problems.append("the second exporter got another pid")
    if codes != (-9, 0, 0):
        problems.append(f"exit codes {codes}")
    results, _, _, _ = pair.parse(log)
    done = {r.detail: r for r in results if r.operation in ("get", "put")}
    for name in ("first", "second", "second-again"):
        if name not in done or done[name].bytes != "ok" or \
                done[name].lane != "cuda_ipc":
            problems.append(f"{name}: not right bytes over cuda_ipc")
    refused = [r for r in results if r.operation.endswith("-refused")]
    if not refused or any(r.status == "OK" for r in refused):
        problems.append("the first exporter's key was not refused")
    return problems


def inner(options):
    bad = 0
    for version in pair.versions_of(options):
        side = pair.Side(*pair.client_of(version, options.build),
                         shim=options.shim)
        codes, same_pid, texts = run(side, options)
        problems = judge(codes, same_pid, texts[1])
        print(f"{'FAIL' if problems else 'ok  '} {version} restarted "
              f"{options.kind}", flush=True)
        bad += bool(problems)
        for problem in problems:
            print(f"     {problem}")
        if problems or options.verbose:
            print(*texts, sep="\n")
    return 1 if bad else 0


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", nargs="+", metavar="VERSION")
    parser.add_argument("--shim", required=True, type=Path)
    parser.add_argument("--driver", type=Path)
    parser.add_argument("--kind", default="vmm:8x2M~64M")
    pair.add_build_option(parser)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    pair.resolve(options, "shim", "driver")
    return options


def main():
    options = parse_options()
    pair.versions_of(options)
    if INNER in os.environ:
        return inner(options)
    allowed = subprocess.run([*UNSHARE, "sh", "-c",
                              f"echo 100 >{NEXT_PID}"],
                             stderr=subprocess.DEVNULL)
    if allowed.returncode != 0:
        print("no PID namespace of its own, or no choice of the next pid")
        return 77
    os.environ[INNER] = "1"
    return subprocess.run([*UNSHARE, sys.executable, __file__,
                           *sys.argv[1:]]).returncode


if __name__ == "__main__":
    pair.run_script(main)
