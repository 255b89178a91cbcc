# SPDX-License-Identifier: MIT
"""libvmmlane.so, to be preloaded, and the command that does so.

From a shell:    vmmlane run -- python job.py
From Python:     environment = vmmlane.environment()
                 subprocess.run(['python', 'job.py'], env=environment)

It is preloaded, never imported: in a process that runs already it has no
effect.
"""

import os

_HERE = os.path.dirname(os.path.abspath(__file__))


def library():
    """The path of libvmmlane.so, for LD_PRELOAD."""
    return os.path.join(_HERE, 'libvmmlane.so')


def command():
    """The path of the program that `vmmlane` runs."""
    return os.path.join(_HERE, 'bin', 'vmmlane')


def environment(base=None, **settings):
    """A copy of `base` (this process's environment) for a program with vmmlane.

    The library is preloaded behind what is preloaded already. `settings` are
    vmmlane's own without their prefix: log='debug' is VMMLANE_LOG=debug.
    """
    result = dict(os.environ if base is None else base)
    preload = result.get('LD_PRELOAD', '')
    if library() not in preload.replace(' ', ':').split(':'):
        result['LD_PRELOAD'] = (preload + ':' if preload else '') + library()
    for name, value in settings.items():
        result['VMMLANE_' + name.upper()] = str(value)
    return result
