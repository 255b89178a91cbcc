#!/usr/bin/env python3
"""The n-th-call sweep: each call that the shim makes fails once at its first,
second, ... n-th use, in the exporter or in the importer, over the main ways to
use the lane, on unmodified UCX and the simulated driver.

First runs without a failure count the calls. Then each call of each process
fails, one run each. After each: right bytes or a UCX error; nothing more held
than before; and the next transfer in the same two processes is right and on
the fast lane. Exits 1 if any run is not so, 77 if nothing could be run.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ucx"))

import nodes  # noqa: E402
import pair  # noqa: E402

# Of these rounds only what the others have not: many chunks, order, pools. A
# side, or None for both.
ONLY = {"pieces": ("importer", r"cuMemcpy|cuStream|cuEvent"),
        "fence": ("importer", r"cuStream|cuEvent|cuCtx|cuThread"),
        "pool": (None, r"cuMemPool|cuMemFree|cuMemAddress|cuPointer|cuCtx|"
                       r"[mc]alloc|realloc|fcntl|pidfd_getfd|fallocate")}
SIDES = ["exporter", "importer"]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a pair runs, and on what memory."""
    kind: str
    rounds: tuple
    cold_rounds: tuple  # that a process can begin with
    # Ways for descriptors: name, environment, and the rounds that are enough.
    ways: dict
    # A denied pidfd_getfd, a lost lane: a pair keeps what it has for them.
    denials: tuple
    # UCX's own memory, of one key with its own.
    plain: str = "malloc:4M"
    environment: dict = dataclasses.field(default_factory=dict)
    # Nothing is given back later, by a watcher or after an idle time, and the
    # next round may hold another number of chunks.
    by_round: bool = False


ROUNDS = ("whole", "growth", "reback", "tensors", "pieces", "fence")
LOST = "whole exporter cuMemExportToShareableHandle:1:2"
ONE_NODE = Place(
    "vmm:3x2M", ROUNDS + ("upgrade", "pool"), ("whole", "upgrade"),
    {"": ({}, ROUNDS + ("upgrade", "pool")),
     "socket": ({"VMMLANE_TRANSPORT": "socket"}, ("whole",))},
    ("whole importer pidfd_getfd:2:1", LOST))
# Of its chunks those alone that ask for no type come by descriptors.
FABRIC = dataclasses.replace(ONE_NODE, kind="fabric:3x2M",
                             denials=("upgrade importer pidfd_getfd:2:1", LOST),
                             environment={"VMMLANE_SIM_FABRIC": "on"})
NODES = Place(
    "fabric:3x2M", ROUNDS, ("whole",), {"": ({}, ROUNDS)},
    (LOST, "whole importer cuMemImportFromShareableHandle:1:2"),
    plain="whole:4M", by_round=True)

# A plan's lines: wait for nothing that is given back later, and do wait.
HURRY = [f"most {side} {','.join(32 * ['999999999999'])}" for side in SIDES]
WAIT_ALL = [f"most {side} -" for side in SIDES]
BATCH = 24  # runs in one pair of processes
AGAIN = 5  # times that a suspected leak is tried
WAIT = 60  # seconds that a client waits for its peer or a request

# errno.h and cuda.h; 0 is the one that libc_calls.c and driver_calls.c give.
MORE_ERRORS = {
    "pidfd_getfd": [9, 24],  # EBADF, EMFILE
    "pidfd_open": [1, 3, 38],  # EPERM, ESRCH, ENOSYS
    "memfd_create": [38],
    "fcntl64": [22],
    "poll": [12],
}
MORE_RESULTS = [1, 4, 801, 999]  # INVALID_VALUE, DEINITIALIZED,
#                                  NOT_SUPPORTED, UNKNOWN
# A handle or a mapping that the driver says it does not know, or that went with
# the driver, is nothing that could be given back later.
FINAL = {("cuMemRelease", 1), ("cuMemRelease", 4), ("cuMemUnmap", 4),
         ("cuMemAddressFree", 4), ("cuCtxPopCurrent_v2", 4)}

# Calls of its callers that the shim hands on, and UCX survives the failure
# of. The caller sees its own call fail: no fault of the shim's.
HANDED_ON = {("upgrade", "exporter", "cuMemCreate")}

