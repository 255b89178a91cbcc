#!/usr/bin/env python3
"""The library's settings, read from its table (src/base/toggles.def).

Usage: settings.py SOURCE_FOLDER [TEMPLATE]

With a TEMPLATE, a manual page in scdoc's language, prints it with the settings
in place of the line @SETTINGS@; without, prints one line for each setting:
variable, values (default first), meaning.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    variable: str
    values: list  # default first; empty: text, not set by default
    meaning: str


def without_comments(text):
    return re.sub(r'/\*.*?\*/', '', text, flags=re.S)


def choices(source):
    """{table: [(word, value in C)]} of base/choices.h."""
    text = without_comments((source / 'base/choices.h').read_text())
    tables = re.findall(r'vmml_choice (\w+)\[\] = \{(.*?)\{NULL, 0\}\}', text,
                        re.S)
    return {name: re.findall(r'\{"(\w+)",\s*(\w+)\}', body)
            for name, body in tables}


def split_arguments(text):
    """Arguments of a macro: a ',' inside a string ends none."""
    return [part.strip() for part in
            re.findall(r'((?:"(?:\\.|[^"\\])*"|[^,"])+)', text)]


def words(table, fallback):
    default = [word for word, value in table if value == fallback]
    if len(default) != 1:
        sys.exit(f'settings.py: no word for the default {fallback}')
    return default + [word for word, _ in table if word not in default]


def read(source):
    source = Path(source)
    tables = choices(source)
    text = without_comments((source / 'base/toggles.def').read_text())
    text = re.sub(r'^#.*', '', text, flags=re.M)
    settings = []
    for kind, body in re.findall(
            r'VMML_TOGGLE_(\w+)\(((?:"(?:\\.|[^"\\])*"|[^")])*)\)', text):
        arguments = split_arguments(body)
        meaning = ''.join(re.findall(r'"((?:\\.|[^"\\])*)"', arguments[-1]))
        values = []
        if kind == 'CHOICE':
            values = words(tables[arguments[2]], arguments[3])
        elif kind == 'LOG_LEVEL':
            values = words(tables['vmml_log_choices'], 'VMML_LOG_WARN')
        settings.append(Setting(arguments[0], values, meaning))
    if not settings:
        sys.exit('settings.py: no settings found')
    return settings


def manual(settings):
    lines = []
    for variable, values, meaning in settings:
        shown = ' | '.join(f'*{value}*' if i == 0 else value
                           for i, value in enumerate(values))
        lines += [f'*{variable}*' + (f' = {shown}' if shown else '=_text_'),
                  '\t' + re.sub(r'(?<=\w)_(?=\w)', r'\\_', meaning), '']
    return '\n'.join(lines).rstrip()


def main():
    settings = read(sys.argv[1])
    if len(sys.argv) == 2:
        for variable, values, meaning in settings:
            print(variable, ','.join(values) or '-', meaning, sep='\t')
        return
    for line in Path(sys.argv[2]).read_text().splitlines():
        print(manual(settings) if line == '@SETTINGS@' else line)


if __name__ == '__main__':
    main()
