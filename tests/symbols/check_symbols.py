#!/usr/bin/env python3
"""Check what libvmmlane.so shows to, and asks of, the dynamic linker.

Usage: check_symbols.py LIBRARY EXPORTS_LIST

A preloaded object reaches every process, so each rule here keeps a process
that is not ours from breaking. Prints one line per rule; exits 1 if any fails.
NM and READELF name other binutils (cross builds).
"""

import os
import re
import subprocess
import sys

# glibc of Debian 12 is 2.36, of RHEL 9 2.34.
GLIBC_LIMIT = (2, 34)

# Thread-local bytes: they come out of the initial static TLS block of every
# process, which other libraries share.
TLS_LIMIT = 512

FOREIGN = re.compile(r'^(cu[A-Z]|cuda[A-Z]|uct_|ucp_|ucs_|ucm_|nvml)')
LOADER = re.compile(r'^ld-linux-[a-z0-9_-]+\.so\.\d+$')


def tool(name, *args):
    command = os.environ.get(name.upper(), name)
    return subprocess.run([command, '-W', *args] if name == 'readelf'
                          else [command, *args],
                          check=True, stdout=subprocess.PIPE,
                          universal_newlines=True).stdout


def without_version(symbol):
    return symbol.split('@', 1)[0]


def exported(library):
    lines = tool('nm', '-D', '--defined-only', library).splitlines()
    return [line.split()[-1] for line in lines if line.split()]


def undefined(library):
    lines = tool('nm', '-D', '--undefined-only', library).splitlines()
    return [line.split()[-1] for line in lines if line.split()]


def listed(path):
    with open(path, encoding='utf-8') as file:
        lines = [line.split('#', 1)[0].strip() for line in file]
    return [line for line in lines if line]


def check_export_list(library, exports_list):
    wanted = listed(exports_list)
    got = {without_version(symbol) for symbol in exported(library)}
    problems = [f'exported, but not in {exports_list}: {name}'
                for name in sorted(got - set(wanted))]
    problems += [f'in {exports_list}, but not exported: {name}'
                 for name in sorted(set(wanted) - got)]
    if wanted != sorted(set(wanted)):
        problems.append(f'{exports_list} is not sorted, or names one twice')
    return problems, f'{len(got)} exports'


def check_needed(library, more=()):
    needed = re.findall(r'\(NEEDED\).*\[(.+?)\]', tool('readelf', '-d', library))
    # The loader itself is in every process: __tls_get_addr and, on aarch64,
    # __stack_chk_guard come from it.
    extra = [name for name in needed
             if name != 'libc.so.6' and name not in more
             and not LOADER.match(name)]
    return [f'needs {name}' for name in extra], ', '.join(needed)


def check_anonymous(library):
    # A caller bound to dlsym@GLIBC_2.34 skips an export that has a version of
    # another name.
    problems = []
    if '(VERDEF)' in tool('readelf', '-d', library):
        problems.append('defines symbol versions (.gnu.version_d)')
    problems += [f'versioned export {name}' for name in exported(library)
                 if '@' in name]
    return problems, 'no version definitions'


def check_relocations(library):
    # A slot that names an own export can be bound to, or patched with, a
    # foreign function (UCM's reloc mode): the hook would then call itself.
    own = {without_version(symbol) for symbol in exported(library)}
    problems = []
    count = 0
    for line in tool('readelf', '-r', library).splitlines():
        fields = line.split()
        if len(fields) < 5 or not fields[2].startswith('R_'):
            continue
        count += 1
        name = without_version(fields[4])
        if name in own:
            problems.append(f'{fields[2]} against its own export {name}')
    return problems, f'{count} relocations by name'


def check_glibc(library, limit=None):
    versions = {}
    for name in undefined(library):
        match = re.search(r'@GLIBC_(\d+)\.(\d+)', name)
        if match:
            version = (int(match[1]), int(match[2]))
            versions.setdefault(version, []).append(without_version(name))
    highest = max(versions, default=(0, 0))
    problems = [f'{", ".join(names)} from glibc {version[0]}.{version[1]}'
                for version, names in sorted(versions.items())
                if version > (limit or GLIBC_LIMIT)]
    names = ', '.join(sorted(versions.get(highest, []))[:8])
    return problems, f'glibc {highest[0]}.{highest[1]} ({names})'


def check_foreign(library):
    problems = [f'undefined symbol {name}' for name in undefined(library)
                if FOREIGN.match(name)]
    return problems, 'no symbol of CUDA or UCX is needed'


def check_tls(library):
    size = 0
    for line in tool('readelf', '-S', library).splitlines():
        match = re.search(r'\.(?:tdata|tbss)\S*\s+\w+\s+[0-9a-f]+\s+[0-9a-f]+'
                          r'\s+([0-9a-f]+)', line)
        if match:
            size += int(match[1], 16)
    problems = [f'{size} bytes, the limit is {TLS_LIMIT}'] \
        if size > TLS_LIMIT else []
    return problems, f'{size} bytes'


def check(library, exports_list):
    """Return [(rule, problems, what was seen)]."""
    rules = [
        ('export list', lambda: check_export_list(library, exports_list)),
        ('needed libraries', lambda: check_needed(library)),
        ('anonymous versions', lambda: check_anonymous(library)),
        ('own exports', lambda: check_relocations(library)),
        ('glibc version', lambda: check_glibc(library)),
        ('foreign symbols', lambda: check_foreign(library)),
        ('thread-local size', lambda: check_tls(library)),
    ]
    return [(name, *rule()) for name, rule in rules]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    failed = 0
    for rule, problems, seen in check(sys.argv[1], sys.argv[2]):
        print(f'{"FAIL" if problems else "ok":4} {rule}: {seen}')
        for problem in problems:
            print(f'     {problem}')
        failed += bool(problems)
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
