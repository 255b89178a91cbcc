"""Runs one pair of test clients on an unmodified UCX from its published wheel.

Standard library only. Used by run.py and by scripts/demo.
"""

import dataclasses
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = Path(os.environ.get("VMMLANE_CACHE", ROOT / ".cache"))

COUNTER = HERE / "count_ipc.c"
COMPARER = HERE / "libuct_cuda_compare.c"
REFUSER = HERE / "libuct_refuse.c"
SOURCES = sorted(set(HERE.glob("*.c")) - {COUNTER, COMPARER, REFUSER})
WARNINGS = [
    "-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes",
    "-Wstrict-prototypes", "-Wvla", "-Wundef", "-Wno-unused-parameter",
    "-Werror",
]
TIMEOUT = 124
# That a pair may take, and that one side may take after the other has ended:
# they end what hangs, and a machine that does much else is not to reach them.
SECONDS = 240
MOMENT = 60
SKIP = 77  # the client's EXIT_SKIP
SIOCGIFADDR = 0x8915  # linux/sockios.h


class SetupError(Exception):
    """Something that the tests need cannot be had."""


class Wheel:
    """An unpacked build of UCX: CACHE/ucx/VERSION[-FLAVOUR], a libucx wheel or
    a NIXL wheel, which has UCX inside."""

    def __init__(self, version):
        self.version = version
        self.root = CACHE / "ucx" / version
        nixl = sorted(self.root.glob("nixl_cu*.libs"))
        self.lib = nixl[0] if nixl else self.root / "libucx" / "lib"
        # NIXL's wheels have no headers of UCX: those of the newest UCX that has.
        self.include = (Wheel(wheel_versions()[-1]).root if nixl else
                        self.root) / "libucx" / "include"
        self.linked = [self.library(name)
                       for name in ("ucp", "uct", "ucs", "ucm")]

    def library(self, name):
        """The file; in NIXL's wheels its name and soname hold a hash."""
        for pattern in (f"lib{name}.so.0", f"lib{name}-*.so.0.0.0"):
            for path in self.lib.glob(pattern):
                return path
        raise SetupError(f"no UCX {self.version} in {self.root}: "
                         "run scripts/setup --ucx or --matrix")

    @property
    def number(self):
        return version_number(self.version)[:3]

    @property
    def libraries(self):
        # libucm_cuda stays away, silently, without a cudart: the one beside
        # it, or where there is none that of the headers.
        own = sorted(self.root.glob("libucx_cu*.libs"))
        return [self.lib, *(own or [cuda_include().parent / name
                                    for name in ("lib64", "lib")])]


def version_number(version):
    """1.18.0.post1-cu12: (1, 18, 0, 1)."""
    return tuple(int(n) for n in
                 re.findall(r"\d+", version.split("-", 1)[0]))


def wheel_versions():
    """Those that the tests run on; the matrix knows more, by a flavour."""
    found = [path.name for path in (CACHE / "ucx").glob("*.*.*")
             if "-" not in path.name]
    return sorted(found, key=version_number)


# ---- the client ----


def cuda_include():
    candidates = [os.environ.get("VMMLANE_CUDA_INCLUDE"),
                  "/usr/local/cuda/include", "/usr/include"]
    candidates += sorted(CACHE.glob("cuda/*/nvidia/cu*/include"))
    for path in candidates:
        if path and (Path(path) / "cuda.h").exists():
            return Path(path)
    raise SetupError("no cuda.h: run scripts/setup, or set "
                     "VMMLANE_CUDA_INCLUDE")


def call(command):
    done = subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SetupError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def driver_stub(build, objects, compiler):
    """A libcuda.so.1 to link with: what the client names, and no more."""
    names = set()
    for line in call(["nm", "-u", *objects]).splitlines():
        match = re.search(r"\bU (cu[A-Z]\w*)$", line)
        if match:
            names.add(match.group(1))
    source = build / "stub.c"
    source.write_text("".join(f"void {name}(void);\nvoid {name}(void) {{}}\n"
                              for name in sorted(names)))
    stub = build / "libcuda.so"
    call([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub,
          source])
    return stub


