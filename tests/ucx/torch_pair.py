#!/usr/bin/env python3
"""PyTorch and NIXL as installed from PyPI, two processes: READ and WRITE.

Each round registers one tensor of 512 MiB, then 820 of 4 MiB, then one of
512 MiB again, with torch.cuda.empty_cache() between them; the importer reads
them and writes them, and every byte is compared on the GPU.

--segments expandable sets PYTORCH_CUDA_ALLOC_CONF, so that tensors lie in
chunks of cuMemCreate memory; --segments plain is the same job on cudaMalloc
memory. Needs a GPU, torch and nixl for the running interpreter.
Prints one line per transfer: GB/s (median of --reps), and the wrong bytes.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import nixl_pair
import pair

MIB = 1 << 20
MIX = -2960836687051489133
ROUNDS = [(1, 512 * MIB), (820, 4 * MIB), (1, 512 * MIB)]
SMALL = [(1, 64 * MIB), (82, 4 * MIB), (1, 64 * MIB)]


# ---- bytes, made and compared on the GPU ----


def pattern(torch, length, seed):
    index = torch.arange(length // 8, dtype=torch.int64, device="cuda")
    x = (index + (seed << 40)) * MIX
    return (x ^ (x >> 29)).view(torch.uint8)


def make_tensors(torch, count, size):
    return [torch.empty(size, dtype=torch.uint8, device="cuda")
            for _ in range(count)]


def fill(torch, tensors, seed):
    for number, tensor in enumerate(tensors):
        tensor.copy_(pattern(torch, tensor.numel(), seed + number))
    torch.cuda.synchronize()


def wrong_bytes(torch, tensors, seed):
    wrong = 0
    for number, tensor in enumerate(tensors):
        want = pattern(torch, tensor.numel(), seed + number)
        if not torch.equal(tensor, want):
            wrong += int((tensor != want).sum())
    return wrong


def descriptors(tensors):
    return [(t.data_ptr(), t.numel(), t.get_device()) for t in tensors]


# ---- growth in another thread ----


class Grower:
    """Allocates and frees tensors while transfers run."""

    def __init__(self, torch, on):
        self.torch = torch
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.work) if on else None

    def work(self):
        kept = []
        while not self.stop.is_set():
            kept.append(self.torch.empty(24 * MIB, dtype=self.torch.uint8,
                                         device="cuda"))
            if len(kept) == 16:
                kept.clear()
            self.stop.wait(0.001)

    def __enter__(self):
        if self.thread:
            self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        if self.thread:
            self.thread.join()


# ---- the two processes ----


def serve(channel, torch, agent):
    tensors = registered = None
    while True:
        message = nixl_pair.receive(channel)
        if message[0] == "round":
            _, count, size, seed = message
            tensors = make_tensors(torch, count, size)
            fill(torch, tensors, seed)
            registered = agent.register_memory(
                [(*d, "") for d in descriptors(tensors)], "VRAM")
            nixl_pair.send(channel, (agent.get_agent_metadata(),
                                     descriptors(tensors)))
        elif message[0] == "check":
            nixl_pair.send(channel, wrong_bytes(torch, tensors, message[1]))
        elif message[0] == "end":
            agent.deregister_memory(registered)
            tensors = registered = None
            torch.cuda.empty_cache()
            nixl_pair.send(channel, torch.cuda.mem_get_info()[0])
        else:
            nixl_pair.send(channel, "bye")
            return 0


def exporter(channel, options):
    import torch
    torch.zeros(1, device="cuda")
    agent = nixl_pair.agent_of("exporter")
    with Grower(torch, options.grow):
        return serve(channel, torch, agent)


def one_round(channel, torch, agent, count, size, seed, options):
    nixl_pair.send(channel, ("round", count, size, seed))
    metadata, remote = nixl_pair.receive(channel)
    peer = agent.add_remote_agent(metadata)
    tensors = make_tensors(torch, count, size)
    fill(torch, tensors, seed + 10000)
    local = descriptors(tensors)
    registered = agent.register_memory([(*d, "") for d in local], "VRAM")
    read = nixl_pair.move(agent, "READ", local, remote, peer, options)
    wrong_read = wrong_bytes(torch, tensors, seed)
    fill(torch, tensors, seed + 20000)
    write = nixl_pair.move(agent, "WRITE", local, remote, peer, options)
    nixl_pair.send(channel, ("check", seed + 20000))
    wrong_write = nixl_pair.receive(channel)
    agent.remove_remote_agent(peer)
    agent.deregister_memory(registered)
    tensors.clear()
    torch.cuda.empty_cache()
    nixl_pair.send(channel, ("end",))
    free = nixl_pair.receive(channel)
    print(f"torch {options.segments} {count}x{size // MIB}MiB "
          f"READ {read:.2f} WRITE {write:.2f} GB/s, wrong bytes "
          f"{wrong_read} {wrong_write}, exporter's free memory "
          f"{free // MIB} MiB", flush=True)
    return wrong_read + wrong_write


def importer(channel, options):
    import torch
    torch.zeros(1, device="cuda")
    agent = nixl_pair.agent_of("importer")
    wrong = 0
    for number, (count, size) in enumerate(
            (SMALL if options.small else ROUNDS) * options.rounds):
        wrong += one_round(channel, torch, agent, count, size,
                           100000 * (number + 1), options)
    nixl_pair.send(channel, ("quit",))
    nixl_pair.receive(channel)
    return 1 if wrong else 0


# ---- starting them ----


def environment_of(options, role):
    env = dict(os.environ)
    env.pop("LD_PRELOAD", None)
    if options.shim:
        env["LD_PRELOAD"] = str(Path(options.shim).resolve(strict=True))
    expandable = options.segments == "expandable"
    env["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{expandable}"
    # Without NVLink UCX switches GET over cuda_ipc off.
    env["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] = "y"
    env["NIXL_LOG_LEVEL"] = "WARN"
    if options.visible:
        number = ("exporter", "importer").index(role)
        env["CUDA_VISIBLE_DEVICES"] = options.visible[number]
    return env


def start(role, own, options, log):
    command = [sys.executable, __file__, "--role", role, "--fd",
               str(own.fileno()), "--segments", options.segments]
    for name in ("rounds", "reps", "timeout"):
        command += [f"--{name}", str(getattr(options, name))]
    for name in ("grow", "small"):
        if getattr(options, name):
            command.append(f"--{name}")
    return subprocess.Popen(command, env=environment_of(options, role),
                            pass_fds=[own.fileno()], stdin=subprocess.DEVNULL,
                            stdout=log, stderr=subprocess.STDOUT,
                            start_new_session=True)


def run(options):
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


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", help="libvmmlane.so to preload")
    parser.add_argument("--segments", choices=["expandable", "plain"],
                        default="expandable")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--grow", action="store_true",
                        help="a thread of the exporter allocates meanwhile")
    parser.add_argument("--visible", nargs=2, metavar=("E", "I"),
                        help="CUDA_VISIBLE_DEVICES of exporter and importer")
    parser.add_argument("--small", action="store_true",
                        help="64 MiB and 82 tensors, for slow lanes")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--role", choices=["exporter", "importer"])
    parser.add_argument("--fd", type=int)
    return parser.parse_args()


def main():
    options = parse_options()
    if options.role:
        channel = socket.socket(fileno=options.fd)
        role = exporter if options.role == "exporter" else importer
        return role(channel, options)
    codes, texts = run(options)
    if codes == (0, 0):
        print("\n".join(line for text in texts for line in text.splitlines()
                        if line.startswith(("torch ", "vmmlane["))))
    else:
        print("exporter:", *texts[0].splitlines()[-30:], "importer:",
              *texts[1].splitlines()[-30:], sep="\n")
    print(f"exit codes {codes}: {'ok' if codes == (0, 0) else 'FAIL'}")
    return 0 if codes == (0, 0) else 1


if __name__ == "__main__":
    sys.exit(main())
