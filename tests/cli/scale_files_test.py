"""Scale files that attnbench wrote or is given: read by vLLM's rules, checked by `attnbench scales`,
used by `attnbench run`."""

import hashlib
import json
import unittest

import numpy as np
from calibration import CalibrationTest, layer_tensors
from tool import strict_json

from opinion import number_formats, safetensors_file

LAYERS = [f"visual.blocks.{i}.attn.attn" for i in (0, 2, 10)]


def load_by_the_rules(path):
    """{layer: {q, k, v}} as vLLM's encoder takes it from a file: semantics §10.7 and no more."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError("not an object")
    if isinstance(data.get("layers"), dict):
        data = data["layers"]
    scales = {}
    for layer, entry in data.items():
        if not isinstance(entry, dict):
            continue
        values = [entry[k] if k in entry else entry.get(f"{k}_scale") for k in "qkv"]
        if any(value is None for value in values):
            continue
        numbers = [float(value) for value in values]
        if any(number <= 0 for number in numbers):
            raise ValueError(f"FP8 scales must be positive, got {numbers} for layer '{layer}'")
        scales[layer] = dict(zip("qkv", numbers))
    return scales


def load_legacy_by_the_rules(path, num_layers, model_type, rank=0, num_ranks=1):
    """{layer number: scale} as vLLM took it from quantization_param_path."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    cache = schema["kv_cache"]
    if schema["model_type"] != model_type or cache["dtype"] != "float8_e4m3fn":
        raise ValueError("of another model")
    factors = {int(r): {int(n): float(s) for n, s in layers.items()}
               for r, layers in cache["scaling_factor"].items()}  # fmt: skip
    if sorted(factors) != list(range(num_ranks)):
        raise ValueError("of other ranks")
    if any(sorted(layers) != list(range(num_layers)) for layers in factors.values()):
        raise ValueError("of other layers")
    return factors[rank]


def mm_scenario(**mm_encoder):
    return json.dumps({
        "schema": 1, "name": "mm", "batch": "q33_q1_q40",
        "attention": {"type": "mm_encoder", "num_heads": 4, "num_kv_heads": 2, "head_size": 72},
        "mm_encoder": {"attn_dtype": "fp8", "layer_names": LAYERS, **mm_encoder},
    })  # fmt: skip


CACHE = """\
schema: 1
name: cache
attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 32}
kv_cache: {dtype: fp8, scale_file: scales.json}
batch: q32_4q1s100
backends: [FLASH_ATTN]
"""
CACHE_ID = "cache/q32_4q1s100/FLASH_ATTN"


