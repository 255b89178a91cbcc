#!/usr/bin/env python3
"""Shell completion: what a shell would offer.

Usage: completion_test.py VMMLANE
"""

import re
import shutil
import sys

from check import check, check_in, end, run

VMMLANE = sys.argv[1]

BASH = r'''
source <("$1" --completion bash)
shift
COMP_WORDS=(vmmlane "$@")
COMP_CWORD=$#
_vmmlane
printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' '
'''


def offered(*words):
    """Words as bash splits them: '=' is one of its own."""
    return run(['bash', '-c', BASH, 'bash', VMMLANE, *words]).stdout.split()


def options_of(*subcommand):
    text = run([VMMLANE, *subcommand, '--help']).stdout
    return sorted(set(re.findall(r'^ +(?:-\S, )?(--[a-z-]+)', text, re.M))
                  - {'--usage'})


def subcommands():
    text = run([VMMLANE, '--help']).stdout.split('Subcommands:\n')[1]
    return re.findall(r'^  ([a-z]+)', text.split('\n\n')[0], re.M)


def bash():
    check('subcommands', sorted(w for w in offered('') if w[0] != '-'),
          sorted(subcommands()))
    check('own options', offered('--'), sorted(
        set(options_of()) - {'--version'}))
    check('a shell', offered('--completion', 'z'), ['zsh'])
    for name in subcommands():
        check(f'options of {name}', offered(name, '--'), sorted(
            set(options_of(name)) - {'--version'}))
    check('a value', offered('run', '--log', 'tr'), ['trace'])
    check('a value after =', offered('run', '--log', '=', 'd'), ['debug'])
    check('values after =', offered('run', '--native', '='),
          ['auto', 'never'])
    check_in('a program', 'true', offered('run', 'tru'))
    check_in('a program after a value', 'true',
             offered('run', '--log', 'debug', 'tru'))
    check_in('a program after --', 'true', offered('run', '--', 'tru'))
    check("no options of run among the program's",
          offered('run', 'ls', '--st'), [])
    check("nor after --", offered('run', '--', 'ls', '--st'), [])


def others():
    for shell, line in {
            'zsh': "'--native=[auto\\: leave to UCX",
            'fish': "-l log -x -a 'off error warn info debug trace'"}.items():
        result = run([VMMLANE, '--completion', shell])
        check_in(f'{shell}: an option', line, result.stdout)
        for name in subcommands():
            check_in(f'{shell}: {name}', name, result.stdout)
        if shutil.which(shell):
            parsed = run([shell, '-n', '-c', result.stdout])
            check(f'{shell}: parses', (parsed.returncode, parsed.stderr),
                  (0, ''))
        else:
            print(f'     {shell} is not here to parse it')
    check('another shell', run([VMMLANE, '--completion', 'csh']).returncode,
          125)


def main():
    bash()
    others()
    end()


if __name__ == '__main__':
    main()
