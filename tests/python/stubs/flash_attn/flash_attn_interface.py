"""A stub with the signature and conventions of FlashAttention-2."""

import stub_attention as stub

def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                           dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                           softcap=0.0, alibi_slopes=None, deterministic=False,
                           return_attn_probs=False, block_table=None):  # fmt: skip
    """LSE [H, T], natural; +inf in rows that see no key."""
    stub.check_varlen(q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    stub.check(cu_seqlens_k.dtype == q.new_empty(0).int().dtype, "cu_seqlens_k must be int32")
    left, right = window_size[0], 0 if causal else window_size[1]
    if block_table is None:
        keys = stub.ragged(k, v, cu_seqlens_k)
    else:
        stub.check(k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
        keys = stub.paged(k, v, block_table, cu_seqlens_k.diff())
    output, lse = stub.of_batch(q, cu_seqlens_q, keys, softmax_scale, left, right, soft_cap=softcap,
                                slopes=alibi_slopes, by_key_index=causal and left < 0)  # fmt: skip
    return (output, stub.plus_inf(lse).T.contiguous(), None) if return_attn_probs else output
