"""vLLM's Triton kernels: unified_attention over its paged cache in its two forms, which gives no LSE; the
decode over the latents of MLA, whose LSE is natural; and single operations.
"""

import inspect

from attnbench.adapter import Adapter
from attnbench.adapters import fp8, vllm_operations

SEGMENTS = 16  # parts that a sequence is divided into, as vLLM's backend has it


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
        reasons = [*fp8.one_scale_only(problem), *fp8.rounds_probability(problem),
                   *fp8.without_e4m3(problem)]  # fmt: skip
        # Its bias counts keys from the query on: the same for the softmax, but not beside a sink.
        if problem.alibi and "sinks" in problem.features:
            reasons.append("alibi with sinks")
        return reasons

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


MLA_KEYS_OF_SPLIT = 512  # at least, as vLLM's backend has it
MLA_SPLITS_OF_SM = 2  # at most


def mla_splits(problem):
    """Parts that vLLM's backend TRITON_MLA cuts the keys into."""
    if problem.batch_invariant:
        return 1
    wanted = max(1, problem.max_seq_len // MLA_KEYS_OF_SPLIT)
    return min(1 << (wanted - 1).bit_length(), MLA_SPLITS_OF_SM * problem.num_sms)


class MlaDecode(Adapter):
    """vLLM's Triton decode_attention_fwd over latents of MLA (fp8, several tokens: stub-tested)"""

    # Several tokens are a row each with a length of its own, as TRITON_MLA of vLLM 0.33 has it.

    packages = ("torch", "triton", "vllm")
    attention_types = ("mla",)
    features = ("causal", "fp8_kv")
    lse = "natural"
    lse_axes = "TH"

    def supports(self, problem):
        reasons = [*fp8.without_e4m3(problem)]
        if len(set(problem.query_lens)) != 1:
            reasons.append("query lengths differ")
        return reasons

    def rows(self, problem, tensors):
        """Block table and length of each query token: row i of a request does not see the last Q-1-i
        of its keys."""
        import torch

        count = problem.max_query_len
        if count == 1:
            return tensors.block_table, tensors.seq_lens
        unseen = torch.arange(1 - count, 1, device=tensors.seq_lens.device, dtype=torch.int32)
        lens = (tensors.seq_lens[:, None] + unseen).flatten()
        return tensors.block_table.repeat_interleave(count, 0), lens

    def prepare(self, problem, tensors):
        import torch

        self.function = vllm_operations.find("triton_decode_attention", "decode_attention_fwd")
        rows = problem.num_tokens, problem.num_heads
        new = lambda *shape: torch.empty(shape, dtype=torch.float32, device=tensors.query.device)
        entries = tensors.kv_cache.unsqueeze(2)
        splits = mla_splits(problem)
        block_table, lens = self.rows(problem, tensors)
        self.options = {
            "q": tensors.query,
            "k_buffer": entries,
            "v_buffer": entries[..., : problem.v_head_size],
            "o": tensors.output,
            "lse": new(*rows),
            "req_to_token": block_table,
            "b_seq_len": lens,
            "attn_logits": new(*rows, splits, problem.v_head_size + 1),
            "num_kv_splits": splits,
            "sm_scale": problem.scale,
            "page_size": problem.block_size,
            **self.newer(tensors),
        }

    def newer(self, tensors):
        """Arguments that an older function does not have, and does not need over 16 bits."""
        import torch

        # Without a scale the function makes one, and waits for it.
        ones = lambda: torch.ones(1, device=tensors.kv_cache.device)
        scale = ones() if tensors.k_scale is None else tensors.k_scale
        options = {"k_scale": scale, "v_scale": scale, "is_mla": True}
        if tensors.k_scale is not None:
            return options
        known = inspect.signature(self.function).parameters
        return {name: value for name, value in options.items() if name in known}

    def run(self):
        self.function(**self.options)
        return None, self.options["lse"]


class ReshapeAndCache(vllm_operations.ReshapeAndCache):
    """vLLM's Triton reshape_and_cache_flash"""

    packages = ("torch", "triton", "vllm")

    def supports(self, problem):
        return [*fp8.without_e4m3(problem), *super().supports(problem)]

    def find(self):
        return vllm_operations.find(
            "triton_reshape_and_cache_flash", "triton_reshape_and_cache_flash"
        )


class Merge(vllm_operations.Merge):
    """vLLM's Triton merge_attn_states"""

    packages = ("torch", "triton", "vllm")

    def supports(self, problem):
        return [*fp8.without_e4m3(problem)]

    def find(self):
        return vllm_operations.find("triton_merge_attn_states", "merge_attn_states")