# Imports of the shim that cannot fail, or give nothing that could be failed.
CANNOT_FAIL = re.compile(
    r"^(_ITM_|__|mem(cpy|move|set|mem|cmp|r?chr)$|str|fnmatch$|qsort$|free$|"
    r"bsearch$|getpid$|gettid$|getuid$|geteuid$|getppid$|snprintf$|"
    r"vsnprintf$|sscanf$|sched_yield$|sysconf$|secure_getenv$|getenv$|"
    r"dl_iterate_phdr$|dlclose$|dlerror$|dlsym$|program_invocation|"
    r"environ$|abort$|pthread_(attr_destroy|mutex_(un)?lock|"
    r"cond_(broadcast|signal|destroy)|condattr_destroy|mutex_destroy|self|"
    r"setname_np|equal|rwlock_|once|mutex_trylock|join$|setcancelstate$)|"
    r"getauxval$|sig(add|del|empty|fill|pending|ismember|timedwait)|freeaddrinfo$|"
    r"inet_|hton|ntoh|stdout$|stderr$|raise$)")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One call that fails, and the round in which it does."""
    round: str
    side: str
    call: str
    n: int
    error: int = 0
    forever: bool = False
    cold: bool = False  # from the start of the process
    way: str = ""

    @property
    def rule(self):
        text = f"{self.call}:{self.n}:{self.error}"
        if self.forever:
            text += ":from"
        if (self.round, self.side, self.call) in HANDED_ON:
            text += ":pass"
        return text

    def __str__(self):
        start = "first " if self.cold else ""
        way = f"{self.way} " if self.way else ""
        return f"{way}{start}{self.round} {self.side} {self.rule}"


@dataclasses.dataclass
class Run:
    """What a pair printed for one line of its plan."""
    hindered: list = dataclasses.field(default_factory=list)
    after: list = dataclasses.field(default_factory=list)
    fired: dict = dataclasses.field(default_factory=dict)
    calls: dict = dataclasses.field(default_factory=dict)
    held: dict = dataclasses.field(default_factory=dict)
    complete: bool = False


# ---- one pair ----


def parse_runs(log):
    """The Run of each line of the plan, the last one perhaps incomplete."""
    runs, phase = [], None
    for line in log.splitlines():
        words = line.split()
        if line.startswith("result "):
            results = pair.parse(line)[0]
            if phase == "begin":
                runs[-1].hindered += results
            elif phase == "next":
                runs[-1].after += results
        if not line.startswith("sweep ") or len(words) < 2:
            continue
        if words[1] == "begin":
            runs.append(Run())
        if words[1] in ("begin", "next", "held"):
            phase = words[1]
        elif words[1] == "end":
            runs[-1].complete = True
        elif words[1] in SIDES:
            parse_report(runs[-1], words[1], phase, words[2:])
    return runs


def parse_report(run, side, phase, words):
    values = dict(word.split("=") for word in words if "=" in word)
    if words[0].startswith("fired=") and phase == "begin":
        run.fired[side] = int(values.pop("fired"))
        run.calls[side] = {name: tuple(map(int, value.split("+")))
                           for name, value in values.items()}
    elif words[0] == "live" and phase == "held":
        run.held[side] = {name: int(value) for name, value in values.items()}


class Runner:
    def __init__(self, options, version, way, two_nodes=None):
        self.options = options
        self.place = options.place
        self.way = way
        self.nodes = two_nodes
        self.wheel, client = pair.client_of(version, options.build)
        # Made before the first pair starts: a file that is being written
        # cannot be run.
        self.clients = [client, client] if two_nodes is None else \
            [two_nodes.program(i, client) for i in range(2)]
        self.numbers = itertools.count()
        self.held = {}  # by round, or by None: the most that is held after it
        self.start = None

    @property
    def warm_up(self):
        """What a pair does before its first failure: all that it will go on
        to hold."""
        rounds = [name for name in self.place.rounds if name != "upgrade"]
        return [f"{name} {'env' if i == 0 else '-'} -"
                for i, name in enumerate(rounds)] + list(self.place.denials)

    def begin(self):
        """The runs with a failure begin; what was before has no limit."""
        self.start = time.monotonic()

    def is_late(self):
        return self.options.seconds is not None and \
            time.monotonic() > self.start + \
            self.options.seconds / len(self.place.ways)

    def held_after(self, name):
        return self.held.get(name if self.place.by_round else None)

    def lines(self, plan):
        """The plan with what each round may hold, where that is known."""
        for line in plan:
            held = self.held_after(line.split()[0])
            if held is not None:
                yield from (f"most {side} "
                            f"{','.join(map(str, held[side].values()))}"
                            for side in SIDES)
            yield line

    @contextlib.contextmanager
    def fabric(self, number):
        """The folder of one pair that stands for the fabric between nodes."""
        if self.nodes is None:
            yield {}
            return
        folder = self.nodes.fabric / str(number)
        folder.mkdir()
        try:
            yield {"VMMLANE_SIM_FABRIC_DIR": str(folder)}
        finally:
            shutil.rmtree(folder)

    def sides(self, number, rule, side, fabric, log):
        # The last preload, see shim.c.
        preload = f"{self.options.shim} {self.options.faults}"
        for i, name in enumerate(SIDES):
            rules = {"VMMLANE_SWEEP_RULE": rule if name == side else ""}
            if self.nodes is not None:
                # What makes the node's namespaces shall not fail.
                rules = {"VMMLANE_TEST_LATE": "VMMLANE_SWEEP_RULE="
                         + (rules["VMMLANE_SWEEP_RULE"] or "")}
            environment = {
                **rules,
                "VMMLANE_SIM_DOMAIN": f"sweep{os.getpid()}-{number}",
                "VMMLANE_LOG": log or self.options.log,
                **self.place.ways[self.way][0], **self.place.environment}
            if self.nodes is not None:
                environment.update(self.nodes.environment(i))
            yield pair.Side(self.wheel, self.clients[i], shim=preload,
                            environment={**environment, **fabric})

    def run(self, lines, rule=None, side=None, log=None):
        """Runs a plan in a new pair of processes."""
        number = next(self.numbers)
        with tempfile.NamedTemporaryFile("w", suffix=".plan") as plan, \
                self.fabric(number) as fabric:
            plan.write("\n".join([f"plain - {self.place.plain}",
                                  *self.lines(lines)]) + "\n")
            plan.flush()
            return pair.run_pair(
                *self.sides(number, rule, side, fabric, log), "sweep",
                self.place.kind, driver=self.options.driver,
                timeout=WAIT + 20 + 5 * len(lines),
                arguments=("--plan", plan.name, "--timeout", str(WAIT)))


def most_held(runs):
    """The largest figures of some runs."""
    return {side: {what: max(run.held[side][what] for run in runs)
                   for what in runs[0].held[side]} for side in SIDES}


# ---- what to fail ----


def count(runner):
    """Counts of calls, by (round, side, cold); tells the runner what is held
    at the end of rounds."""
    counts = {}
    rounds = runner.place.rounds
    outcome = runner.run([*HURRY, *(f"{name} {'env' if i == 0 else '-'} -"
                                    for i, name in enumerate(rounds)),
                          *(f"{name} - -" for name in rounds)])
    runs = parse_runs(outcome.logs[1])
    if outcome.codes != (0, 0) or len(runs) != 2 * len(rounds):
        sys.exit(f"the run without a failure failed:\n{outcome.logs[0]}\n"
                 f"{outcome.logs[1]}")
    for name, run in zip(rounds, runs[len(rounds):]):
        for side in SIDES:
            counts[name, side, False] = run.calls[side]
    for name in runner.place.cold_rounds:
        outcome = runner.run([*HURRY, f"{name} env -"])
        run = parse_runs(outcome.logs[1])[0]
        for side in SIDES:
            counts[name, side, True] = run.calls[side]
    runner.held = count_held(runner)
    return counts


def count_held(runner):
    """The most that is held after the warm-up's rounds, see Runner.held."""
    plan = runner.warm_up
    before, count = [], len(plan)
    if runner.place.by_round:
        # What the rounds before have left belongs to it.
        before, count = [*HURRY, *plan, *WAIT_ALL], 2 * count
        plan = [line.replace(" env ", " - ") for line in plan]
    outcome = runner.run(before + plan)
    runs = parse_runs(outcome.logs[1])
    if outcome.codes != (0, 0) or len(runs) != count:
        sys.exit(f"the warm-up failed: {ended(outcome)}\n{outcome.logs[0]}\n"
                 f"{outcome.logs[1]}")
    if not runner.place.by_round:
        return {None: most_held(runs)}
    held = collections.defaultdict(list)
    for line, run in zip(plan, runs[len(plan):]):
        held[line.split()[0]].append(run)
    return {name: most_held(runs) for name, runs in held.items()}


