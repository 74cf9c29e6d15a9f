"""Block-sparse attention of FlashInfer's dumps, in which each KV head has a list of key blocks: every list
becomes a request with the query heads of its KV head. What is gathered is compared with numpy.

The definitions are written here after the schema of flashinfer/trace/templates, small enough for a CPU.
"""

import unittest

import numpy as np
from trace_forms_test import FormTest
from trace_sets import HEADS, KV_HEADS, SIZE, definition, plain

GROUP, PAGE, BLOCK = HEADS // KV_HEADS, 16, 128
FLAT = ["total_q", "num_qo_heads", "head_dim"]
BY_REQUEST = ["batch_size", "seq_len_q", "num_qo_heads", "head_dim"]
SIZES = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": SIZE}
NUMBER = plain(None)


def token_lists(decode=False):
    keys = plain(["total_k", "num_kv_heads", "head_dim"])
    inputs = {"q": plain(FLAT), "k": keys, "v": keys,
              "q2k_indices": plain(["num_kv_heads", "total_q", "topk"], "int32"),
              **({"seqlen_q": plain(None, "int32")} if decode else {"cu_seqlens_q": plain(["len"], "int32")}),
              "cu_seqlens_k": plain(["len"], "int32"), "causal": ((None, "int32"), {"optional": True}),
              "softmax_scale": NUMBER}  # fmt: skip
    axes = {**SIZES, "total_q": None, "total_k": None, "topk": 3, "len": None}
    return definition("msa_sparse" + ("_decode" if decode else ""), "msa_sparse", axes, inputs, {"output": FLAT})


def tables():
    query = ["num_tokens", "num_heads", "head_dim"]
    axes = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": SIZE, "page_size": PAGE, "kv_cache_dim": 2,
            **dict.fromkeys(("num_tokens", "num_pages", "batch_size", "max_pages_per_seq"))}  # fmt: skip
    inputs = {"query": plain(query),
              "kv_cache": plain(["num_pages", "kv_cache_dim", "num_kv_heads", "page_size", "head_dim"]),
              "block_tables": plain(["num_kv_heads", "batch_size", "max_pages_per_seq"], "int32"),
              "seq_lens": plain(["num_kv_heads", "batch_size"], "int32"), "bmm1_scale": NUMBER,
              "bmm2_scale": NUMBER, "enable_block_sparse_attention": plain(None, "bool")}  # fmt: skip
    return definition("trtllm_block_sparse", "trtllm_paged", axes, inputs, {"output": query})


def block_rows(cache):
    """As rows of a block-sparse matrix; with keys by request or in pages."""
    axes = {**SIZES, "q_block_size": 8, "kv_block_size": 16, "page_size": PAGE,
            **dict.fromkeys(("batch_size", "seq_len_q", "seq_len_kv", "rows", "num_block_indices", "words",
                             "num_pages", "num_page_offsets", "num_page_indices"))}  # fmt: skip
    keys = (["batch_size", "seq_len_kv", "num_kv_heads", "head_dim"] if cache == "k"
            else ["num_pages", "num_kv_heads", "page_size", "head_dim"])  # fmt: skip
    paged = {"paged_kv_indptr": plain(["num_page_offsets"], "int32"),
             "paged_kv_indices": plain(["num_page_indices"], "int32")}  # fmt: skip
    inputs = {"q": plain(BY_REQUEST), cache: plain(keys), cache.replace("k", "v"): plain(keys),
              "block_indptr": plain(["batch_size", "num_kv_heads", "rows"], "int32"),
              "block_indices": plain(["num_block_indices"], "int32"),
              "kv_valid_bits": ((["batch_size", "words"], "uint32"), {"optional": True}),
              "q_block_size": plain(None, "int32"), "kv_block_size": plain(None, "int32"), "sm_scale": NUMBER,
              **(paged if cache != "k" else {})}  # fmt: skip
    return definition("block_sparse_" + cache, "block_sparse", axes, inputs, {"output": BY_REQUEST}, "float16")


