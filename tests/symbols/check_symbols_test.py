#!/usr/bin/env python3
"""Show that every rule of check_symbols.py can fail.

Usage: check_symbols_test.py COMPILER [ARGUMENT ...]

Links small libraries, a good one and one for each rule that breaks it.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import check_symbols

COMPILER = []

GOOD = 'int hook(int x) { return x; }\n'
ANONYMOUS = '{ global: hook; local: *; };'
EXPORTS = '# what the library shows\nhook\n'


def failing(source=GOOD, version_script=ANONYMOUS, exports=EXPORTS,
            arguments=()):
    """Link a library and return the names of the rules that it breaks."""
    with tempfile.TemporaryDirectory() as folder:
        def path(name, text):
            full = os.path.join(folder, name)
            with open(full, 'w', encoding='utf-8') as file:
                file.write(text)
            return full

        library = os.path.join(folder, 'lib.so')
        subprocess.run(
            [*COMPILER, '-shared', '-fPIC', '-O1', '-Wl,-Bsymbolic-functions',
             '-Wl,--version-script=' + path('map', version_script), '-o',
             library, path('lib.c', source), *arguments], check=True)
        report = check_symbols.check(library, path('exports', exports))
        return [rule for rule, problems, _ in report if problems]


class Rules(unittest.TestCase):
    def test_good_library_passes(self):
        self.assertEqual(failing(), [])

    def test_export_that_is_not_listed(self):
        self.assertEqual(failing(exports='\n'), ['export list'])

    def test_listed_name_that_is_not_exported(self):
        self.assertEqual(failing(exports='hook\nlost\n'), ['export list'])

    def test_list_out_of_order(self):
        self.assertEqual(
            failing(GOOD + 'int a(void) { return 0; }\n',
                    '{ global: hook; a; local: *; };', 'hook\na\n'),
            ['export list'])

    def test_other_library_needed(self):
        self.assertEqual(
            failing('double cos(double);\n'
                    'double hook(double x) { return cos(x); }\n',
                    arguments=['-Wl,--no-as-needed', '-lm']),
            ['needed libraries'])

    def test_named_version_script(self):
        # The version's name is exported too.
        self.assertEqual(
            failing(version_script='NAME { global: hook; local: *; };',
                    exports='NAME\nhook\n'),
            ['anonymous versions'])

    def test_own_export_through_the_plt(self):
        self.assertEqual(
            failing('int hook(int);\nint other(int x) { return hook(x) + 1; }\n'
                    '__attribute__((noinline)) int hook(int x)'
                    ' { return x * 3; }\n',
                    '{ global: hook; other; local: *; };', 'hook\nother\n',
                    ['-Wl,-Bno-symbolic', '-fno-ipa-cp']),
            ['own exports'])

    def test_foreign_symbol(self):
        self.assertEqual(
            failing('int cuInit(int);\nint hook(int x) { return cuInit(x); }\n'),
            ['foreign symbols'])

    def test_too_much_thread_local_memory(self):
        self.assertEqual(
            failing('__thread char big[4096];\n'
                    'char *hook(int i) { return &big[i]; }\n'),
            ['thread-local size'])

    def test_glibc_too_new(self):
        limit = check_symbols.GLIBC_LIMIT
        check_symbols.GLIBC_LIMIT = (2, 1)
        try:
            self.assertEqual(
                failing('int getpid(void);\n'
                        'int hook(void) { return getpid(); }\n'),
                ['glibc version'])
        finally:
            check_symbols.GLIBC_LIMIT = limit


if __name__ == '__main__':
    COMPILER = sys.argv[1:] or ['cc']
    unittest.main(argv=sys.argv[:1], verbosity=2)
