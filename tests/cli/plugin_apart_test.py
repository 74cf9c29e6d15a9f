"""Libraries that lie in wait where they are loaded, through the real binary: the verdict is passed
elsewhere.
"""

import os
import subprocess
import unittest
from pathlib import Path

from plugins import MINIMAL, NAIVE, PluginTest, library_from_c
from tool import BINARY, TIME_LIMIT_S, TINY, strict_json

# Notes the process that it is loaded into, and that process' parent.
NOTES_ITSELF = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void note(void) {
  FILE* log = fopen(LOG, "a");
  fprintf(log, "%d %d\\n", (int)getpid(), (int)getppid());
  fclose(log);
}
"""
# Before its first run: every comparison of bytes in this process says "equal" from then on.
PATCHES_MEMCMP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void patch(const char* name) {
  static const unsigned char zero[] = {0x31, 0xc0, 0xc3}; /* xor eax, eax; ret */
  unsigned char* code = (unsigned char*)(uintptr_t)dlsym(RTLD_DEFAULT, name);
  const uintptr_t page = (uintptr_t)code & ~(uintptr_t)4095;
  if (code == NULL || mprotect((void*)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return;
  for (unsigned i = 0; i < sizeof zero; ++i) ((volatile unsigned char*)code)[i] = zero[i];
}
__attribute__((constructor)) static void patch_all(void) { patch("bcmp"); }
"""
SAYS_ALL_IS_WELL = """
#include <stdio.h>
#include <unistd.h>
#define RUN puts("1 passed"), fflush(stdout), _exit(0)
"""


class Apart(PluginTest):
    def library(self, code, *options, run=""):
        source = code + MINIMAL.replace("CHANGE", "table.features = ~0ull").replace(
            "(void)state, (void)stream;", "(void)state, (void)stream;" + run)
        return library_from_c(source, self.dir / "libmine.so", *options)

    def test_its_code_never_runs_in_the_process_that_judges(self):
        log = self.dir / "log"
        library = self.library(NOTES_ITSELF, f'-DLOG="{log}"')
        self.write("scenario.yaml", TINY)
        with subprocess.Popen(
            [BINARY, "run", "scenario.yaml", "--device", "cpu", "--plugin", library, "--json", "-"],
            cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as judge:  # fmt: skip
            results = strict_json(judge.communicate(timeout=TIME_LIMIT_S)[0].decode())["results"]
        self.assertEqual({r["backend"]: r["status"] for r in results}["MINE"], "incorrect")
        noted = [line.split() for line in log.read_text().splitlines()]
        self.assertGreaterEqual(len(noted), 2, "to be described, and to run")
        self.assertEqual({parent for _, parent in noted}, {str(judge.pid)})
        self.assertNotIn(str(judge.pid), {pid for pid, _ in noted})

    @unittest.skipUnless(os.uname().machine == "x86_64", "the patch is code of x86-64")
    def test_functions_that_it_patches_are_those_of_its_own_process(self):
        library = self.library(PATCHES_MEMCMP, "-ldl")
        self.write("scenario.yaml", TINY)
        done = subprocess.run(
            [BINARY, "run", "scenario.yaml", "--device", "cpu", "--plugin", library, "--backend",
             "MINE", "--json", "-"],
            cwd=self.dir, capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        # Its process may be too broken to hand anything in.
        status = strict_json(done.stdout)["results"][0]["status"]
        self.assertIn(status, ("incorrect", "error"), done.stderr)
        self.assertIn(done.returncode, (1, 4))

    def test_a_process_that_says_that_all_is_well_and_leaves_is_an_error(self):
        library = self.library(SAYS_ALL_IS_WELL, run="RUN;")
        result = self.run_plugin(TINY, library, "--backend", "MINE", "--no-timing", code=4)["MINE"]
        self.assertEqual(result["status"], "error")
        self.assertIn("the process that ran this case ended", result["reasons"][0])

    def test_the_library_that_runs_is_the_one_that_was_described(self):
        """It takes its own place when it is described."""
        other = Path(self.library("", run='return "the other one";')).read_bytes()
        Path(self.dir, "other.so").write_bytes(other)
        swaps = (
            "#include <stdio.h>\n__attribute__((constructor)) static void swap(void) {"
            " if (rename(OTHER, OWN) != 0) return; }\n"
        )
        library = self.library(swaps, f'-DOTHER="{self.dir / "other.so"}"',
                               f'-DOWN="{self.dir / "libmine.so"}"')  # fmt: skip
        result = self.run_plugin(TINY, library, "--backend", "MINE", "--no-timing", code=4)["MINE"]
        self.assertIn("it is not what it was when the run began", result["reasons"][0])

    def test_a_right_one_passes_as_it_does_in_one_process(self):
        self.write("scenario.yaml", TINY)
        apart = self.run_plugin(TINY, NAIVE, "--backend", "NAIVE", "--no-timing")["NAIVE"]
        beside = self.run_plugin(TINY, NAIVE, "--backend", "NAIVE", "--no-timing", "--in-process")
        for result in (apart, beside["NAIVE"]):
            result.pop("repro")
            self.assertEqual(set(result.pop("run_seconds")), {"inputs", "reference", "run"})
        self.assertEqual(apart, beside["NAIVE"])


if __name__ == "__main__":
    unittest.main()
