#!/usr/bin/env python3
"""The README's table of settings against the library's own.

Usage: words_test.py SOURCE_ROOT
"""

import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / 'docs/man'))

import settings
from check import check, end


def table(text):
    """{variable: words in its column of values}."""
    rows = re.findall(r'^\| `(VMMLANE\w*)` \| ([^|]*) \|', text, re.M)
    return {variable: re.findall(r'`([^`]+)`', values)
            for variable, values in rows}


def main():
    readme = table((ROOT / 'README.md').read_text())
    library = settings.read(ROOT / 'src')
    check('variables', sorted(readme), sorted(s.variable for s in library))
    for setting in library:
        # Text has no list of values; what the README shows there is a default.
        if setting.values and setting.variable in readme:
            shown = readme[setting.variable]
            check(setting.variable, (shown[:1], sorted(shown)),
                  (setting.values[:1], sorted(setting.values)))
    end()


if __name__ == '__main__':
    main()
