#!/usr/bin/env python3
"""The compatibility matrix: builds of UCX, kinds of memory, GET and PUT.

Started by scripts/matrix. Each build with itself, without and with vmmlane, in
a pair of processes of its own for each kind of memory; and each two builds, both
ways. Writes docs/compatibility.tsv and, from that, the tables of
docs/compatibility.md. A cell that is not "right bytes over cuda_ipc" has its
reason, found in what the processes said, or the script fails.

--check compares the table with the TSV, --sample also runs a few pairs and
compares them with it. Exit codes: 0; 1, something differs or has no reason; 77,
nothing could be run.
"""

import argparse
import concurrent.futures
import itertools
import subprocess
import time
from typing import NamedTuple

import pair

DOC = pair.ROOT / "docs" / "compatibility.md"
TSV = pair.ROOT / "docs" / "compatibility.tsv"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"

# Folders of the cache, and what the table calls them.
BUILDS = {
    "1.18.0": "1.18.0",
    "1.18.0.post1-cu12": "1.18.0.post1",
    "1.18.1": "1.18.1",
    "1.19.0-cu12": "1.19.0 cu12",
    "1.19.0": "1.19.0 cu13",
    "1.20.0-cu12": "1.20.0 cu12",
    "1.20.0-cu13": "1.20.0 cu13",
    "1.20.1-cu12": "1.20.1 cu12",
    "1.20.1": "1.20.1 cu13",
    "1.21.0-cu12": "1.21.0 cu12",
    "1.21.0": "1.21.0 cu13",
    "1.22.0-cu12": "1.22.0 cu12",
    "1.22.0": "1.22.0 cu13",
    "1.23.0-nixl": "1.23 (NIXL)",
    # From source, with the descriptor arm; in no published wheel.
    "1.22.0-fd": "1.22.0 + arm",
}
WITH_ARM = "1.22.0-fd"
# The importer ends by a signal after its last transfer, without vmmlane too.
CRASHES_AT_END = [("1.18.0", "1.18.1")]
# Of the wheels that scripts/setup --ucx unpacks.
SAMPLE = [("1.18.1", "1.18.1"), ("1.20.1", "1.22.0"), ("1.22.0", "1.18.0")]

# Kinds of memory: memory.c's specification, and what the table calls them.
KINDS = {
    "cudaMalloc": ("malloc:4M", "cudaMalloc"),
    "filled": ("single:4M", "one handle, fills its reservation"),
    "first": ("first:4M", "one chunk of a larger one"),
    "many": ("vmm:4x2M", "many chunks"),
    "grown": ("vmm:2x2M", "grown"),
    "re-backed": ("vmm:3x2M", "re-backed"),
    "NONE": ("none:3x2M", "NONE"),
    "pool": ("pool:4M", "pool"),
}

REASONS = {
    "key-layout":
        "neither UCX reads the other's keys: 1.18.0 and its post1 lay them out "
        "each in their own way, all later ones in a third. vmmlane refuses such "
        "a key, with one line",
    "ucx-key":
        "UCX's own key, without vmmlane too: 1.18.0, its post1, 1.18.1 to "
        "1.21, and 1.22 and newer do not read each other's",
    "ucx-key-misread":
        "UCX's own key, without vmmlane too: the importer takes it for one of "
        "its own layout, and each copy by it is refused; with 1.18 that ends "
        "the process",
    "arm-here-alone":
        "left to UCX by the exporter, which can share the descriptor; the "
        "importer's UCX cannot take it. `VMMLANE_NATIVE=never` at the exporter "
        "has it served",
    "pack-fails": "`ucp_rkey_pack` fails: this build asks for a legacy handle, "
                  "which such memory has not",
    "no-arm": "this UCX has no way to share memory by its descriptor",
    "no-type": "memory without a handle type cannot be shared",
    "first-handle":
        "the key is of the first handle alone: a transfer over it fails, or "
        "reads and writes what lies behind it at the importer",
    "pool": "memory of pools is managed memory to UCX",
}


