#!/usr/bin/env python3
"""What vmmlane tells of an unmodified UCX: log, statistics, metrics, inspect.

A pair with the lane, one that has lost it, the same with VMMLANE_STRICT, and
pairs where nothing is wrong, on the simulated driver. Exits 1 if anything is
not as it must be, 77 if nothing could be run.
"""

import argparse
import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pair

CHUNK = 2 << 20
CHUNKS = 3
SERVED = f"vmm:{CHUNKS}x2M"
# As the allocator asks for it, and left so: nothing can share it.
UNSHAREABLE = f"none:{CHUNKS}x2M"
AS_ASKED = {"VMMLANE_CREATE": "off"}
FAILURES = []


def check(name, got, wanted):
    good = wanted(got) if callable(wanted) else got == wanted
    print(f"{'ok  ' if good else 'FAIL'} {name}", flush=True)
    if not good:
        print(f"     got {got!r}" +
              ("" if callable(wanted) else f", wanted {wanted!r}"))
        FAILURES.append(name)


class Watcher(threading.Thread):
    """Asks `vmmlane inspect` of both processes until it has seen enough."""

    def __init__(self, command, folder, enough):
        super().__init__(daemon=True)
        self.command = command
        self.folder = Path(folder)
        self.enough = enough
        self.seen = {}
        self.ended = False

    def run(self):
        while not self.ended and len(self.seen) < len(self.enough):
            for role in self.enough:
                self.look(role)
            time.sleep(0.2)

    def look(self, role):
        pid = self.folder / f"{role}.pid"
        if role in self.seen or not pid.exists():
            return
        done = subprocess.run([self.command, "inspect", "--json",
                               pid.read_text().strip()],
                              stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
        if done.returncode != 0:
            return
        survey = json.loads(done.stdout)
        if self.enough[role](survey):
            self.seen[role] = survey


def program_of(folder, role, client):
    """The client, with its process id left in a file."""
    path = Path(folder) / role
    path.write_text(f"#!/bin/sh\necho $$ >'{folder}/{role}.new'\n"
                    f"mv '{folder}/{role}.new' '{folder}/{role}.pid'\n"
                    f"exec '{client}' \"$@\"\n")
    path.chmod(0o755)
    return path


class Run:
    """One pair, and all that it told."""

    def __init__(self, options, kind, settings=None, enough=None,
                 arguments=(), delay=0):
        self.logs, self.metrics = {}, {}
        with tempfile.TemporaryDirectory() as folder:
            wheel, client = pair.client_of(options.ucx, options.build)
            sides = []
            for role in ("exporter", "importer"):
                environment = {
                    "VMMLANE_LOG_FILE": f"{folder}/{role}.log",
                    "VMMLANE_METRICS_FILE": f"{folder}/{role}-%p.prom",
                    **(settings or {}),
                }
                if role == "importer" and delay:
                    environment["VMMLANE_SIM_SLICE_DELAY_US"] = str(delay)
                sides.append(pair.Side(
                    wheel, program_of(folder, role, client),
                    shim=options.shim, environment=environment))
            watcher = Watcher(options.command, folder, enough or {})
            watcher.start()
            self.outcome = pair.run_pair(*sides, "whole", kind,
                                         driver=options.driver,
                                         arguments=arguments)
            watcher.ended = True
            watcher.join()
            self.seen = watcher.seen
            for role in ("exporter", "importer"):
                self.read(Path(folder), role)

    def read(self, folder, role):
        log = folder / f"{role}.log"
        self.logs[role] = log.read_text().splitlines() if log.exists() else []
        files = list(folder.glob(f"{role}-*"))
        self.metrics[role] = metrics_of(files[0].read_text()) \
            if len(files) == 1 and files[0].suffix == ".prom" else files

    def lanes(self):
        return sorted({r.lane for r in self.outcome.results})

    def all_right(self):
        return self.outcome.codes == (0, 0) and self.outcome.results and \
            all(r.status == "OK" and r.bytes == "ok"
                for r in self.outcome.results)


SAMPLE = re.compile(r'^([a-z_]+)\{((?:[a-z]+="[^"]*",?)+)\} (\d+)$')


def metrics_of(text):
    """{(name, labels but pid and release): value}; each has HELP and TYPE."""
    values, described = {}, set()
    for line in text.splitlines():
        if line.startswith("# "):
            described.add(line.split()[2])
            continue
        match = SAMPLE.match(line)
        name, labels, value = match.groups()
        if name not in described:
            raise ValueError(f"{name} has no TYPE")
        labels = tuple(label for label in labels.split(",")
                       if not label.startswith(("pid=", "release=")))
        values[(name, *labels)] = int(value)
    return values


def lines_of(objects, level):
    return [o for o in objects if o["level"] == level]


def with_the_lane(options):
    run = Run(options, SERVED, delay=20000, settings={
        "VMMLANE_LOG": "info,lane=debug,mirror=trace,ucx=debug",
        "VMMLANE_LOG_FORMAT": "json",
        "VMMLANE_STATS": "exit",
    }, enough={
        "exporter": lambda s: s["lane"] == "up" and s["importers"],
        "importer": lambda s: s["lane"] == "up" and
        s["counters"]["copies"] > 0,
    })
    check("with the lane: right", bool(run.all_right()), True)
    check("with the lane: cuda_ipc", run.lanes(), ["cuda_ipc"])
    check("inspect sees both", sorted(run.seen), ["exporter", "importer"])
    if len(run.seen) == 2:
        inspected(run)
    logs = {role: [json.loads(line) for line in lines]
            for role, lines in run.logs.items()}
    keys = {role: {o["key"] for o in lines if "key" in o}
            for role, lines in logs.items()}
    check("one key, the same id on both sides",
          (len(keys["exporter"]), keys["exporter"]),
          (1, keys["importer"]))
    for role, says in (("exporter", "is published"),
                       ("importer", "is opened at"),
                       ("importer", "a copy of 0x")):
        check(f"{role}: its lines say '{says}'",
              any(says in o["message"] and "key" in o for o in logs[role]),
              True)
    check("no warning", [lines_of(logs[r], "warn") for r in logs], [[], []])
    told = {role: " ".join(o["message"] for o in lines_of(lines, "stats"))
            for role, lines in logs.items()}
    check("statistics at the end, exporter",
          f"chunks_published {CHUNKS}:" in told["exporter"], True)
    copies = re.search(r"copies (\d+): copies posted", told["importer"])
    check("statistics at the end, importer", bool(copies), True)
    measured(run, int(copies[1]) if copies else None)


def inspected(run):
    exporter, importer = run.seen["exporter"], run.seen["importer"]
    check("inspect: the exporter's window",
          (len(exporter["windows"]), exporter["windows"][0]["chunks"],
           exporter["bytes"], exporter["lost"]), (1, CHUNKS, CHUNKS * CHUNK, []))
    check("inspect: its importer",
          [i["pid"] for i in exporter["importers"]], [importer["pid"]])
    check("inspect: the importer's mirror",
          [(m["exporter"], m["chunks"], m["bytes"], m["state"])
           for m in importer["mirrors"]],
          [(exporter["pid"], CHUNKS, CHUNKS * CHUNK, "current")])
    check("inspect: the calls of hooks",
          (exporter["calls"]["uct_md_mkey_pack_v2"] > 0,
           importer["calls"]["cuIpcOpenMemHandle_v2"] > 0), (True, True))


def measured(run, copies):
    exporter, importer = run.metrics["exporter"], run.metrics["importer"]
    check("metrics: one file for each, none left half written",
          [type(m) for m in (exporter, importer)], [dict, dict])
    if not isinstance(exporter, dict) or not isinstance(importer, dict):
        return
    check("metrics: published",
          (exporter[("vmmlane_chunks_published_total",)],
           exporter[("vmmlane_published_bytes_total",)]), (CHUNKS, CHUNKS * CHUNK))
    check("metrics: copies", importer[("vmmlane_copies_total",)], copies)
    check("metrics: the processes have ended",
          (exporter[("vmmlane_up",)], importer[("vmmlane_up",)]), (0, 0))
    check("metrics: no lost lane",
          [k for k in (*exporter, *importer) if "lost" in k[0]], [])


def without_the_lane(options):
    run = Run(options, UNSHAREABLE, settings=AS_ASKED, enough={
        "exporter": lambda s: s["lane"] == "lost",
        "importer": lambda s: s["lane"] == "lost",
    }, delay=1000)
    check("lost: right", bool(run.all_right()), True)
    check("lost: another lane", "cuda_ipc" in run.lanes(), False)
    warnings = [line for line in run.logs["exporter"] if " WARN " in line]
    check("lost: one line at the exporter", len(warnings), 1)
    check("lost: with size, chunks, handle types and remedy",
          bool(warnings) and bool(re.search(
              rf"no fast lane for 0x[0-9a-f]+\+{CHUNKS * CHUNK:#x} \({CHUNKS} "
              r"chunks, handle types none, result -?\d+\): .* Remedy: ",
              warnings[0])), True)
    check("lost: none at the importer", run.logs["importer"], [])
    cause = ("vmmlane_lanes_lost_total", 'cause="not-shareable"')
    check("lost: counted on both sides",
          [run.metrics[role].get(cause, 0) > 0
           for role in ("exporter", "importer")], [True, True])
    check("lost: inspect sees both", sorted(run.seen),
          ["exporter", "importer"])
    for role, survey in run.seen.items():
        check(f"lost: inspect names the cause, {role}",
              [c["cause"] for c in survey["lost"]], ["not-shareable"])


def strict(options):
    settings = {**AS_ASKED, "VMMLANE_STRICT": "1"}
    run = Run(options, UNSHAREABLE, settings=settings)
    check("strict: every transfer between GPUs fails",
          {r.status == "OK" for r in run.outcome.results}, {False})
    check("strict: nothing is wrong", run.outcome.wrong_bytes, False)
    check("strict: nothing hangs", run.outcome.timed_out, False)
    check("strict: it is said",
          sum("VMMLANE_STRICT: " in line for line in run.logs["importer"]), 1)
    run = Run(options, UNSHAREABLE, settings=settings,
              arguments=("--local", "host"))
    check("strict: host memory reads and writes it as before",
          bool(run.all_right()), True)
    run = Run(options, SERVED, settings=settings)
    check("strict: what has the lane keeps it",
          (bool(run.all_right()), run.lanes()), (True, ["cuda_ipc"]))


def nothing_wrong(options):
    for name, kind, arguments in (
            ("memory of cudaMalloc", "malloc:4M", ()),
            ("VMM memory and the host's", SERVED, ("--local", "host"))):
        run = Run(options, kind, arguments=arguments)
        check(f"nothing wrong, {name}: right", bool(run.all_right()), True)
        check(f"nothing wrong, {name}: no line", run.logs,
              {"exporter": [], "importer": []})
        check(f"nothing wrong, {name}: nothing lost",
              [k for m in run.metrics.values() if isinstance(m, dict)
               for k in m if "lost" in k[0]], [])


def no_peer(options):
    """Memory of each kind is registered and packed, and nobody asks for it."""
    wheel, client = pair.client_of(options.ucx, options.build)
    kinds = ("malloc:4M", SERVED, "single:2M", "none:2x2M")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        metrics = Path(folder) / "alone.prom"
        side = pair.Side(wheel, None, shim=options.shim, environment={
            "VMMLANE_LOG_FILE": str(log),
            "VMMLANE_METRICS_FILE": str(metrics)})
        done = subprocess.run(
            [client, "--role", "alone", "--kind", ",".join(kinds)],
            env=pair.environment_of(side, options.driver,
                                    "cuda_copy,cuda_ipc,tcp", "bistro"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=pair.SECONDS)
        check("no peer: registered and packed", done.returncode, 0)
        _, expects, _, _ = pair.parse(done.stdout)
        check("no peer: each kind", expects, [(kind, True) for kind in kinds])
        check("no peer: no line",
              log.read_text() if log.exists() else "", "")
        values = metrics_of(metrics.read_text()) if metrics.exists() else {}
        check("no peer: what can be shared is published, nothing is lost",
              (values.get(("vmmlane_chunks_published_total",)),
               [k for k in values if "lost" in k[0]]), (CHUNKS + 1 + 2, []))


def strict_on_1_18(options, version):
    """Its GET has no way to be given up: the process ends, and is told so."""
    older = argparse.Namespace(**{**vars(options), "ucx": version})
    run = Run(older, UNSHAREABLE,
              settings={**AS_ASKED, "VMMLANE_STRICT": "1"})
    check(f"strict, UCX {version}: the process ends in UCX's own abort",
          (run.outcome.codes[1], "not implemented for protocol get/zcopy" in
           run.outcome.logs[1]), (-signal.SIGABRT, True))
    check(f"strict, UCX {version}: told before, with the remedy",
          sum("UCX 1.18 ends this process at the first read (GET). "
              "Remedy: UCX 1.19 or newer" in line
              for line in run.logs["importer"]), 1)
    check(f"strict, UCX {version}: nothing is wrong", run.outcome.wrong_bytes,
          False)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", default="1.22.0", metavar="VERSION")
    parser.add_argument("--shim", required=True, help="libvmmlane.so")
    parser.add_argument("--command", required=True, help="vmmlane")
    parser.add_argument("--driver", required=True, metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    pair.add_build_option(parser)
    return parser.parse_args()


def main():
    options = parse_options()
    pair.resolve(options, "driver", "shim", "command")
    if options.ucx not in pair.wheel_versions():
        print(f"UCX {options.ucx} is not unpacked: run scripts/setup --ucx")
        return 77
    with_the_lane(options)
    without_the_lane(options)
    strict(options)
    nothing_wrong(options)
    no_peer(options)
    if "1.18.1" in pair.wheel_versions():
        strict_on_1_18(options, "1.18.1")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    pair.run_script(main)
