"""int8 attention on the real binary: value scale files, what is saved, and who notices damage."""

import json
import unittest

from tool import TINY, TINY_CASE, ToolTest

INT8 = TINY.replace("name: tiny", "name: int8").replace(
    "timing:", "kv_cache: {int8_level: 1}\nbackends: [FLASH_ATTN_IX]\ntiming:"
)
WITH_FILE = INT8.replace("int8_level: 1", "int8_level: 1, value_scale_file: scales.json")
ID = f"int8/{TINY_CASE}/FLASH_ATTN_IX"
SAVED = ID.replace("/", "__") + ".safetensors"


def scale_file(value=0.03, heads=2, head_size=64, **changes):
    rows = [[value] * head_size for _ in range(heads)]
    document = {"version": 1, "num_kv_heads": 2, "head_size": 64, "layers": {"layer.0": rows}}
    return json.dumps({**document, **changes})


class ValueScaleFile(ToolTest):
    def test_its_scales_are_used_and_saved(self):
        from opinion import safetensors_file

        self.write("sub/int8.yaml", WITH_FILE)
        self.write("sub/scales.json", scale_file(value=0.25))
        results = self.results("sub/int8.yaml", "--no-timing", "--save-tensors", "t")
        self.assertEqual(results[ID]["status"], "passed")
        tensors, _ = safetensors_file.read(self.dir / "t" / SAVED)
        self.assertEqual(tensors["value_scale_cache"].raw.tolist(), [[0.25] * 64] * 2)
        self.assertTrue((tensors["value_dequantized"].raw % 0.25 == 0).all())

    def test_a_scale_of_zero_is_one_and_gives_a_warning(self):
        self.write("int8.yaml", WITH_FILE)
        self.write("scales.json", scale_file(value=0))
        outcome = self.expect(0, "run", "int8.yaml", "--no-timing")
        self.assertEqual(outcome.err.count("warning"), 1, outcome.err)
        self.assertIn("128 scales of 0 became 1", outcome.err)

    def test_bad_files_are_refused_before_anything_runs(self):
        self.write("int8.yaml", WITH_FILE)
        for what, (content, words) in {
            "missing": (None, "E-IO"),
            "empty": ("", "E-FORMAT"),
            "version": (scale_file(version=2), "E-FORMAT"),
            "heads": (scale_file(num_kv_heads=4), "E-SHAPE"),
            "rows": (scale_file(heads=3), "E-SHAPE"),
            "width": (scale_file(head_size=32), "E-SHAPE"),
            "negative": (scale_file(value=-1), "E-VALUE"),
            "nan": (scale_file(value=float("nan")), "E-VALUE"),
            "no_layers": (scale_file(layers={}), "E-FORMAT"),
        }.items():
            with self.subTest(what):
                if content is not None:
                    self.write("scales.json", content)
                before = self.files()
                outcome = self.expect(
                    2, "run", "int8.yaml", "--json", "o.json", "--save-tensors", "t"
                )
                self.assertIn(words, outcome.err)
                self.assertIn("scales.json", outcome.err)
                self.assertEqual(self.files(), before)

    def test_level_2_has_no_value_scales_to_read(self):
        self.write("int8.yaml", WITH_FILE)
        level = ("run", "int8.yaml", "--no-timing", "--set", "kv_cache.int8_level=2")
        # An option leaves the file's key unread; in one file the two contradict each other.
        outcome = self.expect(0, *level)
        self.assertIn("kv_cache.value_scale_file: left out, ", outcome.err)
        self.assertIn("(read only with kv_cache.int8_level 1; found", outcome.err)
        self.assertEqual(self.expect(0, *level, "--set", "kv_cache.value_scale_file=null").err, "")
        self.write("int8.yaml", WITH_FILE.replace("int8_level: 1", "int8_level: 2"))
        self.assertIn("kv_cache.value_scale_file: read only with kv_cache.int8_level 1; found",
                      self.expect(2, "run", "int8.yaml", "--no-timing").err)  # fmt: skip


class Levels(ToolTest):
    def test_other_levels_are_refused_in_the_words_of_the_source(self):
        self.write("int8.yaml", INT8.replace("int8_level: 1", "int8_level: 3"))
        for command in ("run", "validate"):
            outcome = self.expect(2, command, "int8.yaml")
            for words in ("E-CONFIG", "int8.yaml:5", "VLLM_ATTN_OPT_LEVEL only support", "3"):
                self.assertIn(words, outcome.err)

    def test_the_quantization_error_is_against_unquantised_attention(self):
        self.write("int8.yaml", INT8)
        result = self.results("int8.yaml", "--samples", "3")[ID]
        self.assertGreater(result["quantization_error"]["max_abs"], result["error"]["max_abs"])
        self.assertGreater(result["quantization_error"]["cosine"], 0.999)
        steps = [step["name"] for step in result["timing"]["steps"]]
        self.assertEqual(steps, ["quantise_int8", "write_cache", "attend"])


class Damage(ToolTest):
    def test_a_second_opinion_notices_every_damaged_tensor(self):
        from opinion import checks, safetensors_file

        for level in (1, 2):
            self.write("int8.yaml", INT8)
            self.expect(0, "run", "int8.yaml", "--no-timing", "--save-tensors", "t",
                        "--set", f"kv_cache.int8_level={level}")  # fmt: skip
            path = self.dir / "t" / SAVED
            checks.check_file(path)
            tensors, metadata = safetensors_file.read(path)
            names = ["query", "query_scales", "query_dequantized", "query_unquantized", "key",
                     "key_dequantized", "value", "value_dequantized", "output",
                     "reference_output"] + (["value_scale_cache"] if level == 1 else [])  # fmt: skip
            for name in names:
                self.check_noticed(tensors, metadata, path, name, ...)
            # Only live slots of the caches are anyone's business: those of the last token.
            block, slot = divmod(int(tensors["slot_mapping"].raw[35]), 16)
            self.check_noticed(tensors, metadata, path, "key_scale_cache", (block, 1, slot))
            self.check_noticed(tensors, metadata, path, "kv_cache", (0, block, 1, slot))

    def check_noticed(self, tensors, metadata, path, name, place):
        from opinion import checks, errors, safetensors_file

        raw = tensors[name].raw
        damaged = raw.copy()
        # The last bit of an output is inside its tolerance, of everything else it is not.
        damaged[place] = damaged[place] + (0x100 if name == "output" else 1)
        tensors[name].raw = damaged
        safetensors_file.write(path, tensors, metadata)
        tensors[name].raw = raw
        with self.subTest(name), self.assertRaises(errors.Disagreement):
            checks.check_file(path)


if __name__ == "__main__":
    unittest.main()
