#!/usr/bin/env python3
"""NCCL beside vmmlane: all-reduce over two GPUs, with and without the shim.

Two processes, one GPU each, tensors in PyTorch's expandable segments. Every
sum is compared with the one that is known, and the results of the run with the
shim with those of the run without. Exit code 77 where there are not two GPUs.
"""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20
SIZES = [4096, MIB, 64 * MIB, 512 * MIB]


def rank_main(options):
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(options.rank)
    dist.init_process_group("nccl", rank=options.rank, world_size=2,
                            init_method=f"tcp://127.0.0.1:{options.port}")
    wrong = 0
    for number, size in enumerate(SIZES):
        index = torch.arange(size // 8, dtype=torch.int64, device="cuda")
        tensor = index * (options.rank + 1) + number
        dist.all_reduce(tensor)
        wrong += int((tensor != index * 3 + 2 * number).sum())
        floats = torch.sin(index.float() + options.rank)
        dist.all_reduce(floats)
        digest = int(floats.view(torch.int32).to(torch.int64).sum())
        print(f"nccl rank {options.rank} {size} sum {digest}", flush=True)
        del tensor, floats, index
        torch.cuda.empty_cache()
    dist.destroy_process_group()
    print(f"nccl rank {options.rank} wrong {wrong}", flush=True)
    return 1 if wrong else 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(shim, timeout):
    env = dict(os.environ,
               PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    env.pop("LD_PRELOAD", None)
    if shim:
        env["LD_PRELOAD"] = str(Path(shim).resolve(strict=True))
    port = free_port()
    ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank),
                               "--port", str(port)], env=env, text=True,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
             for rank in range(2)]
    texts, codes = [], []
    for process in ranks:
        try:
            texts.append(process.communicate(timeout=timeout)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            texts.append(process.communicate()[0] + "timeout\n")
        codes.append(process.returncode)
    lines = [line for text in texts for line in text.splitlines()]
    return codes, sorted(l for l in lines if l.startswith("nccl ")), lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", help="libvmmlane.so to preload")
    parser.add_argument("--timeout", type=float, default=90)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.rank is not None:
        return rank_main(options)
    import torch
    if torch.cuda.device_count() < 2:
        return 77
    plain_codes, plain, plain_lines = run(None, options.timeout)
    codes, with_shim, lines = run(options.shim, options.timeout)
    good = plain_codes == codes == [0, 0] and plain == with_shim
    if not good:
        print(*plain_lines[-20:], *lines[-20:], sep="\n")
    warned = [line for line in lines if line.startswith("vmmlane[")]
    print(*warned, sep="\n", end="\n" if warned else "")
    print(f"{'ok' if good else 'FAIL'} all-reduce of {len(SIZES)} sizes, "
          f"{len(with_shim)} results equal with and without vmmlane")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
