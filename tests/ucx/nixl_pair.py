#!/usr/bin/env python3
"""NIXL's own wheel, two processes: READ and WRITE of device memory.

Drives NIXL through its Python interface with raw (address, length, device)
descriptors, without PyTorch. Each round: one large tensor, many small ones
registered at once, the large one again, with the memory unmapped and mapped
anew between them, as after empty_cache(). Every byte is compared. --key-first:
the importer takes the exporter's keys before it has a CUDA context.
Runs itself twice; needs NumPy, which the wheel needs as well.
"""

import argparse
import importlib
import os
import pickle
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pair

MIB = 1 << 20
MIX = 0xd6e8feb86659fd93
POISON = 0xfffff


# ---- the control channel: pickled messages ----


def send(channel, message):
    data = pickle.dumps(message)
    channel.sendall(struct.pack("<Q", len(data)) + data)


def receive(channel):
    def exactly(count):
        data = b""
        while len(data) < count:
            part = channel.recv(count - len(data))
            if not part:
                raise EOFError("the peer is gone")
            data += part
        return data
    return pickle.loads(exactly(struct.unpack("<Q", exactly(8))[0]))


# ---- bytes ----


def pattern(length, seed, offset):
    """`length` and `offset` are multiples of 8 bytes."""
    import numpy
    index = numpy.arange(offset // 8, (offset + length) // 8,
                         dtype=numpy.uint64)
    with numpy.errstate(over="ignore"):
        x = (index + numpy.uint64(seed << 44)) * numpy.uint64(MIX)
        x = (x ^ (x >> numpy.uint64(32))) * numpy.uint64(MIX)
    return x.tobytes()


def fill(driver, base, length, seed, piece=16 * MIB):
    for at in range(0, length, piece):
        part = min(piece, length - at)
        driver.write(base + at, pattern(part, seed, at))


def wrong_bytes(driver, base, length, seed, piece=16 * MIB):
    import numpy
    wrong = 0
    for at in range(0, length, piece):
        part = min(piece, length - at)
        got = driver.read(base + at, part)
        want = pattern(part, seed, at)
        if got != want:
            wrong += int(numpy.count_nonzero(
                numpy.frombuffer(got, numpy.uint8) !=
                numpy.frombuffer(want, numpy.uint8)))
    return wrong


# ---- the two processes ----


def package():
    """NIXL's package, whose name depends on the wheel: the first on the path."""
    for folder in map(Path, sys.path):
        for name in ("nixl_cu13", "nixl_cu12", "nixl"):
            if (folder / name / "_api.py").exists():
                return name
    raise ImportError("NIXL is not installed")


def agent_of(name, **config):
    api = importlib.import_module(package() + "._api")
    return api.nixl_agent(
        name, api.nixl_agent_config(backends=["UCX"], **config))


def tensors_of(base, count, size):
    return [(base + i * size, size, 0) for i in range(count)]


def device(options):
    """The driver and this process's memory; the first call makes a context."""
    import cuda
    if not hasattr(options, "device"):
        driver = cuda.Driver()
        if options.kind == "malloc":
            memory = cuda.Plain(driver, options.chunk * MIB, largest(options))
        else:
            memory = cuda.Expandable(driver, options.chunk * MIB,
                                     largest(options), options.unseen)
        options.device = driver, memory
    return options.device


def largest(options):
    return max(count * size for count, size in rounds_of(options))


def rounds_of(options):
    large = (1, options.large * MIB)
    small = (options.count, options.small * 1024)
    return [large, small, large] * options.rounds


def exporter(channel, options):
    driver, memory = device(options)
    agent = agent_of("exporter")
    while True:
        message = receive(channel)
        if message[0] == "round":
            _, count, size, seed = message
            memory.back(count * size)
            fill(driver, memory.base, count * size, seed)
            tensors = tensors_of(memory.base, count, size)
            registered = agent.register_memory(
                [(*tensor, "") for tensor in tensors], "VRAM")
            send(channel, (agent.get_agent_metadata(), tensors))
        elif message[0] == "check":
            _, length, seed = message
            send(channel, wrong_bytes(driver, memory.base, length, seed))
        elif message[0] == "end":
            agent.deregister_memory(registered)
            memory.empty()
            send(channel, "ended")
        else:
            send(channel, "bye")
            return 0


def run_transfer(agent, handle, timeout):
    start = time.monotonic()
    state = agent.transfer(handle)
    while state == "PROC":
        if time.monotonic() - start > timeout:
            raise RuntimeError("a transfer did not end")
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise RuntimeError(f"a transfer ended in state {state}")
    return time.monotonic() - start


