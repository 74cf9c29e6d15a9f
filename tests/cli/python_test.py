"""Python classes as backends, through the real binary: the interpreter is found and embedded, tensors
share memory with it, and each faulty class costs its own case.

The torch of these tests is a few lines of numpy (tests/python/fake_torch), so that this runs where
torch is not installed; adapters_test.py has the real one.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from plugins import CROSS, HANG_LIMIT, HEADER_DIR
from pythons import PACKAGE_DIR, NumpyTest, described, python_with_torch
from tool import ROOT, TIME_LIMIT_S, TINY, TINY_CASE, strict_json, thorough

SMALL = TINY.replace("bfloat16", "float32")
# Attention in numpy, and classes around it.
MINE = (ROOT / "tests" / "python" / "numpy_attention.py").read_text(encoding="utf-8")


class Classes(NumpyTest):
    def setUp(self):
        super().setUp()
        self.write("mine.py", MINE)

    def check(self, result, status, *parts):
        self.assertEqual(result["status"], status, result["reasons"])
        for part in parts:
            self.assertIn(part, "\n".join(result["reasons"]))


class RightOnes(Classes):
    def test_they_pass_and_are_timed_like_ours(self):
        classes = ("Right", "Paged", "Returns", "ReturnsParts", "WritesOutput", "ReturnsItsOwn",
                   "Turned", "Prints")  # fmt: skip
        results = self.run_classes(SMALL, *classes, options=())
        for name, result in results.items():
            self.check(result, "passed")
            self.assertLess(result["lse_error"]["max_abs"], 1e-4, name)
            self.assertGreater(result["timing"]["median_us"], 0)
            self.assertTrue(result["batch_invariance"]["equal"])
        steps = [step["name"] for step in results["Paged"]["timing"]["steps"]]
        self.assertEqual(steps, ["write_cache", "attend"])

    def test_a_failure_names_request_row_position_and_head(self):
        result = self.run_classes(SMALL, "WrongRow", code=1)["WrongRow"]
        self.check(result, "incorrect", "output of request 0, row 7 (position 7), head 1: ",
                   "1 row of 1 request is outside")  # fmt: skip

    def test_the_result_says_which_file_was_judged(self):
        plugin = self.run_classes(SMALL, "Right")["Right"]["plugin"]
        digest = hashlib.sha256(MINE.encode()).hexdigest()
        self.assertEqual(plugin, {"library": str(self.dir.resolve() / "mine.py"), "version": "1.5",
                                  "sha256": digest})  # fmt: skip

    @thorough
    def test_a_resumed_run_measures_again_when_a_base_class_changed(self):
        base = self.dir / "kit" / "base.py"
        self.write("kit/base.py", MINE)
        child = self.write("kit/mine.py", "from kit.base import Right\n\nclass Child(Right):\n    pass\n")
        self.write("scenario.yaml", SMALL)
        run = ("run", "scenario.yaml", "--device", "cpu", "--no-timing", "--backend",
               "python:kit.mine:Child")  # fmt: skip
        seen = []
        for more in (("--json", "r.json"), ("--resume", "r.json"), ("--resume", "r.json")):
            self.expect(0, *run, *more)
            (result,) = strict_json((self.dir / "r.json").read_text())["results"]
            seen.append(result["plugin"]["sha256"])
            lines = [f"{hashlib.sha256(Path(file).read_bytes()).hexdigest()}  {Path(file).name}\n"
                     for file in (child, base)]  # fmt: skip
            self.assertEqual(seen[-1], hashlib.sha256("".join(lines).encode()).hexdigest())
            if len(seen) == 2:
                base.write_text(MINE + "# changed\n")
        self.assertEqual(seen[0], seen[1])
        self.assertNotEqual(seen[1], seen[2])

    def test_that_of_a_shipped_one_covers_the_functions_that_they_share(self):
        with mock.patch.object(sys, "path", [str(PACKAGE_DIR), *sys.path]):
            from attnbench import describe
            from attnbench.adapters import flash_mla, vllm_flash_mla
        files = describe.sources(vllm_flash_mla.Decode)
        self.assertEqual(files[0], vllm_flash_mla.__file__)
        folder = Path(flash_mla.__file__).parent
        self.assertEqual(set(map(Path, files)), set(folder.glob("*.py")))

    @thorough
    def test_a_scenario_may_name_them_and_the_repro_line_repeats_the_case(self):
        self.write("named.yaml", SMALL + "backends: [FLASH_ATTN, 'python:mine:Right']\n")
        results = self.results("named.yaml", "--device", "cpu", "--no-timing")
        self.assertEqual(
            [r["backend"] for r in results.values()], ["FLASH_ATTN", "python:mine:Right"]
        )
        repro = list(results.values())[1]["repro"]
        words = subprocess.run(["bash", "-c", f"printf '%s\\n' {repro}"], check=True, text=True,
                               capture_output=True).stdout.splitlines()  # fmt: skip
        self.assertEqual(len(self.results(*words[2:])), 1)
        self.expect(0, "validate", "named.yaml")
        self.expect(0, "compile", "named.yaml", "--set", "attention.dtype=bfloat16", "--list")
        shown = self.expect(0, "support", "named.yaml", "--device", "cpu", "--json", "-")
        self.assertTrue(strict_json(shown.out)[1]["supported"])
        explained = self.expect(0, "explain", "named.yaml", "--device", "cpu").out
        for fact in ("backend python:mine:Right", "mine.py", "natural, -inf for rows"):
            self.assertIn(fact, explained)

    def test_what_they_print_goes_to_stderr(self):
        self.write("small.yaml", SMALL)
        outcome = self.expect(0, "run", "small.yaml", "--device", "cpu", "--no-timing", "--backend",
                              "python:mine:Prints", "--json", "-")  # fmt: skip
        self.assertIn("run() was here", outcome.err)
        self.assertEqual(strict_json(outcome.out)["results"][0]["status"], "passed")


class OverLatents(Classes):
    LATENTS = """\