def digest(paths, *words):
    """Names a build: folders are shared by work trees with other sources."""
    value = hashlib.sha256(repr(words).encode())
    for path in paths:
        value.update(path.read_bytes())
    return value.hexdigest()[:12]


def build_client(wheel, build_root):
    """Compiles the client with this wheel's headers; returns its path."""
    compiler = os.environ.get("CC", "cc").split()[0]
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", *WARNINGS,
             "-isystem", str(cuda_include()), "-isystem", str(wheel.include)]
    inputs = [*SOURCES, *sorted(HERE.glob("*.h"))]
    name = f"{wheel.version}-{digest(inputs, compiler, flags)}"
    client = Path(build_root) / name / "client"
    if client.exists():
        return client
    client.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=client.parent) as folder:
        build = Path(folder)
        objects = []
        for source in SOURCES:
            objects.append(build / (source.stem + ".o"))
            call([compiler, *flags, "-c", source, "-o", objects[-1]])
        stub = driver_stub(build, objects, compiler)
        # Lazily bound, as UCX itself is: a driver may lack what no test calls.
        call([compiler, *objects, "-o", build / "client", "-Wl,-z,lazy",
              *wheel.linked, stub, "-Wl,--allow-shlib-undefined"])
        (build / "client").rename(client)
    return client


def build_counter(build_root):
    """The preload that counts UCX's opens and closes of IPC memory."""
    compiler = os.environ.get("CC", "cc").split()[0]
    library = Path(build_root) / f"count-{digest([COUNTER], compiler)}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        partial = Path(folder) / "count.so"
        call([compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O2", *WARNINGS,
              "-shared", "-fPIC", COUNTER, "-o", partial])
        partial.rename(library)
    return library


def build_comparer(build_root):
    """The preload that compares what UCX is told with the driver's answers."""
    compiler = os.environ.get("CC", "cc").split()[0]
    sources = [COMPARER, HERE / "unseen.c"]
    folder = Path(build_root) / f"compare-{digest(sources, compiler)}"
    library = folder / f"{COMPARER.stem}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        built = Path(partial) / "compare.so"
        call([compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O2", *WARNINGS,
              "-isystem", str(cuda_include()), "-shared", "-fPIC",
              "-fno-optimize-sibling-calls", *sources, "-o", built])
        built.rename(library)
    return library


def build_refuser(wheel, build_root):
    """A folder with a libuct that refuses some registrations, and the wheel's
    own under another name behind it."""
    compiler = os.environ.get("CC", "cc").split()[0]
    folder = Path(build_root) / \
        f"refuse-{wheel.version}-{digest([REFUSER], compiler)}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        behind = Path(partial) / "built" / "libuct.so.9"
        behind.parent.mkdir()
        data = (wheel.lib / "libuct.so.0").read_bytes()
        behind.write_bytes(data.replace(b"\0libuct.so.0\0",
                                        b"\0libuct.so.9\0"))
        call([compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O2", *WARNINGS,
              "-Wno-missing-prototypes", "-isystem", str(cuda_include()),
              "-isystem", str(wheel.include), "-shared", "-fPIC", REFUSER,
              "-Wl,-soname,libuct.so.0", "-Wl,--no-as-needed", behind,
              "-Wl,--allow-shlib-undefined", "-o",
              behind.parent / "libuct.so.0"])
        behind.parent.rename(folder)
    return folder


# ---- what the scripts have in common ----


def add_build_option(parser):
    parser.add_argument("--build", default=os.environ.get(
        "VMMLANE_UCX_BUILD", str(CACHE / "ucx-client")),
        help="where the clients are compiled")