def move(agent, operation, local, remote, peer, options):
    """Transfers all of `remote` several times; returns the median's seconds."""
    handle = agent.initialize_xfer(
        operation, agent.get_xfer_descs(local, "VRAM"),
        agent.get_xfer_descs(remote, "VRAM"), peer)
    times = sorted(run_transfer(agent, handle, options.timeout)
                   for _ in range(options.reps))
    agent.release_xfer_handle(handle)
    return times[len(times) // 2]


def one_round(channel, agent, count, size, seed, options):
    """Returns the wrong bytes of READ and of WRITE."""
    total = count * size
    send(channel, ("round", count, size, seed))
    metadata, remote = receive(channel)
    peer = agent.add_remote_agent(metadata)
    driver, memory = device(options)
    memory.back(total)
    fill(driver, memory.base, total, POISON)
    local = tensors_of(memory.base, count, size)
    registered = agent.register_memory([(*t, "") for t in local], "VRAM")
    seconds = move(agent, "READ", local, remote, peer, options)
    wrong = [wrong_bytes(driver, memory.base, total, seed)]
    print(f"nixl READ {options.kind} {count}x{size} "
          f"gbps={total / seconds * 1e-9:.2f} wrong={wrong[0]}", flush=True)
    fill(driver, memory.base, total, seed + 1)
    seconds = move(agent, "WRITE", local, remote, peer, options)
    send(channel, ("check", total, seed + 1))
    wrong.append(receive(channel))
    print(f"nixl WRITE {options.kind} {count}x{size} "
          f"gbps={total / seconds * 1e-9:.2f} wrong={wrong[1]}", flush=True)
    agent.remove_remote_agent(peer)
    agent.deregister_memory(registered)
    memory.empty()
    send(channel, ("end",))
    receive(channel)
    return sum(wrong)


def importer(channel, options):
    if not options.key_first:
        device(options)
    agent = agent_of("importer")
    wrong = 0
    for number, (count, size) in enumerate(rounds_of(options)):
        wrong += one_round(channel, agent, count, size, 2 * number + 1,
                           options)
    send(channel, ("quit",))
    receive(channel)
    return 1 if wrong else 0


# ---- starting them ----


def use_wheel(env, folder):
    """An unpacked wheel in place of what is installed."""
    folder = Path(folder).resolve(strict=True)
    env["PYTHONPATH"] = ":".join(
        [str(folder), *filter(None, [env.get("PYTHONPATH")])])
    # NIXL looks for its plugins where an installed wheel has them.
    for plugins in folder.glob("nixl*.libs/nixl"):
        env["NIXL_PLUGIN_DIR"] = str(plugins)


def use_simulated_driver(env, folder):
    # NIXL's wheels leave cudart to PyTorch's dependencies; without it
    # UCX has no CUDA, silently.
    cudart = [pair.cuda_include().parent / "lib",
              *pair.CACHE.glob("cudart/*/nvidia/*/lib")]
    env["LD_LIBRARY_PATH"] = ":".join(
        [str(Path(folder).resolve(strict=True)),
         *filter(None, [env.get("LD_LIBRARY_PATH")]), *map(str, cudart)])
    # NIXL up to 1.3 imports torch, whether it is used or not.
    env["PYTHONPATH"] = ":".join(
        [*filter(None, [env.get("PYTHONPATH")]), str(pair.HERE / "standin")])


def environment_of(options):
    env = dict(os.environ)
    for name in [n for n in env if n.startswith("UCX_")]:
        del env[name]
    env.pop("LD_PRELOAD", None)
    if options.wheel:
        use_wheel(env, options.wheel)
    if options.driver:
        use_simulated_driver(env, options.driver)
    if options.shim:
        env["LD_PRELOAD"] = str(Path(options.shim).resolve(strict=True))
    env.update({
        "UCX_TLS": options.tls,
        "UCX_NET_DEVICES": pair.net_device(),
        "UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "y",
        "UCX_PROTO_INFO": "y",
        "UCX_MEM_BISTRO_GRACE_DURATION": "0",
        "UCX_HANDLE_ERRORS": "none",
        "NIXL_LOG_LEVEL": "WARN",
    })
    return env


def start(role, own, options, log):
    command = [options.python, __file__, "--role", role, "--fd",
               str(own.fileno())]
    for name in ("kind", "chunk", "large", "count", "small", "rounds", "reps",
                 "timeout"):
        command += [f"--{name}", str(getattr(options, name))]
    if options.unseen and role == "exporter":
        command.append("--unseen")
    if options.key_first:
        command.append("--key-first")
    return subprocess.Popen(command, env=environment_of(options),
                            pass_fds=[own.fileno()], stdin=subprocess.DEVNULL,
                            stdout=log, stderr=subprocess.STDOUT,
                            start_new_session=True)


DEVICE_MEMORY = re.compile(r"remote memory (read|write) .*"
                           r"(into|from) cuda/GPU\d+ (from|to) cuda")
LONGEST = re.compile(r"\| +\S*\.\.inf +\|(.*)\|(.*)\|")


# UCX writes its log in blocks: lines of others may stand in the middle of one.
OTHER_LINE = re.compile(r"(?:(?:engine|nixl|result|about) |"
                        r"[IWE]\d{4} \d\d:\d\d:\d\d\.)[^\n]*\n")


def largest_lane(log):
    """What the longest messages between device memories use, by UCX's tables.

    {operation: lanes}; UCX prints a table again where a key leads to others.
    """
    found = {}
    operation = None
    for line in OTHER_LINE.sub("", log).splitlines():
        if "remote memory" in line:
            match = DEVICE_MEMORY.search(line)
            operation = match.group(1) if match else None
        row = LONGEST.search(line)
        if operation and row:
            text = " ".join(cell.strip() for cell in row.groups())
            found.setdefault(operation, []).append(
                "cuda_ipc" if "cuda_ipc" in text else
                "emulation" if "emulation" in text else text)
    return {operation: "+".join(dict.fromkeys(lanes))
            for operation, lanes in found.items()}


def run(options, start=start):
    """Starts both processes and waits; returns their exit codes and logs."""
    sockets = socket.socketpair()
    logs = [tempfile.TemporaryFile(mode="w+", errors="replace")
            for _ in range(2)]
    processes = []
    try:
        for role, own, log in zip(("exporter", "importer"), sockets, logs):
            processes.append(start(role, own, options, log))
        for own in sockets:
            own.close()
        codes = pair.wait_both(processes, options.timeout)
    finally:
        for process in processes:
            if process.poll() is None:
                pair.end_group(process)
    texts = []
    for log in logs:
        log.seek(0)
        texts.append(log.read())
    return codes, texts


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", help="folder of the simulated driver")
    parser.add_argument("--shim", help="libvmmlane.so to preload")
    parser.add_argument("--python", default=None,
                        help="interpreter that has nixl (default: .venv's)")
    parser.add_argument("--kind", choices=["malloc", "vmm"], default="vmm")
    parser.add_argument("--chunk", type=int, default=2, help="MiB")
    parser.add_argument("--large", type=int, default=32, help="MiB")
    parser.add_argument("--count", type=int, default=820)
    parser.add_argument("--small", type=int, default=40, help="KiB")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--tls", default="cuda_copy,cuda_ipc,tcp")
    parser.add_argument("--unseen", action="store_true",
                        help="the exporter maps and unmaps past every hook (D6)")
    parser.add_argument("--key-first", action="store_true",
                        help="the importer's context comes after the keys (A9)")
    parser.add_argument("--wheel", metavar="DIR",
                        help="an unpacked wheel of NIXL (default: installed)")
    parser.add_argument("--any-lane", action="store_true",
                        help="do not demand cuda_ipc")
    parser.add_argument("--unless-crashing", action="store_true",
                        help="not run where both end by a signal without the "
                        "preload too")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--role", choices=["exporter", "importer"])
    parser.add_argument("--fd", type=int)
    return parser.parse_args(arguments)


def usable(options):
    """Can this interpreter import NIXL, where the transfers will run?"""
    if not Path(options.python).exists():
        return False
    options.python = os.path.abspath(options.python)
    program = "import importlib, nixl_pair as n; " \
        "importlib.import_module(n.package())"
    probe = subprocess.run([options.python, "-c", program],
                           env=environment_of(options), cwd=pair.HERE,
                           stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    return probe.returncode == 0


def crashes_alone(options):
    alone = argparse.Namespace(**{**vars(options), "shim": None})
    codes, _ = run(alone)
    return all(code < 0 for code in codes)


def main():
    options = parse_options()
    if options.role:
        channel = socket.socket(fileno=options.fd)
        role = exporter if options.role == "exporter" else importer
        return role(channel, options)
    options.python = options.python or str(pair.ROOT / ".venv/bin/python")
    if not usable(options):
        print("NIXL's wheel is not installed: run scripts/setup --nixl")
        return 77
    if options.unless_crashing and crashes_alone(options):
        print("NIXL crashes so without vmmlane too")
        return 77
    codes, (exporter_log, importer_log) = run(options)
    chosen = largest_lane(importer_log)
    failed = codes != (0, 0)
    if not options.any_lane:
        failed |= chosen.get("read") != "cuda_ipc"
        failed |= chosen.get("write") != "cuda_ipc"
    if failed or options.verbose:
        print(exporter_log)
        print(importer_log)
    else:
        print("\n".join(line for line in importer_log.splitlines()
                        if line.startswith("nixl ")))
    print(f"lanes {chosen}, exit codes {codes}: "
          f"{'FAIL' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
