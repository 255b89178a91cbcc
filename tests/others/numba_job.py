#!/usr/bin/env python3
"""A kernel of numba-cuda."""

import sys

import common

try:
    import numpy
    # numba-cuda 0.30 names what NumPy 2.5 has no more.
    for old, new in (("row_stack", "vstack"), ("in1d", "isin"),
                     ("trapz", "trapezoid")):
        if not hasattr(numpy, old):
            setattr(numpy, old, lambda *arguments, call=getattr(numpy, new):
                    call(*arguments))
    from numba import cuda
except (ImportError, AttributeError) as missing:
    print(f"not here: {missing}")
    sys.exit(common.NOT_HERE)


@cuda.jit
def triple(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * 3 + i


def main():
    common.version("numba", "numba-cuda")
    x = numpy.arange(5_000_000, dtype=numpy.int64)
    source = cuda.to_device(x)
    target = cuda.device_array_like(source)
    triple[(x.size + 255) // 256, 256](source, target)
    got = target.copy_to_host()
    common.demand("right", ((got == x * 4).all()))
    common.say("bytes", common.digest(got.tobytes()))
    common.preloaded("main")


if __name__ == "__main__":
    main()
