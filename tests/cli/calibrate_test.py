"""attnbench calibrate: its scales and errors against numpy, what it refuses, and how it writes."""

import json
import os
import re
import struct
import subprocess
import sys
import unittest

import numpy as np
from calibration import CalibrationTest, attention, e4m3, layer_tensors, rms_rel, stored
from tool import BINARY, ROOT, strict_json, thorough

from opinion import number_formats, safetensors_file

LAYER = "visual.blocks.0.attn.attn"
REAL = ROOT / "tests" / "data" / "reaction-encoder.safetensors"


def amax_scale(values, margin=1.5):
    return float(np.float32(np.abs(values).max()) / np.float32(448)) * margin


class Scales(CalibrationTest):
    def written(self):
        return strict_json((self.dir / "out.json").read_text())

    def test_amax_is_the_largest_magnitude_over_448_times_the_margin(self):
        tensors = layer_tensors()
        for dtype in ("BF16", "F32"):
            path = self.save("t.safetensors", {LAYER: tensors}, dtype)
            self.calibrate(0, "--tensors", path, "--force")
            expected = {role: amax_scale(values) for role, values in tensors.items()}
            self.assertEqual(self.written(), {LAYER: expected})
            self.calibrate(0, "--tensors", path, "--force", "--margin", "1")
            self.assertEqual(self.written()[LAYER]["q"], amax_scale(tensors["q"], 1))
        text = (self.dir / "out.json").read_text()
        self.assertEqual(text, json.dumps(json.loads(text), indent=2))

    def test_layers_may_be_spread_over_files_and_stand_in_natural_order(self):
        a, b = layer_tensors(1), layer_tensors(2)
        first = self.save("1.safetensors", {"b.10": a, "b.9": {"k": b["k"]}})
        second = self.save("2.safetensors", {"b.9": {"q": b["q"], "v": b["v"]}})
        self.calibrate(0, "--tensors", first, second)
        self.assertEqual(list(self.written()), ["b.9", "b.10"])
        self.assertEqual(self.written()["b.9"]["k"], amax_scale(b["k"]))

    def test_files_with_the_same_layer_are_one_observation(self):
        sets = [layer_tensors(seed) for seed in range(3)]
        files = [self.save(f"{i}.safetensors", {LAYER: s}) for i, s in enumerate(sets)]
        self.calibrate(0, "--tensors", *files)
        everything = np.concatenate([s["q"] for s in sets])
        self.assertEqual(self.written()[LAYER]["q"], amax_scale(everything))
        # A ring of one forgets all but the last, a ring of two all but the last two.
        for length in (1, 2):
            self.calibrate(0, "--tensors", *files, "--history", length, "--force")
            last = np.concatenate([s["q"] for s in sets[-length:]])
            self.assertEqual(self.written()[LAYER]["q"], amax_scale(last))

    def test_signed_amax_is_the_largest_value(self):
        tensors = layer_tensors()
        tensors["k"][0, 0, 0] = -5000
        path = self.save("t.safetensors", {LAYER: tensors})
        outcome = self.calibrate(0, "--tensors", path, "--amax", "signed", "--json", "-")
        (layer,) = strict_json(outcome.out)["layers"]
        self.assertRegex(outcome.err, f"warning: signed amax: .* tensor k of layer '{LAYER}': ")
        expected = float(np.float32(tensors["k"].max()) / np.float32(448)) * 1.5
        self.assertEqual(layer["tensors"]["k"]["scale"], expected)
        self.assertEqual(layer["tensors"]["k"]["saturated"], 1 / tensors["k"].size)

    def test_percentile_is_an_order_statistic(self):
        tensors = layer_tensors()
        path = self.save("t.safetensors", {LAYER: tensors})
        for percent in (50, 99, 99.9, 100):
            self.calibrate(0, "--tensors", path, "--method", "percentile", "--percentile", percent,
                           "--margin", "1", "--force")  # fmt: skip
            for role, values in tensors.items():
                rank = int(np.ceil(percent / 100 * values.size))
                value = np.float32(np.sort(np.abs(values).ravel())[rank - 1])
                self.assertEqual(self.written()[LAYER][role], float(value / np.float32(448)))

    def test_mse_is_the_least_on_the_grid_of_codes(self):
        tensors = layer_tensors()
        path = self.save("t.safetensors", {LAYER: tensors})
        self.calibrate(0, "--tensors", path, "--method", "mse", "--margin", "1")
        for role, values in tensors.items():
            found = np.sum((values - e4m3(values, self.written()[LAYER][role])) ** 2.0)
            top = 2 * np.abs(values).max() / 448
            for scale in np.linspace(top / 64, top, 300):
                self.assertLessEqual(found, 1.005 * np.sum((values - e4m3(values, scale)) ** 2.0))

    def test_a_scale_for_each_head_of_a_cache(self):
        tensors = layer_tensors()
        tensors["k"][:, 1] *= 8
        path = self.save("t.safetensors", {"model.layers.0.self_attn": tensors})
        for arguments in ((), ("--per-head",)):
            self.calibrate(0, "--tensors", path, "--format", "kv-cache", "--force", *arguments)
            entry = self.written()["model.layers.0.self_attn"]
            self.assertEqual(entry["q_scale"], amax_scale(tensors["q"]))
            if not arguments:
                self.assertEqual(entry["k_scale"], amax_scale(tensors["k"]))
                self.assertEqual(entry["v_scale"], amax_scale(tensors["v"]))
        heads = [amax_scale(tensors["k"][:, head]) for head in range(2)]
        self.assertEqual(entry["k_scale"], heads)
        self.assertEqual(entry["v_scale"], [amax_scale(tensors["v"][:, h]) for h in range(2)])

    def test_int8_value_scales_are_those_of_channels(self):
        tensors = layer_tensors()
        path = self.save("t.safetensors", {"layers.0": tensors})
        self.calibrate(0, "--tensors", path, "--format", "int8-value", "--margin", "1")
        written = self.written()
        self.assertEqual((written["version"], written["num_kv_heads"], written["head_size"]),
                         (1, 2, 24))  # fmt: skip
        expected = np.abs(tensors["v"]).max(0).astype(np.float32) / np.float32(127)
        self.assertEqual(written["layers"]["layers.0"], expected.astype(float).tolist())

    def test_the_legacy_form_has_one_scale_for_keys_and_values(self):
        sets = [layer_tensors(seed) for seed in range(2)]
        layers = {f"model.layers.{i}.self_attn": s for i, s in enumerate(sets)}
        path = self.save("t.safetensors", layers)
        self.calibrate(0, "--tensors", path, "--format", "kv-cache-legacy", "--model-type", "opt")
        written = self.written()
        self.assertEqual(written["model_type"], "opt")
        both = [amax_scale(np.concatenate([s["k"], s["v"]])) for s in sets]
        self.assertEqual(written["kv_cache"], {"dtype": "float8_e4m3fn", "scaling_factor":
                         {"0": {"0": both[0], "1": both[1]}}})  # fmt: skip

    def test_tensors_of_a_saved_result_can_be_calibrated(self):
        scenario = {"schema": 1, "name": "mm", "batch": "q33_q40",
                    "attention": {"type": "mm_encoder", "num_heads": 4, "head_size": 24},
                    "mm_encoder": {"layer_names": ["blocks.7.attn"]}}  # fmt: skip
        self.write("mm.json", json.dumps(scenario))
        self.expect(0, "run", "mm.json", "--backend", "MM_FLASH_ATTN", "--no-timing",
                    "--save-tensors", "saved")  # fmt: skip
        (file,) = (self.dir / "saved").iterdir()
        self.calibrate(0, "--tensors", file)
        query = safetensors_file.read(file)[0]["query"]
        expected = amax_scale(number_formats.decode(query.dtype, query.raw))
        self.assertEqual(self.written()["blocks.7.attn"]["q"], expected)
        # The same case, drawn again from its seed.
        before = (self.dir / "out.json").read_bytes()
        self.calibrate(0, "mm.json", "--force")
        self.assertEqual((self.dir / "out.json").read_bytes(), before)


