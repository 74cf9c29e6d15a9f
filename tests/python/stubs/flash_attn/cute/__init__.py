"""A stub with the signature and conventions of FlashAttention-4."""

import stub_attention as stub


def flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None,
                           max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, seqused_q=None,
                           seqused_k=None, gather_kv_indices=None, page_table=None,
                           softmax_scale=None, causal=False, window_size=(None, None),
                           learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
                           deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
                           block_sparse_tensors=None, aux_tensors=None, aux_scalars=None,
                           return_lse=False, scheduler_metadata=None):  # fmt: skip
    """LSE [H, T], natural; -inf in rows that see no key."""
    stub.check_varlen(q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    left, right = (-1 if side is None else side for side in window_size)
    stub.check(-1 not in window_size, "window_size: None is unlimited")
    keys = (stub.ragged(k, v, cu_seqlens_k) if page_table is None
            else stub.paged(k, v, page_table, seqused_k))  # fmt: skip
    output, lse = stub.of_batch(q, cu_seqlens_q, keys, softmax_scale, left, 0 if causal else right,
                                soft_cap=softcap)  # fmt: skip
    return output, lse.T.contiguous() if return_lse else None
