"""Backends of users' libraries, through the real binary: right ones are judged and timed like ours,
each faulty one costs its own case, and a library that is none is told so.

The libraries come from examples/plugin and tests/plugins of the build folder; tiny broken ones are
compiled here.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tool import (
    BINARY,
    ROOT,
    TIME_LIMIT_S,
    TINY,
    TINY_CASE,
    ToolTest,
    cuda_library,
    nvcc,
    strict_json,
)

PLUGINS = Path(BINARY).resolve().parent / "plugins"
NAIVE = PLUGINS / "libnaive_attention.so"
FAULTY = PLUGINS / "libfaulty_plugin.so"
HEADER_DIR = ROOT / "src" / "plugin"

# Seconds of silence after which a case that hangs is ended; what runs beside it takes milliseconds.
HANG_LIMIT = 5
# Rows that see no key: an encoder output of no tokens, and a request without new ones.
CROSS = """\
schema: 1
name: cross
attention: {type: encoder_decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: float32}
batch:
  - - {count: 2, query_len: 3, seq_len: 0}
    - {count: 1, query_len: 5, seq_len: 40}
    - {count: 1, query_len: 0, seq_len: 7}
timing: {samples: 3, min_time_ms: 1, timeout_s: 2}
"""
# The least table that is complete, in C; {change} spoils it.
MINIMAL = """\
#include "attnbench_backend.h"
static const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                           const AttnbenchTensors* tensors, const AttnbenchHost* host,
                           void** state) {
  (void)self, (void)problem, (void)tensors, (void)host, (void)state;
  return NULL;
}
static const char* run(void* state, void* stream) {
  (void)state, (void)stream;
  return NULL;
}
const AttnbenchBackend* attnbench_backend(uint32_t index) {
  static AttnbenchBackend table;
  table.struct_size = sizeof table;
  table.abi_version = ATTNBENCH_ABI_VERSION;
  table.name = "MINE";
  table.version = "1";
  table.devices = ATTNBENCH_CPU;
  table.attention_types = ATTNBENCH_DECODER;
  table.dtypes = ATTNBENCH_BFLOAT16;
  table.prepare = prepare;
  table.run = run;
  CHANGE;
  return index == 0 ? &table : NULL;
}
"""


def library_from_c(source, target, *options):
    """Compiles C to a shared library, without a warning."""
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC",
         "-I", HEADER_DIR, "-x", "c", "-", "-o", target, *options],
        input=source, text=True, check=True, timeout=TIME_LIMIT_S,
    )  # fmt: skip
    return target


@unittest.skipUnless(NAIVE.exists(), "the binary is not in a build folder with plugins")
class PluginTest(ToolTest):
    def run_plugin(self, scenario, library, *arguments, code=0):
        self.write("scenario.yaml", scenario)
        results = self.results("scenario.yaml", "--device", "cpu", "--plugin", library, *arguments,
                               code=code)  # fmt: skip
        return {id.split("/")[2]: result for id, result in results.items()}


class TheExample(PluginTest):
    def test_it_passes_beside_the_built_in_backends_and_is_timed_like_them(self):
        results = self.run_plugin(TINY, NAIVE)
        self.assertEqual(list(results), ["FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN", "NAIVE"])
        for result in results.values():
            self.assertEqual(result["status"], "passed", result["reasons"])
            self.assertGreater(result["timing"]["median_us"], 0)
            self.assertGreater(result["throughput"]["gbps"], 0)
            self.assertIsNotNone(result["lse_error"])
        naive, native = results["NAIVE"], results["FLASH_ATTN"]
        self.assertEqual([step["name"] for step in naive["timing"]["steps"]],
                         ["write_cache", "attend"])  # fmt: skip
        for key in ("flops", "bytes"):
            self.assertEqual(naive["throughput"][key], native["throughput"][key])
        self.assertTrue(naive["batch_invariance"]["equal"])
        self.assertNotIn("plugin", native)

    def test_the_result_says_which_build_of_the_library_was_judged(self):
        plugin = self.run_plugin(TINY, NAIVE, "--backend", "NAIVE", "--no-timing")["NAIVE"]["plugin"]
        digest = hashlib.sha256(NAIVE.read_bytes()).hexdigest()
        self.assertEqual(plugin, {"library": str(NAIVE), "version": "1.0", "sha256": digest})

    def test_the_repro_line_repeats_the_case(self):
        repro = self.run_plugin(TINY, NAIVE, "--no-timing")["NAIVE"]["repro"]
        words = subprocess.run(["bash", "-c", f"printf '%s\\n' {repro}"], check=True, text=True,
                               capture_output=True).stdout.splitlines()  # fmt: skip
        results = self.results(*words[2:])
        self.assertEqual([r["backend"] for r in results.values()], ["NAIVE"])

    def test_every_attention_type_that_it_declares(self):
        for type, batch in (("encoder", "q20_q33"), ("encoder_only", "q20_q33"),
                            ("encoder_decoder", "q4s70_q70s33")):  # fmt: skip
            with self.subTest(type=type):
                scenario = TINY.replace("decoder", type).replace(TINY_CASE, batch)
                result = self.run_plugin(scenario, NAIVE, "--no-timing")["NAIVE"]
                self.assertEqual(result["status"], "passed", result["reasons"])

    def test_the_multimodal_encoder(self):
        results = self.results("smoke-vit", "--device", "cpu", "--plugin", NAIVE, "--backend",
                               "NAIVE", "--no-timing")  # fmt: skip
        self.assertEqual(len(results), 6)
        for result in results.values():
            self.assertEqual(result["status"], "passed", result["reasons"])

    def test_pages_windows_and_shared_prefixes(self):
        for setting in ("kv_cache.layout=HND", "attention.sliding_window=17",
                        "kv_cache.block_size=32", "attention.causal=false",
                        "attention.dtype=float32"):  # fmt: skip
            with self.subTest(setting=setting):
                result = self.run_plugin(TINY, NAIVE, "--no-timing", "--backend", "NAIVE", "--set",
                                         setting)["NAIVE"]  # fmt: skip
                self.assertEqual(result["status"], "passed", result["reasons"])
        shared = TINY.replace(TINY_CASE, "8q3s90") + "cascade: {common_prefix_len: 64}\n"
        result = self.run_plugin(shared, NAIVE, "--no-timing", "--backend", "NAIVE")["NAIVE"]
        self.assertEqual(result["status"], "passed", result["reasons"])

    def test_gate_and_baseline_take_it_as_they_take_ours(self):
        self.write("tiny.yaml", TINY)
        run = ("run", "tiny.yaml", "--device", "cpu", "--plugin", NAIVE)
        # Why: how long this machine takes is nothing to fail for.
        no_time = ("--floor-us", "1e12")
        self.expect(0, *run, "--json", "before.json")
        self.expect(0, *run, "--json", "after.json", "--baseline", "before.json", *no_time)
        outcome = self.expect(0, "gate", "before.json", "after.json", *no_time,
                              "--plugin", NAIVE, "--json", "-")  # fmt: skip
        ids = [verdict["id"] for verdict in strict_json(outcome.out)["verdicts"]]
        self.assertEqual(ids, [f"tiny/{TINY_CASE}/NAIVE"])

    def test_support_explain_list_and_validate_know_it(self):
        self.write("tiny.yaml", TINY)
        cpu = ("--device", "cpu", "--plugin", NAIVE)
        shown = self.expect(0, "support", "tiny.yaml", *cpu, "--json", "-")
        verdict = {v["backend"]: v for v in strict_json(shown.out)}["NAIVE"]
        self.assertEqual((verdict["supported"], verdict["reasons"]), (True, []))
        explained = self.expect(0, "explain", "tiny.yaml", *cpu).out
        for fact in ("backend NAIVE", str(NAIVE), "natural, -inf for rows that see no key"):
            self.assertIn(fact, explained)
        self.assertIn("NAIVE", self.expect(0, "list", "backends", "--plugin", NAIVE).out)
        self.write("named.yaml", TINY + "backends: [NAIVE]\n")
        self.expect(0, "validate", "named.yaml", "--plugin", NAIVE)
        self.assertIn("unknown backend 'NAIVE'", self.expect(2, "validate", "named.yaml").err)

    def test_a_scenario_may_name_it_and_the_option_chooses(self):
        named = TINY + "backends: [NAIVE]\n"
        self.assertEqual(list(self.run_plugin(named, NAIVE, "--no-timing")), ["NAIVE"])
        chosen = self.run_plugin(TINY, NAIVE, "--no-timing", "--backend", "TRITON_ATTN")
        self.assertEqual(list(chosen), ["TRITON_ATTN"])

    def test_a_resumed_run_measures_a_library_that_changed_again(self):
        self.write("tiny.yaml", TINY)
        mine = self.dir / "libmine.so"
        run = ("run", "tiny.yaml", "--device", "cpu", "--plugin", mine, "--no-timing")
        shutil.copy(NAIVE, mine)
        self.expect(0, *run, "--json", "r.json")
        # The same code in other bytes: what is behind the sections of a library is not loaded.
        mine.write_bytes(NAIVE.read_bytes() + b"rebuilt")
        self.expect(0, *run, "--resume", "r.json")
        results = json.loads((self.dir / "r.json").read_text())["results"]
        digest = {r["backend"]: r["plugin"]["sha256"] for r in results if "plugin" in r}["NAIVE"]
        self.assertEqual(digest, hashlib.sha256(mine.read_bytes()).hexdigest())


class Refusals(PluginTest):
    def reasons(self, backend, *settings, library=FAULTY, code=3):
        options = [word for setting in settings for word in ("--set", setting)]
        result = self.run_plugin(TINY, library, "--backend", backend, "--no-timing", *options,
                                 code=code)[backend]  # fmt: skip
        self.assertEqual(result["status"], "unsupported")
        return result["reasons"]

    def test_a_feature_that_is_not_declared_never_reaches_the_plugin(self):
        declared = "which the plugin does not declare"
        self.assertEqual(self.reasons("PLAIN"), [f"needs ATTNBENCH_GQA, {declared}"])
        for setting, feature in (("attention.logits_soft_cap=30", "SOFT_CAP"),
                                 ("attention.sinks=normal", "SINKS"),
                                 ("attention.alibi=linear", "ALIBI"),
                                 ("attention.alibi=sqrt", "ALIBI_SQRT"),
                                 ("kv_cache.dtype=fp8_e4m3", "FP8_KV"),
                                 ("kv_cache.dtype=fp8_e5m2", "FP8_E5M2_KV"),
                                 ("output_quant.type=fp8_static", "FP8_OUTPUT"),
                                 ("attention.mm_prefix_ranges={0: [[2, 9]]}", "MM_PREFIX"),
                                 ):  # fmt: skip
            with self.subTest(setting=setting):
                self.assertEqual(self.reasons("NAIVE", setting, library=NAIVE),
                                 [f"needs ATTNBENCH_{feature}, {declared}"])  # fmt: skip

    def test_what_the_interface_cannot_hand_over_is_refused_in_the_usual_words(self):
        for setting, reason in (("kv_cache.int8_level=1", "int8 attention not supported"),
                                ("kv_cache.dtype=fp8_per_token_head",
                                 "kv_cache_dtype not supported"),
                                ("dcp.world_size=2", "DCP not supported"),
                                ("attention.query_dtype=fp8_e4m3", "fp8 query"),
                                ("attention.dtype=float16", "dtype not supported")):  # fmt: skip
            with self.subTest(setting=setting):
                self.assertEqual(self.reasons("NAIVE", setting, library=NAIVE), [reason])

    def test_supports_gives_its_own_reasons_a_line_each(self):
        self.assertEqual(self.reasons("REFUSES"), ["no luck today", "and none tomorrow"])
        self.assertEqual(self.reasons("REFUSES_BLANKLY"), ["refused without a word"])
        self.assertEqual(self.reasons("NAIVE", "attention.head_size=520", library=NAIVE),
                         ["head_size above 512"])  # fmt: skip

    def test_a_request_that_it_does_not_take_alone_is_not_repeated(self):
        result = self.run_plugin(TINY, FAULTY, "--backend", "ONLY_BATCHES", "--no-timing")
        self.assertEqual(result["ONLY_BATCHES"]["status"], "passed")
        self.assertNotIn("batch_invariance", result["ONLY_BATCHES"])


class Conventions(PluginTest):
    """Base of the LSE and its value in empty rows: right when declared, named when declared wrong."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        file = Path(cls.scratch.name, "cross.yaml")
        file.write_text(CROSS)
        done = subprocess.run(
            [BINARY, "run", file, "--device", "cpu", "--plugin", FAULTY, "--no-timing", "--json",
             "-", "--filter", "/(RIGHT|BASE_2.*|PLUS_INF|SAYS_.*|NO_LSE|RAGGED|INTERLEAVED)$"],
            capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        cls.by_backend = {r["backend"]: r for r in strict_json(done.stdout)["results"]}

    def test_every_declared_convention_and_form_of_keys_is_right(self):
        for backend in ("RIGHT", "BASE_2", "PLUS_INF", "BASE_2_PLUS_INF", "RAGGED", "INTERLEAVED"):
            result = self.by_backend[backend]
            self.assertEqual(result["status"], "passed", (backend, result["reasons"]))
            self.assertLess(result["lse_error"]["max_abs"], 1e-5)
            self.assertGreater(result["lse_error"]["inf_count"], 0)
        self.assertEqual(self.by_backend["NO_LSE"]["status"], "passed")
        self.assertIsNone(self.by_backend["NO_LSE"]["lse_error"])

    def test_a_wrong_declaration_is_named(self):
        plus, minus = "LSE of rows that see no key is +inf", "LSE of rows that see no key is -inf"
        for backend, reason in (
            ("SAYS_NATURAL", "LSE is in base 2, declared natural"),
            ("SAYS_BASE_2", "LSE is natural, declared base 2"),
            ("SAYS_MINUS_INF", f"{plus}, declared -inf"),
            ("SAYS_PLUS_INF", f"{minus}, declared +inf"),
            ("SAYS_NEITHER", f"LSE is in base 2, declared natural; {plus}, declared -inf"),
        ):
            result = self.by_backend[backend]
            self.assertEqual(result["status"], "incorrect", backend)
            self.assertIn(reason, result["reasons"])


class SecondOpinion(PluginTest):
    def test_saved_tensors_are_judged_with_numpy_alone(self):
        """Natural LSEs were saved whatever the plugin writes, and the cache as the plugin has it."""
        for scenario in (TINY, CROSS):
            names = ("BASE_2_PLUS_INF", "RAGGED", "INTERLEAVED", "NO_LSE")
            chosen = [word for name in names for word in ("--backend", name)]
            self.run_plugin(scenario, FAULTY, *chosen, "--no-timing", "--save-tensors", "saved")
        opinion = subprocess.run(
            [sys.executable, "-B", ROOT / "scripts" / "second_opinion.py", self.dir / "saved"],
            capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(opinion.returncode, 0, opinion.stdout + opinion.stderr)
        self.assertIn("8 passed", opinion.stdout)


class Faults(PluginTest):
    """Each faulty backend costs its own case; what comes before and after it passes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        file = Path(cls.scratch.name, "tiny.yaml")
        file.write_text(TINY)
        skipped = "RIGHT|BASE_2.*|PLUS_INF|SAYS_.*|NO_LSE|RAGGED|INTERLEAVED|PLAIN|REFUSES.*|LEAVES_.*"
        cls.done = subprocess.run(
            [BINARY, "run", file, "--device", "cpu", "--plugin", FAULTY, "--plugin", NAIVE,
             "--no-timing", "--json", "-", "--hang-limit", str(HANG_LIMIT),
             "--filter", f"/(?!({skipped})$)[A-Z_0-9]+$"],
            capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        cls.by_backend = {r["backend"]: r for r in strict_json(cls.done.stdout)["results"]}

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
        self.check("WRITES_CACHE", "incorrect", "cache write: ")
        self.check("WRITES_QUERY", "incorrect", "query was changed at [0, 0, 1]: it is an input")
        self.check("WRITES_SEQ_LENS", "incorrect", "seq_lens was changed at [0]: it is an input")
        self.check("WRITES_QUERY_START_LOC", "incorrect", "query_start_loc was changed at [5]")

    def test_an_output_that_is_remembered_is_incorrect(self):
        words = "remembers earlier values: after query, key and value were negated"
        self.check("REMEMBERS", "incorrect", "a run with the query negated gave the same output")
        self.check("REMEMBERS_SCORES", "incorrect", "output")
        # One that begins after everything that is checked before the timing.
        result = self.run_plugin(TINY, FAULTY, "--backend", "REMEMBERS_LATER", code=1)
        result = result["REMEMBERS_LATER"]
        self.assertEqual(result["status"], "incorrect", result["reasons"])
        self.assertIn(words, result["reasons"][0])
        self.assertIsNone(result["timing"])
        self.assertIsNone(result["throughput"])

    def test_writes_past_a_buffer_name_it(self):
        row = 4 * 64 * 2
        size = (36 + 3) * row
        self.check("OVERRUN_OUTPUT", "error", f"out-of-bounds write: output: {row} bytes past its",
                   f"at byte {size} of {size}", "run() of OVERRUN_OUTPUT")  # fmt: skip
        self.check("WRITES_PADDING", "incorrect", "output row 36 past the last token was written")
        self.check("UNDERRUN_LSE", "error", "lse: 1 bytes before its start", "run() of UNDERRUN_LSE")
        self.check("OVERRUN_WORKSPACE", "error", "workspace of FAULTY: 1 bytes past its end")

    def test_a_hang_a_crash_and_an_exit(self):
        self.check("HANGS", "error", f"no sign of life for {HANG_LIMIT} s in phase 'run'",
                   "run() of HANGS")  # fmt: skip
        self.check("HANGS_IN_SUPPORTS", "error", "before its first phase")
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
        self.write("tiny.yaml", TINY)
        crashing = MINIMAL.replace("static const char* prepare(", """\
static const char* supports(const AttnbenchBackend* self, const AttnbenchProblem* problem) {
  (void)self, (void)problem;
  *(volatile int*)0 = 1;
  return NULL;
}
static const char* prepare(""").replace("CHANGE", "table.supports = supports")
        library = library_from_c(crashing, self.dir / "libcrashing.so")
        outcome = self.expect(4, "support", "tiny.yaml", "--device", "cpu", "--plugin", library)
        self.assertIn(f"tiny/{TINY_CASE}/MINE: asking the plugin ended a process: signal 11",
                      outcome.err)  # fmt: skip
        result = self.run_plugin(TINY, library, "--no-timing", code=4)["MINE"]
        self.assertEqual(result["status"], "error")
        self.assertIn("before its first phase: signal 11", result["reasons"][0])


LEAVES_AT_ONCE = """
#include <stdlib.h>
__attribute__((constructor)) static void leave(void) { exit(0); }
"""
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

    def changed(self, change):
        return library_from_c(MINIMAL.replace("CHANGE", change), self.dir / "libmine.so")

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

    def test_tables_that_cannot_be_used(self):
        for change, parts in (
            ("table.abi_version = 7",
             ("E-FORMAT", "speaks version 7 of the plugin interface, this program version 1")),
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
            ("if (index < 2) return &table", ("E-VALUE", "two backends have the name 'MINE'")),
            ("return 0", ("E-VALUE", "has no backend")),
        ):
            with self.subTest(change=change):
                self.refused(self.changed(change), *parts)

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

    def test_older_and_newer_plugins(self):
        """A table that has more than this program knows is taken; what it lacks is zero."""
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


class Docs(PluginTest):
    def test_the_way_from_an_empty_folder_to_a_judged_kernel(self):
        """docs/plugins.md as it is written, with nothing but what `cmake --install` installs."""
        prefix = self.dir / "installed"
        subprocess.run(["cmake", "--install", Path(BINARY).resolve().parent, "--prefix", prefix],
                       check=True, capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip
        for example in ("naive_attention.cpp", "naive_attention.cu"):
            self.assertTrue((prefix / "share/attnbench/examples/plugin" / example).exists())
        text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```(cpp|yaml|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        self.assertEqual([kind for kind, _ in blocks], ["cpp", "yaml", "sh", "sh"])
        self.write("work/mine.cpp", blocks[0][1])
        # Why: samples until the noise is low take seconds, which nothing here depends on.
        self.write("work/case.yaml", blocks[1][1] + "timing: {samples: 3}\n")
        script = blocks[2][1] + blocks[3][1].replace("--baseline", "--floor-us 1e12 --baseline")
        done = subprocess.run(["bash", "-e", "-c", script.replace("DIR/", f"{prefix}/")],
                              cwd=self.dir / "work", capture_output=True, text=True,
                              timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads((self.dir / "work" / "results.json").read_text())["results"]
        mine = {r["backend"]: r for r in results}["MINE"]
        self.assertEqual(mine["status"], "passed", mine["reasons"])
        # And it is wrong without the division, as the page says.
        wrong = blocks[0][1].replace("sum[d] / weights", "sum[d]")
        self.write("work/mine.cpp", wrong)
        script = blocks[2][1].replace("DIR/", f"{prefix}/")
        done = subprocess.run(["bash", "-c", script], cwd=self.dir / "work", capture_output=True,
                              text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 1, done.stderr)
        results = json.loads((self.dir / "work" / "results.json").read_text())["results"]
        self.assertEqual({r["backend"]: r["status"] for r in results}["MINE"], "incorrect")


@unittest.skipUnless(nvcc(), "no nvcc")
class CudaExample(ToolTest):
    def test_it_compiles_and_loads_on_a_machine_without_a_gpu(self):
        library = cuda_library("examples/plugin/naive_attention.cu", self.dir / "libnaive.so")
        listed = self.expect(0, "list", "backends", "--plugin", library)
        self.assertIn("NAIVE_CUDA", listed.out)
        self.write("tiny.yaml", TINY)
        shown = self.expect(3, "support", "tiny.yaml", "--device", "cpu", "--plugin", library,
                            "--backend", "NAIVE_CUDA")  # fmt: skip
        self.assertIn("device cpu not supported", shown.out)


if __name__ == "__main__":
    unittest.main()
