"""The adapters of public packages, through the real binary. Those of torch run on CPU tensors of the real
one; those of other packages against stubs with their signatures and conventions (tests/python/stubs).

Needs an interpreter with torch, which scripts/test does not install: ATTNBENCH_PYTHON names it, and then
it has to have torch. Without that variable, and without torch, the tests are skipped.
"""

import re
import subprocess
import unittest

from plugins import CROSS
from pythons import PACKAGE_DIR, STUBS, PythonTest, python_with_torch
from tool import ROOT, TIME_LIMIT_S, TINY, TINY_CASE

PREFIX = "attnbench.adapters."
# The shipped adapters for a machine without a GPU, and each with one convention declared wrong.
ON_CPU = """\
from attnbench import Adapter
from attnbench.adapters import (flash_attn, flash_mla, flashinfer, torch_flex, vllm_cuda,
                                vllm_flash_attn, vllm_flash_mla, vllm_triton)

OTHERS = {"natural": "base_2", "base_2": "natural", "HT": "TH", "TH": "HT", "-inf": "+inf", "+inf": "-inf"}
for module in (flash_attn, flash_mla, flashinfer, torch_flex, vllm_cuda, vllm_flash_attn,
               vllm_flash_mla, vllm_triton):
    for name, base in list(vars(module).items()):
        if not isinstance(base, type) or not hasattr(base, "prepare"):
            continue
        name = module.__name__.rpartition(".")[2] + "_" + name
        own = {"devices": ("cpu",), "__module__": __name__}
        globals()[name] = type(name, (base,), own)
        for swapped in ("lse", "lse_axes", "empty_rows"):
            other = {swapped: OTHERS.get(getattr(base, swapped))}
            globals()[f"{name}_{swapped}"] = type(name, (base,), {**own, **other})

def exchanges_key_and_value(self, problem, tensors):
    tensors.key, tensors.value = tensors.value, tensors.key
    super(type(self), self).prepare(problem, tensors)

def names_the_other_layout(self, problem, tensors):
    super(type(self), self).prepare(problem, tensors)
    self.arguments = (*self.arguments[:-1], "HND" if self.arguments[-1] == "NHD" else "NHD")

class OldMlaDecode(vllm_triton_MlaDecode):
    # Over a function without the newer arguments.

    def prepare(self, problem, tensors):
        from attnbench.adapters import vllm_operations
        from vllm.v1.attention.ops import triton_decode_attention as now

        def older(q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits,
                  num_kv_splits, sm_scale, page_size=1, logit_cap=0.0):
            now.decode_attention_fwd(q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len,
                                     attn_logits, num_kv_splits, sm_scale, page_size,
                                     k_scale=1.0, v_scale=1.0, is_mla=True)

        vllm_operations.find = lambda module, name: older
        super().prepare(problem, tensors)

for base, prepare in ((vllm_triton.ReshapeAndCache, exchanges_key_and_value),
                      (vllm_cuda.ReshapeAndCache, exchanges_key_and_value),
                      (flashinfer.Append, exchanges_key_and_value),
                      (flashinfer.Append, names_the_other_layout)):
    name = f"{base.__module__.rpartition('.')[2]}_{base.__name__}_{prepare.__name__}"
    own = {"devices": ("cpu",), "__module__": __name__, "prepare": prepare}
    globals()[name] = type(name, (base,), own)
"""
RAGGED = ("flash_attn_Fa2", "flash_attn_Fa3", "flash_attn_Fa3Forward", "flash_attn_Fa4")
PAGED = ("flash_attn_Fa3Paged", "flash_attn_Fa4Paged", "vllm_flash_attn_Fa2", "vllm_flash_attn_Fa3",
         "vllm_triton_Unified2d", "flashinfer_Prefill")  # fmt: skip
DECODE = ("vllm_triton_Unified3d", "flashinfer_Decode", "flashinfer_DecodeTensorCores")
WITH_LSE = (*RAGGED, "flash_attn_Fa2Paged", "flash_attn_Fa3Paged", "flash_attn_Fa4Paged",
            "vllm_flash_attn_Fa2", "vllm_flash_attn_Fa3", "flashinfer_Prefill")  # fmt: skip

