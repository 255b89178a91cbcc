# SPDX-License-Identifier: MIT
"""Becomes the program `vmmlane`: same process, signals and exit status."""

import os
import sys

import vmmlane


def main():
    program = vmmlane.command()
    try:
        os.execv(program, ['vmmlane', *sys.argv[1:]])
    except OSError as error:
        sys.exit(f'vmmlane: {program}: {error.strerror}')


if __name__ == '__main__':
    main()
