"""Scales of an fp8 cache in the safetensors of a model: written by calibrate --checkpoint, read and checked
by scales, as compressed-tensors and ModelOpt have them. checkpoint_packages_test.py asks the packages themselves."""

import argparse
import json
import os
import shutil
import subprocess
import unittest

import numpy as np

from calibration import CalibrationTest, layer_tensors, stored
from opinion import number_formats, safetensors_file
from tool import BINARY, ROOT, TIME_LIMIT_S, strict_json, thorough

LAYERS = [f"model.layers.{i}.self_attn" for i in range(3)]
KV_HEADS, HEADS = 2, 4
SCHEME = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
CT = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {},
      "ignore": ["lm_head"]}  # fmt: skip
NEW_SHARD = "model-kv-cache-scales.safetensors"


def values_of(tensor):
    if tensor.dtype == "BF16":
        return number_formats.decode("BF16", tensor.raw)
    return tensor.raw


class CheckpointTest(CalibrationTest):
    def setUp(self):
        super().setUp()
        layers = {layer: layer_tensors(seed=i) for i, layer in enumerate(LAYERS)}
        self.layers = layers
        self.tensors = self.save("tensors.safetensors", layers)

    def model(self, shards=1, config=None, more=(), layers=LAYERS):
        """A model's folder whose weights are noise of several types, in one file or with an index."""
        generator = np.random.default_rng(1)
        weights = {"lm_head.weight": stored(generator.standard_normal((5, 3)))}
        for layer in layers:
            for name in ("q", "k", "v"):
                weights[f"{layer}.{name}_proj.weight"] = stored(generator.standard_normal((7, 3)))
            weights[f"{layer}.o_proj.weight"] = stored(generator.standard_normal((3, 5)), "F32")
            weights[f"{layer}.o_proj.weight_packed"] = stored(np.arange(5), "U8")
        weights.update(more)
        folder = self.dir / "model"
        folder.mkdir(exist_ok=True)
        names = sorted(weights)
        files = [names[i::shards] for i in range(shards)]
        placed = {}
        for i, part in enumerate(files):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
            part.sort(key=lambda name: -weights[name].raw.itemsize)
            safetensors_file.write(folder / file, {n: weights[n] for n in part}, {"format": "pt"})
            placed.update((name, file) for name in part)
        if shards > 1:
            index = {"metadata": {"total_size": 1000}, "weight_map": placed}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        text = {"hidden_size": 96, "rms_norm_eps": 1e-05, "limit": float("inf")}
        if config is not None:
            text["quantization_config"] = config
        (folder / "config.json").write_text(json.dumps(text))
        return folder

    def all_tensors(self, folder):
        """{name: tensor} of a model as engines find them: by the index where there is one."""
        files = sorted(folder.glob("*.safetensors"))
        index = folder / "model.safetensors.index.json"
        tensors = {}
        for file in files:
            for name, tensor in safetensors_file.read(file)[0].items():
                self.assertNotIn(name, tensors, "a tensor that lies in two files")
                tensors[name] = tensor
        if index.exists():
            named = json.loads(index.read_text())["weight_map"]
            self.assertEqual(set(named), set(tensors))
            self.assertEqual(set(named.values()), {file.name for file in files})
        return tensors

    def calibrated(self, folder, *arguments, code=0):
        return self.expect(code, "calibrate", "--tensors", self.tensors, "--checkpoint", folder,
                           "--margin", 1, *arguments)  # fmt: skip

    def amax_scale(self, layer, role):
        return np.abs(self.layers[layer][role]).max() / 448

    def config(self, folder):
        return json.loads((folder / "config.json").read_text())


