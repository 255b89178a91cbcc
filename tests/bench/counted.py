#!/usr/bin/env python3
"""What bench-cpu counts, against what it must be: nothing that is timed.

counted.py --shim FILE --driver FOLDER PROGRAM ARGUMENT...
"""
import argparse
import os
import subprocess
import sys

import table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--shim', required=True)
    parser.add_argument('--driver', required=True)
    parser.add_argument('program')
    parser.add_argument('arguments', nargs='*')
    arguments = parser.parse_args()
    run = subprocess.run(
        [arguments.program, '--counted', *arguments.arguments],
        env={**os.environ, 'LD_PRELOAD': arguments.shim,
             'LD_LIBRARY_PATH': arguments.driver},
        stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    sys.stdout.write(run.stdout)
    if run.returncode == 77:
        sys.exit(77)
    if run.returncode != 0:
        sys.exit(f'exit status {run.returncode}')
    figures, _ = table.read(
        'part' + line.removeprefix('figure') for line in run.stdout.splitlines()
        if line.startswith('figure\t'))
    with_limit = [f for f in figures if f['must'] != '-']
    missed = [f for f in with_limit if f['verdict'] != 'ok']
    for f in missed:
        print(f"MISSED {f['figure']}, {f['case']}: {f['value']:g} {f['unit']}, "
              f"must be {f['must']}")
    if missed or not with_limit:
        sys.exit(1)


if __name__ == '__main__':
    main()
