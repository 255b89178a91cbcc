#!/usr/bin/env python3
"""What the figures were measured on, in a few lines."""
import ctypes
import os
import platform
import re
import subprocess


def first_match(path, pattern):
    try:
        with open(path, encoding='utf-8') as text:
            match = re.search(pattern, text.read(), re.MULTILINE)
    except OSError:
        return None
    return match and match.group(1).strip()


def gpu():
    """The GPU and the CUDA version of its driver."""
    if not os.environ.get('BENCH_REAL'):
        return 'simulated driver'
    cuda = ctypes.CDLL('libcuda.so.1')
    version = ctypes.c_int()
    name = ctypes.create_string_buffer(100)
    if cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(version)) or \
            cuda.cuDeviceGetName(name, 100, 0):
        return 'no GPU'
    driver = first_match('/proc/driver/nvidia/version',
                         r'Kernel Module\s+(?:for \S+\s+)?(\S+)')
    return (f'{name.value.decode()}, driver {driver}, CUDA '
            f'{version.value // 1000}.{version.value % 1000 // 10}')


def compiler():
    out = subprocess.run(['cc', '--version'], capture_output=True, text=True,
                         check=False).stdout
    return out.splitlines()[0] if out else 'unknown compiler'


def main():
    cpu = first_match('/proc/cpuinfo', r'^model name\s*:(.*)$')
    print(f'{len(os.sched_getaffinity(0))} cores, {platform.machine()}, '
          f'{cpu or "unknown"}')
    print(f'{platform.system()} {platform.release()}, '
          f'{" ".join(platform.libc_ver())}, {compiler()}')
    print(f'{gpu()}; UCX {os.environ.get("BENCH_UCX", "unknown")}')
    print(f'load {os.getloadavg()[0]:.1f}')


if __name__ == '__main__':
    main()
