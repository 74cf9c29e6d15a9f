"""A stub with the signatures and conventions of vLLM's CUDA operations."""

import stub_attention as stub
import torch


def reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale,
                            v_scale):  # fmt: skip
    stub.check(kv_cache_dtype == "auto" or key_cache.dtype == torch.uint8, "bytes")
    stub.write_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale,
                     v_scale)  # fmt: skip


def merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None,
                      prefill_tokens_with_context=None, output_scale=None):  # fmt: skip
    stub.check(output.shape[2] % (16 // prefix_output.element_size()) == 0, "16 bytes at a time")
    stub.merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse,
                           prefill_tokens_with_context, output_scale)  # fmt: skip