def resolve(options, *names):
    """Makes the paths of these options absolute; None stays."""
    for name in names:
        path = getattr(options, name)
        if path:
            setattr(options, name, Path(path).resolve(strict=True))


def need_driver(options):
    if not options.driver and not real_driver():
        raise SetupError("no NVIDIA driver here; give --driver DIR")


def versions_of(options):
    """Those that were asked for, or all that the tests run on."""
    versions = options.ucx or wheel_versions()
    if not versions:
        raise SetupError("no UCX wheel unpacked: run scripts/setup --ucx")
    return versions


def client_of(version, build_root):
    """A wheel, and the client that is compiled with its headers."""
    wheel = Wheel(version)
    return wheel, build_client(wheel, build_root)


def run_script(main):
    """Ends the process with what `main` returns; as skipped where something
    that it needs cannot be had."""
    try:
        code = main()
    except SetupError as error:
        print(error)
        code = SKIP
    sys.exit(code)


# ---- one pair ----


@dataclasses.dataclass
class Side:
    """One process: which UCX, which client, with or without the shim."""
    wheel: Wheel
    client: Path
    shim: Path = None
    counter: Path = None
    behind: Path = None  # a preload behind the shim
    front: Path = None   # a folder of libraries in front of the wheel's
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
    """One line "result SCENARIO KIND OPERATION lane=... DETAIL"."""
    kind: str
    operation: str
    lane: str
    bytes: str
    status: str
    gbps: float
    detail: str


@dataclasses.dataclass
class Outcome:
    results: list
    expects: list  # (name, holds)
    skipped: list
    ipc: tuple  # windows, opens, closes of the importer; None: not counted
    codes: tuple  # exit codes of exporter and importer
    logs: tuple
    seconds: float
    exports: int = None  # of chunks, counted by the simulated driver

    @property
    def timed_out(self):
        return TIMEOUT in self.codes or 3 in self.codes

    @property
    def wrong_bytes(self):
        return any(r.bytes == "BAD" for r in self.results) or \
            1 in self.codes


def net_device():
    """One device for UCX's tcp, the loopback only where there is no other.

    With several, an endpoint between 1.22 and an older UCX ends in "endpoint
    reconfiguration not supported yet"; over the loopback alone most pairs of
    versions find no route (both measured).
    """
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue
            if name != "lo":
                return name
    return "lo"


def environment_of(side, driver, tls, hook_mode):
    env = dict(os.environ)
    paths = [str(path) for path in (side.front, driver) if path]
    paths += [str(path) for path in side.wheel.libraries]
    # The machine's own search path stays behind: the real driver may need it.
    if env.get("LD_LIBRARY_PATH"):
        paths.append(env["LD_LIBRARY_PATH"])
    env["LD_LIBRARY_PATH"] = ":".join(paths)
    for name in [n for n in env if n.startswith("UCX_")]:
        del env[name]
    env.pop("LD_PRELOAD", None)
    preloads = [str(path) for path in
                (side.counter, side.shim, side.behind) if path]
    if preloads:
        env["LD_PRELOAD"] = " ".join(preloads)
    env.update({
        "UCX_TLS": tls,
        "UCX_NET_DEVICES": net_device(),
        # Without NVLink UCX switches GET over cuda_ipc off.
        "UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "y",
        "UCX_WARN_UNUSED_ENV_VARS": "n",
        "UCX_MEM_LOG_LEVEL": "info",
        "UCX_MEM_CUDA_HOOK_MODE": hook_mode,
        "UCX_HANDLE_ERRORS": "none",
    })
    if side.wheel.number >= (1, 21):
        env["UCX_MEM_BISTRO_GRACE_DURATION"] = "0"
    env.update(side.environment)
    return env


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wait_both(processes, timeout, ends_together=False):
    """Waits; when one has failed, or ended where both are to end together, the
    other gets a moment more."""
    end = time.monotonic() + timeout
    codes = [None, None]
    while None in codes and time.monotonic() < end:
        for i, process in enumerate(processes):
            if codes[i] is None:
                codes[i] = process.poll()
                if codes[i] is not None and (codes[i] != 0 or ends_together):
                    end = min(end, time.monotonic() + MOMENT)
        time.sleep(0.005)
    for i, process in enumerate(processes):
        end_group(process)
        if codes[i] is None:
            codes[i] = TIMEOUT
    return tuple(codes)


