#!/usr/bin/env python3
"""vmmlane doctor in prepared environments: it names the cause and the remedy.

Each case prepares one bad environment around a good one, in which every gate
passes, and demands one gate's verdict, its evidence, its remedy, and the exit
status. What cannot be prepared here is skipped, with the reason.
"""

import argparse
import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get('VMMLANE_CACHE', ROOT / '.cache'))
SKIP = 77

WORDS = (ROOT / 'src/base/remedy.h').read_text()


def shared(name):
    """A remedy of base/remedy.h: the words of the shim's own warnings."""
    text = re.search(rf'#define VMML_REMEDY_{name}\b(.*?[^\\])\n', WORDS,
                     re.DOTALL).group(1)
    return ''.join(re.findall(r'"([^"]*)"', text))


class Skip(Exception):
    pass


class Failed(Exception):
    pass


# ---- the good environment ---------------------------------------------------

class Bench:
    """What the cases share: files, the good environment, and the doctor."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = Path(folder)
        self.empty = self.folder / 'empty'
        self.empty.mkdir()
        self.good_ucx = self.ucx('good', '1.23.0', 23, 'cuda')

    def ucx(self, name, version, uct, module):
        """A copy of UCX made of stand-ins; its folder."""
        lib = self.folder / name / 'lib'
        (lib / 'ucx').mkdir(parents=True)
        standins = Path(self.options.standins)
        (lib / 'libucp.so.0').symlink_to(standins / f'standin-ucp-{version}.so')
        (lib / 'libuct.so.0').symlink_to(standins / f'standin-uct-{uct}.so')
        if module:
            (lib / 'ucx' / 'libuct_cuda.so.0').symlink_to(
                standins / f'standin-{module}.so')
        return lib

    def copied(self, name, version, uct, module):
        """The same as files: what a process has mapped, no link leads away."""
        lib = self.folder / 'copies' / name / 'lib'
        shutil.copytree(self.ucx(name, version, uct, module), lib)
        return lib / 'libucp.so.0'

    def venv(self, name, *packages):
        site = self.folder / name / 'lib' / 'python3.11' / 'site-packages'
        site.mkdir(parents=True)
        for package in packages:
            (site / f'{package}.dist-info').mkdir()
        return self.folder / name

    def environment(self, changes):
        dropped = ('VMMLANE', 'UCX_', 'NIXL_', 'PYTORCH_', 'TORCH_', 'CUDA_')
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(dropped) and
                  name not in ('LD_PRELOAD', 'NO_COLOR', 'PYTHONPATH')}
        result.update(LD_LIBRARY_PATH=self.options.driver,
                      LD_PRELOAD=self.options.shim,
                      VMMLANE_SIM_FABRIC='off', VMMLANE_SIM_NVLINK='1')
        result.update(changes)
        return {name: value for name, value in result.items()
                if value is not None}

    def run(self, *arguments, before=(), program=None, **changes):
        command = [*before, program or self.options.vmmlane, 'doctor',
                   *map(str, arguments)]
        return subprocess.run(command, env=self.environment(changes),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False, timeout=120,
                              universal_newlines=True)

    def ask(self, *arguments, ucx=None, venv=None, **options):
        """Ask about this environment, with the good UCX and no packages."""
        return Answer(self.run(
            '--json', '--ucx', ucx or self.good_ucx,
            '--venv', venv or self.empty, *arguments, **options))

    def ask_running(self, *arguments, **options):
        return Answer(self.run('--json', *arguments, **options))


class Answer:
    def __init__(self, done):
        self.status = done.returncode
        try:
            self.whole = json.loads(done.stdout)
        except ValueError:
            raise Failed(f'no JSON (status {done.returncode}): '
                         f'{done.stdout[:500]!r} {done.stderr[-500:]!r}')
        self.gates = self.whole['gates']
        if not self.whole['complete']:
            raise Failed('the report is not complete')
        if self.whole['can_come_up'] != (self.status == 0):
            raise Failed(f"can_come_up is {self.whole['can_come_up']}, the "
                         f'status {self.status}')
        failed = [gate['gate'] for gate in self.gates
                  if gate['verdict'] == 'fail']
        if bool(failed) != (self.status == 1):
            raise Failed(f'status {self.status} with {failed}')

    def find(self, name, about):
        found = [gate for gate in self.gates if gate['gate'] == name and
                 (about is None or str(about) in str(gate['about']))]
        if len(found) != 1:
            raise Failed(f'{len(found)} gates {name} of {about}')
        return found[0]

    def demand(self, name, verdict, evidence='', remedy=None, about=None,
               status=None):
        """A gate's verdict, parts of its evidence and its whole remedy."""
        gate = self.find(name, about)
        wrong = []
        if gate['verdict'] != verdict:
            wrong.append(f"verdict {gate['verdict']}, not {verdict}")
        if evidence not in gate['evidence']:
            wrong.append(f'{evidence!r} is not in the evidence')
        if gate['remedy'] != remedy and not (
                remedy and gate['remedy'] and gate['remedy'].startswith(remedy)):
            wrong.append(f'remedy is not {remedy!r}')
        if status is not None and self.status != status:
            wrong.append(f'status {self.status}, not {status}: '
                         + ', '.join(g['gate'] for g in self.gates
                                     if g['verdict'] == 'fail'))
        if wrong:
            raise Failed(f"{'; '.join(wrong)}; {gate}")
        return self


