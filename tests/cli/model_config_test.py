"""Dimensions from the config.json of a Hugging Face model: `extends`, and `attnbench init --hf`."""

import json
import unittest

from tool import SCENARIOS, ToolTest, strict_json

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
    "torch_dtype": "bfloat16", "rope_scaling": None, "bos_token_id": 128000,
}  # fmt: skip
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "num_attention_heads": 32, "head_dim": 128,
                    "num_key_value_heads": 16, "hidden_size": 5376, "query_pre_attn_scalar": 168,
                    "sliding_window": 1024, "sliding_window_pattern": 6},
    "vision_config": {"num_attention_heads": 16, "hidden_size": 1152},
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_attention_heads": 128, "num_key_value_heads": 128,
    "hidden_size": 7168, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "torch_dtype": "bfloat16",
    "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "hidden_size": 2880, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


class ModelConfig(ToolTest):
    def problem(self, config, extra=""):
        """The resolved case of a scenario that extends the configuration."""
        self.write("model/config.json", json.dumps(config))
        self.write("mine.yaml", f"schema: 1\nname: mine\nextends: model/config.json\n{extra}")
        text = self.expect(0, "explain", "mine.yaml", "--device", "cpu").out
        start, end = text.index("{"), text.index("\n}\n") + 2
        return strict_json(text[start:end])

    def shipped(self, name):
        text = self.expect(0, "explain", SCENARIOS / "models" / f"{name}.yaml").out
        return strict_json(text[text.index("{"): text.index("\n}\n") + 2])

    def test_dimensions_are_those_of_the_shipped_model_files(self):
        for config, name in ((LLAMA, "llama-3.1-8b"), (GEMMA3, "gemma-3-27b"),
                             (GPT_OSS, "gpt-oss-20b")):  # fmt: skip
            with self.subTest(name):
                mine, shipped = self.problem(config), self.shipped(name)
                for section in ("attention", "mla", "kv_cache", "batch"):
                    self.assertEqual(mine.get(section), shipped.get(section), section)

    def test_mla_has_its_dimensions_and_the_scale_of_a_longer_context(self):
        # Few heads and tokens: the shipped file has the whole model.
        small = {**DEEPSEEK, "num_attention_heads": 2}
        problem = self.problem(small, "batch: q4\n")
        self.assertEqual(problem["attention"]["type"], "mla")
        self.assertAlmostEqual(problem["attention"]["scale"], 0.1352337788608801, places=12)
        text = (SCENARIOS / "models" / "deepseek-v3.yaml").read_text()
        self.assertIn("scale: 0.1352337788608801", text)
        for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            self.assertEqual(problem["mla"][key], DEEPSEEK[key])
            self.assertIn(f"  {key}: {DEEPSEEK[key]}\n", text)
        self.assertEqual(problem["kv_cache"]["block_size"], 64)

    def test_keys_of_older_families_are_understood(self):
        bloom = {"model_type": "bloom", "n_head": 32, "hidden_size": 4096, "n_layer": 30,
                 "torch_dtype": "float16"}  # fmt: skip
        attention = self.problem(bloom)["attention"]
        self.assertEqual(
            [attention[key] for key in ("num_heads", "num_kv_heads", "head_size", "dtype", "alibi")],
            [32, 32, 128, "float16", "linear"],
        )
        falcon = {"model_type": "falcon", "num_attention_heads": 71, "multi_query": True,
                  "hidden_size": 4544, "alibi": False}  # fmt: skip
        attention = self.problem(falcon)["attention"]
        self.assertEqual((attention["num_kv_heads"], attention["head_size"]), (1, 64))
        self.assertEqual(attention["alibi"], "none")
        bert = {"model_type": "bert", "num_attention_heads": 12, "hidden_size": 768}
        self.assertEqual(self.problem(bert)["attention"]["type"], "encoder_only")

    def test_a_window_is_only_taken_where_a_layer_has_it(self):
        qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 32768}
        self.assertEqual(self.problem(qwen)["attention"]["sliding_window"], 32768)
        off = {**qwen, "use_sliding_window": False}
        self.assertIsNone(self.problem(off)["attention"]["sliding_window"])
        full = {**qwen, "layer_types": ["full_attention"]}
        self.assertIsNone(self.problem(full)["attention"]["sliding_window"])

    def test_a_checkpoint_with_an_fp8_cache_gives_one(self):
        scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
        quantised = {**LLAMA, "quantization_config": scheme}
        self.assertEqual(self.problem(quantised)["kv_cache"]["dtype"], "fp8_e4m3")
        self.assertEqual(self.problem(LLAMA)["kv_cache"]["dtype"], "auto")

    def test_what_the_scenario_says_goes_over_the_model(self):
        extra = "attention: {num_kv_heads: 4}\nbatch: q48\n"
        problem = self.problem(LLAMA, extra)
        self.assertEqual(problem["attention"]["num_kv_heads"], 4)
        self.assertEqual(problem["attention"]["num_heads"], 32)
        self.assertEqual(problem["batch"], [{"count": 1, "query_len": 48, "seq_len": 48}])

    def test_errors_name_the_file_the_key_and_what_was_expected(self):
        for config, words in (
            ({**LLAMA, "num_attention_heads": "many"},
             "num_attention_heads or n_head or n_heads or num_heads or decoder_attention_heads: "
             "expected a whole number from 1 on, found 'many'"),
            ({**LLAMA, "hidden_size": 4095}, "a multiple of the 32 heads, found 4095"),
            ({"model_type": "mamba", "hidden_size": 768}, "expected the attention heads of a model"),
            ({"model_type": "t5", "num_heads": 8, "d_model": 512, "d_kv": 64},
             "'t5' adds a learned bias of relative positions"),
        ):  # fmt: skip
            self.write("config.json", json.dumps(config))
            self.write("mine.yaml", "schema: 1\nname: mine\nextends: config.json\n")
            error = self.expect(2, "explain", "mine.yaml").err
            self.assertIn("config.json:1: ", error)
            self.assertIn(words, error)

    def test_a_configuration_can_be_run_as_it_is(self):
        self.write("config.json", json.dumps({**LLAMA, "num_attention_heads": 4,
                                              "num_key_value_heads": 2, "hidden_size": 128}))
        results = self.results("config.json", "--no-timing", "--device", "cpu", "--set",
                               "batch=q16")  # fmt: skip
        self.assertIn("llama/q16/FLASH_ATTN", results)

    def test_init_writes_a_scenario_of_the_model_that_is_valid(self):
        self.write("Qwen/config.json", json.dumps({**LLAMA, "_name_or_path": "Org/My Model-7B"}))
        for argument in ("Qwen/config.json", "Qwen"):
            out = self.expect(0, "init", "--hf", argument).out
            self.assertIn("wrote my-model-7b.yaml", out)
            text = (self.dir / "my-model-7b.yaml").read_text()
            self.assertIn("num_kv_heads: 8", text)
            self.expect(0, "validate", "my-model-7b.yaml")
            again = self.expect(2, "init", "--hf", argument)
            self.assertIn("my-model-7b.yaml: expected no file, found one", again.err)
            (self.dir / "my-model-7b.yaml").unlink()
        self.write("other.json", "{}")
        self.assertIn("expected the config.json of a model",
                      self.expect(2, "init", "--hf", "other.json").err)  # fmt: skip


if __name__ == "__main__":
    unittest.main()