class Row(NamedTuple):
    exporter: str
    importer: str
    memory: str
    vmmlane: str  # "with" or "without", on both sides
    get: str      # "cuda_ipc", "slow", "fails", "wrong" or "broken"
    put: str
    reason: str   # a key of REASONS; "-" where both are cuda_ipc

    @property
    def key(self):
        return self[:4]


class BadEnd(Exception):
    """A process failed after its transfers."""


# ---- one pair ----


def outcome_of(results):
    """The worst of the operations."""
    if any(r.bytes == "BAD" for r in results):
        return "wrong"
    if not results or any(r.status != "OK" for r in results):
        return "fails"
    if all(r.lane == "cuda_ipc" for r in results):
        return "cuda_ipc"
    return "slow"


def run_memory(options, builds, kinds, shim):
    """One pair of processes over some kinds: (outcome, {kind: (get, put)})."""
    sides = [pair.Side(*options.clients[build],
                       shim=options.shim if shim else None)
             for build in builds]
    memory = ",".join(f"{kind}={KINDS[kind][0]}" for kind in kinds)
    # Over posix: most versions find no route over tcp's loopback.
    outcome = pair.run_pair(*sides, "matrix", memory, driver=options.driver,
                            timeout=options.timeout,
                            tls="cuda_copy,cuda_ipc,posix")
    cells = {}
    for kind in kinds:
        mine = [r for r in outcome.results if r.detail == kind]
        cells[kind] = tuple(
            outcome_of([r for r in mine if r.operation == operation])
            for operation in ("get", "put"))
    return outcome, cells


def is_whole(outcome, kinds):
    """Did each kind come to its end?"""
    return set(kinds) == {r.detail for r in outcome.results
                          if r.operation == "put"} and not outcome.timed_out


def run_together(options, builds, kinds, shim):
    """All kinds in one pair of processes; each in its own where one of them
    ends the process."""
    outcome, cells = run_memory(options, builds, kinds, shim)
    if is_whole(outcome, kinds) or len(kinds) == 1:
        return {kind: (outcome, cells[kind]) for kind in kinds}
    runs = {}
    for kind in kinds:
        outcome, cells = run_memory(options, builds, [kind], shim)
        runs[kind] = (outcome, cells[kind])
    return runs


# ---- reasons ----


def layout(build):
    """How a build lays its keys out; equal ones read each other's."""
    number = pair.version_number(build)
    if number[:3] == (1, 18, 0):
        return "1.18.0" if len(number) == 3 else "1.18.0.post1"
    return "1.18.1" if number < (1, 22) else "1.22"


def reason_without(exporter, importer, kind, cells, log):
    if kind == "cudaMalloc" and layout(exporter) != layout(importer):
        return "ucx-key" if set(cells) <= {"slow", "cuda_ipc"} else \
            "ucx-key-misread"
    if exporter != importer or kind == "cudaMalloc":
        return None
    if kind == "pool" and cells == ("slow", "slow"):
        return "pool"
    if exporter == WITH_ARM and kind in ("many", "grown", "re-backed"):
        return "first-handle"
    if "cuIpcGetMemHandle" in log and cells == ("fails", "fails"):
        return "pack-fails"
    if cells != ("slow", "slow"):
        return None
    return "no-type" if kind == "NONE" else "no-arm"


def reason_with(exporter, importer, kind, cells, log, alone):
    """alone: what cudaMalloc memory had in this pair without vmmlane."""
    if kind == "cudaMalloc" and exporter != importer:
        if alone is not None and alone[:2] == cells:
            return alone[2]
        return None
    if "do not read each other's keys" in log and cells == ("slow", "slow"):
        return "key-layout"
    if kind == "filled" and exporter == WITH_ARM and importer != WITH_ARM and \
            cells == ("slow", "slow"):
        return "arm-here-alone"
    return None