@contextlib.contextmanager
def idle(bench, *arguments, before=(), **changes):
    """A process to judge; its pid here."""
    process = subprocess.Popen(
        [*before, bench.options.idle, *map(str, arguments)],
        env=bench.environment(changes), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True)
    try:
        line = process.stdout.readline()
        if not line.startswith('ready'):
            process.stdin.close()
            error = process.stderr.read()
            raise Skip(f"no such process can be made here: {error.strip()}")
        yield innermost(process.pid)
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
        process.stderr.close()


def innermost(pid):
    """The process at the end of a chain of parents of one child."""
    while True:
        children = [int(path.name) for path in Path('/proc').iterdir()
                    if path.name.isdigit() and parent_of(path) == pid]
        if not children:
            return pid
        pid = children[0]


def parent_of(path):
    try:
        return int((path / 'stat').read_text().rpartition(')')[2].split()[1])
    except (OSError, ValueError):
        return 0


CASES = []


def case(function):
    CASES.append(function)
    return function


# ---- good -------------------------------------------------------------------

@case
def good_environment(bench):
    answer = bench.ask()
    # Where the tests themselves run in a container.
    bad = [gate for gate in answer.gates if gate['verdict'] != 'pass' and
           (gate['verdict'] != 'note' or gate['gate'] not in
            ('kernel.pid_namespace', 'kernel.release', 'kernel.yama'))]
    if bad or answer.status != 0:
        raise Failed(f'status {answer.status}: {bad}')
    groups = {gate['gate'].split('.')[0] for gate in answer.gates}
    if groups != {'kernel', 'limits', 'settings', 'driver', 'python', 'ucx'}:
        raise Failed(f'groups: {groups}')


@case
def words_for_people(bench):
    """The same in words; colour on a terminal alone; bad arguments."""
    done = bench.run('--ucx', bench.good_ucx)
    if 'The lane can come up.' not in done.stdout or '\033' in done.stdout:
        raise Failed(done.stdout)
    done = bench.run('--ucx', bench.good_ucx, VMMLANE='off')
    for part in ('The lane cannot come up: settings.on.',
                 'fail  on', 'Remedy: unset VMMLANE'):
        if part not in done.stdout:
            raise Failed(f'{part!r} is not in {done.stdout}')
    for no_color, coloured in ((None, True), ('', True), ('1', False)):
        text = on_a_terminal(bench, NO_COLOR=no_color)
        if ('\033[32m' in text) != coloured or 'can come up' not in text:
            raise Failed(f'NO_COLOR={no_color}: {text!r}')
    for arguments in (['--pid', 'x'], ['--pair', '1'], ['--pid', '4194000'],
                      ['--timeout', '0'], ['3'], ['--no-such-option']):
        done = bench.run(*arguments)
        if done.returncode != 125 or not done.stderr or done.stdout:
            raise Failed(f'{arguments}: {done}')


def on_a_terminal(bench, **changes):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [bench.options.vmmlane, 'doctor', '--ucx', str(bench.good_ucx)],
        env=bench.environment({'TERM': 'xterm', **changes}),
        stdin=subprocess.DEVNULL, stdout=follower)
    os.close(follower)
    text = b''
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while True:
            part = os.read(leader, 65536)
            if not part:
                break
            text += part
    os.close(leader)
    process.wait(timeout=60)
    return text.decode()


# ---- kernel, filters, namespaces, limits ------------------------------------

def gated(bench, error, calls, *arguments, **options):
    return bench.ask(*arguments,
                     before=(bench.options.gate, error, calls), **options)


@case
def seccomp_denies_getfd(bench):
    answer = gated(bench, 'EPERM', 'pidfd_getfd')
    answer.demand('kernel.seccomp', 'warn', 'denies pidfd_getfd(2)',
                  shared('SECCOMP'), status=0)
    answer.demand('kernel.pidfd_getfd', 'warn', 'denied by a seccomp filter',
                  shared('SECCOMP'))
    answer.demand('kernel.transport', 'pass', 'by the socket')


@case
def seccomp_denies_open(bench):
    gated(bench, 'ENOSYS', 'pidfd_open').demand(
        'kernel.seccomp', 'warn', 'denies pidfd_open(2)', shared('SECCOMP'),
        status=0)


@case
def seccomp_denies_all(bench):
    answer = gated(bench, 'EPERM', 'pidfd_open,pidfd_getfd,socket')
    answer.demand('kernel.transport', 'fail', 'no way', shared('SECCOMP'),
                  status=1)
    answer.demand('kernel.seccomp', 'fail', 'mode 2', shared('SECCOMP'))
    answer.demand('kernel.socket', 'fail', 'Operation not permitted',
                  'a profile of seccomp')


@case
def seccomp_without_the_socket_step(bench):
    gated(bench, 'EPERM', 'pidfd_getfd',
          VMMLANE_TRANSPORT='getfd,ptracer').demand(
              'kernel.transport', 'fail',
              'the socket is switched off by VMMLANE_TRANSPORT',
              'unset VMMLANE_TRANSPORT', status=1)


@case
def seccomp_allows(bench):
    gated(bench, 'EPERM', 'accept4').demand(
        'kernel.seccomp', 'pass', 'lets the calls through')


def other_kernel(bench, name, **changes):
    return bench.ask(LD_PRELOAD=f'{bench.options.shim} {bench.options.kernel}',
                     FAKE_KERNEL=name, **changes)


