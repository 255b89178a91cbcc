#!/usr/bin/env python3
"""The table of scripts/bench, from lines of what its parts measured.

A line has fields with a tab between: the part, the figure, the case, the value,
its unit, and what it must be: "<= N", ">= N", "= N", or "-" for a figure that
is measured only. Two other lines tell of a part that has no figures:
"PART not-run REASON" and "PART failed REASON", with tabs.
"""
import argparse
import json
import operator
import sys

RULES = {'<=': operator.le, '>=': operator.ge, '=': operator.eq}
MISSED = {'<=': 'above', '>=': 'below', '=': 'differs'}


def verdict(value, must):
    """'' for a figure without a limit, 'ok', or how it is missed."""
    if must == '-':
        return ''
    rule, limit = must.split()
    return 'ok' if RULES[rule](value, float(limit)) else MISSED[rule]


def shown(value):
    """Four digits, no more than are known."""
    if value == int(value):
        return f'{int(value):,}'
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def read(lines):
    """The figures, and the parts without, as dictionaries."""
    figures, others = [], []
    for line in lines:
        fields = line.rstrip('\n').split('\t')
        if len(fields) == 3:
            others.append(dict(zip(('part', 'verdict', 'reason'), fields)))
            continue
        part, figure, case, value, unit, must = fields
        figures.append({
            'part': part, 'figure': figure, 'case': case,
            'value': float(value), 'unit': unit, 'must': must,
            'verdict': verdict(float(value), must),
        })
    return figures, others


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print('  '.join(cell.rjust(width) if i == 2 else cell.ljust(width)
                        for i, (cell, width) in enumerate(zip(row, widths)))
              .rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('figures')
    parser.add_argument('--json')
    arguments = parser.parse_args()
    with open(arguments.figures, encoding='utf-8') as lines:
        figures, others = read(lines)
    rows = [('figure', 'case', 'measured', 'unit', 'must be', '')]
    rows += [(f['figure'], f['case'], shown(f['value']), f['unit'],
              f['must'].replace('-', ''), f['verdict']) for f in figures]
    print_table(rows)
    for other in others:
        print(f"{other['part']}: {other['verdict']}: {other['reason']}")
    if arguments.json:
        with open(arguments.json, 'w', encoding='utf-8') as out:
            json.dump(figures + others, out, indent=1)
            out.write('\n')
    if any(other['verdict'] == 'failed' for other in others):
        return 1
    return 3 if any(f['verdict'] not in ('', 'ok') for f in figures) else 0


if __name__ == '__main__':
    sys.exit(main())
