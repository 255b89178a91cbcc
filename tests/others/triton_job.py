#!/usr/bin/env python3
"""Triton kernels, compiled anew, on PyTorch's memory."""

import sys

import common

try:
    import torch
    import triton
    import triton.language as tl
except ImportError as missing:
    print(f"not here: {missing}")
    sys.exit(common.NOT_HERE)


@triton.jit
def axpy(x, y, out, count, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside) * factor + tl.load(y + at,
                                                            mask=inside)
    tl.store(out + at, value, mask=inside)


@triton.jit
def row_sums(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * width + at, mask=at < width, other=0)
    tl.store(out + row, tl.sum(values, axis=0))


def main():
    common.version("triton")
    count = 20_000_003
    x = torch.arange(count, dtype=torch.int32, device="cuda")
    y = x % 1013
    out = torch.empty_like(x)
    axpy[(triton.cdiv(count, 1024),)](x, y, out, count, 3, BLOCK=1024)
    common.demand("axpy", torch.equal(out, x * 3 + y))
    common.say("sum", int(out.to(torch.int64).sum()))
    rows = x[:1000 * 1000].view(1000, 1000)
    sums = torch.empty(1000, dtype=torch.int32, device="cuda")
    row_sums[(1000,)](rows, sums, 1000, BLOCK=1024)
    common.say("rows", common.digest(sums.cpu().numpy().tobytes()))
    common.preloaded("main")


if __name__ == "__main__":
    main()