schema: 1
name: latents
attention: {type: mla, num_heads: 4, dtype: float16}
mla: {kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}
batch: 3q1s70_q5s40
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""

    def test_what_is_written_and_what_is_returned_goes_through_the_value_projection(self):
        classes = ("Latents", "LatentsReturned")
        listed = ("--no-timing", "--set", "mla.sparse_topk=128", "--set", "mla.sparse.valid=0.1")
        for options in ((), listed):
            results = self.run_classes(self.LATENTS, *classes, options=options)
            for result in results.values():
                self.check(result, "passed")
                self.assertLess(result["lse_error"]["max_abs"], 1e-2)
                steps = [step["name"] for step in (result["timing"] or {"steps": []})["steps"]]
                self.assertEqual(steps[-2:], [] if options else ["attend", "project_value"])

    def test_what_is_not_returned_is_incorrect(self):
        result = self.run_classes(self.LATENTS, "LatentsUnwritten", code=1)["LatentsUnwritten"]
        self.check(result, "incorrect", "NaN or infinity in different places")


@thorough
class Conventions(Classes):
    def test_what_is_declared_is_converted_and_a_wrong_declaration_is_named(self):
        right = ("Right", "Base2", "PlusInf", "Turned", "WritesTurned")
        wrong = ("SaysNatural", "SaysBase2", "SaysMinusInf", "SaysPlusInf")
        results = self.run_classes(CROSS, *right, *wrong, code=1)
        for name in right:
            self.check(results[name], "passed")
            self.assertGreater(results[name]["lse_error"]["inf_count"], 0)
        self.check(results["SaysNatural"], "incorrect", "LSE is in base 2, declared natural")
        self.check(results["SaysBase2"], "incorrect", "LSE is natural, declared base 2")
        empty = "LSE of rows that see no key is"
        self.check(results["SaysMinusInf"], "incorrect", f"{empty} +inf, declared -inf")
        self.check(results["SaysPlusInf"], "incorrect", f"{empty} -inf, declared +inf")

    def test_axes_in_the_wrong_order_are_an_error_and_incorrect_where_the_shape_fits(self):
        results = self.run_classes(SMALL, "SaysTurned", "SaysStraight", code=4)
        for result in results.values():
            self.check(result, "error", "run() returned lse float32 [[")
        # As many tokens as heads.
        square = self.run_classes(SMALL.replace(TINY_CASE, "q4s100"), "SaysTurned", "SaysStraight",
                                  code=1)  # fmt: skip
        for result in square.values():
            self.check(result, "incorrect", "lse")


