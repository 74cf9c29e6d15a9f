"""Libraries that cannot be loaded, through the real binary: each is told so before anything runs."""

import os
import shutil
import signal
import subprocess
import unittest

from plugins import HEADER_DIR, MINIMAL, NAIVE, PluginTest, library_from_c
from tool import BINARY, TIME_LIMIT_S, TINY, thorough


LEAVES_AT_ONCE = """
#include <stdlib.h>
__attribute__((constructor)) static void leave(void) { exit(0); }
"""
# Changes of a table, and the words that refuse it.
UNUSABLE = (
    ("table.abi_version = 7",
     ("E-FORMAT", "speaks version 7 of the plugin interface, this program versions 1 to 2")),
    ("table.struct_size = 24", ("E-FORMAT", "struct_size is 24")),
    ("table.name = 0", ("E-VALUE", "name: expected")),
    ('table.name = "a/b"', ("E-VALUE", "found 'a/b'")),
    ('table.name = "FLASH_ATTN"', ("E-VALUE", "'FLASH_ATTN' is taken by a built-in")),
    ("table.version = 0", ("E-VALUE", "backend 'MINE': version is missing")),
    ("table.run = 0", ("E-VALUE", "run is missing")),
    ("table.prepare = 0", ("E-VALUE", "prepare is missing")),
    ("table.devices = 0", ("E-VALUE", "devices: expected at least one")),
    ("table.kv = 9", ("E-VALUE", "kv is 9")),
    ("table.lse = 3", ("E-VALUE", "lse is 3")),
    ("table.lse_axes = 2", ("E-VALUE", "lse_axes is 2")),
    ("table.operations = 1",
     ("E-VALUE", "operations without ATTNBENCH_OP in attention_types")),
    ("table.attention_types |= ATTNBENCH_OP",
     ("E-VALUE", "attention_types has ATTNBENCH_OP, operations none")),
    ("table.attention_types |= ATTNBENCH_OP; table.operations = 8192",
     ("E-VALUE", "operations is 8192")),
    ("table.attention_types |= ATTNBENCH_MLA_PREFILL",
     ("E-VALUE", "expected ATTNBENCH_LSE_NATURAL and ATTNBENCH_LSE_HT with ATTNBENCH_MLA_PREFILL")),
    ("table.attention_types |= ATTNBENCH_MLA_PREFILL | ATTNBENCH_MLA; table.lse = 1",
     ("E-VALUE", "found both: they are two backends")),
    ("if (index < 2) return &table", ("E-VALUE", "two backends have the name 'MINE'")),
    ("return 0", ("E-VALUE", "has no backend")),
)


