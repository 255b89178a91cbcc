#!/usr/bin/env python3
"""Legacy IPC of VMM memory between two processes, without UCX.

The exporter's memory is a segment as PyTorch makes it. It takes the handle of
its reservation's base, as vLLM's custom all-reduce does, and tells the offset
of a tensor. With VMMLANE_IPC=all on both sides the importer reads and writes
every byte of it, also after the segment has grown; else the driver's own
failure must come back. Without --driver the machine's own driver is used.
Exit codes: 0, 1, 77 (no driver).
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cuda

CHUNK = 2 << 20
COUNT = 6
OFFSET = CHUNK - 4096  # of the tensor: it spans borders
LENGTH = 3 * CHUNK
RANGE_START = 11
INVALID_VALUE = 1


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def pattern(seed, length):
    block = bytes((seed * 31 + i * 7 + (i >> 8)) % 251 for i in range(65521))
    return (block * (length // len(block) + 1))[:length]


def say(**fields):
    print(json.dumps(fields), flush=True)


def hear():
    """The next order; the process ends when there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def ipc_handle(driver, address):
    """The CUresult and the handle's bytes, for the base of the reservation."""
    base = ctypes.c_uint64()
    driver("cuPointerGetAttribute", ctypes.byref(base), RANGE_START, address)
    handle = Handle()
    result = driver.library.cuIpcGetMemHandle(ctypes.byref(handle), base)
    return result, bytes(handle.bytes).hex(), address - base.value


def exporter():
    driver = cuda.Driver()
    segment = cuda.Expandable(driver, CHUNK, COUNT * CHUNK)
    segment.back(COUNT * CHUNK)
    tensor = segment.base + OFFSET
    driver.write(tensor, pattern(1, LENGTH))
    result, handle, offset = ipc_handle(driver, tensor)
    say(result=result, handle=handle, offset=offset)
    if result != 0:
        return 0
    hear()
    wrong = driver.read(tensor, LENGTH) != pattern(2, LENGTH)
    segment.back(2 * COUNT * CHUNK)
    tensor = segment.base + COUNT * CHUNK + OFFSET
    driver.write(tensor, pattern(3, LENGTH))
    _, grown, offset = ipc_handle(driver, tensor)
    say(wrong=wrong, handle=grown, offset=offset, changed=grown != handle)
    hear()
    return 0


def open_handle(driver, text):
    handle = Handle()
    handle.bytes[:] = bytes.fromhex(text)
    address = ctypes.c_uint64()
    driver.library.cuIpcOpenMemHandle_v2.argtypes = [
        ctypes.POINTER(ctypes.c_uint64), Handle, ctypes.c_uint]
    result = driver.library.cuIpcOpenMemHandle_v2(ctypes.byref(address),
                                                  handle, 1)
    return result, address.value


def importer():
    driver = cuda.Driver()
    for seed in (1, 3):
        order = hear()
        result, base = open_handle(driver, order["handle"])
        wrong = None
        if result == 0:
            tensor = base + order["offset"]
            wrong = driver.read(tensor, LENGTH) != pattern(seed, LENGTH)
            driver.write(tensor, pattern(seed + 1, LENGTH))
            driver("cuCtxSynchronize")
        say(result=result, wrong=wrong)
        if result != 0:
            return 0
        driver("cuIpcCloseMemHandle", base)
    return 0


class Side:
    def __init__(self, role, environment):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", role], env=environment,
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, fields):
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline() or "{}")

    def end(self):
        self.process.stdin.close()
        try:
            return self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def environment(options, shim, ipc):
    env = {k: v for k, v in os.environ.items()
           if k not in ("LD_PRELOAD", "VMMLANE_IPC")}
    if options.driver:
        env["LD_LIBRARY_PATH"] = os.path.abspath(options.driver)
    if shim:
        env["LD_PRELOAD"] = os.path.abspath(options.shim)
    if ipc:
        env["VMMLANE_IPC"] = ipc
    return env


def transfer(exporter_env, importer_env):
    """What each step gave; ends both sides."""
    sides = Side("exporter", exporter_env), Side("importer", importer_env)
    source, target = sides
    steps = [source.hear()]
    if steps[0].get("result") == 0:
        target.tell(steps[0])
        steps.append(target.hear())
        if steps[1].get("result") == 0:
            source.tell({})
            steps.append(source.hear())
            target.tell(steps[2])
            steps.append(target.hear())
            source.tell({})
    codes = [side.end() for side in sides]
    return steps, codes


def is_served(steps):
    return (len(steps) == 4 and steps[1] == {"result": 0, "wrong": False}
            and steps[2]["wrong"] is False and steps[2]["changed"]
            and steps[3] == {"result": 0, "wrong": False})


def is_refused_by_driver(steps):
    return len(steps) == 1 and steps[0]["result"] == INVALID_VALUE


def is_refused_at_open(steps):
    return len(steps) == 2 and steps[1]["result"] != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", help="libvmmlane.so to preload")
    parser.add_argument("--driver", metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    parser.add_argument("--role", choices=["exporter", "importer"])
    options = parser.parse_args()
    if options.role:
        return exporter() if options.role == "exporter" else importer()
    if not options.driver:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            print("no NVIDIA driver here; give --driver DIR")
            return 77
    cases = [
        ("without vmmlane", (False, None), (False, None),
         is_refused_by_driver),
        ("VMMLANE_IPC unset", (True, None), (True, None),
         is_refused_by_driver),
        ("VMMLANE_IPC=all", (True, "all"), (True, "all"), is_served),
        ("the importer has not opted in", (True, "all"), (True, None),
         is_refused_at_open),
        ("the importer is without vmmlane", (True, "all"), (False, None),
         is_refused_at_open),
    ]
    bad = 0
    for name, source, target, is_right in cases:
        steps, codes = transfer(environment(options, *source),
                                environment(options, *target))
        good = codes == [0, 0] and is_right(steps)
        bad += not good
        print(f"ok   {name}" if good else f"FAIL {name}: {steps} {codes}",
              flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