class Operations(Classes):
    """Single operations in numpy."""

    CACHE = (
        "schema: 1\nname: cache\n"
        "attention: {type: op, num_heads: 4, num_kv_heads: 2, head_size: 24, dtype: float32}\n"
        "op: {name: reshape_and_cache}\nbatch: 3q1s70_q5s33_q48\n"
    )
    MERGE = (
        "schema: 1\nname: merge\n"
        "attention: {type: op, num_heads: 5, head_size: 24, v_head_size: 16, dtype: float32}\n"
        "op: {name: merge, tokens: 70, tokens_with_context: 41}\n"
    )

    def setUp(self):
        super().setUp()
        self.write("mine.py", (ROOT / "tests" / "python" / "numpy_operations.py").read_text())

    def test_right_ones_pass(self):
        results = self.run_classes(self.MERGE, "Merge", "MergeBase2", "MergeReturns", "MergeTurned")
        for result in results.values():
            self.check(result, "passed")
            self.assertGreater(result["lse_error"]["inf_count"], 0)
        for order in ("NHD", "HND"):
            scenario = self.CACHE + f"kv_cache: {{layout: {order}}}\n"
            self.check(self.run_classes(scenario, "Write")["Write"], "passed")
            name = "WriteInterleaved"
            interleaved = scenario.replace("cache}", "cache, cache_layout: TR}")
            self.check(self.run_classes(interleaved, name)[name], "passed")
        timed = self.run_classes(self.CACHE + "timing: {samples: 3}\n", "Write", options=())["Write"]
        self.assertGreater(timed["throughput"]["gbps"], 0)

    def test_wrong_ones_are_named(self):
        cells = {name: ("incorrect", "cache write: ") for name in
                 ("WriteSwapped", "WriteNext", "WriteNegative")}  # fmt: skip
        merges = {
            "MergeSaysNatural": ("incorrect", "output["),
            "MergeSaysBase2": ("incorrect", "output["),
            "MergeWithoutGuard": ("incorrect", "NaN or infinity in different places"),
            "MergeRemembers": ("incorrect", "a run with other partial results gave the same output"),
            "MergeUnwritten": ("incorrect", "NaN or infinity in different places"),
        }
        for scenario, expected in ((self.CACHE, cells), (self.MERGE, merges)):
            results = self.run_classes(scenario, *expected, code=1)
            for name, (status, *parts) in expected.items():
                with self.subTest(name=name):
                    self.check(results[name], status, *parts)

    def test_what_is_not_declared_is_unsupported(self):
        reasons = self.run_classes(self.CACHE, "Merge", code=3)["Merge"]["reasons"]
        self.assertIn("operation reshape_and_cache not supported", reasons)