class Written(CheckpointTest):
    def check_only_scales_changed(self, before, after):
        for name, tensor in before.items():
            if not name.endswith("_scale"):
                self.assertEqual((tensor.dtype, tensor.raw.tobytes()),
                                 (after[name].dtype, after[name].raw.tobytes()), name)  # fmt: skip
        return {name: tensor for name, tensor in after.items() if name.endswith("_scale")}

    def test_a_model_of_one_file_gets_scales_and_keeps_its_weights(self):
        folder = self.model()
        before = self.all_tensors(folder)
        out = self.calibrated(folder)
        scales = self.check_only_scales_changed(before, self.all_tensors(folder))
        self.assertEqual(set(scales), {f"{layer}.{r}_scale" for layer in LAYERS for r in "kv"})
        for layer in LAYERS:
            for role in "kv":
                scale = scales[f"{layer}.{role}_scale"]
                self.assertEqual((scale.dtype, scale.shape), ("F32", (1,)))
                self.assertAlmostEqual(scale.raw[0] / self.amax_scale(layer, role), 1, places=6)
        config = self.config(folder)
        self.assertEqual(config["quantization_config"]["quant_method"], "compressed-tensors")
        self.assertEqual(SCHEME.items() - config["quantization_config"]["kv_cache_scheme"].items(), set())
        self.assertEqual((config["rms_norm_eps"], config["limit"]), (1e-05, float("inf")))
        self.assertIn("scales of compressed-tensors written to model.safetensors, config.json", out.err)
        self.assertEqual([file.name for file in folder.glob("*.tmp*")], [])

    def test_new_scales_of_several_files_go_into_one_of_their_own(self):
        folder = self.model(shards=3)
        before = self.all_tensors(folder)
        stamps = {file.name: file.stat().st_ino for file in folder.glob("model-0*")}
        self.calibrated(folder)
        scales = self.check_only_scales_changed(before, self.all_tensors(folder))
        self.assertEqual(len(scales), 6)
        self.assertEqual(stamps, {file.name: file.stat().st_ino for file in folder.glob("model-0*")})
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        self.assertEqual(index["weight_map"][LAYERS[0] + ".k_scale"], NEW_SHARD)
        self.assertEqual(index["metadata"]["total_size"], 1000 + 6 * 4)

    def test_scales_that_are_there_are_replaced_where_they_lie_and_only_with_force(self):
        old = {f"{layer}.{r}_scale": stored(np.array([0.5])) for layer in LAYERS for r in "qkv"}
        folder = self.model(shards=2, config={**CT, "kv_cache_scheme": SCHEME}, more=old)
        before = self.all_tensors(folder)
        refused = self.calibrated(folder, code=2)
        self.assertIn("has scales already; --force replaces them", refused.err)
        self.assertEqual({n: t.raw.tobytes() for n, t in self.all_tensors(folder).items()},
                         {n: t.raw.tobytes() for n, t in before.items()})  # fmt: skip
        self.calibrated(folder, "--force")
        scales = self.check_only_scales_changed(before, self.all_tensors(folder))
        self.assertEqual(len(scales), 9)
        for name, scale in scales.items():
            layer, _, role = name.rpartition(".")
            self.assertEqual(scale.dtype, "BF16")
            self.assertAlmostEqual(values_of(scale)[0] / self.amax_scale(layer, role[0]), 1, delta=2**-8)
        self.assertFalse((folder / NEW_SHARD).exists())

    def test_words_of_the_configuration_that_look_like_numbers_stay_words(self):
        folder = self.model()
        text = {**self.config(folder), "label2id": {"NaN": 0, "Infinity": 1}, "pad": "NaN",
                "names": ["-Infinity", "Infinity", float("inf"), float("-inf")]}  # fmt: skip
        (folder / "config.json").write_text(json.dumps(text))
        self.calibrated(folder)
        config = self.config(folder)
        config.pop("quantization_config")
        self.assertEqual(config, text)

    def test_scales_that_lack_in_the_file_of_scales_join_those_that_are_there(self):
        folder = self.model(shards=2)
        self.calibrated(folder)
        complete = self.all_tensors(folder)
        gone = [f"{LAYERS[2]}.{role}_scale" for role in "kv"]
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        for name in gone:
            del index["weight_map"][name]
        index["metadata"]["total_size"] -= 2 * 4
        path.write_text(json.dumps(index))
        left = {name: tensor for name, tensor in complete.items()
                if name.endswith("_scale") and name not in gone}  # fmt: skip
        safetensors_file.write(folder / NEW_SHARD, left, {"format": "pt"})
        self.calibrated(folder, "--force")
        again = self.all_tensors(folder)
        self.assertEqual({name: tensor.raw.tobytes() for name, tensor in again.items()},
                         {name: tensor.raw.tobytes() for name, tensor in complete.items()})  # fmt: skip
        index = json.loads(path.read_text())
        self.assertEqual(index["metadata"]["total_size"], 1000 + 6 * 4)

    def test_scales_by_head_are_of_the_strategy_attn_head(self):
        old = {f"{layer}.q_scale": stored(np.ones((HEADS, 1, 1)), "F32") for layer in LAYERS}
        folder = self.model(config=dict(CT), more=old)
        self.calibrated(folder, "--per-head", "--force")
        tensors = self.all_tensors(folder)
        for layer in LAYERS:
            amax = np.abs(self.layers[layer]["k"]).max((0, 2)) / 448
            scale = tensors[layer + ".k_scale"]
            self.assertEqual(scale.shape, (KV_HEADS, 1, 1))
            np.testing.assert_allclose(scale.raw.ravel(), amax, rtol=1e-6)
            self.assertEqual(tensors[layer + ".q_scale"].shape, (HEADS, 1, 1))
        quantization = self.config(folder)["quantization_config"]
        self.assertEqual(quantization["kv_cache_scheme"]["strategy"], "attn_head")
        self.assertEqual(quantization["ignore"], ["lm_head"])

    def test_a_model_of_modelopt_gets_its_names_and_its_word_for_fp8(self):
        folder = self.model(config={"quant_method": "modelopt", "quant_algo": "FP8"})
        (folder / "hf_quant_config.json").write_text(json.dumps(
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8",
             "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}}))  # fmt: skip
        self.calibrated(folder)
        scale = self.all_tensors(folder)[LAYERS[1] + ".v_proj.v_scale"]
        self.assertEqual((scale.dtype, scale.shape), ("F32", ()))
        self.assertAlmostEqual(float(scale.raw) / self.amax_scale(LAYERS[1], "v"), 1, places=6)
        written = json.loads((folder / "hf_quant_config.json").read_text())
        self.assertEqual(written["quantization"]["kv_cache_quant_algo"], "FP8")
        self.assertEqual(written["quantization"]["exclude_modules"], ["lm_head"])
        self.assertIn("3 layers, every scale finite", self.expect(0, "scales", folder).out)
        self.assertIn("ModelOpt has no scales by head",
                      self.calibrated(folder, "--per-head", "--force", code=2).err)  # fmt: skip

    def test_scales_of_the_query_are_added_where_they_are_asked_for(self):
        for shards, per_head in ((1, ()), (3, ("--per-head",))):
            shutil.rmtree(self.dir / "model", ignore_errors=True)
            folder = self.model(shards=shards)
            before = self.all_tensors(folder)
            out = self.calibrated(folder, "--query-scales", *per_head)
            scales = self.check_only_scales_changed(before, self.all_tensors(folder))
            self.assertEqual(set(scales), {f"{layer}.{r}_scale" for layer in LAYERS for r in "qkv"})
            for layer in LAYERS:
                scale = scales[f"{layer}.q_scale"]
                self.assertEqual((scale.dtype, scale.shape), ("F32", (1,)))
                self.assertAlmostEqual(scale.raw[0] / self.amax_scale(layer, "q"), 1, places=6)
            self.assertNotIn("no q_scale", out.err)
            self.assertNotIn("no q_scale", self.expect(0, "scales", folder).err)
            again = self.all_tensors(folder)
            self.calibrated(folder, "--force", *per_head)  # replaced, and not taken away
            self.assertEqual(set(self.all_tensors(folder)), set(again))

    def test_scales_of_the_query_are_refused_where_there_is_no_place_for_them(self):
        folder = self.model(config={"quant_method": "modelopt"})
        self.assertIn("ModelOpt has no scales of the query, expected no --query-scales",
                      self.calibrated(folder, "--query-scales", code=2).err)  # fmt: skip
        alone = self.expect(2, "calibrate", "--tensors", self.tensors, "--format", "kv-cache", "--output", "s.json",
                            "--query-scales")  # fmt: skip
        self.assertIn("--query-scales: expected --checkpoint with it", alone.err)

    def test_the_report_is_of_the_scales_as_they_are_read_back(self):
        old = {f"{layer}.{r}_scale": stored(np.array([0.5])) for layer in LAYERS for r in "kv"}
        folder = self.model(config={**CT, "kv_cache_scheme": SCHEME}, more=old)
        out = self.calibrated(folder, "--force", "--json", "-")
        for layer in strict_json(out.out)["layers"]:
            written = self.all_tensors(folder)[layer["layer"] + ".k_scale"]
            self.assertEqual(layer["tensors"]["k"]["scale"], values_of(written)[0])
            # Without a q_scale engines take k_scale for the query.
            self.assertEqual(layer["tensors"]["q"]["scale"], layer["tensors"]["k"]["scale"])
        self.assertIn("q_scale, which is taken as k_scale", out.err)

    def test_a_link_to_a_shared_file_is_replaced_and_the_file_stays(self):
        folder = self.model()
        blob = self.dir / "blob"
        os.rename(folder / "model.safetensors", blob)
        before = blob.read_bytes()
        os.symlink(blob, folder / "model.safetensors")
        self.calibrated(folder)
        self.assertEqual(blob.read_bytes(), before)
        self.assertFalse((folder / "model.safetensors").is_symlink())

    def test_layers_that_would_have_no_scales_are_refused_with_nothing_written(self):
        for layers, words in ((LAYERS + ["model.layers.3.self_attn"], "'model.layers.3.self_attn' would have"),
                              (LAYERS[:2], "it has no layer 'model.layers.2.self_attn'")):  # fmt: skip
            folder = self.model(layers=layers)
            before = (folder / "model.safetensors").read_bytes()
            self.assertIn(words, self.calibrated(folder, code=2).err)
            self.assertEqual((folder / "model.safetensors").read_bytes(), before)

    def test_other_quantisations_and_other_formats_are_refused_by_name(self):
        folder = self.model(config={"quant_method": "gptq"})
        self.assertIn("found 'gptq'", self.calibrated(folder, code=2).err)
        self.assertIn("--checkpoint: expected --format kv-cache",
                      self.calibrated(folder, "--format", "vllm-mm", code=2).err)  # fmt: skip
        bare = self.expect(2, "calibrate", "--tensors", self.tensors)
        self.assertIn("--output is required, or --checkpoint", bare.err)


class Checked(CheckpointTest):
    def scaled(self, **changes):
        scales = {f"{layer}.{r}_scale": np.array([0.5]) for layer in LAYERS for r in "kv"}
        scales.update({name.replace("__", "."): value for name, value in changes.items()})
        return {n: stored(v, "F32") for n, v in scales.items() if v is not None}

    def refused(self, words, config, **changes):
        folder = self.model(config=config, more=self.scaled(**changes))
        err = self.expect(2, "scales", folder).err
        for word in words:
            self.assertIn(word, err)

    def test_good_scales_are_listed_and_their_error_computed(self):
        folder = self.model(config={**CT, "kv_cache_scheme": SCHEME}, more=self.scaled())
        out = self.expect(0, "scales", folder)
        self.assertIn("3 layers, every scale finite and > 0", out.out)
        table = self.expect(0, "scales", folder, "--tensors", self.tensors).out
        self.assertRegex(table, r"model\.layers\.0\.self_attn +q +0\.5 ")

    def test_zero_scales_are_found_and_counted(self):
        zero = {f"{layer.replace('.', '__')}__{r}_scale": np.array([0.0]) for layer in LAYERS[1:] for r in "kv"}
        self.refused(["'model.layers.1.self_attn.k_scale' is 0", "makes all that is cached 0",
                      "'model.layers.2.self_attn.v_scale' is 0"],
                     {**CT, "kv_cache_scheme": SCHEME}, **zero)  # fmt: skip

    def test_what_an_engine_would_misread_is_refused(self):
        name = LAYERS[1].replace(".", "__")
        scheme = {**CT, "kv_cache_scheme": SCHEME}
        self.refused(["has no v_scale"], scheme, **{name + "__v_scale": None})
        self.refused(["k_scale' is nan"], scheme, **{name + "__k_scale": np.array([np.nan])})
        self.refused(["of head 1 is -1.0"], scheme, **{name + "__k_scale": np.array([[[1.0]], [[-1.0]]])})
        self.refused(['strategy is "tensor", expected "attn_head"'], scheme,
                     **{name + "__k_scale": np.ones((2, 1, 1))})  # fmt: skip
        self.refused(["num_bits is 4, expected 8"], {**CT, "kv_cache_scheme": {**SCHEME, "num_bits": 4}})
        self.refused(["k_zero_point' is not 0"], scheme, **{name + "__k_zero_point": np.array([1.0])})

    def test_a_missing_scheme_is_a_notice_and_no_scales_an_error(self):
        folder = self.model(config=dict(CT), more=self.scaled())
        self.assertIn("no quantization_config.kv_cache_scheme", self.expect(0, "scales", folder).err)
        folder = self.model()
        self.assertIn("none of its 3 attention layers has", self.expect(2, "scales", folder).err)

    def test_a_broken_folder_is_refused(self):
        folder = self.model(shards=2)
        index = folder / "model.safetensors.index.json"
        for text, words in (("{", "expected a JSON object"), ("{}", "weight_map"),
                            ('{"weight_map": {"a": "../b.safetensors"}}', "expected the name of a file"),
                            ('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', "'a' is not in")):  # fmt: skip
            index.write_text(text)
            self.assertIn(words, self.expect(2, "scales", folder).err)
        index.unlink()
        self.assertIn("expected one .safetensors file or a", self.expect(2, "scales", folder).err)
        self.assertIn("No such file", self.expect(2, "calibrate", "--tensors", self.tensors,
                                                  "--checkpoint", "nowhere").err)  # fmt: skip


class Costly(CheckpointTest):
    def test_layers_that_cost_most_are_named_as_vllm_takes_them(self):
        seeds = {0: 0, 2: 2, 4: 3, 11: 4}
        layers = {f"model.layers.{i}.self_attn": layer_tensors(seed=seed) for i, seed in seeds.items()}
        # Small scores forgive rounded keys; those of layer 11 are large.
        for i in (0, 2, 4):
            layers[f"model.layers.{i}.self_attn"]["q"] *= 2.0**-6
        tensors = self.save("more.safetensors", layers)
        out = self.expect(0, "calibrate", "--tensors", tensors, "--format", "kv-cache", "--output", "s.json")
        self.assertIn("--kv-cache-dtype-skip-layers 11\n", out.out)
        out = self.expect(0, "scales", "s.json", "--tensors", tensors, "--json", "-")
        self.assertEqual(strict_json(out.out)["costly_layers"], [11])

    def test_several_layers_are_named_worst_first_in_the_form_of_the_option(self):
        layers = {}
        for i, factor in {0: 2.0**-6, 2: 1.0, 4: 2.0**-6, 7: 2.0**-6, 9: 2.0**-6, 30: 8.0, 11: 3.0}.items():
            layers[f"model.layers.{i}.self_attn"] = layer_tensors(seed=3)
            layers[f"model.layers.{i}.self_attn"]["q"] *= factor
        tensors = self.save("more.safetensors", layers)
        out = self.expect(0, "calibrate", "--tensors", tensors, "--format", "kv-cache", "--output", "s.json",
                          "--json", "r.json").out  # fmt: skip
        (line,) = [line for line in out.splitlines() if "skip-layers" in line]
        report = strict_json((self.dir / "r.json").read_text())
        errors = {int(layer["layer"].split(".")[2]): layer["error"]["rms_rel"] for layer in report["layers"]}
        limit = 2 * sorted(errors.values())[len(errors) // 2]
        costly = sorted((i for i in errors if errors[i] > limit), key=lambda i: -errors[i])
        self.assertEqual(len(costly), 3)
        # As vLLM's parser takes them: numbers of layers, or words, one an argument.
        parser = argparse.ArgumentParser()
        parser.add_argument("--kv-cache-dtype-skip-layers", nargs="+")
        words = line.partition(": ")[2].split()
        self.assertEqual(parser.parse_args(words).kv_cache_dtype_skip_layers, [str(i) for i in costly])
        self.assertEqual(report["costly_layers"], costly)

    def test_even_layers_name_none(self):
        out = self.expect(0, "calibrate", "--tensors", self.tensors, "--format", "kv-cache", "--output",
                          "s.json", "--json", "r.json")  # fmt: skip
        self.assertNotIn("skip-layers", out.out)
        self.assertEqual(strict_json((self.dir / "r.json").read_text())["costly_layers"], [])


class Documentation(CheckpointTest):
    """The examples of docs/interop.md: scales of a checkpoint, and the caches that engines store."""

    def run_example(self, heading):
        text = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
        section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        script = section.partition("```sh\n")[2].partition("```")[0]
        self.assertIn("attnbench ", script)
        done = subprocess.run(["bash", "-euc", f'attnbench() {{ "{BINARY}" "$@"; }}\n{script}'], text=True,
                              cwd=self.dir, env=self.environment(), capture_output=True,
                              timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_scales_are_written_into_a_checkpoint_and_checked(self):
        folder = self.model(shards=2)
        (self.dir / "captured").mkdir()
        (self.dir / self.tensors).rename(self.dir / "captured" / "tensors.safetensors")
        out = self.run_example("Scales of an fp8 cache in a checkpoint")
        self.assertEqual(out.count("model.layers.2.self_attn"), 2)  # by calibrate and by scales
        self.assertIn("kv_cache_scheme", self.config(folder)["quantization_config"])

    @thorough
    def test_caches_as_engines_store_them_pass_and_have_their_errors(self):
        out = self.run_example("KV caches as engines store them")
        self.assertIn("16 passed", out)
        self.assertIn("6 passed", out)
        self.assertRegex(out, r"nvfp4 .* passed .*%")
        self.assertRegex(out, r"fp8_model1_mla .* passed .*%")


if __name__ == "__main__":
    unittest.main()
