#!/usr/bin/env python3
"""Programs that use no UCX, each without and with vmmlane: the same results.

A job is a process that prints "result NAME VALUE" lines, which do not depend
on time, addresses or other jobs. It runs twice, and both runs must end with
the same exit code and the same results. Under the preload every process of it
has the library and says so, and vmmlane writes no line.

With --driver the jobs that need no kernel run on the simulated driver; else
all of them on the machine's own. Exit codes: 0, 1, 77 (no job could be run).
"""

import argparse
import concurrent.futures
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent.parent / ".venv" / "bin" / "python"  # scripts/setup
NOT_HERE = 77
TIMEOUT = 124
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
# The memory is asked for without a handle type.
UNTYPED = {**EXPANDABLE, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0"}


@dataclasses.dataclass
class Job:
    name: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)
    code: int = 0
    simulated: bool = False  # runs on the simulated driver


@dataclasses.dataclass
class Run:
    code: int
    lines: list
    seconds: float

    def starting(self, word):
        return sorted(line for line in self.lines
                      if line.startswith(f"{word} "))

    @property
    def results(self):
        # compute-sanitizer's own, as well.
        return self.starting("result") + [
            line.strip("= ") for line in self.lines if "SUMMARY" in line]

    @property
    def versions(self):
        return [line.split(None, 1)[1] for line in self.starting("version")]