def is_wanted(rounds, name, side, call):
    if name not in rounds:
        return False
    only_side, pattern = ONLY.get(name, (side, ""))
    return only_side in (None, side) and re.match(pattern, call)


def faults_of(counts, everything, way, rounds):
    """Every call at every use; of a cold start, what is not in a warm one.
    rounds: those that are enough for this way."""
    for (name, side, cold), calls in sorted(counts.items()):
        warm = counts.get((name, side, False), {})
        for call, (own, passed) in sorted(calls.items()):
            if not is_wanted(rounds, name, side, call):
                continue
            uses = own
            if (name, side, call) in HANDED_ON:
                uses += passed
            if cold and call != "dlopen" and not everything and \
                    sum(warm.get(call, (0, 0))) == own + passed:
                continue
            for n in range(1, uses + 1):
                yield Fault(name, side, call, n, cold=cold, way=way)
                if everything and not cold:
                    yield Fault(name, side, call, n, forever=True,
                                way=way)
                    errors = MORE_RESULTS if call.startswith("cu") else \
                        MORE_ERRORS.get(call, [])
                    for error in errors:
                        if (call, error) in FINAL:
                            continue
                        yield Fault(name, side, call, n, error=error, way=way)


def unwrapped(shim):
    """Imports of the shim that the sweep would overlook."""
    source = (HERE / "libc_calls.c").read_text()
    known = set(re.findall(r"CALL\([^,]+, (\w+),", source))
    known |= set(re.findall(r'\{"(\w+)",', source))
    text = pair.call(["nm", "-D", "--undefined-only", shim])
    names = {line.split()[-1].split("@")[0] for line in text.splitlines()}
    return sorted(name for name in names - known
                  if not CANNOT_FAIL.match(name))


