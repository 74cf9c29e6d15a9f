"""A stub with the signature and conventions of vLLM's fork of FlashAttention."""

import stub_attention as stub

def flash_attn_varlen_func(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None,
                           seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None,
                           causal=False, window_size=None, softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None,
                           return_softmax_lse=False, out=None, scheduler_metadata=None,
                           q_descale=None, k_descale=None, v_descale=None, num_splits=0,
                           fa_version=2, s_aux=None, cp_world_size=1, cp_rank=0,
                           cp_tot_seqused_k=None):  # fmt: skip
    """LSE [H, T], natural; in rows that see no key +inf in version 2, -inf in version 3."""
    stub.check_varlen(q, cu_seqlens_q, max_seqlen_q, max_seqlen_k, allows_fp8=fa_version == 3)
    stub.check(k.shape[1] % 16 == 0, "Paged KV cache block size must be divisible by 16")
    stub.check(s_aux is None, "s_aux")
    left, right = window_size
    keys = stub.paged(k, v, block_table, seqused_k)
    q, keys, options = stub.with_descales(q, keys, q_descale, k_descale, v_descale)
    output, lse = stub.of_batch(q, cu_seqlens_q, keys, softmax_scale, left,
                                0 if causal else right, soft_cap=softcap, **options)  # fmt: skip
    stub.check(out.dtype == output.dtype, "For FP8 input, output must have dtype BF16")
    out.copy_(output)
    lse = stub.plus_inf(lse) if fa_version == 2 else lse
    return (out, lse.T.contiguous()) if return_softmax_lse else out
