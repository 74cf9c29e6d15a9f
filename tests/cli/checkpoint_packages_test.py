"""Scales of an fp8 cache in checkpoints, by the packages whose forms they have: compressed-tensors and ModelOpt write
models that attnbench reads, and read what it writes.

They need torch, which is why scripts/test installs them for the label real-packages only.
"""

import json
import subprocess
import unittest

import numpy as np

from checkpoint_test import LAYERS, CheckpointTest, values_of
from opinion import safetensors_file
from pythons import python_with_torch
from tool import TIME_LIMIT_S

# With compressed-tensors' own functions: a model of three layers whose cache is quantised.
MODEL = '''\
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, apply_quantization_config
config = LlamaConfig(hidden_size=96, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=24, vocab_size=64)
model = LlamaForCausalLM(config).to(torch.bfloat16)
strategy = sys.argv[2]
apply_quantization_config(model, QuantizationConfig(config_groups={}, kv_cache_scheme=QuantizationArgs(
    num_bits=8, type="float", strategy=strategy)))
'''
WRITE = MODEL + '''
for i, layer in enumerate(model.model.layers):
    layer.self_attn.k_scale.data.fill_(0.25 + i)
    layer.self_attn.v_scale.data.fill_(0.0 if sys.argv[3] == "zero" and i == 2 else 0.5)
model.save_pretrained(sys.argv[1])
path = sys.argv[1] + "/config.json"
saved = json.load(open(path))
saved["quantization_config"] = json.loads(QuantizationConfig.from_pretrained(model).model_dump_json())
json.dump(saved, open(path, "w"))
'''
READ = MODEL + '''
from safetensors.torch import load_file
missing, unexpected = model.load_state_dict(load_file(sys.argv[1] + "/model.safetensors"), strict=False)
assert not unexpected, unexpected
assert not [name for name in missing if name.endswith("scale")], missing
saved = json.load(open(sys.argv[1] + "/config.json"))["quantization_config"]
scheme = QuantizationConfig(**saved).kv_cache_scheme
print(json.dumps([getattr(scheme.strategy, 'value', scheme.strategy), scheme.num_bits, scheme.symmetric,
                  [list(layer.self_attn.k_scale.shape) for layer in model.model.layers],
                  [layer.self_attn.v_scale.flatten().tolist() for layer in model.model.layers]]))
'''


