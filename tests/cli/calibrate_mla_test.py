"""Scales of MLA caches: of the latent query and of the entries, and what they cost through the whole
decode, by numpy."""

import json
import unittest

import numpy as np
from calibration import CalibrationTest, e4m3, outliers, rms_rel, stored
from tool import strict_json

from opinion import safetensors_file

N, P, R, LKV, V, TOKENS = 3, 16, 8, 32, 24, 20
SCALE = 1 / np.sqrt(P + R)
SCENARIO = {"schema": 1, "name": "m", "batch": "3q1s30_q20s50",
            "attention": {"type": "mla", "num_heads": 4},
            "mla": {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
                    "v_head_dim": 32}}  # fmt: skip


def tensors(seed=3):
    generator = np.random.default_rng(seed)
    return {
        "query": outliers(generator, TOKENS, N, P + R),
        "kv_c": outliers(generator, TOKENS, 1, LKV)[:, 0],
        "k_pe": outliers(generator, TOKENS, 1, R)[:, 0],
        "w_uk": outliers(generator, N, P, LKV) / 64,
        "w_uv": outliers(generator, N, LKV, V) / 64,
    }


def latent_query(t):
    ql = np.einsum("tnp,npl->tnl", t["query"][:, :, :P].astype(np.float64), t["w_uk"])
    return np.concatenate([ql, t["query"][:, :, P:]], axis=2)


