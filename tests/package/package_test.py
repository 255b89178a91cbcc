#!/usr/bin/env python3
"""The packages that scripts/package built, as a user gets them.

Usage: package_test.py PACKAGES [DRIVER CLIENT]

PACKAGES is the folder of the packages; in root/ there may be what `meson
install` brought. DRIVER the simulated driver's, CLIENT
where clients of UCX are built: for a transfer with what the wheel installs.
"""

import gzip
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in 'tests/command', 'tests/symbols', 'tests/ucx', 'docs/man':
    sys.path.insert(0, str(ROOT / folder))

import check_symbols
import pair
import settings
from check import check, check_in, end, environment, run

# manylinux_2_28 promises it.
GLIBC = (2, 28)
# Of their own up to glibc 2.33, empty since.
OLD_GLIBC = ('libpthread.so.0', 'libdl.so.2')

WHEEL = ['vmmlane/__init__.py', 'vmmlane/__main__.py', 'vmmlane/bin/vmmlane',
         'vmmlane/libvmmlane.so']
MANUAL = ['man1/vmmlane.1', 'man7/vmmlane.7']
SYSTEM = ['bin/vmmlane', 'lib/*/pkgconfig/vmmlane.pc',
          'lib/*/vmmlane/libvmmlane.so',
          'share/bash-completion/completions/vmmlane',
          'share/fish/vendor_completions.d/vmmlane.fish',
          *(f'share/man/{page}' for page in MANUAL),
          'share/zsh/site-functions/_vmmlane']


def version():
    text = (ROOT / 'meson.build').read_text()
    return re.search(r"version: '(.+?)'", text)[1]


def needs_no_more(what, path):
    problems, _ = check_symbols.check_glibc(str(path), GLIBC)
    check(f'{what}: glibc 2.28 has all', problems, [])
    problems, _ = check_symbols.check_needed(str(path), OLD_GLIBC)
    check(f'{what}: needs glibc alone', problems, [])


def machine(path):
    text = run(['readelf', '-h', str(path)]).stdout
    return re.search(r'Machine: +(.*)', text)[1]


def wheel(path, cpu):
    name = f'wheel for {cpu}'
    check(f'{name}: its name', path.name,
          f'vmmlane-{version()}-py3-none-manylinux_2_28_{cpu}.whl')
    with tempfile.TemporaryDirectory() as folder, \
            zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        check(f'{name}: files', sorted(
            file for file in archive.namelist() if '.dist-info/' not in file),
            WHEEL)
        info = f'vmmlane-{version()}.dist-info'
        tags = (Path(folder) / info / 'WHEEL').read_text()
        check_in(f'{name}: tag', f'Tag: py3-none-manylinux_2_28_{cpu}\n', tags)
        for file in WHEEL[2:]:
            binary = Path(folder) / file
            needs_no_more(f'{name}: {file}', binary)
            check_in(f'{name}: {file}: CPU', {
                'x86_64': 'X86-64', 'aarch64': 'AArch64'}[cpu],
                machine(binary))


def install(path, folder):
    """A fresh environment with this wheel alone; its Python."""
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', folder],
                   check=True)
    pip = ROOT / '.venv/bin/python'
    subprocess.run([pip, '-m', 'pip', '--disable-pip-version-check',
                    '--python', f'{folder}/bin/python', 'install', '-q',
                    '--no-index', '--no-deps', path], check=True)
    return f'{folder}/bin/python'


def installed(path):
    with tempfile.TemporaryDirectory() as folder:
        python = install(path, folder)
        command = f'{folder}/bin/vmmlane'
        check('installed: run true', run([command, 'run', '--', 'true']
                                         ).returncode, 0)
        check('installed: exit status', run(
            [python, '-m', 'vmmlane', 'run', 'sh', '-c', 'exit 5']
            ).returncode, 5)
        check('installed: version', run([command, '--version']).stdout,
              f'vmmlane {version()}\n')
        library = run([command, '--library']).stdout.strip()
        maps = ['grep', '-c', re.escape(library), '/proc/self/maps']
        check('installed: in the process', run(
            [command, 'run', *maps]).returncode, 0)
        check('installed: not in others', run(maps).returncode, 1)
        by_python = ('import subprocess, sys, vmmlane;'
                     'env = vmmlane.environment({"LD_PRELOAD": "libm.so.6",'
                     ' "PATH": "/usr/bin:/bin"}, log="debug");'
                     'print(env["LD_PRELOAD"], env["VMMLANE_LOG"],'
                     ' flush=True);'
                     'sys.exit(subprocess.run(sys.argv[1:], env=env)'
                     '.returncode)')
        result = run([python, '-c', by_python, *maps])
        check('installed: from Python',
              (result.returncode, result.stdout.splitlines()[:1]),
              (0, [f'libm.so.6:{library} debug']))
        if len(sys.argv) > 2:
            transfer(command, folder, *sys.argv[2:4])


