"""A stub with the signature and conventions of vLLM's unified attention in Triton."""

import stub_attention as stub


def unified_attention(q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k,
                      softmax_scale, causal, window_size, block_table, softcap, q_descale,
                      k_descale, v_descale, seq_threshold_3D=None, num_par_softmax_segments=None,
                      softmax_segm_output=None, softmax_segm_max=None, softmax_segm_expsum=None,
                      alibi_slopes=None, output_scale=None, qq_bias=None, sinks=None,
                      mm_prefix_range=None, use_alibi_sqrt=False):  # fmt: skip
    stub.check(causal, "only causal attention")
    stub.check(q_descale is None, "q scales not supported")
    if num_par_softmax_segments is not None:
        parts = (seq_threshold_3D, q.shape[1], num_par_softmax_segments)
        stub.check(softmax_segm_max.shape == parts, "softmax_segm_max")
        stub.check(softmax_segm_output.shape[:3] == parts, "softmax_segm_output")
        stub.check(max_seqlen_q == 1, "3D is for decodes")
    output, _ = stub.of_batch(q, cu_seqlens_q, stub.paged(k, v, block_table, seqused_k),
                              softmax_scale, window_size[0], 0, soft_cap=softcap, sinks=sinks,
                              slopes=alibi_slopes)  # fmt: skip
    out.copy_(output)
