#!/usr/bin/env python3
"""Serving engines that sleep: vLLM's and SGLang's allocators, on NIXL.

Two processes. The exporter allocates tensors with the calls of vLLM's cumem
allocator or of torch_memory_saver (SGLang), in their order: one handle and one
reservation for each tensor. It registers them with NIXL, sleeps (unmaps and
releases each, keeps the addresses) and wakes (new handles at the same
addresses), with its registration redone and with it kept. The importer reads
and writes all along. What it reads is compared; between a sleep and a new
registration a transfer may fail, or give what is there now, and never what was
there before. The allocators must see their own request in what they made.
Needs NIXL; no PyTorch.
"""

import argparse
import ctypes
import os
import socket
import subprocess
import sys

import cuda
import nixl_pair
import pair
from nixl_pair import receive, send

MIB = 1 << 20
SIZES = [2 * MIB, 6 * MIB, 4 * MIB] * 2
FABRIC = 8
NOT_PERMITTED = 800
RDMA_SUPPORTED = 110  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_...


class Tensor:
    def __init__(self, size):
        self.size = size
        self.base = None
        self.handle = None


class Engine:
    """What both allocators do; vLLM's order is Reserve, Create, Map."""

    reserve_first = True
    types = [0]

    def __init__(self, driver):
        self.driver = driver
        supported = ctypes.c_int()
        driver("cuDeviceGetAttribute", ctypes.byref(supported),
               RDMA_SUPPORTED, 0)
        self.rdma = supported.value
        self.tensors = []

    def properties(self, types):
        flags = cuda.Flags(0, self.rdma, 0)
        return cuda.Properties(cuda.PINNED, types,
                               cuda.Location(cuda.DEVICE, 0), None, flags)

    def create(self, tensor):
        tensor.handle = ctypes.c_uint64()
        for types in self.types:
            properties = self.properties(types)
            result = self.driver.library.cuMemCreate(
                ctypes.byref(tensor.handle), ctypes.c_size_t(tensor.size),
                ctypes.byref(properties), ctypes.c_ulonglong(0))
            if result != NOT_PERMITTED:
                break
        if result != 0:
            raise RuntimeError(f"cuMemCreate: CUresult {result}")
        self.check(tensor, types)

    def check(self, tensor, types):
        """The handle is as it was asked for, whatever vmmlane made of it."""
        got = cuda.Properties()
        self.driver("cuMemGetAllocationPropertiesFromHandle",
                    ctypes.byref(got), tensor.handle)
        if got.handle_types != types or bool(got.flags.rdma) != \
                bool(self.rdma):
            raise RuntimeError(f"handle types {got.handle_types}, not {types}")
        descriptor = ctypes.c_int(-1)
        exported = self.driver.library.cuMemExportToShareableHandle(
            ctypes.byref(descriptor), tensor.handle, cuda.POSIX_FD,
            ctypes.c_ulonglong(0)) == 0
        if exported:
            os.close(descriptor.value)
        if exported != bool(types & cuda.POSIX_FD):
            raise RuntimeError(f"types {types}, exported: {exported}")

    def reserve(self, tensor):
        address = ctypes.c_uint64()
        self.driver("cuMemAddressReserve", ctypes.byref(address), tensor.size,
                    0, 0, 0)
        tensor.base = address.value

    def map(self, tensor):
        access = cuda.Access(cuda.Location(cuda.DEVICE, 0), cuda.READ_WRITE)
        self.driver("cuMemMap", tensor.base, tensor.size, 0, tensor.handle, 0)
        self.driver("cuMemSetAccess", tensor.base, tensor.size,
                    ctypes.byref(access), 1)

    def allocate(self, sizes):
        for size in sizes:
            tensor = Tensor(size)
            steps = [self.reserve, self.create]
            for step in steps if self.reserve_first else reversed(steps):
                step(tensor)
            self.map(tensor)
            self.tensors.append(tensor)

    def sleep(self):
        for tensor in self.tensors:
            self.driver("cuMemUnmap", tensor.base, tensor.size)
            self.driver("cuMemRelease", tensor.handle)

    def wake(self):
        for tensor in self.tensors:
            self.create(tensor)
            self.map(tensor)

    def free(self):
        self.sleep()
        for tensor in self.tensors:
            self.driver("cuMemAddressFree", tensor.base, tensor.size)
        self.tensors = []

    # ---- bytes ----

    def fill(self, seed):
        for number, tensor in enumerate(self.tensors):
            nixl_pair.fill(self.driver, tensor.base, tensor.size,
                           seed + number)

    def wrong(self, seed):
        return sum(nixl_pair.wrong_bytes(self.driver, tensor.base, tensor.size,
                                         seed + number)
                   for number, tensor in enumerate(self.tensors))

    def descriptors(self):
        return [(t.base, t.size, 0) for t in self.tensors]


class Saver(Engine):
    """torch_memory_saver: Create, Reserve, Map."""

    reserve_first = False


class NewerVllm(Engine):
    """Since 2026: FABRIC, and POSIX_FD where that is refused."""

    types = [FABRIC, cuda.POSIX_FD]


ENGINES = {"vllm": Engine, "vllm-2026": NewerVllm, "saver": Saver}


def register(agent, engine):
    return agent.register_memory([(*d, "") for d in engine.descriptors()],
                                 "VRAM")


# ---- the two processes ----