LATENTS = """\
schema: 1
name: latents
attention: {type: mla, num_heads: 4, dtype: bfloat16}
mla: {qk_nope_head_dim: 32, v_head_dim: 32}
kv_cache: {block_size: 64}
batch: BATCH
"""
DECODES, SPECULATIVE, MIXED = "3q1s100_q1s64", "3q2s100", "q1s100_3q2s90_q20"
DENSE_MLA = ("flash_mla_Decode", "vllm_flash_mla_Decode")
SPARSE_MLA = ("flash_mla_Sparse", "vllm_flash_mla_Sparse")
MLA = (*DENSE_MLA, "vllm_triton_MlaDecode", "flashinfer_Mla")
LISTED = ("--set", "attention.num_heads=64", "--set", "mla.sparse_topk=128", "--set",
          "mla.sparse.valid=0.3")  # fmt: skip
FP8_LATENTS = ("--set", "kv_cache.dtype=fp8", "--set", "kv_cache.k_scale=0.02", "--set",
               "kv_cache.q_scale=0.03")  # fmt: skip
WRITES = ("vllm_triton_ReshapeAndCache", "vllm_cuda_ReshapeAndCache")
VLLM_MERGES = ("vllm_triton_Merge", "vllm_cuda_Merge")
CACHE = """\
schema: 1
name: cache
attention: {type: op, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
op: {name: reshape_and_cache}
batch: 3q1s70_q5s33_q48
"""
# As many tokens as heads, so that an LSE with the other axes has the same shape.
MERGE = """\
schema: 1
name: merge
attention: {type: op, num_heads: 32, head_size: 64, dtype: bfloat16}
op: {name: merge, tokens: 32}
"""


FA3 = ("flash_attn_Fa3", "flash_attn_Fa3Forward", "flash_attn_Fa3Paged", "vllm_flash_attn_Fa3")
FP8 = TINY.replace(
    "dtype: bfloat16", "dtype: bfloat16, query_dtype: fp8_e4m3, probability_dtype: PROBABILITY"
) + "kv_cache: {dtype: fp8, q_scale: 0.061, k_scale: 0.023, v_scale: 0.017}\n"


