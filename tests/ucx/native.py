#!/usr/bin/env python3
"""The stand-down rule (A4) on a UCX that can share descriptors by itself.

No published wheel can: the build is made from UCX's source, with a C library
that has SYS_pidfd_getfd, and lies in CACHE/ucx/1.22.0-fd as a wheel would. Each
memory is registered, packed, imported and released without vmmlane, with it,
and with VMMLANE_NATIVE=never. Exits 1 if anything is not as it must be, 77 if
nothing could be run.
"""

import argparse
import re
import tempfile
from pathlib import Path

import pair
import run

BUILD = "1.22.0-fd"
MAGIC = b"vmml"  # src/lane/handle.c

# uct_cuda_ipc_key_handle_t of UCX 1.22 (cuda_ipc_md.h).
TYPES = ["NO_IPC", "LEGACY", "VMM", "MEMPOOL", "POSIX_FD"]
# The packed sizes of cuda_ipc's keys, without and with a PID namespace.
KEY_SIZES = (192, 200)

# What is called, memory (memory.c) for both drivers, and whether UCX serves it
# by itself.
MEMORY = [
    ("one handle that fills its reservation", "single:{0}M", True),
    ("the same of type NONE", "none:1x{0}M~{0}M", True),
    ("the first chunk of a larger one", "first:{0}M", False),
    ("many chunks", "vmm:{1}x2M", False),
    ("many chunks of type NONE", "none:{1}x2M", False),
]
# What the application asks for as type NONE, UCX alone cannot share.
ALONE_LOST = "none"
MODES = {"alone": (False, {}), "with": (True, {}),
         "never": (True, {"VMMLANE_NATIVE": "never"})}


def parts_of(packed):
    """The memory domains' parts of a packed key of UCP: after a map of them
    (8 bytes) and the memory type (1), each with its size (1) before it."""
    domains = int.from_bytes(packed[:8], "little")
    at = 9
    for _ in range(bin(domains).count("1")):
        size = packed[at]
        yield packed[at + 1:at + 1 + size]
        at += 1 + size


def key_type(packed):
    found = []
    for part in parts_of(packed):
        if len(part) in KEY_SIZES:
            number = int.from_bytes(part[:4], "little")
            name = TYPES[number] if number < len(TYPES) else str(number)
            found.append("vmmlane" if MAGIC in part else name)
    return "+".join(found) or "none"


class Round:
    """What one run showed of its memory, twice over."""

    def __init__(self, outcome, kind):
        log = outcome.logs[1]
        self.outcome = outcome
        self.results = [(r.operation, r.detail, r.lane, r.bytes, r.status)
                        for r in outcome.results if r.detail != "warm"]
        self.types = [key_type(bytes.fromhex(text)) for text in
                      re.findall(rf"^key {re.escape(kind)} (\w+)$", log, re.M)]
        steps = re.findall(r"^descriptors (\S+) (\S+) (\d+) (\d+)$", log,
                           re.M)
        self.steps = [(step, int(there), int(here))
                      for name, step, there, here in steps if name == kind]
        warm = [(int(there), int(here)) for name, step, there, here in steps
                if name != kind and step == "freed"]
        self.start = warm[-1] if warm else (0, 0)

    @property
    def descriptors(self):
        """(step, exporter's, importer's) above what a first round left."""
        return [(step, there - self.start[0], here - self.start[1])
                for step, there, here in self.steps]

    def served(self):
        return bool(self.results) and all(
            lane == "cuda_ipc" and verdict == "ok" and status == "OK"
            for _, _, lane, verdict, status in self.results)

    def text(self):
        lanes = sorted({r[2] if r[4] == "OK" else r[4] for r in self.results})
        verdicts = sorted({r[3] for r in self.results})
        most = tuple(max((s[i] for s in self.descriptors), default=0)
                     for i in (1, 2))
        last = self.descriptors[-1][1:] if self.descriptors else ("?", "?")
        return (f"key {'/'.join(sorted(set(self.types))) or 'none'}, lane "
                f"{'+'.join(lanes) or '-'}, bytes {'+'.join(verdicts)}, "
                "descriptors at most %d and %d, at the end " % most +
                "%s and %s" % last +
                (f", {self.outcome.exports} exports"
                 if self.outcome.exports is not None else ""))


