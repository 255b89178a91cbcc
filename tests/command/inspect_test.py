#!/usr/bin/env python3
"""vmmlane inspect, of processes without UCX; tests/ucx/told.py has those with.

Usage: inspect_test.py VMMLANE LIBVMMLANE
"""

import json
import os
import subprocess
import sys

from check import check, check_in, end, environment, run

VMMLANE, LIBRARY = (os.path.realpath(path) for path in sys.argv[1:3])


def inspect(*arguments, **options):
    return run([VMMLANE, 'inspect', *map(str, arguments)], **options)


class Sleeper:
    """A process that waits for its end, and has said that it is there."""

    def __init__(self, **settings):
        self.process = subprocess.Popen(
            ['sh', '-c', 'echo there; exec cat'], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=environment(**settings))
        self.process.stdout.readline()
        # From sh to cat: the second exec of the shim's. Only when it answers
        # is all loaded that is preloaded.
        self.process.stdin.write(b'there\n')
        self.process.stdin.flush()
        self.process.stdout.readline()

    def __enter__(self):
        return self.process.pid

    def __exit__(self, *unused):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def arguments():
    for name, words in (('no process', []), ('no number', ['x']),
                        ('zero', ['0']), ('two', ['1', '2']),
                        ('no time', ['--watch=x', '1']),
                        ('too fast', ['--watch=0', '1']),
                        ('an unknown option', ['--all', '1'])):
        result = inspect(*words)
        check(name, (result.returncode, result.stdout), (125, ''))
    gone = subprocess.Popen(['true'])
    gone.wait()
    result = inspect(gone.pid)
    check('a process that is gone', (result.returncode, result.stdout),
          (125, ''))
    check_in('it says so', 'No such process', result.stderr)
    check('watching one that is gone', inspect('--watch', gone.pid).returncode,
          125)


def nothing_to_see():
    with Sleeper() as pid:
        result = inspect(pid)
        check('not loaded', result.returncode, 1)
        check_in('not loaded: said', 'lane: not-loaded: ', result.stdout)
    with Sleeper(LD_PRELOAD=LIBRARY, VMMLANE_LOG='error',
                 VMMLANE_CACHE='/tmp') as pid:
        result = inspect(pid)
        check('loaded, without CUDA', result.returncode, 1)
        check_in('loaded: said', 'lane: unseen: UCX has not asked',
                 result.stdout)
        check_in('the settings', 'settings: VMMLANE_LOG=error\n',
                 result.stdout)
        result = inspect('--json', pid)
        survey = json.loads(result.stdout)
        check('as JSON', (result.returncode, survey['pid'], survey['lane'],
                          survey['loaded'], survey['library'],
                          survey['settings']),
              (1, pid, 'unseen', True, LIBRARY, 'VMMLANE_LOG=error'))


def misspelt():
    with Sleeper(LD_PRELOAD=LIBRARY, VMMLANE_STRCIT='1') as pid:
        check_in('a name that is none',
                 'settings: VMMLANE_STRCIT=1 (no setting)\n',
                 inspect(pid).stdout)


def watch():
    with Sleeper(LD_PRELOAD=LIBRARY) as pid:
        watcher = subprocess.Popen([VMMLANE, 'inspect', '--json',
                                    '--watch=0.1', str(pid)],
                                   stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        lines = [json.loads(watcher.stdout.readline()) for _ in range(3)]
    check('one object a line', [line['pid'] for line in lines], [pid] * 3)
    check('the end of what is watched', watcher.wait(timeout=30), 0)
    watcher.communicate()


def main():
    arguments()
    nothing_to_see()
    misspelt()
    watch()
    end()


main()
