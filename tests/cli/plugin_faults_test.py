"""Faulty backends of users' libraries, through the real binary: each costs its own case."""

import os
import unittest

from plugins import FAULTY, HANG_LIMIT, MINIMAL, NAIVE, PluginTest, library_from_c
from tool import TINY, TINY_CASE, strict_json


class Faults(PluginTest):
    """Each faulty backend costs its own case; what comes before and after it passes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        skipped = "RIGHT|.*_LATER|.*_EARLIER|.*_KEY|.*_HALF|.*_THERE|BASE_2.*|PLUS_INF|SAYS_.*|NO_LSE|RAGGED|INTERLEAVED|PLAIN|REFUSES.*|LEAVES_.*"
        cls.done, cls.by_backend = cls.run_beside(
            TINY, "--plugin", FAULTY, "--plugin", NAIVE, "--hang-limit", str(HANG_LIMIT),
            "--filter", f"/(?!({skipped})$)[A-Z_0-9]+$")  # fmt: skip

    def check(self, backend, status, *parts):
        result = self.by_backend[backend]
        self.assertEqual(result["status"], status, result["reasons"])
        self.assertIsNone(result["timing"])
        self.assertEqual(result["problem"]["attention"]["head_size"], 64)
        for part in parts:
            self.assertIn(part, "\n".join(result["reasons"]))

    def test_the_others_pass(self):
        for backend in ("FLASH_ATTN", "TRITON_ATTN", "ONLY_BATCHES", "NAIVE"):
            self.assertEqual(self.by_backend[backend]["status"], "passed")
        self.assertEqual(self.done.returncode, 1, "incorrect before error")

    def test_wrong_values_are_incorrect(self):
        self.check("WRONG", "incorrect", "output[35, 3, 63]")
        self.check("SILENT", "incorrect", "NaN or infinity in different places")
        self.check("UNSTEADY", "incorrect", "not deterministic: output[35, 3, 63]")
        unsteady = self.by_backend["UNSTEADY_SAYS_SO"]
        self.assertEqual(unsteady["status"], "passed", unsteady["reasons"])
        self.assertIn("UNSTEADY_SAYS_SO: not deterministic: output[35, 3, 63]", self.done.stderr)
        self.check("WRITES_CACHE", "incorrect", "cache write: ")
        self.check("WRITES_QUERY", "incorrect", "query was changed at [0, 0, 1]: it is an input")
        self.check("WRITES_SEQ_LENS", "incorrect", "seq_lens was changed at [0]: it is an input")
        self.check("WRITES_QUERY_START_LOC", "incorrect", "query_start_loc was changed at [5]")

    def test_an_output_that_is_remembered_is_incorrect(self):
        self.check("REMEMBERS", "incorrect", "a run with the query negated gave the same output")
        self.check("REMEMBERS_SCORES", "incorrect", "output")

    def test_timed_samples_that_do_not_do_the_work_are_incorrect(self):
        """Each is right until everything that is not timed was checked."""
        wrong = ("REMEMBERS_LATER", "REMEMBERS_SCORES_LATER", "REMEMBERS_BY_KEY", "REMEMBERS_HALF",
                 "FINISHES_LATER", "STARTS_EARLIER")  # fmt: skip
        # What computes only where nothing is there yet has to do it in every sample.
        right = ("RIGHT", "RAGGED", "INTERLEAVED", "NO_LSE", "SKIPS_WHAT_IS_THERE")
        results = self.run_plugin(TINY, FAULTY, "--samples", "24", "--timeout", "20",
                                  "--filter", f"/({'|'.join(wrong + right)})$", code=1)  # fmt: skip
        for backend in wrong:
            result = results[backend]
            self.assertEqual(result["status"], "incorrect", (backend, result["reasons"]))
            # What a thread of theirs has done by then is up to the machine: on a busy one the samples
            # that are judged may be right by luck, and the run after them is not.
            found = ("timed sample ", "remembers earlier values")
            by_thread = backend in ("FINISHES_LATER", "STARTS_EARLIER")
            self.assertTrue(result["reasons"][0].startswith(found if by_thread else found[:1]),
                            (backend, result["reasons"]))
            self.assertIsNone(result["timing"])
            self.assertIsNone(result["throughput"])
        for backend in right:
            result = results[backend]
            self.assertEqual(result["status"], "passed", (backend, result["reasons"]))
            self.assertGreaterEqual(len(result["timing"]["checked_samples"]), 3)

    def test_writes_past_a_buffer_name_it(self):
        row = 4 * 64 * 2
        size = (36 + 3) * row
        self.check("OVERRUN_OUTPUT", "error", f"out-of-bounds write: output: {row} bytes past its",
                   f"at byte {size} of a buffer of {size} bytes",
                   "run() of OVERRUN_OUTPUT")  # fmt: skip
        self.check("WRITES_PADDING", "incorrect", "output row 36 past the last token was written")
        self.check("UNDERRUN_LSE", "error", "lse: 1 byte before its start", "run() of UNDERRUN_LSE")
        self.check("OVERRUN_WORKSPACE", "error", "workspace of FAULTY: 1 byte past its end")

    def test_reads_outside_of_a_buffer_name_it_and_how_far_away_they_are(self):
        self.check("READS_PAST_SEQ_LENS", "error", "out-of-bounds access: reads past the end of",
                   "'seq_lens' (44 bytes behind it)", "run() of READS_PAST_SEQ_LENS")  # fmt: skip
        # The bytes before it are the rest of a page, but where the page begins with it.
        self.check("READS_BEFORE_QUERY", "error", "out-of-bounds access: reads before the start of",
                   "'query' (16 bytes before it)", "run() of READS_BEFORE_QUERY")  # fmt: skip

    def test_a_hang_a_crash_and_an_exit(self):
        self.check("HANGS", "error", f"no progress for {HANG_LIMIT} s in phase 'run'",
                   "run() of HANGS")  # fmt: skip
        self.check("HANGS_IN_SUPPORTS", "error",
                   "before its first phase, waiting for supports() of HANGS_IN_SUPPORTS")  # fmt: skip
        self.check("CRASHES", "error", "in phase 'run'", "run() of CRASHES", "signal 11")
        self.check("EXITS", "error", "the process that ran this case ended", "run() of EXITS")

    def test_its_own_words_are_passed_on(self):
        for backend, words in (
            ("FAILS", "FAILS: run(): the launch failed"),
            ("THROWS", "THROWS: run(): threw an exception: no way"),
            ("FAILS_IN_PREPARE", "FAILS_IN_PREPARE: prepare(): the plan does not fit"),
            ("THROWS_IN_PREPARE", "THROWS_IN_PREPARE: prepare(): threw an exception: no plan"),
        ):
            self.check(backend, "error")
            self.assertEqual(self.by_backend[backend]["reasons"], [words])
        self.check("WANTS_TOO_MUCH", "error", "E-CAPACITY: a whole world: ")
        self.check("ALLOCATES_IN_RUN", "error", "host->allocate() of 'late memory' after prepare()")
        self.check("THROWS_IN_SUPPORTS", "error", "supports(): threw an exception: no answer")
        self.check("THROWS_IN_DESTROY", "error", "destroy(): threw an exception: no end")

    def test_what_it_prints_goes_to_stderr(self):
        self.check("PRINTS", "passed")
        self.assertIn("run() was here", self.done.stderr)


DESTROYS = """\
#include <unistd.h>
static void destroy(void* state) {
  (void)state;
  BODY;
}
static const char* prepare("""


class AroundTheRun(PluginTest):
    """The error of what hangs or crashes before prepare() and after the last run() names it."""

    def failed(self, library, *options, **changes):
        self.write("tiny.yaml", TINY)
        outcome = self.expect(4, "run", "tiny.yaml", "--device", "cpu", "--plugin", library, "--backend",
                              "MINE", "--hang-limit", "2", "--json", "-", *options, **changes)  # fmt: skip
        (result,) = strict_json(outcome.out)["results"]
        self.assertEqual(result["status"], "error")
        return result["reasons"][0]

    def destroying(self, body):
        source = MINIMAL.replace("static const char* prepare(", DESTROYS.replace("BODY", body))
        source = source.replace("CHANGE", "table.destroy = destroy, table.features = ~0ull")
        return library_from_c(source, self.dir / "libdestroys.so")

    def test_destroy(self):
        hangs = self.destroying("for (;;) pause()")
        words = "no progress for 2 s in phase 'run', waiting for destroy() of MINE; killed"
        self.assertIn(words, self.failed(hangs, "--no-timing"))
        # After the samples, whose phase is another and longer.
        self.assertIn(words, self.failed(hangs, "--no-validation"))
        crashes = self.destroying("*(volatile int*)0 = 1")
        self.assertIn("ended in phase 'run', waiting for destroy() of MINE: signal 11",
                      self.failed(crashes, "--no-timing"))  # fmt: skip

    def test_loading_into_the_process_of_the_case(self):
        head = '#include <sys/stat.h>\n#include <unistd.h>\n'
        # The first process looks at what it declares, and leaves a mark for the second.
        change = 'if (index == 0 && mkdir("seen", 0700) != 0) for (;;) pause()'
        source = head + MINIMAL.replace("CHANGE", change)
        library = library_from_c(source, self.dir / "libonce.so")
        self.assertIn("before its first phase, waiting for the loading of MINE; killed",
                      self.failed(library, "--no-timing"))  # fmt: skip


class LeftBehind(PluginTest):
    """Processes that a plugin starts and leaves hold the pipes of its case: they are ended with it."""

    def test_a_process_that_is_left_behind_delays_nothing(self):
        results = self.run_plugin(TINY, FAULTY, "--filter", "/(LEAVES_PROCESS|RIGHT)$", "--no-timing")
        self.assertEqual({b: r["status"] for b, r in results.items()},
                         {"RIGHT": "passed", "LEAVES_PROCESS": "passed"})  # fmt: skip

    def test_a_crash_is_seen_beside_it(self):
        name = "LEAVES_PROCESS_AND_CRASHES"
        result = self.run_plugin(TINY, FAULTY, "--backend", name, "--no-timing", code=4)[name]
        self.assertIn("signal 11", result["reasons"][0])


SUPPORTS = """\
#include <stdio.h>
#include <stdlib.h>
static const char* supports(const AttnbenchBackend* self, const AttnbenchProblem* problem) {
  (void)self, (void)problem;
  ANSWER;
}
static const char* prepare("""


class Asking(PluginTest):
    def asked(self, answer):
        """A library whose supports() has the body `answer`."""
        source = MINIMAL.replace("static const char* prepare(", SUPPORTS.replace("ANSWER", answer))
        source = source.replace("CHANGE", "table.supports = supports, table.features = ~0ull")
        return library_from_c(source, self.dir / "libasked.so")

    def support(self, code, library):
        self.write("tiny.yaml", TINY)
        return self.expect(code, "support", "tiny.yaml", "--device", "cpu", "--plugin", library,
                           "--backend", "MINE", "--json", "-")  # fmt: skip

    def test_it_knows_how_many_threads_it_may_use(self):
        answer = ('static char words[32]; snprintf(words, sizeof words, "%d threads", '
                  '(int)problem->num_threads); return words')  # fmt: skip
        result = self.run_plugin(TINY, self.asked(answer), "--backend", "MINE", "--threads", "3",
                                 "--no-timing", code=3)["MINE"]  # fmt: skip
        self.assertEqual(result["reasons"], ["3 threads"])

    def test_an_exit_is_told(self):
        outcome = self.support(4, self.asked("exit(0)"))
        self.assertIn("asking the plugin ended a process: exit status 0", outcome.err)

    def test_an_exception_is_an_error(self):
        self.write("tiny.yaml", TINY)
        outcome = self.expect(4, "support", "tiny.yaml", "--device", "cpu", "--plugin", FAULTY,
                              "--backend", "THROWS_IN_SUPPORTS")  # fmt: skip
        self.assertIn("THROWS_IN_SUPPORTS: supports(): threw an exception: no answer", outcome.err)

    def test_bytes_that_are_no_text_are_shown_as_such(self):
        shown = strict_json(self.support(3, self.asked('return "no \\xff"')).out)
        self.assertEqual(shown[0]["reasons"], ["no \ufffd"])

    def test_what_it_prints_is_not_in_the_json(self):
        outcome = self.support(0, self.asked('puts("a word"); return NULL'))
        self.assertTrue(strict_json(outcome.out)[0]["supported"])
        self.assertIn("a word", outcome.err)

    def test_a_crash_or_a_hang_of_supports_is_told(self):
        library = self.asked("*(volatile int*)0 = 1; return NULL")
        self.write("tiny.yaml", TINY)
        outcome = self.expect(4, "support", "tiny.yaml", "--device", "cpu", "--plugin", library)
        self.assertIn(f"tiny/{TINY_CASE}/MINE: asking the plugin ended a process: signal 11",
                      outcome.err)  # fmt: skip
        result = self.run_plugin(TINY, library, "--no-timing", code=4)["MINE"]
        self.assertEqual(result["status"], "error")
        self.assertIn("before its first phase, waiting for supports() of MINE: signal 11", result["reasons"][0])


# What gcc before version 13 links into every library that is built with -ffast-math.
FLUSHES_SUBNORMALS = """
#include <immintrin.h>
__attribute__((constructor)) static void set(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
"""




@unittest.skipUnless(os.uname().machine == "x86_64", "MXCSR is of x86-64")
class FloatingPoint(PluginTest):
    """Flush-to-zero is kept for the plugin and kept from everybody else."""

    def library(self):
        source = MINIMAL.replace("  (void)state, (void)stream;\n  return NULL;", """\
  (void)state, (void)stream;
  return (_mm_getcsr() & 0x8040) == 0x8040 ? NULL : "subnormals are not flushed";""")
        self.assertNotEqual(source, MINIMAL)
        start, rest = source.split("\n", 1)
        source = start + FLUSHES_SUBNORMALS + rest.replace("CHANGE", "table.features = ~0ull")
        return library_from_c(source, self.dir / "libfast.so")

    def test_the_verdicts_of_the_others_stay(self):
        subnormal = TINY + "inputs: {std: 1.0e-38}\n"
        self.write("subnormal.yaml", subnormal)
        library = self.library()
        run = ("run", "subnormal.yaml", "--device", "cpu", "--no-timing", "--json", "-", "--backend",
               "FLASH_ATTN")  # fmt: skip
        for mode in ((), ("--in-process",)):
            alone = strict_json(self.tool(*run, *mode).out)["results"][0]
            beside = strict_json(self.tool(*run, *mode, "--plugin", library).out)["results"][0]
            for key in ("status", "reasons", "error", "lse_error"):
                self.assertEqual(beside[key], alone[key])

    def test_its_own_kernels_keep_it(self):
        result = self.run_plugin(TINY, self.library(), "--backend", "MINE", "--no-timing", code=1)
        self.assertEqual(result["MINE"]["status"], "incorrect", result["MINE"]["reasons"])


if __name__ == "__main__":
    unittest.main()