@case
def old_kernel(bench):
    answer = other_kernel(bench, 'old')
    answer.demand('kernel.release', 'warn', 'older than 5.6', shared('KERNEL'),
                  status=0)
    answer.demand('kernel.pidfd_getfd', 'warn', 'no such call',
                  shared('KERNEL'))


@case
def yama_1(bench):
    answer = other_kernel(bench, 'yama1')
    answer.demand('kernel.yama', 'note', 'ptrace_scope is 1', status=0)
    answer.demand('kernel.pidfd_getfd', 'pass', 'PR_SET_PTRACER')


@case
def yama_1_without_ptracer(bench):
    answer = other_kernel(bench, 'yama1', VMMLANE_TRANSPORT='getfd')
    answer.demand('kernel.yama', 'fail', 'VMMLANE_TRANSPORT has no ptracer',
                  shared('YAMA'), status=1)
    answer.demand('kernel.transport', 'fail', '', 'unset VMMLANE_TRANSPORT')


@case
def yama_2(bench):
    answer = other_kernel(bench, 'yama2')
    answer.demand('kernel.yama', 'warn', 'ptrace_scope is 2', shared('YAMA'),
                  status=0)
    answer.demand('kernel.pidfd_getfd', 'warn', 'denied by Yama',
                  shared('YAMA'))


@case
def ptrace_denies(bench):
    other_kernel(bench, 'yama0').demand(
        'kernel.capabilities', 'warn', 'CAP_SYS_PTRACE', shared('PTRACE'),
        status=0)


@case
def few_descriptors(bench):
    bench.ask(before=('prlimit', '--nofile=1100:1100')).demand(
        'limits.descriptors', 'warn', 'hard 1100: room for 12 chunks',
        shared('DESCRIPTORS_HARD'))


@case
def no_descriptors(bench):
    bench.ask(before=('prlimit', '--nofile=60:60')).demand(
        'limits.descriptors', 'fail', 'room for 0 chunks',
        shared('DESCRIPTORS_HARD'), status=1)


@case
def small_files(bench):
    bench.ask(before=('prlimit', f'--fsize={100 << 20}')).demand(
        'limits.file_size', 'fail', 'RLIMIT_FSIZE is 102400 KiB',
        shared('FILE_SIZE'), status=1)


@case
def little_address_space(bench):
    bench.ask(before=('prlimit', f'--as={1 << 36}')).demand(
        'limits.address_space', 'warn', 'RLIMIT_AS is 65536 MiB',
        'lift the limit of address space (ulimit -v unlimited)')