class FaultyOnes(Classes):
    def test_each_costs_its_own_case_and_is_told_where(self):
        expected = {
            "Wrong": ("incorrect", "output[35, 3, 63]"),
            "Remembers": ("incorrect", "a run with the query negated gave the same output"),
            "Unwritten": ("incorrect", "NaN or infinity in different places"),
            "PastTheEnd": ("error", "out-of-bounds write: output: 1 byte past its end"),
            "RaisesInPrepare": ("error", "prepare(): ValueError: no plan (mine.py:"),
            "RaisesInRun": ("error", "run(): KeyError: 'no key' (mine.py:", "in run)"),
            "RaisesInSupports": ("error", "supports(): threw an exception: ValueError: no answer (mine.py:"),
            "Leaves": ("error", "run(): SystemExit: 3"),
            "Crashes": ("error", "in phase 'run'", "run() of python:mine:Crashes", "signal 11"),
            "Hangs": ("error", f"no progress for {HANG_LIMIT} s in phase 'run'"),
            "WrongShape": ("error", "run() returned output float32 [[36, 1, 64]], expected float32 "
                           "[36, 4, 64]"),
            "Right": ("passed",),
        }  # fmt: skip
        results = self.run_classes(SMALL, *expected, code=1,
                                   options=("--no-timing", "--hang-limit", HANG_LIMIT))  # fmt: skip
        for name, (status, *parts) in expected.items():
            with self.subTest(name=name):
                self.check(results[name], status, *parts)

    @thorough
    def test_what_is_returned_is_a_tensor_and_nothing_derived_from_it(self):
        results = self.run_classes(SMALL, "ReturnsLazily", "ReturnsLazyPair", code=4)
        words = "run() returned output as Lazy, expected torch.Tensor"
        for result in results.values():
            self.check(result, "error", words)

    @thorough
    def test_timed_samples_are_judged(self):
        results = self.run_classes(SMALL, "Right", "Returns", "RemembersLater", code=1,
                                   options=("--samples", "12"))  # fmt: skip
        for name in ("Right", "Returns"):
            self.check(results[name], "passed")
            self.assertEqual(len(results[name]["timing"]["checked_samples"]), 8)
        self.check(results["RemembersLater"], "incorrect", "timed sample ")

    def test_reasons_and_missing_packages(self):
        results = self.run_classes(SMALL, "Refuses", "NeedsPackage", code=3)
        self.assertEqual(results["Refuses"]["reasons"], ["no luck with 4 heads", "nor NHD"])
        executable = described(self.python)["executable"]
        self.assertEqual(
            results["NeedsPackage"]["reasons"],
            [f"package there_is_no_such_package not found in {executable}"],
        )
        refused = self.run_classes(
            SMALL, "Right", code=3, options=("--no-timing", "--set", "attention.sinks=normal")
        )
        self.assertEqual(
            refused["Right"]["reasons"],
            ["needs ATTNBENCH_SINKS, which the plugin does not declare"],
        )

    def test_true_and_false_are_no_reasons(self):
        for answer in (True, False):
            self.write("mine.py", MINE + "\nclass Mine(Right):\n    def supports(self, problem):\n"
                       f"        return {answer}\n")  # fmt: skip
            (reason,) = self.run_classes(SMALL, "Mine", code=4)["Mine"]["reasons"]
            self.assertIn(f"TypeError: supports() returned {answer}, expected a text or a list", reason)

    def test_a_module_that_lacks_a_package_is_unsupported_and_not_bad_usage(self):
        self.write("mine.py", "import there_is_no_such_package\nclass Mine: pass\n")
        reasons = self.run_classes(SMALL, "Mine", code=3)["Mine"]["reasons"]
        self.assertEqual(len(reasons), 1)
        self.assertIn("package there_is_no_such_package not found in", reasons[0])


class Names(Classes):
    def refused(self, name, *parts):
        self.write("small.yaml", SMALL)
        outcome = self.expect(2, "run", "small.yaml", "--device", "cpu", "--backend", name)
        self.assertEqual(outcome.out, "")
        for part in parts:
            self.assertIn(part, outcome.err)

    def test_what_is_not_there_is_bad_usage(self):
        self.refused("python:mine", "expected python:MODULE:CLASS, e.g. python:mine:Mine")
        self.refused("python:mine:", "expected python:MODULE:CLASS")
        self.refused("python:nowhere:Mine", "'python:nowhere:Mine': No module named 'nowhere'")
        self.refused("python:mine:Nobody", "has no attribute 'Nobody'")
        self.refused("python:mine:np", "prepare() is missing")

    @thorough
    def test_what_is_declared_has_to_exist(self):
        for line, words in (('lse = "base_10"', "lse: unknown 'base_10' (known: None, 'natural'"),
                            ('features = ("causl",)', "features: unknown 'causl' (known: causal"),
                            ('features = "causal"', "features: expected a tuple, ('causal',), found the text"),
                            ('kv = "pages"', "kv: unknown 'pages'"),
                            ('lse_axes = "HD"', "lse_axes: unknown 'HD'"),
                            ('attention_types = ("op",)', "expected operations where"),
                            ('operations = ("merge",)', "expected operations where")):  # fmt: skip
            self.write("mine.py", MINE + f"\nclass Mine(Right):\n    {line}\n")
            self.refused("python:mine:Mine", words)

    def test_a_python_that_does_not_start_is_a_reason_each_time(self):
        self.modules = (self.dir,)
        self.write("ctypes.py", "raise ImportError('broken here')\n")
        self.write("mine.py", "class Mine:\n    prepare = run = print\nclass Other(Mine): pass\n")
        results = self.run_classes(SMALL, "Mine", "Other", code=3)
        for result in results.values():
            self.assertIn("cannot import attnbench.host", "\n".join(result["reasons"]))

    def test_a_module_that_ends_the_interpreter_is_named(self):
        self.write("mine.py", "import os\nos._exit(5)\n")
        self.refused("python:mine:Mine", "importing it ended", "exit status 5")

    def test_without_python_every_case_is_unsupported(self):
        self.write("small.yaml", SMALL)
        for python, words in (
            ("/nowhere/python3", "no Python: /nowhere/python3: No such file"),
            ("/bin/false", "no Python: /bin/false: exit status 1"),
        ):
            outcome = self.expect(3, "run", "small.yaml", "--device", "cpu", "--backend",
                                  "python:mine:Mine", "--json", "-", **{"COLUMNS": "200"},
                                  python=python)  # fmt: skip
            reasons = strict_json(outcome.out)["results"][0]["reasons"]
            self.assertEqual(len(reasons), 1)
            self.assertIn(words, reasons[0])

    def environment(self, **changes):
        chosen = changes.pop("python", None)
        environment = super().environment(**changes)
        return {**environment, "ATTNBENCH_PYTHON": chosen} if chosen else environment


