"""A stub with the signatures and conventions of FlashAttention-3."""

import stub_attention as stub

def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                           seqused_q=None, seqused_k=None, softmax_scale=None, causal=False,
                           qv=None, q_descale=None, k_descale=None, v_descale=None,
                           window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, sm_margin=0,
                           return_attn_probs=False):  # fmt: skip
    """LSE [H, T], natural; -inf in rows that see no key."""
    stub.check_varlen(q, cu_seqlens_q, max_seqlen_q, max_seqlen_k, allows_fp8=True)
    q, keys, options = stub.with_descales(q, stub.ragged(k, v, cu_seqlens_k), q_descale, k_descale,
                                          v_descale)  # fmt: skip
    output, lse = stub.of_batch(q, cu_seqlens_q, keys, softmax_scale, window_size[0],
                                0 if causal else window_size[1], soft_cap=softcap,
                                **options)  # fmt: skip
    return (output, lse.T.contiguous()) if return_attn_probs else output


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None,
                            rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
                            cache_leftpad=None, page_table=None, cu_seqlens_q=None,
                            cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
                            q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
                            causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
                            rotary_interleaved=True, scheduler_metadata=None, num_splits=0,
                            pack_gqa=None, sm_margin=0, return_softmax_lse=False):  # fmt: skip
    """LSE [H, T], natural; -inf in rows that see no key."""
    stub.check_varlen(q, cu_seqlens_q, max_seqlen_q, 0, allows_fp8=True)
    keys = stub.paged(k_cache, v_cache, page_table, cache_seqlens)
    q, keys, options = stub.with_descales(q, keys, q_descale, k_descale, v_descale)
    output, lse = stub.of_batch(q, cu_seqlens_q, keys, softmax_scale, window_size[0],
                                0 if causal else window_size[1], soft_cap=softcap,
                                **options)  # fmt: skip
    return (output, lse.T.contiguous()) if return_softmax_lse else output
