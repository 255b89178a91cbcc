"""Bench scenarios of tests/ucx, for the parts of scripts/bench.

What the two processes print as "bench NAME key=value ..." comes back as
dictionaries. On the simulated driver the same runs with fewer and smaller
chunks: there only what is counted means something.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests/ucx'))

import pair  # noqa: E402

REAL = bool(os.environ.get('BENCH_REAL'))
SHIM = os.environ.get('BENCH_SHIM')
BUILD = os.environ.get('BENCH_BUILD', str(ROOT / 'build/bench'))
LOGS = Path(os.environ.get('BENCH_LOGS', '.'))
UCX = os.environ.get('BENCH_UCX', '1.22.0')
NOT_RUN = 77
COUNTER = ROOT / 'tests/bench/count_memory.c'

failed = False


def sized(real, simulated):
    return real if REAL else simulated


def side(version, shim=True, counter=None, environment=None):
    try:
        wheel, client = pair.client_of(version, Path(BUILD) / 'ucx-client')
    except pair.SetupError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_RUN)
    return pair.Side(wheel, client, SHIM if shim else None, counter,
                     environment or {})


def build_counter():
    library = Path(BUILD) / f'count-memory-{pair.digest([COUNTER])}.so'
    if not library.exists():
        pair.call(['cc', '-std=gnu11', '-D_GNU_SOURCE', '-O2', *pair.WARNINGS,
                   '-isystem', pair.cuda_include(), '-shared', '-fPIC',
                   COUNTER, '-o', library])
    return library


def value_of(word):
    try:
        return float(word)
    except ValueError:
        return word


def parse(log):
    """The lines that begin with "bench": name, then what they say."""
    rows = []
    for line in log.splitlines():
        if line.startswith('bench '):
            name, *words = line.split()[1:]
            row = {key: value_of(value) for key, value in
                   (word.split('=', 1) for word in words)}
            rows.append({'name': name, **row})
    return rows


def run(scenario, kind, *, shim=True, importer=None, exporter=None,
        version=UCX, timeout=60, sizes='all', **options):
    """One pair; its lines. importer, exporter: their environments."""
    global failed
    counter = options.pop('counter', None)
    arguments = ['--sizes', sizes]
    for name, value in options.items():
        arguments += [f'--{name}'] if value is True else \
            [f'--{name}', str(value)]
    outcome = pair.run_pair(
        side(version, shim, counter, exporter),
        side(version, shim, counter, importer),
        scenario, kind, driver=None if REAL else os.environ.get('BENCH_SIM'),
        timeout=timeout, arguments=arguments)
    rows = parse(outcome.logs[1])
    for row in rows:
        print('bench', *(f'{k}={v}' for k, v in row.items()), flush=True)
    print(f'{scenario} {kind}: {outcome.seconds:.1f} s', file=sys.stderr)
    if outcome.codes != (0, 0) or outcome.wrong_bytes:
        failed = True
        print(f'{scenario} {kind}: exit codes {outcome.codes}',
              file=sys.stderr)
        for role, log in zip(('exporter', 'importer'), outcome.logs):
            for line in log.splitlines()[-12:]:
                print(f'  {role}| {line}', file=sys.stderr)
    return rows


def size_text(size):
    for unit, name in ((1 << 30, 'GiB'), (1 << 20, 'MiB'), (1 << 10, 'KiB')):
        if size >= unit:
            return f'{size / unit:.4g} {name}'
    return f'{size:g} B'


def figure(name, case, value, unit='', must='-'):
    print('figure', name, case, f'{value:.6g}', unit,
          must if REAL or must.startswith('=') else '-', sep='\t', flush=True)


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else float('nan')


def end():
    sys.exit(1 if failed else 0)


def lane_is(row):
    """Only the fast lane is compared."""
    global failed
    good = row.get('lane') == 'cuda_ipc'
    if not good:
        failed = True
        print(f'not on cuda_ipc: {row}', file=sys.stderr)
    return good
