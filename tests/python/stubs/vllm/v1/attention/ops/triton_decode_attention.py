"""A stub with the signature and conventions of vLLM's Triton decode, which serves MLA."""

import stub_attention as stub
import torch


def decode_attention_fwd(q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits,
                         num_kv_splits, sm_scale, page_size=1, logit_cap=0.0, k_scale=None,
                         v_scale=None, is_mla=False):  # fmt: skip
    """[B, H, D] over buffers [NB, page, 1, D]; LSE [B, H], natural."""
    stub.check(attn_logits.shape == (*q.shape[:2], num_kv_splits, v_buffer.shape[-1] + 1), "logits")
    stub.check(len(q) == len(lse) == len(req_to_token) == len(b_seq_len), "a table for each row")
    stub.check(k_buffer.shape[1] == page_size and is_mla and logit_cap == 0, "pages")
    stub.check(k_scale is not None and v_scale is not None, "a scale that is made here is waited for")
    scaled = lambda buffer, scale: buffer.float() * scale
    keys = stub.paged(scaled(k_buffer, k_scale), scaled(v_buffer, v_scale), req_to_token, b_seq_len)
    output, natural = stub.of_batch(q, torch.arange(len(q) + 1), keys, sm_scale, -1, 0)
    o.copy_(output)
    lse.copy_(natural)