RESULT = re.compile(r"^result \S+ (\S+) (\S+) lane=(\S+) bytes=(\S+) "
                    r"status=(\S+) gbps=(\S+) (.*)$")


def parse(log):
    results, expects, skipped, ipc = [], [], [], None
    for line in log.splitlines():
        match = RESULT.match(line)
        if match:
            kind, operation, lane, verdict, status, gbps, detail = \
                match.groups()
            results.append(Result(kind, operation, lane, verdict, status,
                                  float(gbps), detail))
        elif line.startswith("expect "):
            _, _, name, verdict = line.split(None, 3)
            expects.append((name, verdict == "ok"))
        elif line.startswith("skip "):
            skipped.append(line[5:])
        elif line.startswith("ipc "):
            ipc = tuple(int(n) for n in re.findall(r"=(\d+)", line))
    return results, expects, skipped, ipc


def run_pair(exporter, importer, scenario, kind, *, driver=None, timeout=SECONDS,
             tls="cuda_copy,cuda_ipc,tcp", hook_mode="bistro", arguments=()):
    """Runs both processes to their end and parses what they printed."""
    sockets = socket.socketpair()
    processes, logs = [], []
    start = time.monotonic()
    try:
        for side, role, own in ((exporter, "exporter", sockets[0]),
                                (importer, "importer", sockets[1])):
            logs.append(tempfile.TemporaryFile(mode="w+", errors="replace"))
            processes.append(subprocess.Popen(
                [side.client, "--role", role, "--fd", str(own.fileno()),
                 "--scenario", scenario, "--kind", kind,
                 "--timeout", str(timeout * 0.8), *arguments],
                env=environment_of(side, driver, tls, hook_mode),
                pass_fds=[own.fileno()], stdin=subprocess.DEVNULL,
                stdout=logs[-1], stderr=subprocess.STDOUT,
                start_new_session=True))
        for own in sockets:
            own.close()
        codes = wait_both(processes, timeout)
    finally:
        for process in processes:
            if process.poll() is None:
                end_group(process)
    texts = []
    for log in logs:
        log.seek(0)
        texts.append(log.read())
        log.close()
    return Outcome(*parse(texts[1]), codes, tuple(texts),
                   time.monotonic() - start)


def show_logs(outcome, last=None):
    """Prints what both sides said: all, or the `last` lines of each."""
    for role, log in zip(("exporter", "importer"), outcome.logs):
        lines = log.splitlines()
        for line in lines if last is None else lines[-last:]:
            print(f"     {role}| {line}")


def hooks_installed(log):
    """Number of CUDA functions that UCX's own interposer has hooked."""
    found = re.findall(r"cuda memory hooks mode (\w+): installed (\d+) "
                       r"on driver API", log)
    return (found[-1][0], int(found[-1][1])) if found else (None, 0)


def real_driver():
    """The machine's own libcuda.so.1 with a device node, or None."""
    if not Path("/dev/nvidiactl").exists():
        return None
    listing = subprocess.run([shutil.which("ldconfig") or "/sbin/ldconfig",
                              "-p"], stdout=subprocess.PIPE, text=True)
    match = re.search(r"libcuda\.so\.1 .*=> (\S+)", listing.stdout or "")
    if match:
        return match.group(1)
    for path in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if path and (Path(path) / "libcuda.so.1").exists():
            return str(Path(path) / "libcuda.so.1")
    return None