# ---- what must hold ----


HOLDS = "holds"


def more_held(run, baseline):
    """(side, what, before, now) of what a run holds beyond a baseline."""
    for side, figures in baseline.items():
        for what, before in figures.items():
            now = run.held.get(side, {}).get(what)
            if now is None or now > before:
                yield side, what, before, now


def judge(run, baseline):
    """Problems of one complete run, as texts."""
    problems = []
    for phase, results in (("", run.hindered), ("next ", run.after)):
        for result in results:
            what = f"{phase}{result.operation} {result.detail}"
            if result.bytes == "BAD":
                problems.append(f"{what}: WRONG BYTES")
            elif phase and result.status != "OK":
                problems.append(f"{what}: {result.status}")
            elif phase and result.lane != "cuda_ipc":
                problems.append(f"{what}: lane {result.lane}")
    if not run.hindered or len(run.hindered) != len(run.after):
        problems.append("a transfer is missing")
    for side, what, before, now in more_held(run, baseline):
        problems.append(f"{side} {HOLDS} {what}: {before} -> {now}")
    return problems


def classify(run):
    if any(r.status != "OK" for r in run.hindered):
        return "error"
    if any(r.lane != "cuda_ipc" for r in run.hindered):
        return "other lane"
    return "lane"


@dataclasses.dataclass
class Judged:
    fault: Fault
    kind: str  # "lane", "other lane", "error", "not reached", "FAILED"
    problems: list
    logs: tuple = ()


def is_leak(runner, fault, suspects):
    """Does it hold more each time, or was something made once and kept?
    suspects: the (side, what) that are more than before."""
    line = f"{fault.round} {fault.side} {fault.rule}"
    outcome = runner.run(runner.warm_up + AGAIN * [line])
    runs = [run for run in parse_runs(outcome.logs[1]) if run.complete]
    if len(runs) != len(runner.warm_up) + AGAIN:
        return True
    # The first may make what is kept.
    figures = [[run.held[side].get(what, 0) for run in runs[-AGAIN + 1:]]
               for side, what in suspects]
    return any(all(a < b for a, b in zip(figure, figure[1:]))
               for figure in figures)


