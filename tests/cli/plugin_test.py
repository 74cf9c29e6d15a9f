"""Backends of users' libraries, through the real binary: right ones are judged and timed like ours."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from plugins import CROSS, FAULTY, NAIVE, PluginTest
from tool import (
    BINARY,
    ROOT,
    TIME_LIMIT_S,
    TINY,
    TINY_CASE,
    nvcc,
    strict_json,
    thorough,
    words_only,
)


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
        # Why: how long this machine takes, and a time that it lost to waits, are nothing to
        # fail for.
        no_time = ("--floor-us", "1e12", "--lenient")
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
        return words_only(result["reasons"])

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
                                 ("kv_cache.int8_level=1", "INT8_CODES"),
                                 ("dcp.world_size=2", "DCP"),
                                 ):  # fmt: skip
            with self.subTest(setting=setting):
                self.assertEqual(self.reasons("NAIVE", setting, library=NAIVE),
                                 [f"needs ATTNBENCH_{feature}, {declared}"])  # fmt: skip

    def test_what_the_interface_cannot_hand_over_is_refused_in_the_usual_words(self):
        for setting, reason in (("kv_cache.dtype=int4_per_token_head",
                                 "kv_cache_dtype not supported"),
                                ("kv_cache.dtype=fp8_per_token_head",
                                 "scales of each token and head need kv PAGED_INTERLEAVED"),
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
        _, cls.by_backend = cls.run_beside(
            CROSS, "--plugin", FAULTY, "--filter",
            "/(RIGHT|BASE_2.*|PLUS_INF|SAYS_.*|NO_LSE|RAGGED|INTERLEAVED)$")  # fmt: skip

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


def blocks_of_docs():
    """(language, lines) of the blocks of docs/plugins.md."""
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    return re.findall(r"^```(cpp|yaml|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands_of(example):
    """What the first lines of an example say to run."""
    text = (ROOT / "examples" / "plugin" / example).read_text(encoding="utf-8")
    return "".join(line + "\n" for line in re.findall(r"^//   (.*)$", text, re.MULTILINE))


class Docs(PluginTest):
    """Commands as they are written, with nothing but what `cmake --install` installs."""

    def setUp(self):
        super().setUp()
        self.prefix = self.dir / "installed"
        subprocess.run(["cmake", "--install", Path(BINARY).resolve().parent, "--prefix", self.prefix],
                       check=True, capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip

    def shell(self, script, **changes):
        """Runs the lines in the folder `work`; `DIR/` is where attnbench was installed."""
        (self.dir / "work").mkdir(exist_ok=True)
        done = subprocess.run(["bash", "-e", "-c", script.replace("DIR/", f"{self.prefix}/")],
                              cwd=self.dir / "work", env=self.environment(**changes),
                              capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_example_for_the_cpu(self):
        passed = self.shell("cp DIR/share/attnbench/examples/plugin/naive_attention.cpp .\n"
                            + commands_of("naive_attention.cpp"))  # fmt: skip
        self.assertIn("1 passed", passed)

    @thorough
    @unittest.skipUnless(nvcc(), "no nvcc")
    def test_the_example_for_a_gpu_compiles_without_a_warning_and_loads_without_a_gpu(self):
        (script,) = [lines for kind, lines in blocks_of_docs() if "nvcc" in lines]
        copy, compile, run = script.splitlines(keepends=True)
        self.assertEqual(compile + run, commands_of("naive_attention.cu"))
        self.write("work/tiny.yaml", TINY)
        listed = self.shell(
            copy + compile + "DIR/bin/attnbench list backends --plugin ./libnaive.so",
            PATH=os.pathsep.join([os.environ["PATH"], str(Path(nvcc()).parent)]),
            NVCC_APPEND_FLAGS="-Xcompiler -Wall,-Wextra,-Werror")  # fmt: skip
        self.assertIn("NAIVE_CUDA", listed)
        shown = self.expect(3, "support", "work/tiny.yaml", "--device", "cpu", "--plugin",
                            "work/libnaive.so", "--backend", "NAIVE_CUDA")  # fmt: skip
        self.assertIn("device cpu not supported", shown.out)

    @thorough
    def test_the_way_from_an_empty_folder_to_a_judged_kernel(self):
        blocks = blocks_of_docs()
        self.assertEqual([kind for kind, _ in blocks[:4]], ["cpp", "yaml", "sh", "sh"])
        self.write("work/mine.cpp", blocks[0][1])
        # Why: samples until the noise is low take seconds, and on a busy machine they are lost to
        # waits. Nothing here depends on a time.
        self.write("work/case.yaml", blocks[1][1] + "timing: {samples: 3}\n")
        no_time = "--lenient --floor-us 1e12 --baseline"
        self.shell(blocks[2][1] + blocks[3][1].replace("--baseline", no_time))
        results = json.loads((self.dir / "work" / "results.json").read_text())["results"]
        mine = {r["backend"]: r for r in results}["MINE"]
        self.assertEqual(mine["status"], "passed", mine["reasons"])
        # And it is wrong without the division, as the page says.
        wrong = blocks[0][1].replace("sum[d] / weights", "sum[d]")
        self.write("work/mine.cpp", wrong)
        self.shell(f"set +e; {blocks[2][1]}[[ $? == 1 ]]")
        results = json.loads((self.dir / "work" / "results.json").read_text())["results"]
        self.assertEqual({r["backend"]: r["status"] for r in results}["MINE"], "incorrect")


if __name__ == "__main__":
    unittest.main()
