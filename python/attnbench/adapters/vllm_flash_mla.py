"""vLLM's copy of FlashMLA, which reads a dense cache of fp8_e4m3 as well, with queries of fp8_e4m3; its
probabilities are rounded to e4m3 then.
"""

from attnbench.adapters import flash_mla

PLACE = ("vllm", "third_party", "flashmla")


def find_interface():
    from vllm.third_party.flashmla import flash_mla_interface

    return flash_mla_interface


class Decode(flash_mla.Decode):
    """vLLM's flash_mla_with_kvcache, and flash_mla_with_kvcache_fp8 where the cache is fp8"""

    packages = ("torch", "vllm")
    place = PLACE
    features = ("causal", "fp8_kv", "fp8_query", "fp8_probability")

    def supports(self, problem):
        reasons = super().supports(problem)
        if "fp8_kv" in problem.features and "fp8_probability" not in problem.features:
            reasons.append("rounds P to e4m3, which attention.probability_dtype: fp8_e4m3 asks for")
        if "fp8_kv" in problem.features and problem.dtype != "bfloat16":
            reasons.append(f"fp8 with an output of {problem.dtype}")
        return reasons

    def find(self):
        return find_interface()

    def prepare(self, problem, tensors):
        if "fp8_kv" not in problem.features:
            super().prepare(problem, tensors)
            return
        from vllm.v1.attention.ops import flashmla

        metadata, splits = flashmla.get_mla_metadata_dense_fp8(
            tensors.seq_lens, problem.max_query_len * problem.num_heads, 1
        )
        self.function = flashmla.flash_mla_with_kvcache_fp8
        self.options = {
            **self.common(problem, tensors),
            "tile_scheduler_metadata": metadata,
            "num_splits": splits,
            "descale_q": tensors.q_scale,
            "descale_k": tensors.k_scale,
        }


class Sparse(flash_mla.Sparse):
    """vLLM's flash_mla_sparse_fwd, and flash_mla_with_kvcache over fp8_ds_mla entries"""

    packages = ("torch", "vllm")
    place = PLACE

    def find(self):
        return find_interface()
