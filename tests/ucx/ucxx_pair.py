#!/usr/bin/env python3
"""UCXX between two processes, over memory in several chunks.

The exporter's memory is a segment as PyTorch makes it; UCXX sends it three
times, other bytes each time, and once back, in each of its progress modes (its
default is a thread of its own, without a CUDA context). Every byte is compared;
that cuda_ipc carried it is read from UCX_PROTO_INFO and from vmmlane's count of
copies. UCXX is that of CACHE/ucxx (scripts/setup --ucxx) or of this Python.
Without --driver the machine's own driver is used. Exit codes: 0, 1, 77 (no
UCXX, or no driver).
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cuda
import pair

CHUNK = 2 << 20
COUNT = 26
SIZE = COUNT * CHUNK
ROUNDS = 3
MODES = ("thread", "polling", "blocking")
SECONDS = 90
# Where UCX would cut the message into pieces that it copies by the host, or by
# fragments of its own, it says so in another line.
ZERO_COPY = re.compile(r"zero-copy read from remote\s*\|\s*cuda_ipc/cuda")


class Array:
    """Memory as CUDA's array interface shows it (version 3)."""

    def __init__(self, base):
        self.__cuda_array_interface__ = {
            "shape": (SIZE,), "typestr": "|u1", "data": (base, False),
            "version": 3, "strides": None,
        }


def pattern(seed):
    return b"".join(hashlib.sha256(b"%d/%d" % (seed, i)).digest() * 64
                    for i in range(SIZE // 2048))


class Side:
    def __init__(self):
        # It asks NVML for what the simulated one does not have.
        sys.modules["pynvml"] = None
        import ucxx
        self.ucxx = ucxx
        self.driver = cuda.Driver()
        self.segment = cuda.Expandable(self.driver, CHUNK, SIZE)
        self.segment.back(SIZE)
        self.array = Array(self.segment.base)

    def fill(self, seed):
        self.driver.write(self.segment.base, pattern(seed))

    def report(self, seed):
        right = self.driver.read(self.segment.base, SIZE) == pattern(seed)
        print(f"bytes {seed} {'right' if right else 'WRONG'}", flush=True)

    async def exporter(self):
        over = asyncio.Event()

        async def serve(endpoint):
            for seed in range(ROUNDS):
                self.fill(seed)
                await endpoint.send(self.array)
            await endpoint.recv(self.array)
            self.report(ROUNDS)
            await endpoint.close()
            over.set()

        listener = self.ucxx.create_listener(serve)
        print(f"port {listener.port}", flush=True)
        await over.wait()
        listener.close()

    async def importer(self, port):
        endpoint = await self.ucxx.create_endpoint("127.0.0.1", port)
        for seed in range(ROUNDS):
            await endpoint.recv(self.array)
            self.report(seed)
        self.fill(ROUNDS)
        await endpoint.send(self.array)
        await endpoint.close()


def environment(options, mode):
    added = {
        "UCXPY_PROGRESS_MODE": mode,
        "UCX_PROTO_INFO": "y",
        "UCX_TLS": "cuda_copy,cuda_ipc,sm,tcp",
        # Without NVLink UCX switches GET off.
        "UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "y",
        "VMMLANE_STATS": "exit",
    }
    if options.shim:
        added["LD_PRELOAD"] = options.shim
    if options.driver:
        added["LD_LIBRARY_PATH"] = options.driver
    return {**os.environ, **added}


def start(options, mode, *arguments, logs):
    """The process; UCX tells its protocols on standard output."""
    return subprocess.Popen(
        [options.python, __file__, *arguments], stdin=subprocess.DEVNULL,
        stdout=logs[0], stderr=logs[1], env=environment(options, mode),
        start_new_session=True)


def read(log):
    log.seek(0)
    return log.read()


def port_of(exporter, log, end):
    """Where it listens; None: it does not."""
    while exporter.poll() is None and time.monotonic() < end:
        # The place in the file is the exporter's too, and stays where it is.
        text = os.pread(log.fileno(), 1 << 20, 0)
        match = re.search(rb"^port (\d+)$", text, re.MULTILINE)
        if match:
            return match.group(1).decode()
        time.sleep(0.02)
    return None


def run(options, mode):
    """The output of both sides with their logs, and their exit codes."""
    end = time.monotonic() + SECONDS
    processes = []
    with contextlib.ExitStack() as stack:
        logs = [[stack.enter_context(tempfile.TemporaryFile("w+"))
                 for _ in range(2)] for _ in range(2)]
        try:
            processes.append(start(options, mode, "--side", "exporter",
                                   logs=logs[0]))
            port = port_of(processes[0], logs[0][0], end)
            if port is None:
                raise SystemExit(f"{mode}: no exporter\n{read(logs[0][1])}")
            processes.append(start(options, mode, "--side", "importer",
                                   "--port", port, logs=logs[1]))
            codes = pair.wait_both(processes, end - time.monotonic(),
                                   ends_together=True)
        finally:
            for process in processes:
                if process.poll() is None:
                    pair.end_group(process)
        return ["".join(map(read, side)) for side in logs], list(codes)


def problems_of(outputs, codes):
    problems = [f"exit codes {codes}"] if codes != [0, 0] else []
    wanted = [[f"bytes {ROUNDS} right"],
              [f"bytes {seed} right" for seed in range(ROUNDS)]]
    for who, output, lines, copies in zip(("exporter", "importer"), outputs,
                                          wanted, (1, ROUNDS)):
        found = re.findall(r"^bytes .*$", output, re.MULTILINE)
        if found != lines:
            problems.append(f"{who}: {found}, not {lines}")
        if not ZERO_COPY.search(output):
            problems.append(f"{who}: not over cuda_ipc without a copy")
        count = re.search(r"stats exit: copies (\d+)", output)
        if count is None or int(count.group(1)) < copies:
            problems.append(f"{who}: {count and count.group(1)} copies on "
                            f"mirrors, not {copies}")
    return problems


def find_python():
    own = pair.CACHE / "ucxx" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    probe = subprocess.run(
        [python, "-c", "import importlib.util as u, sys; "
         "sys.exit(u.find_spec('ucxx') is None)"], check=False)
    return python if probe.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", help="libvmmlane.so")
    parser.add_argument("--driver", help="folder of the simulated driver")
    parser.add_argument("--side", choices=("exporter", "importer"))
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.side == "exporter":
        asyncio.run(Side().exporter())
        return 0
    if options.side:
        asyncio.run(Side().importer(options.port))
        return 0
    options.python = find_python()
    if options.python is None:
        print("UCXX is not installed: scripts/setup --ucxx")
        return 77
    failed = 0
    for mode in MODES:
        outputs, codes = run(options, mode)
        problems = problems_of(outputs, codes)
        print(f"{'FAIL' if problems else 'ok  '} {mode}", flush=True)
        for problem in problems:
            print(f"     {problem}")
        if problems:
            failed = 1
            print("\n".join(f"     | {line}" for output in outputs
                            for line in output.splitlines()[-25:]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