class AdapterTest(PythonTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python, cls.modules = python_with_torch(), [STUBS]

    def setUp(self):
        super().setUp()
        self.write("mine.py", ON_CPU)

    def all_pass(self, scenario, *classes, **more):
        results = self.run_classes(scenario, *classes, **more)
        self.assertEqual(len(results), len(classes))
        for name, result in results.items():
            with self.subTest(name=name):
                self.assertEqual(result["status"], "passed", result["reasons"])
        return results


class Torch(AdapterTest):
    MATH, FLASH = PREFIX + "torch_sdpa:Math", PREFIX + "torch_sdpa:Flash"
    FLEX = PREFIX + "torch_flex:Flex"

    def test_the_cpu_runs_scaled_dot_product_attention(self):
        results = self.all_pass(TINY, self.MATH, self.FLASH, options=())
        for result in results.values():
            self.assertGreater(result["timing"]["median_us"], 0)
            self.assertIn("torch 2.", result["plugin"]["version"])
            self.assertTrue(result["batch_invariance"]["equal"])

    def test_lengths_masks_and_types(self):
        sweep = TINY.replace(f"batch: {TINY_CASE}", "batch: [3q8s40_2q1s40, q33_q33, 5q1s70]")
        self.all_pass_of_each_case(sweep, self.MATH)
        window = sweep.replace("head_size: 64", "head_size: 64, sliding_window: 9")
        self.all_pass_of_each_case(window, self.MATH)
        self.all_pass_of_each_case(sweep.replace("head_size: 64", "head_size: 64, causal: false"),
                                   self.MATH, self.FLASH)  # fmt: skip
        self.all_pass_of_each_case(sweep.replace("decoder", "encoder").replace("s40", "")
                                   .replace("s70", ""), self.MATH, self.FLASH)  # fmt: skip

    def all_pass_of_each_case(self, scenario, *classes):
        self.write("scenario.yaml", scenario)
        chosen = [word for name in classes for word in ("--backend", f"python:{name}")]
        results = self.results("scenario.yaml", "--device", "cpu", "--no-timing", *chosen)
        self.assertEqual(len(results), 3 * len(classes))
        for id, result in results.items():
            self.assertEqual(result["status"], "passed", (id, result["reasons"]))

    def test_flex_attention_and_its_conventions(self):
        """In eager mode it takes seconds, so one run has to do."""
        self.modules = ()  # torch needs more of a Triton that is there than a stub has
        classes = (self.FLEX, "torch_flex_Flex_lse", "torch_flex_Flex_empty_rows")
        results = self.run_classes(CROSS, *classes, code=1)
        self.assertEqual(results[self.FLEX]["status"], "passed", results[self.FLEX]["reasons"])
        self.assertIn("LSE is natural, declared base 2", results[classes[1]]["reasons"])
        self.assertIn("LSE of rows that see no key is -inf, declared +inf",
                      results[classes[2]]["reasons"])  # fmt: skip

    def test_no_case_of_flex_attention_is_left_uncompiled(self):
        """As torch.compile leaves the ninth form of a function."""
        code = """if True:
            import torch, torch._dynamo.utils
            from attnbench.adapters.torch_flex import compile_every_case

            compile_every_case()
            for size in range(2, 14):
                torch.compile(lambda x: x + 1, dynamic=False, backend="eager")(torch.ones(size))
            print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        """
        environment = {**self.environment(), "PYTHONPATH": str(PACKAGE_DIR)}
        done = subprocess.run([self.python, "-c", code], env=environment, capture_output=True,
                              text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.stdout.split(), ["12"], done.stderr)

    def test_the_way_of_the_documentation_to_a_judged_kernel(self):
        mine, scenario, command = self.example("class Mine:", "name: mine\n", "mine:Mine")
        self.write("case.yaml", scenario + "timing: {samples: 3}\n")
        self.write("mine.py", mine)
        results = self.results(*command.split())
        (result,) = results.values()
        self.assertEqual(result["status"], "passed", result["reasons"])
        # And it is incorrect without the causal rule, as the page says.
        wrong = mine.replace("scores.masked_fill(key > position, -math.inf)", "scores")
        self.assertNotEqual(wrong, mine)
        self.write("mine.py", wrong)
        (result,) = self.results(*command.split(), code=1).values()
        self.assertEqual(result["status"], "incorrect", result["reasons"])

    def example(self, code, scenario, name):
        """The blocks of the documentation that have these words, and the command with the class."""
        text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```(python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (mine,) = [block for kind, block in blocks if kind == "python" and code in block]
        (case,) = [block for kind, block in blocks if kind == "yaml" and scenario in block]
        (command,) = re.findall(rf"attnbench run (.*python:{name}.*)", text)
        return mine, case, command

    def test_the_way_of_the_documentation_to_a_judged_cache_write(self):
        mine, scenario, command = self.example("class Write:", "name: write\n", "write:Write")
        self.write("write.yaml", scenario + "timing: {samples: 3}\n")
        self.write("write.py", mine)
        own, other = self.results(*command.split()).values()
        self.assertEqual([own["status"], other["status"]], ["passed"] * 2, other["reasons"])
        self.assertGreater(other["timing"]["median_us"], 0)
        wrong = mine.replace("slots % problem.block_size", "slots * 0")
        self.assertNotEqual(wrong, mine)
        self.write("write.py", wrong)
        own, other = self.results(*command.split(), code=1).values()
        self.assertEqual(other["status"], "incorrect", other["reasons"])

    def test_the_fp8_case_of_the_documentation(self):
        _, scenario, _ = self.example("class Mine:", "name: fp8\n", "mine:Mine")
        self.all_pass(scenario, *FA3, "vllm_triton_Unified2d", "flashinfer_Prefill")

    def test_what_it_cannot_do_is_unsupported(self):
        cross = CROSS.replace("float32", "bfloat16")
        for result in self.run_classes(cross, self.MATH, self.FLASH, code=3).values():
            self.assertEqual(result["reasons"], ["rows that see no key"])
        cudnn = PREFIX + "torch_sdpa:Cudnn"
        reasons = self.run_classes(TINY, cudnn, code=3)[cudnn]["reasons"]
        self.assertEqual(reasons, ["device cpu not supported"])


class Packages(AdapterTest):
    def test_every_adapter_is_right_for_a_mixed_batch(self):
        results = self.all_pass(TINY, *RAGGED, *PAGED)
        for name, result in results.items():
            self.assertEqual(result["lse_error"] is None, name.startswith("vllm_triton"), name)

    def test_decodes_large_blocks_and_the_other_layout(self):
        decodes = TINY.replace(TINY_CASE, "5q1s100")
        self.all_pass(decodes, *RAGGED, *PAGED, *DECODE)
        self.all_pass(decodes + "kv_cache: {layout: HND}\n", *PAGED, *DECODE)
        self.all_pass(TINY + "kv_cache: {block_size: 256}\n", "flash_attn_Fa2Paged")

    def test_windows_soft_caps_slopes_and_sinks(self):
        def changed(words):
            return TINY.replace("head_size: 64", f"head_size: 64, {words}")

        with_windows = [name for name in (*RAGGED, *PAGED) if "Fa3Forward" not in name]
        self.all_pass(changed("sliding_window: 9"), *with_windows)
        self.all_pass(changed("logits_soft_cap: 20"), *with_windows)
        self.all_pass(changed("alibi: linear"), "vllm_triton_Unified2d", "flash_attn_Fa2")
        self.all_pass(changed("sinks: normal"), "vllm_triton_Unified2d")
        # A distance then, as FlashAttention-2 has it.
        self.all_pass(changed("alibi: linear, sliding_window: 9"), "flash_attn_Fa2")
        name = "vllm_triton_Unified2d"
        result = self.run_classes(changed("alibi: linear, sinks: normal"), name, code=3)[name]
        self.assertEqual(result["reasons"], ["alibi with sinks"])
        self.all_pass(
            changed("causal: false"), *RAGGED, "flash_attn_Fa3Paged", "flashinfer_Prefill"
        )

    def test_values_of_fewer_columns_than_keys(self):
        encoder = TINY.replace("type: decoder", "type: encoder_only").replace(TINY_CASE, "q32_q70")
        encoder = encoder.replace("head_size: 64", "head_size: 192, v_head_size: 128")
        names = ("flash_attn_Fa3", "flash_attn_Fa3Forward")
        self.all_pass(encoder, *names)
        for others in (encoder.replace("128", "64"), encoder.replace("192", "160")):
            for result in self.run_classes(others, *names, code=3).values():
                self.assertEqual(
                    result["reasons"],
                    ["head size of values other than that of keys, except 128 beside 192"],
                )

    def test_fp8_caches_with_a_query_of_16_bits(self):
        """Scales that are all different, so that a forgotten or a swapped one shows."""
        mixed = TINY + "kv_cache: {dtype: fp8, k_scale: 0.023, v_scale: 0.017}\n"
        decodes = mixed.replace(TINY_CASE, "5q1s100")
        for scenario in (decodes, decodes.replace("fp8,", "fp8_e5m2,"),
                         decodes.replace("fp8,", "fp8, layout: HND,")):  # fmt: skip
            self.all_pass(scenario, "flashinfer_Prefill", "vllm_triton_Unified2d", *DECODE)
        self.all_pass(mixed, "flashinfer_Prefill", "vllm_triton_Unified2d")
        windows = mixed.replace("head_size: 64", "head_size: 64, sliding_window: 9")
        self.all_pass(windows, "flashinfer_Prefill", "vllm_triton_Unified2d")
        by_head = decodes.replace("0.023", "[0.023, 0.061]")
        names = ("flashinfer_Prefill", "vllm_triton_Unified2d", *DECODE)
        for result in self.run_classes(by_head, *names, code=3).values():
            self.assertEqual(result["reasons"], ["a k_scale for each head"])
        calculated = TINY + "kv_cache: {dtype: fp8, calculate_kv_scales: true}\n"
        self.all_pass(calculated, "vllm_triton_Unified2d")
        refused = self.run_classes(calculated, "flashinfer_Prefill", code=3)["flashinfer_Prefill"]
        self.assertEqual(refused["reasons"], ["scales calculated in the step"])

    def test_fp8_queries(self):
        fp8 = FP8.replace("PROBABILITY", "fp8_e4m3")
        takers = (*FA3, "vllm_triton_Unified2d", "flashinfer_Prefill")
        results = self.all_pass(fp8, *takers)
        for name in FA3:
            self.assertIsNotNone(results[name]["lse_error"])
            self.assertIn("P fp8_e4m3", results[name]["error"]["rule"])
        self.all_pass(fp8.replace(TINY_CASE, "5q1s100"), *takers, "vllm_triton_Unified3d")
        by_head = fp8.replace("k_scale: 0.023, v_scale: 0.017",
                              "k_scale: [0.023, 0.061], v_scale: [0.017, 0.11]")  # fmt: skip
        self.all_pass(by_head, *FA3, "flashinfer_Prefill")
        windows = fp8.replace("head_size: 64", "head_size: 64, sliding_window: 9")
        self.all_pass(windows, *(name for name in FA3 if "Forward" not in name))
        refused = self.run_classes(windows, "flashinfer_Prefill", code=3)["flashinfer_Prefill"]
        self.assertEqual(refused["reasons"], ["an fp8 query with a window or soft cap"])

    def test_fp8_queries_are_refused_where_the_scenario_asks_for_more_bits(self):
        takers = (*FA3, "vllm_triton_Unified2d", "flashinfer_Prefill")
        wide = FP8.replace("PROBABILITY", "auto")
        for result in self.run_classes(wide, *takers, code=3).values():
            self.assertEqual(result["reasons"], [
                "rounds P to e4m3, which attention.probability_dtype: fp8_e4m3 asks for"])  # fmt: skip
        keys_alone = TINY + "kv_cache: {dtype: fp8}\n"
        for result in self.run_classes(keys_alone, *FA3, code=3).values():
            self.assertEqual(result["reasons"], [
                "fp8 keys without an fp8 query (attention.query_dtype: fp8_e4m3)"])  # fmt: skip
        half = FP8.replace("PROBABILITY", "fp8_e4m3").replace("bfloat16", "float16")
        names = ("flash_attn_Fa3", "vllm_flash_attn_Fa3")
        for result in self.run_classes(half, *names, code=3).values():
            self.assertEqual(result["reasons"], ["fp8 with an output of float16"])

    def test_a_shared_prefix_in_two_levels(self):
        shared = TINY.replace(TINY_CASE, "4q1s100_2q3s90") + "cascade: {common_prefix_len: 64}\n"
        self.all_pass(shared, "flashinfer_Cascade")
        reasons = self.run_classes(TINY, "flashinfer_Cascade", code=3)["flashinfer_Cascade"][
            "reasons"
        ]
        self.assertEqual(reasons, ["no shared prefix of whole blocks (cascade.common_prefix_len)"])

    def test_an_lse_in_the_other_base_or_with_the_other_axes_is_noticed(self):
        """As many tokens as heads, so that the shape fits either way."""
        square = TINY.replace(TINY_CASE, "q4s100") + "kv_cache: {block_size: 256}\n"
        for convention in ("lse", "lse_axes"):
            results = self.run_classes(
                square, *(f"{name}_{convention}" for name in WITH_LSE), code=1
            )
            self.assertEqual(len(results), len(WITH_LSE))
            for name, result in results.items():
                with self.subTest(name=name):
                    self.assertEqual(result["status"], "incorrect", result["reasons"])
        for result in self.run_classes(square, *WITH_LSE).values():
            self.assertEqual(result["status"], "passed", result["reasons"])

    def test_rows_without_keys_by_the_other_convention_are_noticed(self):
        cross = CROSS.replace("float32", "bfloat16") + "kv_cache: {block_size: 256}\n"
        with_empty = [name for name in WITH_LSE if "flashinfer" not in name]
        self.all_pass(cross, *with_empty)
        results = self.run_classes(cross, *(f"{name}_empty_rows" for name in with_empty), code=1)
        for name, result in results.items():
            with self.subTest(name=name):
                self.assertIn("LSE of rows that see no key is", "\n".join(result["reasons"]))
        refused = self.run_classes(cross, "flashinfer_Prefill", code=3)["flashinfer_Prefill"]
        self.assertEqual(refused["status"], "unsupported")

    def all_pass_over_latents(self, batch, *classes, settings=()):
        return self.all_pass(LATENTS.replace("BATCH", batch), *classes,
                             options=("--no-timing", *settings))  # fmt: skip

    def test_decodes_and_long_queries_over_latents(self):
        for result in self.all_pass_over_latents(DECODES, *MLA).values():
            self.assertLess(result["lse_error"]["max_abs"], 1e-2)
        self.all_pass_over_latents(SPECULATIVE, *MLA)
        self.all_pass_over_latents(MIXED, "flashinfer_Mla")
        scenario = LATENTS.replace("BATCH", MIXED)
        refused = self.run_classes(scenario, *DENSE_MLA, "vllm_triton_MlaDecode", code=3)
        for result in refused.values():
            self.assertEqual(result["reasons"], ["query lengths differ"])

    def test_latents_in_fp8(self):
        name = "vllm_flash_mla_Decode"
        scenario = LATENTS.replace("BATCH", DECODES)
        refused = self.run_classes(scenario, name, code=3, options=("--no-timing", *FP8_LATENTS))[name]
        self.assertEqual(refused["reasons"],
                         ["rounds P to e4m3, which attention.probability_dtype: fp8_e4m3 asks for"])  # fmt: skip
        rounded = (*FP8_LATENTS, "--set", "attention.probability_dtype=fp8_e4m3")
        for batch in (DECODES, SPECULATIVE):
            self.all_pass_over_latents(batch, name, settings=rounded)
            self.all_pass_over_latents(batch, "vllm_triton_MlaDecode", settings=FP8_LATENTS)
        half = ("--no-timing", *rounded, "--set", "attention.dtype=float16")
        refused = self.run_classes(scenario, name, code=3, options=half)[name]
        self.assertEqual(refused["reasons"], ["fp8 with an output of float16"])

    def test_an_older_triton_decode_gets_no_arguments_that_it_lacks(self):
        self.all_pass_over_latents(DECODES, "OldMlaDecode")
        name = "OldMlaDecode"
        result = self.run_classes(LATENTS.replace("BATCH", DECODES), name, code=4,
                                  options=("--no-timing", *FP8_LATENTS))[name]  # fmt: skip
        self.assertIn("unexpected keyword argument 'k_scale'", result["reasons"][0])

    def test_lists_of_entries_in_16_bits_and_as_fp8_ds_mla(self):
        for settings in (LISTED, (*LISTED, "--set", "kv_cache.dtype=fp8_ds_mla"),
                         (*LISTED, "--set", "mla.sparse.valid=0.0")):  # fmt: skip
            self.all_pass_over_latents(MIXED, *SPARSE_MLA, settings=settings)

    def test_functions_of_an_older_flash_mla_are_refused(self):
        old = "def get_mla_metadata(seqlens, heads, kv_heads): ...\n"
        for folder in ("flash_mla", "vllm/third_party/flashmla"):
            self.write(f"old/{folder}/flash_mla_interface.py", old)
            self.write(f"old/{folder.partition('/')[0]}/__init__.py", "raise ImportError('imported')\n")
        self.modules = (self.dir / "old", STUBS)
        scenario = LATENTS.replace("BATCH", DECODES)
        for result in self.run_classes(scenario, *(PREFIX + name for name in (
                "flash_mla:Decode", "vllm_flash_mla:Decode")), code=3).values():  # fmt: skip
            self.assertEqual(result["reasons"][-1], "an older FlashMLA, without FlashMLASchedMeta")

    def test_an_lse_of_latents_by_another_convention_is_noticed(self):
        """As many tokens as heads, so that the shape fits either way."""
        scenario = LATENTS.replace("BATCH", "4q1s100")
        for convention in ("lse", "lse_axes"):
            names = [f"{name}_{convention}" for name in MLA]
            for name, result in self.run_classes(scenario, *names, code=1).items():
                # [H, B, Q] is no [T, H].
                has_shape = convention == "lse_axes" and "flash_mla" in name
                with self.subTest(name=name):
                    self.assertEqual(result["status"], "error" if has_shape else "incorrect",
                                     result["reasons"])  # fmt: skip
                    self.assertIn("lse" if convention == "lse_axes" else "LSE is in base 2"
                                  if "flashinfer" in name else "LSE is natural",
                                  "\n".join(result["reasons"]))  # fmt: skip
        options = ("--no-timing", *LISTED, "--set", "mla.sparse.valid=0.0")
        names = [f"{name}_empty_rows" for name in SPARSE_MLA]
        for result in self.run_classes(scenario, *names, code=1, options=options).values():
            self.assertIn("LSE of rows that see no key is +inf, declared -inf", result["reasons"])

    def test_caches_are_written_in_every_layout_and_format(self):
        for order in ("NHD", "HND"):
            self.all_pass(CACHE + f"kv_cache: {{layout: {order}}}\n", *WRITES, "flashinfer_Append")
            fp8 = f"kv_cache: {{layout: {order}, dtype: fp8, k_scale: 0.023, v_scale: 0.03}}\n"
            self.all_pass(CACHE + fp8, *WRITES)
        per_head = CACHE + "kv_cache: {dtype: fp8, k_scale: [0.023, 0.03]}\n"
        for result in self.run_classes(per_head, *WRITES, code=3).values():
            self.assertEqual(result["reasons"], ["a k_scale for each head"])
        # Scales of a cache that is not quantised are nobody's, and do not reach them.
        self.write("unquantised.yaml", per_head.replace("dtype: fp8, ", ""))
        refused = self.expect(2, "run", "unquantised.yaml", "--device", "cpu", "--no-timing")
        self.assertIn("kv_cache.k_scale: read only with a KV cache of dtype fp8", refused.err)

    def test_keys_as_values_and_the_other_layout_are_noticed(self):
        wrong = [f"{name}_exchanges_key_and_value" for name in (*WRITES, "flashinfer_Append")]
        wrong.append("flashinfer_Append_names_the_other_layout")
        # As many slots as heads, so that the shape fits either way.
        square = CACHE.replace("num_kv_heads: 2", "num_kv_heads: 16").replace("heads: 4", "heads: 16")
        for name, result in self.run_classes(square, *wrong, code=1).items():
            with self.subTest(name=name):
                self.assertEqual(result["status"], "incorrect", result["reasons"])
                self.assertIn("cache write: ", "\n".join(result["reasons"]))

    def test_parts_are_merged(self):
        results = self.all_pass(MERGE, *VLLM_MERGES, "flashinfer_Merge")
        for result in results.values():
            self.assertGreater(result["lse_error"]["inf_count"], 0)
        self.all_pass(MERGE.replace("bfloat16", "float32"), *VLLM_MERGES)
        self.all_pass(MERGE + "output_quant: {type: fp8_static, scale: 0.021}\n", *VLLM_MERGES)
        partly = MERGE.replace("tokens: 32", "tokens: 32, tokens_with_context: 11")
        self.all_pass(partly, *VLLM_MERGES)
        reasons = self.run_classes(partly, "flashinfer_Merge", code=3)["flashinfer_Merge"]["reasons"]
        self.assertEqual(reasons, ["rows without a prefix"])

    def test_rows_that_flashinfer_has_no_threads_for_are_refused(self):
        """A CTA has 1024 threads, 16 of which take a head of 128 in vectors of 8."""
        def sized(scenario, heads, kv_heads, size):
            return scenario.replace(re.search("num_heads.*?head_size: 64", scenario).group(),
                                    f"num_heads: {heads}, num_kv_heads: {kv_heads}, head_size: {size}")  # fmt: skip

        shared = TINY.replace(TINY_CASE, "4q1s40") + "cascade: {common_prefix_len: 32}\n"
        for name, most, refused, scenario in (
            ("flashinfer_Merge", (64, 1), (72, 1), MERGE),
            ("flashinfer_Append", (64, 64), (65, 65), CACHE),
            ("flashinfer_Cascade", (64, 8), (80, 8), shared),
        ):
            self.all_pass(sized(scenario, *most, 128), name)
            result = self.run_classes(sized(scenario, *refused, 128), name, code=3)[name]
            self.assertEqual(result["reasons"], ["more than 64 heads of this size"])
            result = self.run_classes(sized(scenario, 4, 2, 96), name, code=3)[name]
            self.assertEqual(result["reasons"], ["head_size not supported"])

    def test_merges_with_lses_by_another_convention_are_noticed(self):
        wrong = [f"{name}_lse" for name in (*VLLM_MERGES, "flashinfer_Merge")]
        wrong += [f"{name}_empty_rows" for name in VLLM_MERGES]
        for name, result in self.run_classes(MERGE, *wrong, code=1).items():
            with self.subTest(name=name):
                self.assertEqual(result["status"], "incorrect", result["reasons"])
        name = "flashinfer_Merge_lse_axes"
        (reason,) = self.run_classes(MERGE, name, code=4)[name]["reasons"]
        self.assertIn("must be contiguous", reason)

    def test_without_its_package_an_adapter_is_unsupported(self):
        self.modules = ()
        for name, package in (
            ("flash_attn:Fa2", "flash_attn"),
            ("flash_attn:Fa4", "flash_attn"),
            ("flashinfer:Decode", "flashinfer"),
            ("vllm_flash_attn:Fa3", "vllm"),
            ("flash_mla:Decode", "flash_mla"),
            ("vllm_flash_mla:Sparse", "vllm"),
        ):
            scenario = LATENTS.replace("BATCH", DECODES) if "mla" in name else TINY
            reasons = self.run_classes(scenario, PREFIX + name, code=3)[PREFIX + name]["reasons"]
            self.assertEqual(reasons[0], "device cpu not supported")
            self.assertIn(f"package {package} not found in ", reasons[1])


if __name__ == "__main__":
    unittest.main()