class SharedLibrary(unittest.TestCase):
    """Where describe.py looks for libpython, with the words of builds that are not here."""

    def library(self, folder, **variables):
        sys.path.insert(0, str(PACKAGE_DIR))
        self.addCleanup(sys.path.remove, str(PACKAGE_DIR))
        from attnbench import describe

        with (mock.patch.object(describe.sysconfig, "get_config_var", variables.get),
              mock.patch.object(sys, "base_prefix", str(folder))):  # fmt: skip
            return describe.library()

    def test_it_is_found_beside_a_static_interpreter_and_its_lack_is_told(self):
        short = "libpython%d.%d.so" % sys.version_info[:2]
        static = {"LIBDIR": "/install/lib", "INSTSONAME": "libpython3.a", "LDLIBRARY": "libpython3.a"}
        with tempfile.TemporaryDirectory() as folder:
            path, trouble = self.library(folder, **static)
            self.assertEqual(path, "")
            self.assertIn(f"has no {short}.1.0 (a statically linked Python; on Debian", trouble)
            Path(folder, "lib").mkdir()
            Path(folder, "lib", "libpython3.a").touch()
            self.assertEqual(self.library(folder, **static)[0], "")
            Path(folder, "lib", short + ".1.0").touch()
            self.assertEqual(self.library(folder, **static), (f"{folder}/lib/{short}.1.0", ""))