class Loader(CalibrationTest):
    def test_a_written_file_is_read_by_the_rules_of_vllm(self):
        layers = {layer: layer_tensors(i) for i, layer in enumerate(LAYERS)}
        path = self.save("t.safetensors", layers)
        self.calibrate(0, "--tensors", path)
        loaded = load_by_the_rules(self.dir / "out.json")
        self.assertEqual(list(loaded), LAYERS)
        for layer, tensors in layers.items():
            for role, values in tensors.items():
                amax = np.abs(values).max()
                self.assertAlmostEqual(loaded[layer][role] * 448 / 1.5 / amax, 1, places=6)

    def test_a_legacy_file_is_read_by_the_rules_of_vllm(self):
        layers = {f"model.layers.{i}.self_attn": layer_tensors(i) for i in range(3)}
        path = self.save("t.safetensors", layers)
        self.calibrate(0, "--tensors", path, "--format", "kv-cache-legacy")
        loaded = load_legacy_by_the_rules(self.dir / "out.json", 3, "llama")
        for i, tensors in enumerate(layers.values()):
            amax = max(np.abs(tensors["k"]).max(), np.abs(tensors["v"]).max())
            self.assertAlmostEqual(loaded[i] * 448 / 1.5 / amax, 1, places=6)

    def test_vllm_itself_reads_a_written_file(self):
        try:
            from vllm.model_executor.layers.attention import mm_encoder_attention
        except ImportError as error:
            self.skipTest(f"vLLM is not installed ({error})")
        self.calibrate(0, "--tensors", self.save("t.safetensors", {LAYERS[0]: layer_tensors()}))
        path = self.dir / "out.json"
        loaded = mm_encoder_attention._load_fp8_scales_file(str(path))
        self.assertEqual(loaded, load_by_the_rules(path))

    def test_sixteen_dynamic_calls_save_what_calibrating_them_writes(self):
        self.write("mm.json", mm_scenario(fp8_scale_save_path="saved.json"))
        self.expect(0, "run", "mm.json", "--backend", "MM_FLASHINFER", "--no-timing")
        saved = json.loads((self.dir / "saved.json").read_text())
        self.write("again.json", mm_scenario())
        self.calibrate(0, "again.json", "--method", "amax", "--history", "16")
        written = json.loads((self.dir / "out.json").read_text())
        self.assertEqual(list(written), list(saved))
        self.assertEqual(written[LAYERS[0]], saved[LAYERS[0]])
        # The first layer's ring wraps before the others see the sixteenth call (§10.7).
        self.calibrate(0, "again.json", "--history", "15", "--force")
        written = json.loads((self.dir / "out.json").read_text())
        self.assertEqual([written[layer] for layer in LAYERS[1:]],
                         [saved[layer] for layer in LAYERS[1:]])  # fmt: skip
        # With one layer it is the same file to the byte, signed maxima too.
        for amax in ("abs", "signed"):
            one = {"layer_names": LAYERS[:1], "amax": amax}
            self.write("mm.json", mm_scenario(fp8_scale_save_path="saved.json", **one))
            self.expect(0, "run", "mm.json", "--backend", "MM_FLASHINFER", "--no-timing")
            self.write("again.json", mm_scenario(**one))
            self.calibrate(0, "again.json", "--history", "16", "--force")
            self.assertEqual((self.dir / "out.json").read_bytes(),
                             (self.dir / "saved.json").read_bytes())  # fmt: skip

    def test_sixteen_files_are_sixteen_calls(self):
        # A ring by the definition of §10.6, with a first value that call 17 drives out.
        calls = [layer_tensors(seed) for seed in range(17)]
        calls[0]["k"] *= 128
        files = [self.save(f"{i:02}.safetensors", {LAYERS[0]: c}) for i, c in enumerate(calls)]
        for count in (5, 16, 17):
            ring = {role: np.zeros(16, np.float32) for role in "qkv"}
            for position, call in enumerate(calls[:count]):
                for role, values in call.items():
                    ring[role][position % 16] = np.abs(values).max()
            expected = {role: float(np.max(amax) / np.float32(448)) * 1.5
                        for role, amax in ring.items()}  # fmt: skip
            self.calibrate(0, "--tensors", *files[:count], "--history", "16", "--force")
            self.assertEqual(json.loads((self.dir / "out.json").read_text()),
                             {LAYERS[0]: expected})  # fmt: skip


