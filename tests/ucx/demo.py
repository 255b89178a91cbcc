#!/usr/bin/env python3
"""The main job as one table: kinds of memory, without and with vmmlane.

Started by scripts/demo. The exporter holds the memory; the importer reads
(GET) and writes (PUT) it; both are unmodified UCX.
"""

import argparse
import sys
from pathlib import Path

import pair

# What the table calls it, scenario, memory specification (memory.c).
SIMULATED = [
    ("cudaMalloc, 64 MiB", "whole", "malloc:64M"),
    ("VMM, 1 chunk of 64 MiB", "whole", "first:64M"),
    ("VMM, 26 chunks of 2 MiB", "whole", "vmm:26x2M"),
    ("VMM, 26 chunks of 4 and 2 MiB", "whole", "vmm:26x4M/2M"),
    ("  parts and chunk borders of it", "windows", "vmm:8x4M/2M"),
]
REAL = [
    ("cudaMalloc, 512 MiB", "whole", "malloc:512M"),
    ("VMM, 1 chunk of 512 MiB", "whole", "first:512M"),
    ("VMM, 26 chunks of 20 MiB", "whole", "vmm:26x20M@512M"),
    ("VMM, 48 chunks of 20 and 2 MiB", "whole", "vmm:48x20M/2M"),
    ("VMM, 256 chunks of 2 MiB", "whole", "vmm:256x2M"),
    ("  parts and chunk borders of 26", "windows", "vmm:26x20M@512M"),
]

NAME, LANE, SPEED, BYTES = 31, 9, 7, 10


def of_operation(outcome, operation):
    return [r for r in outcome.results if r.operation == operation]


def lane_text(results):
    lanes = {r.lane if r.status == "OK" else "failed" for r in results}
    return "/".join(sorted(lanes)) if lanes else "failed"


def speed_text(results):
    speeds = [r.gbps for r in results if r.gbps > 0]
    return f"{speeds[0]:.2f}" if speeds else "-"


def bytes_text(outcome):
    if outcome.timed_out:
        return "timeout"
    if outcome.wrong_bytes:
        return "WRONG"
    done = [r for r in outcome.results if r.bytes == "ok"]
    if not outcome.results or len(done) != len(outcome.results):
        return "failed"
    return f"right ({len(done)})"


def half(outcome):
    """The cells of one run: GET lane and speed, PUT lane and speed, bytes."""
    cells = []
    for operation in ("get", "put"):
        results = of_operation(outcome, operation)
        cells.append(f"{lane_text(results):{LANE}.{LANE}}")
        cells.append(f"{speed_text(results):>{SPEED}}")
    cells.append(f"{bytes_text(outcome):{BYTES}}")
    return " ".join(cells)


def heading():
    half_names = f"{'GET':{LANE}} {'GB/s':>{SPEED}} {'PUT':{LANE}} " \
                 f"{'GB/s':>{SPEED}} {'bytes':{BYTES}}"
    width = len(half_names)
    print(f"{'':{NAME}} | {'without vmmlane':{width}} | with vmmlane")
    print(f"{'memory of the exporter':{NAME}} | {half_names} | {half_names}")
    print(f"{'-' * NAME}-+-{'-' * width}-+-{'-' * width}")


def good(outcome):
    return outcome.codes == (0, 0) and outcome.results and \
        all(r.bytes == "ok" and r.lane == "cuda_ipc" for r in outcome.results)


def run(side, scenario, kind, driver):
    return pair.run_pair(side, side, scenario, kind, driver=driver,
                         timeout=120, arguments=["--reps", "5"])


def table(version, shim, driver, build):
    """Prints the table of one UCX; true if vmmlane served every row."""
    wheel, client = pair.client_of(version, build)
    served = True
    print(f"\nUCX {version}, unmodified, from its wheel\n")
    heading()
    for name, scenario, kind in SIMULATED if driver else REAL:
        print(f"{name:{NAME}} | ", end="", flush=True)
        plain = run(pair.Side(wheel, client), scenario, kind, driver)
        print(f"{half(plain)} | ", end="", flush=True)
        shimmed = run(pair.Side(wheel, client, shim=shim), scenario, kind, driver)
        print(half(shimmed), flush=True)
        served &= bool(good(shimmed))
    return served


def choose_driver(options):
    """None for the machine's own driver, else the simulated one's folder."""
    real = pair.real_driver()
    if real and not options.simulated:
        print(f"demo: NVIDIA driver found ({real}): this is the GPU")
        return None
    why = "asked for" if real else "no NVIDIA driver on this machine"
    print(f"demo: {why}: this is the SIMULATED driver. Lanes and bytes are "
          "as on a GPU;\ndemo: GB/s are copies in host memory and say "
          "nothing of a GPU's speed.")
    return Path(options.simulated_driver).resolve(strict=True)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--simulated-driver", required=True)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--build", required=True)
    parser.add_argument("--ucx", help="version of the wheel")
    parser.add_argument("--all", action="store_true")
    return parser.parse_args()


def main():
    options = parse_options()
    versions = pair.wheel_versions()
    if options.ucx:
        versions = [options.ucx]
    elif not options.all:
        versions = versions[-1:]
    try:
        driver = choose_driver(options)
        if not versions:
            raise pair.SetupError("no UCX wheel: run scripts/setup --ucx")
        shim = Path(options.shim).resolve(strict=True)
        served = [table(version, shim, driver, options.build)
                  for version in versions]
    except (pair.SetupError, OSError) as error:
        print(f"demo: {error}")
        return 1
    print("\nRight (n): each byte of n transfers was compared. "
          "Emulation: UCX copies through\nhost memory and its socket lane. "
          "Failed: UCX refuses the key or the transfer.")
    if not all(served):
        print("demo: with vmmlane not every row ran over cuda_ipc with right "
              "bytes.")
        return 1
    print("demo: with vmmlane every row ran over cuda_ipc, every byte right.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
