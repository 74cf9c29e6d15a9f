"""The multimodal encoder through the real binary: scale files in and out, notices, inputs.file."""

import json
import unittest

from tool import ToolTest

LAYERS = ["visual.blocks.0.attn.attn", "visual.blocks.10.attn.attn", "visual.blocks.2.attn.attn"]
SCALES = {layer: {"q": 0.012, "k": 0.011, "v": 0.01} for layer in LAYERS}


def scenario(**mm_encoder):
    return {
        "schema": 1,
        "name": "mm",
        "attention": {"type": "mm_encoder", "num_heads": 4, "num_kv_heads": 2, "head_size": 72},
        "mm_encoder": {"layer_names": LAYERS, **mm_encoder},
        "batch": "q33_q1_q40",
    }


class MmEncoder(ToolTest):
    def run_mm(self, status, *arguments, **mm_encoder):
        (self.dir / "mm.json").write_text(json.dumps(scenario(**mm_encoder)))
        return self.expect(status, "run", "mm.json", "--no-timing", *arguments)

    def fp8(self, status, *arguments, **mm_encoder):
        return self.run_mm(
            status, "--backend", "MM_FLASHINFER", *arguments, attn_dtype="fp8", **mm_encoder
        )

    def test_fp8_elsewhere_is_refused_in_upstreams_words(self):
        outcome = self.run_mm(0, attn_dtype="fp8")
        for name in ("TORCH_SDPA", "FLASH_ATTN", "TRITON_ATTN"):
            self.assertIn(
                "unsupported: mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, "
                f"got {name}\n",
                outcome.out,
            )

    def test_a_scale_file_must_cover_every_layer(self):
        path = self.dir / "scales.json"
        path.write_text(json.dumps(SCALES))
        self.fp8(0, fp8_scale_path="scales.json")
        path.write_text(json.dumps({"layers": dict(list(SCALES.items())[:2])}))
        outcome = self.fp8(2, fp8_scale_path="scales.json")
        self.assertIn(f"scales not found for layer '{LAYERS[2]}'", outcome.err)
        self.assertIn(f"Available layers: ['{LAYERS[0]}', '{LAYERS[1]}']", outcome.err)

    def test_bad_scale_files_are_bad_input(self):
        path = self.dir / "scales.json"
        for text, message in (
            (json.dumps({**SCALES, "x": {"q": 1, "k": 0, "v": 1}}), "E-VALUE: FP8 scales must be"),
            ('{"x": {"q": 1, "k": NaN, "v": 1}}', "E-VALUE: FP8 scales must be finite"),
            ("[1]", "E-FORMAT: "),
            ("{", "E-FORMAT: "),
        ):
            path.write_text(text)
            self.assertIn(message, self.fp8(2, fp8_scale_path="scales.json").err)
        outcome = self.fp8(2, fp8_scale_path="missing.json")
        self.assertIn("E-IO: FP8 scale file not found: ", outcome.err)

    def test_entries_that_are_no_scales_are_named(self):
        (self.dir / "scales.json").write_text(json.dumps({**SCALES, "note": "ours", "y": {"q": 1}}))
        outcome = self.fp8(0, fp8_scale_path="scales.json")
        self.assertIn("'note' is left out: it is not an object", outcome.err)
        self.assertIn("'y' is left out: ", outcome.err)

    def test_saved_scales_cover_every_layer_in_order_and_can_be_loaded(self):
        self.fp8(0, fp8_scale_save_path="saved.json")
        text = (self.dir / "saved.json").read_text()
        saved = json.loads(text)
        self.assertEqual(list(saved), LAYERS)
        self.assertEqual([list(entry) for entry in saved.values()], [["q", "k", "v"]] * 3)
        self.assertEqual(text, json.dumps(saved, indent=2))
        self.assertEqual(sorted(f.name for f in self.dir.iterdir()), ["mm.json", "saved.json"])
        self.fp8(0, fp8_scale_path="saved.json")

    def test_a_save_path_without_folder_is_bad_input_and_nothing_runs(self):
        outcome = self.fp8(2, fp8_scale_save_path="none/saved.json")
        self.assertIn("E-IO: ", outcome.err)
        self.assertEqual(outcome.out, "")

    def test_signed_maxima_report_what_saturates(self):
        outcome = self.fp8(0, "--set", "inputs.seed=2", amax="signed")
        self.assertRegex(outcome.err, r"notice: .* elements of \w+ saturate in fp8 .*signed")

    def test_saved_tensors_can_be_read_back_as_inputs(self):
        self.fp8(0, "--save-tensors", "first")
        (saved,) = (self.dir / "first").iterdir()
        self.fp8(0, "--save-tensors", "second", "--set", f"inputs.file={saved}",
                 "--set", "inputs.seed=9")  # fmt: skip
        (again,) = (self.dir / "second").iterdir()
        data = [file.read_bytes() for file in (saved, again)]
        bodies = [x[8 + int.from_bytes(x[:8], "little") :] for x in data]
        self.assertEqual(bodies[0], bodies[1])


if __name__ == "__main__":
    unittest.main()