def unshared(*flags):
    done = subprocess.run(['unshare', *flags, 'true'], check=False,
                          stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode != 0:
        raise Skip(done.stderr.strip())
    return ('unshare', *flags)


@case
def container(bench):
    bench.ask(before=unshared('--pid', '--fork', '--mount-proc')).demand(
        'kernel.pid_namespace', 'note', "a container's",
        shared('PID_NAMESPACE'), status=0)


@case
def user_is_not_mapped(bench):
    bench.ask(before=unshared('--user')).demand(
        'kernel.user_namespace', 'warn', 'not mapped',
        'map the user (newuidmap(1), --userns=keep-id)')


# ---- settings ---------------------------------------------------------------

@case
def switched_off(bench):
    bench.ask(VMMLANE='Off').demand('settings.on', 'fail', 'VMMLANE is off',
                                    'unset VMMLANE', status=1)
    bench.ask(VMMLANE_SHARE='0').demand(
        'settings.share', 'fail', 'no key is made', 'unset VMMLANE_SHARE',
        status=1)
    bench.ask(VMMLANE_CREATE='no').demand(
        'settings.create', 'warn', 'type NONE has no lane',
        shared('HANDLE_TYPE'), status=0)


@case
def wrong_settings(bench):
    answer = bench.ask(VMMLANE_TRANSPORT='getfd,pigeon', VMMLANE_RANGE='wide')
    answer.demand('settings.transport', 'warn', 'getfd,pigeon is no such list',
                  'a list of getfd, ptracer, socket', status=0)
    answer.demand('settings.values', 'warn', 'VMMLANE_RANGE=wide',
                  'one of extent, request, off')


@case
def misspelt_setting(bench):
    bench.ask(VMMLANE_TRANPORT='socket').demand(
        'settings.values', 'warn',
        'VMMLANE_TRANPORT is no setting of vmmlane',
        'perhaps VMMLANE_TRANSPORT',
        status=0)


@case
def preload_names_nothing(bench):
    bench.ask(LD_PRELOAD='/nowhere/libvmmlane.so').demand(
        'settings.preload', 'fail', 'No such file',
        'the path that `vmmlane --library` prints', status=1)
    bench.ask(LD_PRELOAD=None).demand(
        'settings.preload', 'note', 'has no libvmmlane.so', 'vmmlane run',
        status=0)


# ---- the driver -------------------------------------------------------------

@case
def no_driver(bench):
    plain = bench.environment({'LD_LIBRARY_PATH': None})
    done = subprocess.run(
        [sys.executable, '-c', 'import ctypes; ctypes.CDLL("libcuda.so.1")'],
        env=plain, check=False, stderr=subprocess.DEVNULL)
    if done.returncode == 0:
        raise Skip('this machine has a driver')
    bench.ask(LD_LIBRARY_PATH=None).demand(
        'driver.library', 'fail', 'cannot be opened',
        'install the NVIDIA driver', status=1)


def bad_driver(bench, illness, *arguments):
    return bench.ask(*arguments, BAD_DRIVER=illness,
                     LD_LIBRARY_PATH=bench.options.bad_driver)


@case
def ill_drivers(bench):
    for illness, gate, evidence, remedy in (
            ('crashes', 'init', 'cuInit died of signal 11', 'see dmesg(1)'),
            ('exits', 'init', 'cuInit ended its process (status 3)',
             'see dmesg(1)'),
            ('a stub', 'init', 'cuInit gives 34', "take the CUDA toolkit's"),
            ('mismatched', 'init', 'cuInit gives 803', 'use the libcuda.so.1'),
            ('without devices', 'devices', 'no GPU is visible', ''),
            ('without VMM', 'vmm', 'no virtual memory', 'a GPU and driver'),
            ('without POSIX_FD', 'posix_fd', 'no POSIX_FD', 'a GPU and driver'),
            ('prohibited', 'compute_mode', 'no process may use it',
             'nvidia-smi --compute-mode=DEFAULT'),
    ):
        bad_driver(bench, illness).demand(
            f'driver.{gate}', 'fail', evidence, remedy or
            bad_driver(bench, illness).find(f'driver.{gate}', None)['remedy'],
            status=1)


@case
def exclusive_device(bench):
    bad_driver(bench, 'exclusive').demand(
        'driver.compute_mode', 'note',
        'one process at a time may use it (mode 3)',
        'nvidia-smi --compute-mode=DEFAULT')


@case
def devices_apart(bench):
    bench.ask(VMMLANE_SIM_DEVICES='2', VMMLANE_SIM_PEER='0').demand(
        'driver.peer', 'warn', '2 pairs of GPUs have no peer access',
        'NVLink, or PCIe', status=0)
    bench.ask(VMMLANE_SIM_DEVICES='2').demand('driver.peer', 'pass', status=0)


@case
def hanging_drivers(bench):
    bad_driver(bench, 'hangs', '--timeout', '1').demand(
        'driver.init', 'fail', 'cuInit did not answer in 1 s', 'see dmesg(1)',
        status=1)
    bad_driver(bench, 'hangs later', '--timeout', '1').demand(
        'driver.init', 'fail', 'a call to a device did not answer',
        'see dmesg(1)', status=1)


@case
def no_visible_device(bench):
    for changes in ({'VMMLANE_SIM_DEVICES': '0'},
                    {'CUDA_VISIBLE_DEVICES': '9'}):
        answer = bench.ask(**changes)
        names = [gate['gate'] for gate in answer.gates
                 if gate['verdict'] == 'fail']
        if names not in (['driver.init'], ['driver.devices']):
            raise Failed(f'{changes}: {names}')
        answer.demand(names[0], 'fail', '', 'set CUDA_VISIBLE_DEVICES'
                      if os.path.exists('/dev/nvidiactl')
                      else 'install the NVIDIA driver', status=1)


@case
def old_driver(bench):
    bench.ask(VMMLANE_SIM_DRIVER_VERSION='12000').demand(
        'driver.upgrade', 'warn', 'CUDA 12.0 is older than 12.2',
        'a driver of version 535 or newer', status=0)


@case
def descriptors_that_lie(bench):
    for call in ('cuMemExportToShareableHandle',
                 'cuMemImportFromShareableHandle'):
        bench.ask(VMMLANE_SIM_FAIL_FROM=f'{call}:1:801').demand(
            'driver.posix_fd', 'fail', f'{call} gives 801',
            'a driver that shares memory by descriptors here', status=1)
    bench.ask(VMMLANE_SIM_FAIL_FROM='cuMemCreate:1:2').demand(
        'driver.posix_fd', 'skip', 'no memory of the GPU', 'free some memory',
        status=0)


@case
def fabric_that_lies(bench):
    bench.ask(VMMLANE_SIM_FABRIC='lying').demand(
        'driver.fabric', 'note', 'gives 800: the attribute lies',
        'for several nodes an IMEX channel', status=0)
    bench.ask(VMMLANE_SIM_FABRIC='on').demand(
        'driver.fabric', 'pass', 'FABRIC memory can be made', status=0)


@case
def no_dmabuf(bench):
    bench.ask(VMMLANE_SIM_FAIL_FROM='cuMemGetHandleForAddressRange:1:801'
              ).demand('driver.dmabuf', 'note', 'gives 801', 'for NICs',
                       status=0)


@case
def several_devices(bench):
    bench.ask(VMMLANE_SIM_DEVICES='8').demand(
        'driver.posix_fd', 'pass', '', about='GPUs 0 to 7', status=0)


# ---- UCX --------------------------------------------------------------------

@case
def old_ucx(bench):
    old = bench.ucx('old', '1.17.0', 17, 'cuda')
    bench.ask(ucx=old).demand('ucx.version', 'fail', 'UCX 1.17.0',
                              'UCX 1.18 or newer', status=1)
    # Beside one that can be served it costs nothing but itself.
    bench.ask('--ucx', old).demand('ucx.version', 'warn', 'UCX 1.17.0',
                                   'UCX 1.18 or newer', about=old, status=0)


@case
def strict_on_ucx_1_18(bench):
    older = bench.ucx('eighteen', '1.18.1', 22, 'cuda')
    bench.ask(ucx=older, VMMLANE_STRICT='1').demand(
        'ucx.strict', 'warn', 'UCX 1.18 ends the process at a read (GET)',
        'UCX 1.19 or newer, or unset VMMLANE_STRICT', status=0)
    for answer in (bench.ask(ucx=older), bench.ask(VMMLANE_STRICT='1')):
        if any(gate['gate'] == 'ucx.strict' for gate in answer.gates):
            raise Failed('ucx.strict without need')


@case
def no_such_folder(bench):
    for option, path, why in (
            ('--ucx', '/nowhere', 'No such file'),
            ('--venv', '/nowhere', 'No such file'),
            ('--venv', '/proc/self/status', 'is no folder')):
        done = bench.run(option, path)
        if done.returncode != 125 or f'{option}: {path}' not in done.stderr \
                or why not in done.stderr:
            raise Failed(f'{option} {path}: {done}')


@case
def ucx_without_cuda(bench):
    bench.ask(ucx=bench.ucx('host', '1.22.0', 22, None)).demand(
        'ucx.version', 'fail', 'without libuct_cuda',
        'a UCX with its CUDA module', status=1)


@case
def ucx_kinds(bench):
    bench.ask(ucx=bench.ucx('silent', 'silent', 22, 'cuda-native')).demand(
        'ucx.version', 'pass', 'UCX 1.22').demand(
            'ucx.native', 'pass', 'shares descriptors by itself').demand(
                'ucx.deepbind', 'skip', 'do not tell').demand(
                    'ucx.extent', 'note', 'the first chunk',
                    'none with vmmlane', status=0)
    bench.ask(ucx=bench.ucx('deep', 'deepbind', 23, 'cuda')).demand(
        'ucx.deepbind', 'note', 'RTLD_DEEPBIND', 'none, unless', status=0)


@case
def no_ucx(bench):
    bench.ask(ucx=bench.empty).demand('ucx.copies', 'warn', 'no UCX',
                                      'name its folder with --ucx', status=0)


@case
def ucx_is_no_elf(bench):
    lib = bench.ucx('text', '1.22.0', 22, 'cuda')
    (lib / 'libucp.so.0').unlink()
    (lib / 'libucp.so.0').write_bytes(
        Path(bench.options.standins, 'standin-ucp-1.22.0.so')
        .read_bytes()[:3000])
    bench.ask(ucx=lib).demand('ucx.version', 'pass', 'UCX 1.22', status=0)


@case
def ucx_in_the_environment(bench):
    """LD_LIBRARY_PATH and a virtual environment are looked in."""
    venv = bench.venv('with-ucx', 'libucx_cu13-1.23.0')
    site = next(venv.glob('lib/python3*/site-packages'))
    (site / 'libucx').mkdir()
    (site / 'libucx' / 'lib').symlink_to(bench.good_ucx)
    Answer(bench.run('--json', '--venv', venv)).demand(
        'ucx.version', 'pass', 'UCX 1.23.0', about=bench.good_ucx, status=0)
    Answer(bench.run(
        '--json', '--venv', bench.empty,
        LD_LIBRARY_PATH=f'{bench.options.driver}:{bench.good_ucx}')).demand(
            'ucx.version', 'pass', about=bench.good_ucx, status=0)


@case
def transports_left_out(bench):
    for value, missing in (('tcp,cuda_copy', 'cuda_ipc'),
                           ('^cuda_ipc', 'cuda_ipc'), ('^cuda', 'cuda_ipc'),
                           ('cuda_ipc,sm', 'cuda_copy')):
        bench.ask(UCX_TLS=value).demand(
            'ucx.tls', 'fail', f'leaves out {missing}', 'add cuda_copy',
            status=1)
    for value in ('all', 'cuda,rc', '^tcp', 'cuda_copy,cuda_ipc,tcp'):
        bench.ask(UCX_TLS=value).demand('ucx.tls', 'pass', status=0)


@case
def modules_left_out(bench):
    for value in ('^cu*', 'ib,rdmacm', '^cuda'):
        bench.ask(UCX_MODULES=value).demand(
            'ucx.modules', 'fail', 'leaves out cuda', 'add cuda', status=1)
    for value in ('all', '*', 'cud?', '^ib'):
        bench.ask(UCX_MODULES=value).demand('ucx.modules', 'pass', status=0)


@case
def reads_without_nvlink(bench):
    bench.ask(VMMLANE_SIM_NVLINK='0').demand(
        'ucx.get', 'warn', 'no NVLink', 'UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y',
        status=0)
    bench.ask(VMMLANE_SIM_NVLINK='0', UCX_CUDA_IPC_ENABLE_GET_ZCOPY='y'
              ).demand('ucx.get', 'pass', status=0)


@case
def real_wheels(bench):
    """What the files of the published wheels tell."""
    wheels = [path for path in sorted((CACHE / 'ucx').glob('1.*'))
              if (path / 'libucx/lib/libucp.so.0').exists()]
    if not wheels:
        raise Skip(f'no wheels of UCX in {CACHE}')
    for wheel in wheels:
        answer = bench.ask(ucx=wheel)
        answer.demand('ucx.version', 'pass', f'UCX {wheel.name}', status=0)
        answer.demand('ucx.native', 'pass', 'has no POSIX_FD arm')
        answer.demand('ucx.extent', 'note', '', 'none with vmmlane')
        answer.demand('ucx.deepbind', 'pass')


# ---- Python -----------------------------------------------------------------

@case
def pytorch_settings(bench):
    on, off = 'expandable_segments:True', 'expandable_segments:False'
    old = bench.venv('torch-old', 'torch-2.8.0', 'nixl_cu13-1.5.1')
    new = bench.venv('torch-new', 'torch-2.11.0+cu130')
    bench.ask(PYTORCH_ALLOC_CONF=on, PYTORCH_CUDA_ALLOC_CONF=off).demand(
        'python.pytorch', 'warn', 'disagree', 'set both alike', status=0)
    bench.ask(venv=old, PYTORCH_ALLOC_CONF=on).demand(
        'python.pytorch', 'warn', 'PyTorch 2.8.0 does not read',
        'set PYTORCH_CUDA_ALLOC_CONF as well').demand(
            'python.nixl', 'pass', 'nixl_cu13 1.5.1', status=0)
    for name in ('PYTORCH_ALLOC_CONF', 'PYTORCH_CUDA_ALLOC_CONF'):
        bench.ask(venv=new, **{name: f'max_split_size_mb:64, {on}'}).demand(
            'python.pytorch', 'pass', 'PyTorch 2.11.0+cu130, expandable')
    bench.ask(venv=new, PYTORCH_ALLOC_CONF=on, VMMLANE_CREATE='off',
              TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC='0').demand(
                  'python.pytorch', 'warn', 'handle type NONE',
                  shared('HANDLE_TYPE'))
    bench.ask(PYTORCH_CUDA_ALLOC_CONF='backend:cudaMallocAsync').demand(
        'python.pytorch', 'note', 'cannot be shared', 'VMMLANE_POOLS=default')
    bench.ask(PYTORCH_CUDA_ALLOC_CONF='backend:cudaMallocAsync',
              VMMLANE_POOLS='default').demand('python.pytorch', 'pass')


@case
def nixl_deepbind(bench):
    for word in ('1', 'perhaps'):
        bench.ask(NIXL_UCX_DEEPBIND=word).demand(
            'python.nixl', 'note', f'NIXL_UCX_DEEPBIND={word}', 'none, unless',
            status=0)
    bench.ask(NIXL_UCX_DEEPBIND='0').demand('python.nixl', 'pass')


# ---- a running process ------------------------------------------------------

@case
def good_process(bench):
    lib = bench.good_ucx
    with idle(bench, lib / 'libucp.so.0', 'libcuda.so.1') as pid:
        answer = bench.ask_running('--pid', pid)
    bad = [gate for gate in answer.gates
           if gate['verdict'] != 'pass' and
           gate['gate'] not in ('ucx.get', 'process.bound')]
    # The stand-ins are links: the process has mapped what they lead to, in a
    # folder without the rest of a UCX.
    bad = [gate for gate in bad if gate['gate'] != 'ucx.copies']
    if bad or answer.status != 0:
        raise Failed(f'status {answer.status}: {bad}')
    answer.demand('process.cuda', 'pass', 'libcuda.so.1')
    answer.demand('process.preloaded', 'pass', 'libvmmlane.so')


@case
def process_with_ucx(bench):
    with idle(bench, bench.copied('a', '1.23.0', 23, 'cuda')) as pid:
        answer = bench.ask_running('--pid', pid)
    answer.demand('ucx.copies', 'pass', '1 found, 1 can be served', status=0)
    answer.demand('ucx.version', 'pass', 'UCX 1.23.0')
    answer.demand('process.cuda', 'note', 'no CUDA')


@case
def process_whose_ucx_is_bound(bench):
    """The slots of a libucp that calls a libuct, read in the process."""
    lib = bench.copied('calls', 'calls', 22, 'cuda')
    folders = f'{bench.options.driver}:{bench.options.standins}'
    with idle(bench, lib, LD_LIBRARY_PATH=folders) as pid:
        bench.ask_running('--pid', pid).demand(
            'process.bound', 'pass', '1 calls of UCX lead through vmmlane',
            status=0)
    with idle(bench, '--deepbind', lib, LD_LIBRARY_PATH=folders) as pid:
        bench.ask_running('--pid', pid).demand(
            'process.bound', 'warn',
            'a call of libucp.so.0 leads to libuct-standin.so',
            shared('DEEPBIND'), status=0)


@case
def process_without_vmmlane(bench):
    with idle(bench, LD_PRELOAD=None) as pid:
        bench.ask_running('--pid', pid).demand(
            'process.preloaded', 'fail', 'started without vmmlane',
            'start it by `vmmlane run`', about=f'process {pid}', status=1)
    with idle(bench, LD_PRELOAD='/nowhere/libvmmlane.so') as pid:
        bench.ask_running('--pid', pid).demand(
            'process.preloaded', 'fail', 'it is not loaded',
            'a path that exists in its container', status=1)


@case
def process_with_settings(bench):
    with idle(bench, VMMLANE='off', UCX_TLS='tcp') as pid:
        bench.ask_running('--pid', pid).demand(
            'settings.on', 'fail', 'VMMLANE is off', 'unset VMMLANE').demand(
                'ucx.tls', 'fail', 'UCX_TLS=tcp', 'add cuda_copy', status=1)


@case
def process_with_pytorch(bench):
    """The version lies beside what the process has loaded."""
    venv = bench.venv('torch', 'torch-2.8.0', 'nixl_cu12-1.2.0')
    site = next(venv.glob('lib/python3*/site-packages'))
    library = shutil.copy(
        Path(bench.options.standins, 'standin-cuda.so').resolve(), site)
    with idle(bench, library, NIXL_UCX_DEEPBIND='1',
              PYTORCH_ALLOC_CONF='expandable_segments:True') as pid:
        answer = bench.ask_running('--pid', pid)
    answer.demand('python.pytorch', 'warn', 'PyTorch 2.8.0 does not read',
                  'set PYTORCH_CUDA_ALLOC_CONF as well', status=0)
    answer.demand('python.nixl', 'note', 'NIXL_UCX_DEEPBIND=1', 'none, unless')


@case
def process_not_dumpable(bench):
    if os.geteuid() != 0:
        raise Skip('its files in /proc are for root alone')
    # To others it is root's: a user's own process shows it.
    for transport, verdict, status in ((None, 'warn', 0), ('getfd', 'fail', 1)):
        with idle(bench, '--user', '1000', '--not-dumpable',
                  VMMLANE_TRANSPORT=transport) as pid:
            bench.ask_running('--pid', pid).demand(
                'process.dumpable', verdict, 'not dumpable', shared('SOCKET'),
                status=status)


@case
def process_under_a_filter(bench):
    with idle(bench, before=(bench.options.gate, 'EPERM',
                             'pidfd_getfd')) as pid:
        bench.ask_running('--pid', pid).demand(
            'process.seccomp', 'note', 'cannot be seen from outside',
            'run `vmmlane doctor` inside its container', status=0)


@case
def process_with_few_descriptors(bench):
    with idle(bench, before=('prlimit', '--nofile=1100:1100')) as pid:
        bench.ask_running('--pid', pid).demand(
            'limits.descriptors', 'warn', 'room for 12 chunks',
            shared('DESCRIPTORS_HARD'), status=0)


@case
def process_of_another_user(bench):
    """Asked by one who may not look at it."""
    if os.geteuid() != 0:
        raise Skip('needs root to become another user')
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = shutil.copy(bench.options.vmmlane, folder)
        foreign = {'program': program, 'LD_PRELOAD': None,
                   'LD_LIBRARY_PATH': None,
                   'before': ('setpriv', '--reuid=1000', '--regid=1000',
                              '--clear-groups')}
        with idle(bench) as pid, idle(bench, '--user', '1000') as own:
            answer = bench.ask_running('--pid', pid, **foreign)
            answer.demand('process.readable', 'fail', 'cannot be judged',
                          'ask as root, or as its user', status=1)
            # Of an environment that was not seen nothing is said.
            guessed = [gate['gate'] for gate in answer.gates
                       if gate['gate'].startswith(('python.', 'ucx.'))]
            if guessed:
                raise Failed(f'judged unseen: {guessed}')
            answer = bench.ask_running('--pair', pid, own, **foreign)
            answer.demand('pair.pid_namespace', 'skip', f'process {pid}',
                          'ask as root, or as its user', status=1)
            if any(gate['gate'] == 'pair.transport' for gate in answer.gates):
                raise Failed('a way was judged unseen')


# ---- a pair -----------------------------------------------------------------

@case
def good_pair(bench):
    ucx = bench.copied('a', '1.22.0', 22, 'cuda')
    with idle(bench, ucx) as a, idle(bench, ucx) as b:
        answer = bench.ask_running('--pair', a, b)
        bad = [gate for gate in answer.gates if gate['gate'][:5] == 'pair.' and
               gate['verdict'] != 'pass']
        if bad or answer.status != 0:
            raise Failed(f'status {answer.status}: {bad}')
        for one, other in ((a, b), (b, a)):
            answer.demand('pair.transport', 'pass',
                          'pidfd_getfd(2) and the socket',
                          about=f'process {one} reads process {other}')


@case
def pair_of_two_users(bench):
    if os.geteuid() != 0:
        raise Skip('needs root to become another user')
    with idle(bench) as a, idle(bench, '--user', '1000') as b:
        answer = bench.ask_running('--pair', a, b)
        answer.demand('pair.user', 'fail', 'users 0 and 1000', shared('USER'),
                      status=1)
        # Root may take a user's, not the other way.
        answer.demand('pair.pidfd_getfd', 'pass',
                      about=f'process {a} reads process {b}')
        answer.demand('pair.pidfd_getfd', 'warn', 'denied', shared('PTRACE'),
                      about=f'process {b} reads process {a}')


@case
def pair_in_two_pid_namespaces(bench):
    apart = unshared('--pid', '--fork')
    with idle(bench) as a, idle(bench, before=apart) as b:
        answer = bench.ask_running('--pair', a, b)
        answer.demand('pair.pid_namespace', 'warn', 'two PID namespaces',
                      shared('PID_NAMESPACE'), status=0)
        answer.demand('pair.transport', 'pass', 'by the socket',
                      about=f'process {a} reads process {b}')


@case
def pair_in_two_containers(bench):
    apart = unshared('--pid', '--net', '--fork')
    with idle(bench) as a, idle(bench, before=apart) as b:
        answer = bench.ask_running('--pair', a, b)
        answer.demand('pair.net_namespace', 'warn', 'two network namespaces',
                      'share the network namespace', status=1)
        answer.demand('pair.transport', 'fail', 'no way',
                      shared('PID_NAMESPACE'),
                      about=f'process {b} reads process {a}')


@case
def pair_of_two_user_namespaces(bench):
    apart = unshared('--user', '--map-root-user')
    with idle(bench) as a, idle(bench, before=apart) as b:
        answer = bench.ask_running('--pair', a, b)
        answer.demand('pair.user_namespace', 'note', 'two user namespaces',
                      status=0)
        answer.demand('pair.pidfd_getfd', 'pass',
                      about=f'process {a} reads process {b}')
        # What root may in its own namespace it may not outside.
        answer.demand('pair.pidfd_getfd', 'warn', 'denied', shared('PTRACE'),
                      about=f'process {b} reads process {a}')
        answer.demand('pair.transport', 'pass', 'by the socket',
                      about=f'process {b} reads process {a}')


@case
def pair_of_two_versions(bench):
    with idle(bench) as a, idle(
            bench, LD_PRELOAD=bench.options.other_shim) as b:
        bench.ask_running('--pair', a, b).demand(
            'pair.version', 'fail', 'ledger 200', shared('VERSION'), status=1)


@case
def pair_of_one_with_vmmlane(bench):
    with idle(bench) as a, idle(bench, LD_PRELOAD=None) as b:
        bench.ask_running('--pair', a, b).demand(
            'process.preloaded', 'fail', 'without vmmlane',
            'start it by `vmmlane run`', about=f'process {b}', status=1)


def ask_pair(bench, one, other, before=()):
    with idle(bench, one) as a, idle(bench, other, before=before) as b:
        return bench.ask_running('--pair', a, b)


@case
def pair_of_two_ucx(bench):
    old = bench.copied('old', '1.20.1', 22, 'cuda')
    plain = bench.copied('plain', '1.22.0', 22, 'cuda')
    fabric = bench.copied('fabric', '1.22.0', 22, 'cuda-fabric')
    same = 'the same UCX in both processes'
    ask_pair(bench, old, plain).demand('pair.ucx', 'note',
                                       'UCX 1.20.1 and 1.22.0', same, status=0)
    ask_pair(bench, plain, fabric).demand(
        'pair.ucx', 'fail', 'built without fabric', same, status=1)


@case
def pair_whose_ucx_keeps_to_its_namespace(bench):
    apart = unshared('--pid', '--fork')
    new = bench.copied('new', '1.23.0', 23, 'cuda')
    old = bench.copied('old', '1.20.1', 22, 'cuda')
    ask_pair(bench, new, new, apart).demand(
        'pair.ucx', 'fail', 'for fabric memory alone',
        shared('UCX_PID_NAMESPACE'), status=1)
    ask_pair(bench, old, old, apart).demand('pair.ucx', 'pass', status=0)
    with idle(bench, old, before=apart) as a, \
            idle(bench, old, before=apart) as b:
        bench.ask_running('--pair', a, b).demand(
            'pair.ucx', 'fail', 'of the same number',
            shared('UCX_PID_NAMESPACE'), status=1)


@case
def pair_without_a_way(bench):
    if os.geteuid() != 0:
        raise Skip('needs root to become another user')
    closed = {'VMMLANE_TRANSPORT': 'getfd'}
    with idle(bench, '--user', '1000', **closed) as a, \
            idle(bench, '--user', '1000', '--not-dumpable', **closed) as b:
        answer = bench.ask_running('--pair', a, b)
        answer.demand('pair.transport', 'fail', 'no way', shared('SOCKET'),
                      about=f'process {a} reads process {b}', status=1)
        answer.demand('pair.transport', 'pass', 'by pidfd_getfd(2)',
                      about=f'process {b} reads process {a}')


@case
def each_gate_is_documented(bench):
    del bench
    table = re.findall(r'^\| `([a-z]+\.\w+)`',
                       (ROOT / 'docs/doctor.md').read_text(), re.MULTILINE)
    used = set()
    for source in (ROOT / 'src/doctor').glob('*.c'):
        used.update(re.findall(
            r'"((?:kernel|limits|settings|driver|ucx|python|process|pair)'
            r'\.\w+)"', source.read_text()))
    if sorted(used) != sorted(table):
        raise Failed(f'{used ^ set(table)}, {len(table)} lines')


# ---- all --------------------------------------------------------------------

def run_case(function, bench):
    try:
        function(bench)
    except Skip as reason:
        print(f'skip {function.__name__}: {reason}')
        return SKIP
    except (Failed, subprocess.TimeoutExpired) as problem:
        print(f'FAIL {function.__name__}: {problem}')
        return 1
    print(f'ok   {function.__name__}')
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ('vmmlane', 'shim', 'other-shim', 'gate', 'kernel', 'idle',
                 'standins', 'driver', 'bad-driver'):
        parser.add_argument(f'--{name}', required=True, type=os.path.realpath)
    parser.add_argument('cases', nargs='*')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gate = Bench(options, folder).ask().find('kernel.pidfd_getfd', None)
    if gate['verdict'] != 'pass':
        print(f"skip: the tests themselves run where {gate['evidence']}")
        return SKIP
    results = []
    for function in CASES:
        if options.cases and function.__name__ not in options.cases:
            continue
        # One folder for each: cases make copies of their own.
        with tempfile.TemporaryDirectory() as folder:
            results.append(run_case(function, Bench(options, folder)))
    failed = results.count(1)
    print(f'{results.count(0)} passed, {failed} failed, '
          f'{results.count(SKIP)} skipped')
    if failed:
        return 1
    return SKIP if results.count(SKIP) == len(results) else 0


if __name__ == '__main__':
    sys.exit(main())
