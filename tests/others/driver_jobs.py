#!/usr/bin/env python3
"""Jobs on cuda-python's driver bindings, two processes each.

They need no kernel and no runtime library, so that they run on the simulated
driver too.
"""

import ctypes
import os
import socket
import subprocess
import sys

import common
from common import demand, say

try:
    from cuda.bindings import driver as cu
except ImportError as missing:
    print(f"not here: {missing}")
    sys.exit(common.NOT_HERE)

CHUNK = 2 << 20
COUNT = 4
SIZE = COUNT * CHUNK
POINTER_SIZE = 64  # CUmemPoolPtrExportData
POSIX = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
NONE = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
ATTRIBUTE = cu.CUpointer_attribute


def must(answer):
    """The outputs of a call that succeeded: one, several or None."""
    result, *values = answer
    if result != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{result}")
    return values[0] if len(values) == 1 else values or None


def result_of(answer):
    return int(answer[0])


def open_device():
    must(cu.cuInit(0))
    device = must(cu.cuDeviceGet(0))
    must(cu.cuCtxSetCurrent(must(cu.cuDevicePrimaryCtxRetain(device))))
    return device


def write(address, data):
    must(cu.cuMemcpyHtoD(address, data, len(data)))


def read(address, length):
    data = bytearray(length)
    must(cu.cuMemcpyDtoH((ctypes.c_char * length).from_buffer(data), address,
                         length))
    return bytes(data)


def location():
    where = cu.CUmemLocation()
    where.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    where.id = 0
    return where


def properties(handle_type):
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = handle_type
    wanted.location = location()
    return wanted


def allow(address, length):
    access = cu.CUmemAccessDesc()
    access.location = location()
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    must(cu.cuMemSetAccess(address, length, [access], 1))


def reserve(length):
    return int(must(cu.cuMemAddressReserve(length, 0, 0, 0)))


class Segment:
    """Chunks side by side in a reservation that is larger."""

    def __init__(self, handle_type):
        self.base = reserve(2 * SIZE)
        self.handles = []
        for number in range(COUNT):
            handle = must(cu.cuMemCreate(CHUNK, properties(handle_type), 0))
            must(cu.cuMemMap(self.base + number * CHUNK, CHUNK, 0, handle, 0))
            self.handles.append(handle)
        allow(self.base, SIZE)

    def describe(self):
        """What the driver answers about it."""
        for number, handle in enumerate(self.handles):
            at = self.base + number * CHUNK + 4096
            base, size = must(cu.cuMemGetAddressRange(at))
            say(f"range{number}", f"{int(base) - self.base} {size}")
            held = must(cu.cuMemRetainAllocationHandle(at))
            told = must(cu.cuMemGetAllocationPropertiesFromHandle(held))
            say(f"properties{number}",
                f"{int(told.type)} {int(told.requestedHandleTypes)} "
                f"{told.allocFlags.compressionType} "
                f"{told.allocFlags.gpuDirectRDMACapable} "
                f"{told.allocFlags.usage}")
            say(f"same{number}", int(held) == int(handle))
            must(cu.cuMemRelease(held))
            for name in ("IS_LEGACY_CUDA_IPC_CAPABLE", "ALLOWED_HANDLE_TYPES",
                         "MEMORY_TYPE", "RANGE_SIZE", "MAPPED",
                         "IS_GPU_DIRECT_RDMA_CAPABLE"):
                attribute = getattr(ATTRIBUTE, f"CU_POINTER_ATTRIBUTE_{name}")
                answer = cu.cuPointerGetAttribute(attribute, at)
                value = answer[1] if result_of(answer) == 0 else None
                say(f"{name}{number}", f"{result_of(answer)} {value}")
        say("legacy", result_of(cu.cuIpcGetMemHandle(self.base)))

    def free(self):
        must(cu.cuMemUnmap(self.base, SIZE))
        for handle in self.handles:
            must(cu.cuMemRelease(handle))
        must(cu.cuMemAddressFree(self.base, 2 * SIZE))


class Peer:
    """The other process of a job, which runs `function` of this file."""

    def __init__(self, function):
        self.channel, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, __file__, function, str(theirs.fileno())],
            pass_fds=[theirs.fileno()])
        theirs.close()

    def end(self):
        self.channel.close()
        say("peer", self.process.wait(timeout=60))


def send(channel, data, descriptors=()):
    socket.send_fds(channel, [len(data).to_bytes(4, "little") + data],
                    list(descriptors))


def receive(channel, count=0):
    """A message and its descriptors; messages are short."""
    data, descriptors, _, _ = socket.recv_fds(channel, 4096, count)
    if len(data) < 4 or len(data) != 4 + int.from_bytes(data[:4], "little"):
        raise RuntimeError(f"the other side sent {len(data)} bytes")
    return data[4:], descriptors