class Exporter:
    def __init__(self, channel):
        self.channel = channel
        self.driver = cuda.Driver()
        self.agent = nixl_pair.agent_of("exporter")
        self.engine = self.registered = None

    def metadata(self):
        return self.agent.get_agent_metadata(), self.engine.descriptors()

    def allocate(self, name, seed):
        self.engine = ENGINES[name](self.driver)
        self.engine.allocate(SIZES)
        self.engine.fill(seed)
        self.registered = register(self.agent, self.engine)
        return self.metadata()

    def sleep(self, keep):
        if not keep:
            self.agent.deregister_memory(self.registered)
            self.registered = None
        self.engine.sleep()
        return None

    def wake(self, seed):
        before = self.engine.descriptors()
        self.engine.wake()
        self.engine.fill(seed)
        assert before == self.engine.descriptors()
        return None

    def register(self):
        if self.registered is not None:
            self.agent.deregister_memory(self.registered)
        self.registered = register(self.agent, self.engine)
        return self.metadata()

    def check(self, seed):
        return self.engine.wrong(seed)

    def free(self):
        self.agent.deregister_memory(self.registered)
        self.engine.free()
        return None

    def serve(self):
        while True:
            word, *rest = receive(self.channel)
            if word == "quit":
                send(self.channel, None)
                return 0
            send(self.channel, getattr(self, word)(*rest))


class Importer:
    def __init__(self, channel, options):
        self.channel = channel
        self.options = options
        self.driver = cuda.Driver()
        self.agent = nixl_pair.agent_of("importer")
        self.engine = Engine(self.driver)
        self.engine.allocate(SIZES)
        self.registered = register(self.agent, self.engine)
        self.peer = self.remote = None
        self.wrong = 0

    def ask(self, *message):
        send(self.channel, message)
        return receive(self.channel)

    def connect(self, metadata, remote):
        if self.peer is not None:
            self.agent.remove_remote_agent(self.peer)
        self.peer = self.agent.add_remote_agent(metadata)
        self.remote = remote

    def judge(self, what, wrong):
        self.wrong += wrong
        print(f"engine {what}: wrong={wrong}", flush=True)

    def read(self):
        nixl_pair.move(self.agent, "READ", self.engine.descriptors(),
                       self.remote, self.peer, self.options)

    def both_ways(self, what, seed):
        self.engine.fill(9000)
        self.read()
        self.judge(f"{what} READ", self.engine.wrong(seed))
        self.engine.fill(seed + 100)
        nixl_pair.move(self.agent, "WRITE", self.engine.descriptors(),
                       self.remote, self.peer, self.options)
        self.judge(f"{what} WRITE", self.ask("check", seed + 100))

    def refused_or(self, what, seed):
        """A transfer by an old key: an error, or (seed) what is there now."""
        self.engine.fill(9000)
        try:
            self.read()
        except Exception as error:  # NIXL's own exceptions differ by version
            print(f"engine {what}: refused ({error})", flush=True)
            return
        self.judge(f"{what} READ", self.engine.wrong(seed) if seed else 1)

    def own_sleep(self):
        """The importer's memory may sleep as well, its registration redone."""
        self.agent.deregister_memory(self.registered)
        self.engine.sleep()
        self.engine.wake()
        self.registered = register(self.agent, self.engine)

    def engine_run(self, name):
        self.connect(*self.ask("allocate", name, 1000))
        self.both_ways(f"{name} new", 1000)
        for number, keep in enumerate((False, True)):
            seed = 2000 + 1000 * number
            what = f"{name} {'kept' if keep else 'redone'}"
            self.ask("sleep", keep)
            self.refused_or(f"{what} asleep", None)
            self.ask("wake", seed)
            self.refused_or(f"{what} awake", seed)
            self.connect(*self.ask("register"))
            self.own_sleep()
            self.both_ways(f"{what} anew", seed)
        self.agent.remove_remote_agent(self.peer)
        self.peer = None
        self.ask("free")

    def run(self):
        for name in self.options.engine:
            self.engine_run(name)
        self.ask("quit")
        return 1 if self.wrong else 0


# ---- starting them ----


def start(role, own, options, log):
    return subprocess.Popen(
        [options.python, __file__, "--role", role, "--fd", str(own.fileno()),
         "--engine", *options.engine],
        env=nixl_pair.environment_of(options), pass_fds=[own.fileno()],
        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", help="folder of the simulated driver")
    parser.add_argument("--shim", help="libvmmlane.so to preload")
    parser.add_argument("--python", default=str(pair.ROOT / ".venv/bin/python"))
    parser.add_argument("--wheel", metavar="DIR",
                        help="an unpacked wheel of NIXL (default: installed)")
    parser.add_argument("--engine", nargs="+", choices=list(ENGINES),
                        default=list(ENGINES))
    parser.add_argument("--any-lane", action="store_true",
                        help="do not demand cuda_ipc")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--role", choices=["exporter", "importer"])
    parser.add_argument("--fd", type=int)
    options = parser.parse_args()
    options.reps, options.tls = 1, "cuda_copy,cuda_ipc,tcp"
    return options


def main():
    options = parse_options()
    if options.role:
        channel = socket.socket(fileno=options.fd)
        return Exporter(channel).serve() if options.role == "exporter" else \
            Importer(channel, options).run()
    if not nixl_pair.usable(options):
        print("NIXL's wheel is not installed: run scripts/setup --nixl")
        return 77
    codes, logs = nixl_pair.run(options, start)
    lanes = nixl_pair.largest_lane(logs[1])
    failed = codes != (0, 0)
    if not options.any_lane:
        failed |= lanes != {"read": "cuda_ipc", "write": "cuda_ipc"}
    if failed or options.verbose:
        print(*logs, sep="\n")
    else:
        print(*[line for line in logs[1].splitlines()
                if line.startswith("engine ")], sep="\n")
    print(f"lanes {lanes}, exit codes {codes}: {'FAIL' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
