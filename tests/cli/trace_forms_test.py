"""Definitions of FlashInfer's own entry points, in the form of its dumps: tables of pages, caches of keys and
values in one tensor and with heads first, joined latents, single requests, the indexer of sparse MLA. What
attnbench has no scenario for is refused with the reason.

Each is written here after the schema of flashinfer/trace/templates, small enough to run on a CPU.
"""

import unittest

import numpy as np
from trace_set_test import TraceTest
from trace_sets import (
    HEADS,
    KV_HEADS,
    SIZE,
    decode,
    decode_definition,
    definition,
    plain,
    safetensors,
    solution,
    workload,
)

from opinion import safetensors_file

PAGE, RANK, ROPE = 16, 64, 16
WIDTH = RANK + ROPE
VARIABLE = dict.fromkeys(("batch_size", "num_pages", "max_pages_per_seq", "num_tokens", "batch_size_plus_1"))
SIZES = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": SIZE, "page_size": PAGE, "kv_cache_dim": 2}
HND = ["num_pages", "num_kv_heads", "page_size", "head_dim"]
JOINED = plain(["num_pages", "kv_cache_dim", "num_kv_heads", "page_size", "head_dim"])
TABLE = plain(["batch_size", "max_pages_per_seq"], "int32")
NUMBER = plain(None)


def scalar(dtype):
    return plain(None, dtype)


def trtllm(name, more=(), dtype="float32", cache="float32", **sizes):
    inputs = {"query": plain(["num_tokens", "num_heads", "head_dim"]), "kv_cache": (JOINED[0] + (cache,), {}),
              "block_tables": TABLE, "seq_lens": plain(["batch_size"], "int32"), **dict(more),
              "max_seq_len": scalar("int32"), "bmm1_scale": NUMBER, "bmm2_scale": NUMBER}  # fmt: skip
    return definition(name, "trtllm_paged", {**VARIABLE, **SIZES, **sizes}, inputs,
                      {"output": ["num_tokens", "num_heads", "head_dim"]}, dtype)  # fmt: skip


def joined_mla(name, query, cache, more, op_type="mla_paged"):
    axes = {**VARIABLE, "q_len_per_request": None, "num_heads": HEADS, "head_dim_qk": WIDTH, "kv_lora_rank": RANK,
            "qk_rope_head_dim": ROPE, "kv_pad_dim": 1, "page_size": PAGE}  # fmt: skip
    inputs = {"query": plain(query), "kv_cache": plain(cache), "kv_lora_rank": scalar("int32"), **more}
    return definition(name, op_type, axes, inputs, {"output": [*query[:-1], "kv_lora_rank"]}, "float16")


MLA_TABLE = {"block_tables": TABLE, "seq_lens": plain(["batch_size"], "int32"), "bmm1_scale": NUMBER,
             "bmm2_scale": NUMBER}  # fmt: skip


def indexer(topk=128, heads=8, size=128):
    axes = {"batch_size": None, "num_pages": None, "max_num_pages": None, "num_index_heads": heads,
            "index_head_dim": size, "page_size": 64, "topk": topk, "kv_cache_num_heads": 1,
            "head_dim_with_scale": size + 4}  # fmt: skip
    return definition(
        f"dsa_topk_indexer_fp8_h{heads}_d{size}_topk{topk}_ps64", "dsa_paged", axes,
        {"q_index_fp8": plain(["batch_size", "num_index_heads", "index_head_dim"], "float8_e4m3fn"),
         "k_index_cache_fp8": plain(["num_pages", "page_size", "kv_cache_num_heads", "head_dim_with_scale"],
                                    "int8"),
         "weights": plain(["batch_size", "num_index_heads"], "float32"),
         "seq_lens": plain(["batch_size"], "int32"),
         "block_table": plain(["batch_size", "max_num_pages"], "int32")},
        {"topk_indices": ["batch_size", "topk"]}, "int32")  # fmt: skip