def run_mode(options, client, wheel, kind, mode):
    shim, environment = MODES[mode]
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls"
        sides = [pair.Side(wheel, client, shim=options.shim if shim else None,
                           environment={**environment, **own})
                 for own in ({"VMMLANE_SIM_COUNT_FILE": str(calls)}, {})]
        outcome = pair.run_pair(*sides, "native", kind, driver=options.driver,
                                timeout=options.timeout)
        outcome.exports = run.exports_in(calls)
    return Round(outcome, kind)


def problems_of(kind, by_itself, rounds):
    alone, taken, never = (rounds[mode] for mode in MODES)
    found = [f"{mode}: exit codes {rounds[mode].outcome.codes}"
             for mode in ("with", "never")
             if rounds[mode].outcome.codes != (0, 0)]
    # Two rounds, each with the key's type, two results, five steps.
    for mode in ("with", "never"):
        one = rounds[mode]
        if (len(one.types), len(one.results), len(one.steps)) != (2, 4, 10):
            found.append(f"{mode}: not every step was seen")
        if not one.served():
            found.append(f"{mode}: not right over cuda_ipc: {one.results}")
    wanted = "POSIX_FD" if by_itself else "vmmlane"
    found += [f"with: a key of type {name}, not {wanted}"
              for name in taken.types if name != wanted]
    found += [f"never: a key of type {name}, not vmmlane's"
              for name in never.types if name != "vmmlane"]
    if by_itself and not kind.startswith(ALONE_LOST):
        for what in ("types", "results", "descriptors"):
            if getattr(alone, what) != getattr(taken, what):
                found.append(f"{what} differ: alone {getattr(alone, what)}, "
                             f"with {getattr(taken, what)}")
        if alone.outcome.exports != taken.outcome.exports:
            found.append(f"{taken.outcome.exports} exports, alone "
                         f"{alone.outcome.exports}")
    return found


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", required=True, help="libvmmlane.so")
    parser.add_argument("--driver", metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    parser.add_argument("--ucx", default=BUILD, metavar="VERSION")
    parser.add_argument("--timeout", type=float, default=pair.SECONDS)
    pair.add_build_option(parser)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def compare(options, client, wheel, name, kind, by_itself):
    """Runs one kind of memory in every mode; returns 1 if it is not right."""
    rounds = {mode: run_mode(options, client, wheel, kind, mode)
              for mode in MODES}
    upgraded = rounds["with"].descriptors
    problems = problems_of(kind, by_itself, rounds)
    if by_itself and kind.startswith(ALONE_LOST) and \
            upgraded != options.descriptors:
        problems.append(f"descriptors {upgraded}, not those of memory that "
                        f"was shareable: {options.descriptors}")
    options.descriptors = upgraded if by_itself else options.descriptors
    print(f"{'FAIL' if problems else 'ok  '} {options.ucx} {name}, {kind}",
          flush=True)
    for mode, one in rounds.items():
        print(f"     state {mode}: {one.text()}")
    for problem in problems:
        print(f"     {problem}")
    if problems or options.verbose:
        for one in rounds.values():
            pair.show_logs(one.outcome, last=25)
    return 1 if problems else 0


def main():
    options = parse_options()
    pair.resolve(options, "shim", "driver")
    pair.need_driver(options)
    wheel, client = pair.client_of(options.ucx, options.build)
    sizes = (16, 8) if options.driver else (512, 256)
    options.descriptors = None
    failed = sum(compare(options, client, wheel, name, kind.format(*sizes),
                         by_itself)
                 for name, kind, by_itself in MEMORY)
    return 1 if failed else 0


if __name__ == "__main__":
    pair.run_script(main)