def reason_of(exporter, importer, kind, shim, cells, outcome, alone=None):
    if cells == ("cuda_ipc", "cuda_ipc"):
        return "-"
    if shim:
        reason = reason_with(exporter, importer, kind, cells, outcome.logs[1],
                             alone)
    else:
        reason = reason_without(exporter, importer, kind, cells,
                                outcome.logs[0])
    return reason or "?"


# ---- all of it ----


def row_of(builds, kind, shim, cells, reason):
    # What lies behind the first handle is another thing in each run.
    if reason == "first-handle":
        cells = ("broken", "broken")
    return Row(*builds, kind, "with" if shim else "without", *cells, reason)


def rows_of_runs(builds, shim, runs, alone=None):
    all_cells = [cells for _, cells in runs.values()]
    for outcome, _ in runs.values():
        if not ended_well(builds, all_cells, outcome):
            raise BadEnd(f"{' -> '.join(builds)}: exit codes "
                         f"{outcome.codes} after right transfers")
    return [row_of(builds, kind, shim, cells,
                   reason_of(*builds, kind, shim, cells, outcome, alone))
            for kind, (outcome, cells) in runs.items()]


def run_same(options, build):
    """Each kind in its own pair of processes."""
    rows = []
    for shim, kind in itertools.product((False, True), KINDS):
        runs = run_together(options, (build, build), [kind], shim)
        rows += rows_of_runs((build, build), shim, runs)
    return rows


def run_mixed(options, builds, without=True):
    rows = []
    alone = None
    if without:
        runs = run_together(options, builds, ["cudaMalloc"], False)
        rows = rows_of_runs(builds, False, runs)
        alone = rows[0][4:]
    runs = run_together(options, builds, list(KINDS), True)
    return rows + rows_of_runs(builds, True, runs, alone)


def ended_well(builds, cells, outcome):
    """Neither process failed but by what its cells show."""
    return outcome.codes == (0, 0) or builds in CRASHES_AT_END or \
        any(set(get_put) & {"fails", "wrong"} for get_put in cells)


def job(options, builds):
    start = time.monotonic()
    rows = run_same(options, builds[0]) if builds[0] == builds[1] else \
        run_mixed(options, builds)
    lost = [f"{row.memory} {row.vmmlane} {row.get}/{row.put} {row.reason}"
            for row in rows if row.vmmlane == "with" and row.reason != "-"]
    print(f"{' -> '.join(builds)}: {'; '.join(lost) or 'all over cuda_ipc'} "
          f"({time.monotonic() - start:.1f} s)", flush=True)
    return rows


def order(row):
    names, kinds = list(BUILDS), list(KINDS)
    return (row.exporter != row.importer, names.index(row.exporter),
            names.index(row.importer), row.vmmlane, kinds.index(row.memory))


def run_all(options):
    pairs = list(itertools.product(options.clients, repeat=2))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = [row for rows in
                 pool.map(lambda builds: job(options, builds), pairs)
                 for row in rows]
    return sorted(found, key=order)


# ---- the TSV ----


