"""vLLM's fork of FlashAttention, over its paged cache: vllm.vllm_flash_attn.flash_attn_varlen_func.

LSE: natural, [H, T], a new tensor whose copy is not timed; rows that see no key are +inf in version 2,
-inf in version 3.
"""

from attnbench.adapter import Adapter
from attnbench.adapters import fp8


class VllmFlashAttention(Adapter):
    """What the versions have in common."""

    packages = ("torch", "vllm")
    attention_types = ("decoder", "encoder_decoder")
    features = ("causal", "non_causal", "gqa", "sliding_window", "soft_cap")
    kv = "paged"
    lse = "natural"
    fa_version = 0

    def supports(self, problem):
        reasons = []
        if problem.head_size > 256 or problem.head_size % 8:
            reasons.append("head_size not supported")
        if problem.block_size % 16:
            reasons.append("block_size not a multiple of 16")
        return reasons

    def prepare(self, problem, tensors):
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        self.function = flash_attn_varlen_func
        self.options = {
            "q": tensors.query,
            "k": tensors.key_cache,
            "v": tensors.value_cache,
            "out": tensors.output,
            "cu_seqlens_q": tensors.query_start_loc,
            "max_seqlen_q": problem.max_query_len,
            "seqused_k": tensors.seq_lens,
            "max_seqlen_k": problem.max_seq_len,
            "softmax_scale": problem.scale,
            "causal": problem.causal,
            "window_size": [problem.window_left, -1 if problem.causal else problem.window_right],
            "softcap": problem.logits_soft_cap,
            "block_table": tensors.block_table,
            "return_softmax_lse": True,
            "fa_version": self.fa_version,
            **fp8.descales(problem, tensors),
        }

    def run(self):
        _, lse = self.function(**self.options)
        return None, lse


class Fa2(VllmFlashAttention):
    """vllm.vllm_flash_attn, version 2, over pages (stub-tested)"""

    fa_version = 2
    empty_rows = "+inf"


class Fa3(VllmFlashAttention):
    """vllm.vllm_flash_attn, version 3, over pages"""

    fa_version = 3  # its sinks are bfloat16, those of a case float32
    features = VllmFlashAttention.features + ("fp8_kv", "fp8_query", "fp8_probability")

    def supports(self, problem):
        reasons = super().supports(problem) + list(fp8.refused_by_fa3(problem))
        if problem.device == "cuda" and problem.sm // 10 != 9:
            reasons.append("FlashAttention-3 is for compute capability 9.0")
        return reasons
