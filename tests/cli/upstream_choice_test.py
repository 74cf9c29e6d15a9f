"""Which backend vLLM would take: what `explain` shows of the resolved case on the device, with vLLM's order
and its reasons, for decoders, MLA, sparse MLA and encoders."""

import re
import unittest

from tool import ToolTest

HEAD = "schema: 1\nname: c\n"
DECODER = HEAD + "attention: {num_heads: 32, num_kv_heads: 8, head_size: 128}\nbatch: 4q1s100\n"
MLA = HEAD + "attention: {type: mla, num_heads: 128}\nkv_cache: {block_size: 64}\nbatch: 4q1s100\n"
ENCODER = HEAD + "attention: {type: mm_encoder, num_heads: 16, head_size: 72}\nbatch: q100\n"


class Choice(ToolTest):
    def choice(self, scenario, sm, *settings):
        """[(name, words)] of the list, in its order."""
        self.write("c.yaml", scenario)
        chosen = [word for setting in settings for word in ("--set", setting)]
        out = self.expect(0, "explain", "c.yaml", "--device", "cpu", "--assume-sm", sm, *chosen).out
        _, listed = out.split(f"vLLM's choice on SM {sm}\n", 1)
        lines = re.match(r"(?:  .*\n)+", listed)[0].splitlines()
        return [tuple(line.split(maxsplit=1)) for line in lines]

    def test_of_a_decoder(self):
        self.assertEqual(self.choice(DECODER, "9.0"), [
            ("FLASH_ATTN", "chosen"),
            ("FLASHINFER", "fits, not first, no backend of attnbench"),
            ("TRITON_ATTN", "fits, not first"),
            ("FLEX_ATTENTION", "fits, not first, no backend of attnbench"),
            ("TURBOQUANT", "kv_cache_dtype not supported"),
        ])  # fmt: skip
        found = self.choice(DECODER, "10.0", "kv_cache.dtype=int8_per_token_head")
        self.assertEqual([name for name, _ in found[:2]], ["FLASHINFER", "FLASH_ATTN"])
        self.assertEqual(dict(found)["TRITON_ATTN"], "chosen")
        self.assertEqual(dict(found)["FLASH_ATTN"], "kv_cache_dtype not supported")

    def test_of_mla_and_sparse_mla(self):
        self.assertEqual(self.choice(MLA, "9.0", "kv_cache.block_size=16", "kv_cache.dtype=fp8"), [
            ("FLASH_ATTN_MLA", "kv_cache_dtype not supported"),
            ("FLASHMLA", "block_size not supported"),
            ("FLASHINFER_MLA", "block_size not supported; compute capability not supported"),
            ("TRITON_MLA", "chosen, here MLA"),
            ("FLASHMLA_SPARSE", "block_size not supported; non-sparse not supported"),
            ("then", "only block_size 16 rules out FLASHMLA, which vLLM tries earlier"),
        ])  # fmt: skip
        blackwell = dict(self.choice(MLA, "10.0", "kv_cache.dtype=fp8"))
        self.assertEqual(list(blackwell)[:3], ["FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA"])
        self.assertEqual(blackwell["FLASHINFER_MLA"], "chosen, no backend of attnbench")
        self.assertEqual(blackwell["FLASHMLA"],
                         "FlashMLA Dense is only supported on Hopper devices.")  # fmt: skip
        sparse = dict(self.choice(MLA, "9.0", "mla.sparse_topk=2048"))
        self.assertEqual(sparse["FLASHMLA_SPARSE"], "chosen")
        self.assertEqual(sparse["FLASH_ATTN_MLA"], "sparse not supported")
        few = self.choice(MLA, "10.0", "mla.sparse_topk=2048", "attention.num_heads=16")
        self.assertEqual(few[-2:], [("FLASHINFER_MLA_SPARSE", "chosen"),
                                    ("FLASHMLA_SPARSE", "fits, not first")])  # fmt: skip

    def test_of_an_encoder(self):
        self.assertEqual(self.choice(ENCODER, "9.0", "mm_encoder.attn_dtype=fp8"), [
            ("FLASH_ATTN", "chosen, here MM_FLASH_ATTN"),
            ("TRITON_ATTN", "fits, not first, here MM_TRITON_ATTN"),
            ("TORCH_SDPA", "fits, not first, here MM_TORCH_SDPA"),
            ("FLASHINFER", "head_size not supported"),
            ("then", "mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got FLASH_ATTN"),
        ])  # fmt: skip
        older = self.choice(ENCODER, "7.5")
        self.assertEqual(older[:2], [("FLASH_ATTN", "compute capability not supported"),
                                     ("TORCH_SDPA", "chosen, here MM_TORCH_SDPA")])  # fmt: skip


if __name__ == "__main__":
    unittest.main()
