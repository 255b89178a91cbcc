#!/usr/bin/env python3
"""PyTorch's jobs. The runner chooses the allocator by the environment.

Matrices hold small whole numbers, so that each product is exact whatever the
order of its sums.
"""

import ctypes
import sys

import common
from common import demand, say

try:
    import torch
except ImportError as missing:
    print(f"not here: {missing}")
    sys.exit(common.NOT_HERE)

MIB = 1 << 20
MIX = -2960836687051489133


def checksum(tensor):
    data = tensor.detach().contiguous().view(torch.uint8)
    return common.digest(data.cpu().numpy().tobytes())


def pattern(length, seed):
    index = torch.arange(length // 8, dtype=torch.int64, device="cuda")
    x = (index + (seed << 40)) * MIX
    return (x ^ (x >> 29)).view(torch.uint8)


def matrix(size, seed):
    index = torch.arange(size * size, dtype=torch.int64, device="cuda")
    return ((index * seed) % 7).view(size, size).float()


def product(size, seed):
    return matrix(size, seed) @ matrix(size, seed + 2)


def known_product(size, seed):
    """The same on the CPU, in 64-bit numbers."""
    index = torch.arange(size * size, dtype=torch.int64)
    left, right = [((index * s) % 7).view(size, size).double()
                   for s in (seed, seed + 2)]
    return left @ right


def allocations():
    """Matrix products and large tensors, empty_cache() between them."""
    common.version("torch")
    for number in range(3):
        result = product(512, number + 3)
        demand(f"right{number}", torch.equal(result.cpu().double(),
                                             known_product(512, number + 3)))
        say(f"product{number}", checksum(product(2048, number + 3)))
        large = pattern(96 * MIB, number)
        say(f"large{number}", checksum(large))
        say(f"reserved{number}", torch.cuda.memory_reserved())
        if "--expandable" in sys.argv:
            demand(f"expandable{number}",
                   all(segment["is_expandable"]
                       for segment in torch.cuda.memory_snapshot()))
        del large, result
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        say(f"left{number}", torch.cuda.memory_reserved())
    common.preloaded("main")


# ---- sharing between processes ----


def rebuild(pipe):
    """The other process of `ipc`: reads and changes what it is given."""
    common.preloaded("importer")
    while True:
        message = pipe.recv()
        if message is None:
            return
        function, arguments = message
        tensor = function(*arguments)
        say("there", checksum(tensor))
        tensor.add_(1)
        torch.cuda.synchronize()
        del tensor
        pipe.send("changed")


def ipc():
    """PyTorch's own IPC by its reductions: pieces small, over several
    segments, and from the middle of one."""
    from torch.multiprocessing import get_context
    from torch.multiprocessing.reductions import reduce_tensor
    mine, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=rebuild, args=(theirs,))
    process.start()
    whole = pattern(70 * MIB, 9)
    parts = [pattern(4096, 7), whole, whole[19 * MIB:43 * MIB]]
    common.preloaded("exporter")
    for number, tensor in enumerate(parts):
        try:
            reduced = reduce_tensor(tensor)
        except RuntimeError as refused:
            say(f"refused{number}", type(refused).__name__)
            continue
        before = tensor.clone()
        mine.send(reduced)
        say(f"answer{number}", mine.recv())
        demand(f"changed{number}", torch.equal(tensor, before + 1))
        say(f"here{number}", checksum(tensor))
    mine.send(None)
    process.join(60)
    say("peer", process.exitcode)


def worker(tasks, answers):
    """The other process of `processes`."""
    common.preloaded("worker")
    own = []
    while True:
        tensor = tasks.get()
        if tensor is None:
            break
        tensor.mul_(3)
        own.append(tensor * 2)
        torch.cuda.synchronize()
        del tensor
        answers.put(own[-1])
    tasks.get()  # until the parent has read the last answer


def processes(method):
    """torch.multiprocessing: tensors by queues, both ways."""
    from torch.multiprocessing import get_context
    context = get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch"])
    tasks, answers = context.Queue(), context.Queue()
    process = context.Process(target=worker, args=(tasks, answers))
    process.start()
    sent = [torch.arange(size, dtype=torch.int32, device="cuda")
            for size in (1000, 3 * MIB)]
    common.preloaded("main")
    for number, tensor in enumerate(sent):
        tasks.put(tensor)
        answer = answers.get(timeout=60)
        say(f"changed{number}", checksum(tensor))
        say(f"answer{number}", checksum(answer))
        del answer
    tasks.put(None)
    tasks.put("read")
    process.join(60)
    say("worker", process.exitcode)


def spawn():
    processes("spawn")


def forkserver():
    processes("forkserver")


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        return torch.full((4096,), row, dtype=torch.int32)


