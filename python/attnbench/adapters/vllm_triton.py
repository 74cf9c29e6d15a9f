"""vLLM's Triton kernels: unified_attention over its paged cache in its two forms, which gives no LSE, and
single operations."""

from attnbench.adapter import Adapter
from attnbench.adapters import vllm_operations

SEGMENTS = 16  # parts that a sequence is divided into, as vLLM's backend has it


class Unified2d(Adapter):
    """vLLM's Triton unified_attention, a CTA for each block of queries"""

    packages = ("torch", "triton", "vllm")
    attention_types = ("decoder",)
    features = ("causal", "gqa", "sliding_window", "soft_cap", "alibi", "alibi_sqrt", "sinks",
                "mm_prefix")  # fmt: skip
    kv = "paged"

    def supports(self, problem):
        # Its bias counts keys from the query on: the same for the softmax, but not beside a sink.
        if problem.alibi and "sinks" in problem.features:
            return "alibi with sinks"
        return None

    def prepare(self, problem, tensors):
        self.function = vllm_operations.find("triton_unified_attention", "unified_attention")
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
            "causal": True,
            "window_size": (problem.window_left, 0 if problem.has_window else -1),
            "block_table": tensors.block_table,
            "softcap": problem.logits_soft_cap,
            "q_descale": None,
            "k_descale": None,
            "v_descale": None,
            "alibi_slopes": tensors.alibi_slopes,
            "sinks": tensors.sinks,
            **self.more(problem, tensors),
        }
        if tensors.mm_prefix_ranges is not None:
            self.options["mm_prefix_range"] = tensors.mm_prefix_ranges
        if problem.alibi == "sqrt":
            self.options["use_alibi_sqrt"] = True

    def more(self, problem, tensors):
        return {}

    def run(self):
        self.function(**self.options)


class Unified3d(Unified2d):
    """vLLM's Triton unified_attention for decodes, with 16 segments of the keys and their merge"""

    def supports(self, problem):
        if problem.max_query_len > 1:
            return "more than one query token"
        return super().supports(problem)

    def more(self, problem, tensors):
        import torch

        padded = 1 << (problem.head_size - 1).bit_length()
        parts = (problem.num_requests, problem.num_heads, SEGMENTS)
        new = lambda *shape: torch.empty(shape, dtype=torch.float32, device=tensors.query.device)
        return {
            "seq_threshold_3D": problem.num_requests,
            "num_par_softmax_segments": SEGMENTS,
            "softmax_segm_output": new(*parts, padded),
            "softmax_segm_max": new(*parts),
            "softmax_segm_expsum": new(*parts),
        }


class ReshapeAndCache(vllm_operations.ReshapeAndCache):
    """vLLM's Triton reshape_and_cache_flash"""

    packages = ("torch", "triton", "vllm")

    def find(self):
        return vllm_operations.find(
            "triton_reshape_and_cache_flash", "triton_reshape_and_cache_flash"
        )


class Merge(vllm_operations.Merge):
    """vLLM's Triton merge_attn_states"""

    packages = ("torch", "triton", "vllm")

    def find(self):
        return vllm_operations.find("triton_merge_attn_states", "merge_attn_states")
