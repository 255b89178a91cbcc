#!/usr/bin/env python3
"""vmmlane run, as a user meets it.

Usage: run_test.py VMMLANE LIBVMMLANE
"""

import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from check import check, check_in, end, environment, run

VMMLANE, LIBRARY = (os.path.realpath(path) for path in sys.argv[1:3])

# "own" is how often the shim is mapped in the shell, "child" in what it starts.
MAPPED = ('own=$(grep -c libvmmlane.so /proc/$$/maps);'
          ' child=$(grep -c libvmmlane.so /proc/self/maps);'
          ' [ "$own" -gt 0 ] && own=yes; [ "$child" -gt 0 ] && child=yes;'
          ' echo "$own $child [$LD_PRELOAD]"')


def vmmlane(*arguments, **options):
    return run([VMMLANE, 'run', *arguments], **options)


def shell(script, *arguments, **options):
    return vmmlane(*arguments, '--', 'sh', '-c', script, **options)


def exit_codes():
    check('true', vmmlane('--', 'true').returncode, 0)
    check('exit status', shell('exit 42').returncode, 42)
    check('without --', vmmlane('sh', '-c', 'exit 7').returncode, 7)
    check('a signal', shell('kill -TERM $$').returncode, -signal.SIGTERM)
    result = vmmlane('--', './no-such-program')
    check('not found', result.returncode, 127)
    check_in('not found: said', 'no-such-program: No such file', result.stderr)
    check('not executable', vmmlane('--', '/').returncode, 126)
    check('no program', vmmlane().returncode, 125)
    check('unknown option', vmmlane('--frobnicate', 'true').returncode, 125)
    check('unknown subcommand', run([VMMLANE, 'walk']).returncode, 125)
    check('no subcommand', run([VMMLANE]).returncode, 125)
    check("the program's options are its own",
          vmmlane('echo', '--strict', '--log').stdout, '--strict --log\n')


def the_same_process():
    command = [VMMLANE, 'run', '--', 'sh', '-c',
               'trap "exit 9" TERM; echo $$; while :; do sleep 0.05; done']
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE,
                          universal_newlines=True) as job:
        check('pid', job.stdout.readline(), f'{job.pid}\n')
        job.send_signal(signal.SIGTERM)
        check('a signal from outside', job.wait(60), 9)


def preload():
    check('alone', shell(MAPPED).stdout, f'yes yes [{LIBRARY}]\n')
    other = environment(LD_PRELOAD='libm.so.6')
    check('behind another', shell(MAPPED, env=other).stdout,
          f'yes yes [libm.so.6:{LIBRARY}]\n')
    twice = environment(LD_PRELOAD=f'{LIBRARY} libm.so.6')
    check('not twice', shell(MAPPED, env=twice).stdout,
          f'yes yes [{LIBRARY} libm.so.6]\n')
    check('--library', run([VMMLANE, '--library']).stdout, LIBRARY + '\n')


def children():
    alone = ['--no-children']
    check('no children', shell(MAPPED, *alone).stdout, 'yes 0 []\n')
    check('no children: gone from the environment',
          vmmlane(*alone, '--', 'env').stdout.count('LD_PRELOAD'), 0)
    for before in ['libm.so.6', 'libm.so.6:', f'{LIBRARY}:libm.so.6',
                   f'libm.so.6 {LIBRARY}']:
        env = environment(LD_PRELOAD=before)
        check(f'no children: others stay ({before.count(":")} colons)',
              shell(MAPPED, *alone, env=env).stdout, 'yes 0 [libm.so.6]\n')
    by_hand = environment(LD_PRELOAD=LIBRARY, VMMLANE_CHILDREN='No')
    check('no children: by hand',
          run(['sh', '-c', MAPPED], env=by_hand).stdout, 'yes 0 []\n')
    python = ('import os, subprocess; os.system("echo [$LD_PRELOAD]");'
              'print(subprocess.run("env", stdout=-1).stdout.count(b"PRELO"))')
    check('no children: from Python',
          vmmlane(*alone, '--', 'python3', '-c', python).stdout, '[]\n0\n')
    # A setting with another value than off leaves all as it is.
    env = environment(VMMLANE_CHILDREN='nonsense')
    check('a bad value', shell(MAPPED, env=env).stdout,
          f'yes yes [{LIBRARY}]\n')