def decode(query, kv_c, k_pe, w_uv):
    """Causal attention over latents, projected back."""
    entries = np.concatenate([kv_c, k_pe], axis=1).astype(np.float64)
    scores = SCALE * np.einsum("tne,se->nts", query.astype(np.float64), entries)
    scores[:, np.triu_indices(TOKENS, 1)[0], np.triu_indices(TOKENS, 1)[1]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    latent = np.einsum("nts,sl->tnl", weights, kv_c.astype(np.float64))
    return np.einsum("tnl,nlv->tnv", latent, w_uv.astype(np.float64))


class CalibrateMla(CalibrationTest):
    def captured(self, name="c.safetensors", layer="model.layers.0.self_attn", **changes):
        t = {**tensors(), **changes}
        path = self.dir / name
        safetensors_file.write(path, {f"{layer}.{key}": stored(value) for key, value in t.items()
                                      if value is not None}, {})  # fmt: skip
        return path

    def layer_of(self, *arguments, output="out.json"):
        outcome = self.calibrate(0, *arguments, "--format", "kv-cache", "--json", "-", "--force",
                                 output=output)  # fmt: skip
        (layer,) = strict_json(outcome.out)["layers"]
        return layer

    def test_scales_are_of_the_latent_query_and_the_entries_and_the_error_of_the_whole_decode(self):
        t = tensors()
        layer = self.layer_of("--tensors", self.captured(), "--max-rows", str(TOKENS))
        self.assertEqual(list(layer["tensors"]), ["q", "k"])
        entries = np.concatenate([t["kv_c"], t["k_pe"]], axis=1)
        query = latent_query(t)
        k_scale, q_scale = (layer["tensors"][role]["scale"] for role in "kq")
        self.assertAlmostEqual(k_scale / (np.abs(entries).max() / 448 * 1.5), 1, places=6)
        self.assertAlmostEqual(q_scale / (np.abs(query).max() / 448 * 1.5), 1, places=2)
        exact = decode(query, t["kv_c"], t["k_pe"], t["w_uv"])
        read = decode(e4m3(query, q_scale, True), e4m3(t["kv_c"], k_scale),
                      e4m3(t["k_pe"], k_scale), t["w_uv"])  # fmt: skip
        self.assertAlmostEqual(layer["error"]["rms_rel"] / rms_rel(read, exact), 1, places=3)
        # The legacy form has no scale of the query, which stays as it is.
        outcome = self.calibrate(0, "--tensors", self.captured(), "--format", "kv-cache-legacy",
                                 "--json", "-", "--force", "--max-rows", str(TOKENS))  # fmt: skip
        (legacy,) = strict_json(outcome.out)["layers"]
        self.assertEqual(list(legacy["tensors"]), ["k"])
        read = decode(query, e4m3(t["kv_c"], k_scale), e4m3(t["k_pe"], k_scale), t["w_uv"])
        self.assertAlmostEqual(legacy["error"]["rms_rel"] / rms_rel(read, exact), 1, places=9)

    def test_a_scenario_its_saved_tensors_and_its_capture_come_to_the_same(self):
        self.write("m.json", json.dumps(SCENARIO))
        self.expect(0, "run", "m.json", "--backend", "REFERENCE", "--no-timing",
                    "--save-tensors", "saved")  # fmt: skip
        (file,) = (self.dir / "saved").iterdir()
        from_seed = self.layer_of("m.json")
        self.assertGreater(from_seed["error"]["rms_rel"], 0)
        self.assertEqual(self.layer_of("--tensors", file), from_seed)
        sparse = json.dumps({**SCENARIO, "mla": {**SCENARIO["mla"], "sparse_topk": 128}})
        self.write("m.json", sparse)
        self.assertNotEqual(self.layer_of("m.json")["error"], None)

    def test_the_file_sets_the_scales_of_a_run(self):
        self.write("m.json", json.dumps(SCENARIO))
        layer = self.layer_of("m.json", output="scales.json")
        found = self.results("m.json", "--backend", "MLA", "--set", "kv_cache.dtype=fp8", "--set",
                             "kv_cache.scale_file=scales.json", "--no-timing")  # fmt: skip
        (result,) = found.values()
        self.assertEqual(result["status"], "passed", result)
        self.assertIn(result["problem"]["kv_cache"]["k_scale"],
                      ([layer["tensors"]["k"]["scale"]], layer["tensors"]["k"]["scale"]))  # fmt: skip

    def test_a_joined_weight_is_split_and_a_latent_query_needs_none(self):
        t = tensors()
        joined = np.concatenate([t["w_uk"], t["w_uv"].transpose(0, 2, 1)], axis=1)
        split = self.layer_of("--tensors", self.captured())
        self.assertEqual(
            self.layer_of("--tensors", self.captured("j.safetensors", w_uk=None, w_uv=None,
                                                     kv_b_proj=joined.reshape(-1, LKV))),
            split)  # fmt: skip
        latent = self.captured("l.safetensors", w_uk=None, w_uv=None, query=latent_query(t))
        layer = self.layer_of("--tensors", latent)
        self.assertEqual(layer["tensors"]["k"], split["tensors"]["k"])
        self.assertEqual(layer["error"], None)
        self.assertEqual(layer["error_reason"], "there are no w_uk and w_uv")

    def test_latents_are_calibrated_for_a_cache_where_no_format_is_named(self):
        err = self.calibrate(0, "--tensors", self.captured(), output="named.json").err
        written = json.loads((self.dir / "named.json").read_text())
        self.assertEqual(list(written), ["model.layers.0.self_attn"], err)
        self.assertEqual(sorted(written["model.layers.0.self_attn"]),
                         ["k_scale", "q_scale", "v_scale"])  # fmt: skip

    def test_what_does_not_fit_is_refused_by_layer_and_tensor(self):
        bad = tensors()["kv_c"].copy()
        bad[3, 5] = np.nan
        for words, changes in (
            (["E-FORMAT", "self_attn", "tensor 'k_pe' is missing"], {"k_pe": None}),
            (["E-FORMAT", "expected w_uk and w_uv, or kv_b_proj"], {"w_uk": None}),
            (["E-SHAPE", "tensor w_uk"], {"w_uk": tensors()["w_uk"][:, :9]}),
            (["E-SHAPE", "tensor k_pe", "20 rows"], {"k_pe": tensors()["k_pe"][:7]}),
            (["E-VALUE", "tensor kv_c", "1 element is NaN or infinite"], {"kv_c": bad}),
            (["E-VALUE", "tensor query", "all zeros"], {"query": 0 * tensors()["query"]}),
            (["E-VALUE", "tensor kv_c", "all zeros"], {"kv_c": 0 * tensors()["kv_c"]}),
            (["E-VALUE", "tensor k_pe", "all zeros"], {"k_pe": 0 * tensors()["k_pe"]}),
            (["E-VALUE", "tensor w_uv", "NaN or infinite"], {"w_uv": np.inf * tensors()["w_uv"]}),
        ):
            with self.subTest(words):
                path = self.captured(**changes)
                err = self.calibrate(2, "--tensors", path, "--format", "kv-cache").err
                for word in words:
                    self.assertIn(word, err)
                self.assertFalse((self.dir / "scales.json").exists())
        for name in ("vllm-mm", "int8-value"):
            err = self.calibrate(2, "--tensors", self.captured(), "--format", name).err
            self.assertIn(f"expected --format kv-cache or kv-cache-legacy for latents, found {name}",
                          err)  # fmt: skip


if __name__ == "__main__":
    unittest.main()