class ScalesCommand(CalibrationTest):
    def setUp(self):
        super().setUp()
        self.layers = {layer: layer_tensors(i) for i, layer in enumerate(LAYERS)}
        self.tensors = self.save("t.safetensors", self.layers)

    def test_files_of_every_format_are_recognised_and_their_error_is_that_of_writing_them(self):
        decoder = {f"model.layers.{i}.self_attn": layer_tensors(i) for i in range(2)}
        decoder = self.save("d.safetensors", decoder)
        for name, tensors, arguments in (
            ("vllm-mm", self.tensors, []),
            ("kv-cache", decoder, []),
            ("kv-cache", decoder, ["--per-head"]),
            ("kv-cache-legacy", decoder, []),
            ("int8-value", decoder, []),
        ):
            with self.subTest(name):
                outcome = self.calibrate(0, "--tensors", tensors, "--format", name, *arguments,
                                         "--json", "-", "--force")  # fmt: skip
                written = strict_json(outcome.out)["layers"]
                outcome = self.expect(0, "scales", "out.json")
                self.assertIn(f"out.json: {name}, ", outcome.out)
                outcome = self.expect(0, "scales", "out.json", "--tensors", tensors, "--json", "-")
                self.assertEqual(strict_json(outcome.out)["layers"], written)

    def test_a_worse_file_is_seen_to_be_worse(self):
        scales = {layer: {r: float(np.abs(t[r]).max()) / 448 for r in "qkv"}
                  for layer, t in self.layers.items()}  # fmt: skip
        scales[LAYERS[1]]["v"] /= 64
        self.write("mine.json", json.dumps({"layers": scales}))
        outcome = self.expect(0, "scales", "mine.json", "--tensors", self.tensors, "--json", "r")
        self.assertIn("warning: mine.json loses more than 2x", outcome.err)
        self.assertIn(LAYERS[1], outcome.out.splitlines()[3])
        (worst, *_) = strict_json((self.dir / "r").read_text())["layers"]
        self.assertGreater(worst["tensors"]["v"]["saturated"], 0.001)

    def test_bad_files_are_refused_with_upstreams_reasons_and_how_to_calibrate(self):
        good = {layer: {"q": 0.1, "k": 0.1, "v": 0.1} for layer in LAYERS}

        def with_scale(scale):
            return json.dumps({**good, LAYERS[1]: {"q": 0.1, "k": scale, "v": 0.1}})

        for text, words in (
            (with_scale(0), ["FP8 scales must be positive", "k=0.0", LAYERS[1]]),
            (with_scale(-1), ["FP8 scales must be positive", LAYERS[1]]),
            (with_scale(float("nan")), ["finite", LAYERS[1]]),
            (with_scale(1e300), ["finite", LAYERS[1]]),
            ("[]", ["E-FORMAT"]),
            ("{", ["E-FORMAT"]),
            ("{}", ["no layers"]),
            ('{"a": {"k_scale": 0, "v_scale": 1}}', ["k_scale of layer 'a'"]),
            ('{"version": 1, "num_kv_heads": 1, "head_size": 1, "layers": {"a": [[0]]}}',
             ["layer 'a'", "KV head 0, channel 0"]),
        ):  # fmt: skip
            self.write("bad.json", text)
            outcome = self.expect(2, "scales", "bad.json")
            for word in [*words, "attnbench calibrate"]:
                self.assertIn(word, outcome.err)
        self.assertIn("E-IO", self.expect(2, "scales", "none.json").err)

    def test_a_name_that_stands_twice_is_refused_or_told_of(self):
        mm, cache = '{"q": 1, "k": 1, "v": 1}', '{"k_scale": 1, "v_scale": 1, "q_scale": 1}'
        value = ('{"version": 1, "num_kv_heads": 1, "head_size": 1, '
                 '"layers": {"a": [[1]], "a": [[2]]}}')  # fmt: skip
        legacy = ('{"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", '
                  '"scaling_factor": {"0": {"0": 1, "0": 2}}}}')  # fmt: skip
        for text, words in (
            (f'{{"layers": {{"self_attn": {cache}, "self_attn": {cache}}}}}',
             "duplicate name 'self_attn', in 'layers'"),
            (value, "duplicate name 'a', in 'layers'"),
            (legacy, "duplicate name '0', in 'kv_cache', 'scaling_factor', '0'"),
        ):
            self.write("s.json", text)
            outcome = self.expect(2, "scales", "s.json")
            self.assertIn("E-FORMAT", outcome.err)
            self.assertIn(words, outcome.err)
        # As its loader reads it: the last one counts (semantics §10.7).
        self.write("s.json", f'{{"a": {mm}, "b": {mm}, "a": {mm.replace("1", "2")}}}')
        outcome = self.expect(0, "scales", "s.json")
        self.assertIn("duplicate name 'a': the last one counts", outcome.err)
        self.assertRegex(outcome.out, r"a +q +2\b")

    def test_layers_that_are_missing_are_named_with_those_that_there_are(self):
        self.calibrate(0, "--tensors", self.tensors)
        self.expect(0, "scales", "out.json", "--layers", *LAYERS)
        words = "scales not found for layer 'visual.blocks.1.attn.attn' in out.json. Available"
        layers = "visual.blocks.{}.attn.attn:3"
        self.assertIn(words, self.expect(2, "scales", "out.json", "--layers", layers).err)
        more = self.save("more.safetensors", {**self.layers, "other": layer_tensors()})
        outcome = self.expect(2, "scales", "out.json", "--tensors", more)
        self.assertIn("scales not found for layer 'other' in out.json", outcome.err)
        self.assertIn("attnbench calibrate", outcome.err)

    def test_long_keys_are_of_an_encoder_or_of_a_cache(self):
        long = {f"{role}_scale": 0.5 for role in "qkv"}
        for layer, entry, expected in (
            ("visual.blocks.0.attn.attn", long, "vllm-mm"),
            ("model.layers.0.self_attn", long, "kv-cache"),
            ("model.layers.0.attn", {**long, "k_scale": [0.5, 1]}, "kv-cache"),
            ("model.layers.0.attn", {"k_scale": 1, "v_scale": 1}, "kv-cache"),
            ("model.layers.0.self_attn", {"q": 1, "k": 1, "v": 1}, "vllm-mm"),
        ):
            self.write("s.json", json.dumps({layer: entry}))
            self.assertIn(f"s.json: {expected}, 1 ", self.expect(0, "scales", "s.json").out)
        self.write("s.json", json.dumps({"visual.blocks.0.attn.attn": long}))
        outcome = self.expect(0, "scales", "s.json", "--format", "kv-cache")
        self.assertIn("s.json: kv-cache, 1 ", outcome.out)

    def test_a_scenario_stands_for_tensors(self):
        self.write("mm.json", mm_scenario())
        outcome = self.calibrate(0, "mm.json", "--json", "-")
        written = strict_json(outcome.out)["layers"]
        outcome = self.expect(0, "scales", "out.json", "mm.json", "--json", "-")
        self.assertEqual(strict_json(outcome.out)["layers"], written)

    def test_entries_that_upstream_skips_are_named(self):
        good = {"q": 0.1, "k": 0.1, "v": 0.1}
        self.write("s.json", json.dumps({LAYERS[0]: good, "note": 1, "half": {"q": 1}}))
        outcome = self.expect(0, "scales", "s.json")
        self.assertIn("'note' is left out", outcome.err)
        self.assertIn("'half' is left out", outcome.err)


