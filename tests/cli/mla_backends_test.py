"""Backends of MLA for SM 10, upstream's other names, prefill backends: judged for a device that is
assumed, run on the CPU."""

import shutil
import subprocess
import sys
import unittest

from tool import ROOT, TIME_LIMIT_S, ToolTest

DENSE = """\
schema: 1
name: dense
attention: {type: mla, num_heads: 4}
mla: {workspace_tokens: 512}
kv_cache: {block_size: 128}
batch: 2q1s70_q40s200_q24
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""
SPARSE = DENSE.replace("workspace_tokens: 512", "sparse_topk: 128").replace("dense", "sparse")
FP8 = ("--set", "kv_cache.dtype=fp8", "--set", "kv_cache.q_scale=0.05")
ON_SM_10 = ("--assume-sm", "100")


class MlaBackends(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("dense.yaml", DENSE)
        self.write("sparse.yaml", SPARSE)

    def by_backend(self, *arguments, code=0):
        found = self.results(*arguments, "--no-timing", "--device", "cpu", code=code)
        return {result["backend"]: result for result in found.values()}

    def second_opinion(self, folder):
        opinion = subprocess.run(
            [sys.executable, "-B", ROOT / "scripts" / "second_opinion.py", self.dir / folder],
            capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(opinion.returncode, 0, opinion.stdout + opinion.stderr)
        shutil.rmtree(self.dir / folder)

    def reasons(self, scenario, backend, *more):
        result = self.by_backend(scenario, "--backend", backend, *more, code=3)[backend]
        self.assertEqual(result["status"], "unsupported")
        return result["reasons"]

    def test_backends_of_sm_10_run_where_it_is_assumed_and_agree_with_a_second_opinion(self):
        for scenario, backend in (("dense.yaml", "CUTLASS_MLA"),
                                  ("sparse.yaml", "FLASHINFER_MLA_SPARSE")):  # fmt: skip
            for settings in ((), FP8):
                with self.subTest(backend=backend, settings=settings):
                    found = self.by_backend(scenario, "--backend", backend, *ON_SM_10, *settings,
                                         "--save-tensors", "saved")  # fmt: skip
                    self.assertEqual(found[backend]["status"], "passed", found[backend])
                    self.second_opinion("saved")
            self.assertEqual(self.reasons(scenario, backend), ["compute capability not supported"])

    def test_triton_mla_is_another_name_of_mla(self):
        found = self.by_backend("dense.yaml", "--backend", "TRITON_MLA")
        self.assertEqual({name: r["status"] for name, r in found.items()}, {"MLA": "passed"})

    def test_other_names_of_upstream_are_refused_in_its_words_and_unknown_ones_are_unknown(self):
        self.assertEqual(self.reasons("dense.yaml", "MM_ROCM_AITER_FA"),
                         ["ROCM_AITER_FA requires ROCm"])  # fmt: skip
        self.assertEqual(
            self.reasons("dense.yaml", "ROCM_AITER_MLA"),
            ["No module named 'aiter'"])  # fmt: skip
        self.assertEqual(
            self.reasons("dense.yaml", "TOKENSPEED_MLA"),
            ["Selected backend AttentionBackendEnum.TOKENSPEED_MLA is not valid for this "
             "configuration. Reason: ['kv_cache_dtype not supported', 'compute capability not "
             "supported']", "TOKENSPEED_MLA has no pipeline of its own here"])  # fmt: skip
        self.assertEqual(
            self.reasons("dense.yaml", "TOKENSPEED_MLA", *ON_SM_10, *FP8),
            ["TOKENSPEED_MLA has no pipeline of its own here"])  # fmt: skip
        self.assertEqual(
            self.reasons("dense.yaml", "MM_CUTLASS_MLA"),
            ["Unsupported multi-modal encoder attention backend for CUDA: CUTLASS_MLA."])  # fmt: skip
        err = self.expect(2, "run", "dense.yaml", "--backend", "ROCM_AITER_MLAS").err
        self.assertIn("unknown backend 'ROCM_AITER_MLAS'", err)

    def test_prefills_of_sm_10_run_there_in_e4m3_when_asked_and_say_elsewhere_why_not(self):
        for name in ("FLASHINFER", "TRTLLM_RAGGED"):
            prefill = ("--set", f"mla.prefill_backend={name}")
            self.assertEqual(
                self.reasons("dense.yaml", "MLA", *prefill),
                [f"Selected MLA prefill backend {name} is not valid for this configuration. "
                 "Reason: [compute capability 9.0 not supported]"])  # fmt: skip
            self.assertEqual(
                self.by_backend("dense.yaml", "--backend", "MLA", *prefill, *ON_SM_10)["MLA"]["status"],
                "passed")  # fmt: skip
            native = (*prefill, *ON_SM_10, *FP8, "--set", "mla.use_prefill_query_quantization=true")
            found = self.by_backend("dense.yaml", "--backend", "MLA", *native, "--save-tensors", "saved")
            self.assertEqual(found["MLA"]["status"], "passed")
            self.second_opinion("saved")
            self.assertRegex(self.expect(0, "explain", "dense.yaml", "--backend", "MLA", *native).out,
                             r"prefill query +fp8_e4m3")  # fmt: skip

    def test_a_quantised_prefill_query_that_is_not_to_be_had_is_said_and_no_error(self):
        asked = (*FP8, "--set", "mla.use_prefill_query_quantization=true")
        self.assertEqual(self.by_backend("dense.yaml", "--backend", "MLA", *asked)["MLA"]["status"],
                         "passed")  # fmt: skip
        out = self.expect(0, "explain", "dense.yaml", "--backend", "MLA", *asked).out
        self.assertRegex(out, r"prefill query +bfloat16; fp8 needs an fp8 cache and FLASHINFER or")

    def test_weights_in_fp8_are_saved_as_a_checkpoint_has_them_and_can_be_given(self):
        for block in ("null", "48"):
            asked = ("--set", "mla.kv_b_proj.dtype=fp8", "--set", f"mla.kv_b_proj.block_size={block}")
            found = self.by_backend("dense.yaml", "--backend", "MLA", *asked,
                                    "--save-tensors", "saved")["MLA"]  # fmt: skip
            self.assertEqual(found["status"], "passed")
            file = next((self.dir / "saved").glob("*.safetensors"))
            given = self.by_backend("dense.yaml", "--backend", "MLA", *asked,
                                    "--set", f"inputs.file={file}")["MLA"]  # fmt: skip
            self.assertEqual(given["status"], "passed")
            self.assertEqual(given["error"]["max_abs"], found["error"]["max_abs"])
            err = self.expect(2, "run", "dense.yaml", "--backend", "MLA", "--set",
                              f"inputs.file={file}").err  # fmt: skip
            self.assertIn("tensor 'kv_b_proj': expected 16 or 32 bits with mla.kv_b_proj.dtype auto",
                          err)  # fmt: skip
            self.second_opinion("saved")

    def test_values_are_padded_by_the_device(self):
        for sm, words in (("9.0", "as wide as V"), ("8.0", "padded to the width of keys")):
            out = self.expect(0, "explain", "dense.yaml", "--backend", "MLA", "--assume-sm", sm).out
            self.assertRegex(out, f"prefill values +{words}")


if __name__ == "__main__":
    unittest.main()