class TestsWithTorch(unittest.TestCase):
    """They may be skipped where nobody demands them, and only there."""

    def find(self, module, **environment):
        with mock.patch.dict(os.environ, environment):
            if not environment:
                os.environ.pop("ATTNBENCH_PYTHON", None)
            return python_with_torch(module)

    def test_without_it_they_are_skipped_unless_its_python_is_named(self):
        with self.assertRaises(unittest.SkipTest):
            self.find("there_is_no_such_package")
        here = self.find("json")
        self.assertEqual(self.find("json", ATTNBENCH_PYTHON=here), here)
        for python, module in ((here, "there_is_no_such_package"), ("/bin/false", "json")):
            with self.assertRaisesRegex(AssertionError, f"ATTNBENCH_PYTHON is {python}, which has no"):
                self.find(module, ATTNBENCH_PYTHON=python)

    def test_those_of_the_adapters_fail_then(self):
        adapters = ROOT / "tests" / "cli" / "adapters_test.py"
        done = subprocess.run([sys.executable, "-B", adapters, "--verbose"], text=True,
                              env={**os.environ, "ATTNBENCH_PYTHON": "/bin/false"},
                              capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertNotIn("skipped", done.stderr)  # by which ctest knows a skipped one


STRUCTS = """\
#include <stdio.h>
#include "attnbench_backend.h"
#define SHOW(type, field) printf("%s %zu\\n", #field, offsetof(type, field));
int main(void) {
FIELDS
  printf("size %zu\\n", sizeof(TYPE));
  return 0;
}
"""


class Shipped(unittest.TestCase):
    """What shipped adapters decide without their packages."""

    def setUp(self):
        path = mock.patch.object(sys, "path", [str(PACKAGE_DIR), *sys.path])
        path.start()
        self.addCleanup(path.stop)

    def test_e4m3_in_triton_begins_with_compute_capability_8_9(self):
        from attnbench.adapters import vllm_triton

        def reasons(adapter, *features, device="cuda", sm=80, scale=1.0):
            cache = {"k_scale": scale, "v_scale": 1.0}
            problem = SimpleNamespace(
                features={"causal", *features}, device=device, sm=sm, alibi=None, query_lens=[1, 1],
                max_query_len=1, json={"kv_cache": cache})  # fmt: skip
            return [*adapter().supports(problem)]

        early = ["e4m3 in Triton before compute capability 8.9"]
        for adapter in (vllm_triton.Unified2d, vllm_triton.Unified3d, vllm_triton.MlaDecode,
                        vllm_triton.ReshapeAndCache):  # fmt: skip
            self.assertEqual(reasons(adapter, "fp8_kv"), early)
            for allowed in ({"sm": 89}, {"sm": 90}, {"device": "cpu", "sm": 0}):
                self.assertEqual(reasons(adapter, "fp8_kv", **allowed), [])
            self.assertEqual(reasons(adapter), [])
        self.assertEqual(reasons(vllm_triton.Unified2d, "fp8_e5m2_kv"), [])
        self.assertEqual(reasons(vllm_triton.Merge, "fp8_output"), early)

    def test_an_operation_of_vllm_is_looked_for_in_its_older_place_alone(self):
        """A package that is missing elsewhere is not taken for an older vLLM."""
        from attnbench.adapters import vllm_operations

        def imported(missing):
            def import_module(name):
                if name.startswith("vllm.v1."):
                    raise ModuleNotFoundError(name=missing)
                return SimpleNamespace(merge=name)

            return mock.patch("importlib.import_module", import_module)

        for missing in ("vllm.v1", "vllm.v1.attention.ops.of"):
            with imported(missing):
                self.assertEqual(vllm_operations.find("of", "merge"), "vllm.attention.ops.of")
        with imported("triton"), self.assertRaises(ModuleNotFoundError) as caught:
            vllm_operations.find("of", "merge")
        self.assertEqual(caught.exception.name, "triton")


class Structs(unittest.TestCase):
    def test_they_lie_in_memory_as_the_header_has_them(self):
        sys.path.insert(0, str(PACKAGE_DIR))
        self.addCleanup(sys.path.remove, str(PACKAGE_DIR))
        from attnbench import adapter, structs

        for mirror, name in ((structs.Problem, "AttnbenchProblem"), (structs.Tensor, "AttnbenchTensor"),
                             (structs.Tensors, "AttnbenchTensors"),
                             (structs.Operand, "AttnbenchOperand")):  # fmt: skip
            fields = [field for field, *_ in mirror._fields_]
            shown = "\n".join(f"  SHOW({name}, {field})" for field in fields)
            source = STRUCTS.replace("FIELDS", shown).replace("TYPE", name)
            said = compiled_and_run(source)
            self.assertEqual(said.pop("size"), str(ctypes.sizeof(mirror)), name)
            mine = {field: str(getattr(mirror, field).offset) for field in fields}
            self.assertEqual(mine, said)
        # And the bits that words mean.
        for prefix, words in (("", adapter.DEVICES), ("", adapter.ATTENTION_TYPES),
                              ("", adapter.DTYPES), ("", adapter.FEATURES), ("KV_", adapter.KV),
                              ("OP_", adapter.OPERATIONS),
                              ("LSE_", {k or "none": v for k, v in adapter.LSE.items()})):  # fmt: skip
            lines = "\n".join(f'  printf("{word} %llu\\n", (unsigned long long)ATTNBENCH_{prefix}'
                              f'{word.upper()});' for word in words)  # fmt: skip
            source = STRUCTS.replace("FIELDS", lines).replace("TYPE", "AttnbenchTensor")
            said = compiled_and_run(source)
            del said["size"]
            self.assertEqual(said, {word: str(bit) for word, bit in words.items()})


def compiled_and_run(source):
    """The lines "name number" that a C program prints."""
    script = 'out="$(mktemp)" && gcc -I "$0" -x c - -o "$out" && "$out" && rm "$out"'
    done = subprocess.run(["bash", "-c", script, HEADER_DIR], input=source, text=True, check=True,
                          capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip
    return dict(line.split() for line in done.stdout.splitlines())


if __name__ == "__main__":
    unittest.main()
