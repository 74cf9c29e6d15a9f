"""Single operations of users' libraries, through the real binary: right ones pass by every convention
that the interface has, wrong ones are named, each fault costs its own case."""

import subprocess
import sys
import unittest

from plugins import HANG_LIMIT, PLUGINS, PluginTest
from tool import ROOT, TIME_LIMIT_S, words_only

OP_PLUGIN = PLUGINS / "libop_plugin.so"
# Tokens of a mixed batch, with padding behind them.
CACHE = """\
schema: 1
name: cache
attention: {type: op, num_heads: 4, num_kv_heads: 2, head_size: 40, dtype: bfloat16}
op: {name: reshape_and_cache}
batch: 3q1s70_q5s33_q48
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""
SCALES = ("kv_cache.k_scale=0.023", "kv_cache.v_scale=[0.03, 0.017]")  # of fp8 caches
# Parts that see no key, and last rows without a prefix.
MERGE = """\
schema: 1
name: merge
attention: {type: op, num_heads: 5, head_size: 40, dtype: float32}
op: {name: merge, tokens: 70, tokens_with_context: 41}
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""
FP8_MERGE = (
    MERGE.replace("name: merge\natt", "name: fp8-merge\natt")
    + "output_quant: {type: fp8_static, scale: 0.021}\n"
)
UNDECLARED = "needs ATTNBENCH_{}, which the plugin does not declare"
CONVENTIONS = ("BASE_2", "PLUS_INF", "BASE_2_TURNED", "NO_LSE")


def chosen(*names):
    return [word for name in names for word in ("--backend", name)]


