"""What tests use of PyTorch, on the simulated driver.

Device tensors lie where PyTorch's allocator would put them: with expandable
segments in chunks of 2 MiB (tensors below 1 MiB) or 20 MiB, mapped where a
tensor needs them and unmapped by empty_cache() where none lies; else in
cudaMalloc segments. What is computed is computed by NumPy. NIXL up to 1.3
imports torch in any case, so nothing happens before the first tensor.
"""

import ctypes
import os
import sys
import threading

import numpy

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cuda as _driver_api  # noqa: E402

__version__ = "standin"
MIB = 1 << 20
uint8 = numpy.uint8
int64 = numpy.int64


class Segment:
    """A range of addresses and what lies in it, by offset."""

    def __init__(self, base, size):
        self.base = base
        self.size = size
        self.blocks = {}

    def place(self, size):
        """The lowest gap that is large enough, or None."""
        at = 0
        for offset, length in sorted(self.blocks.items()):
            if offset - at >= size:
                break
            at = offset + length
        return at if at + size <= self.size else None


class Expandable(Segment):
    """A reservation in which chunks are mapped where tensors lie."""

    def __init__(self, driver, chunk):
        size = driver.total_memory() * 9 // 8 // chunk * chunk
        base = ctypes.c_uint64()
        driver("cuMemAddressReserve", ctypes.byref(base), size, 0, 0, 0)
        super().__init__(base.value, size)
        self.driver = driver
        self.chunk = chunk
        self.handles = {}

    def chunks_of(self, offset, size):
        return range(offset // self.chunk,
                     (offset + size - 1) // self.chunk + 1)

    def back(self, offset, size):
        missing = [n for n in self.chunks_of(offset, size)
                   if n not in self.handles]
        for number in missing:
            properties = _driver_api.Properties(
                _driver_api.PINNED, _driver_api.POSIX_FD,
                _driver_api.Location(_driver_api.DEVICE, 0))
            handle = ctypes.c_uint64()
            self.driver("cuMemCreate", ctypes.byref(handle), self.chunk,
                        ctypes.byref(properties), 0)
            self.driver("cuMemMap", self.base + number * self.chunk,
                        self.chunk, 0, handle, 0)
            self.handles[number] = handle
        access = _driver_api.Access(
            _driver_api.Location(_driver_api.DEVICE, 0),
            _driver_api.READ_WRITE)
        for number in missing:
            self.driver("cuMemSetAccess", self.base + number * self.chunk,
                        self.chunk, ctypes.byref(access), 1)

    def trim(self):
        used = {n for block in self.blocks.items()
                for n in self.chunks_of(*block)}
        for number in sorted(set(self.handles) - used):
            self.driver("cuMemUnmap", self.base + number * self.chunk,
                        self.chunk)
            self.driver("cuMemRelease", self.handles.pop(number))


class Allocator:
    def __init__(self):
        self.lock = threading.RLock()
        self.driver = _driver_api.Driver()
        self.expandable = "expandable_segments:True" in \
            os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        self.pools = {True: [], False: []}  # by: is it below 1 MiB?
        if self.expandable:
            self.pools = {True: [Expandable(self.driver, 2 * MIB)],
                          False: [Expandable(self.driver, 20 * MIB)]}

    def current(self):
        """Contexts are a thread's own."""
        context = ctypes.c_void_p()
        self.driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.driver("cuCtxSetCurrent", context)

    def allocate(self, size):
        size += -size % 512
        small = size < MIB
        with self.lock:
            self.current()
            for segment in self.pools[small]:
                offset = segment.place(size)
                if offset is not None:
                    break
            else:
                segment, offset = self.new_segment(size, small), 0
            segment.blocks[offset] = size
            if self.expandable:
                segment.back(offset, size)
            return segment, offset

    def new_segment(self, size, small):
        if self.expandable:
            raise MemoryError("the reservation is full")
        length = 2 * MIB if small else 20 * MIB if size < 10 * MIB else \
            size + -size % (2 * MIB)
        address = ctypes.c_uint64()
        self.driver("cuMemAlloc_v2", ctypes.byref(address), length)
        self.pools[small].append(Segment(address.value, length))
        return self.pools[small][-1]

    def free(self, segment, offset):
        with self.lock:
            del segment.blocks[offset]

    def trim(self):
        with self.lock:
            self.current()
            for segments in self.pools.values():
                for segment in list(segments):
                    if self.expandable:
                        segment.trim()
                    elif not segment.blocks:
                        self.driver("cuMemFree_v2", segment.base)
                        segments.remove(segment)


_allocator = None
_once = threading.Lock()


def allocator():
    global _allocator
    with _once:
        if _allocator is None:
            _allocator = Allocator()
        return _allocator


class Tensor:
    """Device memory, or the NumPy array of an intermediate result."""

    def __init__(self, array=None, size=None):
        self.array = array
        self.block = allocator().allocate(size) if array is None else None
        self.size = size

    def __del__(self):
        if getattr(self, "block", None):
            _allocator.free(*self.block)

    def values(self):
        if self.array is not None:
            return self.array
        allocator().current()
        return numpy.frombuffer(
            _allocator.driver.read(self.data_ptr(), self.size), numpy.uint8)

    def copy_(self, other):
        allocator().current()
        _allocator.driver.write(self.data_ptr(), other.values().tobytes())
        return self

    def data_ptr(self):
        segment, offset = self.block
        return segment.base + offset

    def numel(self):
        return self.size if self.array is None else self.array.size

    def get_device(self):
        return 0

    def view(self, kind):
        return Tensor(self.array.view(kind))

    def sum(self):
        return self.values().sum()

    def _with(self, other, operation):
        other = other.values() if isinstance(other, Tensor) else other
        with numpy.errstate(over="ignore"):
            return Tensor(operation(self.values(), other))

    def __add__(self, other):
        return self._with(other, numpy.add)

    def __mul__(self, other):
        return self._with(other, numpy.multiply)

    def __xor__(self, other):
        return self._with(other, numpy.bitwise_xor)

    def __rshift__(self, other):
        return self._with(other, numpy.right_shift)

    def __ne__(self, other):
        return self._with(other, numpy.not_equal)


def empty(size, dtype, device):
    assert dtype is uint8 and device == "cuda"
    return Tensor(size=size)


def zeros(size, device):
    return empty(size, uint8, device).copy_(
        Tensor(numpy.zeros(size, numpy.uint8)))


def arange(count, dtype, device):
    return Tensor(numpy.arange(count, dtype=dtype))


def equal(one, other):
    return bool(numpy.array_equal(one.values(), other.values()))


class cuda:  # noqa: N801: the name is PyTorch's
    @staticmethod
    def is_available():
        return True

    @staticmethod
    def synchronize():
        """Each copy of the stand-in has ended when it returns."""

    @staticmethod
    def empty_cache():
        allocator().trim()

    @staticmethod
    def get_device_name():
        return "simulated GPU"

    @staticmethod
    def mem_get_info():
        allocator().current()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _allocator.driver("cuMemGetInfo_v2", ctypes.byref(free),
                          ctypes.byref(total))
        return free.value, total.value

    @staticmethod
    def memory_snapshot():
        return [{"is_expandable": allocator().expandable}]