def settings():
    def seen(*arguments, **changes):
        result = vmmlane(*arguments, '--', 'env', env=environment(**changes))
        return sorted(line for line in result.stdout.splitlines()
                      if line.startswith('VMMLANE'))

    check('none', seen(), [])
    check('log', seen('--log', 'debug', '--log-file=/dev/null'),
          ['VMMLANE_LOG=debug', 'VMMLANE_LOG_FILE=/dev/null'])
    check('log format', seen('--log-format=json'), ['VMMLANE_LOG_FORMAT=json'])
    check('stats', seen('--stats'), ['VMMLANE_STATS=exit'])
    check('metrics', seen('--metrics', 'm.prom'),
          ['VMMLANE_METRICS_FILE=m.prom'])
    check('strict', seen('--strict'), ['VMMLANE_STRICT=on'])
    check('native', seen('--native', 'never'), ['VMMLANE_NATIVE=never'])
    check('no children', seen('--no-children'), ['VMMLANE_CHILDREN=off'])
    check('an option wins over the environment',
          seen('--log=info', VMMLANE_LOG='off', VMMLANE_SHARE='off'),
          ['VMMLANE_LOG=info', 'VMMLANE_SHARE=off'])
    for option in '--log', '--native':
        result = vmmlane(option, 'nonsense', 'true')
        check(f'{option}: a bad value', result.returncode, 125)
        check_in(f'{option}: the values', 'is not one of', result.stderr)
    check('an empty value', vmmlane('--log-file=', 'true').returncode, 125)
    text = vmmlane('--print', '--log-file', "it's $HOME").stdout
    check('--print is read back by a shell',
          run(['sh', '-c', text + 'echo "$VMMLANE_LOG_FILE,$LD_PRELOAD"']
              ).stdout, f"it's $HOME,{LIBRARY}\n")


def elf(path, code=b'', loader=b''):
    """A 64-bit program of this machine: one segment, and its loader's name."""
    machine = {'x86_64': 62, 'aarch64': 183}[os.uname().machine]
    count = 2 if loader else 1
    start = 64 + 56 * count
    size = start + len(loader) + len(code)
    header = struct.pack('<4sBBBB8xHHIQQQIHHHHHH', b'\x7fELF', 2, 1, 1, 0, 2,
                         machine, 1, 0x400000 + start + len(loader), 64, 0, 0,
                         64, 56, count, 0, 0, 0)
    segments = [struct.pack('<IIQQQQQQ', 1, 5, 0, 0x400000, 0x400000, size,
                            size, 4096)]
    if loader:
        segments.insert(0, struct.pack('<IIQQQQQQ', 3, 4, start,
                                       0x400000 + start, 0, len(loader),
                                       len(loader), 1))
    with open(path, 'wb') as file:
        file.write(header + b''.join(segments) + loader + code)
    os.chmod(path, 0o755)


def programs():
    """Those that a preload does not reach are told, and run all the same."""
    exits = {'x86_64': bytes.fromhex('bf07000000b83c0000000f05'),
             'aarch64': bytes.fromhex('e00080d2a80b80d2010000d4')}
    with tempfile.TemporaryDirectory() as folder:
        elf(f'{folder}/alone', exits[os.uname().machine])
        result = run([VMMLANE, 'run', 'alone'],
                     env=environment(PATH=f'/nowhere:{folder}'))
        check('a static program', (result.returncode, result.stderr), (
            7, 'vmmlane: alone is a static program: it runs without '
            'vmmlane\n'))
        # It cannot start here; it is told before that is tried.
        elf(f'{folder}/musl', loader=b'/lib/ld-musl-x.so.1\0')
        check_in('musl', 'was built with musl',
                 vmmlane(f'{folder}/musl').stderr)
        shutil.copy(shutil.which('true'), f'{folder}/other')
        if os.geteuid() == 0:
            os.chown(f'{folder}/other', 65534, 65534)
            os.chmod(f'{folder}/other', 0o4755)
            result = vmmlane(f'{folder}/other')
            check_in('set-user-ID', 'changes its user', result.stderr)
        check('the usual: nothing is said', vmmlane('--', 'sh', '-c', ':'
                                                      ).stderr, '')
        with open(f'{folder}/short', 'wb') as file:
            file.write(b'\x7fELF')
        os.chmod(f'{folder}/short', 0o755)
        check('a damaged file is no case of these', 'vmmlane:' in
              vmmlane(f'{folder}/short').stderr, False)
        with open(f'{folder}/script', 'w', encoding='ascii') as file:
            file.write('#!/bin/sh\nexit 3\n')
        os.chmod(f'{folder}/script', 0o755)
        result = vmmlane(f'{folder}/script')
        check('a script', (result.returncode, result.stderr), (3, ''))


def moved():
    """Beside the library, wherever both were copied."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f'{folder}/command')
        command = shutil.copy(VMMLANE, f'{folder}/command')
        result = run([command, 'run', 'true'])
        check('no library', result.returncode, 125)
        check_in('no library: said', 'is not where it was', result.stderr)
        library = shutil.copy(LIBRARY, folder)
        check('moved', run([command, '--library']).stdout,
              os.path.realpath(library) + '\n')
    with tempfile.TemporaryDirectory(suffix='a b') as folder:
        os.mkdir(f'{folder}/command')
        command = shutil.copy(VMMLANE, f'{folder}/command')
        shutil.copy(LIBRARY, folder)
        result = run([command, 'run', 'true'])
        check('a space', result.returncode, 125)
        check_in('a space: said', 'cannot be preloaded', result.stderr)


def main():
    for group in (exit_codes, the_same_process, preload, children, settings,
                  programs, moved):
        group()
    end()


if __name__ == '__main__':
    main()