class Right(PluginTest):
    def passed(self, scenario, *names, settings=(), options=("--no-timing",)):
        words = [word for setting in settings for word in ("--set", setting)]
        results = self.run_plugin(scenario, OP_PLUGIN, *chosen(*names), *words, *options)
        self.assertEqual(sorted(results), sorted(names))
        for name, result in results.items():
            self.assertEqual(result["status"], "passed", (name, settings, result["reasons"]))
        return results

    def test_a_cache_is_written_in_every_layout_and_format(self):
        for order in ("NHD", "HND"):
            for dtype in ("auto", "fp8", "fp8_e5m2"):
                settings = (f"kv_cache.layout={order}", f"kv_cache.dtype={dtype}",
                            *(() if dtype == "auto" else SCALES))  # fmt: skip
                results = self.passed(CACHE, "OPS", "RIGHT", settings=settings)
                self.assertEqual(results["RIGHT"]["error"]["matched_pct"], 100)
                self.assertEqual(results["RIGHT"]["error"]["limit"], results["OPS"]["error"]["limit"])
                self.passed(CACHE, "OPS", "INTERLEAVED", settings=(*settings, "op.cache_layout=TR"))
        self.passed(CACHE, "RIGHT", settings=("attention.dtype=float32",))
        # What TRITON_ATTN stores where the scenario says e5m2.
        self.passed(CACHE, "INTERLEAVED", settings=(
            "op.cache_layout=TR", "kv_cache.dtype=fp8_e5m2", "kv_cache.e5m2_as_e4m3=true"))  # fmt: skip

    def test_parts_are_merged_by_every_convention(self):
        for scenario in (MERGE, MERGE.replace("float32", "bfloat16"), FP8_MERGE,
                         MERGE.replace(", tokens_with_context: 41", ""),
                         MERGE.replace("head_size: 40", "head_size: 56, v_head_size: 40")):  # fmt: skip
            results = self.passed(scenario, "OPS", "RIGHT", *CONVENTIONS)
            self.assertIsNone(results["NO_LSE"]["lse_error"])
            for name in ("RIGHT", "BASE_2", "PLUS_INF", "BASE_2_TURNED"):
                self.assertGreater(results[name]["lse_error"]["inf_count"], 0)
                self.assertEqual(results[name]["lse_error"]["checked_rows"], 70)

    def test_they_are_timed_like_ours(self):
        for scenario, step in ((CACHE, "reshape_and_cache"), (MERGE, "merge")):
            results = self.passed(scenario, "OPS", "RIGHT", options=())
            for result in results.values():
                self.assertGreater(result["timing"]["median_us"], 0)
                self.assertEqual([s["name"] for s in result["timing"]["steps"]], [step])
            ours, mine = results["OPS"]["throughput"], results["RIGHT"]["throughput"]
            self.assertGreater(mine["gbps"], 0)
            for key in ("bytes", "flops", "bound"):
                self.assertEqual(mine[key], ours[key])

    def test_saved_tensors_are_judged_with_numpy_alone(self):
        """Natural LSEs [H, T] were saved whatever the plugin writes."""
        for scenario in (CACHE, MERGE, FP8_MERGE):
            self.passed(scenario, "RIGHT", *CONVENTIONS,
                        options=("--no-timing", "--save-tensors", "saved"))  # fmt: skip
        opinion = subprocess.run(
            [sys.executable, "-B", ROOT / "scripts" / "second_opinion.py", self.dir / "saved"],
            capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(opinion.returncode, 0, opinion.stdout + opinion.stderr)
        self.assertIn("15 passed", opinion.stdout)

    def test_they_take_turns_with_ours(self):
        turns = "timing: {samples: 6, min_time_ms: 1, timeout_s: 2, l2: warm, order: alternate, rounds: 3}\n"
        for scenario in (CACHE, MERGE):
            scenario = scenario[: scenario.index("timing")] + turns
            results = self.passed(scenario, "OPS", "RIGHT", options=())
            for result in results.values():
                self.assertEqual(result["timing"]["rounds"], [2, 2, 2])
                self.assertEqual(result["timing"]["peers"], ["OPS", "RIGHT"])

    def test_support_and_explain_know_it(self):
        self.write("merge.yaml", MERGE)
        words = ("merge.yaml", "--device", "cpu", "--plugin", OP_PLUGIN, "--backend", "BASE_2")
        self.assertIn("BASE_2", self.expect(0, "support", *words).out)
        explained = self.expect(0, "explain", *words).out
        for fact in ("backend BASE_2", "operation", "merge", "base 2, -inf for rows"):
            self.assertIn(fact, explained)


class Refusals(PluginTest):
    def reasons(self, scenario, name, *settings):
        words = [word for setting in settings for word in ("--set", setting)]
        result = self.run_plugin(scenario, OP_PLUGIN, *chosen(name), "--no-timing", *words, code=3)[name]
        self.assertEqual(result["status"], "unsupported")
        return words_only(result["reasons"])

    def test_what_is_not_declared_never_reaches_the_plugin(self):
        self.assertEqual(self.reasons(CACHE, "ONLY_MERGE"),
                         ["operation reshape_and_cache not supported"])  # fmt: skip
        for scenario, setting, feature in (
            (CACHE, "kv_cache.dtype=fp8", "FP8_KV"),
            (CACHE, "kv_cache.dtype=fp8_e5m2", "FP8_E5M2_KV"),
            (MERGE, "output_quant.type=fp8_static", "FP8_OUTPUT"),
            (MERGE, "attention.v_head_size=24", "V_HEAD_SIZE"),
        ):
            self.assertEqual(self.reasons(scenario, "PLAIN", setting),
                             [f"needs ATTNBENCH_{feature}, which the plugin does not declare"])  # fmt: skip

    def test_what_it_would_have_to_declare_or_nobody_is_handed(self):
        for settings, reason in (
            (("kv_cache.int8_level=1", "op.cache_layout=IX"), UNDECLARED.format("INT8_CODES")),
            (("kv_cache.dtype=int8_per_token_head",), "cache layout TR not supported"),
            (("kv_cache.dtype=int4_per_token_head", "attention.head_size=32"), "kv_cache_dtype not supported"),
            (("dcp.world_size=2",), UNDECLARED.format("DCP")),
            (("attention.v_head_size=24",), "v_head_size not supported"),
            (("op.mla=true", "attention.num_kv_heads=1", "attention.head_size=192",
              "attention.v_head_size=128"), UNDECLARED.format("LATENTS")),
            (("op.name=rope",), "operation rope not supported"),
        ):  # fmt: skip
            with self.subTest(settings=settings):
                self.assertEqual(self.reasons(CACHE, "RIGHT", *settings), [reason])

    def test_a_cache_in_a_layout_that_it_does_not_take(self):
        for name, layout in (("RIGHT", "TR"), ("RIGHT", "IX"), ("INTERLEAVED", "FA")):
            self.assertEqual(self.reasons(CACHE, name, f"op.cache_layout={layout}"),
                             [f"cache layout {layout} not supported"])  # fmt: skip
        self.assertEqual(self.reasons(CACHE, "RAGGED"),
                         ["a cache write needs kv PAGED or PAGED_INTERLEAVED, not RAGGED"])  # fmt: skip


class Faults(PluginTest):
    """One run of each operation, with every faulty backend."""

    OTHERS = "INTERLEAVED|PLAIN|ONLY_MERGE|REMEMBERS_LATER"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.by_backend = {}
        for name, scenario, others in (("cache", CACHE, cls.OTHERS), ("merge", MERGE, cls.OTHERS),
                                       ("fp8", FP8_MERGE, cls.OTHERS + "|HANGS")):  # fmt: skip
            _, cls.by_backend[name] = cls.run_beside(
                scenario, "--plugin", OP_PLUGIN, "--hang-limit", str(HANG_LIMIT),
                "--filter", f"/(?!({others})$)[A-Z_0-9]+$")  # fmt: skip

    def check(self, scenario, backend, status, *parts):
        result = self.by_backend[scenario][backend]
        self.assertEqual(result["status"], status, (backend, result["reasons"]))
        self.assertIsNone(result["timing"])
        for part in parts:
            self.assertIn(part, "\n".join(result["reasons"]))

    def test_the_others_pass(self):
        for results in self.by_backend.values():
            for backend in ("OPS", "RIGHT"):
                self.assertEqual(results[backend]["status"], "passed", results[backend]["reasons"])

    def test_cells_that_are_wrong_are_named_by_request_and_position(self):
        for backend in ("SLOT_OFF_BY_ONE", "WRAPS_NEGATIVE_SLOTS", "SWAPS_KEY_AND_VALUE",
                        "SKIPS_LAST_HEAD", "SILENT"):  # fmt: skip
            self.check("cache", backend, "incorrect", "cache write: ", "kv_cache[")
        self.assertEqual(self.by_backend["cache"]["FORGETS_SCALE"]["status"], "passed")
        for dtype in ("fp8", "fp8_e5m2"):
            words = [word for setting in (f"kv_cache.dtype={dtype}", *SCALES)
                     for word in ("--set", setting)]  # fmt: skip
            result = self.run_plugin(CACHE, OP_PLUGIN, *chosen("FORGETS_SCALE"), "--no-timing", *words,
                                     code=1)["FORGETS_SCALE"]  # fmt: skip
            self.assertIn("cache write: ", "\n".join(result["reasons"]))

    def test_parts_that_see_no_key_and_rows_without_a_prefix(self):
        self.check("merge", "IGNORES_EMPTY", "incorrect", "NaN or infinity in different places")
        self.check("merge", "MERGES_EVERYTHING", "incorrect", "NaN or infinity in different places")
        self.check("merge", "WRITES_SUFFIX_LSE", "incorrect", "lse")
        self.check("merge", "SILENT", "incorrect", "NaN or infinity in different places")
        self.check("fp8", "FORGETS_OUTPUT_SCALE", "incorrect", "output")
        self.assertEqual(self.by_backend["merge"]["FORGETS_OUTPUT_SCALE"]["status"], "passed")

    def test_an_lse_in_the_other_base_is_noticed(self):
        for scenario in ("merge", "fp8"):
            for backend in ("SAYS_NATURAL", "SAYS_BASE_2"):
                self.check(scenario, backend, "incorrect", "output[")
            self.check(scenario, "SAYS_PLUS_INF", "incorrect", "NaN or infinity")
            self.check(scenario, "WRITES_BASE_2_LSE", "incorrect",
                       "LSE is in base 2, declared natural")  # fmt: skip

    def test_writes_past_a_buffer_name_it(self):
        self.check("cache", "OVERRUNS_CACHE", "error", "out-of-bounds write: kv_cache: ",
                   "past its end", "run() of OVERRUNS_CACHE")  # fmt: skip
        for backend in ("UNDERRUNS_CACHE", "WRITES_NEGATIVE_SLOTS"):
            self.check("cache", backend, "error", "out-of-bounds write: kv_cache: ",
                       "before its start", f"run() of {backend}")  # fmt: skip
        self.check("merge", "OVERRUNS_OUTPUT", "error", "out-of-bounds write: output: ")

    def test_inputs_stay_as_they_are(self):
        self.check("cache", "WRITES_KEY", "incorrect", "key was changed at [0, 0, 1]: it is an input")
        self.check("cache", "WRITES_SLOTS", "incorrect", "slot_mapping was changed at [58]")

    def test_everything_is_computed_anew(self):
        words = "a run with {} gave the same output: run() has to compute all of it anew"
        self.check("cache", "REMEMBERS", "incorrect", words.format("key and value negated"))
        self.check("merge", "REMEMBERS", "incorrect", words.format("other partial results"))
        self.check("merge", "REMEMBERS_LSE", "incorrect", "remembers earlier values: after the parts "
                   "were exchanged and negated, the output is not the negated one: ")  # fmt: skip
        for scenario, backend in (("cache", "UNSTEADY"), ("merge", "UNSTEADY")):
            self.check(scenario, backend, "incorrect")
        # One that begins after everything that is checked before the timing.
        for scenario in (CACHE, MERGE):
            result = self.run_plugin(scenario, OP_PLUGIN, *chosen("REMEMBERS_LATER"), code=1)
            (reason,) = result["REMEMBERS_LATER"]["reasons"]
            self.assertIn("timed sample ", reason)
            self.assertIsNone(result["REMEMBERS_LATER"]["timing"])

    def test_a_crash_and_a_hang(self):
        for scenario in ("cache", "merge"):
            self.check(scenario, "CRASHES", "error", "in phase 'run'", "run() of CRASHES", "signal 11")
            self.check(scenario, "HANGS", "error", f"no progress for {HANG_LIMIT} s in phase 'run'",
                       "run() of HANGS")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