class Run(CalibrationTest):
    def test_a_scenario_uses_the_scales_of_its_file_and_gates_on_them(self):
        self.write("cache.yaml", CACHE)
        self.write("own.yaml", CACHE.replace(", scale_file: scales.json", ""))
        self.calibrate(0, "own.yaml", output="scales.json")
        entry = json.loads((self.dir / "scales.json").read_text())["model.layers.0.self_attn"]
        result = self.results("cache.yaml", "--no-timing", "--save-tensors", "t")[CACHE_ID]
        for name in ("k_scale", "v_scale", "q_scale"):
            self.assertEqual(result["problem"]["kv_cache"][name], entry[name])
        (file,) = (self.dir / "t").iterdir()
        tensors, _ = safetensors_file.read(file)
        for name in ("key", "value"):
            values = number_formats.decode("BF16", tensors[name].raw)
            scale = np.float32(entry[f"{name[0]}_scale"])
            codes = number_formats.encode_e4m3(values / scale)
            read = number_formats.decode("F8_E4M3", codes) * scale
            self.assertTrue((tensors[f"{name}_dequantized"].raw == read).all())
        self.expect(0, "run", "cache.yaml", "--no-timing", "--json", "base.json")
        # A worse file: the same case is less accurate.
        entry["v_scale"] /= 30
        self.write("scales.json", json.dumps({"model.layers.0.self_attn": entry}))
        outcome = self.expect(1, "run", "cache.yaml", "--no-timing", "--baseline", "base.json")
        self.assertIn("quantization NMSE", outcome.out)

    def test_an_encoder_runs_with_the_scales_that_were_calibrated(self):
        self.write("mm.json", mm_scenario())
        self.calibrate(0, "mm.json")
        self.write("static.json", mm_scenario(fp8_scale_path="out.json"))
        (result,) = self.results("static.json", "--no-timing", "--backend", "MM_FLASHINFER",
                                 "--save-tensors", "t").values()  # fmt: skip
        self.assertEqual(result["status"], "passed")
        (file,) = (self.dir / "t").iterdir()
        used = safetensors_file.read(file)[0]["fp8_scales"].raw
        written = json.loads((self.dir / "out.json").read_text())[LAYERS[0]]
        self.assertEqual(used.tolist(), np.array(list(written.values()), np.float32).tolist())

    def test_files_of_scales_are_told_apart_by_what_they_hold(self):
        good = {"k_scale": 0.02, "v_scale": 0.02, "q_scale": 0.02}
        close = {**good, "k_scale": 0.0201}
        self.write("cache.yaml", CACHE)
        names = {"scales.json": good, "moved/a.json": good, "b.json": close}
        for name, entry in names.items():
            self.write(name, json.dumps({"model.layers.0.self_attn": entry}))
            self.expect(0, "run", "cache.yaml", "--no-timing", "--set",
                        f"kv_cache.scale_file={self.dir / name}",
                        "--json", f"{name.replace('/', '_')}.result")  # fmt: skip
        (result,) = json.loads((self.dir / "b.json.result").read_text())["results"]
        self.assertEqual(result["file_hashes"], {"kv_cache.scale_file": hashlib.sha256(
            (self.dir / "b.json").read_bytes()).hexdigest()})  # fmt: skip
        moved = self.expect(0, "gate", "scales.json.result", "moved_a.json.result")
        self.assertNotIn("notice", moved.out)
        other = self.expect(0, "gate", "scales.json.result", "b.json.result", "--json", "v.json")
        (notice,) = strict_json((self.dir / "v.json").read_text())["notices"]
        self.assertIn("b.json' in the results (1 case)", notice)
        self.assertRegex(other.out, r"notice: kv_cache.scale_file: '\S+scales.json' in the "
                                    r"baseline, '\S+b.json' in the results \(1 case\)")  # fmt: skip
        # What another file gave is not kept.
        outcome = self.expect(2, "run", "cache.yaml", "--no-timing", "--resume",
                              "scales.json.result", "--set",
                              f"kv_cache.scale_file={self.dir / 'b.json'}")  # fmt: skip
        self.assertIn("kv_cache.scale_file", outcome.err)
        self.expect(2, "gate", "--agreement", "scales.json.result", "b.json.result")

    def test_static_scales_of_an_encoder_are_compared_by_what_they_cost(self):
        self.write("mm.json", mm_scenario())
        self.calibrate(0, "mm.json", output="good.json")
        scales = json.loads((self.dir / "good.json").read_text())
        # So large that codes are among the subnormal ones: e4m3 keeps its relative precision above.
        coarse = {layer: {role: 4000 * scale for role, scale in entry.items()}
                  for layer, entry in scales.items()}  # fmt: skip
        self.write("coarse.json", json.dumps(coarse))
        for name in ("good", "coarse"):
            self.write("static.json", mm_scenario(fp8_scale_path=f"{name}.json"))
            self.expect(0, "run", "static.json", "--no-timing", "--backend", "MM_FLASHINFER",
                        "--json", f"{name}.result")  # fmt: skip
        self.expect(0, "gate", "coarse.result", "good.result")
        outcome = self.expect(1, "gate", "good.result", "coarse.result")
        self.assertIn("LESS_ACCURATE", outcome.out)
        self.assertIn("notice: mm_encoder.fp8_scale_path: ", outcome.out)

    def test_scale_files_that_do_not_fit_are_bad_input(self):
        good = {"k_scale": 0.1, "v_scale": 0.1, "q_scale": 0.1}
        self.write("cache.yaml", CACHE)
        self.assertIn("cache.yaml:4", self.expect(2, "run", "cache.yaml", "--no-timing").err)
        for entry, words in (
            ({**good, "k_scale": 0}, "E-VALUE"),
            ({**good, "k_scale": [1, 1, 1]}, "E-SHAPE"),
            ({"k_scale": 1}, "E-FORMAT"),
        ):
            self.write("scales.json", json.dumps({"layers.0": entry}))
            outcome = self.expect(2, "run", "cache.yaml", "--no-timing", "--json", "o.json")
            self.assertIn(words, outcome.err)
            self.assertEqual(self.files(), ["cache.yaml", "scales.json"])
        self.write("scales.json", json.dumps({"layers.0": good}))
        self.expect(0, "run", "cache.yaml", "--no-timing")
        outcome = self.expect(2, "run", "cache.yaml", "--set", "kv_cache.k_scale=0.5")
        self.assertIn("E-CONFIG", outcome.err)
        for key in ("kv_cache.dtype=auto", "kv_cache.calculate_kv_scales=true"):
            self.assertIn("kv_cache.scale_file",
                          self.expect(2, "run", "cache.yaml", "--set", key).err)  # fmt: skip

    def test_a_scale_beside_the_file_must_be_the_files_own(self):
        self.write("scales.json", json.dumps({"a": {"k_scale": 0.5, "v_scale": 1, "q_scale": 1}}))
        for given, code in (("k_scale: 1.0", 2), ("k_scale: 0.25", 2), ("k_scale: 0.5", 0),
                            ("q_scale: 2", 2), ("v_scale: 1", 0)):  # fmt: skip
            text = CACHE.replace("scale_file: scales.json}",
                                 f"scale_file: scales.json,\n  {given}}}")  # fmt: skip
            self.write("cache.yaml", text)
            outcome = self.expect(code, "run", "cache.yaml", "--no-timing")
            if code == 2:
                key = f"kv_cache.{given.split(':')[0]}"
                self.assertIn(f"cache.yaml:5: {key}: expected no number beside", outcome.err)
        self.write("swept.yaml", CACHE + "sweep: {kv_cache.k_scale: [0.5, 1.0]}\n")
        self.assertIn("E-CONFIG", self.expect(2, "run", "swept.yaml", "--no-timing").err)

    def test_the_layer_that_is_used_is_named(self):
        good = {"k_scale": 0.1, "v_scale": 0.1, "q_scale": 0.1}
        self.write("cache.yaml", CACHE)
        self.write("scales.json", json.dumps({"layers.10": good, "layers.9": good}))
        outcome = self.expect(0, "run", "cache.yaml", "--no-timing")
        self.assertIn("2 layers, layer 'layers.9' is used", outcome.err)

    def test_value_scales_that_were_calibrated_are_used(self):
        text = CACHE.replace("dtype: fp8, scale_file: scales.json", "int8_level: 1")
        text = text.replace("FLASH_ATTN", "FLASH_ATTN_IX")
        self.write("own.yaml", text)
        self.calibrate(0, "own.yaml", output="scales.json")
        self.write("int8.yaml", text.replace("int8_level: 1", "int8_level: 1, value_scale_file: "
                                                              "scales.json"))  # fmt: skip
        self.expect(0, "run", "int8.yaml", "--no-timing", "--save-tensors", "t")
        (file,) = (self.dir / "t").iterdir()
        written = json.loads((self.dir / "scales.json").read_text())["layers"]
        (rows,) = written.values()
        used = safetensors_file.read(file)[0]["value_scale_cache"].raw
        self.assertEqual(used.tolist(), np.array(rows, np.float32).tolist())


if __name__ == "__main__":
    unittest.main()