class NoLibrary(PluginTest):
    """Everything that is wrong with a library is told before anything runs, with exit code 2."""

    def refused(self, library, *parts):
        self.write("tiny.yaml", TINY)
        outcome = self.expect(2, "run", "tiny.yaml", "--device", "cpu", "--plugin", library,
                              "--json", "out.json")  # fmt: skip
        self.assertFalse((self.dir / "out.json").exists())
        self.assertEqual(outcome.out, "")
        for part in (f"--plugin '{library}'", *parts):
            self.assertIn(part, outcome.err)

    def changed(self, change, head=""):
        return library_from_c(head + MINIMAL.replace("CHANGE", change), self.dir / "libmine.so")

    def patched(self, offset, value):
        """The example with one byte of its ELF header changed."""
        data = bytearray(NAIVE.read_bytes())
        data[offset] = value
        return self.write("patched.so", bytes(data))

    def test_files_that_are_no_library(self):
        self.refused("nowhere.so", "E-IO", "No such file")
        self.refused(str(self.dir), "E-IO", "folder")
        self.refused(self.write("empty.so", b""), "E-FORMAT", "the file is empty")
        self.refused(self.write("text.so", "int main() {}"), "E-FORMAT", "no ELF header")
        self.refused(self.write("short.so", b"\x7fELF\x02\x01"), "E-FORMAT", "cut off")
        self.refused(self.write("cut.so", NAIVE.read_bytes()[:200]), "E-FORMAT", "cannot be loaded")

    def test_libraries_of_another_machine(self):
        other = 183 if os.uname().machine == "x86_64" else 62
        name = "AArch64" if other == 183 else "x86-64"
        self.refused(self.patched(18, other), "E-FORMAT: ", f"it is built for {name}")
        self.refused(self.patched(4, 1), "it is built for 32 bits")
        self.refused(self.patched(5, 2), "big-endian")
        self.refused(self.patched(16, 1), "an object file (link it with -shared)")

    def test_libraries_that_do_not_load(self):
        source = "extern int nobody_has_this(void); int f(void) { return nobody_has_this(); }"
        library = library_from_c("int f(void);" + source, self.dir / "libmine.so")
        self.refused(library, "E-FORMAT", "cannot be loaded", "nobody_has_this")
        library = library_from_c("int f(void); int f(void) { return 0; }", self.dir / "libf.so")
        self.refused(library, "E-FORMAT", "exports no function attnbench_backend()")

    def check_tables(self, changes):
        for change, parts in changes:
            with self.subTest(change=change):
                self.refused(self.changed(change), *parts)

    def test_tables_that_cannot_be_used(self):
        # For each a library is compiled.
        self.check_tables(UNUSABLE[::4])

    @thorough
    def test_all_tables_that_cannot_be_used(self):
        self.check_tables(UNUSABLE)

    def test_words_for_the_terminal_have_no_control_characters(self):
        library = self.changed('table.description = "red \\x1b[31m"')
        listed = self.expect(0, "list", "backends", "--plugin", library)
        self.assertIn("red \\x1b[31m", listed.out)
        self.assertNotIn("\x1b", listed.out)

    def test_two_libraries_with_one_name(self):
        copy = self.dir / "copy.so"
        shutil.copy(NAIVE, copy)
        self.write("tiny.yaml", TINY)
        outcome = self.expect(2, "run", "tiny.yaml", "--plugin", NAIVE, "--plugin", copy)
        self.assertIn(f"'{copy}': the name 'NAIVE' is taken by '{NAIVE}'", outcome.err)

    def test_a_library_that_crashes_when_it_is_loaded(self):
        library = self.changed("*(volatile int*)0 = 1")
        self.refused(library, "E-FORMAT", "loading it ended a process: signal 11")

    def test_a_library_that_leaves_when_it_is_loaded(self):
        source = MINIMAL.replace("CHANGE;", "") + LEAVES_AT_ONCE
        library = library_from_c(source, self.dir / "libleaves.so")
        self.refused(library, "E-FORMAT", "loading it ended a process: exit status 0")

    def test_a_library_that_hangs_when_it_is_loaded(self):
        library = self.changed("for (;;) pause()", '#include <unistd.h>\n')
        self.write("tiny.yaml", TINY)
        outcome = self.expect(2, "run", "tiny.yaml", "--plugin", library, "--hang-limit", "1.5")
        self.assertIn(f"E-FORMAT: --plugin '{library}': loading it: no end after 1.5 s; killed "
                      "(run --hang-limit)", outcome.err)  # fmt: skip

    def test_one_that_hangs_ends_with_the_program(self):
        library = self.changed('write(2, "here", 4); for (;;) pause()', "#include <unistd.h>\n")
        self.write("tiny.yaml", TINY)
        ran = subprocess.Popen([BINARY, "run", "tiny.yaml", "--plugin", library], cwd=self.dir,
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)  # fmt: skip
        self.assertEqual(ran.stderr.read(4), b"here")
        ran.terminate()
        # Its end is seen once nobody has the pipe any more.
        self.assertEqual(ran.communicate(timeout=TIME_LIMIT_S)[1], b"")
        self.assertEqual(ran.returncode, -signal.SIGTERM)

    def test_older_and_newer_plugins(self):
        """A table that has more than this program knows is taken; what is missing from it is zero."""
        source = MINIMAL.replace("static AttnbenchBackend table;",
                                 "static struct { AttnbenchBackend known; char more[64]; } big;")
        source = source.replace("table.", "big.known.").replace("sizeof table", "sizeof big")
        source = source.replace("&table", "&big.known").replace("CHANGE;", "")
        library = library_from_c(source, self.dir / "libnewer.so")
        listed = self.expect(0, "list", "backends", "--plugin", library)
        self.assertIn("MINE", listed.out)


class TheHeader(unittest.TestCase):
    def test_it_is_c11_and_cxx11(self):
        header = HEADER_DIR / "attnbench_backend.h"
        for compiler, language, standard in (("gcc", "c", "c11"), ("g++", "c++", "c++11"),
                                             ("g++", "c++", "c++20")):  # fmt: skip
            subprocess.run([compiler, f"-std={standard}", "-x", language, "-fsyntax-only", "-Wall",
                            "-Wextra", "-Wpedantic", "-Werror", header],
                           check=True, timeout=TIME_LIMIT_S)  # fmt: skip


if __name__ == "__main__":
    unittest.main()