def packed(width, query):
    axes = {"num_tokens": None, "num_pages": None, "num_heads": 2, "head_dim_qk": query, "head_dim_v": 512,
            "topk": 128, "page_block_size": 64, "1": 1, "kv_bytes_per_token": width}  # fmt: skip
    return definition(
        f"sparse_mla_sm120_paged_h2_kvb{width}", "sparse_mla_paged_sm120", axes,
        {"q": plain(["num_tokens", "num_heads", "head_dim_qk"]),
         "kv_cache": plain(["num_pages", "page_block_size", "1", "kv_bytes_per_token"], "uint8"),
         "indices": plain(["num_tokens", "topk"], "int32"), "sm_scale": plain(None, "float32"),
         "topk_length": (["num_tokens"], "int32"), "attn_sink": (["num_heads"], "float32"),
         "extra_kv_cache": (["num_pages", "page_block_size", "1", "kv_bytes_per_token"], "uint8")}
        | {name: ((shape, dtype), {"optional": True}) for name, shape, dtype in
           (("topk_length", ["num_tokens"], "int32"), ("attn_sink", ["num_heads"], "float32"),
            ("extra_kv_cache", ["num_pages", "page_block_size", "1", "kv_bytes_per_token"], "uint8"))},
        {"output": ["num_tokens", "num_heads", "head_dim_v"]}, "bfloat16")  # fmt: skip


class FormTest(TraceTest):
    def draw(self, *shape, seed=1):
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def line(self, of, axes, blob=None, **numbers):
        if blob:
            self.set.write("a.safetensors", safetensors(blob))
        line = workload(of, "u", axes, None, "a.safetensors", blob or ())
        for name, value in numbers.items():
            line["workload"]["inputs"][name] = {"type": "scalar", "value": value}
        return line

    def scenario(self, of, axes, blob=None, **numbers):
        found, self.notices = self.imported(of, self.line(of, axes, blob, **numbers))
        return found["u"]

    def refused(self, of, axes, blob=None, **numbers):
        return self.imported(of, self.line(of, axes, blob, **numbers), code=2)[1]

    def tensors(self, of):
        return {name: tensor.raw for name, tensor in
                safetensors_file.read(self.dir / "out" / f"{of['name']}.u.safetensors")[0].items()}  # fmt: skip

    def passes(self, of, count=1, uuid="u"):
        results = self.results(f"out/{of['name']}.{uuid}.yaml", "--no-timing", "--device", "cpu")
        checked = [result for result in results.values() if result["status"] != "unsupported"]
        self.assertGreaterEqual(len(checked), count)
        for result in checked:
            self.assertEqual((result["status"], result["reasons"]), ("passed", []))


