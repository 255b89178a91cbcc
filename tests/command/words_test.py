#!/usr/bin/env python3
"""What the documentation says against the sources: settings, lines of the log.

Usage: words_test.py SOURCE_ROOT VMMLANE
"""

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / 'docs/man'))

import settings
from check import check, end, run


def table(text):
    """{variable: words in its column of values}."""
    rows = re.findall(r'^\| `(VMMLANE\w*)` \| ([^|]*) \|', text, re.M)
    return {variable: re.findall(r'`([^`]+)`', values)
            for variable, values in rows}


def literals():
    """All strings of the sources, with adjacent ones joined."""
    strings = []
    for path in (ROOT / 'src').rglob('*.[ch]'):
        text = settings.without_comments(path.read_text())
        for row in re.findall(r'(?:"(?:\\.|[^"\\\n])*"\s*(?:\\\n\s*)?)+', text):
            strings.append(''.join(re.findall(r'"((?:\\.|[^"\\])*)"', row)))
    return '\n'.join(strings)


def log_lines():
    page = (ROOT / 'docs/troubleshooting.md').read_text()
    section = page.split('## What the log says')[1].split('\n## ')[0]
    return re.findall(r'^\| `([^`]+)` \|', section, re.M)


def dead_links():
    pages = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
    return [f'{page.name}: {target}' for page in pages
            for target in re.findall(r'\]\(([^)#]+)', page.read_text())
            if '://' not in target and not (page.parent / target).exists()]


def picture():
    with tempfile.NamedTemporaryFile(suffix='.svg') as new:
        result = run([sys.executable, str(ROOT / 'scripts/picture'), '--out',
                      new.name])
        check('the picture is drawn', result.returncode, 0)
        check('the picture is that of the data', Path(new.name).read_text() ==
              (ROOT / 'docs/bandwidth.svg').read_text(), True)


def manual():
    """Every option is in vmmlane(1), under its subcommand."""
    page = (ROOT / 'docs/man/vmmlane.1.scd').read_text()
    for name in [''] + re.findall(r'^VMML_COMMAND\((\w+),', (
            ROOT / 'src/command/commands.def').read_text(), re.M):
        text = run([sys.argv[2], *name.split(), '--help']).stdout
        options = set(re.findall(r'^ +(?:-\S, )?--([a-z-]+)', text, re.M))
        section = re.search(rf'^# {name.upper() or "OPTIONS"}\n(.*?)^# ', page,
                            re.M | re.S)
        written = re.findall(r'^\*--([a-z-]+)\*', section[1] if section else '',
                             re.M)
        common = {'help', 'usage', 'version'}
        check(f'vmmlane(1): {name or "options"}',
              sorted(set(written) - common), sorted(options - common))


def topics():
    """Each source folder is a topic of VMMLANE_LOG."""
    text = (ROOT / 'src/base/levels.c').read_text()
    table = re.search(r'vmml_log_topics\[.*?\{(.*?)\}', text, re.S)[1]
    folders = {p.name for p in (ROOT / 'src').iterdir() if p.is_dir()}
    check('topics of the log',
          sorted(folders - set(re.findall(r'"(\w+)"', table))), [])


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
    shown = re.findall(r'^(VMMLANE\w*)(?:=TEXT| = (.*))\n((?:    .*\n)+)',
                       run([sys.argv[2], '--settings']).stdout, re.M)
    check('vmmlane --settings',
          [(name, [word for word in words.split(' | ') if word],
            ' '.join(text.split())) for name, words, text in shown],
          [(s.variable, s.values, s.meaning) for s in library])
    set_by_run = re.findall(r'\{VMML_KEY_\w+, "(\w+)"', (
        ROOT / 'src/command/run.c').read_text())
    check('what run sets are settings',
          sorted(set(set_by_run) - {s.variable for s in library}), [])
    check('links between pages', dead_links(), [])
    picture()
    manual()
    topics()
    known = literals()
    lines = log_lines()
    check('lines of the log are found', len(lines) > 10, True)
    for line in lines:
        missing = [part for part in map(str.strip, line.split('...'))
                   if part.strip(' :') and part.strip(' :') not in known]
        check(line, missing, [])
    end()


if __name__ == '__main__':
    main()