class HeadLists(FormTest):
    def check(self, of, axes, blob, lists, words, **numbers):
        """`lists`: for each list its queries [n, G, D], keys [m, D] and values [m, D]."""
        text = self.scenario(of, axes, blob, **numbers)
        self.assertIn(f"num_heads: {GROUP}, num_kv_heads: 1", text)
        for word in words:
            self.assertIn(word, text)
        counts = [(len(query), len(key)) for query, key, _ in lists]
        self.assertEqual(self.lengths(text), counts)
        found = self.tensors(of)
        for name, parts in (("query", [query for query, _, _ in lists]),
                            ("key", [key[:, None] for _, key, _ in lists]),
                            ("value", [value[:, None] for _, _, value in lists])):  # fmt: skip
            expected = np.concatenate(parts)
            np.testing.assert_array_equal(found[name].view(expected.dtype), expected)
        self.passes(of)
        return text

    def lengths(self, text):
        counts = []
        for line in text.splitlines():
            if "count:" in line:
                count, query, keys = (int(word.strip(",}")) for word in line.split()[2::2])
                counts += [(query, keys)] * count
        return counts

    def test_blocks_of_each_token_once_ascending_and_up_to_what_it_may_see(self):
        lengths, tokens = [300, 140], [3, 2]
        starts, firsts = np.cumsum([0, *tokens]), np.cumsum([0, *lengths])
        chosen = np.array([[[1, 0, 1], [2, -1, -1], [0, 2, 1], [1, -1, -1], [0, -1, -1]],
                           [[-1, -1, -1], [0, -1, -1], [2, 0, 9], [1, 0, -1], [1, 1, -1]]], np.int32)  # fmt: skip
        blob = {"q": self.draw(5, HEADS, SIZE), "k": self.draw(440, KV_HEADS, SIZE, seed=2),
                "v": self.draw(440, KV_HEADS, SIZE, seed=3), "q2k_indices": chosen,
                "cu_seqlens_q": starts.astype(np.int32), "cu_seqlens_k": firsts.astype(np.int32)}  # fmt: skip
        for causal in (0, 1):
            lists = []
            for head in range(KV_HEADS):
                for token in range(5):
                    b = int(token >= tokens[0])
                    place = lengths[b] - tokens[b] + token - starts[b]
                    seen = [key for key in range(lengths[b])
                            if key // BLOCK in chosen[head, token] and (not causal or key <= place)]  # fmt: skip
                    if seen:
                        rows = firsts[b] + np.array(seen)
                        lists.append((blob["q"][token : token + 1, head * GROUP : (head + 1) * GROUP],
                                      blob["k"][rows, head], blob["v"][rows, head]))  # fmt: skip
            self.assertEqual(len(lists), 9)
            self.check(token_lists(), {"total_q": 5, "total_k": 440, "len": 3}, blob, lists, ["scale: 0.25"],
                       causal=causal, softmax_scale=0.25)  # fmt: skip

    def test_decodes_of_equal_length_are_causal(self):
        blob = {"cu_seqlens_k": np.array([0, 130, 400], np.int32),
                "q2k_indices": np.array([[[1], [1], [0], [2]], [[0], [1], [0], [-1]]], np.int32)}  # fmt: skip
        of = token_lists(decode=True)
        of["axes"]["topk"]["value"] = 1
        text = self.scenario(of, {"total_q": 4, "total_k": 400, "len": 3}, blob, seqlen_q=2)
        # The first token of a request does not see the last key.
        self.assertEqual(self.lengths(text), [(1, 1), (1, 2), (1, 128), (1, 14), (1, 128), (1, 2), (1, 128)])
        self.passes(of)

    def test_a_table_of_pages_for_each_head(self):
        table = np.array([[[4, 0, 9], [6, 2, 5]], [[1, 3, 7], [8, 0, 2]]], np.int32)
        lengths = np.array([[21, 40], [7, 48]], np.int32)
        cache = self.draw(10, 2, KV_HEADS, PAGE, SIZE, seed=2)
        blob = {"query": self.draw(4, HEADS, SIZE), "kv_cache": cache, "block_tables": table, "seq_lens": lengths}
        lists = []
        for head in range(KV_HEADS):
            for b in range(2):
                keys, values = (np.concatenate(cache[table[head, b], plane, head])[: lengths[head, b]]
                                for plane in range(2))  # fmt: skip
                lists.append((blob["query"][2 * b : 2 * b + 2, head * GROUP : (head + 1) * GROUP], keys, values))
        self.check(tables(), {"num_tokens": 4, "num_pages": 10, "batch_size": 2, "max_pages_per_seq": 3}, blob,
                   lists, ["layout: HND", "block_size: 16", "scale: 0.125"], bmm1_scale=0.125)  # fmt: skip

    def blocks(self, cache):
        """Rows of blocks of 2 requests of 12 tokens over 40 keys; token 17 of the second does not count."""
        rows = [[[0, 2], [1]], [[2, 1], [0, 1]], [[1, 0], [2, 0]], [[0, 1], [1]]]  # by request, then head
        flat = [block for two in rows for row in two for block in row]
        offsets, at = [], 0
        for two in rows:
            offsets.append([at, at + len(two[0]), at + len(two[0]) + len(two[1])])
            at = offsets[-1][-1]
        valid = np.array([[0xFFFFFFFF, 0xFF], [0xFFFFFFFF - (1 << 17), 0xFF]], np.uint32)
        pages = np.array([4, 0, 6, 2, 5, 1], np.int32)
        shape = (2, 40, KV_HEADS, SIZE) if cache == "k" else (7, KV_HEADS, PAGE, SIZE)
        value = cache.replace("k", "v")
        half = lambda *shape: self.draw(*shape).astype(np.float16)
        blob = {"q": half(2, 12, HEADS, SIZE), cache: half(*shape), value: -half(*shape), "kv_valid_bits": valid,
                "block_indptr": np.array(offsets, np.int32).reshape(2, KV_HEADS, 3),
                "block_indices": np.array(flat, np.int32)}  # fmt: skip
        if cache != "k":
            blob |= {"paged_kv_indptr": np.array([0, 3, 6], np.int32), "paged_kv_indices": pages}
        lists = []
        for head in range(KV_HEADS):
            for b in range(2):
                for row, queries in enumerate((slice(0, 8), slice(8, 12))):
                    keys = [key for key in range(40 if cache == "k" else 48)
                            if key // 16 in rows[KV_HEADS * b + head][row] and key < 40 and (b, key) != (1, 17)]
                    take = lambda name: (blob[name][b, keys, head] if cache == "k" else np.stack(
                        [blob[name][pages[3 * b + key // PAGE], head, key % PAGE] for key in keys]))  # fmt: skip
                    lists.append((blob["q"][b, queries, head * GROUP : (head + 1) * GROUP], take(cache),
                                  take(value)))  # fmt: skip
        axes = {"batch_size": 2, "seq_len_q": 12, "seq_len_kv": 40, "rows": 3, "num_block_indices": len(flat),
                "words": 2, "num_pages": 7, "num_page_offsets": 3, "num_page_indices": 6}  # fmt: skip
        return axes, blob, lists

    def test_rows_of_a_block_sparse_matrix_over_keys_by_request(self):
        axes, blob, lists = self.blocks("k")
        self.check(block_rows("k"), axes, blob, lists, ["causal: false"], q_block_size=8, kv_block_size=16)

    def test_rows_of_a_block_sparse_matrix_over_pages(self):
        axes, blob, lists = self.blocks("k_cache")
        # The bits say that a request has 40 of the 48 tokens of its pages.
        self.check(block_rows("k_cache"), axes, blob, lists, ["causal: false", "layout: HND"], sm_scale=0.1)

    def test_without_lists_every_head_has_as_many_keys_as_it_may_choose(self):
        text = self.scenario(token_lists(), {"total_q": 4, "total_k": 1000, "len": 3}, causal=0)
        self.assertEqual(self.lengths(text), [(1, 384)] * 8)
        for name in ("q2k_indices", "cu_seqlens_q", "cu_seqlens_k"):
            self.assertIn(f"no values of {name}", self.notices)
        for of in (token_lists(), token_lists(decode=True), tables(), block_rows("k"), block_rows("k_cache")):
            _, notices = self.imported(of)
            self.assertIn("lengths are as equal as they can be", notices)

    def test_lists_that_contradict_the_rest_are_refused(self):
        axes = {"total_q": 5, "total_k": 440, "len": 3}
        chosen = np.zeros((KV_HEADS, 5, 3), np.int32)
        for blob, words in (
            ({"q2k_indices": chosen[:, :4]}, "q2k_indices: expected 30 values, found 24"),
            ({"cu_seqlens_k": np.array([0, 500, 440], np.int32)}, "expected offsets that rise to at most 440"),
        ):
            self.assertIn(words, self.refused(token_lists(), axes, blob))
        self.assertIn("equally many tokens of each of the 2 requests, found 5 tokens",
                      self.refused(token_lists(decode=True), axes, seqlen_q=2))  # fmt: skip
        axes = {"num_tokens": 4, "num_pages": 10, "batch_size": 2, "max_pages_per_seq": 3}
        self.assertIn("seq_lens: expected 0 to 48 keys, found 49",
                      self.refused(tables(), axes, {"seq_lens": np.array([[1, 49], [2, 3]], np.int32)}))  # fmt: skip
        axes, blob, _ = self.blocks("k")
        blob["block_indptr"] = blob["block_indptr"] * 2
        self.assertIn("block_indptr: expected offsets that rise to at most 14",
                      self.refused(block_rows("k"), axes, blob))  # fmt: skip


if __name__ == "__main__":
    unittest.main()