def loader():
    """Workers by fork while CUDA is in use, pinned memory."""
    torch.zeros(1, device="cuda")
    common.preloaded("main")
    rows = torch.utils.data.DataLoader(
        Rows(), batch_size=8, num_workers=4, pin_memory=True,
        multiprocessing_context="fork")
    for number, batch in enumerate(rows):
        say(f"batch{number}", checksum(batch.to("cuda", non_blocking=True)))


# ---- graphs, pools ----


def graph():
    """A captured graph, replayed, with memory mapped between replays."""
    common.preloaded("main")
    data = torch.zeros(4 * MIB, dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (data * 2 + 1).sum()
    torch.cuda.current_stream().wait_stream(side)
    graph_ = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph_):
        result = data * 2 + 1
        total = result.sum()
    kept = []
    for number in range(4):
        data.copy_(torch.arange(4 * MIB, dtype=torch.int64, device="cuda")
                   + number)
        graph_.replay()
        kept.append(torch.full((24 * MIB,), number, dtype=torch.uint8,
                               device="cuda"))
        say(f"total{number}", total.item())
        say(f"result{number}", checksum(result))
    say("kept", [checksum(tensor) for tensor in kept])


def pools():
    """torch.cuda.MemPool."""
    common.preloaded("main")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = pattern(40 * MIB, 3)
    outside = pattern(40 * MIB, 4)
    say("inside", checksum(inside))
    say("outside", checksum(outside))
    say("reserved", torch.cuda.memory_reserved())
    del inside
    del pool
    torch.cuda.empty_cache()
    say("left", torch.cuda.memory_reserved())
    say("outside", checksum(outside))


# ---- NCCL ----


def nccl_allocator(backend):
    """Where there is no multicast, NCCL has no allocator for PyTorch: then the
    pool's memory lies in expandable segments."""
    try:
        return [backend.mem_allocator]
    except RuntimeError as refused:
        say("allocator", type(refused).__name__)
        return []


def nccl():
    """A group of one rank: registered pool memory, and NCCL's own calls on
    memory of expandable segments."""
    import torch.distributed as dist
    common.version("nvidia-nccl-cu13")
    common.preloaded("main")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0,
                            world_size=1, device_id=torch.device("cuda:0"))
    tensor = pattern(64 * MIB, 5).view(torch.int64)
    dist.all_reduce(tensor)
    say("reduced", checksum(tensor))
    backend = dist.group.WORLD._get_backend(torch.device("cuda:0"))
    pool = torch.cuda.MemPool(*nccl_allocator(backend))
    with torch.cuda.use_mem_pool(pool):
        registered = pattern(32 * MIB, 6).view(torch.int64)
    for name in ("register", "deregister"):
        try:
            getattr(backend, f"{name}_mem_pool")(pool)
            say(name, 0)
        except RuntimeError as refused:
            say(name, f"{type(refused).__name__} {str(refused)[:60]!r}")
        dist.all_reduce(registered)
        say(f"{name}ed", checksum(registered))
    by_hand(tensor)
    del registered
    dist.destroy_process_group()


def loaded(name):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if name in line:
                return line.split()[-1]
    raise RuntimeError(f"{name} is not loaded")


def by_hand(tensor):
    library = ctypes.CDLL(loaded("libnccl.so"))
    communicator, handle = ctypes.c_void_p(), ctypes.c_void_p()
    memory = ctypes.c_void_p()
    size = ctypes.c_size_t(tensor.numel() * 8)
    source = ctypes.c_void_p(tensor.data_ptr())
    int64, add = 4, 0
    say("init", library.ncclCommInitAll(ctypes.byref(communicator), 1, None))
    say("alloc", library.ncclMemAlloc(ctypes.byref(memory), size))
    for name, buffer in (("own", memory), ("segments", source)):
        say(f"{name}-register", library.ncclCommRegister(
            communicator, buffer, size, ctypes.byref(handle)))
        target = torch.zeros_like(tensor)
        torch.cuda.synchronize()
        say(f"{name}-reduce", library.ncclAllReduce(
            source, memory, ctypes.c_size_t(tensor.numel()), int64, add,
            communicator, None))
        say(f"{name}-back", library.ncclAllReduce(
            memory, ctypes.c_void_p(target.data_ptr()),
            ctypes.c_size_t(tensor.numel()), int64, add, communicator, None))
        torch.cuda.synchronize()
        demand(f"{name}-equal", torch.equal(target, tensor))
        say(f"{name}-deregister", library.ncclCommDeregister(communicator,
                                                             handle))
    say("free", library.ncclMemFree(memory))
    say("destroy", library.ncclCommDestroy(communicator))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