def write_tsv(rows, path):
    lines = ["# Written by scripts/matrix: unmodified UCX, two processes, the "
             "simulated driver.", "\t".join(Row._fields)]
    lines += ["\t".join(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def read_tsv(path):
    lines = [line.split("\t") for line in path.read_text().splitlines()
             if line and not line.startswith("#")]
    if not lines or lines[0] != list(Row._fields):
        raise SystemExit(f"matrix: {path}: the columns are not "
                         f"{' '.join(Row._fields)}")
    return [Row(*line) for line in lines[1:]]


def faults_of(rows):
    """What a table must not have: cells without a reason, wrong bytes with
    vmmlane, and gaps."""
    faults = []
    for row in rows:
        fast = (row.get, row.put) == ("cuda_ipc", "cuda_ipc")
        if row.reason not in REASONS and not (fast and row.reason == "-"):
            faults.append(f"no reason: {' '.join(row)}")
        if fast and row.reason != "-":
            faults.append(f"a reason for nothing: {' '.join(row)}")
        if row.vmmlane == "with" and "wrong" in (row.get, row.put):
            faults.append(f"wrong bytes: {' '.join(row)}")
    keys = [row.key for row in rows]
    wanted = {(e, i, kind, "with") for e, i, kind in
              itertools.product(BUILDS, BUILDS, KINDS)}
    wanted |= {(build, build, kind, "without")
               for build, kind in itertools.product(BUILDS, KINDS)}
    faults += [f"not run: {' '.join(key)}" for key in
               sorted(wanted - set(keys))]
    faults += [f"twice: {' '.join(key)}" for key in
               sorted({key for key in keys if keys.count(key) > 1})]
    return faults


# ---- the tables ----


class Notes:
    """Numbers for texts, in the order of their use."""

    def __init__(self, style):
        self.style = style
        self.numbers = {}

    def __call__(self, text):
        number = self.numbers.setdefault(text, len(self.numbers))
        return str(number + 1) if self.style == "1" else \
            "abcdefghijklmnopqrstuvwxyz"[number]

    def lines(self):
        return [f"- {self(text)}: {text}" for text in self.numbers]


def cell_text(row, notes):
    words = "/".join(dict.fromkeys(
        "fast" if word == "cuda_ipc" else word for word in (row.get, row.put)))
    return words if row.reason == "-" else \
        f"{words} ({notes(REASONS[row.reason])})"


def same_table(rows):
    notes = Notes("1")
    by_key = {row.key: row for row in rows}
    lines = ["| UCX | " + " | ".join(name for _, name in KINDS.values()) +
             " |", "|---" * (len(KINDS) + 1) + "|"]
    for build, name in BUILDS.items():
        cells = []
        for kind in KINDS:
            before, after = (by_key[build, build, kind, vmmlane]
                             for vmmlane in ("without", "with"))
            texts = [cell_text(before, notes), cell_text(after, notes)]
            cells.append(texts[0] if texts[0] == texts[1] else
                         " → ".join(texts))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines + [""] + notes.lines()


def lost_text(rows):
    """What of a pair's memory is not over cuda_ipc with vmmlane."""
    lost = {}
    for row in rows:
        if row.reason != "-":
            word = "/".join(dict.fromkeys((row.get, row.put)))
            lost.setdefault((word, row.reason), []).append(row.memory)
    texts = []
    for (word, reason), kinds in lost.items():
        names = "all others" if len(kinds) == len(KINDS) - 1 else \
            ", ".join(KINDS[kind][1] for kind in kinds)
        texts.append(f"*{names}* {word}: {REASONS[reason]}")
    return "; ".join(texts)


def mixed_table(rows):
    notes = Notes("a")
    pairs = {}
    for row in rows:
        if row.vmmlane == "with":
            pairs.setdefault((row.exporter, row.importer), []).append(row)
    lines = ["| exporter \\ importer | " + " | ".join(BUILDS.values()) + " |",
             "|---" * (len(BUILDS) + 1) + "|"]
    for exporter, name in BUILDS.items():
        cells = []
        for importer in BUILDS:
            text = lost_text(pairs[exporter, importer])
            cells.append(notes(text) if text else "fast")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines + [""] + notes.lines()


def render(rows):
    return "\n".join([
        BEGIN, "",
        "One UCX on both sides, without → with vmmlane (GET/PUT where they "
        "differ; fast is cuda_ipc, and every byte was right):", "",
        *same_table(rows), "",
        "Two of them, with vmmlane on both sides, all eight kinds of memory:",
        "", *mixed_table(rows), "", END])


def parts_of_doc():
    text = DOC.read_text()
    before, rest = text.split(BEGIN, 1)
    return before, BEGIN + rest.split(END, 1)[0] + END, rest.split(END, 1)[1]


def write_doc(rows):
    before, _, after = parts_of_doc()
    DOC.write_text(before + render(rows) + after)


# ---- checks ----


def check(rows):
    faults = faults_of(rows)
    if not faults and parts_of_doc()[1] != render(rows):
        faults = [f"{DOC.name} is not what scripts/matrix --table writes"]
    return faults


def sample(options, rows):
    """Pairs of wheels that every test has, against the TSV."""
    known = {row.key: row for row in rows}
    faults = []
    for builds in SAMPLE:
        runs = run_together(options, builds, list(KINDS), True)
        for row in rows_of_runs(builds, True, runs):
            print(" ".join(row[:6]))
            if row[4:6] != known[row.key][4:6]:
                faults.append(f"{' '.join(row[:6])}, not "
                              f"{' '.join(known[row.key][4:6])}")
    return faults


def prepare(options, builds):
    if options.shim is None:
        raise pair.SetupError("give --shim")
    pair.resolve(options, "shim", "driver")
    options.clients = {build: pair.client_of(build, options.build)
                       for build in builds}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", help="libvmmlane.so")
    parser.add_argument("--driver", metavar="DIR",
                        help="folder of the simulated libcuda.so.1 (default: "
                        "the machine's own driver)")
    parser.add_argument("--ucx", nargs="+", metavar="BUILD",
                        choices=list(BUILDS), help="run these only, and "
                        "compare them with the TSV")
    parser.add_argument("--write", action="store_true",
                        help="write the TSV and the tables")
    parser.add_argument("--table", action="store_true",
                        help="write the tables from the TSV, run nothing")
    parser.add_argument("--check", action="store_true",
                        help="compare the tables with the TSV, run nothing")
    parser.add_argument("--sample", action="store_true",
                        help="the same, and run a few pairs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=pair.SECONDS)
    pair.add_build_option(parser)
    return parser.parse_args()


def compare(found, known):
    """What differs from the TSV."""
    before = {row.key: row for row in known}
    return [f"now {' '.join(row)}, in the TSV "
            f"{' '.join(before[row.key]) if row.key in before else 'nothing'}"
            for row in found if before.get(row.key) != row]


def available(options):
    """To be written, every published build is needed; to be compared, what is
    unpacked."""
    if options.ucx:
        return options.ucx
    there = [build for build in BUILDS
             if (pair.CACHE / "ucx" / build).exists()]
    missing = [build for build in BUILDS if build not in there]
    if missing:
        print(f"not unpacked: {' '.join(missing)}")
    return [build for build in BUILDS if build != WITH_ARM or build in there] \
        if options.write else there


def run_matrix(options):
    known = read_tsv(TSV) if TSV.exists() else []
    pair.need_driver(options)
    builds = available(options)
    if not builds:
        raise pair.SetupError("no UCX to run: scripts/setup --ucx")
    prepare(options, builds)
    found = run_all(options)
    if not options.write:
        faults = compare(found, known)
        faults += [f"no reason: {' '.join(row)}" for row in found
                   if row.reason == "?"]
        print(f"{len(found)} cells, {len(faults)} not as in {TSV.name}")
        return faults
    keys = {row.key for row in found}
    rows = sorted(found + [row for row in known if row.key not in keys],
                  key=order)
    write_tsv(rows, TSV)
    faults = faults_of(rows)
    if not faults:
        write_doc(rows)
    return faults


def main():
    options = parse_options()
    try:
        if options.table:
            write_doc(read_tsv(TSV))
            faults = []
        elif options.check or options.sample:
            rows = read_tsv(TSV)
            faults = check(rows)
            if options.sample and not faults:
                prepare(options, dict.fromkeys(
                    build for builds in SAMPLE for build in builds))
                faults = sample(options, rows)
        else:
            faults = run_matrix(options)
    except BadEnd as error:
        faults = [str(error)]
    except subprocess.SubprocessError as error:
        raise pair.SetupError(error) from error
    for fault in faults:
        print(f"matrix: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    pair.run_script(main)
