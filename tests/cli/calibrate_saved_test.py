"""Calibrating the tensors of `run --save-tensors`: whose attention the error is that of."""

import json
import unittest

import numpy as np
from calibration import CalibrationTest, attention, e4m3, layer_tensors, rms_rel
from tool import strict_json

from opinion import safetensors_file


class SavedResults(CalibrationTest):
    def test_the_attention_of_a_saved_result_is_that_of_its_scenario(self):
        scenario = {"schema": 1, "name": "d", "batch": "q20_3q1s30",
                    "attention": {"num_heads": 4, "num_kv_heads": 2, "head_size": 32,
                                  "sliding_window": 9, "sinks": "normal", "alibi": "linear",
                                  "logits_soft_cap": 3}}  # fmt: skip
        self.write("d.json", json.dumps(scenario))
        self.expect(0, "run", "d.json", "--backend", "REFERENCE", "--no-timing",
                    "--save-tensors", "saved")  # fmt: skip
        (file,) = (self.dir / "saved").iterdir()
        outcome = self.calibrate(0, "d.json", "--json", "-")
        from_seed = strict_json(outcome.out)["layers"]
        outcome = self.calibrate(0, "--tensors", file, "--format", "kv-cache", "--json", "-",
                                 "--force")  # fmt: skip
        self.assertEqual(strict_json(outcome.out)["layers"], from_seed)

    def test_masks_of_saved_results_are_those_of_the_error(self):
        tensors = layer_tensors()
        scale = 1 / np.sqrt(24)

        def window(left, right):
            return lambda p, j: (j >= p - left) & (j <= p + right)

        def causal_or_within(*ranges):
            return lambda p, j: np.logical_or.reduce(
                [j <= p] + [(a <= p) & (p <= b) & (a <= j) & (j <= b) for a, b in ranges]
            )

        encoder = {"type": "encoder", "causal": False, "scale": scale, "sliding_window": 5}
        decoder = {"type": "decoder", "causal": True, "scale": scale}
        ranges = {"0": [[3, 20], [30, 99]]}
        for attention_spec, backend, allowed in (
            (encoder, "FLASH_ATTN", window(4, 4)),
            ({**encoder, "type": "encoder_only"}, "TRITON_ATTN", window(4, 4)),
            # Its source looks back only, unless it is told otherwise (semantics 3.3).
            ({**encoder, "encoder_window": "source"}, "FLASH_ATTN_IX", window(4, 0)),
            ({**encoder, "encoder_window": "symmetric"}, "FLASH_ATTN_IX", window(4, 4)),
            ({**decoder, "mm_prefix_ranges": ranges}, "REFERENCE",
             causal_or_within((3, 20), (30, 39))),
            ({"type": "encoder_decoder", "causal": False, "scale": scale}, "FLASH_ATTN", None),
        ):  # fmt: skip
            with self.subTest(attention_spec, backend=backend):
                path = self.save_result(attention_spec, tensors, backend)
                layer = self.layer(path, "--format", "kv-cache")
                scales = {role: layer["tensors"][role]["scale"] for role in "qkv"}
                read = [e4m3(tensors[role], scales[role], role == "q") for role in "qkv"]
                error = rms_rel(attention(*read, [40], allowed=allowed),
                                attention(*tensors.values(), [40], allowed=allowed))  # fmt: skip
                self.assertAlmostEqual(layer["error"]["rms_rel"] / error, 1, places=9)

    def test_an_unknown_backend_attends_as_its_file_states(self):
        tensors = layer_tensors()
        spec = {"type": "encoder", "causal": False, "scale": 0.2, "sliding_window": 5}
        stated = {"window": "one_sided", "alibi": "by_mask", "cache_layout": None}

        def error(backend, metadata=None):
            path = self.save_result(spec, tensors, backend, metadata)
            return self.layer(path, "--format", "kv-cache")["error"]

        one_sided, symmetric = error("FLASH_ATTN_IX"), error("FLASH_ATTN")
        self.assertNotEqual(one_sided, symmetric)
        self.assertEqual(error("NEWCOMER", {"kernel_rules": json.dumps(stated)}), one_sided)
        self.assertEqual(error("MINE", {"plugin": "1.0"}), symmetric)

    def test_an_unknown_backend_whose_file_states_no_rules_is_refused(self):
        stated = {"window": "one_sided", "alibi": "by_mask"}
        for words, metadata in (
            (["E-VALUE", "unknown backend 'NEWCOMER'", "kernel_rules"], {}),
            (["E-FORMAT", "kernel_rules", "not JSON"], {"kernel_rules": "{"}),
            (["E-FORMAT", "kernel_rules", "object"], {"kernel_rules": "[]"}),
            (["E-FORMAT", "window"], {"kernel_rules": json.dumps({**stated, "window": "wide"})}),
            (["E-FORMAT", "alibi"], {"kernel_rules": json.dumps({"window": "symmetric"})}),
            (["E-FORMAT", "quantises_query"],
             {"kernel_rules": json.dumps({**stated, "quantises_query": 1})}),
        ):  # fmt: skip
            with self.subTest(words):
                spec = {"type": "encoder", "causal": False, "scale": 0.2}
                path = self.save_result(spec, layer_tensors(), "NEWCOMER", metadata)
                self.refused([*words, "saved.safetensors"], "--tensors", path,
                             "--format", "kv-cache")  # fmt: skip

    def test_a_scenario_of_one_unknown_backend_is_refused(self):
        scenario = {"schema": 1, "name": "d", "batch": "q4", "backends": ["NEWCOMER"],
                    "attention": {"num_heads": 1, "num_kv_heads": 1, "head_size": 16}}  # fmt: skip
        self.write("d.json", json.dumps(scenario))
        self.refused(["E-VALUE", "unknown backend 'NEWCOMER'"], "d.json")

    def test_sinks_of_a_saved_result_are_those_of_the_error(self):
        tensors = layer_tensors()
        sinks = [1.5, -np.inf, 9.0, 0.0]
        spec = {"type": "decoder", "causal": True, "scale": 1 / np.sqrt(24), "sinks": "normal"}
        layer = self.layer(self.save_result(spec, tensors, sinks=sinks), "--format", "kv-cache")
        scales = {role: layer["tensors"][role]["scale"] for role in "qkv"}
        read = [e4m3(tensors[role], scales[role], role == "q") for role in "qkv"]
        error = rms_rel(attention(*read, [40], True, sinks=sinks),
                        attention(*tensors.values(), [40], True, sinks=sinks))  # fmt: skip
        self.assertAlmostEqual(layer["error"]["rms_rel"] / error, 1, places=9)

    def test_a_saved_result_without_metadata_says_what_it_is_taken_for(self):
        path = self.save_result("{}", layer_tensors())
        tensors, _ = safetensors_file.read(path)
        safetensors_file.write(path, tensors, {})
        for name, words in (("vllm-mm", "that of an encoder"), ("kv-cache", "causal")):
            outcome = self.calibrate(0, "--tensors", path, "--format", name, "--force")
            self.assertIn(f"without metadata 'problem', its attention is taken as {words}",
                          outcome.err)  # fmt: skip

    def test_metadata_that_tell_of_no_attention_are_refused(self):
        tensors = layer_tensors()
        good = {"type": "decoder", "causal": True, "scale": 0.2}
        ranges = "attention.mm_prefix_ranges"
        for words, spec, more in (
            (["E-FORMAT", "not JSON"], "{", {}),
            (["E-FORMAT", "nested"], '{"attention": ' + "[" * 100_000 + "]" * 100_000 + "}", {}),
            (["E-FORMAT", "attention.type is missing"], "[]", {}),
            (["E-FORMAT", "attention.causal is missing"], {**good, "causal": None}, {}),
            (["E-FORMAT", "attention.causal"], {**good, "causal": "yes"}, {}),
            (["E-FORMAT", "attention.type"], {**good, "type": "hydra"}, {}),
            (["E-CONFIG", "attention.scale"], {**good, "scale": -1}, {}),
            (["E-CONFIG", "attention.sliding_window"], {**good, "sliding_window": 0}, {}),
            (["E-VALUE", ranges], {**good, "mm_prefix_ranges": {"1": [[0, 3]]}}, {}),
            (["E-VALUE", ranges], {**good, "mm_prefix_ranges": {"0": [[-1, 3]]}}, {}),
            (["E-VALUE", ranges], {**good, "mm_prefix_ranges": {"0": [[4, 3]]}}, {}),
            (["E-FORMAT", "'sinks' is missing"], {**good, "sinks": "normal"}, {}),
            (["E-FORMAT", "'alibi_slopes' is missing"], {**good, "alibi": "sqrt"}, {}),
            (["E-VALUE", "'sinks'", "NaN for head 2"], good, {"sinks": [0, 1, np.nan, 2]}),
            (["E-SHAPE", "'sinks'"], good, {"sinks": [0, 1]}),
        ):
            with self.subTest(words):
                path = self.save_result(spec, tensors, **more)
                self.refused([*words, "saved.safetensors"], "--tensors", path,
                             "--format", "kv-cache")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
