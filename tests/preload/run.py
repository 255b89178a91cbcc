#!/usr/bin/env python3
"""Run a program with the shim preloaded.

Usage: run.py [options] PROGRAM [ARGUMENT ...]

  --preload LIBRARY    what goes into LD_PRELOAD, behind what is there already;
                       may be given several times
  --libraries FOLDER   goes into LD_LIBRARY_PATH
  --environment NAME=VALUE
                       a variable of the program
  --empty-environment  nothing else is in its environment
  --same-as-without    run it without the shim too: output, error output and
                       exit code must be equal
  --silent             there must be no error output
  --exit-code NUMBER   the program's, 0 by default

Exits 0 when all that holds, 77 when the program does, else 1.

A cross build's exe_wrapper (MESON_EXE_WRAPPER) is used, and is told the
program's environment by -E where it is QEMU: its own loader must not see it.
"""

import argparse
import os
import shlex
import subprocess
import sys


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument('--preload', action='append', default=[])
    parser.add_argument('--libraries')
    parser.add_argument('--environment', action='append', default=[])
    parser.add_argument('--empty-environment', action='store_true')
    parser.add_argument('--same-as-without', action='store_true')
    parser.add_argument('--silent', action='store_true')
    parser.add_argument('--exit-code', type=int, default=0)
    parser.add_argument('command', nargs=argparse.REMAINDER)
    return parser.parse_args()


def program_environment(options, preload):
    environment = dict(pair.split('=', 1) for pair in options.environment)
    if options.libraries:
        environment['LD_LIBRARY_PATH'] = options.libraries
    if preload:
        # Behind what is there: a sanitizer's runtime has to come first.
        before = [os.environ['LD_PRELOAD']] if 'LD_PRELOAD' in os.environ \
            else []
        environment['LD_PRELOAD'] = ':'.join(before + options.preload)
    return environment


def run(options, preload, capture):
    environment = program_environment(options, preload)
    wrapper = shlex.split(os.environ.get('MESON_EXE_WRAPPER', ''))
    inherited = {} if options.empty_environment else dict(os.environ)
    if wrapper and 'qemu' in wrapper[0]:
        for name in list(environment):
            # What -E sets cannot hold a ','; the rest is passed on.
            if name.startswith('LD_'):
                wrapper += ['-E', f'{name}={environment.pop(name)}']
    inherited.update(environment)
    command = wrapper + options.command
    return subprocess.run(command, env=inherited, check=False,
                          stdout=subprocess.PIPE if capture else None,
                          stderr=subprocess.PIPE if capture else None)


def show(title, result):
    print(f'{title}: exit code {result.returncode}')
    for text in result.stdout, result.stderr:
        for line in text.decode(errors='replace').splitlines()[:200]:
            print(f'    {line}')


def main():
    options = arguments()
    options.preload = [os.path.abspath(path) for path in options.preload]
    compare = options.same_as_without or options.silent
    result = run(options, True, compare)
    problems = []
    if options.same_as_without:
        plain = run(options, False, True)
        if (result.stdout, result.stderr, result.returncode) != \
                (plain.stdout, plain.stderr, plain.returncode):
            problems.append('not the same as without the shim')
            show('without the shim', plain)
    if options.silent and result.stderr:
        problems.append('error output')
    if result.returncode == 77:
        sys.exit(77)
    if result.returncode != options.exit_code:
        problems.append(f'exit code {result.returncode}')
    if compare:
        show('with the shim', result)
    for problem in problems:
        print('FAIL:', problem)
    sys.exit(1 if problems else 0)


if __name__ == '__main__':
    main()