def follows_block(runner, fault):
    """Did it attach by the metadata block, since the exporter's socket was not
    there, and does it hold no more with each round?"""
    outcome = runner.run([f"{fault.round} env -"] +
                         AGAIN * [f"{fault.round} - -"],
                         fault.rule, fault.side, log="info")
    runs = [run for run in parse_runs(outcome.logs[1]) if run.complete]
    return len(runs) == 1 + AGAIN and \
        " on another node" in outcome.logs[1] and \
        all(run.held == runs[-1].held for run in runs[-AGAIN + 1:])


def judge_run(runner, fault, run, outcome):
    baseline = runner.held_after(fault.round)
    problems = judge(run, baseline)
    if problems and all(f" {HOLDS} " in problem for problem in problems):
        suspects = [held[:2] for held in more_held(run, baseline)]
        explained = follows_block(runner, fault) if fault.cold else \
            not is_leak(runner, fault, suspects)
        problems = [] if explained else problems
    if problems:
        return Judged(fault, "FAILED", problems, outcome.logs)
    if run.fired.get(fault.side, 0) == 0:
        return Judged(fault, "not reached", [])
    return Judged(fault, classify(run), [])


def ended(outcome):
    return f"the processes ended with {outcome.codes}"


def is_unlucky(outcome):
    """The exporter's address was taken, which says nothing."""
    return pair.SKIP in outcome.codes


def run_cold(runner, fault):
    if runner.is_late():
        return []
    outcome = runner.run([f"{fault.round} env -"], fault.rule, fault.side)
    if is_unlucky(outcome):
        return run_cold(runner, fault)
    runs = parse_runs(outcome.logs[1])
    if outcome.codes != (0, 0) or not runs or not runs[0].complete:
        return [Judged(fault, "FAILED", [ended(outcome)], outcome.logs)]
    return [judge_run(runner, fault, runs[0], outcome)]


def run_batch(runner, faults):
    """Warm runs, one after the other; after a bad one in a new pair, so that
    none is blamed for what one before it did."""
    judged = []
    while faults and not runner.is_late():
        lines = [f"{f.round} {f.side} {f.rule}" for f in faults]
        outcome = runner.run(runner.warm_up + lines)
        runs = parse_runs(outcome.logs[1])
        done = [run for run in runs if run.complete]
        if len(done) < len(runner.warm_up):
            return judged + [Judged(faults[0], "FAILED",
                                    ["warm-up: " + ended(outcome)],
                                    outcome.logs)]
        done = done[len(runner.warm_up):]
        bad = False
        for fault, run in zip(faults, done):
            judged.append(judge_run(runner, fault, run, outcome))
            faults = faults[1:]
            bad = judged[-1].kind == "FAILED"
            if bad:
                break
        if bad or (faults and is_unlucky(outcome)):
            continue
        if outcome.codes != (0, 0):
            what = ended(outcome)
            if not faults:
                faults = [judged.pop().fault]
                what = "at the end: " + what
            judged.append(Judged(faults[0], "FAILED", [what], outcome.logs))
            faults = faults[1:]
    return judged


# ---- running and printing ----


def show(judged, verbose):
    if judged.kind == "FAILED":
        print(f"FAIL {judged.fault}: {'; '.join(judged.problems)}", flush=True)
        if verbose:
            for side, log in zip(SIDES, judged.logs):
                for line in log.splitlines()[-verbose:]:
                    print(f"     {side}| {line}")
    elif verbose:
        print(f"ok   {judged.fault}: {judged.kind}", flush=True)


def table(results):
    """The outcomes of each call as Markdown."""
    rows = collections.defaultdict(collections.Counter)
    for version, judged in results:
        rows[judged.fault.call, judged.fault.side][judged.kind] += 1
    lines = ["| call | fails in | runs | right, fast lane | right, other lane "
             "| UCX error | not as it must be |",
             "|---|---|---|---|---|---|---|"]
    for (call, side), kinds in sorted(rows.items()):
        runs = sum(kinds.values()) - kinds["not reached"]
        lines.append(f"| `{call}` | {side} | {runs} | {kinds['lane']} | "
                     f"{kinds['other lane']} | {kinds['error']} | "
                     f"{kinds['FAILED']} |")
    return lines


