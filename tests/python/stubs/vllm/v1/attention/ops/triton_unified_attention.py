"""A stub with the signature and conventions of vLLM's unified attention in Triton."""

import stub_attention as stub
from vllm.v1.kv_cache_interface import KVQuantMode

def unified_attention(q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k,
                      softmax_scale, causal, window_size, block_table, softcap, q_descale,
                      k_descale, v_descale, seq_threshold_3D=None, num_par_softmax_segments=None,
                      softmax_segm_output=None, softmax_segm_max=None, softmax_segm_expsum=None,
                      alibi_slopes=None, output_scale=None, qq_bias=None, sinks=None,
                      mm_prefix_range=None, use_alibi_sqrt=False,
                      kv_quant_mode=KVQuantMode.NONE):  # fmt: skip
    stub.check(causal, "only causal attention")
    keys, options = stub.paged(k, v, block_table, seqused_k), {}
    # Without the mode codes are taken for the values, whatever their scales.
    if kv_quant_mode == KVQuantMode.FP8_PER_TENSOR:
        k_scale, v_scale = (float(scale[0, 0]) for scale in (k_descale, v_descale))
        keys = [(key.to(out.dtype), value.to(out.dtype))
                for key, value in stub.scaled(keys, k_scale, v_scale)]  # fmt: skip
        if stub.is_fp8(q):
            q, options = q.float() * float(q_descale[0, 0]), {"dtype": out.dtype, "rounds_p": True}
    if num_par_softmax_segments is not None:
        parts = (seq_threshold_3D, q.shape[1], num_par_softmax_segments)
        stub.check(softmax_segm_max.shape == parts, "softmax_segm_max")
        stub.check(softmax_segm_output.shape[:3] == parts, "softmax_segm_output")
        stub.check(max_seqlen_q == 1, "3D is for decodes")
    output, _ = stub.of_batch(q, cu_seqlens_q, keys, softmax_scale, window_size[0], 0,
                              soft_cap=softcap, sinks=sinks, slopes=alibi_slopes,
                              **options)  # fmt: skip
    out.copy_(output)
