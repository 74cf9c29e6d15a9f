"""A stub with the signatures and conventions of vLLM's FlashMLA over an fp8 cache."""

import stub_attention as stub
import stub_mla
import torch


def get_mla_metadata_dense_fp8(cache_seqlens, num_q_tokens_per_head_k, num_heads_k):
    stub.check(num_heads_k == 1, "num_heads_k")
    return cache_seqlens.new_full((1, 8), num_q_tokens_per_head_k), cache_seqlens.new_zeros(1)


def flash_mla_with_kvcache_fp8(q, k_cache, block_table, cache_seqlens, head_dim_v,
                               tile_scheduler_metadata, num_splits, softmax_scale=None,
                               causal=False, descale_q=None, descale_k=None):  # fmt: skip
    stub.check(q.dtype == k_cache.dtype == torch.float8_e4m3fn, "e4m3 query and cache")
    stub.check(descale_q.shape == descale_k.shape == (1,), "descale of shape (1)")
    stub.check(int(tile_scheduler_metadata[0, 0]) == q.shape[1] * q.shape[2], "metadata")
    output, lse = stub_mla.dense(q.float() * descale_q, k_cache.float() * descale_k, block_table,
                                 cache_seqlens, head_dim_v, softmax_scale, causal,
                                 rounds_p=True)  # fmt: skip
    return output.bfloat16(), stub.plus_inf(lse)
