"""vLLM's Triton kernel over its paged cache: unified_attention in its two forms. It gives no LSE."""

from attnbench.adapter import Adapter
from attnbench.adapters import fp8

SEGMENTS = 16  # parts that a sequence is divided into, as vLLM's backend has it


def find():
    """The function, where this version of vLLM has it."""
    try:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ModuleNotFoundError:
        from vllm.attention.ops.triton_unified_attention import unified_attention
    return unified_attention


def quantisation(problem, tensors):
    """Arguments for a quantised cache. Older versions see by its type that it is one."""
    scales = {"q_descale": None, "k_descale": None, "v_descale": None, **fp8.descales(problem, tensors)}
    if not fp8.has_cache(problem):
        return scales
    try:
        from vllm.v1.kv_cache_interface import KVQuantMode
    except ImportError:
        return scales
    return {**scales, "kv_quant_mode": KVQuantMode.FP8_PER_TENSOR}


class Unified2d(Adapter):
    """vLLM's Triton unified_attention, a CTA for each block of queries"""

    packages = ("torch", "triton", "vllm")
    attention_types = ("decoder",)
    features = ("causal", "gqa", "sliding_window", "soft_cap", "alibi", "alibi_sqrt", "sinks",
                "mm_prefix", "fp8_kv", "fp8_e5m2_kv", "fp8_query", "fp8_probability")  # fmt: skip
    kv = "paged"

    def supports(self, problem):
        reasons = [*fp8.one_scale_only(problem), *fp8.rounds_probability(problem)]
        # Its bias counts keys from the query on: the same for the softmax, but not beside a sink.
        if problem.alibi and "sinks" in problem.features:
            reasons.append("alibi with sinks")
        return reasons

    def prepare(self, problem, tensors):
        self.function = find()
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
            **quantisation(problem, tensors),
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
        decode_only = ["more than one query token"] if problem.max_query_len > 1 else []
        return decode_only + super().supports(problem)

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
