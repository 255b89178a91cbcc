"""Device memory by ctypes: the CUDA driver API without a CUDA package."""

import ctypes
import struct
from pathlib import Path

POSIX_FD = 1
READ_WRITE = 3
DEVICE = 1
PINNED = 1


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Flags(ctypes.Structure):
    _fields_ = [("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int),
                ("location", Location), ("win32", ctypes.c_void_p),
                ("flags", Flags)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def symbol_offset(path, name):
    """Of a function in an ELF file of 64 bits, by its table of symbols."""
    data = Path(path).read_bytes()
    headers, = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3a)
    sections = [struct.unpack_from("<IIQQQQII", data, headers + i * size)
                for i in range(count)]
    for _, kind, _, _, offset, length, link, _ in sections:
        if kind != 11:  # SHT_DYNSYM
            continue
        names = sections[link][4]
        for at in range(offset, offset + length, 24):
            text, _, _, index, value, _ = \
                struct.unpack_from("<IBBHQQ", data, at)
            end = data.index(b"\0", names + text)
            if index != 0 and data[names + text:end] == name.encode():
                return value
    raise RuntimeError(f"{path} has no {name}")


def loaded(library):
    """Where a library lies, and its file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        if len(words) == 6 and library in words[5] and words[2] == "00000000":
            return int(words[0].split("-")[0], 16), words[5]
    raise RuntimeError(f"{library} is not loaded")


class Driver:
    """libcuda.so.1, reached through dlsym as a framework reaches it."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name, *arguments):
        self.call(getattr(self.library, name), name, arguments)

    def unseen(self, name, *arguments):
        """Past every hook: no dlsym, no resolver of the driver."""
        base, path = loaded("libcuda.so")
        function = ctypes.CFUNCTYPE(ctypes.c_int)(
            base + symbol_offset(path, name))
        function.argtypes = None
        self.call(function, name, arguments)

    @staticmethod
    def call(function, name, arguments):
        converted = [ctypes.c_size_t(a) if isinstance(a, int) else a
                     for a in arguments]
        result = function(*converted)
        if result != 0:
            raise RuntimeError(f"{name}: CUresult {result}")

    def total_memory(self):
        total = ctypes.c_size_t()
        self("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
        return total.value

    def write(self, address, data):
        self("cuMemcpyHtoD_v2", address, ctypes.c_char_p(data), len(data))

    def read(self, address, length):
        data = ctypes.create_string_buffer(length)
        self("cuMemcpyDtoH_v2", data, address, length)
        return data.raw


class Plain:
    """cuMemAlloc memory."""

    def __init__(self, driver, chunk, size):
        self.driver = driver
        address = ctypes.c_uint64()
        driver("cuMemAlloc_v2", ctypes.byref(address), size)
        self.base = address.value

    def empty(self):
        """Plain memory is kept between rounds."""

    def back(self, size):
        """It is there already."""


class Expandable:
    """A segment as PyTorch's allocator makes it: chunks in a reservation."""

    def __init__(self, driver, chunk, size, unseen=False):
        self.driver = driver
        self.mapping = driver.unseen if unseen else driver
        self.chunk = chunk
        self.handles = []
        address = ctypes.c_uint64()
        reserve = driver.total_memory() * 9 // 8
        reserve += -reserve % (2 << 20)
        driver("cuMemAddressReserve", ctypes.byref(address), reserve, 0, 0, 0)
        self.base = address.value

    def back(self, size):
        """Maps chunks until `size` bytes are backed."""
        properties = Properties(PINNED, POSIX_FD, Location(DEVICE, 0))
        access = Access(Location(DEVICE, 0), READ_WRITE)
        first = len(self.handles)
        while len(self.handles) * self.chunk < size:
            handle = ctypes.c_uint64()
            self.driver("cuMemCreate", ctypes.byref(handle), self.chunk,
                        ctypes.byref(properties), 0)
            self.mapping("cuMemMap",
                         self.base + len(self.handles) * self.chunk,
                         self.chunk, 0, handle, 0)
            self.handles.append(handle)
        if len(self.handles) > first:
            self.mapping("cuMemSetAccess", self.base + first * self.chunk,
                         (len(self.handles) - first) * self.chunk,
                         ctypes.byref(access), 1)

    def empty(self):
        """What empty_cache() does: unmaps and releases every chunk."""
        for i, handle in enumerate(self.handles):
            self.mapping("cuMemUnmap", self.base + i * self.chunk, self.chunk)
            self.driver("cuMemRelease", handle)
        self.handles = []
