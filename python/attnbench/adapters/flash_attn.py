"""FlashAttention 2, 3 and 4: the functions for batches of any lengths, over ragged keys and over pages.

LSE: natural, [H, T]; rows that see no key are +inf in FlashAttention-2, -inf in the others. Output and
LSE are new tensors, whose copy is not timed.
"""

from attnbench.adapter import Adapter
from attnbench.adapters import fp8

ALL_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder", "mm_encoder")
COMMON = ("causal", "non_causal", "gqa", "sliding_window", "soft_cap")
FP8 = ("fp8_kv", "fp8_query", "fp8_probability")


def has_sizes_of_fa3(problem):
    """Head sizes of keys and values that are one, or those of MLA's prompts."""
    sizes = problem.head_size, problem.v_head_size
    return sizes[0] == sizes[1] or sizes == (192, 128)


class VarlenAttention(Adapter):
    """What the versions have in common."""

    attention_types = ALL_TYPES
    features = COMMON
    lse = "natural"
    multiple_of_block_size = 0  # what block_size has to be a multiple of, over pages

    def supports(self, problem):
        reasons = []
        if problem.head_size > 256 or problem.head_size % 8:
            reasons.append("head_size not supported")
        if self.kv == "paged" and problem.block_size % self.multiple_of_block_size:
            reasons.append(f"block_size not a multiple of {self.multiple_of_block_size}")
        return reasons

    def prepare(self, problem, tensors):
        self.function = self.find()
        self.options = self.common(problem, tensors)
        if tensors.key_cache is None:
            # key_start_loc is 64 bits wide.
            key_starts = tensors.key_start_loc.int()
            self.keys = tensors.key, tensors.value
            self.options.update(self.ragged(key_starts))
        else:
            self.keys = tensors.key_cache, tensors.value_cache
            self.options.update(self.paged(tensors))
        self.query = tensors.query

    def common(self, problem, tensors):
        return {
            "cu_seqlens_q": tensors.query_start_loc,
            "max_seqlen_q": problem.max_query_len,
            "max_seqlen_k": problem.max_seq_len,
            "softmax_scale": problem.scale,
            "causal": problem.causal,
            "window_size": self.window(problem),
            "softcap": problem.logits_soft_cap,
        }

    def window(self, problem):
        # The causal rule is in window_right, too, where the functions want it apart.
        return problem.window_left, -1 if problem.causal else problem.window_right

    def ragged(self, key_starts):
        return {"cu_seqlens_k": key_starts}

    def run(self):
        output, lse, *_ = self.function(self.query, *self.keys, **self.options)
        return output, lse


class Fa2(VarlenAttention):
    """flash_attn.flash_attn_varlen_func over ragged keys (stub-tested)"""

    packages = ("torch", "flash_attn.flash_attn_interface")  # flash_attn by itself can be version 4's
    features = COMMON + ("alibi",)
    empty_rows = "+inf"

    def supports(self, problem):
        reasons = super().supports(problem)
        # Its bias is m * j with only the causal rule, and else a distance.
        is_key_index = problem.causal and problem.window_left < 0
        if problem.alibi and (problem.alibi == "key_index") != is_key_index:
            reasons.append(f"alibi of {problem.alibi.replace('_', ' ')}")
        return reasons

    def find(self):
        from flash_attn import flash_attn_varlen_func

        return flash_attn_varlen_func

    def common(self, problem, tensors):
        options = {**super().common(problem, tensors), "return_attn_probs": True}
        if tensors.alibi_slopes is not None:
            options["alibi_slopes"] = tensors.alibi_slopes
        return options


class Fa2Paged(Fa2):
    """flash_attn.flash_attn_varlen_func over pages of a multiple of 256 (stub-tested)"""

    kv = "paged"
    attention_types = ("decoder", "encoder_decoder")
    multiple_of_block_size = 256

    def paged(self, tensors):
        starts = tensors.seq_lens.cumsum(0, dtype=tensors.seq_lens.dtype)
        return {"cu_seqlens_k": starts.new_zeros(len(starts) + 1).index_copy_(
                    0, starts.new_tensor(range(1, len(starts) + 1)).long(), starts),
                "block_table": tensors.block_table}  # fmt: skip


class Fa3(VarlenAttention):
    """flash_attn_interface.flash_attn_varlen_func (FlashAttention-3) over ragged keys"""

    packages = ("torch", "flash_attn_interface")
    features = COMMON + FP8 + ("v_head_size",)

    def supports(self, problem):
        reasons = super().supports(problem) + list(fp8.refused_by_fa3(problem))
        if not has_sizes_of_fa3(problem):
            reasons.append("head size of values other than that of keys, except 128 beside 192")
        if problem.device == "cuda" and problem.sm // 10 != 9:
            reasons.append("FlashAttention-3 is for compute capability 9.0")
        return reasons

    def find(self):
        from flash_attn_interface import flash_attn_varlen_func

        return flash_attn_varlen_func

    def common(self, problem, tensors):
        return {**super().common(problem, tensors), **fp8.descales(problem, tensors),
                "return_attn_probs": True}  # fmt: skip


class Fa3Forward(Fa3):
    """fa3_fwd_interface.flash_attn_varlen_func (FlashAttention-3, the build of PyPI's fa3-fwd)"""

    packages = ("torch", "fa3_fwd_interface")
    # It is built without windows and soft-cap.
    features = ("causal", "non_causal", "gqa", "v_head_size") + FP8
    dtypes = ("bfloat16",)

    def find(self):
        from fa3_fwd_interface import flash_attn_varlen_func

        return flash_attn_varlen_func


class Fa3Paged(Fa3):
    """flash_attn_interface.flash_attn_with_kvcache (FlashAttention-3) over pages"""

    kv = "paged"
    attention_types = ("decoder", "encoder_decoder")
    multiple_of_block_size = 1

    def find(self):
        from flash_attn_interface import flash_attn_with_kvcache

        return flash_attn_with_kvcache

    def common(self, problem, tensors):
        options = VarlenAttention.common(self, problem, tensors)
        del options["max_seqlen_k"]
        return {**options, **fp8.descales(problem, tensors), "return_softmax_lse": True}

    def paged(self, tensors):
        return {"cache_seqlens": tensors.seq_lens, "page_table": tensors.block_table}


class Fa4(VarlenAttention):
    """flash_attn.cute.flash_attn_varlen_func (FlashAttention-4) over ragged keys"""

    packages = ("torch", "flash_attn.cute")

    def supports(self, problem):
        reasons = super().supports(problem)
        if problem.device == "cuda" and problem.sm // 10 in (10, 11) and 128 < problem.head_size < 256:
            reasons.append("head_size between 128 and 256 on compute capability 10 and 11")
        if problem.device == "cuda" and problem.sm // 10 == 8 and self.kv == "paged":
            reasons.append("pages on compute capability 8")
        return reasons

    def find(self):
        from flash_attn.cute import flash_attn_varlen_func

        return flash_attn_varlen_func

    def common(self, problem, tensors):
        return {**super().common(problem, tensors), "return_lse": True}

    def window(self, problem):
        return tuple(None if side < 0 else side for side in super().window(problem))


class Fa4Paged(Fa4):
    """flash_attn.cute.flash_attn_varlen_func (FlashAttention-4) over pages"""

    kv = "paged"
    attention_types = ("decoder", "encoder_decoder")
    multiple_of_block_size = 1

    def paged(self, tensors):
        return {"seqused_k": tensors.seq_lens, "page_table": tensors.block_table}