def vmm():
    """VMM memory as it is, then shared by descriptors, read and written."""
    open_device()
    common.version("cuda-bindings")
    common.preloaded("exporter")
    segment = Segment(POSIX)
    segment.describe()
    write(segment.base, common.pattern(1, SIZE))
    peer = Peer("vmm_peer")
    fds = [int(must(cu.cuMemExportToShareableHandle(handle, POSIX, 0)))
           for handle in segment.handles]
    send(peer.channel, b"memory", fds)
    for fd in fds:
        os.close(fd)
    say("told", receive(peer.channel)[0])
    demand("written", read(segment.base, SIZE) == common.pattern(2, SIZE))
    peer.end()
    segment.free()


def vmm_peer(channel):
    open_device()
    common.preloaded("importer")
    _, fds = receive(channel, COUNT)
    base = reserve(SIZE)
    handles = []
    for number, fd in enumerate(fds):
        handles.append(must(cu.cuMemImportFromShareableHandle(fd, POSIX)))
        os.close(fd)
        must(cu.cuMemMap(base + number * CHUNK, CHUNK, 0, handles[-1], 0))
    allow(base, SIZE)
    for number in range(COUNT):
        begin, size = must(cu.cuMemGetAddressRange(base + number * CHUNK))
        say(f"imported{number}", f"{int(begin) - base} {size}")
    demand("read", read(base, SIZE) == common.pattern(1, SIZE))
    write(base, common.pattern(2, SIZE))
    must(cu.cuCtxSynchronize())
    must(cu.cuMemUnmap(base, SIZE))
    for handle in handles:
        must(cu.cuMemRelease(handle))
    must(cu.cuMemAddressFree(base, SIZE))
    send(channel, b"written")


def untyped():
    """Memory of no handle type: nothing of the upgrade is to be seen."""
    open_device()
    common.preloaded("main")
    segment = Segment(NONE)
    segment.describe()
    say("export", result_of(cu.cuMemExportToShareableHandle(
        segment.handles[0], POSIX, 0)))
    write(segment.base, common.pattern(3, SIZE))
    say("bytes", common.digest(read(segment.base, SIZE)))
    # The same addresses, backed anew, as a sleeping engine does it.
    must(cu.cuMemUnmap(segment.base, CHUNK))
    must(cu.cuMemRelease(segment.handles[0]))
    segment.handles[0] = must(cu.cuMemCreate(CHUNK, properties(NONE), 0))
    must(cu.cuMemMap(segment.base, CHUNK, 0, segment.handles[0], 0))
    allow(segment.base, CHUNK)
    write(segment.base, common.pattern(4, CHUNK))
    say("rest", common.digest(read(segment.base + CHUNK, SIZE - CHUNK)))
    segment.describe()
    segment.free()


def pool():
    """A pool's memory shared by its descriptor."""
    open_device()
    common.preloaded("exporter")
    wanted = cu.CUmemPoolProps()
    wanted.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = POSIX
    wanted.location = location()
    made = must(cu.cuMemPoolCreate(wanted))
    stream = must(cu.cuStreamCreate(0))
    address = must(cu.cuMemAllocFromPoolAsync(SIZE, made, stream))
    must(cu.cuStreamSynchronize(stream))
    say("context", result_of(cu.cuPointerGetAttribute(
        ATTRIBUTE.CU_POINTER_ATTRIBUTE_CONTEXT, address)))
    say("size", must(cu.cuMemGetAddressRange(address))[1])
    write(address, common.pattern(5, SIZE))
    peer = Peer("pool_peer")
    fd = int(must(cu.cuMemPoolExportToShareableHandle(made, POSIX, 0)))
    data = must(cu.cuMemPoolExportPointer(address))
    send(peer.channel, ctypes.string_at(data.getPtr(), POINTER_SIZE), [fd])
    os.close(fd)
    say("told", receive(peer.channel)[0])
    demand("written", read(address, SIZE) == common.pattern(6, SIZE))
    peer.end()
    must(cu.cuMemFreeAsync(address, stream))
    must(cu.cuStreamSynchronize(stream))
    must(cu.cuStreamDestroy(stream))
    must(cu.cuMemPoolDestroy(made))


def pool_peer(channel):
    open_device()
    common.preloaded("importer")
    data, (fd,) = receive(channel, 1)
    made = must(cu.cuMemPoolImportFromShareableHandle(fd, POSIX, 0))
    access = cu.CUmemAccessDesc()
    access.location = location()
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    must(cu.cuMemPoolSetAccess(made, [access], 1))
    pointer = cu.CUmemPoolPtrExportData()
    ctypes.memmove(pointer.getPtr(), data, POINTER_SIZE)
    address = must(cu.cuMemPoolImportPointer(made, pointer))
    demand("read", read(address, SIZE) == common.pattern(5, SIZE))
    write(address, common.pattern(6, SIZE))
    must(cu.cuCtxSynchronize())
    must(cu.cuMemFree(address))
    must(cu.cuMemPoolDestroy(made))
    send(channel, b"written")


if __name__ == "__main__":
    arguments = [socket.socket(fileno=int(fd)) for fd in sys.argv[2:]]
    globals()[sys.argv[1]](*arguments)
