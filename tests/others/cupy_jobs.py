#!/usr/bin/env python3
"""CuPy: its pools, its kernels, and legacy IPC between two processes."""

import subprocess
import sys

import common
from common import say

try:
    import cupy
except ImportError as missing:
    print(f"not here: {missing}")
    sys.exit(common.NOT_HERE)

COUNT = 8 << 20
KERNEL = r"""
extern "C" __global__ void mix(const long long *x, long long *y, int count)
{
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < count)
        y[i] = x[i] * 2654435761ll ^ (x[i] >> 7);
}
"""


def checksum(array):
    return common.digest(cupy.asnumpy(array).tobytes())


def compute():
    x = cupy.arange(COUNT, dtype=cupy.int64)
    y = cupy.empty_like(x)
    cupy.RawKernel(KERNEL, "mix")((COUNT // 256,), (256,), (x, y, COUNT))
    say("mix", checksum(y))
    say("sum", int(((x * 3 + 1) % 1009).sum()))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        parts = [cupy.full(1 << 20, number, dtype=cupy.int32)
                 for number in range(16)]
        total = sum(parts)
    stream.synchronize()
    say("parts", checksum(total))
    a = (cupy.arange(512 * 512) % 7).reshape(512, 512).astype(cupy.float32)
    say("product", checksum(a @ a.T))


def default_pool():
    common.version("cupy-cuda13x")
    compute()
    pool = cupy.get_default_memory_pool()
    say("used", pool.total_bytes() > 0)
    pool.free_all_blocks()
    say("left", pool.used_bytes())
    common.preloaded("main")


def async_pool():
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    compute()
    compute()
    common.preloaded("main")


def ipc():
    array = cupy.arange(COUNT, dtype=cupy.int64)
    cupy.cuda.runtime.deviceSynchronize()
    handle = cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr)
    base = array.data.mem.ptr
    done = subprocess.run(
        [sys.executable, __file__, "ipc_peer", bytes(handle).hex(),
         str(array.data.ptr - base)], timeout=60, check=False)
    say("peer", done.returncode)
    say("here", checksum(array))
    common.preloaded("exporter")


def ipc_peer(handle, offset):
    address = cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(handle))
    memory = cupy.cuda.UnownedMemory(address, COUNT * 8 + int(offset), None)
    array = cupy.ndarray((COUNT,), cupy.int64,
                         cupy.cuda.MemoryPointer(memory, int(offset)))
    say("there", checksum(array))
    array *= 5
    cupy.cuda.runtime.deviceSynchronize()
    cupy.cuda.runtime.ipcCloseMemHandle(address)
    common.preloaded("importer")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