def python_jobs(python):
    """Those that take longest first."""
    def script(name, *arguments):
        return [str(python), str(HERE / name), *arguments]

    no_preallocation = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    torch = "torch_jobs.py"
    return [
        Job("jax", script("jax_job.py"), no_preallocation),
        Job("jax-async", script("jax_job.py"),
            {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
             "XLA_PYTHON_CLIENT_MEM_FRACTION": ".02", **no_preallocation}),
        Job("nccl", script(torch, "nccl"), EXPANDABLE),
        Job("triton", script("triton_job.py"), EXPANDABLE),
        Job("torch-forkserver", script(torch, "forkserver")),
        Job("torch-spawn", script(torch, "spawn")),
        Job("torch-ipc", script(torch, "ipc"), EXPANDABLE),
        Job("torch-ipc-untyped", script(torch, "ipc"), UNTYPED),
        Job("torch-expandable", script(torch, "allocations", "--expandable"),
            EXPANDABLE),
        Job("torch-alloc-conf", script(torch, "allocations", "--expandable"),
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        Job("torch-untyped", script(torch, "allocations", "--expandable"),
            UNTYPED),
        Job("torch-async", script(torch, "allocations"),
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
        Job("torch-graph", script(torch, "graph"), EXPANDABLE),
        Job("torch-mempool", script(torch, "pools")),
        Job("torch-mempool-expandable", script(torch, "pools"), EXPANDABLE),
        Job("torch-loader", script(torch, "loader"), EXPANDABLE),
        Job("cupy", script("cupy_jobs.py", "default_pool")),
        Job("cupy-async", script("cupy_jobs.py", "async_pool")),
        Job("cupy-ipc", script("cupy_jobs.py", "ipc")),
        Job("numba", script("numba_job.py")),
        Job("driver-vmm", script("driver_jobs.py", "vmm"), simulated=True),
        Job("driver-untyped", script("driver_jobs.py", "untyped"),
            simulated=True),
        Job("driver-pool", script("driver_jobs.py", "pool"), simulated=True),
    ]


# ---- compute-sanitizer ----


def toolkit_program(name):
    for place in (shutil.which(name), f"/usr/local/cuda/bin/{name}",
                  f"/usr/local/cuda/compute-sanitizer/{name}"):
        if place and Path(place).exists():
            return place
    return None


def memcheck_jobs(folder):
    """The jobs, or why there are none."""
    compiler = toolkit_program("nvcc")
    sanitizer = toolkit_program("compute-sanitizer")
    if compiler is None or sanitizer is None:
        return [], "no nvcc or no compute-sanitizer"
    program = folder / "memcheck"
    built = subprocess.run(
        [compiler, "-O1", "-lineinfo", "-o", str(program),
         str(HERE / "memcheck.cu"), "-lcuda"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    if built.returncode != 0:
        return [], f"nvcc: {built.stdout.strip()[-300:]}"
    check = [sanitizer, "--tool", "memcheck"]
    return [
        Job("memcheck", [*check, "--leak-check", "full", "--error-exitcode",
                         "9", str(program)]),
        Job("memcheck-planted", [*check, "--error-exitcode", "9",
                                 str(program), "planted"], code=9),
    ], None


# ---- a run ----


def environment_of(job, options, folder, shim):
    env = {name: value for name, value in os.environ.items()
           if name != "LD_PRELOAD" and not name.startswith("VMMLANE")}
    for name in ("TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR"):
        env[name] = str(folder / name)  # each compiles anew
    if options.driver:
        env["LD_LIBRARY_PATH"] = str(Path(options.driver).resolve())
    env.update(job.environment)
    if shim:
        env["LD_PRELOAD"] = str(Path(shim).resolve(strict=True))
        env.update(setting.split("=", 1) for setting in options.set)
    return env


def run_once(job, options, shim):
    start = time.monotonic()
    limit = min(options.timeout, options.end - start)
    if limit <= 0:
        return Run(TIMEOUT, ["no time was left"], 0)
    with tempfile.TemporaryDirectory() as folder, \
            tempfile.TemporaryFile(mode="w+", errors="replace") as log:
        process = subprocess.Popen(
            job.command, env=environment_of(job, options, Path(folder), shim),
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = TIMEOUT
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        log.seek(0)
        return Run(code, log.read().splitlines(), time.monotonic() - start)


def run_job(job, options):
    """Both runs, and what is wrong with them."""
    runs = run_once(job, options, None), run_once(job, options, options.shim)
    return job, *runs, problems_of(job, *runs)


def problems_of(job, plain, shim):
    found = []
    if plain.code != job.code or not plain.results:
        return [f"without vmmlane: exit code {plain.code}, "
                f"{len(plain.results)} results"]
    if shim.code != plain.code:
        found.append(f"exit code {plain.code} without, {shim.code} with")
    for line in sorted(set(plain.results) ^ set(shim.results)):
        side = "without" if line in plain.results else "with"
        found.append(f"only {side}: {line}")
    if len(plain.results) != len(shim.results):
        found.append(f"{len(plain.results)} results without, "
                     f"{len(shim.results)} with")
    for run, word in ((plain, "no"), (shim, "yes")):
        told = run.starting("preloaded")
        found += [f"expected {word}: {line}" for line in told
                  if not line.endswith(f" {word}")]
        if not told:
            found.append("nobody said whether vmmlane is loaded")
    found += [line for line in shim.lines if line.startswith("vmmlane[")]
    return found


def show(job, plain, shim, problems):
    times = f"{plain.seconds:.1f} s, {shim.seconds:.1f} s"
    if plain.code == shim.code == NOT_HERE:
        print(f"# not here: {job.name}: {' '.join(plain.lines[-1:])[:150]}",
              flush=True)
        return
    versions = "".join(f"; {version}" for version in plain.versions)
    print(f"{'FAIL' if problems else 'ok  '} {job.name}: "
          f"{len(plain.results)} results ({times}){versions}", flush=True)
    for line in problems[:12]:
        print(f"     {line[:200]}")
    if problems:
        for name, run in (("without", plain), ("with", shim)):
            for line in run.lines[-15:]:
                print(f"     {name}| {line[:200]}", flush=True)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", required=True,
                        help="libvmmlane.so to preload")
    parser.add_argument("--driver", metavar="DIR",
                        help="folder of the simulated libcuda.so.1")
    parser.add_argument("--job", nargs="+", default=[],
                        help="these only, by the beginning of the name")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE",
                        help="vmmlane's settings")
    parser.add_argument("--jobs", type=int,
                        default=max(1, (os.cpu_count() or 2) // 2),
                        help="how many at once (default: half the cores)")
    parser.add_argument("--timeout", type=float, default=70,
                        help="seconds for one run")
    parser.add_argument("--limit", type=float, default=140,
                        help="seconds for all")
    options = parser.parse_args()
    options.end = time.monotonic() + options.limit
    return options


def select(options, folder):
    # A GPU machine's own Python has the packages; else what was set up.
    simulated = options.driver and VENV.exists()
    jobs = python_jobs(VENV if simulated else sys.executable)
    if options.driver:
        jobs = [job for job in jobs if job.simulated]
    else:
        checked, reason = memcheck_jobs(folder)
        if reason:
            print(f"# not here: memcheck: {reason}", flush=True)
        jobs = checked + jobs
    if options.job:
        jobs = [job for job in jobs if job.name.startswith(tuple(options.job))]
    return jobs


def main():
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
        jobs = select(options, Path(folder))
        done = [future.result() for future in concurrent.futures.as_completed(
            [threads.submit(run_job, job, options) for job in jobs])]
        here = [one for one in done
                if not one[1].code == one[2].code == NOT_HERE]
        for one in sorted(done, key=lambda one: jobs.index(one[0])):
            show(*one)
    bad = sum(bool(problems) for _, _, _, problems in here)
    print(f"# {len(here)} jobs: {len(here) - bad} the same with and without "
          f"vmmlane, {bad} not, {len(jobs) - len(here)} not here")
    if not here:
        return NOT_HERE
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
