#!/usr/bin/env python3
"""Tests of second_opinion.py: files of saved tensors, right ones and ones with faults."""

import json
import math
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from opinion import checks, safetensors_file
from opinion import number_formats as formats
from opinion.errors import Disagreement, FormatError
from opinion.rules import Rules
from opinion.safetensors_file import StoredTensor

SCRIPT = Path(__file__).with_name("second_opinion.py")


class SyntheticFile:
    """A decoder case with a paged cache, built with scalar loops and explicit byte offsets."""

    BLOCK, HK, D, G = 16, 2, 8, 2
    LENS = ((1, 20), (3, 5), (2, 33))
    SCALE = np.float32(0.3)
    TABLE = np.array([[3, 6, -1], [0, -1, -1], [5, 1, 4]], np.int32)
    NUM_BLOCKS = 7

    def __init__(self, backend, layout, cache_dtype, change_values=lambda x: x):
        self.backend, self.layout, self.cache_dtype = backend, layout, cache_dtype
        rng = np.random.default_rng(7)
        tokens, keys = sum(q for q, _ in self.LENS), sum(s for _, s in self.LENS)

        def draw(*shape):
            return formats.encode_bf16(rng.standard_normal(shape))

        self.query = draw(tokens, self.HK * self.G, self.D)
        self.key, value = draw(keys, self.HK, self.D), draw(keys, self.HK, self.D)
        self.value = formats.encode_bf16(change_values(formats.decode("BF16", value)))
        self.pth = cache_dtype.endswith("per_token_head")
        self.tensors = self._tensors()

    def _stored(self, x):
        """Codes, scales [n, Hk] and the values read back, all from the scalar rules."""
        read = formats.decode("BF16", x)
        if self.cache_dtype == "auto":
            return x, None, read
        if self.pth:
            to_int8 = self.cache_dtype == "int8_per_token_head"
            codes, scales = formats.quantise_per_token_head(read, to_int8)
            name = "I8" if to_int8 else "F8_E4M3"
            return codes, scales, formats.decode(name, codes) * scales[..., None]
        encode, name = formats.encode_e4m3, "F8_E4M3"
        if self.cache_dtype == "fp8_e5m2":
            encode, name = formats.encode_e5m2, "F8_E5M2"
        codes = encode(read / self.SCALE)
        return codes, None, formats.decode(name, codes) * self.SCALE

    def _offset(self, plane, block, row, head):
        width = self.D + 4 * self.pth
        outer = plane * self.NUM_BLOCKS + block
        if self.backend == "TRITON_ATTN":
            outer = block * 2 + plane
        if self.backend == "FLASH_ATTN_IX" or self.layout == "HND":
            return ((outer * self.HK + head) * self.BLOCK + row) * width
        return ((outer * self.BLOCK + row) * self.HK + head) * width

    def _cache(self, codes, scales):
        width = self.D + 4 * self.pth
        element = codes[0].dtype if codes[0].dtype != np.int8 else np.dtype("u1")
        flat = np.full(2 * self.NUM_BLOCKS * self.BLOCK * self.HK * width, 0xFF, element)
        for plane in (0, 1):
            row = 0
            for b, (_, seq_len) in enumerate(self.LENS):
                for p in range(seq_len):
                    for head in range(self.HK):
                        block = int(self.TABLE[b, p // self.BLOCK])
                        at = self._offset(plane, block, p % self.BLOCK, head)
                        flat[at : at + self.D] = codes[plane][row, head].view(element)
                        if self.pth:
                            bits = np.array([scales[plane][row, head]], "<f4").view("u1")
                            flat[at + self.D : at + self.D + 4] = bits
                    row += 1
        heads_first = self._offset(0, 0, 1, 0) == width
        inner = (self.HK, self.BLOCK) if heads_first else (self.BLOCK, self.HK)
        outer = (self.NUM_BLOCKS, 2) if self.backend == "TRITON_ATTN" else (2, self.NUM_BLOCKS)
        name = "BF16" if element == np.uint16 else "U8"
        return StoredTensor(name, flat.reshape(outer + inner + (width,)))

    def _attend(self, query, keys, values):
        """Causal attention by scalar loops; output [T, H, D] and lse [H, T]."""
        query, keys, values = (x.astype(float) for x in (query, keys, values))
        heads = self.HK * self.G
        output, lse = np.zeros((len(query), heads, self.D)), np.zeros((heads, len(query)))
        token = start = 0
        for query_len, seq_len in self.LENS:
            for i in range(query_len):
                for head in range(heads):
                    kv, last = head // self.G, seq_len - query_len + i
                    logits = [
                        math.fsum(query[token, head] * keys[start + j, kv]) / math.sqrt(self.D)
                        for j in range(last + 1)
                    ]
                    total = sum(math.exp(x) for x in logits)
                    for j, x in enumerate(logits):
                        output[token, head] += math.exp(x) / total * values[start + j, kv]
                    lse[head, token] = math.log(total)
                token += 1
            start += seq_len
        return output, lse

    def _tensors(self):
        (kc, ks, k), (vc, vs, v) = self._stored(self.key), self._stored(self.value)
        query, read_query = StoredTensor("BF16", self.query), formats.decode("BF16", self.query)
        if self.cache_dtype.startswith("fp8") and self.backend == "TRITON_ATTN" and not self.pth:
            k, v = formats.round_to("bfloat16", k), formats.round_to("bfloat16", v)
        quantised_query = self.cache_dtype == "fp8" and self.backend == "FLASH_ATTN"
        if quantised_query:
            query = StoredTensor("F8_E4M3", formats.encode_e4m3(read_query / self.SCALE))
            read_query = formats.decode("F8_E4M3", query.raw) * self.SCALE
        output, lse = self._attend(read_query, k, v)
        slots = [
            self.TABLE[b, p // self.BLOCK] * self.BLOCK + p % self.BLOCK
            for b, (q, s) in enumerate(self.LENS)
            for p in range(s - q, s)
        ]
        starts = np.cumsum([0] + [q for q, _ in self.LENS])
        tensors = {
            "reference_output": StoredTensor("F64", output),
            "reference_lse": StoredTensor("F64", lse),
            "query_start_loc": StoredTensor("I32", starts),
            "seq_lens": StoredTensor("I32", np.array([s for _, s in self.LENS])),
            "checked_rows": StoredTensor("I32", np.arange(len(output))),
            "slot_mapping": StoredTensor("I64", np.array(slots)),
            "block_table": StoredTensor("I32", self.TABLE),
            "lse": StoredTensor("F32", lse),
            "query": query,
            "key": StoredTensor("BF16", self.key),
            "value": StoredTensor("BF16", self.value),
            "output": StoredTensor("BF16", formats.encode_bf16(output)),
            "kv_cache": self._cache((kc, vc), (ks, vs)),
        }
        if self.cache_dtype != "auto":
            tensors["key_dequantized"] = StoredTensor("F32", k)
            tensors["value_dequantized"] = StoredTensor("F32", v)
        if quantised_query:
            tensors["query_dequantized"] = StoredTensor("F32", read_query)
        return tensors

    def write(self, path, metadata=None, **sections):
        problem = {
            "attention": {"type": "decoder", "head_size": self.D, "dtype": "bfloat16"},
            "kv_cache": {
                "dtype": self.cache_dtype,
                "layout": self.layout,
                "block_size": self.BLOCK,
                "k_scale": 0.3,
                "v_scale": 0.3,
                "q_scale": 0.3,
            },
            **sections,
        }
        metadata = {"problem": json.dumps(problem), "backend": self.backend, **(metadata or {})}
        safetensors_file.write(path, self.tensors, metadata)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name) / "case.safetensors"

    def file(self, backend="TRITON_ATTN", layout="NHD", cache_dtype="int8_per_token_head"):
        return SyntheticFile(backend, layout, cache_dtype)

    def damage(self, name, position, change):
        file = self.file()
        raw = file.tensors[name].raw.copy()
        raw = raw.astype(safetensors_file.STORAGE[file.tensors[name].dtype])
        raw[position] = change(raw[position])
        file.tensors[name].raw = raw
        file.write(self.path)

    def assert_disagrees(self, words):
        with self.assertRaises(Disagreement) as caught:
            checks.check_file(self.path)
        self.assertIn(words, str(caught.exception))

    def test_every_layout_and_cache_format_is_read_back(self):
        cases = [
            (backend, layout, "auto")
            for backend in ("FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN")
            for layout in ("NHD", "HND")
        ]
        quantised = ("fp8", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head")
        cases += [("TRITON_ATTN", layout, d) for layout in ("NHD", "HND") for d in quantised]
        cases += [("FLASH_ATTN", layout, "fp8") for layout in ("NHD", "HND")]
        for case in cases:
            with self.subTest(case):
                self.file(*case).write(self.path)
                figures = checks.check_file(self.path)
                self.assertEqual(figures["rows"], 6)

    def test_a_wrong_output_is_found(self):
        self.damage("output", (2, 1, 3), lambda bits: bits ^ 0x0100)
        self.assert_disagrees("output[2, 1, 3]")

    def test_a_wrong_lse_is_found(self):
        self.damage("lse", (1, 4), lambda x: x + 0.01)
        self.assert_disagrees("lse[1, 4]")

    def test_a_base_2_lse_is_found(self):
        file = self.file()
        file.tensors["lse"].raw = file.tensors["lse"].raw / math.log(2)
        file.write(self.path)
        self.assert_disagrees("lse")

    def test_a_reference_that_is_off_by_a_millionth_is_found(self):
        self.damage("reference_output", (5, 3, 0), lambda x: x + 1e-6)
        self.assert_disagrees("reference_output[5, 3, 0]")

    def test_one_wrong_cache_byte_is_found(self):
        slot = self.file().TABLE[2, 1], 0, 2, 1, 3
        self.damage("kv_cache", slot, lambda byte: byte ^ 1)
        self.assert_disagrees("kv_cache[key]")

    def test_a_wrong_scale_in_a_cache_cell_is_found(self):
        slot = self.file().TABLE[2, 1], 1, 2, 1, SyntheticFile.D
        self.damage("kv_cache", slot, lambda byte: byte ^ 1)
        self.assert_disagrees("kv_cache[value scale]")

    def test_garbage_in_unused_cache_cells_does_not_matter(self):
        self.damage("kv_cache", (2, 0, 0, 0, 0), lambda byte: byte ^ 0x5A)
        checks.check_file(self.path)

    def test_a_wrong_dequantised_value_is_found(self):
        self.damage("value_dequantized", (7, 0, 0), lambda x: np.nextafter(x, np.float32(9)))
        self.assert_disagrees("value_dequantized[7, 0, 0]")

    def test_a_wrong_slot_is_found(self):
        self.damage("slot_mapping", (3,), lambda slot: slot + 1)
        self.assert_disagrees("slot_mapping[3]")

    def test_nan_in_the_output_is_found(self):
        self.damage("output", (0, 0, 0), lambda bits: 0x7FC0)
        self.assert_disagrees("NaN or infinity")

    def test_unchecked_rows_must_be_nan_in_the_reference(self):
        file = self.file()
        file.tensors["checked_rows"].raw = np.array([0, 2, 5])
        file.write(self.path)
        self.assert_disagrees("not checked")
        file.tensors["reference_output"].raw[[1, 3, 4]] = np.nan
        file.tensors["reference_lse"].raw[:, [1, 3, 4]] = np.nan
        file.write(self.path)
        self.assertEqual(checks.check_file(self.path)["rows"], 3)

    def test_the_command_counts_files_and_sets_the_exit_status(self):
        def run(*arguments):
            command = [sys.executable, str(SCRIPT), *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.returncode, (done.stdout.splitlines() or [""])[-1]

        self.file().write(self.path)
        self.assertEqual(run(self.path), (0, "1 passed, 0 failed"))
        file = self.file()
        file.tensors["lse"].raw = file.tensors["lse"].raw + 1
        file.write(Path(self.folder.name) / "wrong.safetensors")
        self.assertEqual(run(self.folder.name), (1, "1 passed, 1 failed"))
        (Path(self.folder.name) / "broken.safetensors").write_bytes(b"not a tensor file")
        self.assertEqual(run(self.folder.name), (2, "1 passed, 2 failed"))
        self.assertEqual(run()[0], 2)

    def test_malformed_files_are_refused(self):
        self.file().write(self.path)
        good = self.path.read_bytes()
        for name, data in {
            "empty": b"",
            "cut": good[:-1],
            "longer": good + b"\0",
            "header length": struct.pack("<Q", 1 << 60) + good[8:],
            "not json": struct.pack("<Q", 4) + b"oops",
            "unknown dtype": good.replace(b'"dtype": "I64"', b'"dtype": "X64"'),
            "hole": good.replace(b'"data_offsets": [0,', b'"data_offsets": [8,'),
            "nested": struct.pack("<Q", 100000) + b"[" * 100000,
        }.items():
            with self.subTest(name):
                self.path.write_bytes(data)
                with self.assertRaises(FormatError):
                    checks.check_file(self.path)

    def test_a_wrong_quantised_query_is_found(self):
        file = self.file("FLASH_ATTN", "NHD", "fp8")
        file.tensors["query"].raw[3, 2, 1] ^= 1
        file.write(self.path)
        self.assert_disagrees("query_dequantized[3, 2, 1]")

    def test_a_query_that_should_be_quantised_is_found(self):
        file = self.file("FLASH_ATTN", "NHD", "fp8")
        file.tensors["query"] = StoredTensor("BF16", file.query)
        file.write(self.path)
        self.assert_disagrees("expected F8_E4M3")

    def with_an_error(self, change_values, share, probability):
        """A case of fp8 queries, keys and values of which one row of a head is off by this share of its
        norm, evenly over its elements."""
        file = SyntheticFile("FLASH_ATTN", "NHD", "fp8", change_values)
        output = file.tensors["reference_output"].raw.copy()
        row = output[2, 1]
        row += share * np.linalg.norm(row) / math.sqrt(row.size)
        file.tensors["output"] = StoredTensor("BF16", formats.encode_bf16(output))
        settings = {"type": "decoder", "head_size": file.D, "dtype": "bfloat16"}
        file.write(self.path, attention={**settings, "probability_dtype": probability})

    def test_an_error_of_e4m3_p_is_relative_to_the_row_of_the_head(self):
        def one_large(values):
            values[: SyntheticFile.LENS[0][1], 0, 0] += 50
            return values

        for change in (lambda values: values / 64, lambda values: values * 4, one_large):
            self.with_an_error(change, 0.05, "fp8_e4m3")
            checks.check_file(self.path)
            # Not 0.07: a row of uneven weights is measured by a larger size than its norm.
            self.with_an_error(change, 0.3, "fp8_e4m3")
            self.assert_disagrees("output[2, 1, ")

    def test_an_unknown_backend_is_judged_by_the_rules_that_its_file_states(self):
        file = self.file("TRITON_ATTN", "NHD", "fp8")
        stated = {"window": "symmetric", "alibi": "context_relative", "rounds_dequantised": True,
                  "quantises_query": False, "reads_dequantised": False, "cache_layout": "TR"}  # fmt: skip

        def judge(**changes):
            metadata = {"backend": "NEWCOMER", "kernel_rules": json.dumps({**stated, **changes})}
            file.write(self.path, metadata)
            checks.check_file(self.path)

        judge()
        with self.assertRaisesRegex(Disagreement, "key_dequantized"):
            judge(rounds_dequantised=False)
        with self.assertRaisesRegex(Disagreement, "query is BF16, expected F8_E4M3"):
            judge(quantises_query=True)
        with self.assertRaisesRegex(FormatError, "kv_cache"):
            judge(cache_layout="FA")
        for wrong in ({"alibi": "late"}, {"quantises_query": "yes"}, {"cache_layout": "X"}):
            with self.assertRaisesRegex(FormatError, "kernel_rules." + next(iter(wrong))):
                judge(**wrong)

    def test_an_unknown_backend_that_states_no_rules_is_not_covered(self):
        self.file().write(self.path, {"backend": "NEWCOMER"})
        with self.assertRaisesRegex(FormatError, "'NEWCOMER' is not covered"):
            checks.check_file(self.path)

    def test_rules_of_a_known_backend_are_not_the_files_to_state(self):
        stated = json.dumps({"window": "symmetric", "alibi": "by_mask", "cache_layout": "FA"})
        self.file().write(self.path, {"kernel_rules": stated})
        checks.check_file(self.path)

    def test_cudnn_rounds_p_to_e4m3_without_being_asked(self):
        problem = json.dumps({"attention": {"head_size": 64}})
        for backend, rounds in (("CUDNN", True), ("MINE", False)):
            metadata = {"problem": problem, "backend": backend, "plugin": "9.19.0"}
            self.assertEqual(Rules(metadata).e4m3_probability, rounds)

    def test_an_error_of_a_wider_p_beside_fp8_operands_is_relative_to_the_row_too(self):
        for change in (lambda values: values / 64, lambda values: values, lambda values: values * 4):
            self.with_an_error(change, 0.003, "auto")
            checks.check_file(self.path)
            self.with_an_error(change, 0.04, "auto")
            self.assert_disagrees("output[2, 1, ")

    def test_static_fp8_output_may_be_one_step_off_in_one_element_of_a_hundred(self):
        file = self.file()
        codes = formats.encode_e4m3(file.tensors["reference_output"].raw * 8)
        file.tensors["output"] = StoredTensor("F8_E4M3", codes)
        section = {"type": "fp8_static", "scale": 0.125}
        codes[0, 0, 0] += 1
        file.write(self.path, output_quant=section)
        checks.check_file(self.path)
        codes[0, 0, 0] += 1
        file.write(self.path, output_quant=section)
        self.assert_disagrees("steps")

    def test_a_missing_tensor_is_named(self):
        for name in ("query", "kv_cache", "block_table", "reference_output", "output"):
            with self.subTest(name):
                file = self.file()
                del file.tensors[name]
                file.write(self.path)
                with self.assertRaises(FormatError) as caught:
                    checks.check_file(self.path)
                self.assertIn(name, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