def totals(results):
    kinds = collections.Counter(judged.kind for _, judged in results)
    runs = sum(kinds.values()) - kinds["not reached"]
    return (f"{runs} runs: {kinds['lane']} right over the lane, "
            f"{kinds['other lane']} right over another lane, "
            f"{kinds['error']} UCX errors, "
            f"{kinds['FAILED']} not as they must be"
            f" ({kinds['not reached']} calls were not made)")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", nargs="+", default=None, metavar="VERSION")
    parser.add_argument("--shim", required=True, help="libvmmlane.so")
    parser.add_argument("--faults", required=True, help="libsweep-faults.so")
    parser.add_argument("--driver", required=True, metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    parser.add_argument("--share", type=int, metavar="N",
                        help="N runs of each version, chosen by --seed")
    parser.add_argument("--seconds", type=float, metavar="N",
                        help="begin no more runs after N seconds of runs")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--everything", action="store_true",
                        help="also other errors, and calls that fail for ever")
    parser.add_argument("--only", metavar="REGEX",
                        help="faults whose description matches")
    parser.add_argument("--fabric", action="store_true",
                        help="FABRIC memory, with a metadata block")
    parser.add_argument("--nodes", action="store_true",
                        help="FABRIC memory, the importer on another node")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--log", default="warn", help="VMMLANE_LOG")
    parser.add_argument("--verbose", type=int, default=0, metavar="LINES",
                        help="print each run, and so many lines of a log")
    parser.add_argument("--table", metavar="FILE",
                        help="write the outcome of each call as Markdown")
    pair.add_build_option(parser)
    options = parser.parse_args()
    options.place = NODES if options.nodes else \
        FABRIC if options.fabric else ONE_NODE
    pair.resolve(options, "driver", "shim", "faults")
    return options


def choose(options, faults, share):
    if options.only:
        faults = [f for f in faults if re.search(options.only, str(f))]
    # In no order, so that what a limit cuts off is a sample too.
    faults = random.Random(options.seed).sample(faults, len(faults))
    return faults if share is None else faults[:share]


def sweep_version(options, version, way, share, two_nodes):
    runner = Runner(options, version, way, two_nodes)
    faults = choose(options,
                    list(faults_of(count(runner), options.everything, way,
                                   options.place.ways[way][1])), share)
    warm = [f for f in faults if not f.cold]
    print(f"UCX {version} {way}: {len(warm)} runs in warm processes, "
          f"{len(faults) - len(warm)} from the start of one", flush=True)
    runner.begin()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        tasks = [pool.submit(run_batch, runner, warm[i:i + BATCH])
                 for i in range(0, len(warm), BATCH)]
        tasks += [pool.submit(run_cold, runner, f) for f in faults if f.cold]
        for task in concurrent.futures.as_completed(tasks):
            for judged in task.result():
                show(judged, options.verbose)
                yield version, judged


def sweep_all(options, two_nodes=None):
    ways = options.place.ways
    shares = [options.share]
    if options.share is not None and len(ways) > 1:
        shares = [share * options.share // 5 for share in (4, 1)]
    elif len(ways) > 1:
        shares = [None] * len(ways)
    for version in options.ucx or pair.versions_of(options)[-1:]:
        for way, share in zip(ways, shares):
            yield from sweep_version(options, version, way, share, two_nodes)


def run_all(options):
    if not options.nodes:
        return list(sweep_all(options))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, \
            nodes.Nodes(folder) as two_nodes:
        return list(sweep_all(options, two_nodes))


def main():
    options = parse_options()
    if options.nodes:
        code = nodes.run_inside(__file__)
        if code is not None:
            return code
    start = time.monotonic()
    overlooked = unwrapped(options.shim)
    if overlooked:
        print("the sweep does not know these calls of the shim: "
              + ", ".join(overlooked))
    results = run_all(options)
    if options.table:
        Path(options.table).write_text("\n".join(table(results)) + "\n")
    print(f"{totals(results)}, {time.monotonic() - start:.0f} s")
    bad = any(judged.kind == "FAILED" for _, judged in results)
    incomplete = overlooked and options.share is None
    return 1 if bad or incomplete or not results else 0


if __name__ == "__main__":
    pair.run_script(main)