class Errors(CalibrationTest):
    def test_attention_error_is_that_of_the_codes_against_float64(self):
        lengths = [17, 1, 22]
        for size in (24, 32):  # 32: by the reciprocal of the scale, 24: by a division
            tensors = layer_tensors(size=size)
            path = self.save("t.safetensors", {LAYER: tensors},
                             **{f"{LAYER.replace('.', '__')}__cu_seqlens": [0, 17, 18, 40]})  # fmt: skip
            exact = attention(*tensors.values(), lengths)
            for method in ("amax", "percentile", "mse"):
                layer = self.layer(path, "--method", method)
                read = [e4m3(tensors[role], layer["tensors"][role]["scale"], size % 16 == 0)
                        for role in "qkv"]  # fmt: skip
                error = rms_rel(attention(*read, lengths), exact)
                self.assertAlmostEqual(layer["error"]["rms_rel"] / error, 1, places=9)
                self.assertEqual(layer["methods"][method], layer["error"])
                for role in "qkv":
                    scaled = np.abs(tensors[role]) / np.float32(layer["tensors"][role]["scale"])
                    self.assertEqual(layer["tensors"][role]["saturated"], np.mean(scaled > 464))
                    flushed = (scaled <= 2.0**-10) & (scaled > 0)
                    self.assertEqual(layer["tensors"][role]["flushed"], np.mean(flushed))

    def test_a_cache_is_causal_and_its_codes_are_those_of_a_division(self):
        tensors = layer_tensors()
        path = self.save("t.safetensors", {"model.layers.0.self_attn": tensors})
        exact = attention(*tensors.values(), [40], causal=True)
        layer = self.layer(path, "--format", "kv-cache", "--per-head")
        scales = {role: layer["tensors"][role]["scale"] for role in "qkv"}
        k, v = (np.stack([e4m3(tensors[role][:, h], scales[role][h]) for h in range(2)], 1)
                for role in "kv")  # fmt: skip
        query = e4m3(tensors["q"], scales["q"], reciprocal=True)
        error = rms_rel(attention(query, k, v, [40], causal=True), exact)
        self.assertAlmostEqual(layer["error"]["rms_rel"] / error, 1, places=9)
        layer = self.layer(path, "--format", "kv-cache-legacy")
        k, v = (e4m3(tensors[role], layer["tensors"]["k"]["scale"]) for role in "kv")
        error = rms_rel(attention(tensors["q"], k, v, [40], causal=True), exact)
        self.assertAlmostEqual(layer["error"]["rms_rel"] / error, 1, places=9)

    def test_int8_values_come_with_int8_queries_and_keys(self):
        tensors = layer_tensors()
        path = self.save("t.safetensors", {"layers.0": tensors})
        layer = self.layer(path, "--format", "int8-value")
        scale = np.array(layer["tensors"]["v"]["scale"], np.float32).reshape(2, 24)
        v = np.clip(np.rint(tensors["v"] / scale), -128, 127) * scale
        q, k = tensors["q"], tensors["k"]
        rows = [np.abs(x).max(-1, keepdims=True) for x in (q, k)]
        q, k = (np.rint(x * (np.float32(127) / a)) * (a / np.float32(127))
                for x, a in zip((q, k), rows))  # fmt: skip
        exact = attention(*tensors.values(), [40], causal=True)
        error = rms_rel(attention(q, k, v, [40], causal=True), exact)
        self.assertAlmostEqual(layer["error"]["rms_rel"] / error, 1, places=6)

    def test_the_worst_layer_comes_first_and_a_bad_method_gives_a_warning(self):
        good, bad = layer_tensors(1), layer_tensors(2)
        bad["v"][3, 1, 9] = 4e5  # one element: the percentile cuts it off, and it is the output
        path = self.save("t.safetensors", {"b.0": good, "b.1": bad})
        outcome = self.calibrate(0, "--tensors", path, "--method", "percentile", "--json", "r.json",
                                 "--percentile", "99.9")  # fmt: skip
        self.assertRegex(outcome.err, r"warning: percentile loses more than 2x to the best method "
                                      r"in 1 of 2 layers, most in 'b.1'")  # fmt: skip
        lines = [line.split()[0] for line in outcome.out.splitlines()]
        self.assertLess(lines.index("b.1"), lines.index("b.0"))
        layers = strict_json((self.dir / "r.json").read_text())["layers"]
        self.assertEqual([layer["layer"] for layer in layers], ["b.1", "b.0"])
        self.assertGreater(layers[0]["loss"], 2)
        self.assertEqual(list(json.loads((self.dir / "out.json").read_text())), ["b.0", "b.1"])

    def test_lengths_beside_any_of_the_tensors_count(self):
        tensors = layer_tensors()
        starts = {f"{LAYER.replace('.', '__')}__cu_seqlens": [0, 17, 40]}
        whole = self.layer(self.save("t.safetensors", {LAYER: tensors}, **starts))
        q = self.save("q.safetensors", {LAYER: {"q": tensors["q"]}})
        rest = self.save("kv.safetensors", {LAYER: {r: tensors[r] for r in "kv"}}, **starts)
        outcome = self.calibrate(0, "--tensors", q, rest, "--max-rows", "1000", "--json", "-",
                                 "--force")  # fmt: skip
        self.assertEqual(strict_json(outcome.out)["layers"], [whole])

    def test_tensors_of_another_rank_have_scales_but_no_error(self):
        flat = {role: values.reshape(40, -1) for role, values in layer_tensors().items()}
        layer = self.layer(self.save("t.safetensors", {LAYER: flat}))
        self.assertIsNone(layer["error"])
        self.assertIn("heads", layer["error_reason"])
        self.assertEqual(layer["tensors"]["q"]["scale"], amax_scale(flat["q"]))

    def test_the_tables_of_the_documents_are_what_is_printed(self):
        command = ("attnbench calibrate --tensors tests/data/reaction-encoder.safetensors "
                   "--max-rows 105 --output s.json")  # fmt: skip
        printed = self.expect(0, "calibrate", "--tensors", REAL, "--max-rows", 105, "--output",
                              "s.json").out.splitlines()  # fmt: skip
        for name in ("README.md", "docs/calibration.md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            quoted = text.split(f"$ {command}\n", 1)[1].split("\n```", 1)[0].splitlines()
            rest = iter(printed)
            for line in quoted:
                if line != "...":
                    self.assertIn(line, rest, name)  # and in the same order
            if "..." not in quoted:
                self.assertEqual(quoted, printed)

    @thorough
    def test_the_shares_of_the_documents_are_those_of_the_encoder(self):
        def errors(*options):
            out = self.calibrate(0, "--tensors", REAL, "--json", "-", "--max-rows", "105", "--force",
                                 *options).out  # fmt: skip
            layers = strict_json(out)["layers"]
            by_method = [[100 * layer["methods"][name]["rms_rel"] for layer in layers]
                         for name in ("amax", "percentile", "mse")]  # fmt: skip
            return by_method, max(layer["loss"] for layer in layers)

        def quoted(page, sentence):
            text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
            return [float(number) for number in re.search(sentence, text).groups()]

        methods, _ = errors()
        (_, at_99, _), loss = errors("--method", "percentile", "--percentile", "99")
        every = sum(methods, [])
        number = r"(\d[\d.]*)"
        for page in ("README.md", "docs/calibration.md"):
            least, most = quoted(page, f"FP8 costs this encoder {number} to {number} % of")
            self.assertEqual((least, most), (round(min(every), 1), round(max(every))), page)
        self.assertEqual(quoted("README.md", f"would cost up to {number} %"), [round(max(at_99), 1)])
        self.assertEqual(quoted("docs/calibration.md", f"99 costs {number} % in the worst layer, {number} times"),
                         [round(max(at_99), 1), round(loss, 1)])  # fmt: skip
        (amax, *_), _ = errors("--format", "int8-value")
        self.assertEqual(quoted("docs/calibration.md", f"the median is {number} %"),
                         [round(sorted(amax)[(len(amax) - 1) // 2], 2)])  # fmt: skip

    def test_a_trained_encoder(self):
        outcome = self.calibrate(0, "--tensors", REAL, "--json", "-", "--max-rows", "105",
                                 "--layers", "encoder.layer.{}.attention:12")  # fmt: skip
        layers = {layer["layer"]: layer for layer in strict_json(outcome.out)["layers"]}
        self.assertEqual(len(layers), 12)
        tensors, _ = safetensors_file.read(REAL)
        for name in ("encoder.layer.0.attention", "encoder.layer.11.attention"):
            stored_roles = [tensors[f"{name}.{role}"] for role in "qkv"]
            roles = [number_formats.decode(t.dtype, t.raw) for t in stored_roles]
            scales = [amax_scale(values) for values in roles]
            read = [e4m3(values, scale, True) for values, scale in zip(roles, scales)]
            error = rms_rel(attention(*read, [105]), attention(*roles, [105]))
            self.assertAlmostEqual(layers[name]["error"]["rms_rel"] / error, 1, places=6)


class Refusals(CalibrationTest):
    def test_bad_tensors_are_named_with_their_layer_and_nothing_is_written(self):
        def put(role, value):
            tensors = layer_tensors()
            tensors[role] = np.full_like(tensors[role], value) if value == 0 else tensors[role]
            tensors[role][3, 1, 2] = value
            return tensors

        empty = {**layer_tensors(), "k": np.zeros((0, 2, 24)), "v": np.zeros((0, 2, 24))}
        wide = {**layer_tensors(), "k": layer_tensors(size=32)["k"]}
        short = {**layer_tensors(), "v": layer_tensors()["v"][:39]}
        heads = {**layer_tensors(), "q": layer_tensors(heads=3)["q"]}
        for words, layer in (
            (["E-VALUE", "tensor q", "NaN"], put("q", np.nan)),
            (["E-VALUE", "tensor k", "infinite"], put("k", np.inf)),
            (["E-VALUE", "tensor v", "all zeros"], put("v", 0)),
            (["E-VALUE", "tensor k", "empty"], empty),
            (["E-SHAPE", "head sizes"], wide),
            (["E-SHAPE", "numbers of tokens"], short),
            (["E-SHAPE", "no multiple"], heads),
            (["E-FORMAT", f"{LAYER}.k"], {r: v for r, v in layer_tensors().items() if r != "k"}),
        ):
            with self.subTest(words):
                path = self.save("t.safetensors", {"a.0": layer_tensors(), LAYER: layer}, "F32")
                self.refused([*words, LAYER], "--tensors", path)

    def test_tensors_without_a_scale_of_their_own_are_checked_too(self):
        for role, value, word in (("q", np.nan, "NaN"), ("k", np.inf, "infinite"),
                                  ("q", 0, "all zeros")):  # fmt: skip
            with self.subTest(role=role, value=value):
                tensors = layer_tensors()
                if value == 0:
                    tensors[role][:] = 0
                tensors[role][3, 1, 2] = value
                path = self.save("t.safetensors", {LAYER: tensors}, "F32")
                self.refused(["E-VALUE", f"tensor {role}", word, LAYER], "--tensors", path,
                             "--format", "int8-value")  # fmt: skip

    def test_lengths_in_a_file_of_their_own_are_not_left_out_silently(self):
        path = self.save("t.safetensors", {LAYER: layer_tensors()})
        starts = self.save("s.safetensors", {},
                           **{f"{LAYER.replace('.', '__')}__cu_seqlens": [0, 17, 40]})  # fmt: skip
        self.refused(["E-FORMAT", f"{LAYER}.cu_seqlens"], "--tensors", path, starts)

    def test_names_cannot_write_to_the_terminal(self):
        evil = "a\x1b]0;x\x07\x1b[2J\x9b31m\u202e\nattnbench: warning: none"
        shown = r"a\x1b]0;x\x07\x1b[2J\u009b31m\u202e\nattnbench: warning: none"
        bad = {**layer_tensors(), "q": np.zeros((40, 4, 24))}
        good = self.save("good.safetensors", {evil: layer_tensors()})
        bad = self.save("bad.safetensors", {evil: bad})
        half = self.save("half.safetensors", {evil: {"q": layer_tensors()["q"]}})
        for code, arguments in (
            (0, ["--tensors", good, "--force"]),
            (2, ["--tensors", bad, "--force"]),
            (2, ["--tensors", half, "--force"]),
            (2, ["--tensors", good, "--force", "--layers", "b"]),
        ):
            outcome = self.calibrate(code, *arguments)
            text = outcome.out + outcome.err
            self.assertIn(shown, text)
            for character in "\x1b\x07\x9b\u202e":
                self.assertNotIn(character, text)
            self.assertNotIn("\nattnbench: warning: none", text)
        self.assertEqual(list(json.loads((self.dir / "out.json").read_text())), [evil])
        for more in ([], ["--tensors", good], ["--layers", "b"]):
            outcome = self.tool("scales", "out.json", *more)
            self.assertIn(shown, outcome.out + outcome.err)
            self.assertNotIn("\x1b", outcome.out + outcome.err)

    def test_tensors_of_two_files_must_agree(self):
        a = self.save("a.safetensors", {LAYER: layer_tensors()})
        b = self.save("b.safetensors", {LAYER: layer_tensors(size=32)})
        self.refused(["E-SHAPE", LAYER, "[*, 4, 24]"], "--tensors", a, b)
        c = self.save("c.safetensors", {LAYER: {"q": layer_tensors()["q"]}})
        self.refused(["E-FORMAT", LAYER, "2 times, k 1 times"], "--tensors", a, c)

    def test_lengths_that_do_not_fit_are_refused(self):
        for lengths in ([0, 41], [1, 40], [0, 30, 20, 40], []):
            path = self.save("t.safetensors", {LAYER: layer_tensors()},
                             **{f"{LAYER.replace('.', '__')}__cu_seqlens": lengths})  # fmt: skip
            self.refused([f"{LAYER}.cu_seqlens"], "--tensors", path)

    def test_missing_layers_are_refused(self):
        path = self.save("t.safetensors", {f"b.{i}": layer_tensors(i) for i in (0, 2)})
        for layers in (["b.0", "b.1"], ["b.0,b.1"], ["b.{}:3"]):
            self.refused(["E-VALUE", "'b.1' is missing", "'b.0', 'b.2'"],
                         "--tensors", path, "--layers", *layers)  # fmt: skip
        self.refused(["layer 1 is missing"], "--tensors", path, "--format", "kv-cache-legacy")
        self.refused(["'b.{}'"], "--tensors", path, "--layers", "b.{}")
        self.calibrate(0, "--tensors", path, "--layers", "b.2")
        self.assertEqual(list(json.loads((self.dir / "out.json").read_text())), ["b.2"])

    def test_a_dead_channel_has_no_value_scale(self):
        tensors = layer_tensors()
        tensors["v"][:, 1, 4] = 0
        path = self.save("t.safetensors", {"l.0": tensors})
        self.refused(["E-VALUE", "'l.0'", "tensor v, KV head 1, channel 4"],
                     "--tensors", path, "--format", "int8-value")  # fmt: skip
        self.refused(["tensor v, KV head 1, channel 4"],
                     "--tensors", path, "--format", "int8-value", "--history", "2")  # fmt: skip
        self.calibrate(0, "--tensors", path)

    def test_scales_beyond_float32_are_refused(self):
        path = self.save("t.safetensors", {LAYER: layer_tensors()})
        for margin in ("1e60", "1e-60"):
            self.refused(["E-VALUE", LAYER, "tensor q", "finite scale > 0"],
                         "--tensors", path, "--margin", margin)  # fmt: skip

    def test_integers_are_no_tensors_to_calibrate(self):
        tensors = {f"{LAYER}.q": stored(np.ones((2, 2, 8)), "I32")}
        safetensors_file.write(self.dir / "t.safetensors", tensors, {})
        self.refused(["E-DTYPE", LAYER], "--tensors", "t.safetensors")

    def test_hostile_files_are_refused(self):
        def file(header, data=b"\0" * 16, length=None):
            text = header.encode()
            return struct.pack("<Q", len(text) if length is None else length) + text + data

        def entry(shape="[2, 2]", offsets="[0, 16]", name="a.q"):
            return f'"{name}": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}'

        good = "{" + entry() + "}"
        for what, content in {
            "nothing": b"",
            "short": file(good)[:20],
            "header longer than the file": file(good, length=1 << 20),
            "header of 2^63": file(good, length=1 << 63),
            "data cut": file(good, b"\0" * 15),
            "data left over": file(good, b"\0" * 17),
            "overlap": file("{" + entry() + "," + entry(name="a.k") + "}"),
            "overflow": file("{" + entry("[9223372036854775808, 2]") + "}"),
            "product": file("{" + entry("[4294967296, 4294967296]") + "}"),
            "offsets": file("{" + entry(offsets="[0, 18446744073709551615]") + "}"),
            "backwards": file("{" + entry(offsets="[16, 0]") + "}"),
            "twice": file("{" + entry() + "," + entry() + "}"),
            "no JSON": file("{" + entry()),
        }.items():
            with self.subTest(what):
                path = self.write("t.safetensors", content)
                self.refused(["E-FORMAT", "t.safetensors"], "--tensors", path)

    def test_a_device_that_is_not_there_is_no_reason_to_take_another(self):
        path = self.save("t.safetensors", {LAYER: layer_tensors()})
        self.calibrate(3, "--tensors", path, "--device", "cuda:99")
        self.assertEqual(self.files(), ["t.safetensors"])

    def test_contradictory_options_are_usage_errors(self):
        path = self.save("t.safetensors", {LAYER: layer_tensors()})
        for arguments in (
            [],
            ["vit", "--tensors", path],
            ["--tensors", path, "--method", "mse", "--history", "16"],
            ["--tensors", path, "--method", "mse", "--amax", "signed"],
            ["--tensors", path, "--method", "median"],
            ["--tensors", path, "--margin", "0"],
            ["--tensors", path, "--percentile", "101"],
            ["--tensors", path, "--per-head"],
            ["--tensors", path, "--set", "attention.head_size=64"],
        ):
            self.refused([], *arguments)


class Writing(CalibrationTest):
    def test_an_existing_file_is_replaced_only_with_force(self):
        path = self.save("t.safetensors", {LAYER: layer_tensors()})
        mine = self.write("out.json", "mine")
        outcome = self.calibrate(2, "--tensors", path)
        self.assertIn("--force", outcome.err)
        self.assertEqual((self.dir / "out.json").read_text(), "mine")
        self.calibrate(0, "--tensors", path, "--force")
        self.assertNotEqual((self.dir / "out.json").read_text(), "mine")
        self.assertEqual(self.files(), ["out.json", "t.safetensors"])
        os.remove(mine)
        outcome = self.calibrate(2, "--tensors", path, output="none/out.json")
        self.assertIn("none", outcome.err)
        outcome = self.calibrate(2, "--tensors", path, output="-")
        self.assertIn("stdout", outcome.err)
        self.assertEqual(self.files(), ["t.safetensors"])

    def test_the_same_bytes_on_any_number_of_threads(self):
        layers = {f"b.{i}": layer_tensors(i, tokens=300, size=64) for i in range(2)}
        path = self.save("t.safetensors", layers)
        for arguments in (["--method", "mse"], ["--format", "int8-value", "--method", "percentile"]):
            found = set()
            for threads in (1, 2, 5):
                outcome = self.calibrate(0, "--tensors", path, *arguments, "--threads", threads,
                                         "--force", "--json", "-")  # fmt: skip
                found.add((outcome.out, (self.dir / "out.json").read_bytes()))
            self.assertEqual(len(found), 1)

    @thorough
    def test_memory_is_that_of_one_layer(self):
        """40 layers of 6 MB: the set is more than ten times as large as the process becomes."""
        layer = layer_tensors(tokens=4096, heads=4, kv_heads=4, size=64)
        tensors = {role: stored(values) for role, values in layer.items()}
        tensors["cu_seqlens"] = stored(np.arange(0, 4097, 256), "I32")
        files = [self.dir / f"{i}.safetensors" for i in range(40)]
        for i, file in enumerate(files):
            names = {f"b.{i}.{name}": tensor for name, tensor in tensors.items()}
            safetensors_file.write(file, names, {})
        total = sum(file.stat().st_size for file in files)
        # A child starts with the size of the process that forks it: that must be a small one.
        measure = (
            "import os, sys; pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]); "
            "_, status, usage = os.wait4(pid, 0); print(status, usage.ru_maxrss)"
        )
        arguments = ["calibrate", "--tensors", *files, "--output", "out.json", "--max-rows", "1",
                     "-q", "--json", "report.json", "--threads", "2"]  # fmt: skip
        done = subprocess.run([sys.executable, "-S", "-c", measure, BINARY, *arguments],
                              cwd=self.dir, capture_output=True, text=True, check=True)  # fmt: skip
        status, peak_kib = map(int, done.stdout.split()[-2:])
        self.assertEqual(status, 0)
        self.assertLess(peak_kib * 1024, total / 10)
        self.assertEqual(len(json.loads((self.dir / "out.json").read_text())), 40)


if __name__ == "__main__":
    unittest.main()