class Paged(FormTest):
    def test_a_table_of_pages_and_a_cache_of_keys_and_values_with_heads_first(self):
        of = trtllm("trtllm_batch_decode_h4")
        lengths, pages = [21, 40], np.array([[4, 0, 9], [6, 2, 5]], np.int32)
        blob = {"query": self.draw(2, HEADS, SIZE), "kv_cache": self.draw(10, 2, KV_HEADS, PAGE, SIZE, seed=2),
                "block_tables": pages, "seq_lens": np.array(lengths, np.int32)}  # fmt: skip
        axes = {"num_tokens": 2, "num_pages": 10, "batch_size": 2, "max_pages_per_seq": 3}
        text = self.scenario(of, axes, blob, bmm1_scale=0.2, bmm2_scale=1)
        self.assertIn("scale: 0.2", text)
        self.assertIn("kv_cache: {block_size: 16, layout: HND}", text)
        self.assertIn("seq_len: 21}\n  - {count: 1, query_len: 1, seq_len: 40}", text)
        found = self.tensors(of)
        for plane, name in enumerate(("key", "value")):
            rows = [blob["kv_cache"][pages[b, i // PAGE], plane, :, i % PAGE] for b in range(2)
                    for i in range(lengths[b])]  # fmt: skip
            np.testing.assert_array_equal(found[name], rows)
        self.passes(of)
        self.assertIn("bmm2_scale: expected 1 where values are not fp8, found 2",
                      self.refused(of, axes, blob, bmm2_scale=2))  # fmt: skip
        short = {**blob, "seq_lens": np.array([21, 49], np.int32)}
        self.assertIn("block_tables: request 1 has 49 keys and pages for 48", self.refused(of, axes, short))

    def test_scales_of_an_fp8_cache_are_those_of_scores_and_output(self):
        of = trtllm("trtllm_batch_decode_fp8", dtype="bfloat16", cache="float8_e4m3fn")
        axes = {"num_tokens": 4, "num_pages": 6, "batch_size": 2, "max_pages_per_seq": 3}
        text = self.scenario(of, axes, bmm1_scale=0.05, bmm2_scale=0.5)
        self.assertIn("dtype: fp8_e4m3, k_scale: 1, v_scale: 0.5", text)
        self.assertIn("{count: 2, query_len: 2, seq_len: 48}", text)
        self.assertIn("does not say what several new tokens of a request see: taken as causal", self.notices)
        self.passes(of)
        self.assertIn("expected equally many tokens of each of the 2 requests, found 3 tokens",
                      self.refused(of, {**axes, "num_tokens": 3}))  # fmt: skip

    def test_prompts_with_offsets_or_lengths_of_queries(self):
        of = trtllm("trtllm_batch_context_h4", {"cum_seq_lens_q": plain(["batch_size_plus_1"], "int32"),
                                                "cum_seq_lens_kv": plain(["batch_size_plus_1"], "int32")})
        axes = {"num_tokens": 9, "num_pages": 6, "batch_size": 2, "max_pages_per_seq": 3, "batch_size_plus_1": 3}
        blob = {"cum_seq_lens_q": np.array([0, 2, 9], np.int32), "seq_lens": np.array([40, 7], np.int32)}
        text = self.scenario(of, axes, blob)
        self.assertIn("query_len: 2, seq_len: 40}\n  - {count: 1, query_len: 7, seq_len: 7}", text)
        self.assertEqual(self.notices, "")
        self.passes(of)
        of = definition(
            "cudnn_batch_prefill_h4", "cudnn_paged", {**VARIABLE, **SIZES},
            {"q": plain(["num_tokens", "num_heads", "head_dim"]), "k_cache": plain(HND), "v_cache": plain(HND),
             "scale": NUMBER, "actual_seq_lens_q": plain(["batch_size"], "int32"),
             "actual_seq_lens_kv": plain(["batch_size"], "int32"), "block_tables": TABLE,
             "causal": scalar("int32")},
            {"output": ["num_tokens", "num_heads", "head_dim"]}, "bfloat16")  # fmt: skip
        blob = {"actual_seq_lens_q": np.array([7, 2], np.int32), "actual_seq_lens_kv": np.array([7, 40], np.int32)}
        text = self.scenario(of, axes, blob, causal=0, scale=0.3)
        self.assertIn("query_len: 7, seq_len: 7}\n  - {count: 1, query_len: 2, seq_len: 40}", text)
        self.assertIn("scale: 0.3, causal: false", text)
        self.passes(of)

    def test_aliases_of_page_lists_with_a_query_by_request(self):
        sizes = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": SIZE, "page_size": PAGE}
        variable = ("batch_size", "num_pages", "len_indptr", "num_kv_indices", "kv_planes", "seq_len_q")
        of = definition(
            "attention_ts_decode", "gqa_paged", {**dict.fromkeys(variable), **sizes},
            {"q": plain(["batch_size", "seq_len_q", "num_qo_heads", "head_dim"]),
             "k_cache": plain(HND), "v_cache": plain(HND), "paged_kv_indptr": plain(["len_indptr"], "int32"),
             "paged_kv_indices": plain(["num_kv_indices"], "int32"),
             "paged_kv_last_page_len": plain(["batch_size"], "int32"), "window_left": scalar("int32"),
             "mask_type": scalar("string"), "bmm1_scale": NUMBER},
            {"output": ["batch_size", "seq_len_q", "num_qo_heads", "head_dim"]})  # fmt: skip
        blob = {"q": self.draw(2, 3, HEADS, SIZE), "k_cache": self.draw(4, KV_HEADS, PAGE, SIZE, seed=2),
                "v_cache": self.draw(4, KV_HEADS, PAGE, SIZE, seed=3),
                "paged_kv_indptr": np.array([0, 2, 3], np.int32), "paged_kv_indices": np.array([3, 0, 2], np.int32),
                "paged_kv_last_page_len": np.array([5, 16], np.int32)}  # fmt: skip
        axes = {"batch_size": 2, "num_pages": 4, "len_indptr": 3, "num_kv_indices": 3, "seq_len_q": 3}
        text = self.scenario(of, axes, blob, window_left=7)
        self.assertIn("sliding_window: 8", text)
        self.assertIn("query_len: 3, seq_len: 21}\n  - {count: 1, query_len: 3, seq_len: 16}", text)
        found = self.tensors(of)
        np.testing.assert_array_equal(found["query"], blob["q"].reshape(6, HEADS, SIZE))
        np.testing.assert_array_equal(found["key"][16], blob["k_cache"][0, :, 0])
        self.passes(of)

    def test_xqa_has_a_beam_and_tokens_first(self):
        nhd = [HND[0], HND[2], HND[1], HND[3]]
        of = definition(
            "xqa_h4", "xqa", {**VARIABLE, **SIZES, "beam_width": 1},
            {"q": plain(["batch_size", "beam_width", "num_heads", "head_dim"]), "k_cache": plain(nhd),
             "v_cache": plain(nhd), "page_table": TABLE, "seq_lens": plain(["batch_size", "beam_width"], "uint32"),
             "output": plain(["batch_size", "beam_width", "num_heads", "head_dim"])},
            {"output": ["batch_size", "beam_width", "num_heads", "head_dim"]})  # fmt: skip
        blob = {"seq_lens": np.array([[30], [17]], np.uint32)}
        text = self.scenario(of, {"batch_size": 2, "num_pages": 4, "max_pages_per_seq": 2}, blob)
        self.assertIn("kv_cache: {block_size: 16}\nbatch:\n  - {count: 1, query_len: 1, seq_len: 30}", text)
        self.passes(of)

    def test_a_cache_without_names_of_axes_has_tokens_first(self):
        of = decode_definition(16)
        of["axes"]["tokens"] = of["axes"].pop("page_size")
        for name in ("k_cache", "v_cache"):  # heads before tokens, and nothing says so
            of["inputs"][name]["shape"] = ["num_pages", "num_kv_heads", "tokens", "head_dim"]
        self.assertIn(
            f"k_cache: expected a number of KV heads that divides the {HEADS} query heads, found 16 in axis 2",
            self.imported(of, code=2)[1])  # fmt: skip


class Single(FormTest):
    axes = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": SIZE, "qo_len": None, "kv_len": None}
    keys = plain(["kv_len", "num_kv_heads", "head_dim"])

    def test_one_decode_and_one_prompt_which_is_not_causal_unless_it_says_so(self):
        of = definition("single_decode_h4", "single_decode", self.axes,
                        {"q": plain(["num_qo_heads", "head_dim"]), "k": self.keys, "v": self.keys},
                        {"output": ["num_qo_heads", "head_dim"]})  # fmt: skip
        blob = {"q": self.draw(HEADS, SIZE), "k": self.draw(33, KV_HEADS, SIZE),
                "v": self.draw(33, KV_HEADS, SIZE, seed=2)}  # fmt: skip
        self.assertIn("{count: 1, query_len: 1, seq_len: 33}", self.scenario(of, {"kv_len": 33}, blob))
        np.testing.assert_array_equal(self.tensors(of)["query"], blob["q"][None])
        self.passes(of)
        of = definition("single_prefill_h4", "single_prefill", self.axes,
                        {"q": plain(["qo_len", "num_qo_heads", "head_dim"]), "k": self.keys, "v": self.keys},
                        {"output": ["qo_len", "num_qo_heads", "head_dim"]}, "bfloat16")  # fmt: skip
        text = self.scenario(of, {"qo_len": 5, "kv_len": 33})
        self.assertIn("{count: 1, query_len: 5, seq_len: 33}", text)
        self.assertIn("causal: false", text)
        self.passes(of)
        self.assertNotIn("causal", self.scenario(of, {"qo_len": 5, "kv_len": 33}, causal=1))
        of["op_type"] = "gqa_ragged"  # a wrapper whose offsets are in plan()
        self.assertNotIn("causal", self.scenario(of, {"qo_len": 5, "kv_len": 33}))

    def test_prompts_of_equal_length_in_fp8(self):
        shape = plain(["batch_size", "seq_len", "num_heads", "head_dim"], "float8_e4m3fn")
        of = definition(
            "fmha_v2_prefill_sm120_h4", "trtllm_paged",
            {"batch_size": None, "seq_len": None, "num_heads": HEADS, "head_dim": SIZE},
            {"query": shape, "key": shape, "value": shape,
             "out": plain(["batch_size", "seq_len", "num_heads", "head_dim"]), "scale_softmax": NUMBER,
             "scale_bmm1": NUMBER, "scale_bmm2": NUMBER, "causal": scalar("bool")},
            {"out": ["batch_size", "seq_len", "num_heads", "head_dim"]}, "bfloat16")  # fmt: skip
        text = self.scenario(of, {"batch_size": 2, "seq_len": 20}, scale_softmax=0.1, scale_bmm2=0.25)
        self.assertIn("query_dtype: fp8_e4m3, scale: 0.1", text)
        self.assertIn("kv_cache: {dtype: fp8_e4m3, k_scale: 1, v_scale: 0.25}", text)
        self.assertIn("{count: 2, query_len: 20, seq_len: 20}", text)
        self.passes(of)

    def test_prompts_of_mla_before_absorption_by_their_cumulative_lengths(self):
        axes = {"num_q_tokens": None, "num_kv_tokens": None, "batch_size_plus_1": None, "num_heads": HEADS,
                "head_dim_qk": 96, "head_dim_v": SIZE}  # fmt: skip
        of = definition(
            "trtllm_ragged_attention_deepseek", "trtllm_paged", axes,
            {"query": plain(["num_q_tokens", "num_heads", "head_dim_qk"]),
             "key": plain(["num_kv_tokens", "num_heads", "head_dim_qk"]),
             "value": plain(["num_kv_tokens", "num_heads", "head_dim_v"]), "bmm1_scale": NUMBER,
             "cum_seq_lens_q": plain(["batch_size_plus_1"], "int32"),
             "cum_seq_lens_kv": plain(["batch_size_plus_1"], "int32"), "is_causal": scalar("bool")},
            {"output": ["num_q_tokens", "num_heads", "head_dim_v"]})  # fmt: skip
        blob = {"cum_seq_lens_q": np.array([0, 4, 9], np.int32), "cum_seq_lens_kv": np.array([0, 4, 20], np.int32)}
        text = self.scenario(of, {"num_q_tokens": 9, "num_kv_tokens": 20, "batch_size_plus_1": 3}, blob)
        self.assertIn("head_size: 96, v_head_size: 64", text)
        self.assertIn("query_len: 4, seq_len: 4}\n  - {count: 1, query_len: 5, seq_len: 16}", text)


class Latents(FormTest):
    def test_both_parts_in_one_tensor_are_split(self):
        of = joined_mla("trtllm_batch_decode_mla", ["batch_size", "q_len_per_request", "num_heads", "head_dim_qk"],
                        ["num_pages", "kv_pad_dim", "page_size", "head_dim_qk"], MLA_TABLE)  # fmt: skip
        of["inputs"]["kv_cache"]["dtype"] = of["inputs"]["query"]["dtype"] = "float32"
        pages = np.array([[3, 1], [0, 2]], np.int32)
        blob = {"query": self.draw(2, 1, HEADS, WIDTH), "kv_cache": self.draw(4, 1, PAGE, WIDTH, seed=2),
                "block_tables": pages, "seq_lens": np.array([17, 32], np.int32)}  # fmt: skip
        axes = {"batch_size": 2, "q_len_per_request": 1, "num_pages": 4, "max_pages_per_seq": 2}
        text = self.scenario(of, axes, blob, bmm1_scale=0.1)
        self.assertIn(f"mla: {{kv_lora_rank: {RANK}, qk_rope_head_dim: {ROPE}, ", text)
        found = self.tensors(of)
        both = np.concatenate([found["kv_c"], found["k_pe"]], -1)
        np.testing.assert_array_equal(both[16], blob["kv_cache"][1, 0, 0])
        np.testing.assert_array_equal(both[17:33], blob["kv_cache"][0, 0])
        np.testing.assert_array_equal(found["query"], blob["query"][:, 0])

    def test_each_form_of_query_and_cache_passes(self):
        by_request = ["batch_size", "q_len_per_request", "num_heads", "head_dim_qk"]
        flat = ["num_tokens", "num_heads", "head_dim_qk"]
        padded = ["num_pages", "kv_pad_dim", "page_size", "head_dim_qk"]
        offsets = {"cum_seq_lens_q": plain(["batch_size_plus_1"], "int32")}
        axes = {"batch_size": 2, "num_pages": 4, "max_pages_per_seq": 2, "num_tokens": 5, "batch_size_plus_1": 3,
                "q_len_per_request": 2}  # fmt: skip
        for name, query, cache, more, words in (
            ("dense", by_request, padded, MLA_TABLE, "{count: 2, query_len: 2, seq_len: 32}"),
            ("ragged", flat, padded, {**MLA_TABLE, **offsets}, "query_len: 3, seq_len: 32}"),
            ("cute_dsl", by_request, [padded[0], *padded[2:]], MLA_TABLE, "{count: 2, query_len: 2, seq_len: 32}"),
            ("planned", by_request, [padded[0], *padded[2:]], {"bmm1_scale": NUMBER}, "seq_len: 32}"),
        ):
            of = joined_mla("mla_" + name, query, cache, more)
            self.assertIn(words, self.scenario(of, axes), name)
            self.passes(of)

    def test_bytes_of_sparse_latents_are_the_formats_of_flashmla(self):
        for width, query, words in ((656, 576, "dtype: fp8_ds_mla"), (584, 512, "dtype: fp8_model1_mla")):
            of = packed(width, query)
            blob = {"topk_length": np.array([90, 128, 100], np.int32)}
            text = self.scenario(of, {"num_tokens": 3, "num_pages": 4}, blob)
            self.assertIn(words, text)
            self.assertIn("sparse_topk: 128, sparse: {topk_length: [90, 128, 100]}", text)
            self.assertIn("{count: 3, query_len: 1, seq_len: 128}", text)
            self.passes(of)
        self.assertIn("expected 656 (fp8_ds_mla) or 584 (fp8_model1_mla) bytes a token, found 600",
                      self.refused(packed(600, 512), {"num_tokens": 3, "num_pages": 4}))  # fmt: skip
        blob = {"extra_kv_cache": np.zeros((4, 64, 1, 146), np.int32)}
        self.assertIn("extra_kv_cache: a second cache is not imported",
                      self.refused(of, {"num_tokens": 3, "num_pages": 4}, blob))  # fmt: skip


class Indexer(FormTest):
    def test_it_becomes_the_operations_that_it_consists_of(self):
        of = indexer()
        blob = {"seq_lens": np.array([300, 70, 1], np.int32)}
        text = self.scenario(of, {"batch_size": 3, "num_pages": 20, "max_num_pages": 5}, blob)
        self.assertIn("mla: {sparse_topk: 128, index_n_heads: 8, index_ue8m0: false}", text)
        self.assertIn("block_size: 64", text)
        self.assertIn("query_len: 1, seq_len: 300}\n  - {count: 1, query_len: 1, seq_len: 70}", text)
        results = self.results(f"out/{of['name']}.u.yaml", "--no-timing", "--device", "cpu")
        self.assertEqual({(r["case"].split("=")[-1], r["status"]) for r in results.values()
                          if r["status"] != "unsupported"},
                         {("index_logits", "passed"), ("index_topk", "passed")})  # fmt: skip

    def test_without_lengths_its_requests_fill_their_pages(self):
        text = self.scenario(indexer(), {"batch_size": 3, "num_pages": 20, "max_num_pages": 5})
        self.assertIn("{count: 3, query_len: 1, seq_len: 320}", text)
        self.assertIn("no values of seq_lens", self.notices)

    def test_other_sizes_are_refused(self):
        axes = {"batch_size": 3, "num_pages": 20, "max_num_pages": 5}
        self.assertIn("topk: expected a multiple of 128, found 100", self.refused(indexer(topk=100), axes))
        self.assertIn("expected index heads of 128 elements and keys of 132 bytes, found 64 and 68",
                      self.refused(indexer(size=64), axes))  # fmt: skip


class Refused(FormTest):
    def test_attention_of_other_kinds_is_refused_with_the_reason(self):
        flat = plain(["n", "h", "d"])
        qkv = {"q": flat, "k": flat, "v": flat}
        topk = plain(["batch_size", "q_len_per_request", "sparse_mla_top_k"], "int32")
        for op_type, inputs, words in (
            ("msa_proxy", {"q": flat, "k": flat}, "scores of key blocks for a later choice"),
            ("block_sparse", qkv, "block-sparse attention whose mask is an argument of plan()"),
            ("mla_paged", {"query": flat, "kv_cache": flat, "block_tables": topk}, "list keys or pages of 16"),
            ("pod", {"q_p": flat, "k_p": flat, "v_p": flat}, "a prefill and decodes in one kernel"),
            ("cascade_attention", {"q": flat, "kv_cache": JOINED}, "a cascade whose levels are arguments of plan()"),
            ("gqa_paged", {"q": flat, "kv_cache": flat}, "the sizes of its cache are arguments of plan()"),
            ("trtllm_paged", {"qkv": flat, "seq_lens": flat}, "whose form (input_layout) the definition does not say"),
            ("gdn", {**qkv, "state": flat}, "expected the inputs q_nope, q_pe"),
        ):  # fmt: skip
            axes = {name: None for name in ("n", "h", "d", "m", "q_len_per_request", "sparse_mla_top_k")}
            of = definition("other", op_type, {**VARIABLE, **SIZES, **axes}, inputs, {"output": ["n", "h", "d"]})
            err = self.imported(of, code=2)[1]
            self.assertIn("other is no attention that can be imported: ", err)
            self.assertIn(words, err, op_type)


class Judged(FormTest):
    def test_solutions_run_where_their_inputs_can_be_handed_over_and_it_is_said_where_not(self):
        paged = decode_definition(16)
        paged["name"] = "gqa_paged_aliases"
        for name in ("kv_indptr", "kv_indices"):
            paged["inputs"]["paged_" + name] = paged["inputs"].pop(name)
        order = ["q", "k_cache", "v_cache", "paged_kv_indptr", "paged_kv_indices", "sm_scale", "return_lse"]
        paged["inputs"] = {name: paged["inputs"][name] for name in order}
        axes = {"batch_size": 3, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7}
        self.set.add(paged, [workload(paged, "one", axes, 0.2)], [solution("aliases", paged, decode())])
        table = trtllm("trtllm_batch_decode_h4")
        sizes = {"num_tokens": 2, "num_pages": 10, "batch_size": 2, "max_pages_per_seq": 3}
        self.set.add(table, [workload(table, "two", sizes)], [solution("by_table", table, decode())])
        results = self.run_set()
        self.assertEqual(results["aliases"]["status"], "passed")
        self.assertNotIn("by_table", results)
        err = self.expect(0, "run", "--trace-set", "set", "--device", "cpu", "--no-timing").err
        self.assertIn("trtllm_batch_decode_h4: its solutions are not run", err)

    def test_an_indexer_of_a_set_runs_beside_its_attention(self):
        of = indexer()
        self.set.add(of, [workload(of, "one", {"batch_size": 3, "num_pages": 20, "max_num_pages": 5})])
        out = self.expect(0, "run", "--trace-set", "set", "--device", "cpu", "--no-timing").out
        self.assertIn("index_topk", out)
        self.assertIn("2 passed", out)


if __name__ == "__main__":
    unittest.main()