def transfer(command, folder, driver, clients):
    versions = pair.wheel_versions()
    if not versions:
        print('     no UCX wheel: no transfer')
        return
    ucx, client = pair.client_of(versions[-1], clients)
    wrapper = Path(folder) / 'client'
    wrapper.write_text('#!/bin/sh\n'
                       f'exec {command} run -- {client} "$@"\n')
    wrapper.chmod(0o755)
    for name, program, lane in (('without', client, 'emulation'),
                                ('vmmlane run', wrapper, 'cuda_ipc')):
        side = pair.Side(ucx, program)
        outcome = pair.run_pair(side, side, 'whole', 'vmm:4x2M',
                                driver=Path(driver).resolve(),
                                arguments=['--reps', '1'])
        check(f'a transfer, {name}: exit status', outcome.codes, (0, 0))
        check(f'a transfer, {name}: lanes and bytes',
              [(r.operation, r.lane, r.bytes) for r in outcome.results],
              [('get', lane, 'ok'), ('put', lane, 'ok')])


def system(what, root, usr, more=()):
    """What `meson install` and the Debian package bring, below `usr`."""
    libraries = [p.name for p in (usr / 'lib').iterdir()]
    check(f'{what}: one folder of libraries', len(libraries), 1)
    check(f'{what}: files', sorted(
        str(p.relative_to(usr)).replace(libraries[0], '*')
        for p in usr.rglob('*') if not p.is_dir()), sorted([*SYSTEM, *more]))
    library = usr / 'lib' / libraries[0] / 'vmmlane/libvmmlane.so'
    command = str(usr / 'bin/vmmlane')
    check(f'{what}: the library', run([command, '--library']).stdout,
          f'{os.path.realpath(library)}\n')
    check(f'{what}: run', run([command, 'run', 'sh', '-c', 'exit 4']
                             ).returncode, 4)
    config = run(['pkg-config', '--variable=preload', 'vmmlane'],
                 env=environment(PKG_CONFIG_LIBDIR=str(
                     library.parents[1] / 'pkgconfig')))
    check(f'{what}: pkg-config', config.stdout.strip(),
          str(library)[len(str(root)):])


def manual(what, page):
    text = page.decode().replace('\\', '')
    missing = [setting.variable for setting in settings.read(ROOT / 'src')
               if setting.variable not in text]
    check(f'{what}: vmmlane(7) has every setting', missing, [])


def deb(path):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(['dpkg-deb', '-x', path, folder], check=True)
        usr = Path(folder) / 'usr'
        # They are compressed.
        pages = [usr / 'share/man' / page for page in MANUAL]
        for page in pages:
            manual_page = gzip.decompress(
                page.with_name(page.name + '.gz').read_bytes())
            page.write_bytes(manual_page)
            page.with_name(page.name + '.gz').unlink()
        system('deb', folder, usr, ['share/doc/vmmlane/changelog.gz',
                                    'share/doc/vmmlane/copyright'])
        manual('deb', pages[1].read_bytes())
        control = run(['dpkg-deb', '-f', str(path), 'Version', 'Depends']
                      ).stdout
        check_in('deb: version', f'Version: {version()}\n', control)
        check('deb: needs glibc alone', bool(re.search(
            r'^Depends: libc6 \(>= [0-9.]+\)$', control, re.M)), True)


def tree(root):
    usr = root / 'usr/local'
    system('meson install', root, usr)
    manual('meson install', (usr / 'share/man' / MANUAL[1]).read_bytes())


def main():
    packages = Path(sys.argv[1])
    wheels = sorted(packages.glob('*.whl'))
    check('there are wheels', bool(wheels), True)
    for path in wheels:
        cpu = path.stem.split('manylinux_2_28_')[-1]
        wheel(path, cpu)
        if cpu == os.uname().machine:
            installed(path)
    for path in packages.glob('*.deb'):
        deb(path)
    if (packages / 'root').exists():
        tree(packages / 'root')
    end()


if __name__ == '__main__':
    main()
