"""Checks of the command: each failed one is told, none ends the run."""

import os
import subprocess
import sys

failed = []


def check(what, got, wanted):
    if got != wanted:
        failed.append(what)
        print(f'FAIL {what}\n     got    {got!r}\n     wanted {wanted!r}')
    else:
        print(f'ok   {what}')


def check_in(what, part, whole):
    if part not in whole:
        failed.append(what)
        print(f'FAIL {what}\n     {part!r}\n     is not in {whole!r}')
    else:
        print(f'ok   {what}')


def environment(**changes):
    """Without settings and preloads of the caller's; None takes one away."""
    result = {name: value for name, value in os.environ.items()
              if not name.startswith('VMMLANE') and name != 'LD_PRELOAD'}
    result.update({n: v for n, v in changes.items() if v is not None})
    return result


def run(command, env=None, **options):
    return subprocess.run(command, env=environment() if env is None else env,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False, timeout=60,
                          universal_newlines=True, **options)


def end():
    if failed:
        sys.exit(f'{len(failed)} failed')