class PackageTest(CheckpointTest):
    package = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python = python_with_torch(cls.package, embedded=False)

    def python_run(self, text, *arguments):
        done = subprocess.run([self.python, "-B", "-c", text, *map(str, arguments)], cwd=self.dir, text=True,
                              env=self.environment(HF_HUB_OFFLINE="1"), capture_output=True,
                              timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


class CompressedTensors(PackageTest):
    package = "compressed_tensors"

    def test_what_the_package_saves_is_read_and_its_zero_scales_are_found(self):
        for strategy in ("tensor", "attn_head"):
            self.python_run(WRITE, "saved", strategy, "good")
            out = self.expect(0, "scales", "saved")
            self.assertIn("model.layers.2.self_attn  q 2.25  k", out.out)
            self.python_run(WRITE, "saved", strategy, "zero")
            self.assertIn("model.layers.2.self_attn.v_scale'", self.expect(2, "scales", "saved").err)

    def test_what_is_written_loads_into_the_package(self):
        for strategy, option, shape in (("tensor", (), [1]), ("attn_head", ("--per-head",), [2, 1, 1])):
            self.python_run(WRITE, "saved", strategy, "zero")
            self.calibrated("saved", "--force", *option)
            read = json.loads(self.python_run(READ, "saved", strategy).splitlines()[-1])
            self.assertEqual(read[:4], [strategy, 8, True, [shape] * 3])
            for layer, scales in zip(LAYERS, read[4]):
                amax = np.abs(self.layers[layer]["v"]).max((0, 2) if option else None) / 448
                np.testing.assert_allclose(scales, np.ravel(amax), rtol=2**-8)

    def test_a_query_scale_is_replaced_and_one_that_is_not_there_stays_away(self):
        for loaded in (True, False):
            self.python_run(WRITE, "saved", "tensor", "good")
            file = self.dir / "saved" / "model.safetensors"
            if loaded:
                tensors, metadata = safetensors_file.read(file)
                tensors |= {f"{layer}.q_scale": tensors[f"{layer}.k_scale"] for layer in LAYERS}
                safetensors_file.write(file, tensors, metadata)
            self.calibrated("saved", "--force")
            written = self.all_tensors(self.dir / "saved")
            self.assertEqual({name for name in written if name.endswith("q_scale")},
                             {f"{layer}.q_scale" for layer in LAYERS} if loaded else set())  # fmt: skip
            for layer in LAYERS if loaded else ():
                scale = float(values_of(written[f"{layer}.q_scale"])[0])
                self.assertAlmostEqual(scale / self.amax_scale(layer, "q"), 1, delta=2**-8)


# ModelOpt quantises and exports; "weights" leaves the cache alone.
MODELOPT_WRITE = '''
import copy, sys, torch
import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(hidden_size=96, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=24, vocab_size=64, architectures=["LlamaForCausalLM"])
model = LlamaForCausalLM(config).to(torch.bfloat16)
folder, what = sys.argv[1:]
wanted = copy.deepcopy(mtq.FP8_DEFAULT_CFG if what == "weights" else mtq.FP8_KV_CFG)
chosen = wanted["quant_cfg"] if what == "weights" else [{"quantizer_name": "*", "enable": False},
                                                        *wanted["quant_cfg"]]
mtq.quantize(model, {"quant_cfg": chosen, "algorithm": "max"}, lambda m: m(torch.arange(20)[None]))
if what != "weights":
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.k_bmm_quantizer._amax.fill_(448 * (0.25 + i))
        layer.self_attn.v_bmm_quantizer._amax.fill_(0.0 if what == "zero" and i == 2 else 224.0)
export_hf_checkpoint(model, export_dir=folder)
'''
MODELOPT_READ = '''
import json, sys
from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
print(json.dumps(convert_hf_quant_config_format(json.load(open(sys.argv[1] + "/hf_quant_config.json")))))
'''


class ModelOpt(PackageTest):
    package = "modelopt.torch.export"

    def kinds(self, folder):
        return {name: (tensor.dtype, tensor.shape) for name, tensor in self.all_tensors(self.dir / folder).items()}

    def test_what_it_exports_is_read_and_its_zero_scales_are_found(self):
        self.python_run(MODELOPT_WRITE, "saved", "good")
        out = self.expect(0, "scales", "saved").out
        self.assertIn("3 layers, every scale finite and > 0", out)
        self.assertRegex(out, r"model\.layers\.2\.self_attn .*k 2\.25 +v 0\.5")
        self.python_run(MODELOPT_WRITE, "saved", "zero")
        self.assertIn("model.layers.2.self_attn.v_proj.v_scale' is 0", self.expect(2, "scales", "saved").err)

    def test_what_is_written_has_the_names_shapes_and_types_of_its_own_export_and_its_reader_takes_it(self):
        self.python_run(MODELOPT_WRITE, "theirs", "good")
        self.python_run(MODELOPT_WRITE, "saved", "zero")
        before = json.loads((self.dir / "saved" / "hf_quant_config.json").read_text())
        self.calibrated("saved", "--force")
        self.assertEqual(self.kinds("saved"), self.kinds("theirs"))
        self.assertEqual(json.loads((self.dir / "saved" / "hf_quant_config.json").read_text()), before)
        tensors = self.all_tensors(self.dir / "saved")
        for layer in LAYERS:
            for role in "kv":
                scale = float(tensors[f"{layer}.{role}_proj.{role}_scale"].raw)
                self.assertAlmostEqual(scale / self.amax_scale(layer, role), 1, places=6)

    def test_a_model_with_quantised_weights_gets_its_cache_as_if_it_had_exported_both(self):
        self.python_run(MODELOPT_WRITE, "theirs", "good")
        self.python_run(MODELOPT_WRITE, "saved", "weights")
        weights = self.kinds("saved")
        self.calibrated("saved")
        added = {name: kind for name, kind in self.kinds("saved").items() if name not in weights}
        self.assertEqual(added, {name: kind for name, kind in self.kinds("theirs").items()
                                 if name.endswith(("k_scale", "v_scale"))})  # fmt: skip
        read = json.loads(self.python_run(MODELOPT_READ, "saved").splitlines()[-1])
        theirs = json.loads(self.python_run(MODELOPT_READ, "theirs").splitlines()[-1])
        self.assertEqual(read["kv_cache_scheme"], theirs["kv_cache_scheme"])
        written = self.config(self.dir / "saved")["quantization_config"]
        for key, value in theirs["kv_cache_scheme"].items():
            self.assertEqual(written["kv_cache_scheme"][key], value)


if __name__ == "__main__":
    unittest.main()
